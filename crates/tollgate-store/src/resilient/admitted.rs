//! What was admitted of one counter without the store, and how much of it the store would still count.
//!
//! **Buckets.** The store's bucket refills during the outage too, and must not be refilled a second time by
//! the report. With `a` admitted here and the share at level `s`, usage from before the outage included,
//! `min(a, s)` is reported: all of `a` while the store still counts usage from before, all of `s` once it
//! counts none. In both cases the sum is the level that the store would have with all charges in time.
//! Where another node has reported before, the store has refilled for this node as well: what this share
//! refilled during the time that nodes wait for each other ([`MAX_HANDOVER`]) is not deducted, as far as the
//! store's bucket has room.

use std::sync::Arc;

use tollgate_core::{
    Algorithm, Ask, Limit, LimitSpec, Nanos, Receipt, Slot, SlotId, Slots, Small, Span, Status,
};

use super::handover::MAX_HANDOVER;
use super::report::Trip;
use crate::Counter;
use crate::leased::key::Owned;

/// What is to be reported of one counter.
pub(super) struct Report {
    pub(super) owned: Arc<Owned>,
    /// The limit by which the amount wears off.
    pub(super) wears: Limit,
    /// What was admitted and not sent; of a bucket, how full the share is.
    pub(super) waiting: Small,
    /// What was admitted to a bucket and not sent, without what it had drained when it was last empty.
    admitted: u64,
    /// For so long other nodes may have been back: the store's bucket refilled, and this share's did too.
    ahead: Nanos,
    /// What is being sent.
    pub(super) sent: u64,
    /// The slots that were taken.
    pub(super) slots: Slots,
    /// The attempt to report it that is under way.
    pub(super) trip: Option<Arc<Trip>>,
}

impl Report {
    pub(super) fn new(counter: &Counter<'_>, limit: &Limit, share: &Limit) -> Self {
        let wears = wears_off_by(limit, share);
        Self {
            owned: Arc::new(Owned::new(counter, limit)),
            waiting: wears.fresh_small(),
            admitted: 0,
            ahead: if share.quota() < limit.quota() { MAX_HANDOVER } else { 0 },
            wears,
            sent: 0,
            slots: Slots::default(),
            trip: None,
        }
    }

    /// What the store would still count of what waits.
    fn worth(&self, at: Nanos) -> u64 {
        match self.waiting {
            // Of a log, windows of this size are kept instead of entries: too much is reported
            // rather than too little.
            Small::Sliding(counts)
                if self.owned.limit.algorithm() != Algorithm::SlidingWindowCounter =>
            {
                let previous = if at < counts.end { counts.previous } else { 0 };
                let is_over = at >= counts.end.saturating_add(self.wears.window_nanos());
                if is_over { 0 } else { counts.current.saturating_add(previous) }
            }
            Small::Bucket(_) => self.level(at).min(self.admitted),
            state => self.wears.status_small(&state, at).used,
        }
    }

    /// How full the share's bucket is.
    fn level(&self, at: Nanos) -> u64 {
        self.wears.status_small(&self.waiting, at).used
    }

    /// What is to be reported: what a bucket refilled while others may have been back is not deducted.
    fn due(&self, at: Nanos) -> u64 {
        self.worth(if self.is_bucket() { at.saturating_sub(self.ahead) } else { at })
    }

    fn is_bucket(&self) -> bool {
        self.wears.algorithm().is_bucket()
    }

    pub(super) fn is_empty(&self, at: Nanos) -> bool {
        self.trip.is_none() && self.slots.fresh_at() <= at && self.due(at) == 0
    }

    /// Adds a charge. `empty_at`: when the share's bucket is empty after it.
    pub(super) fn add(&mut self, ask: &Ask, empty_at: Nanos, at: Nanos) {
        if self.owned.limit.holds_slots() {
            self.hold(ask.slot, at.saturating_add(self.owned.limit.slot_ttl_of(ask)), at);
            return;
        }
        if self.is_bucket() && self.due(at) == 0 {
            self.admitted = 0;
        }
        self.admitted = self.admitted.saturating_add(ask.cost);
        self.wears.charge_small(&mut self.waiting, ask.cost, at);
        if let Small::Bucket(bucket) = &mut self.waiting {
            bucket.tat = bucket.tat.max(Span::whole(empty_at));
        }
    }

    /// Takes what waits, to send it to a store that counts so much already. A bucket that counts more than its
    /// burst may count what other nodes did not deduct: that much is not charged beyond the burst.
    pub(super) fn take(&mut self, counted: u64, at: Nanos) -> u64 {
        let (due, worth) = (self.due(at), self.worth(at));
        if !self.is_bucket() {
            (self.sent, self.waiting) = (due, self.wears.fresh_small());
            return due;
        }
        self.sent = std::mem::take(&mut self.admitted);
        let limit = &self.owned.limit;
        let owed = self.level(at).saturating_sub(self.wears.capacity());
        let room = limit.capacity().saturating_sub(counted).saturating_add(owed);
        let ahead =
            Status { used: u64::MAX, remaining: 0, reset_at: at.saturating_add(self.ahead) };
        // Rounded down: a slow bucket has refilled nothing.
        let refilled = limit.used_later(&ahead, at).saturating_sub(1);
        due.min(room.max(worth.saturating_sub(refilled)))
    }

    /// What was sent did not arrive, and waits again.
    pub(super) fn put_back(&mut self, at: Nanos) {
        let sent = std::mem::take(&mut self.sent);
        if self.is_bucket() {
            self.admitted = self.admitted.saturating_add(sent);
        } else if sent > 0 {
            self.wears.charge_small(&mut self.waiting, sent, at);
        }
    }

    /// What the store does not count yet: it waits, or is on its way.
    pub(super) fn unreported(&self, at: Nanos) -> u64 {
        if self.is_bucket() {
            self.level(at).min(self.admitted.saturating_add(self.sent))
        } else {
            self.worth(at).saturating_add(self.sent)
        }
    }

    pub(super) fn hold(&mut self, id: SlotId, expires_at: Nanos, at: Nanos) {
        let others = self.slots.iter().filter(|slot| slot.id != id && slot.expires_at > at);
        self.slots = Slots::from_slots(others.copied().chain([Slot { id, expires_at }]));
    }

    /// Takes a charge off what waits, from its own window only, or as much of it as still occupies a bucket. False if it is
    /// not part of what waits.
    pub(super) fn take_back(&mut self, receipt: &Receipt, at: Nanos) -> bool {
        let cost = receipt.cost();
        if cost == 0 || self.worth(at) < cost {
            return false;
        }
        let receipt = match (&self.waiting, *receipt) {
            (Small::Bucket(_), _) => {
                Receipt::LatestOfBucket { cost: self.least_occupied(receipt, at) }
            }
            (_, Receipt::Window { end, .. }) => Receipt::Window { end, at, cost },
            // Of a log, windows are kept instead of entries.
            (_, Receipt::Log { at: charged_at, .. }) => {
                Receipt::Window { end: self.wears.window_bounds(charged_at).1, at, cost }
            }
            _ => return false,
        };
        if let Receipt::Window { end, .. } = receipt
            && self.waits_in(end) < cost
        {
            return false;
        }
        self.wears.give_back_small(&mut self.waiting, &receipt, at);
        self.admitted = self.admitted.saturating_sub(receipt.cost());
        true
    }

    /// What waits of the window with this end.
    fn waits_in(&self, end: Nanos) -> u64 {
        match self.waiting {
            Small::Fixed(window) if window.end == end => window.count,
            Small::Sliding(counts) if counts.end == end => counts.current,
            Small::Sliding(counts)
                if counts.end == end.saturating_add(self.wears.window_nanos()) =>
            {
                counts.previous
            }
            _ => 0,
        }
    }

    /// What a charge to a bucket occupies at least, whatever was charged after it: the bucket was never lower since than its
    /// cost less what has drained. A refund of that much mints nothing.
    fn least_occupied(&self, receipt: &Receipt, at: Nanos) -> u64 {
        let cost = receipt.cost();
        match receipt.charged_at() {
            Some(charged_at) if charged_at < at => {
                let mut alone = self.wears.fresh_small();
                self.wears.charge_small(&mut alone, cost, charged_at);
                // Rounded up: a part of a unit has drained.
                self.wears.status_small(&alone, at).used.saturating_sub(1)
            }
            _ => cost,
        }
    }
}

/// A node's admissions wear off at the pace of its share, as those of all nodes together do at the
/// pace of the whole.
fn wears_off_by(limit: &Limit, share: &Limit) -> Limit {
    let share = if share.quota() > 0 { share } else { limit };
    if limit.algorithm() != Algorithm::SlidingWindowLog {
        return share.clone();
    }
    let spec = LimitSpec {
        algorithm: Algorithm::SlidingWindowCounter,
        quota: share.quota(),
        window: share.window().clone(),
        burst: None,
        slot_ttl: 0,
    };
    Limit::new(spec).unwrap_or_else(|_| share.clone())
}
