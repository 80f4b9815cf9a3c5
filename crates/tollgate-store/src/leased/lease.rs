//! One counter as this node holds it: chunks, what is known of it, and the fetch on its way.
//!
//! A pure state machine: no lock, no I/O. `at` is always the store's clock. `fetch.rs` decides when to
//! fetch and how much, `land.rs` takes in what a fetch brought.
//!
//! What keeps the nodes together within the pool is the record that the store has of every node.
//! Here, what is left of all chunks never exceeds what that record says (`recorded`).

mod fetch;
mod land;

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Examination, Limit, Nanos, Outcome, Receipt, SECOND, Status};

use super::chunk::{Chunk, Piece};
use super::demand::Demand;
use super::figures::Strayed;
use super::flight::Flight;
use super::key::Owned;
use super::sizing::{Sizing, Terms};

/// The most chunks of one counter. A fetch brings at least half of the refetch point, so that more are
/// seldom needed.
const MAX_CHUNKS: usize = 4;

/// A lease is sized anew at least this often while it is asked for.
const RESIZE_INTERVAL: Nanos = SECOND / 16;

/// What one charge asks of a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) limit: &'a Limit,
    pub(super) cost: u64,
    /// The most that may be out on lease over all nodes.
    pub(super) pool: u64,
    /// It is not given back once it is charged.
    pub(super) is_final: bool,
}

/// What a lease says to a charge.
#[derive(Debug)]
pub(super) enum Reserved {
    /// It is charged. A fetch may be due, so that the next ones find something too.
    Spent(Outcome, Option<Fetch>),
    /// The counter had no room a moment ago.
    Refused(Outcome),
    /// A fetch is on its way that should bring enough.
    Wait(Arc<Flight>),
    /// A fetch for this charge.
    Fetch(Fetch),
    /// The shared counter decides.
    PassOn,
}

/// A fetch to be made, and the flight that wakes those who wait for it.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) flight: Arc<Flight>,
    pub(super) plan: Plan,
}

/// What a fetch asks for.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) owned: Arc<Owned>,
    pub(super) want: u64,
    pub(super) least: u64,
    pub(super) returned: u64,
    pub(super) receipt: Receipt,
    pub(super) held: u64,
    pub(super) pool: u64,
    /// What was spent of chunks and is not given back any more.
    pub(super) closes: SmallVec<[Receipt; MAX_CHUNKS]>,
    /// The rests of further chunks, which are given back by a call of their own.
    pub(super) further: SmallVec<[Receipt; MAX_CHUNKS]>,
    /// How long the lease lasts, and what else follows from the distance.
    pub(super) sizing: Sizing,
}

/// A refusal that is repeated for a moment without asking.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    cost: u64,
    until: Nanos,
    /// When the counter says that there is room again.
    retry_at: Nanos,
    outcome: Outcome,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) owned: Arc<Owned>,
    strayed: Arc<Strayed>,
    /// Those that expire first come first. A fetch that brings another leaves an empty place.
    chunks: [Chunk; MAX_CHUNKS],
    /// What is to be closed of chunks that have gone, by the next fetch.
    closing: SmallVec<[Receipt; MAX_CHUNKS]>,
    /// What the store's record says that this node holds, or less.
    recorded: u64,
    /// What others had on lease when last heard of.
    others: u64,
    /// The counter's figures when last heard of, all chunks counted as used.
    seen: Status,
    refusal: Option<Refusal>,
    demand: Demand,
    sizing: Sizing,
    /// When it is sized anew, or after how much of a metering window, if that is sooner.
    resize_at: Nanos,
    resize_after: u64,
    /// When a chunk must be renewed or replaced; nothing is at hand: never.
    renew_at: Nanos,
    pub(super) flight: Option<Arc<Flight>>,
    /// What of the flight's load nobody waits for yet.
    expected: u64,
    /// No fetch ahead of need before then: the last one brought nothing.
    prefetch_at: Nanos,
    /// No fetch before then, if there was nothing to be had.
    fetch_at: Nanos,
    /// What was taken and became worth nothing, until it is counted.
    lapsed: u64,
    /// When it was last asked.
    pub(super) asked_at: Nanos,
}

impl Lease {
    pub(super) fn new(owned: Arc<Owned>, strayed: Arc<Strayed>) -> Self {
        Self {
            owned,
            strayed,
            chunks: [Chunk::NONE; MAX_CHUNKS],
            closing: SmallVec::new(),
            recorded: 0,
            others: 0,
            seen: Status::default(),
            refusal: None,
            demand: Demand::default(),
            sizing: Sizing::default(),
            resize_at: 0,
            resize_after: 0,
            renew_at: Nanos::MAX,
            flight: None,
            expected: 0,
            prefetch_at: 0,
            fetch_at: 0,
            lapsed: 0,
            asked_at: 0,
        }
    }

    /// The measure of its rule.
    pub(super) fn strayed(&self) -> Arc<Strayed> {
        Arc::clone(&self.strayed)
    }

    /// What is not spent, usable or not.
    #[inline]
    pub(super) fn left(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.left).sum()
    }

    /// Whether something is left that can no longer be spent.
    pub(super) fn has_expired(&self, at: Nanos) -> bool {
        self.chunks.iter().any(|chunk| chunk.is_expired(at))
    }

    /// After how long without a request it is returned.
    pub(super) const fn idle(&self) -> Nanos {
        self.sizing.idle
    }

    /// Serves a charge from what is here, or says what is to be done.
    #[inline]
    pub(super) fn reserve(
        &mut self,
        wanted: &Wanted<'_>,
        at: Nanos,
        terms: &Terms<'_>,
    ) -> Reserved {
        self.demand.ask(wanted.cost, at);
        self.asked_at = at;
        if at >= self.resize_at || self.demand.in_window() >= self.resize_after {
            self.resize(at, terms);
        }
        if let Some(outcome) = self.spend(wanted, at) {
            let fetch = self.prefetch(wanted, at, terms);
            return Reserved::Spent(outcome, fetch);
        }
        self.fetch(wanted, at, terms)
    }

    /// Serves a charge that has waited for a fetch; it does not wait again.
    pub(super) fn reserve_after_wait(&mut self, wanted: &Wanted<'_>, at: Nanos) -> Reserved {
        if !self.owned.is_under(wanted.limit) {
            return Reserved::PassOn;
        }
        if let Some(outcome) = self.spend(wanted, at) {
            return Reserved::Spent(outcome, None);
        }
        self.remembered(wanted.cost, at).map_or(Reserved::PassOn, Reserved::Refused)
    }

    #[inline]
    fn spend(&mut self, wanted: &Wanted<'_>, at: Nanos) -> Option<Outcome> {
        let (limit, cost) = (wanted.limit, wanted.cost);
        let chunk = self.chunks.iter_mut().find(|chunk| chunk.may_spend(cost, at))?;
        let Piece { receipt, wait } = chunk.spend(limit, cost, at);
        if wanted.is_final {
            chunk.keep(&receipt);
        }
        if chunk.late > 0 {
            self.strayed.over(chunk.late, limit.quota());
        }
        let status = self.status(limit, at);
        Some(Outcome { examination: Examination::Admit { wait }, status, receipt })
    }

    /// The counter's figures as far as they are known, without what is left here.
    #[inline]
    fn status(&self, limit: &Limit, at: Nanos) -> Status {
        let used = limit.used_later(&self.seen, at).saturating_sub(self.left());
        let remaining = limit.capacity().saturating_sub(used);
        let reset_at = if used == 0 { at } else { self.seen.reset_at.max(at) };
        Status { used, remaining, reset_at }
    }

    fn remembered(&self, cost: u64, at: Nanos) -> Option<Outcome> {
        let refusal = self.refusal.as_ref()?;
        (at < refusal.until && cost >= refusal.cost).then_some(refusal.outcome)
    }

    /// What has become worth nothing since it was last asked.
    pub(super) const fn take_lapsed(&mut self) -> u64 {
        std::mem::replace(&mut self.lapsed, 0)
    }

    /// Everything that is left, as receipts: the lease is given up because the limit changed.
    pub(super) fn surrender(&mut self, at: Nanos) -> impl Iterator<Item = Receipt> + use<> {
        let chunks = std::mem::replace(&mut self.chunks, [Chunk::NONE; MAX_CHUNKS]);
        let owned = Arc::clone(&self.owned);
        chunks.into_iter().filter_map(move |chunk| chunk.rest(&owned.limit, at))
    }

    /// What is left is worth nothing: the counter was reset.
    pub(super) fn forget(&mut self) {
        self.chunks = [Chunk::NONE; MAX_CHUNKS];
        self.closing.clear();
        self.refusal = None;
        self.seen = Status::default();
    }

    /// There may be room again.
    pub(super) const fn forget_refusal(&mut self) {
        self.refusal = None;
    }

    /// Notes that a piece is not given back any more.
    pub(super) fn keep(&mut self, receipt: &Receipt) {
        self.chunks.iter_mut().any(|chunk| chunk.keep(receipt));
    }

    /// What is to be closed of all chunks.
    fn take_kept(&mut self) -> SmallVec<[Receipt; MAX_CHUNKS]> {
        let mut closes = std::mem::take(&mut self.closing);
        closes.extend(self.chunks.iter_mut().filter_map(Chunk::take_kept));
        closes
    }

    /// Takes a piece back, if it can be spent again. The record must cover it.
    pub(super) fn put_back(&mut self, limit: &Limit, receipt: &Receipt) -> bool {
        // Whatever is given back, there may be room again.
        self.refusal = None;
        let most = self.recorded.saturating_sub(self.left());
        // What is on its way needs a place to land: an empty chunk stays so.
        let keeps_empty = self.flight.is_some();
        self.owned.is_under(limit)
            && self
                .chunks
                .iter_mut()
                .rev()
                .any(|chunk| (chunk.left > 0 || !keeps_empty) && chunk.put_back(receipt, most))
    }
}
