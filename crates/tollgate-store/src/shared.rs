//! What a store that several nodes share can do beside deciding.

use std::future::Future;

use tollgate_core::{Limit, Nanos, Outcome, Receipt};

use crate::{Counter, Store, StoreError};

/// A wish to take quota ahead, and to return what is left of an earlier chunk.
///
/// In one atomic step the store
/// 1. gives back `returned` of the chunk that `receipt` is of;
/// 2. finds the largest amount that the counter admits among `want`, half of it, a quarter of it, …,
///    but not less than `least`, where what would then be out on lease over all nodes
///    (others' unexpired records + `held` + amount - `least`) stays within `pool`. If the pool has
///    no room at all, the amount is `least`, which is spent at once and so is not on lease;
/// 3. charges the amount, and records `held` + amount - `least` as this node's lease until `ttl`
///    from now. Nothing held: the record is removed.
#[derive(Debug, Clone, Copy)]
pub struct LeaseAsk<'a> {
    /// The counter.
    pub counter: Counter<'a>,
    /// Its limit.
    pub limit: &'a Limit,
    /// The name of the asking node.
    pub node: &'a str,
    /// How much would be good to have, the request at hand included.
    pub want: u64,
    /// What the request at hand needs at once; 0 when only returning or renewing.
    pub least: u64,
    /// What of an earlier chunk is given back.
    pub returned: u64,
    /// The receipt of that chunk.
    pub receipt: Receipt,
    /// What the node goes on holding of earlier chunks.
    pub held: u64,
    /// The most that may be out on lease over all nodes.
    pub pool: u64,
    /// How long the lease lasts by the store's clock.
    pub ttl: Nanos,
}

/// What became of it.
#[derive(Debug, Clone, Copy)]
pub struct LeaseGrant {
    /// The store's clock.
    pub at: Nanos,
    /// What was charged, `least` included; 0: the counter refuses `least`, or nothing was wanted.
    pub granted: u64,
    /// When the lease ends by the store's clock.
    pub expires_at: Nanos,
    /// What other nodes have on lease.
    pub others: u64,
    /// The charge of `granted`; where nothing was granted, the examination of `least`.
    pub outcome: Outcome,
}

/// The nodes that are alive, as one of them sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    /// How many there are, this one included.
    pub nodes: u32,
    /// The place of this one among them, from 0.
    pub rank: u32,
}

impl Membership {
    /// A node that knows of no other.
    pub const ALONE: Self = Self { nodes: 1, rank: 0 };
}

/// A store that several nodes share.
pub trait SharedStore: Store {
    /// Takes quota ahead.
    fn lease(
        &self,
        ask: &LeaseAsk<'_>,
    ) -> impl Future<Output = Result<LeaseGrant, StoreError>> + Send;

    /// Says that this node is alive for `ttl` from now, and learns who else is. A `ttl` of 0 says
    /// goodbye.
    fn announce(
        &self,
        node: &str,
        ttl: Nanos,
    ) -> impl Future<Output = Result<Membership, StoreError>> + Send;

    /// What the store's clock says now, as far as this node can tell without asking: `now` is this
    /// node's clock.
    fn clock(&self, now: Nanos) -> Nanos;
}
