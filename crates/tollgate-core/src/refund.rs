//! Refundable charges, and giving charges back.

use crate::state::{Ask, Receipt, Refundable, Small, State};
use crate::{LATEST, Limit, Nanos, OpenBucket};

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
    /// if the charge had not been made.
    pub fn give_back(&self, state: &mut State, receipt: &Receipt, now: Nanos) {
        let now = now.min(LATEST);
        match (state, receipt) {
            (State::Small(small), _) => self.give_back_small(small, receipt, now),
            (State::Log(log), Receipt::Log { at, cost }) => log.give_back(*at, *cost),
            (State::Slots(slots), Receipt::Slot(id)) => {
                slots.release(*id);
            }
            (state @ State::Open(_), Receipt::Open { at, cost }) => {
                let refund = |open: &mut OpenBucket| open.refund(*at, self.pace().span_of(*cost));
                self.change_open(state, now, |open| open.has_entry(*at), refund);
            }
            (state @ State::Open(_), Receipt::Bucket { at, cost }) => {
                let undo = |open: &mut OpenBucket| {
                    open.undo_final(self.pace().span_of(*cost), now);
                };
                self.change_open(state, now, |open| *at == open.instant(now), undo);
            }
            (state @ State::Open(_), Receipt::LatestOfBucket { cost }) => {
                let refund = |open: &mut OpenBucket| {
                    open.refund_latest(self.pace().span_of(*cost), now);
                };
                self.change_open(state, now, |_| true, refund);
            }
            _ => {}
        }
    }

    /// Makes a refundable charge final, or the part of it that the receipt is of.
    pub fn close(&self, state: &mut State, receipt: &Receipt, now: Nanos) {
        if let Receipt::Open { at, cost } = *receipt {
            let close = |open: &mut OpenBucket| open.close(at, self.pace().span_of(cost));
            self.change_open(state, now.min(LATEST), |open| open.has_entry(at), close);
        }
    }

    /// Changes a list that the receipt applies to. Any other one stays as it is, the rounding of its entries included.
    fn change_open(
        &self,
        state: &mut State,
        now: Nanos,
        applies: impl FnOnce(&OpenBucket) -> bool,
        change: impl FnOnce(&mut OpenBucket),
    ) {
        let State::Open(open) = state else { return };
        if applies(open) {
            open.adopt(self.pace(), now);
            change(open);
            Self::drop_empty_list(state);
        }
    }

    /// [`Limit::give_back`] for fixed-size states.
    pub fn give_back_small(&self, state: &mut Small, receipt: &Receipt, now: Nanos) {
        let now = now.min(LATEST);
        match (state, receipt) {
            (Small::Fixed(state), Receipt::Window { end, cost, .. }) => {
                state.give_back(*end, *cost);
            }
            (Small::Sliding(state), Receipt::Window { end, cost, .. }) => {
                state.give_back(self, *end, *cost);
            }
            (Small::Bucket(state), Receipt::Bucket { at, cost }) if *at == now => {
                state.give_back(self, *cost, now);
            }
            (Small::Bucket(state), Receipt::LatestOfBucket { cost }) => {
                state.give_back(self, *cost, now);
            }
            _ => {}
        }
    }
}
