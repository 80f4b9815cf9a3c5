//! Leases on a real Redis: what nodes admit and refuse stays within the declared overshoot.

use tollgate_core::{Algorithm, Nanos, SECOND};
use tollgate_store::Mode;
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::redis::RedisStore;

use crate::driver::Mismatch;
use crate::fleet::{Fleet, Shared};
use crate::nodes::{Kind, MAX_NODES, NodeHistory, NodeOp};
use crate::redis::runtime;
use crate::run::{check, seeds};

const HISTORIES: u64 = 300;
const SHRINK_TRIES: u32 = 300;

/// A refusal is repeated for 50 ms without asking; what is refunded meanwhile is noticed after that.
const REFUSALS_REPEATED: Nanos = SECOND / 10;

type Nodes<'a> = Fleet<'a, Leased<RedisStore>>;

/// One request: what passes fits with the pool on top, what is refused does not fit with the pool used up.
async fn charge(
    fleet: &mut Nodes<'_>,
    id: u32,
    node: usize,
    costs: &[(usize, u64)],
) -> Result<(), String> {
    let (outcomes, decided) = fleet.ask(&fleet.nodes[node], costs, Mode::Charge).await?;
    let passes = outcomes.iter().all(|outcome| outcome.examination.admits());
    let mut is_explained = false;
    for (place, ((counter, cost), outcome)) in costs.iter().zip(&outcomes).enumerate() {
        let (meter, account) = (fleet.history.meters[*counter], &fleet.accounts[*counter]);
        let (pool, at) = (meter.pool().cast_signed(), decided.of(place).min(fleet.now));
        if passes && !meter.admits(account, *cost, pool, at) {
            let status = account.status(meter.terms, at);
            return Err(format!("{cost} of c{counter} passed above {pool} more: {status:?}"));
        }
        let refuses = !outcome.examination.admits();
        is_explained |= refuses && !meter.admits(account, *cost, -pool, at);
        let most = meter.limit().capacity();
        if outcome.status.remaining > most {
            return Err(format!("c{counter} has {} of {most} left", outcome.status.remaining));
        }
    }
    if passes {
        fleet.note((id, node), costs, &outcomes, &decided);
        return Ok(());
    }
    let status = |(counter, _): &(usize, u64)| {
        fleet.accounts[*counter].status(fleet.history.meters[*counter].terms, fleet.now)
    };
    let all: Vec<_> = costs.iter().map(status).collect();
    if is_explained { Ok(()) } else { Err(format!("{costs:?} refused with room: {all:?}")) }
}

async fn step(fleet: &mut Nodes<'_>, op: &NodeOp) -> Result<(), String> {
    match op {
        NodeOp::Charge { id, node, times, costs } => {
            for _ in 0..*times {
                charge(fleet, *id, *node, costs).await?;
            }
        }
        NodeOp::GiveBack { node, of } => {
            fleet.give_back(*node, *of).await?;
            pass_time(fleet, REFUSALS_REPEATED).await?;
        }
        NodeOp::Settle { node, of, less } => {
            fleet.settle(*node, *of, *less).await?;
            pass_time(fleet, REFUSALS_REPEATED).await?;
        }
        NodeOp::Sweep(node) => fleet.nodes[*node].sweep(fleet.now).await,
        NodeOp::Advance(by) => pass_time(fleet, *by).await?,
        NodeOp::Cut(_) | NodeOp::CutAll | NodeOp::Heal(_) | NodeOp::HealAll => {}
    }
    Ok(())
}

/// Time passes, all nodes learn what the server's clock shows, and return what has expired, as they do all
/// the time.
async fn pass_time(fleet: &mut Nodes<'_>, by: Nanos) -> Result<(), String> {
    fleet.advance(by);
    for node in &fleet.nodes {
        fleet.look(node).await?;
        node.sweep(fleet.now).await;
    }
    Ok(())
}

/// When all that was not spent is back, the counter says what was admitted.
async fn settle_up(fleet: &Nodes<'_>, redis: &RedisStore) -> Result<(), String> {
    for node in &fleet.nodes {
        node.return_all(fleet.now).await;
    }
    // A fetch that is under way when the clock is moved looks like one to a far store, whose chunks may be spent for a
    // while after their window.
    let is_on_time =
        fleet.nodes.iter().all(|node| node.figures().over_admission_ratio() <= f64::EPSILON);
    for (counter, outcome) in fleet.look(redis).await?.iter().enumerate() {
        let meter = fleet.history.meters[counter];
        let expected = fleet.accounts[counter].status(meter.terms, fleet.now);
        let used = outcome.status.used;
        // What is spent from a lease was charged before, and ends no later than the oracle says.
        let is_exact = meter.shape.algorithm == Algorithm::FixedWindow && is_on_time;
        if used > expected.used || (is_exact && used != expected.used) {
            return Err(format!("c{counter} has {used} used in the end, the oracle {expected:?}"));
        }
    }
    Ok(())
}

async fn play(shared: &mut Shared, history: &NodeHistory) -> Result<(), Mismatch> {
    let name = shared.next_name();
    let node = |number: usize| {
        let options = LeaseOptions::new(format!("node {number}"));
        Leased::new(shared.redis[number].clone(), options)
    };
    let nodes = (0..history.nodes).map(node).collect();
    let mut fleet = Fleet::new(history, shared.clock.clone(), nodes, &name);
    let begun = pass_time(&mut fleet, 0).await;
    begun.map_err(|what| Mismatch { step: 0, what })?;
    for (number, op) in history.ops.iter().enumerate() {
        step(&mut fleet, op).await.map_err(|what| Mismatch { step: number, what })?;
    }
    let settled = settle_up(&fleet, &shared.redis[0]).await;
    settled.map_err(|what| Mismatch { step: history.ops.len(), what })
}

#[test]
fn leased() {
    let runtime = runtime();
    let mut shared = Shared::new(MAX_NODES);
    let history = |seed| NodeHistory::new(seed, Kind::Leased);
    check(seeds(HISTORIES), history, SHRINK_TRIES, |history| {
        runtime.block_on(play(&mut shared, history))
    });
}
