//! A give-back never leaves more room than if its charge had not been made, whenever it comes.

#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use support::{Op, config, cost_of, later_instants, limit_of, op, origin, params, step_of};
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

fn arrival(state: &State) -> Option<Span> {
    match state {
        State::Small(Small::Bucket(bucket)) => Some(bucket.tat),
        State::Open(open) => Some(open.bucket().tat),
        _ => None,
    }
}

fn prop_not_more_room(
    limit: &Limit,
    with: &State,
    without: &State,
    now: Nanos,
    raw: u64,
) -> Result<(), TestCaseError> {
    if let (Some(with), Some(without)) = (arrival(with), arrival(without)) {
        let ahead = |tat: Span| tat.max(Span { nanos: now, part: 0 });
        prop_assert!(ahead(with) >= ahead(without), "to the fraction, at {}", now);
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
        if op.pick % 3 > 0 {
            ask = ask.refundable();
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
