//! Settlements: charges that this node made without the store are settled on the report that waits; all others are
//! settled on the store. Where that does not answer, the settlement is kept and tried again under its id, which the
//! store knows if it had taken it after all.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Nanos, Receipt};

use super::Resilient;
use super::heal::MAX_IN_VAIN;
use super::outage::{Extent, extent};
use crate::leased::key::Owned;
use crate::{
    Adjusted, Adjustment, Applied, Change, Failure, GiveBack, Settlement, SharedStore, StoreError,
};

/// The most settlements that wait for the store; further ones fail with the store's error.
const MAX_SETTLEMENTS: usize = 10_000;

/// The store may have taken it when it was first tried, and may forget that so long before we think:
/// the two have different clocks.
const MARGIN: Nanos = 10 * tollgate_core::SECOND;

/// A settlement that the store has not taken.
pub(super) struct Kept {
    id: u128,
    remember: Nanos,
    is_here: bool,
    /// From then on the store may have forgotten that it took it.
    until: Nanos,
    adjustments: Vec<(Owned, Change, Receipt)>,
}

impl<S: SharedStore> Resilient<S> {
    pub(super) async fn settle_or_keep(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        let at = self.inner.clock(now);
        let until = at.saturating_add(settlement.remember);
        // What was taken off the reports is noted, so that a repeated call leaves the same to the store.
        let (taken, is_first) =
            self.settled.run(settlement.id, until, at, || self.take_off(settlement, at));
        let (places, rest) = settlement.select(|place, _| !is_in(taken, place));
        // All of what was taken off a report is given back.
        let here = Adjusted {
            applied: if taken > 0 && is_first { Applied::Now } else { Applied::Before },
            ..Adjusted::due(settlement)
        };
        if rest.is_empty() {
            return Ok(here);
        }
        let all = settlement.adjustments.len();
        let with_rest = |settled| {
            let taken = (0..all).filter(|place| is_in(taken, *place)).collect::<Vec<_>>();
            let refunded = taken.iter().filter_map(|place| here.refunded.get(*place)).copied();
            let here = Adjusted { applied: here.applied, refunded: refunded.collect() };
            Adjusted::of_parts(all, [(taken, Ok(here)), (places, Ok(settled))])
        };
        let asked = Settlement { adjustments: &rest, ..*settlement };
        let settled = match self.report_before(&rest, now).await {
            Ok(()) => self.inner.settle(&asked, now).await,
            Err(failure) => Err(failure.into()),
        };
        match settled {
            Ok(adjusted) => {
                if adjusted == Applied::Now {
                    self.settle_shares(&rest, at);
                }
                with_rest(adjusted)
            }
            Err(error) if extent(error.failure) == Extent::Store && self.keep(&asked, until) => {
                with_rest(Adjusted::due(&asked))
            }
            Err(error) => Err(error),
        }
    }

    /// Reports what waits of these counters, or waits until it is reported: a refund that arrives before the
    /// report of its charge finds nothing to give back. Fails if the store does not answer.
    async fn report_before(
        &self,
        adjustments: &[Adjustment<'_>],
        now: Nanos,
    ) -> Result<(), Failure> {
        if self.reports.len() == 0 {
            return Ok(());
        }
        let counters = adjustments.iter().map(|it| self.fingerprints.of(&it.counter));
        let mut counters: SmallVec<[u128; 8]> =
            counters.filter(|fingerprint| self.reports.has(*fingerprint)).collect();
        counters.sort_unstable();
        counters.dedup();
        let reported = self.tell(&counters, now).await;
        let failures = reported.into_iter().filter_map(|(_, result)| result.err());
        let mut lost = failures.filter(|it| extent(*it) == Extent::Store);
        lost.next().map_or(Ok(()), Err)
    }

    /// Takes what is given back off what waits to be reported. Returns a bit for every place that needs no settlement
    /// on the store.
    ///
    /// A refund of a charge that is on the store must not be taken off the report: another node that repeats the
    /// settlement would refund it a second time, on the store. A slot is known by its name, so it is released in both
    /// places.
    fn take_off(&self, settlement: &Settlement<'_>, at: Nanos) -> u64 {
        let mut taken = 0;
        for (place, adjustment) in settlement.adjustments.iter().enumerate() {
            let Adjustment { counter, limit, change: Change::GiveBack(receipt), .. } = *adjustment
            else {
                continue;
            };
            let is_slot = matches!(receipt, Receipt::Slot(_));
            if place >= 64 || !(settlement.is_here || is_slot) {
                continue;
            }
            let fingerprint = self.fingerprints.of(&counter);
            if self.reports.take_back(fingerprint, &receipt, at) {
                let share = self.share(limit);
                self.memory().give_back_now(&GiveBack { counter, limit: &share, receipt }, at);
                taken |= u64::from(settlement.is_here) << place;
            }
        }
        taken
    }

    /// During a hand-over the shares have the charges too.
    fn settle_shares(&self, adjustments: &[Adjustment<'_>], at: Nanos) {
        for adjustment in adjustments {
            if let Adjustment { counter, limit, change: Change::GiveBack(receipt), .. } =
                *adjustment
            {
                self.give_back_here(&GiveBack { counter, limit, receipt }, at);
            }
        }
    }

    /// Keeps a settlement for later. False if there is no room.
    fn keep(&self, settlement: &Settlement<'_>, until: Nanos) -> bool {
        let mut waiting = self.settlements.lock();
        if waiting.iter().any(|kept| kept.id == settlement.id) {
            return true;
        }
        if waiting.len() >= MAX_SETTLEMENTS {
            return false;
        }
        let own = |adjustment: &Adjustment<'_>| {
            let Adjustment { change, closes, .. } = *adjustment;
            (Owned::new(&adjustment.counter, adjustment.limit), change, closes)
        };
        waiting.push(Arc::new(Kept {
            id: settlement.id,
            remember: settlement.remember,
            is_here: settlement.is_here,
            until: until.saturating_sub(MARGIN.min(settlement.remember / 2)),
            adjustments: settlement.adjustments.iter().map(own).collect(),
        }));
        true
    }

    /// Tries again what waits. False if the store did not take some of it.
    pub(super) async fn settle_all(&self, now: Nanos) -> bool {
        let waiting: Vec<Arc<Kept>> = self.settlements.lock().clone();
        let mut in_vain = 0;
        for kept in waiting {
            let is_late = kept.until <= self.inner.clock(now);
            let settled = if is_late { Ok(()) } else { self.try_again(&kept, now).await };
            if is_late {
                tracing::warn!(
                    "the store was away for too long: a settlement stays at its estimate"
                );
            }
            let is_lost = settled.is_err_and(|error| extent(error.failure) == Extent::Store);
            let mut waiting = self.settlements.lock();
            if let Some(place) = waiting.iter().position(|it| Arc::ptr_eq(it, &kept)) {
                let kept = waiting.remove(place);
                if is_lost {
                    // Others first, the next time.
                    waiting.push(kept);
                }
            }
            drop(waiting);
            in_vain += usize::from(is_lost);
            if in_vain >= MAX_IN_VAIN {
                break;
            }
        }
        in_vain == 0
    }

    async fn try_again(&self, kept: &Kept, now: Nanos) -> Result<(), StoreError> {
        let parts: Vec<_> = kept.adjustments.iter().map(|(owned, ..)| owned.parts()).collect();
        let adjustments: SmallVec<[Adjustment<'_>; 8]> = kept
            .adjustments
            .iter()
            .zip(&parts)
            .map(|((owned, change, closes), parts)| Adjustment {
                counter: owned.counter(parts),
                limit: &owned.limit,
                change: *change,
                closes: *closes,
            })
            .collect();
        let Kept { id, remember, is_here, .. } = *kept;
        let settlement = Settlement { id, remember, is_here, adjustments: &adjustments };
        self.inner.settle(&settlement, now).await.map(|_| ())
    }

    /// How many settlements wait for the store.
    pub fn waiting_settlements(&self) -> usize {
        self.settlements.lock().len()
    }
}

const fn is_in(taken: u64, place: usize) -> bool {
    place < 64 && taken >> place & 1 == 1
}
