//! When a lease fetches, and how much.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Nanos, Receipt};

use super::{Chunk, Fetch, Lease, MAX_CHUNKS, Plan, RESIZE_INTERVAL, Reserved, Wanted};
use crate::leased::flight::Flight;
use crate::leased::sizing::{Sizing, Terms};

impl Lease {
    /// Sizes the lease by what is asked for now and by how far the store is.
    #[cold]
    pub(super) fn resize(&mut self, at: Nanos, terms: &Terms<'_>) {
        self.sizing = Sizing::new(self.demand.rate(at), self.demand.largest(), terms);
        self.resize_at = at.saturating_add(RESIZE_INTERVAL);
        let seen = self.demand.in_window();
        self.resize_after = seen.saturating_add(seen / 4).saturating_add(4);
        self.renew_at = self.next_renewal();
    }

    /// When the first chunk must be renewed.
    pub(super) fn next_renewal(&self) -> Nanos {
        let (limit, within) = (&self.owned.limit, self.sizing.renew_within);
        let holding = self.chunks.iter().filter(|chunk| chunk.left > 0);
        holding.map(|chunk| chunk.renew_at(limit, within)).min().unwrap_or(Nanos::MAX)
    }

    /// What serves requests until a fetch has landed: neither too small for them, nor of a window that
    /// is over, nor about to expire.
    fn spendable(&self, at: Nanos, terms: &Terms<'_>) -> u64 {
        let landed = at.saturating_add(terms.distance.high());
        let largest = self.demand.largest();
        let serves = |chunk: &&Chunk| {
            chunk.may_spend(largest, at)
                && landed < chunk.expires_at
                && !chunk.is_worthless(&self.owned.limit, at)
        };
        self.chunks.iter().filter(serves).map(|chunk| chunk.left).sum()
    }

    /// A fetch for a charge that nothing at hand can serve.
    #[cold]
    pub(super) fn fetch(&mut self, wanted: &Wanted<'_>, at: Nanos, terms: &Terms<'_>) -> Reserved {
        if let Some(outcome) = self.remembered(wanted.cost, at) {
            return Reserved::Refused(outcome);
        }
        if let Some(flight) = &self.flight {
            // The refusal is being looked at again by somebody who waits for it.
            if let Some(refusal) = &self.refusal
                && refusal.cost <= wanted.cost
                && at < refusal.retry_at
            {
                return Reserved::Refused(refusal.outcome);
            }
            // A flight that is full already is not worth waiting for: the shared counter decides
            // many at once.
            let Some(expected) = self.expected.checked_sub(wanted.cost) else {
                return Reserved::PassOn;
            };
            self.expected = expected;
            return Reserved::Wait(Arc::clone(flight));
        }
        self.resize(at, terms);
        if self.left() == 0 && self.is_not_worth_it(wanted, at) {
            return Reserved::PassOn;
        }
        self.fetch_at = at.saturating_add(terms.options.horizon);
        // What is here is too little: it goes back in the same step, so that it does not stand in
        // its own way.
        let mut further = self.take_all(at);
        let (returned, receipt) = further.pop().unwrap_or((0, Receipt::Nothing));
        let sizing = self.sizing;
        let ahead = sizing.target.saturating_add(sizing.in_transit);
        let ahead = ahead.min(self.fair(wanted.pool, 0));
        let least = wanted.cost;
        let want = least.saturating_add(ahead).min(wanted.limit.capacity()).max(least);
        let plan = Plan {
            owned: Arc::clone(&self.owned),
            want,
            least,
            returned,
            receipt,
            held: 0,
            pool: wanted.pool,
            closes: self.take_kept(),
            further: Self::receipts(&further),
            sizing,
        };
        Reserved::Fetch(self.depart(plan, at))
    }

    /// Nothing would be taken ahead: requests are too rare, or others have the pool, which is
    /// looked at again now and then. The shared counter decides such charges many at once.
    fn is_not_worth_it(&self, wanted: &Wanted<'_>, at: Nanos) -> bool {
        self.is_rare(wanted.cost) || (self.fair(wanted.pool, 0) == 0 && at < self.fetch_at)
    }

    /// Fewer than one request of this cost comes in the time that a lease is worth while.
    fn is_rare(&self, cost: u64) -> bool {
        self.sizing.in_horizon < cost || !self.demand.is_repeated(cost)
    }

    /// A fetch ahead of need: what is left would not last until it lands, or will expire.
    #[inline]
    pub(super) fn prefetch(
        &mut self,
        wanted: &Wanted<'_>,
        at: Nanos,
        terms: &Terms<'_>,
    ) -> Option<Fetch> {
        let is_due = (self.left() < self.sizing.refetch_below || at >= self.renew_at)
            && self.flight.is_none()
            && at >= self.prefetch_at;
        if is_due { self.prefetch_now(wanted, at, terms) } else { None }
    }

    #[cold]
    fn prefetch_now(&mut self, wanted: &Wanted<'_>, at: Nanos, terms: &Terms<'_>) -> Option<Fetch> {
        self.resize(at, terms);
        if self.is_rare(wanted.cost) {
            return None;
        }
        let sizing = self.sizing;
        let spendable = self.spendable(at, terms);
        let mut further = self.take_if(at, |chunk| chunk.is_expired(at));
        self.renew_at = self.next_renewal();
        let is_renewal = at >= self.renew_at;
        let is_low = spendable < sizing.refetch_below;
        let missing = if is_low {
            sizing.target.saturating_add(sizing.in_transit).saturating_sub(spendable)
        } else {
            0
        };
        let want = missing.min(self.fair(wanted.pool, self.left())).min(wanted.limit.capacity());
        if want == 0 && further.is_empty() && !is_renewal {
            // Others have the pool; as this node spends, it may ask for more.
            self.prefetch_at = at.saturating_add(terms.options.horizon / 8);
            return None;
        }
        self.prefetch_at = at.saturating_add(terms.options.horizon);
        let given_up = if want > 0 { self.make_place(at) } else { None };
        let (returned, receipt) =
            given_up.or_else(|| further.pop()).unwrap_or((0, Receipt::Nothing));
        let plan = Plan {
            owned: Arc::clone(&self.owned),
            want,
            least: 0,
            returned,
            receipt,
            held: self.left(),
            pool: wanted.pool,
            closes: self.take_kept(),
            further: Self::receipts(&further),
            sizing,
        };
        Some(self.depart(plan, at))
    }

    /// Half of what others leave of the pool, less what is held: nodes that all do so end up with
    /// equal parts.
    fn fair(&self, pool: u64, held: u64) -> u64 {
        pool.saturating_sub(self.others).div_ceil(2).saturating_sub(held)
    }

    /// Takes the smallest rest if there is no place for another chunk.
    fn make_place(&mut self, at: Nanos) -> Option<(u64, Receipt)> {
        if self.chunks.iter().any(|chunk| chunk.left == 0) {
            return None;
        }
        let smallest = self.chunks.iter().map(|chunk| chunk.left).min()?;
        let mut is_found = false;
        let mut taken = self.take_if(at, |chunk| {
            let is_it = !is_found && chunk.left == smallest;
            is_found |= is_it;
            is_it
        });
        taken.pop()
    }

    /// Takes what is left of all chunks, to return it: the amount and the receipt of each.
    fn take_all(&mut self, at: Nanos) -> Taken {
        self.take_if(at, |chunk| chunk.left > 0)
    }

    /// Takes what is left of some chunks. What is worth nothing any more is counted and dropped.
    fn take_if(&mut self, at: Nanos, mut is_taken: impl FnMut(&Chunk) -> bool) -> Taken {
        let limit = &self.owned.limit;
        let mut taken = Taken::new();
        for chunk in &mut self.chunks {
            if chunk.left == 0 || !is_taken(chunk) {
                continue;
            }
            if chunk.rest(limit, at).is_some() {
                taken.push((chunk.left, chunk.receipt));
            } else {
                self.lapsed += chunk.left;
            }
            self.closing.extend(chunk.take_kept());
            *chunk = Chunk::NONE;
        }
        taken
    }

    /// The receipts of what was taken off chunks.
    fn receipts(taken: &[(u64, Receipt)]) -> SmallVec<[Receipt; MAX_CHUNKS]> {
        taken.iter().map(|(cost, receipt)| receipt.part(*cost)).collect()
    }

    /// From here on until the flight has landed, the record may be as low as what is held.
    fn depart(&mut self, plan: Plan, at: Nanos) -> Fetch {
        let flight = Arc::new(Flight::new());
        self.demand.fetches(at);
        self.recorded = plan.held;
        self.expected = plan.want.saturating_sub(plan.least);
        self.flight = Some(Arc::clone(&flight));
        Fetch { flight, plan }
    }

    /// A fetch that takes nothing and returns everything.
    pub(in crate::leased) fn retreat(&mut self, at: Nanos) -> Option<Fetch> {
        self.give_back_if(at, |_| true)
    }

    /// A fetch that takes nothing and returns what can no longer be spent.
    pub(in crate::leased) fn return_expired(&mut self, at: Nanos) -> Option<Fetch> {
        self.give_back_if(at, |chunk| chunk.is_expired(at))
    }

    fn give_back_if(&mut self, at: Nanos, is_taken: impl FnMut(&Chunk) -> bool) -> Option<Fetch> {
        if self.flight.is_some() {
            return None;
        }
        let mut further = self.take_if(at, is_taken);
        let (returned, receipt) = further.pop()?;
        let plan = Plan {
            owned: Arc::clone(&self.owned),
            want: 0,
            least: 0,
            returned,
            receipt,
            held: self.left(),
            pool: 0,
            closes: self.take_kept(),
            further: Self::receipts(&further),
            sizing: self.sizing,
        };
        Some(self.depart(plan, at))
    }
}

/// Amounts that were taken off chunks, and those chunks' receipts.
type Taken = SmallVec<[(u64, Receipt); MAX_CHUNKS]>;
