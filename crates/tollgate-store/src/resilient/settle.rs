//! Settlements: what waits to be reported is taken off that, the rest is the store's. Where that does
//! not answer, the settlement is kept and tried again under its id, which the store knows if it had
//! taken it after all.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::Nanos;

use super::Resilient;
use super::heal::MOST_IN_VAIN;
use super::outage::{Extent, extent};
use crate::leased::key::Owned;
use crate::{Adjustment, Applied, Change, GiveBack, Settlement, SharedStore, StoreError};

/// So many settlements wait for the store; beyond, whoever settles is told that it does not answer.
const MOST_SETTLEMENTS: usize = 10_000;

/// The store may have taken it when it was first tried, and may forget that so long before we think:
/// the two have different clocks.
const MARGIN: Nanos = 10 * tollgate_core::SECOND;

/// A settlement that the store has not taken.
pub(super) struct Kept {
    id: u128,
    remember: Nanos,
    /// From then on the store may have forgotten that it took it.
    until: Nanos,
    adjustments: Vec<(Owned, Change)>,
}

impl<S: SharedStore> Resilient<S> {
    pub(super) async fn settle_or_keep(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Applied, StoreError> {
        let at = self.inner.clock(now);
        let until = at.saturating_add(settlement.remember);
        // What was taken off the reports is noted, so that a repeated call leaves the same to the store.
        let (taken, is_first) =
            self.settled.run(settlement.id, until, at, || self.take_off(settlement, at));
        let rest: SmallVec<[Adjustment<'_>; 8]> = settlement
            .adjustments
            .iter()
            .enumerate()
            .filter(|(place, _)| !is_in(taken, *place))
            .map(|(_, adjustment)| *adjustment)
            .collect();
        let here = if taken > 0 && is_first { Applied::Now } else { Applied::Before };
        if rest.is_empty() {
            return Ok(here);
        }
        let asked = Settlement { adjustments: &rest, ..*settlement };
        match self.inner.settle(&asked, now).await {
            Ok(applied) => Ok(here.and(applied)),
            Err(error) if extent(error.failure) == Extent::Store && self.keep(&asked, until) => {
                Ok(Applied::Later)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes what is given back off what waits to be reported. A bit for every place that was.
    fn take_off(&self, settlement: &Settlement<'_>, at: Nanos) -> u64 {
        let mut taken = 0;
        for (place, adjustment) in settlement.adjustments.iter().enumerate() {
            let Adjustment { counter, limit, change: Change::GiveBack(receipt) } = *adjustment
            else {
                continue;
            };
            let fingerprint = self.fingerprints.of(&counter);
            if place < 64 && self.reports.take_back(fingerprint, &receipt, at) {
                let share = self.share(limit);
                self.memory().give_back_now(&GiveBack { counter, limit: &share, receipt }, at);
                taken |= 1 << place;
            }
        }
        taken
    }

    /// Keeps a settlement for later. False if there is no room.
    fn keep(&self, settlement: &Settlement<'_>, until: Nanos) -> bool {
        let mut waiting = self.settlements.lock();
        if waiting.iter().any(|kept| kept.id == settlement.id) {
            return true;
        }
        if waiting.len() >= MOST_SETTLEMENTS {
            return false;
        }
        let own = |adjustment: &Adjustment<'_>| {
            (Owned::new(&adjustment.counter, adjustment.limit), adjustment.change)
        };
        waiting.push(Arc::new(Kept {
            id: settlement.id,
            remember: settlement.remember,
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
            let settled =
                if is_late { Ok(Applied::Before) } else { self.try_again(&kept, now).await };
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
            if in_vain >= MOST_IN_VAIN {
                break;
            }
        }
        in_vain == 0
    }

    async fn try_again(&self, kept: &Kept, now: Nanos) -> Result<Applied, StoreError> {
        let parts: Vec<_> = kept.adjustments.iter().map(|(owned, _)| owned.parts()).collect();
        let adjustments: SmallVec<[Adjustment<'_>; 8]> = kept
            .adjustments
            .iter()
            .zip(&parts)
            .map(|((owned, change), parts)| Adjustment {
                counter: owned.counter(parts),
                limit: &owned.limit,
                change: *change,
            })
            .collect();
        let Kept { id, remember, .. } = *kept;
        self.inner.settle(&Settlement { id, remember, adjustments: &adjustments }, now).await
    }

    /// How many settlements wait for the store.
    pub fn waiting_settlements(&self) -> usize {
        self.settlements.lock().len()
    }
}

const fn is_in(taken: u64, place: usize) -> bool {
    place < 64 && taken >> place & 1 == 1
}
