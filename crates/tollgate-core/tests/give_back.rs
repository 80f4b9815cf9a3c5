//! A give-back never leaves more room than if its charge had not been made, whenever it comes.

#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use support::{Op, World, config, cost_of, later_instants, limit_of, op, origin, params, step_of};
use tollgate_core::{Algorithm, Ask, Limit, Nanos, Receipt, SlotId, Small, Span, State};

struct Charge {
    at: Nanos,
    ask: Ask,
    receipt: Receipt,
    is_back: bool,
}

/// The same charges at the same instants, without those that were given back.
fn without_given_back(limit: &Limit, charges: &[Charge]) -> State {
    let mut state = limit.fresh();
    for charge in charges.iter().filter(|charge| !charge.is_back) {
        limit.charge(&mut state, &charge.ask, charge.at);
    }
    state
}

fn prop_not_more_room(
    limit: &Limit,
    with: &State,
    without: &State,
    now: Nanos,
    raw: u64,
) -> Result<(), TestCaseError> {
    if let (State::Small(Small::Bucket(with)), State::Small(Small::Bucket(without))) =
        (with, without)
    {
        let ahead = |tat: Span| tat.max(Span { nanos: now, part: 0 });
        prop_assert!(ahead(with.tat) >= ahead(without.tat), "to the fraction, at {}", now);
    }
    for at in later_instants(limit, now, raw) {
        let (with, without) = (limit.status(with, at), limit.status(without, at));
        prop_assert!(with.remaining <= without.remaining, "at {}: {:?} {:?}", at, with, without);
        prop_assert!(with.used >= without.used, "at {}: {:?} {:?}", at, with, without);
    }
    Ok(())
}

/// A history with several charges outstanding, given back in any order at any later time.
fn check(limit: &Limit, origin: Nanos, ops: &[Op], drops: bool) -> Result<(), TestCaseError> {
    let (mut state, mut now) = (limit.fresh(), origin);
    let mut charges: Vec<Charge> = Vec::new();
    for (index, op) in ops.iter().enumerate() {
        now += step_of(limit, op.step);
        if drops && limit.fresh_at(&state) <= now {
            state = limit.fresh();
        }
        let mut ask = Ask { slot: SlotId(index as u128), ..Ask::cost(cost_of(limit, op.cost)) };
        if op.kind == 0 {
            ask.max_delay = Some(op.pick % (2 * limit.window_nanos()));
        }
        if op.kind < 8 {
            let is_forced = op.kind == 7;
            if is_forced || limit.examine(&state, &ask, now).admits() {
                let receipt = limit.charge(&mut state, &ask, now);
                charges.push(Charge { at: now, ask, receipt, is_back: false });
            }
        } else {
            let mut out: Vec<_> = charges.iter_mut().filter(|charge| !charge.is_back).collect();
            if out.is_empty() {
                continue;
            }
            let index = op.pick as usize % out.len();
            let Some(charge) = out.get_mut(index) else { continue };
            charge.is_back = true;
            limit.give_back(&mut state, &charge.receipt, now);
        }
        let without = without_given_back(limit, &charges);
        prop_not_more_room(limit, &state, &without, now, op.pick)?;
    }
    Ok(())
}

macro_rules! never_mints {
    ($name:ident, $algorithm:ident) => {
        mod $name {
            use super::*;

            proptest! {
                #![proptest_config(config())]

                #[test]
                fn never_mints(
                    params in params(),
                    origin in origin(),
                    ops in prop::collection::vec(op(), 1..24),
                    drops in any::<bool>(),
                ) {
                    check(&limit_of(Algorithm::$algorithm, params), origin, &ops, drops)?;
                }
            }
        }
    };
}

for_every_algorithm!(never_mints);

proptest! {
    #![proptest_config(config())]

    /// In a bucket, all charges of one instant given back then, last or first first, with whole
    /// microseconds on the line, leave it as it was. (In another order some may return less.)
    #[test]
    fn whole_micros_come_back_in_either_order(
        token_micros in 1..50u64,
        costs in prop::collection::vec(1..10u64, 1..8),
        ops in prop::collection::vec(op(), 0..6),
        first_first in any::<bool>(),
    ) {
        let params = support::Params { quota: 1, window: token_micros * 1_000, burst: Some(20) };
        let limit = limit_of(Algorithm::TokenBucket, params);
        let mut world = World::new(limit.clone(), 1_000 << 50);
        for op in &ops {
            world.now += 1_000 * (op.step.1 % 100);
            let ask = world.ask(op);
            limit.decide(&mut world.state, &ask, world.now);
        }
        let before = world.status();
        let mut receipts: Vec<_> = costs
            .iter()
            .map(|cost| limit.charge(&mut world.state, &Ask::cost(*cost), world.now))
            .collect();
        if !first_first {
            receipts.reverse();
        }
        for receipt in receipts {
            limit.give_back(&mut world.state, &receipt, world.now);
        }
        prop_assert_eq!(world.status(), before);
    }
}
