//! The limiter against the algorithm's own oracle, from many threads, and within its bounds.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Clock as _, Limiter, Quota, TestClock};

const SECOND: u64 = 1_000_000_000;

fn with_test_clock(quota: Quota) -> (Limiter, TestClock) {
    let clock = TestClock::new();
    (Limiter::keyed(quota).with_clock(clock.clone()), clock)
}

#[test]
fn retry_after_is_exact() {
    for quota in [
        Quota::per_minute(7),
        Quota::per_minute(7).burst(2),
        Quota::per_minute(7).fixed_window(),
        Quota::per_minute(7).sliding_window(),
        Quota::per_minute(7).approximate_sliding_window(),
    ] {
        let (limiter, clock) = with_test_clock(quota);
        while limiter.check("ann").is_ok() {}
        let after = limiter.check("ann").unwrap_err().retry_after().unwrap();
        clock.advance(after.checked_sub(Duration::from_nanos(1)).unwrap());
        assert!(limiter.check("ann").is_err(), "{quota:?}: a nanosecond early");
        clock.advance(Duration::from_nanos(1));
        assert!(limiter.check("ann").is_ok(), "{quota:?}: in time");
    }
}

#[test]
fn quotas_at_their_bounds_refuse_or_count_and_never_panic() {
    for amount in [0, 1, 3, u64::MAX] {
        for burst in [0, 1, u64::MAX] {
            for quota in [
                Quota::per_second(amount).burst(burst),
                Quota::per_day(amount).burst(burst),
                Quota::per_day(amount).burst(burst).leaky_bucket(),
                Quota::per(Duration::from_nanos(1), amount).unwrap().burst(burst),
                Quota::per(Duration::from_nanos(1 << 61), amount).unwrap().burst(burst),
            ] {
                let (limiter, clock) = with_test_clock(quota);
                assert_eq!(limiter.check("ann").is_ok(), amount > 0 && burst > 0, "{quota:?}");
                let _ = limiter.check_n("ann", u64::MAX);
                clock.advance(Duration::from_nanos(u64::MAX / 4));
                assert_eq!(limiter.check("ann").is_ok(), amount > 0 && burst > 0, "{quota:?}");
            }
        }
        for quota in
            [Quota::per_hour(amount).fixed_window(), Quota::per_hour(amount).sliding_window()]
        {
            assert_eq!(Limiter::keyed(quota).check("ann").is_ok(), amount > 0, "{quota:?}");
        }
    }
    assert!(Quota::per(Duration::from_nanos((1 << 61) + 1), 1).is_err());
    assert!(Quota::per(Duration::MAX, 1).is_err());
}

#[test]
fn threads_admit_exactly_the_quota() {
    let (limiter, _) = with_test_clock(Quota::per_day(1_000).fixed_window());
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    admitted.fetch_add(u64::from(limiter.check(&42).is_ok()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.load(Ordering::Relaxed), 1_000);
}

#[test]
fn keys_differ_by_all_that_they_hash() {
    let limiter = Limiter::keyed(Quota::per_day(1).sliding_window());
    for key in [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", "")] {
        assert!(limiter.check(&key).is_ok(), "{key:?}");
        assert!(limiter.check(&key).is_err(), "{key:?}");
    }
    let long = "x".repeat(100_000);
    assert!(limiter.check(&long).is_ok());
    assert!(limiter.check(long.as_str()).is_err(), "a String and a str are one key");
    assert!(limiter.check(&long[1..]).is_ok());
}

#[test]
fn memory_is_bounded_and_counters_that_are_reset_are_freed() {
    let (limiter, clock) = with_test_clock(Quota::per_second(1));
    let limiter = limiter.with_max_counters(1_000);
    for key in 0..100_000u64 {
        assert!(limiter.check(&key).is_ok());
    }
    clock.advance(Duration::from_nanos(2 * SECOND));
    for _ in 0..61 {
        assert!(limiter.check("again").is_ok());
        clock.advance(Duration::from_nanos(SECOND));
    }
    assert!(limiter.check(&0u64).is_ok());
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_the_request_passes_and_not_at_all_where_it_never_does() {
    let limiter = Limiter::keyed(Quota::per_day(0));
    assert_eq!(limiter.until_ready("ann").await.unwrap_err().retry_after(), None);
    let limiter = Limiter::keyed(Quota::per_second(1_000_000).burst(1));
    for _ in 0..100 {
        limiter.until_ready("ann").await.unwrap();
    }
}

proptest! {
    /// A bucket is what its charges, replayed in exact fractions, leave.
    #[test]
    fn a_bucket_equals_its_replay(
        (amount, burst) in (1..50u64, 1..50u64),
        steps in prop::collection::vec((0..3u8, 1..4u64, 0..SECOND), 1..200),
    ) {
        let (limiter, clock) = with_test_clock(Quota::per_second(amount).burst(burst));
        let mut tats: HashMap<u8, u128> = HashMap::new();
        let mut now = clock.now();
        for (key, cost, step) in steps {
            let tat = tats.entry(key).or_default();
            let at = u128::from(now) * u128::from(amount);
            let filled = (*tat).max(at) + u128::from(cost) * u128::from(SECOND);
            let fits = filled <= at + u128::from(burst) * u128::from(SECOND);
            prop_assert_eq!(limiter.check_n(&key, cost).is_ok(), fits);
            if fits {
                *tat = filled;
            }
            now += step;
            clock.advance(Duration::from_nanos(step));
        }
    }
}
