//! The suite that every store must pass.
//!
//! One public function per case, and [`conformance_tests!`](crate::conformance_tests) to run them all
//! as tests. A store brings a [`Harness`]; on a virtual clock the cases hit every edge exactly, on a
//! real one they judge each answer by the instant the store says it decided at.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "these are tests: a panic is how they fail"
)]

mod algorithms;
mod awaited;
mod concurrent;
mod give_back;
mod keys;
mod meter;
mod records;
mod settle;
mod slots;
mod together;

use std::future::Future;

use tollgate_core::Nanos;

use crate::Store;

pub use algorithms::*;
pub use awaited::Awaited;
pub use concurrent::*;
pub use give_back::*;
pub use keys::*;
pub use records::*;
pub use settle::*;
pub use slots::*;
pub use together::*;

/// A store under test and its clock. The store must hold no counters of earlier runs.
pub trait Harness: Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// The store under test.
    fn store(&self) -> &Self::Store;

    /// What the store's clock says.
    fn now(&self) -> impl Future<Output = Nanos> + Send;

    /// Returns when at least this much time has passed on the store's clock.
    fn advance(&self, by: Nanos) -> impl Future<Output = ()> + Send;
}

/// One `#[tokio::test]` for every case. `$make` is an async function that returns a [`Harness`] around
/// an empty store.
#[macro_export]
macro_rules! conformance_tests {
    ($make:path) => {
        $crate::conformance_cases! { tests $make }
    };
}

/// Every case on one harness, one after another, for stores that are slow to set up.
#[macro_export]
macro_rules! conformance_in_order {
    ($harness:expr) => {
        $crate::conformance_cases! { in_order $harness }
    };
}

/// Every case on one harness, all at the same time, for stores on a real clock: most of the time goes by
/// in waiting.
#[macro_export]
macro_rules! conformance_at_once {
    ($harness:expr) => {
        $crate::conformance_cases! { at_once $harness }
    };
}

/// The list of cases.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($($how:tt)*) => {
        $crate::conformance_run! { [$($how)*]
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
            watch_never_refuses,
            alongside_counts_all_that_passes,
            peek_charges_nothing,
            owing_goes_above_the_limit,
            the_same_counter_twice,
            several_requests_in_order,
            no_charges_at_all,
            reset_empties_counters,
            give_back_at_once_restores,
            give_back_of_one_among_others,
            give_backs_in_every_order_leave_nothing,
            give_back_later_mints_nothing,
            a_reset_voids_earlier_charges,
            settling_gives_back_the_difference,
            settling_charges_the_difference_above_the_limit,
            settling_is_done_once_by_many_at_the_same_time,
            settling_changes_many_counters_at_once,
            settling_later_mints_nothing,
            a_reservation_ends_one_way,
            a_reservation_is_over_when_its_time_is,
            slots_are_held_and_released,
            slots_expire_unless_renewed,
            slots_of_one_call_say_when_to_retry,
            a_slot_held_twice_is_one,
            keys_do_not_collide,
            rules_and_tags_do_not_collide,
            many_tasks_admit_exactly_the_quota,
            many_tasks_on_many_counters_account_exactly,
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_run {
    ([tests $make:path] $($case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                $crate::conformance::$case(&::std::sync::Arc::new($make().await)).await;
            }
        )*
    };
    ([at_once $harness:expr] $($case:ident,)*) => {
        ::tokio::join!($(::std::boxed::Box::pin($crate::conformance::$case($harness)),)*)
    };
    ([in_order $harness:expr] $($case:ident,)*) => {
        $(
            println!("{}", stringify!($case));
            $crate::conformance::$case($harness).await;
        )*
    };
}
