//! Nodes that lose their Redis and find it again: exact while it is there, and within the stated bound
//! (docs/failure.md) when it is not.

use tollgate_core::{Algorithm, SECOND};
use tollgate_store::Mode;
use tollgate_store::redis::RedisStore;
use tollgate_store::resilient::{Resilient, ResilientOptions};

use crate::cut::Cut;
use crate::driver::Mismatch;
use crate::fleet::{Fleet, Shared};
use crate::nodes::{Kind, MAX_NODES, NodeHistory, NodeOp};
use crate::redis::runtime;
use crate::run::{check, seeds};

const HISTORIES: u64 = 300;
const SHRINK_TRIES: u32 = 300;

/// So often a node tries to come back before the test gives up.
const HEALS: u32 = 60;

type Nodes<'a> = Fleet<'a, Resilient<Cut<RedisStore>>>;

/// What is known of the history so far.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    /// No node was ever cut off.
    was_cut: bool,
    /// A charge was given back while its node was cut off: the store is not informed of that.
    gave_back_cut: bool,
}

struct Player<'a> {
    fleet: Nodes<'a>,
    past: Past,
    kind: Kind,
}

impl Player<'_> {
    fn is_cut(&self) -> bool {
        self.fleet.nodes.iter().any(|node| node.inner().is_cut())
    }

    /// One request: exact while nothing was lost, and never above the bound.
    async fn charge(&mut self, id: u32, node: usize, costs: &[(usize, u64)]) -> Result<(), String> {
        let fleet = &mut self.fleet;
        let (outcomes, decided) = fleet.ask(&fleet.nodes[node], costs, Mode::Charge).await?;
        let passes = outcomes.iter().all(|outcome| outcome.examination.admits());
        let mut fits = true;
        for (counter, cost) in costs {
            let (meter, account) = (fleet.history.meters[*counter], &fleet.accounts[*counter]);
            fits &= meter.admits(account, *cost, 0, fleet.now);
            let capacity = meter.limit().capacity().cast_signed();
            // All together cut off: L. Some of them: 2 L.
            let more = if self.kind == Kind::CutTogether { 0 } else { capacity };
            if passes && !meter.admits(account, *cost, more, fleet.now) {
                let status = account.status(meter.terms, fleet.now);
                return Err(format!("{cost} of c{counter} passed above the bound: {status:?}"));
            }
        }
        if !self.past.was_cut && passes != fits {
            return Err(format!("{costs:?}: passed {passes}, but fits {fits}"));
        }
        if passes {
            fleet.note((id, node), costs, &outcomes, &decided);
        }
        if !self.past.was_cut {
            return self.compare().await;
        }
        Ok(())
    }

    /// While the store was never lost, its figures are the oracle's.
    async fn compare(&self) -> Result<(), String> {
        let fleet = &self.fleet;
        for (counter, outcome) in fleet.look(&fleet.nodes[0]).await?.iter().enumerate() {
            let meter = fleet.history.meters[counter];
            let expected = fleet.accounts[counter].status(meter.terms, fleet.now);
            if outcome.status != expected {
                return Err(format!("c{counter} has {:?}, not {expected:?}", outcome.status));
            }
        }
        Ok(())
    }

    async fn cut(&mut self, nodes: impl IntoIterator<Item = usize>) -> Result<(), String> {
        for number in nodes {
            let node = &self.fleet.nodes[number];
            if !node.inner().is_cut() {
                // It knows what is used when it loses the store.
                self.fleet.look(node).await?;
            }
        }
        Ok(())
    }

    async fn step(&mut self, op: &NodeOp) -> Result<(), String> {
        let all = 0..self.fleet.nodes.len();
        match op {
            NodeOp::Charge { id, node, times, costs } => {
                for _ in 0..*times {
                    self.charge(*id, *node, costs).await?;
                }
            }
            NodeOp::GiveBack { node, of } => {
                self.past.gave_back_cut |= self.is_cut();
                self.fleet.give_back(*node, *of).await?;
            }
            // A debt that the store does not know yet is no admission.
            NodeOp::Settle { less, .. } if *less < 0 && self.is_cut() => {}
            NodeOp::Settle { node, of, less } => self.fleet.settle(*node, *of, *less).await?,
            NodeOp::Cut(node) => {
                self.cut([*node]).await?;
                self.set_cut([*node], true);
            }
            NodeOp::CutAll => {
                self.cut(all.clone()).await?;
                self.set_cut(all, true);
            }
            NodeOp::Heal(node) => {
                self.set_cut([*node], false);
                self.heal([*node]).await?;
            }
            NodeOp::HealAll => {
                self.set_cut(all.clone(), false);
                self.heal(all).await?;
            }
            NodeOp::Advance(by) => {
                self.fleet.advance(*by);
                self.beat().await;
            }
            NodeOp::Sweep(_) => {}
        }
        Ok(())
    }

    async fn play(&mut self, redis: &RedisStore) -> Result<(), Mismatch> {
        let ops = &self.fleet.history.ops;
        for (step, op) in ops.iter().enumerate() {
            self.step(op).await.map_err(|what| Mismatch { step, what })?;
        }
        self.settle_up(redis).await.map_err(|what| Mismatch { step: ops.len(), what })
    }

    fn set_cut(&mut self, nodes: impl IntoIterator<Item = usize>, is_cut: bool) {
        self.past.was_cut |= is_cut;
        for number in nodes {
            self.fleet.nodes[number].inner().set(is_cut);
        }
    }

    /// Nodes say that they are alive, as far as they reach the store.
    async fn beat(&self) {
        for node in &self.fleet.nodes {
            let _ = node.heartbeat(self.fleet.now).await;
        }
    }

    async fn heal(&mut self, nodes: impl IntoIterator<Item = usize> + Clone) -> Result<(), String> {
        for _ in 0..HEALS {
            let mut is_healed = true;
            for number in nodes.clone() {
                is_healed &= self.fleet.nodes[number].heal(self.fleet.now).await;
            }
            if is_healed {
                return Ok(());
            }
            self.beat().await;
            self.fleet.advance(SECOND / 4);
        }
        Err("a node does not come back".to_owned())
    }

    /// When all are back, the store knows of all that was admitted.
    async fn settle_up(&mut self, redis: &RedisStore) -> Result<(), String> {
        let all = 0..self.fleet.nodes.len();
        self.set_cut(all.clone(), false);
        self.heal(all).await?;
        let fleet = &self.fleet;
        for (counter, outcome) in fleet.look(redis).await?.iter().enumerate() {
            let meter = fleet.history.meters[counter];
            let expected = fleet.accounts[counter].status(meter.terms, fleet.now);
            let used = outcome.status.used;
            let is_exact =
                meter.shape.algorithm == Algorithm::FixedWindow && !self.past.gave_back_cut;
            if used < expected.used || (is_exact && used != expected.used) {
                return Err(format!(
                    "c{counter} has {used} used in the end, the oracle {expected:?}"
                ));
            }
        }
        Ok(())
    }
}

async fn play(shared: &mut Shared, history: &NodeHistory, kind: Kind) -> Result<(), Mismatch> {
    let name = shared.next_name();
    let node = |number: usize| {
        let options = ResilientOptions::new(format!("{name} node {number}"));
        Resilient::new(Cut::new(shared.redis[number].clone()), options)
    };
    let nodes: Vec<_> = (0..history.nodes).map(node).collect();
    let fleet = Fleet::new(history, shared.clock.clone(), nodes, &name);
    let mut player = Player { fleet, past: Past::default(), kind };
    // Two rounds: the first learns of those behind it in the second.
    for _ in 0..2 {
        player.beat().await;
    }
    let played = player.play(&shared.redis[0]).await;
    for node in &player.fleet.nodes {
        node.inner().set(false);
        let _ = node.goodbye().await;
    }
    played
}

fn play_all(kind: Kind) {
    let runtime = runtime();
    let mut shared = Shared::new(MAX_NODES);
    let history = |seed| NodeHistory::new(seed, kind);
    check(seeds(HISTORIES), history, SHRINK_TRIES, |history| {
        runtime.block_on(play(&mut shared, history, kind))
    });
}

#[test]
fn resilient_cut_together() {
    play_all(Kind::CutTogether);
}

#[test]
fn resilient_cut_apart() {
    play_all(Kind::CutApart);
}
