//! One suite for every repository: each of its tests runs on SQLite and on a PostgreSQL of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "helpers of tests fail like tests, and wait for real events with deadlines"
)]

mod chain;
mod commits;
mod decisions;
mod entries;
mod ground;
mod history;
mod loading;
mod migrations;
mod outage;
mod sharing;
mod texts;
mod usage;

use ground::Ground;

macro_rules! on_both {
    ($($module:ident :: $test:ident,)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$module::$test(super::Ground::sqlite()).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$module::$test(super::Ground::postgres()).await;
            })+
        }
    };
}

on_both! {
    entries::every_kind_comes_back_as_it_was_written,
    entries::pages_follow_each_other_without_gaps,
    entries::filters_find_what_they_name_and_nothing_else,
    entries::rules_keep_every_version,
    entries::a_token_is_found_by_its_digest,
    entries::keys_are_found_by_owner_and_have_secrets_of_their_own,
    commits::expectations_are_checked,
    commits::a_change_of_another_revision_is_stale,
    commits::one_conflict_undoes_everything,
    commits::no_update_is_lost,
    commits::one_entry_may_be_written_twice,
    commits::tiers_and_their_clients_come_and_go_together,
    commits::every_write_is_audited,
    commits::tokens_are_no_part_of_the_set,
    commits::ten_thousand_clients_are_one_change,
    chain::every_change_is_signed_and_follows_the_one_before,
    chain::every_altered_field_is_found_and_named,
    chain::missing_changes_are_found,
    chain::removed_changes_leave_signed_statements,
    chain::nodes_that_write_at_once_do_not_fork_the_chain,
    chain::records_from_before_are_covered_by_the_genesis,
    chain::pages_of_every_size_are_one_chain,
    history::versions_of_a_rule_are_bounded,
    history::a_tenant_has_a_share_of_the_history,
    history::a_lowered_bound_is_reached_step_by_step,
    history::the_history_is_bounded_in_bytes,
    loading::the_set_is_whole_and_in_order,
    loading::only_changed_buckets_are_loaded,
    loading::only_changed_buckets_of_keys_are_loaded,
    loading::the_revision_can_be_raised,
    decisions::decisions_come_back_the_newest_first,
    decisions::filters_find_decisions,
    decisions::a_decision_is_kept_once,
    decisions::a_search_goes_by_time_and_its_pages_have_no_gaps,
    commits::the_version_of_a_rule_at_a_revision_is_found,
    decisions::old_decisions_are_pruned_in_parts,
    decisions::the_log_is_bounded_in_bytes_and_the_loudest_goes_first,
    decisions::invented_tenants_of_a_caller_leave_the_records_of_others,
    decisions::no_text_of_a_client_spoils_a_batch,
    texts::odd_texts_are_kept_as_they_are,
    texts::prefixes_mean_themselves,
    texts::what_cannot_be_kept_is_refused,
    sharing::two_repositories_see_each_other,
    sharing::a_change_given_up_leaves_nothing_behind,
    sharing::figures_of_nodes_come_back,
    usage::an_event_counts_once_however_often_it_is_delivered,
    usage::two_writers_of_the_same_events_count_them_once,
    usage::reports_group_and_filter,
    usage::invented_names_and_amounts_stay_within_bounds,
    usage::old_usage_is_removed,
    usage::what_expires_counts_as_estimated_and_what_ends_does_not_expire,
    migrations::from_nothing_and_again,
    migrations::from_every_earlier_version_with_rows,
    migrations::a_filled_log_keeps_its_records_and_their_bytes,
    migrations::eight_at_once,
    migrations::a_newer_schema_is_refused,
}

/// SQLite reuses its pages by itself; how large its file gets is tried with the server's own tests.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_keeps_the_tables_of_postgres_small() {
    decisions::a_flood_keeps_the_tables_small(Ground::postgres()).await;
}

/// PostgreSQL ends a statement with its connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_takes_too_long_stops() {
    decisions::a_search_that_takes_too_long_stops(Ground::sqlite()).await;
}
