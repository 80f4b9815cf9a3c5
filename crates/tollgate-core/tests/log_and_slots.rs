//! The log against the list of what was admitted; slots against a map of who holds what until when.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use support::{Op, Params, config, cost_of, history, limit_of, origin, params, step_of};
use tollgate_core::{
    Algorithm, Ask, Examination, Limit, Nanos, Receipt, Slot, SlotId, Slots, State, Status,
};

fn sum_at(charges: &[(Nanos, u64)], window: Nanos, at: Nanos) -> u128 {
    let within = charges.iter().filter(|(then, _)| *then + window > at && *then <= at);
    within.map(|(_, cost)| u128::from(*cost)).sum()
}

fn check_log(limit: &Limit, origin: Nanos, ops: &[Op]) -> Result<(), TestCaseError> {
    let (window, quota) = (limit.window_nanos(), u128::from(limit.quota()));
    let (mut state, mut now) = (limit.fresh(), origin);
    let (mut charges, mut receipts) = (Vec::<(Nanos, u64)>::new(), Vec::new());
    for op in ops {
        now += step_of(limit, op.step);
        if op.kind > 12 && !charges.is_empty() {
            let index = op.pick as usize % charges.len();
            let receipt: Receipt = receipts.remove(index);
            charges.remove(index);
            limit.give_back(&mut state, &receipt, now);
        }
        let ask = Ask::cost(cost_of(limit, op.cost));
        let used = sum_at(&charges, window, now);
        let admits = used + u128::from(ask.cost) <= quota;
        let examination = limit.examine(&state, &ask, now);
        prop_assert_eq!(examination.admits(), admits);
        if let Examination::Refuse { retry_at: Some(retry_at) } = examination {
            let fits = |at| sum_at(&charges, window, at) + u128::from(ask.cost) <= quota;
            prop_assert!(fits(retry_at) && !fits(retry_at - 1));
        }
        let last = charges.iter().filter(|(_, cost)| *cost > 0).map(|(at, _)| at + window).max();
        let status = Status {
            used: used as u64,
            remaining: quota.saturating_sub(used) as u64,
            reset_at: last.unwrap_or(0).max(now),
        };
        prop_assert_eq!(limit.status(&state, now), status);
        let is_forced = op.kind == 11;
        if admits || is_forced {
            receipts.push(limit.charge(&mut state, &ask, now));
            charges.push((now, ask.cost));
        }
        let State::Log(log) = &state else { panic!("a log") };
        let instants: std::collections::BTreeSet<_> = charges.iter().map(|(at, _)| at).collect();
        prop_assert!(log.len() <= instants.len());
        prop_assert!(log.entries().all(|entry| entry.cost > 0));
    }
    Ok(())
}

/// Over `(t - W, t]` for every t that matters, the admitted costs that were kept fit the quota.
fn check_log_bound(limit: &Limit, origin: Nanos, ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut state, mut now, mut kept) = (limit.fresh(), origin, Vec::new());
    for op in ops {
        now += step_of(limit, op.step);
        let ask = Ask::cost(cost_of(limit, op.cost));
        if limit.decide(&mut state, &ask, now).examination.admits() {
            kept.push((now, ask.cost));
        }
    }
    for (at, _) in &kept {
        let sum = sum_at(&kept, limit.window_nanos(), *at);
        prop_assert!(sum <= u128::from(limit.quota()));
    }
    Ok(())
}

fn check_slots(quota: u64, ttl: Nanos, ops: &[Op]) -> Result<(), TestCaseError> {
    let limit = limit_of(Algorithm::Concurrency, Params { quota, window: ttl, burst: None });
    let (mut state, mut now) = (limit.fresh(), 0);
    let mut held = BTreeMap::<SlotId, Nanos>::new();
    for op in ops {
        now += step_of(&limit, op.step);
        let id = SlotId(u128::from(op.pick % 7));
        let live = |at: Nanos| held.values().filter(|until| **until > at).count() as u64;
        let holds = held.get(&id).is_some_and(|until| *until > now);
        let admits = holds || live(now) < quota;
        let examination = limit.examine(&state, &Ask::slot(id), now);
        prop_assert_eq!(examination.admits(), admits);
        if let Examination::Refuse { retry_at } = examination {
            let retry_at = retry_at.unwrap();
            prop_assert!(live(retry_at) < quota && live(retry_at - 1) >= quota);
        }
        let status = Status {
            used: live(now),
            remaining: quota.saturating_sub(live(now)),
            reset_at: held.values().copied().max().unwrap_or(0).max(now),
        };
        prop_assert_eq!(limit.status(&state, now), status);
        let State::Slots(slots) = &mut state else { panic!("slots") };
        match op.kind {
            0..=6 if !admits => {}
            0..=7 => {
                limit.charge(&mut state, &Ask { cost: op.pick, ..Ask::slot(id) }, now);
                held.insert(id, now + ttl);
            }
            8..=10 => {
                // Expired slots may or may not be kept; a release of one is harmless.
                let released = slots.release(id);
                prop_assert!(released || !holds);
                prop_assert!(!slots.release(id));
                held.remove(&id);
            }
            11..=13 => {
                prop_assert_eq!(slots.renew(id, ttl, now), holds);
                if holds {
                    held.insert(id, now + ttl);
                }
            }
            _ => slots.prune(now),
        }
        held.retain(|_, until| *until > now);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn log_is_a_sum(params in params(), origin in origin(), ops in history(24)) {
        check_log(&limit_of(Algorithm::SlidingWindowLog, params), origin, &ops)?;
    }

    #[test]
    fn log_keeps_its_bound(params in params(), origin in origin(), ops in history(40)) {
        check_log_bound(&limit_of(Algorithm::SlidingWindowLog, params), origin, &ops)?;
    }

    #[test]
    fn slots_are_a_map(quota in 1..=5u64, ttl in 1..=40u64, ops in history(40)) {
        check_slots(quota, ttl, &ops)?;
    }

    /// A renewal or another claim never brings a slot back sooner, whatever the clock does.
    #[test]
    fn a_slot_is_never_shortened(
        ttl in 1..=40u64,
        instants in prop::collection::vec((0..100u64, any::<bool>()), 1..10),
    ) {
        let limit = limit_of(Algorithm::Concurrency, Params { quota: 1, window: ttl, burst: None });
        let mut state = limit.fresh();
        let id = SlotId(1);
        let mut until = 0;
        for (now, renews) in instants {
            if renews {
                let State::Slots(slots) = &mut state else { panic!("slots") };
                if slots.renew(id, ttl, now) {
                    until = until.max(now + ttl);
                } else {
                    prop_assert!(until <= now);
                }
            } else {
                limit.charge(&mut state, &Ask::slot(id), now);
                until = until.max(now + ttl);
            }
            prop_assert_eq!(limit.fresh_at(&state).max(until), until);
            if until > now {
                prop_assert_eq!(limit.fresh_at(&state), until);
            }
        }
    }
}

#[test]
fn a_slot_comes_back_by_release_or_expiry() {
    let limit = limit_of(Algorithm::Concurrency, Params { quota: 2, window: 100, burst: None });
    let mut state = limit.fresh();
    let ask = |id| Ask::slot(SlotId(id));
    let first = limit.decide(&mut state, &ask(1), 0).receipt;
    limit.decide(&mut state, &ask(2), 10);
    assert_eq!(limit.examine(&state, &ask(3), 10), Examination::Refuse { retry_at: Some(100) });
    assert!(limit.examine(&state, &ask(1), 10).admits(), "its holder may claim it again");
    limit.give_back(&mut state, &first, 20);
    limit.give_back(&mut state, &first, 20);
    assert_eq!(limit.status(&state, 20).used, 1);
    assert!(limit.decide(&mut state, &ask(3), 20).examination.admits());
    assert_eq!(limit.status(&state, 109).used, 2);
    assert_eq!(limit.status(&state, 110).used, 1);
    assert_eq!(limit.status(&state, 120).used, 0);
}

#[test]
fn slots_from_a_store_come_in_any_order() {
    let slot = |id, expires_at| Slot { id: SlotId(id), expires_at };
    let limit = limit_of(Algorithm::Concurrency, Params { quota: 2, window: 100, burst: None });
    let state = State::Slots(Slots::from_slots([slot(1, 90), slot(2, 30), slot(3, 60)]));
    let retry = limit.examine(&state, &Ask::slot(SlotId(9)), 10);
    assert_eq!(retry, Examination::Refuse { retry_at: Some(60) });
    assert_eq!(limit.fresh_at(&state), 90);
}
