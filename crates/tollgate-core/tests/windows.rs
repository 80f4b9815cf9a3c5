//! Aligned windows against the list of what was admitted, summed anew at every question.

#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use support::{Op, Params, config, cost_of, history, limit_of, origin, params, step_of};
use tollgate_core::{Algorithm, Ask, Examination, Limit, Nanos, Status};

/// Everything charged, and when.
#[derive(Default)]
struct Charges(Vec<(Nanos, u64)>);

impl Charges {
    fn in_window(&self, number: u64, window: Nanos) -> u128 {
        let within = self.0.iter().filter(|(at, _)| at / window == number);
        within.map(|(_, cost)| u128::from(*cost)).sum()
    }

    /// What the sliding window weighs at `at`, times `window`.
    fn weighed(&self, at: Nanos, window: Nanos) -> u128 {
        let number = at / window;
        let before = number.checked_sub(1).map_or(0, |n| self.in_window(n, window));
        let left = u128::from(window - at % window);
        before * left + self.in_window(number, window) * u128::from(window)
    }
}

fn check_fixed(limit: &Limit, origin: Nanos, ops: &[Op]) -> Result<(), TestCaseError> {
    let (window, quota) = (limit.window_nanos(), u128::from(limit.quota()));
    let (mut state, mut now, mut charges) = (limit.fresh(), origin, Charges::default());
    for op in ops {
        now += step_of(limit, op.step);
        let ask = Ask::cost(cost_of(limit, op.cost));
        let used = charges.in_window(now / window, window);
        let end = (now / window + 1) * window;
        let expected = if u128::from(ask.cost) > quota {
            Examination::Refuse { retry_at: None }
        } else if used + u128::from(ask.cost) <= quota {
            Examination::Admit { wait: 0 }
        } else {
            Examination::Refuse { retry_at: Some(end) }
        };
        prop_assert_eq!(limit.examine(&state, &ask, now), expected);
        let status = Status {
            used: used as u64,
            remaining: quota.saturating_sub(used) as u64,
            reset_at: if used == 0 { now } else { end },
        };
        prop_assert_eq!(limit.status(&state, now), status);
        if expected.admits() || op.kind == 11 {
            limit.charge(&mut state, &ask, now);
            charges.0.push((now, ask.cost));
        }
    }
    Ok(())
}

fn check_sliding(limit: &Limit, origin: Nanos, ops: &[Op]) -> Result<(), TestCaseError> {
    let (window, quota) = (limit.window_nanos(), u128::from(limit.quota()));
    let wide = u128::from(window);
    let (mut state, mut now, mut charges) = (limit.fresh(), origin, Charges::default());
    for op in ops {
        now += step_of(limit, op.step);
        let ask = Ask::cost(cost_of(limit, op.cost));
        let weighed = charges.weighed(now, window);
        let admits = weighed + u128::from(ask.cost) * wide <= quota * wide;
        let examination = limit.examine(&state, &ask, now);
        prop_assert_eq!(examination.admits(), admits);
        if let Examination::Refuse { retry_at: Some(retry_at) } = examination {
            let fits =
                |at| charges.weighed(at, window) + u128::from(ask.cost) * wide <= quota * wide;
            prop_assert!(fits(retry_at));
            prop_assert!(!fits(retry_at - 1));
        }
        let status = limit.status(&state, now);
        prop_assert_eq!(u128::from(status.used), weighed.div_ceil(wide));
        prop_assert_eq!(
            u128::from(status.remaining),
            (quota * wide).saturating_sub(weighed) / wide
        );
        prop_assert_eq!(charges.weighed(status.reset_at, window), 0);
        if status.reset_at > now {
            prop_assert!(charges.weighed(status.reset_at - 1, window) > 0);
        }
        if admits || op.kind == 11 {
            limit.charge(&mut state, &ask, now);
            charges.0.push((now, ask.cost));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fixed_window_is_a_sum(params in params(), origin in origin(), ops in history(24)) {
        check_fixed(&limit_of(Algorithm::FixedWindow, params), origin, &ops)?;
    }

    #[test]
    fn sliding_counter_is_a_weighted_sum(params in params(), origin in origin(), ops in history(24)) {
        check_sliding(&limit_of(Algorithm::SlidingWindowCounter, params), origin, &ops)?;
    }

    /// No aligned window admits more than the quota, whatever is given back and whenever.
    #[test]
    fn no_aligned_window_exceeds_the_quota(
        params in params(),
        origin in origin(),
        ops in history(32),
    ) {
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
            let limit = limit_of(algorithm, params);
            let (mut state, mut now, mut kept) = (limit.fresh(), origin, Vec::new());
            for op in &ops {
                now += step_of(&limit, op.step);
                let ask = Ask::cost(cost_of(&limit, op.cost));
                let outcome = limit.decide(&mut state, &ask, now);
                if outcome.examination.admits() {
                    kept.push((now, ask.cost, outcome.receipt));
                }
                if op.kind > 12 && !kept.is_empty() {
                    let (_, _, receipt) = kept.remove(op.pick as usize % kept.len());
                    limit.give_back(&mut state, &receipt, now);
                }
                let charges = Charges(kept.iter().map(|(at, cost, _)| (*at, *cost)).collect());
                let sum = charges.in_window(now / limit.window_nanos(), limit.window_nanos());
                prop_assert!(sum <= u128::from(limit.quota()));
            }
        }
    }
}

#[test]
fn previous_counts_nothing_after_a_gap_of_two_windows() {
    let params = Params { quota: 10, window: 100, burst: None };
    let limit = limit_of(Algorithm::SlidingWindowCounter, params);
    let mut state = limit.fresh();
    limit.charge(&mut state, &Ask::cost(10), 150);
    let remaining = |at| limit.status(&state, at).remaining;
    assert_eq!(remaining(199), 0);
    assert_eq!(remaining(200), 0);
    assert_eq!(remaining(250), 5);
    assert_eq!(remaining(299), 9);
    assert_eq!(remaining(300), 10);
    assert_eq!(remaining(1_050), 10);
    assert_eq!(limit.fresh_at(&state), 300);
}

#[test]
fn a_quota_of_zero_suspends() {
    for algorithm in Algorithm::ALL {
        let limit = limit_of(algorithm, Params { quota: 0, window: 1_000, burst: None });
        for at in [0, 1, 999, 1_000, 1 << 60] {
            let refused = Examination::Refuse { retry_at: None };
            assert_eq!(limit.examine(&limit.fresh(), &Ask::cost(1), at), refused, "{algorithm}");
            assert_eq!(limit.status(&limit.fresh(), at).remaining, 0, "{algorithm}");
            let free = limit.examine(&limit.fresh(), &Ask::cost(0), at).admits();
            assert_eq!(free, algorithm != Algorithm::Concurrency, "{algorithm}");
        }
    }
}
