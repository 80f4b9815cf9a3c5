//! Nodes that share a store in memory, each over a link of its own that can be cut.

#![allow(dead_code, unreachable_pub, reason = "every test uses its part")]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_core::{Ask, Limit, Nanos, SECOND, Slot, SlotId, Small};
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{
    Adjusted, Announcement, Charge, Counter, Decided, Failure, GiveBack, LeaseAsk, LeaseGrant,
    Membership, Mode, Outcomes, RecordAnswer, RecordAsk, Request, Role, Roll, Settlement,
    SharedStore, Store, StoreError,
};

use crate::leased_support::{Remote, World};

/// One node's link to the store.
#[derive(Clone)]
pub struct Link {
    pub remote: Remote,
    pub is_cut: Arc<AtomicBool>,
    /// Announcements do not arrive, all else does.
    pub is_mute: Arc<AtomicBool>,
    /// Charges above the limit, which are reports, do not arrive.
    pub drops_reports: Arc<AtomicBool>,
}

impl Link {
    fn check(&self) -> Result<(), StoreError> {
        if self.is_cut.load(Ordering::SeqCst) {
            return Err(Failure::Connection.into());
        }
        Ok(())
    }
}

impl Store for Link {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        self.check()?;
        let is_report = requests.iter().any(|request| request.mode == Mode::Owe);
        if is_report && self.drops_reports.load(Ordering::SeqCst) {
            return Err(Failure::Timeout.into());
        }
        self.remote.decide(requests, now, outcomes).await
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        self.check()?;
        self.remote.give_back(returns, now).await
    }

    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        self.check()?;
        self.remote.reset(counters, now).await
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.check()?;
        self.remote.renew(counter, limit, slot, now).await
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.check()?;
        self.remote.release(counter, slot, now).await
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        self.check()?;
        self.remote.slots(counter, now).await
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        self.check()?;
        self.remote.settle(settlement, now).await
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        self.check()?;
        self.remote.record(id, ask, now).await
    }
}

impl SharedStore for Link {
    async fn lease(&self, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, StoreError> {
        self.check()?;
        self.remote.lease(ask).await
    }

    async fn announce(&self, announcement: &Announcement<'_>) -> Result<Roll, StoreError> {
        self.check()?;
        if self.is_mute.load(Ordering::SeqCst) {
            return Err(Failure::Timeout.into());
        }
        self.remote.announce(announcement).await
    }

    fn clock(&self, now: Nanos) -> Nanos {
        self.remote.clock(now)
    }
}

/// A node of an installation.
pub struct Node {
    pub store: Resilient<Link>,
    pub link: Link,
    pub admitted: u64,
}

/// Nodes, their store, and one counter that all of them charge.
pub struct Installation<'a> {
    pub world: Arc<World>,
    pub nodes: Vec<Node>,
    pub counter: Counter<'a>,
    pub limit: &'a Limit,
    /// A bucket that is charged with all that is admitted, and how full it ever was.
    line: Small,
    pub highest: u64,
}

impl<'a> Installation<'a> {
    pub async fn new(count: usize, counter: Counter<'a>, limit: &'a Limit) -> Self {
        let (world, nodes, line) = (World::new(), Vec::new(), limit.fresh_small());
        let mut all = Self { world, nodes, counter, limit, line, highest: 0 };
        for number in 0..count {
            all.join(&format!("node {number}"), Membership::ALONE);
        }
        all.beat().await;
        all.beat().await;
        all
    }

    /// Another node starts.
    pub fn join(&mut self, name: &str, assumed: Membership) {
        let link = Link {
            remote: Remote(Arc::clone(&self.world)),
            is_cut: Arc::default(),
            is_mute: Arc::default(),
            drops_reports: Arc::default(),
        };
        let options = ResilientOptions { assumed, ..ResilientOptions::new(name.to_owned()) };
        let store = Resilient::new(link.clone(), options);
        self.nodes.push(Node { store, link, admitted: 0 });
    }

    /// Cuts the link of a node, or joins it again.
    pub fn cut(&self, node: usize, is_cut: bool) {
        self.nodes[node].link.is_cut.store(is_cut, Ordering::SeqCst);
    }

    pub fn cut_all(&self) {
        (0..self.nodes.len()).for_each(|node| self.cut(node, true));
    }

    /// Every node announces itself.
    pub async fn beat(&self) {
        for node in &self.nodes {
            let _unanswered = node.store.heartbeat(self.world.now()).await;
        }
    }

    /// Every node tries to come back.
    pub async fn heal(&self) {
        for node in &self.nodes {
            node.store.heal(self.world.now()).await;
        }
    }

    /// A request of this cost to a node. Whether it passed.
    pub async fn ask(&mut self, node: usize, mode: Mode, cost: u64) -> bool {
        let ask = Ask::cost(cost);
        let charges = [Charge { counter: self.counter, limit: self.limit, ask, role: Role::Must }];
        let mut outcomes = Outcomes::new();
        let request = [Request { charges: &charges, mode }];
        let node = &mut self.nodes[node];
        let decided = node.store.decide(&request, self.world.now(), &mut outcomes).await;
        decided.expect("it always answers");
        let admits = outcomes[0].examination.admits();
        if admits && mode == Mode::Charge {
            node.admitted += cost;
            if self.limit.algorithm().is_bucket() {
                let now = self.world.now();
                self.limit.charge_small(&mut self.line, cost, now);
                self.highest = self.highest.max(self.limit.status_small(&self.line, now).used);
            }
        }
        admits
    }

    /// All nodes learn what is used now.
    pub async fn look(&mut self) {
        for node in 0..self.nodes.len() {
            self.ask(node, Mode::Peek, 1).await;
        }
    }

    /// So many requests to every node in turn.
    pub async fn load(&mut self, each: usize) {
        for _ in 0..each {
            for node in 0..self.nodes.len() {
                self.ask(node, Mode::Charge, 1).await;
            }
        }
    }

    /// Time passes as the server has it: nodes heal four times a second and announce themselves once,
    /// under load.
    pub async fn pass(&mut self, seconds: u64, load: usize) {
        for _ in 0..seconds {
            for _ in 0..4 {
                self.load(load).await;
                self.heal().await;
                self.world.advance(SECOND / 4);
            }
            self.beat().await;
        }
    }

    pub fn admitted(&self) -> u64 {
        self.nodes.iter().map(|node| node.admitted).sum()
    }

    pub fn used(&self) -> u64 {
        self.world.status(self.counter, self.limit).used
    }
}
