//! A node that is alone and without its store counts as exactly as the memory store does.
//!
//! The cases that reset or renew are left out: without the store a reset is an error, and a slot of
//! which nothing is known is held on trust.

mod leased_support;

use std::sync::Arc;

use leased_support::{Remote, World};
use tollgate_core::Nanos;
use tollgate_store::conformance::{self, Harness};
use tollgate_store::resilient::{Resilient, ResilientOptions};

struct CutOff {
    store: Resilient<Remote>,
    world: Arc<World>,
}

impl Harness for CutOff {
    type Store = Resilient<Remote>;

    fn store(&self) -> &Self::Store {
        &self.store
    }

    async fn now(&self) -> Nanos {
        self.world.now()
    }

    async fn advance(&self, by: Nanos) {
        self.world.advance(by);
    }
}

macro_rules! cases {
    ($($case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                let world = World::new();
                world.set_down(true);
                let options = ResilientOptions::new("a".to_owned());
                let store = Resilient::new(Remote(Arc::clone(&world)), options);
                conformance::$case(&Arc::new(CutOff { store, world })).await;
            }
        )*
    };
}

cases! {
    admits_the_quota_and_no_more,
    a_refusal_charges_nothing,
    figures_follow_every_decision,
    retry_at_is_exact,
    cost_zero_passes_and_counts_nothing,
    a_cost_above_capacity_never_passes,
    a_quota_of_zero_suspends,
    a_changed_quota_keeps_what_was_counted,
    throttling_waits_its_turn,
    an_expired_counter_is_reset,
    all_or_none_in_any_order,
    all_or_none_over_every_algorithm,
    any_of_charges_those_that_fit,
    peek_charges_nothing,
    owing_goes_above_the_limit,
    the_same_counter_twice,
    several_requests_in_order,
    no_charges_at_all,
    give_back_at_once_restores,
    give_back_of_one_among_others,
    give_back_later_mints_nothing,
    a_slot_held_twice_is_one,
    keys_do_not_collide,
    rules_and_tags_do_not_collide,
    many_tasks_admit_exactly_the_quota,
    many_tasks_on_many_counters_account_exactly,
}
