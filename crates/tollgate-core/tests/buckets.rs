//! Buckets against a level of tokens and against a queue of work, both in exact units.
//!
//! Work is measured in units in which a unit of cost weighs `W` and a nanosecond drains `L`, so
//! that every amount is an integer.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::VecDeque;

use proptest::prelude::*;
use support::{Op, Params, config, cost_of, history, limit_of, origin, params, step_of};
use tollgate_core::{Algorithm, Ask, Examination, Limit, Nanos, Receipt, Status};

/// A bucket of tokens: what is missing from a full one, and since when.
struct Level {
    quota: u128,
    window: u128,
    burst: u128,
    missing: u128,
    at: Nanos,
}

impl Level {
    fn new(limit: &Limit) -> Self {
        Self {
            quota: limit.quota().into(),
            window: limit.window_nanos().into(),
            burst: limit.capacity().into(),
            missing: 0,
            at: 0,
        }
    }

    fn refill_to(&mut self, now: Nanos) {
        self.missing = self.missing.saturating_sub(u128::from(now - self.at) * self.quota);
        self.at = now;
    }

    /// How long until `cost` tokens are there.
    fn wait_for(&self, cost: u64) -> Nanos {
        let lacking = (self.missing + u128::from(cost) * self.window)
            .saturating_sub(self.burst * self.window);
        lacking.div_ceil(self.quota) as u64
    }

    fn status(&self) -> Status {
        let level = (self.burst * self.window).saturating_sub(self.missing);
        Status {
            used: self.missing.div_ceil(self.window) as u64,
            remaining: (level / self.window) as u64,
            reset_at: self.at + self.missing.div_ceil(self.quota) as u64,
        }
    }
}

fn delay_of(op: &Op, window: Nanos) -> Option<Nanos> {
    match op.pick % 4 {
        0 => Some(op.pick % (3 * window)),
        1 => Some(op.pick % 3),
        _ => None,
    }
}

fn check_tokens(limit: &Limit, origin: Nanos, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut state, mut level, mut now) = (limit.fresh(), Level::new(limit), origin);
    for op in ops {
        now += step_of(limit, op.step);
        level.refill_to(now);
        prop_assert_eq!(limit.status(&state, now), level.status());
        let cost = cost_of(limit, op.cost);
        let ask = Ask { max_delay: delay_of(op, limit.window_nanos()), ..Ask::cost(cost) };
        let wait = level.wait_for(cost);
        let most = ask.max_delay.unwrap_or(0);
        let expected = if cost > limit.capacity() {
            Examination::Refuse { retry_at: None }
        } else if wait <= most {
            Examination::Admit { wait }
        } else {
            Examination::Refuse { retry_at: Some(now + wait - most) }
        };
        prop_assert_eq!(limit.examine(&state, &ask, now), expected);
        let is_forced = op.kind == 11;
        if is_forced || expected.admits() {
            limit.charge(&mut state, &ask, now);
            level.missing += u128::from(cost) * level.window;
            // A delayed request conforms exactly at the end of its wait.
            if !is_forced {
                prop_assert_eq!(level.wait_for(0), wait);
            }
        }
        prop_assert_eq!(limit.status(&state, now), level.status());
    }
    Ok(())
}

/// Admits at most `B + L * t / W` in every stretch of `t`, without forced charges or delays.
fn check_bound(limit: &Limit, origin: Nanos, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut state, mut now, mut admitted) = (limit.fresh(), origin, Vec::new());
    for op in ops {
        now += step_of(limit, op.step);
        let ask = Ask::cost(cost_of(limit, op.cost));
        if limit.decide(&mut state, &ask, now).examination.admits() {
            admitted.push((now, u128::from(ask.cost)));
        }
    }
    let (quota, window) = (u128::from(limit.quota()), u128::from(limit.window_nanos()));
    for (first, &(from, _)) in admitted.iter().enumerate() {
        let mut sum = 0;
        for &(to, cost) in admitted.iter().skip(first) {
            sum += cost;
            let bound = u128::from(limit.capacity()) * window + u128::from(to - from) * quota;
            prop_assert!(sum * window <= bound);
        }
    }
    Ok(())
}

/// A queue: the work left of each request in it, the one being served first.
struct Queue {
    quota: u128,
    waiting: VecDeque<u128>,
    at: Nanos,
}

impl Queue {
    fn drain_to(&mut self, now: Nanos) {
        let mut drained = u128::from(now - self.at) * self.quota;
        self.at = now;
        while let Some(front) = self.waiting.front_mut() {
            if *front > drained {
                *front -= drained;
                return;
            }
            drained -= *front;
            self.waiting.pop_front();
        }
    }

    fn work(&self) -> u128 {
        self.waiting.iter().sum()
    }
}

fn check_queue(limit: &Limit, origin: Nanos, ops: &[Op]) -> Result<(), TestCaseError> {
    let (quota, window) = (u128::from(limit.quota()), u128::from(limit.window_nanos()));
    let holds = u128::from(limit.capacity()) * window;
    let mut queue = Queue { quota, waiting: VecDeque::new(), at: 0 };
    let (mut state, mut now) = (limit.fresh(), origin);
    let mut last: Option<(Receipt, Nanos)> = None;
    for op in ops {
        now += step_of(limit, op.step);
        queue.drain_to(now);
        if let Some((receipt, _)) = last.take_if(|(_, at)| op.kind > 12 && *at == now) {
            limit.give_back(&mut state, &receipt, now);
            queue.waiting.pop_back();
        }
        let cost = cost_of(limit, op.cost);
        let ask = Ask { max_delay: delay_of(op, limit.window_nanos()), ..Ask::cost(cost) };
        // Its turn comes when all before it is drained; it must fit behind that.
        let wait = queue.work().div_ceil(quota) as u64;
        let work = u128::from(cost) * window;
        let until_it_fits = (queue.work() + work).saturating_sub(holds).div_ceil(quota) as u64;
        let until_in_time = ask.max_delay.map_or(0, |most| wait.saturating_sub(most));
        let expected = if cost > limit.capacity() {
            Examination::Refuse { retry_at: None }
        } else if until_it_fits == 0 && until_in_time == 0 {
            Examination::Admit { wait }
        } else {
            Examination::Refuse { retry_at: Some(now + until_it_fits.max(until_in_time)) }
        };
        prop_assert_eq!(limit.examine(&state, &ask, now), expected);
        if (expected.admits() || op.kind == 11) && work > 0 {
            last = Some((limit.charge(&mut state, &ask, now), now));
            queue.waiting.push_back(work);
        }
        let status = limit.status(&state, now);
        prop_assert_eq!(u128::from(status.used), queue.work().div_ceil(window));
        prop_assert_eq!(u128::from(status.remaining), holds.saturating_sub(queue.work()) / window);
        prop_assert_eq!(status.reset_at, now + queue.work().div_ceil(quota) as u64);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn token_bucket_is_a_level(params in params(), origin in origin(), ops in history(24)) {
        check_tokens(&limit_of(Algorithm::TokenBucket, params), origin, &ops)?;
    }

    #[test]
    fn gcra_is_a_level(params in params(), origin in origin(), ops in history(24)) {
        check_tokens(&limit_of(Algorithm::Gcra, params), origin, &ops)?;
    }

    #[test]
    fn leaky_bucket_is_a_queue(params in params(), origin in origin(), ops in history(24)) {
        check_queue(&limit_of(Algorithm::LeakyBucket, params), origin, &ops)?;
    }

    #[test]
    fn token_bucket_keeps_its_bound(params in params(), origin in origin(), ops in history(40)) {
        check_bound(&limit_of(Algorithm::TokenBucket, params), origin, &ops)?;
    }

    #[test]
    fn gcra_keeps_its_bound(params in params(), origin in origin(), ops in history(40)) {
        check_bound(&limit_of(Algorithm::Gcra, params), origin, &ops)?;
    }

    #[test]
    fn leaky_bucket_keeps_its_bound(params in params(), origin in origin(), ops in history(40)) {
        check_bound(&limit_of(Algorithm::LeakyBucket, params), origin, &ops)?;
    }

    /// A bucket asked at every nanosecond gains exactly as much as one left alone.
    #[test]
    fn no_fraction_is_lost(quota in 1..=20u64, window in 1..=50u64, tries in 1..300u64) {
        let params = Params { quota, window, burst: Some(1) };
        let limit = limit_of(Algorithm::TokenBucket, params);
        let mut state = limit.fresh();
        let passed = (0..tries)
            .filter(|now| limit.decide(&mut state, &Ask::cost(1), *now).examination.admits())
            .count() as u64;
        // One token at most per try, each due no earlier than `W / L` after the one before.
        let (mut due, mut expected) = (0u64, 0u64);
        for now in 0..tries {
            if due <= now * quota {
                due = due.max(now * quota) + window;
                expected += 1;
            }
        }
        prop_assert_eq!(passed, expected);
    }
}

#[test]
fn gcra_spaces_strictly_by_default() {
    let params = Params { quota: 7, window: 1_000_000_000, burst: None };
    let limit = limit_of(Algorithm::Gcra, params);
    let mut state = limit.fresh();
    assert_eq!(limit.capacity(), 1);
    assert!(limit.decide(&mut state, &Ask::cost(1), 0).examination.admits());
    for (kth, due) in [142_857_143, 285_714_286, 428_571_429, 571_428_572].into_iter().enumerate() {
        let early = limit.examine(&state, &Ask::cost(1), due - 1);
        assert_eq!(early, Examination::Refuse { retry_at: Some(due) }, "request {kth}");
        // A delayed request keeps the line's own fractions: 4/7 s is rounded once, not four times.
        let ask = Ask { max_delay: Some(1), ..Ask::cost(1) };
        let outcome = limit.decide(&mut state, &ask, due - 1);
        assert_eq!(outcome.examination, Examination::Admit { wait: 1 });
    }
}
