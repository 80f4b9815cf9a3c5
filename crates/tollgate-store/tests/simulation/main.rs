//! A deterministic simulation of nodes, a store, clients, and a network between them.
//!
//! The nodes' code is the product's: fallback, reports and membership (`Resilient`), leases (`Leased`).
//! Everything around it is simulated on one thread, in virtual time, from one seed: a seed that fails
//! fails again, exactly.
//!
//! | file | what |
//! |---|---|
//! | `time.rs` | the clock and the events to come |
//! | `draw.rs` | random numbers |
//! | `plan.rs`, `shapes.rs` | what is going to happen, and plans drawn from seeds |
//! | `network.rs`, `link.rs` | messages between nodes and store |
//! | `server.rs`, `owned.rs` | the store |
//! | `node.rs`, `client.rs` | nodes and clients |
//! | `world.rs`, `check.rs` | a run, and what must hold at its end |
//! | `runner.rs`, `shrink.rs` | many runs, and the events of one that fails |

#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]
#![allow(clippy::cast_precision_loss, reason = "fractions are for people to read")]
#![allow(clippy::cast_possible_wrap, reason = "a simulation lasts minutes")]

mod check;
mod client;
mod draw;
mod link;
mod network;
mod node;
mod owned;
mod plan;
mod runner;
mod server;
mod shapes;
mod shrink;
mod time;
mod world;

use plan::{Plan, Shape};

/// So many seeds are run unless `TOLLGATE_SIMULATION_SEEDS` says how many (`make simulate`).
const SEEDS: u64 = 1_000;

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => otherwise,
    }
}

/// `TOLLGATE_SIMULATION_SEED` is the first seed. One seed alone is also printed event by event.
#[test]
fn every_seed_holds() {
    let first = number("TOLLGATE_SIMULATION_SEED", 0);
    let seeds = number("TOLLGATE_SIMULATION_SEEDS", SEEDS);
    let summary = runner::run_seeds(first, seeds);
    println!("{summary}");
    if seeds == 1 {
        println!("{}", runner::trace(&Plan::draw(first), usize::MAX));
    }
    if let Some(seed) = summary.failed.keys().next() {
        println!("{}", runner::explain(&Plan::draw(*seed)));
        panic!("{} of {seeds} seeds fail, the first is {seed}\n{summary}", summary.failed.len());
    }
}

/// Seeds beyond those that are always run, that have failed.
#[test]
fn seeds_that_have_failed_hold() {
    for seed in [1_253, 6_399] {
        let plan = Plan::draw(seed);
        assert!(world::run(&plan, false).broken.is_empty(), "{}", runner::explain(&plan));
    }
}

/// One seed decides everything: two runs of it are the same to the last event.
#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..40 {
        let plan = Plan::draw(seed);
        let [first, second] = [(), ()].map(|()| world::run(&plan, true));
        assert_eq!(first.notes, second.notes, "seed {seed}");
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert_eq!(first.digest, world::run(&plan, false).digest, "seed {seed}, without notes");
    }
}

/// Three nodes, a limit of 100 of which 39 are used, and a store that one node after another finds
/// again, under load: 120 to 140 were admitted.
#[test]
fn a_staggered_recovery_admits_the_limit_once() {
    let plan = shapes::staggered_recovery();
    let outcome = world::run(&plan, false);
    assert!(outcome.broken.is_empty(), "{}", runner::trace(&plan, runner::MAX_EVENTS));
}

/// All shapes are among the seeds that are always run.
#[test]
fn seeds_cover_all_shapes() {
    for shape in [Shape::Outage, Shape::LateReturn, Shape::Partitions, Shape::FarStore] {
        assert!((0..100).any(|seed| Plan::draw(seed).shape == shape), "{shape:?}");
    }
}
