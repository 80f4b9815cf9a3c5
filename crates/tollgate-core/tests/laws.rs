//! What holds for every algorithm after any history: refusals, figures, clocks, dropped counters.

#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use support::{Op, World, config, cost_of, history, later_instants, limit_of, op, origin, params};
use tollgate_core::{Algorithm, Ask, Examination, LATEST, Limit, Nanos, Receipt, State};

fn a_world(algorithm: Algorithm) -> impl Strategy<Value = World> {
    (params(), origin(), history(16)).prop_map(move |(params, now, ops)| {
        let mut world = World::new(limit_of(algorithm, params), now);
        world.play_all(&ops);
        world
    })
}

/// A refusal changes nothing, and holds until exactly the promised instant.
fn check_refusal(mut world: World, op: &Op, delay: Option<u64>) -> Result<(), TestCaseError> {
    let mut ask = world.ask(op);
    ask.max_delay = delay.map(|raw| raw % (2 * world.limit.window_nanos()));
    let World { limit, mut state, now, .. } = world;
    let before = state.clone();
    let outcome = limit.decide(&mut state, &ask, now);
    prop_assert_eq!(limit.examine(&before, &ask, now), outcome.examination);
    let Examination::Refuse { retry_at } = outcome.examination else {
        // A decision is an examination and a charge in one.
        let mut charged = before;
        prop_assert_eq!(limit.charge(&mut charged, &ask, now), outcome.receipt);
        prop_assert_eq!(limit.status(&charged, now), outcome.status);
        prop_assert_eq!(charged, state);
        return Ok(());
    };
    prop_assert_eq!(outcome.receipt, Receipt::Nothing);
    prop_assert_eq!(&before, &state);
    prop_assert_eq!(outcome.status, limit.status(&before, now));
    let never = limit.algorithm() != Algorithm::Concurrency && ask.cost > limit.capacity();
    prop_assert_eq!(retry_at.is_none(), never);
    let Some(retry_at) = retry_at else { return Ok(()) };
    prop_assert!(retry_at > now);
    let ahead = retry_at - now;
    for earlier in [0, 1, ahead / 3, ahead / 2, op.pick % ahead, ahead - 1] {
        let at = now + earlier.min(ahead - 1);
        let same = Examination::Refuse { retry_at: Some(retry_at) };
        prop_assert_eq!(limit.examine(&state, &ask, at), same, "at {}", at);
    }
    for later in later_instants(&limit, retry_at, op.pick) {
        if retry_at <= LATEST {
            prop_assert!(limit.examine(&state, &ask, later).admits(), "at {}", later);
        }
    }
    Ok(())
}

/// Exactly `remaining` requests of cost 1 pass now; `reset_at` is the first instant at which the
/// counter equals a fresh one.
fn check_figures(mut world: World) -> Result<(), TestCaseError> {
    let status = world.status();
    let World { limit, state, now, .. } = world.clone();
    if limit.algorithm() != Algorithm::Concurrency {
        if status.remaining > 0 || status.used <= limit.capacity() {
            prop_assert!(limit.examine(&state, &Ask::cost(status.remaining), now).admits());
        }
        prop_assert!(!limit.examine(&state, &Ask::cost(status.remaining + 1), now).admits());
    }
    if status.remaining <= 40 {
        let mut passed = 0;
        loop {
            let ask = Ask { cost: 1, ..Ask::slot(world.new_slot()) };
            if !limit.decide(&mut world.state, &ask, now).examination.admits() {
                break;
            }
            passed += 1;
            prop_assert_eq!(world.status().remaining, status.remaining - passed);
        }
        prop_assert_eq!(passed, status.remaining);
    }
    prop_assert!(status.reset_at >= now);
    if status.reset_at <= LATEST {
        let fresh = limit.status(&limit.fresh(), status.reset_at);
        prop_assert_eq!(limit.status(&state, status.reset_at), fresh);
        prop_assert_eq!(fresh.remaining, limit.capacity());
    }
    if status.reset_at > now {
        prop_assert!(limit.status(&state, status.reset_at - 1).used > 0);
        prop_assert!(limit.fresh_at(&state) >= status.reset_at);
    }
    Ok(())
}

/// At an instant before the highest one seen there is never more room than at the highest, and what
/// is charged back there takes as much room as if it were charged at the highest.
fn check_step_back(mut world: World, op: &Op, backs: [u64; 3]) -> Result<(), TestCaseError> {
    let highest = world.now;
    let seen = Ask::slot(world.new_slot());
    world.limit.charge(&mut world.state, &seen, highest);
    for back in backs {
        let ask = world.ask(op);
        let World { limit, state, .. } = &mut world;
        // A slot's lifetime starts at the instant of its charge, so states can be compared only
        // that far back.
        let is_slots = limit.algorithm() == Algorithm::Concurrency;
        let reach = if is_slots { limit.slot_ttl() } else { 2 * limit.window_nanos() };
        let at = highest - back % reach.min(highest.max(1));
        let (there, here) = (limit.status(state, at), limit.status(state, highest));
        prop_assert!(there.remaining <= here.remaining);
        prop_assert!(there.used >= here.used);
        if limit.examine(state, &ask, at).admits() {
            prop_assert!(limit.examine(state, &ask, highest).admits());
        }
        let mut charged_here = state.clone();
        limit.charge(&mut charged_here, &ask, highest);
        let receipt = limit.charge(state, &ask, at);
        let mut undone = state.clone();
        limit.give_back(&mut undone, &receipt, at);
        prop_assert_eq!(limit.status(&undone, highest), here);
        prop_assert_eq!(
            limit.status(state, highest).used,
            limit.status(&charged_here, highest).used
        );
    }
    Ok(())
}

/// Dropping a counter from `fresh_at` on is seen by nothing that comes later.
fn check_drop(mut world: World, wait: u64, after: &[Op]) -> Result<(), TestCaseError> {
    let fresh_at = world.limit.fresh_at(&world.state);
    prop_assume!(fresh_at <= LATEST / 2);
    world.now = world.now.max(fresh_at).saturating_add(wait);
    let mut dropped = World { state: world.limit.fresh(), ..world.clone() };
    for op in after {
        let mut peek = Ask::cost(cost_of(&world.limit, op.cost));
        peek.max_delay = op.pick.is_multiple_of(2).then_some(op.pick % 1_000);
        let (limit, now) = (&world.limit, world.now);
        prop_assert_eq!(
            limit.examine(&world.state, &peek, now),
            limit.examine(&dropped.state, &peek, now)
        );
        prop_assert_eq!(world.status(), dropped.status());
        world.play(op);
        dropped.play(op);
    }
    prop_assert_eq!(world.status(), dropped.status());
    let fresh_at = |world: &World| world.limit.fresh_at(&world.state).max(world.now);
    prop_assert_eq!(fresh_at(&world), fresh_at(&dropped));
    Ok(())
}

fn same_from(limit: &Limit, one: &State, other: &State, now: Nanos, op: &Op) -> bool {
    later_instants(limit, now, op.pick).into_iter().all(|at| {
        let ask = Ask::cost(cost_of(limit, (op.cost.0, op.pick)));
        limit.status(one, at) == limit.status(other, at)
            && limit.examine(one, &ask, at) == limit.examine(other, &ask, at)
    })
}

/// A charge given back at once has left no trace; so have several, in any order that keeps the
/// last charge first.
fn check_undo(mut world: World, ops: &[Op]) -> Result<(), TestCaseError> {
    let before = world.state.clone();
    let (limit, now) = (world.limit.clone(), world.now);
    let mut receipts = Vec::new();
    for op in ops {
        let ask = world.ask(op);
        let here = world.state.clone();
        let receipt = limit.charge(&mut world.state, &ask, now);
        let mut undone = world.state.clone();
        limit.give_back(&mut undone, &receipt, now);
        prop_assert!(same_from(&limit, &here, &undone, now, op));
        receipts.push(receipt);
    }
    for receipt in receipts.iter().rev() {
        limit.give_back(&mut world.state, receipt, now);
    }
    for op in ops {
        prop_assert!(same_from(&limit, &before, &world.state, now, op));
    }
    Ok(())
}

macro_rules! laws {
    ($name:ident, $algorithm:ident) => {
        mod $name {
            use super::*;

            proptest! {
                #![proptest_config(config())]

                #[test]
                fn refusal_holds_to_the_nanosecond(
                    world in a_world(Algorithm::$algorithm),
                    op in op(),
                    delay in proptest::option::of(any::<u64>()),
                ) {
                    check_refusal(world, &op, delay)?;
                }

                #[test]
                fn figures_are_exact(world in a_world(Algorithm::$algorithm)) {
                    check_figures(world)?;
                }

                #[test]
                fn stepping_back_mints_nothing(
                    world in a_world(Algorithm::$algorithm),
                    op in op(),
                    backs in any::<[u64; 3]>(),
                ) {
                    check_step_back(world, &op, backs)?;
                }

                #[test]
                fn dropping_is_unobservable(
                    world in a_world(Algorithm::$algorithm),
                    wait in prop_oneof![Just(0u64), 0..100u64, any::<u32>().prop_map(u64::from)],
                    after in history(12),
                ) {
                    check_drop(world, wait, &after)?;
                }

                #[test]
                fn undoing_at_once_is_exact(
                    world in a_world(Algorithm::$algorithm),
                    ops in prop::collection::vec(op(), 1..4),
                ) {
                    check_undo(world, &ops)?;
                }
            }
        }
    };
}

for_every_algorithm!(laws);
