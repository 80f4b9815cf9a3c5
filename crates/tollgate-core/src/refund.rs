//! Refundable charges, and giving charges back.

use crate::state::{Ask, Receipt, Refundable, Small, State};
use crate::{Bucket, LATEST, Limit, Nanos, OpenBucket, Span};

impl Limit {
    /// Whether a charge needs an entry in the list of a bucket's refundable charges.
    #[inline]
    pub fn opens_charge(&self, ask: &Ask) -> bool {
        ask.refundable != Refundable::No && ask.cost > 0 && self.algorithm().is_bucket()
    }

    pub(crate) fn charge_open(&self, open: &mut OpenBucket, ask: &Ask, now: Nanos) -> Receipt {
        open.adopt(self.pace(), now);
        let at = open.charge(self.pace(), self.pace().span_of(ask.cost), ask.refundable, now);
        if self.opens_charge(ask) {
            Receipt::Open { at, cost: ask.cost }
        } else {
            Receipt::Bucket { at, cost: ask.cost }
        }
    }

    /// A list that is empty is no longer kept.
    pub(crate) fn drop_empty_list(state: &mut State) {
        if let State::Open(open) = state
            && open.charges().is_empty()
        {
            *state = State::Small(Small::Bucket(open.bucket()));
        }
    }

    /// A bucket with refundable charges, as callers see it: its arrival time.
    #[inline]
    pub(crate) fn seen(&self, open: &OpenBucket) -> Small {
        self.adopt(Small::Bucket(open.bucket()))
    }

    /// Undoes a charge: exactly when nothing has happened since, and never leaving more room than
    /// if the charge had not been made. Returns how much of the charge is undone: nothing where the counter no longer holds
    /// it.
    pub fn give_back(&self, state: &mut State, receipt: &Receipt, now: Nanos) -> u64 {
        let now = now.min(LATEST);
        match (state, receipt) {
            (State::Small(small), _) => self.give_back_small(small, receipt, now),
            (State::Log(log), Receipt::Log { at, cost }) => {
                let returned = log.give_back(*at, *cost);
                if now < at.saturating_add(self.window_nanos()) { returned } else { 0 }
            }
            (State::Slots(slots), Receipt::Slot(id)) => {
                slots.release(*id);
                0
            }
            (state @ State::Open(_), Receipt::Open { at, cost }) => {
                let span = self.pace().span_of(*cost);
                let refund = |open: &mut OpenBucket| open.refund(*at, span);
                self.change_open(state, *cost, now, |open| open.has_entry(*at), refund)
            }
            (state @ State::Open(_), Receipt::Bucket { at, cost }) => {
                let span = self.pace().span_of(*cost);
                let undo = |open: &mut OpenBucket| open.undo_final(span, now);
                self.change_open(state, *cost, now, |open| *at == open.instant(now), undo)
            }
            (state @ State::Open(_), Receipt::LatestOfBucket { cost }) => {
                let span = self.pace().span_of(*cost);
                let refund = |open: &mut OpenBucket| open.refund_latest(span, now);
                self.change_open(state, *cost, now, |_| true, refund)
            }
            _ => 0,
        }
    }

    /// Makes a refundable charge final, or the part of it that the receipt is of.
    pub fn close(&self, state: &mut State, receipt: &Receipt, now: Nanos) {
        if let Receipt::Open { at, cost } = *receipt {
            let close = |open: &mut OpenBucket| open.close(at, self.pace().span_of(cost));
            self.change_open(state, cost, now.min(LATEST), |open| open.has_entry(at), close);
        }
    }

    /// Changes a list that the receipt applies to. Any other one stays as it is, the rounding of its entries included.
    /// Returns what the bucket is less occupied by.
    fn change_open(
        &self,
        state: &mut State,
        cost: u64,
        now: Nanos,
        applies: impl FnOnce(&OpenBucket) -> bool,
        change: impl FnOnce(&mut OpenBucket),
    ) -> u64 {
        let State::Open(open) = state else { return 0 };
        if !applies(open) {
            return 0;
        }
        open.adopt(self.pace(), now);
        let ahead =
            |open: &OpenBucket| open.bucket().tat.minus(Span::whole(now), self.pace().denominator);
        let before = ahead(open);
        change(open);
        let returned = before.minus(ahead(open), self.pace().denominator);
        Self::drop_empty_list(state);
        self.part_of(cost, returned)
    }

    /// The part of a cost that was given back, in whole units, rounded up as [`crate::Status::used`] is.
    fn part_of(&self, cost: u64, returned: Span) -> u64 {
        // A suspended bucket has no pace: no cost takes any time.
        if self.quota() == 0 {
            return 0;
        }
        smallest_part(cost, |part| self.pace().span_of(part) >= returned)
    }

    /// [`Limit::give_back`] for fixed-size states.
    pub fn give_back_small(&self, state: &mut Small, receipt: &Receipt, now: Nanos) -> u64 {
        let now = now.min(LATEST);
        let by_bucket = |state: &mut Bucket, cost: u64| {
            let returned = state.give_back(self, cost, now);
            self.part_of(cost, returned)
        };
        match (state, receipt) {
            (Small::Fixed(state), Receipt::Window { end, cost, .. }) => {
                let returned = state.give_back(*end, *cost);
                if now < *end { returned } else { 0 }
            }
            (Small::Sliding(state), Receipt::Window { end, cost, .. }) => {
                let returned = state.give_back(self, *end, *cost);
                if now < end.saturating_add(self.window_nanos()) { returned } else { 0 }
            }
            (Small::Bucket(state), Receipt::Bucket { at, cost }) if *at == now => {
                by_bucket(state, *cost)
            }
            (Small::Bucket(state), Receipt::LatestOfBucket { cost }) => by_bucket(state, *cost),
            _ => 0,
        }
    }
}

/// The smallest part of a cost that covers something, where all larger ones cover it too; all of it if none does.
pub fn smallest_part(cost: u64, covers: impl Fn(u64) -> bool) -> u64 {
    if covers(0) {
        return 0;
    }
    let (mut low, mut high) = (0, cost);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if covers(middle) { high = middle } else { low = middle }
    }
    high
}
