//! One counter as this node holds it: chunks, what is known of it, and the fetch on its way.
//!
//! A pure state machine: no lock, no I/O. `at` is always the store's clock.
//!
//! What keeps the nodes together within the pool is the record that the store has of every node.
//! Here, what is left of all chunks never exceeds what that record says (`recorded`).

use std::sync::Arc;

use tollgate_core::{Examination, Limit, Nanos, Outcome, Receipt, Status};

use super::LeaseOptions;
use super::chunk::{Chunk, Piece};
use super::demand::Demand;
use super::figures::{LeaseFigures, Strayed};
use super::flight::{Flight, Landing};
use super::key::Owned;
use crate::{LeaseGrant, StoreError};

/// Chunks smaller than this are not worth a fetch ahead of need.
const LEAST_PREFETCHED: u64 = 8;

/// What one charge asks of a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) limit: &'a Limit,
    pub(super) cost: u64,
    /// The most that may be out on lease over all nodes.
    pub(super) pool: u64,
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

/// A fetch to be made, and the flight that tells when it has landed.
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
    /// The rest of another chunk, which is given back beside it.
    pub(super) beside: Option<Receipt>,
}

/// A refusal that is repeated for a moment without asking.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    cost: u64,
    until: Nanos,
    outcome: Outcome,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) owned: Arc<Owned>,
    strayed: Arc<Strayed>,
    /// Older first. A fetch leaves one of them at most, and brings another.
    chunks: [Chunk; 2],
    /// What the store's record says that this node holds, or less.
    recorded: u64,
    /// What others had on lease when last heard of.
    others: u64,
    /// The counter's figures when last heard of, all chunks counted as used.
    seen: Status,
    refusal: Option<Refusal>,
    demand: Demand,
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
            chunks: [Chunk::NONE; 2],
            recorded: 0,
            others: 0,
            seen: Status::default(),
            refusal: None,
            demand: Demand::default(),
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
        self.chunks.iter().any(|chunk| chunk.left > 0 && !chunk.may_spend(1, at))
    }

    /// Serves a charge from what is here, or says what is to be done.
    #[inline]
    pub(super) fn reserve(
        &mut self,
        wanted: &Wanted<'_>,
        at: Nanos,
        options: &LeaseOptions,
    ) -> Reserved {
        self.demand.ask(wanted.cost);
        self.asked_at = at;
        if let Some(outcome) = self.spend(wanted, at) {
            let fetch = self.prefetch(wanted, at, options);
            return Reserved::Spent(outcome, fetch);
        }
        self.fetch(wanted, at, options)
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

    #[cold]
    fn fetch(&mut self, wanted: &Wanted<'_>, at: Nanos, options: &LeaseOptions) -> Reserved {
        if let Some(outcome) = self.remembered(wanted.cost, at) {
            return Reserved::Refused(outcome);
        }
        if let Some(flight) = &self.flight {
            // A flight that is full already is not worth waiting for: the shared counter decides
            // many at once.
            let Some(expected) = self.expected.checked_sub(wanted.cost) else {
                return Reserved::PassOn;
            };
            self.expected = expected;
            return Reserved::Wait(Arc::clone(flight));
        }
        let size = self.demand.next(at, options.horizon);
        if self.left() == 0 && self.is_not_worth_it(size, wanted, at) {
            return Reserved::PassOn;
        }
        self.fetch_at = at.saturating_add(options.horizon);
        // What is here is too little: it goes back in the same step, so that it does not stand in
        // its own way.
        let first = self.chunks.iter().position(|chunk| chunk.left > 0);
        let (returned, receipt) = self.take(first, at);
        let beside = self.take_expired(at);
        let (least, held) = (wanted.cost, self.left());
        let ahead = size.saturating_sub(least).min(self.fair(wanted.pool, held));
        let want = least.saturating_add(ahead).min(wanted.limit.capacity()).max(least);
        let plan = Plan {
            owned: Arc::clone(&self.owned),
            want,
            least,
            returned,
            receipt,
            held,
            pool: wanted.pool,
            beside,
        };
        Reserved::Fetch(self.depart(plan))
    }

    /// Nothing would be taken ahead: nobody asks often enough, or others have the pool, which is
    /// looked at again now and then. The shared counter decides such charges many at once.
    fn is_not_worth_it(&self, size: u64, wanted: &Wanted<'_>, at: Nanos) -> bool {
        size <= wanted.cost || (self.fair(wanted.pool, 0) == 0 && at < self.fetch_at)
    }

    /// A fetch ahead of need, when little is left of a chunk that is being spent.
    #[inline]
    fn prefetch(
        &mut self,
        wanted: &Wanted<'_>,
        at: Nanos,
        options: &LeaseOptions,
    ) -> Option<Fetch> {
        let whole = self.chunks.iter().map(|chunk| chunk.whole).max().unwrap_or(0);
        let is_due = self.left() < whole / 4
            && whole >= LEAST_PREFETCHED
            && self.flight.is_none()
            && at >= self.prefetch_at;
        if is_due { self.prefetch_now(wanted, at, options) } else { None }
    }

    #[cold]
    fn prefetch_now(
        &mut self,
        wanted: &Wanted<'_>,
        at: Nanos,
        options: &LeaseOptions,
    ) -> Option<Fetch> {
        self.prefetch_at = at.saturating_add(options.horizon);
        let size = self.demand.next(at, options.horizon);
        let both = self.chunks.iter().all(|chunk| chunk.left > 0);
        let (returned, receipt) = self.take(both.then_some(0), at);
        let beside = self.take_expired(at);
        let held = self.left();
        let want = size.min(self.fair(wanted.pool, held)).min(wanted.limit.capacity());
        if want == 0 && returned == 0 && beside.is_none() {
            return None;
        }
        let (owned, pool) = (Arc::clone(&self.owned), wanted.pool);
        Some(self.depart(Plan { owned, want, least: 0, returned, receipt, held, pool, beside }))
    }

    /// Half of what others leave of the pool, less what is held: nodes that all do so end up with
    /// equal parts.
    fn fair(&self, pool: u64, held: u64) -> u64 {
        pool.saturating_sub(self.others).div_ceil(2).saturating_sub(held)
    }

    /// Takes what is left of a chunk, to return it with a fetch.
    fn take(&mut self, index: Option<usize>, at: Nanos) -> (u64, Receipt) {
        let limit = &self.owned.limit;
        let Some(chunk) = index.and_then(|index| self.chunks.get_mut(index)) else {
            return (0, Receipt::Nothing);
        };
        let rest = chunk.rest(limit, at).map(|_| (chunk.left, chunk.receipt));
        if rest.is_none() {
            self.lapsed += chunk.left;
        }
        *chunk = Chunk::NONE;
        rest.unwrap_or((0, Receipt::Nothing))
    }

    /// Takes what can no longer be spent.
    fn take_expired(&mut self, at: Nanos) -> Option<Receipt> {
        let limit = &self.owned.limit;
        let is_expired = |chunk: &&mut Chunk| chunk.left > 0 && !chunk.may_spend(1, at);
        let chunk = self.chunks.iter_mut().find(is_expired)?;
        let rest = chunk.rest(limit, at);
        if rest.is_none() {
            self.lapsed += chunk.left;
        }
        *chunk = Chunk::NONE;
        rest
    }

    /// What has become worth nothing since it was last asked.
    pub(super) const fn take_lapsed(&mut self) -> u64 {
        std::mem::replace(&mut self.lapsed, 0)
    }

    /// From here on until the flight has landed, the record may be as low as what was told.
    fn depart(&mut self, plan: Plan) -> Fetch {
        let flight = Arc::new(Flight::new());
        self.recorded = plan.held;
        self.expected = plan.want.saturating_sub(plan.least);
        self.flight = Some(Arc::clone(&flight));
        Fetch { flight, plan }
    }

    /// A fetch that returns all there is, or as much as is asked for: nothing is taken.
    pub(super) fn retreat(&mut self, at: Nanos) -> Option<Fetch> {
        if self.flight.is_some() {
            return None;
        }
        let first = self.chunks.iter().position(|chunk| chunk.left > 0)?;
        let (returned, receipt) = self.take(Some(first), at);
        let second = self.chunks.iter().position(|chunk| chunk.left > 0);
        let beside = second.and_then(|index| {
            let (cost, receipt) = self.take(Some(index), at);
            (cost > 0).then(|| self.owned.limit.part_of(&receipt, cost, 0))
        });
        if returned == 0 && beside.is_none() {
            return None;
        }
        let owned = Arc::clone(&self.owned);
        let plan = Plan { owned, want: 0, least: 0, returned, receipt, held: 0, pool: 0, beside };
        Some(self.depart(plan))
    }

    /// Everything that is left, as receipts: the lease is given up because the limit changed.
    pub(super) fn surrender(&mut self, at: Nanos) -> impl Iterator<Item = Receipt> + use<> {
        let chunks = std::mem::replace(&mut self.chunks, [Chunk::NONE; 2]);
        let owned = Arc::clone(&self.owned);
        chunks.into_iter().filter_map(move |chunk| chunk.rest(&owned.limit, at))
    }

    /// What is left is worth nothing: the counter was made as new.
    pub(super) fn forget(&mut self) {
        self.chunks = [Chunk::NONE; 2];
        self.refusal = None;
        self.seen = Status::default();
    }

    /// There may be room again.
    pub(super) const fn forget_refusal(&mut self) {
        self.refusal = None;
    }

    /// Takes a piece back, if it can be spent again. The record must cover it.
    pub(super) fn put_back(&mut self, limit: &Limit, receipt: &Receipt) -> bool {
        // Whatever is given back, there may be room again.
        self.refusal = None;
        let most = self.recorded.saturating_sub(self.left());
        // What is on its way needs a place to land: an empty chunk stays so.
        let keeps_empty = self.flight.is_some();
        self.owned.is_under(limit)
            && self.chunks.iter_mut().rev().any(|chunk| {
                (chunk.left > 0 || !keeps_empty) && chunk.put_back(limit, receipt, most)
            })
    }

    /// What the store answered to a fetch.
    pub(super) fn land(
        &mut self,
        plan: &Plan,
        answer: &Result<LeaseGrant, StoreError>,
        options: &LeaseOptions,
        figures: &LeaseFigures,
    ) -> Landing {
        (self.flight, self.expected) = (None, 0);
        LeaseFigures::add(&figures.lost, self.take_lapsed());
        let grant = match answer {
            Ok(grant) => grant,
            Err(error) => return Landing::Failed(*error),
        };
        let limit = &plan.owned.limit;
        (self.others, self.seen) = (grant.others, grant.outcome.status);
        if grant.granted == 0 {
            return self.refused(plan, grant, options, figures);
        }
        self.refusal = None;
        let wait = match grant.outcome.examination {
            Examination::Admit { wait } => wait,
            Examination::Refuse { .. } => 0,
        };
        let chunk = Chunk::new(
            limit,
            grant.outcome.receipt,
            grant.granted,
            plan.least,
            (grant.at, wait),
            grant.expires_at.saturating_sub(options.margin),
        );
        if chunk.left > 0 {
            self.prefetch_at = 0;
        }
        let piece = chunk.piece(limit, plan.least, grant.at);
        // One chunk at most was left by the plan.
        if let Some(slot) = self.chunks.iter_mut().find(|chunk| chunk.left == 0) {
            *slot = chunk;
        }
        self.chunks.sort_by_key(|chunk| chunk.expires_at);
        self.recorded = plan.held.saturating_add(chunk.left);
        if plan.least == 0 {
            return Landing::Nothing;
        }
        let examination = Examination::Admit { wait: piece.wait };
        let status = self.status(limit, grant.at);
        Landing::Granted(Outcome { examination, status, receipt: piece.receipt })
    }

    fn refused(
        &mut self,
        plan: &Plan,
        grant: &LeaseGrant,
        options: &LeaseOptions,
        figures: &LeaseFigures,
    ) -> Landing {
        if plan.least == 0 {
            return Landing::Nothing;
        }
        LeaseFigures::add(&figures.refused, 1);
        self.strayed.under(grant.others, plan.owned.limit.quota());
        let outcome = Outcome {
            status: self.status(&plan.owned.limit, grant.at),
            receipt: Receipt::Nothing,
            ..grant.outcome
        };
        let again = match outcome.examination {
            Examination::Refuse { retry_at: Some(at) } => at,
            _ => Nanos::MAX,
        };
        let until = again.min(grant.at.saturating_add(options.refusal));
        self.refusal = Some(Refusal { cost: plan.least, until, outcome });
        Landing::Refused(outcome)
    }
}
