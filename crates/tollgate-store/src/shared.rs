//! What a store that several nodes share can do beside deciding.

use std::future::Future;

use tollgate_core::{Limit, Nanos, Outcome, Receipt};

use crate::{Counter, Store, StoreError};

/// A wish to take quota ahead, and to return what is left of an earlier chunk.
///
/// In one atomic step the store
/// 1. gives back `returned` of the chunk that `receipt` is of, unless that was done under `return_id`, and makes the
///    charges of `closes` final;
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
    /// Names what is given back. Where the answer is lost, a [`Settlement`](crate::Settlement) with this id gives it
    /// back, if that was not done.
    pub return_id: u128,
    /// For how long that id is remembered.
    pub remember: Nanos,
    /// Parts of earlier chunks that are spent and are not given back any more.
    pub closes: &'a [Receipt],
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

/// What a node says of itself to the others.
#[derive(Debug, Clone, Copy)]
pub struct Announcement<'a> {
    /// Its name.
    pub node: &'a str,
    /// For how long it is taken to be alive from now on; 0: it leaves.
    pub ttl: Nanos,
    /// It has reported to the store whatever it admitted without it.
    pub has_reported: bool,
}

/// The most nodes of a [`Roll`].
pub const MAX_ROLL: usize = 1_000;

/// The nodes that announced themselves lately, as one of them hears it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roll {
    /// The store's clock.
    pub at: Nanos,
    /// How many are alive, and which of them the listener is.
    pub membership: Membership,
    /// Those that are alive, and those that left lately; at most [`MAX_ROLL`].
    pub nodes: Vec<RollEntry>,
    /// There are more than fit.
    pub is_cut_short: bool,
}

/// A node on the [`Roll`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollEntry {
    /// Its name.
    pub name: String,
    /// It has not left, and was not missed.
    pub is_alive: bool,
    /// When it last announced that it has reported, by the store's clock; 0: not lately.
    pub reported_at: Nanos,
}

/// A store that several nodes share.
pub trait SharedStore: Store {
    /// Takes quota ahead.
    fn lease(
        &self,
        ask: &LeaseAsk<'_>,
    ) -> impl Future<Output = Result<LeaseGrant, StoreError>> + Send;

    /// Announces this node, and learns of the others.
    fn announce(
        &self,
        announcement: &Announcement<'_>,
    ) -> impl Future<Output = Result<Roll, StoreError>> + Send;

    /// Whether a part of it can be lost while the rest answers.
    fn has_parts(&self) -> bool {
        false
    }

    /// What the store's clock says now, as far as this node can tell without asking: `now` is this
    /// node's clock, or 0 where the caller does not know it. A store that cannot say more than `now`
    /// returns `now`.
    fn clock(&self, now: Nanos) -> Nanos;

    /// Returns when a request that begins to wait for this store now has to stop waiting. Leases are
    /// also fetched in the background, with more time than a request has.
    fn request_timeout(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}
