//! Outages of the store, or of some of its counters: the start and the end of each are logged once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate_core::Nanos;

use super::Resilient;
use super::figures::Counts;
use crate::leased::key::Owned;
use crate::{Failure, Membership, Request, SharedStore};

/// How much is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// The store, or a server of it.
    Store,
    /// Some counters, on a store that answers.
    Counters,
}

/// What a failure says about others than the counter that it hit.
pub(super) const fn extent(failure: Failure) -> Extent {
    match failure {
        Failure::ForeignKey | Failure::Protocol => Extent::Counters,
        _ => Extent::Store,
    }
}

/// Something could not be decided, and cannot yet.
pub(super) struct Outage {
    since: Nanos,
    counts: Counts,
    /// A counter that could not be decided: when it can, it is over.
    probe: Option<Arc<Owned>>,
    /// A bit for every failure met: what begins as a timeout goes on as an open circuit.
    failures: u32,
}

/// What is lost now.
#[derive(Default)]
pub(super) struct Outages {
    store: Option<Outage>,
    /// Kept apart: a key that is never repaired must not hide that the store is lost, nor that it is
    /// back.
    counters: Option<Outage>,
}

impl Outages {
    const fn of(&mut self, extent: Extent) -> &mut Option<Outage> {
        match extent {
            Extent::Store => &mut self.store,
            Extent::Counters => &mut self.counters,
        }
    }

    /// Since when the store has been lost.
    pub(super) fn since(&self) -> Option<Nanos> {
        self.store.as_ref().map(|outage| outage.since)
    }

    pub(super) const fn is_calm(&self) -> bool {
        self.store.is_none() && self.counters.is_none()
    }

    /// The counters to look at to see whether the store, and whether the failing counters, are
    /// back.
    pub(super) fn probes(&self) -> [Option<Arc<Owned>>; 2] {
        [&self.store, &self.counters].map(|outage| outage.as_ref()?.probe.clone())
    }
}

impl<S: SharedStore> Resilient<S> {
    /// Notes that the store did not decide a request.
    pub(super) fn lose(&self, request: &Request<'_>, failure: Failure, at: Nanos) {
        let (extent, bit) = (extent(failure), 1 << failure as u32);
        if extent == Extent::Store {
            self.handover.lost(failure);
        }
        let mut outages = self.outages.lock();
        if let Some(outage) = outages.of(extent) {
            outage.failures |= bit;
            return;
        }
        let first = request.charges.first();
        let probe = first.map(|charge| Arc::new(Owned::new(&charge.counter, charge.limit)));
        let counts = self.figures.counts();
        *outages.of(extent) = Some(Outage { since: at, counts, probe, failures: bit });
        drop(outages);
        let Membership { nodes, rank } = self.membership();
        let rule = first.map_or("", |charge| charge.counter.rule_id);
        let (failure, what) = (failure.name(), failure);
        match extent {
            Extent::Store => {
                self.figures.outages.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    failure,
                    nodes,
                    rank,
                    rule,
                    "the shared store is lost: {what}; until it is back, rules decide on this \
                    node's share of their limits, let pass, or refuse, as their on_store_failure \
                    says; a server that goes on failing is left alone and asked again now and then"
                );
            }
            Extent::Counters => tracing::warn!(
                failure,
                nodes,
                rank,
                rule,
                "the shared store answers, but not for some counters: {what}; those are decided \
                as the on_store_failure of their rules says"
            ),
        }
    }

    /// Whether the store knows of all that was admitted without it, but for counters that it cannot
    /// decide.
    pub(super) fn has_reported(&self) -> bool {
        self.reports.len() <= self.unreportable.load(Ordering::Relaxed)
    }

    /// What was lost is there again.
    pub(super) fn recover(&self, extent: Extent, at: Nanos) {
        // Nobody decides meanwhile on the shares what is not yet noted.
        let deciding = self.memory.write();
        if extent == Extent::Store && !self.has_reported() {
            return;
        }
        let Some(outage) = self.outages.lock().of(extent).take() else { return };
        drop(deciding);
        let Counts { local, open, closed, reported } = self.figures.counts().since(outage.counts);
        let lasted = Duration::from_nanos(at.saturating_sub(outage.since));
        let met =
            Failure::ALL.iter().filter(|failure| outage.failures & 1 << **failure as u32 != 0);
        let failures = met.map(|failure| failure.name()).collect::<Vec<_>>().join(", ");
        let what = match extent {
            Extent::Store => "the shared store is back",
            Extent::Counters => "the counters that failed can be decided on the shared store again",
        };
        tracing::info!(
            ?lasted,
            failures,
            local,
            open,
            closed,
            reported,
            "{what} after {lasted:?} of {failures}: {local} requests were decided on shares, \
            {open} let pass and {closed} refused; {reported} reported back"
        );
    }
}
