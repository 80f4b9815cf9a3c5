//! Refundable charges of buckets: a refund leaves what the remaining charges alone would have left, in whatever order and
//! whenever refunds come. The oracle is a plain list of charges that is replayed in exact fractions.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod support;

use proptest::prelude::*;
use support::{Op, Params, config, cost_of, limit_of, op, origin, params, step_of};
use tollgate_core::{
    Algorithm, Ask, BRIEF, Limit, MAX_OPEN_CHARGES, Nanos, Receipt, Refundable, SECOND, State,
};

/// The histories that every bucket algorithm is checked with.
const HISTORIES: u32 = 20_000;

const BUCKETS: [Algorithm; 3] = [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra];

#[derive(Debug)]
struct Charge {
    at: Nanos,
    cost: u64,
    /// What a refund would be made with.
    receipt: Option<Receipt>,
}

/// How far the bucket is occupied: charges replayed in fractions of a nanosecond.
fn ahead(limit: &Limit, charges: &[Charge], now: Nanos) -> u128 {
    let (quota, window) = (u128::from(limit.quota()), u128::from(limit.window_nanos()));
    let mut tat = 0;
    for charge in charges {
        tat = tat.max(u128::from(charge.at) * quota) + u128::from(charge.cost) * window;
    }
    tat.saturating_sub(u128::from(now) * quota)
}

/// How much is in use, and when the bucket is empty.
fn replayed(limit: &Limit, charges: &[Charge], now: Nanos) -> (u64, Nanos) {
    let (quota, window) = (u128::from(limit.quota()), u128::from(limit.window_nanos()));
    let ahead = ahead(limit, charges, now);
    let used = u64::try_from(ahead.div_ceil(window)).unwrap();
    (used, now + u64::try_from(ahead.div_ceil(quota)).unwrap())
}

fn check(limit: &Limit, origin: Nanos, ops: &[Op], drops: bool) -> Result<(), TestCaseError> {
    let (mut state, mut now) = (limit.fresh(), origin);
    let mut charges: Vec<Charge> = Vec::new();
    for op in ops {
        // Mostly within one busy stretch.
        now += step_of(limit, op.step) / if op.pick % 4 == 0 { 1 } else { 16 };
        if drops && limit.fresh_at(&state) <= now {
            state = limit.fresh();
        }
        let open: Vec<usize> =
            (0..charges.len()).filter(|index| charges[*index].receipt.is_some()).collect();
        if op.kind < 9 || open.is_empty() {
            let mut ask = Ask::cost(cost_of(limit, op.cost) % 1_000_000);
            if op.kind > 2 {
                ask = ask.refundable();
            }
            if op.kind == 8 || limit.examine(&state, &ask, now).admits() {
                let receipt = limit.charge(&mut state, &ask, now);
                let receipt = matches!(receipt, Receipt::Open { .. }).then_some(receipt);
                charges.push(Charge { at: now, cost: ask.cost, receipt });
            }
        } else {
            let before = ahead(limit, &charges, now);
            let charge = &mut charges[open[op.pick as usize % open.len()]];
            let receipt = charge.receipt.take().unwrap();
            let part = match op.kind {
                9..=12 => charge.cost,
                _ => op.cost.1 % (charge.cost + 1),
            };
            let kept = charge.cost - part;
            let returned = limit.give_back(&mut state, &receipt.part(part), now);
            charge.cost = kept;
            if op.kind == 15 {
                charge.receipt = Some(receipt);
            } else {
                limit.close(&mut state, &receipt.part(kept), now);
            }
            let freed = before - ahead(limit, &charges, now);
            let freed = freed.div_ceil(u128::from(limit.window_nanos()));
            prop_assert_eq!(u128::from(returned), freed, "reported after {:?} at {}", op, now);
        }
        let status = limit.status(&state, now);
        let expected = replayed(limit, &charges, now);
        prop_assert_eq!((status.used, status.reset_at), expected, "after {:?} at {}", op, now);
        if let State::Open(open) = &state {
            prop_assert!(open.charges().len() <= 3 * MAX_OPEN_CHARGES);
        }
    }
    Ok(())
}

macro_rules! replays {
    ($($name:ident: $algorithm:ident,)*) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: config().cases.max(HISTORIES), ..config() })]
            $(
                #[test]
                fn $name(
                    params in params(),
                    origin in origin(),
                    ops in prop::collection::vec(op(), 1..40),
                    drops in any::<bool>(),
                ) {
                    check(&limit_of(Algorithm::$algorithm, params), origin, &ops, drops)?;
                }
            )*
        }
    };
}

replays! {
    a_token_bucket_equals_the_replay_of_what_remains: TokenBucket,
    a_leaky_bucket_equals_the_replay_of_what_remains: LeakyBucket,
    gcra_equals_the_replay_of_what_remains: Gcra,
}

fn per_day(algorithm: Algorithm, quota: u64) -> Limit {
    limit_of(algorithm, Params { quota, window: 86_400 * SECOND, burst: Some(quota) })
}

#[test]
fn three_charges_come_back_in_every_order() {
    for algorithm in BUCKETS {
        let limit = per_day(algorithm, 100);
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let (mut state, mut now) = (limit.fresh(), SECOND);
            let receipts = [0; 3].map(|_| {
                now += 1;
                limit.charge(&mut state, &Ask::cost(5).refundable(), now)
            });
            for (index, left) in order.into_iter().zip([10, 5, 0]) {
                limit.give_back(&mut state, &receipts[index], now);
                assert_eq!(limit.status(&state, now).used, left, "{algorithm} {order:?}");
            }
            assert!(limit.fresh_at(&state) <= now, "{algorithm}: nothing is kept");
        }
    }
}

/// Refunding twice, or after a settlement, returns nothing.
#[test]
fn a_receipt_returns_its_charge_once() {
    let limit = per_day(Algorithm::TokenBucket, 100);
    let (mut state, now) = (limit.fresh(), SECOND);
    let open = |state: &mut State, at| limit.charge(state, &Ask::cost(10).refundable(), at);
    let receipts = [open(&mut state, now), open(&mut state, now + 1), open(&mut state, now + 2)];
    for _ in 0..3 {
        limit.give_back(&mut state, &receipts[1], now + 2);
        assert_eq!(limit.status(&state, now + 2).used, 20);
    }
    limit.close(&mut state, &receipts[0], now + 2);
    limit.give_back(&mut state, &receipts[0], now + 2);
    assert_eq!(limit.status(&state, now + 2).used, 20);
}

/// A bucket that is empty under one quota is empty under the next, whatever fractions of a nanosecond its charges had. A store
/// may have dropped it meanwhile, and that must make no difference.
#[test]
fn an_empty_bucket_is_empty_under_another_quota() {
    let per_second =
        |quota| limit_of(Algorithm::TokenBucket, Params { quota, window: SECOND, burst: None });
    let (fast, slow) = (per_second(5_000_000_029), per_second(999_983));
    let now = SECOND;
    let mut state = fast.fresh();
    fast.charge(&mut state, &Ask::cost(1), now);
    let receipt = fast.charge(&mut state, &Ask::cost(1).refundable(), now);
    let after = |change: &dyn Fn(&mut State)| {
        let mut state = state.clone();
        change(&mut state);
        slow.status(&state, now + 1)
    };
    let fresh = slow.status(&slow.fresh(), now + 1);
    let charge_nothing = |state: &mut State| {
        slow.charge(state, &Ask::cost(0), now + 1);
    };
    assert_eq!(after(&charge_nothing), fresh);
    assert_eq!(
        after(&|state| {
            slow.give_back(state, &receipt.part(0), now + 1);
        }),
        fresh
    );
    assert_eq!(after(&|state| slow.close(state, &receipt, now + 1)), fresh);
}

/// Beyond the bound the oldest charge becomes final, and is counted; all others are refunded exactly.
#[test]
fn beyond_the_bound_the_oldest_charge_becomes_final() {
    for algorithm in BUCKETS {
        let limit = per_day(algorithm, 10_000);
        let (mut state, mut now) = (limit.fresh(), SECOND);
        let mut receipts = Vec::new();
        for _ in 0..MAX_OPEN_CHARGES + 36 {
            now += 1;
            receipts.push(limit.charge(&mut state, &Ask::cost(7).refundable(), now));
        }
        let State::Open(open) = &mut state else { panic!("{state:?}") };
        assert_eq!((open.charges().len(), open.take_finalized()), (MAX_OPEN_CHARGES, 36));
        for receipt in receipts.iter().rev() {
            limit.give_back(&mut state, receipt, now);
        }
        assert_eq!(limit.status(&state, now).used, 36 * 7, "{algorithm}");
    }
}

/// Holds push out no reservation, and do not outlive their time.
#[test]
fn holds_push_out_no_reservation() {
    let limit = per_day(Algorithm::TokenBucket, 10_000);
    let hold = Ask { refundable: Refundable::Briefly, ..Ask::cost(1) };
    for reservations in [1, MAX_OPEN_CHARGES] {
        let (mut state, mut now) = (limit.fresh(), SECOND);
        let mut reserved = Vec::new();
        for _ in 0..reservations {
            now += 1;
            reserved.push(limit.charge(&mut state, &Ask::cost(9).refundable(), now));
        }
        for _ in 0..1_000 {
            now += 1;
            limit.charge(&mut state, &hold, now);
        }
        for receipt in &reserved {
            assert_eq!(limit.give_back(&mut state, receipt, now), 9);
        }
        assert_eq!(limit.status(&state, now).used, 1_000);
        now += BRIEF;
        limit.charge(&mut state, &hold, now);
        let State::Open(open) = &mut state else { panic!("{state:?}") };
        let left = (open.charges().len(), open.take_finalized());
        assert_eq!(left, (1, 936), "those before are over");
    }
}

/// Reservations push out no hold whose request is not decided yet.
#[test]
fn reservations_push_out_no_hold() {
    let limit = per_day(Algorithm::TokenBucket, 10_000);
    let (mut state, mut now) = (limit.fresh(), SECOND);
    let hold = Ask { refundable: Refundable::Briefly, ..Ask::cost(5) };
    let mut held = Vec::new();
    for _ in 0..MAX_OPEN_CHARGES {
        now += 1;
        held.push(limit.charge(&mut state, &hold, now));
    }
    for _ in 0..MAX_OPEN_CHARGES + 36 {
        now += 1;
        limit.charge(&mut state, &Ask::cost(1).refundable(), now);
    }
    let State::Open(open) = &mut state else { panic!("{state:?}") };
    assert_eq!((open.charges().len(), open.take_finalized()), (2 * MAX_OPEN_CHARGES, 36));
    for receipt in &held {
        assert_eq!(limit.give_back(&mut state, receipt, now), 5);
    }
    assert_eq!(limit.status(&state, now).used, 100);
}

/// A chunk on lease takes no place of a reservation, and a reservation none of a chunk.
#[test]
fn chunks_on_lease_push_out_no_reservation() {
    let limit = per_day(Algorithm::TokenBucket, 10_000);
    for reservations in [10, MAX_OPEN_CHARGES] {
        let (mut state, mut now) = (limit.fresh(), SECOND);
        let mut reserved = Vec::new();
        for _ in 0..reservations {
            now += 1;
            reserved.push(limit.charge(&mut state, &Ask::cost(9).refundable(), now));
        }
        let mut chunk = Receipt::Nothing;
        for _ in 0..100 {
            now += 1;
            chunk = limit.charge(&mut state, &Ask::cost(2).on_lease(), now);
        }
        let State::Open(open) = &mut state else { panic!("{state:?}") };
        let (length, finalized) = (reservations + MAX_OPEN_CHARGES, 36);
        assert_eq!((open.charges().len(), open.take_finalized()), (length, finalized));
        for receipt in &reserved {
            assert_eq!(limit.give_back(&mut state, receipt, now), 9);
        }
        assert_eq!(limit.status(&state, now).used, 200);
        assert_eq!(limit.give_back(&mut state, &chunk, now), 2, "the last chunk");
    }
}

/// A chunk that shares its instant with a reservation counts as one, and the bound holds all the same.
#[test]
fn chunks_and_reservations_of_one_instant_stay_bounded() {
    let limit = per_day(Algorithm::TokenBucket, 10_000);
    let (mut state, mut now) = (limit.fresh(), SECOND);
    for _ in 0..1_000 {
        now += 1;
        limit.charge(&mut state, &Ask::cost(1).on_lease(), now);
        limit.charge(&mut state, &Ask::cost(1).refundable(), now);
    }
    let State::Open(open) = &mut state else { panic!("{state:?}") };
    assert_eq!((open.charges().len(), open.take_finalized()), (MAX_OPEN_CHARGES, 936));
    assert_eq!(limit.status(&state, now).used, 2_000);
}

/// A clock that is set back reorders nothing and mints nothing.
#[test]
fn a_clock_that_steps_back_mints_nothing() {
    let limit = per_day(Algorithm::TokenBucket, 100);
    let mut state = limit.fresh();
    let first = limit.charge(&mut state, &Ask::cost(10).refundable(), 10 * SECOND);
    let second = limit.charge(&mut state, &Ask::cost(10).refundable(), 4 * SECOND);
    limit.charge(&mut state, &Ask::cost(10), 5 * SECOND);
    limit.give_back(&mut state, &first, 5 * SECOND);
    limit.give_back(&mut state, &second, 6 * SECOND);
    assert!(limit.status(&state, 10 * SECOND).used >= 10);
    assert!(limit.fresh_at(&state) >= 10 * SECOND + 8_640 * SECOND);
}

/// All of the charge is undone, so that all of it is reported, whatever it is in units of the new quota.
#[test]
fn a_refund_after_a_changed_quota_is_in_units_of_the_charge() {
    for algorithm in BUCKETS {
        let (old, new) = (per_day(algorithm, 100), per_day(algorithm, 40));
        let (mut state, now) = (old.fresh(), SECOND);
        let receipt = old.charge(&mut state, &Ask::cost(5).refundable(), now);
        assert_eq!(new.status(&state, now).used, 2);
        assert_eq!(old.give_back(&mut state, &receipt, now), 5);
        assert_eq!(new.status(&state, now).used, 0);
    }
}

/// A limit whose quota changes keeps the list, and rounds fractions up.
#[test]
fn a_changed_quota_keeps_refundable_charges() {
    let old =
        limit_of(Algorithm::TokenBucket, Params { quota: 7, window: SECOND, burst: Some(70) });
    let new =
        limit_of(Algorithm::TokenBucket, Params { quota: 11, window: SECOND, burst: Some(70) });
    let (mut state, now) = (old.fresh(), SECOND);
    let receipt = old.charge(&mut state, &Ask::cost(3).refundable(), now);
    new.charge(&mut state, &Ask::cost(1), now + 1);
    old.give_back(&mut state, &receipt, now + 2);
    let left = new.fresh_at(&state) - now;
    let one = SECOND / 11;
    assert!((one..one + 10).contains(&left), "{left} for a token of {one}");
}
