//! Losing the store, and coming back to it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tollgate_core::{Ask, Nanos, SECOND};

use super::Resilient;
use super::figures::Counts;
use super::report::Sending;
use crate::leased::key::Owned;
use crate::{
    Charge, Failure, Membership, MemoryStore, Mode, Outcomes, Request, Role, SharedStore,
    StoreError,
};

/// For how long an announcement holds. Five times the beat, so that a lost one is no funeral.
const ALIVE: Nanos = 5 * SECOND;

/// So many counters are reported at the same time.
const AT_ONCE: usize = 64;

/// A smaller number of nodes is believed when it was heard so often in a row: after an outage, the
/// first to announce itself finds nobody else.
const BELIEVED: u32 = 5;

/// The store does not answer, or did not a moment ago.
pub(super) struct Outage {
    since: Nanos,
    counts: Counts,
    /// A counter that could not be decided: when it can, the store is back.
    probe: Option<Arc<Owned>>,
}

impl Outage {
    pub(super) const fn since(&self) -> Nanos {
        self.since
    }
}

/// Who is alive.
pub(super) struct Heard {
    pub(super) membership: Membership,
    /// How often in a row fewer nodes were heard of.
    fewer: u32,
}

impl Heard {
    pub(super) const fn new(membership: Membership) -> Self {
        Self { membership, fewer: 0 }
    }

    fn hear(&mut self, membership: Membership) {
        self.fewer = if membership.nodes < self.membership.nodes { self.fewer + 1 } else { 0 };
        if self.fewer == 0 || self.fewer >= BELIEVED {
            *self = Self::new(membership);
        }
    }
}

impl<S: SharedStore> Resilient<S> {
    /// Notes that the store did not decide these requests.
    pub(super) fn lose(&self, requests: &[Request<'_>], failure: Failure, at: Nanos) {
        let mut outage = self.outage.lock();
        if outage.is_some() {
            return;
        }
        self.figures.outages.fetch_add(1, Ordering::Relaxed);
        let first = requests.iter().flat_map(|request| request.charges).next();
        let probe = first.map(|charge| Arc::new(Owned::new(&charge.counter, charge.limit)));
        *outage = Some(Outage { since: at, counts: self.figures.counts(), probe });
        drop(outage);
        let Membership { nodes, rank } = self.membership();
        tracing::warn!(
            failure = failure.name(),
            nodes,
            rank,
            "the shared store is lost: {failure}; until it is back, rules decide on this node's \
            share of their limits, let pass, or refuse, as their on_store_failure says"
        );
    }

    /// Says that this node is alive, and learns who else is. To be called every second.
    pub async fn heartbeat(&self, _now: Nanos) -> Result<Membership, StoreError> {
        let heard = self.inner.announce(&self.options.node, ALIVE).await?;
        let mut known = self.heard.lock();
        known.hear(heard);
        Ok(known.membership)
    }

    /// Says goodbye, so that others need not wait for this node to be missed.
    pub async fn goodbye(&self) -> Result<(), StoreError> {
        self.inner.announce(&self.options.node, 0).await.map(|_| ())
    }

    /// Tries to come back: reports what was admitted here, and asks for what failed. True if the
    /// store is there. To be called four times a second; costs nothing while all is well.
    pub async fn heal(&self, now: Nanos) -> bool {
        let probe = match &*self.outage.lock() {
            Some(outage) => outage.probe.clone(),
            None if self.reports.len() == 0 && self.releases.lock().is_empty() => return true,
            None => None,
        };
        // First of all a look, which charges nothing if its answer is lost.
        if let Some(probe) = probe
            && self.charge_all(&probe, &[Ask::cost(1)], Mode::Peek, now).await.is_err()
        {
            return false;
        }
        let at = self.inner.clock(now);
        let mut sendings = self.reports.send(at);
        let mut is_back = true;
        while !sendings.is_empty() {
            let rest = sendings.split_off(sendings.len().min(AT_ONCE));
            let sent = join_all(sendings.iter().map(|sending| self.report(sending, now))).await;
            is_back &= sent.into_iter().all(|has_arrived| has_arrived);
            sendings = rest;
        }
        is_back &= self.release_all(now).await;
        if is_back {
            self.recover(at);
        }
        is_back
    }

    /// Releases the slots that were given up without the store; releasing twice is harmless.
    async fn release_all(&self, now: Nanos) -> bool {
        let mut releases = std::mem::take(&mut *self.releases.lock());
        while let Some((name, slot)) = releases.pop() {
            let parts = name.parts();
            if self.inner.release(&name.counter(&parts), slot, now).await.is_err() {
                drop(parts);
                releases.push((name, slot));
                self.releases.lock().append(&mut releases);
                return false;
            }
        }
        true
    }

    async fn report(&self, sending: &Sending, now: Nanos) -> bool {
        let mut asks: SmallVec<[Ask; 4]> =
            sending.slots.iter().map(|slot| Ask::slot(*slot)).collect();
        if sending.cost > 0 {
            asks.push(Ask::cost(sending.cost));
        }
        let has_arrived =
            asks.is_empty() || self.charge_all(&sending.owned, &asks, Mode::Owe, now).await.is_ok();
        self.reports.sent(sending, has_arrived, self.inner.clock(now));
        if has_arrived {
            let amount = sending.cost + sending.slots.len() as u64;
            self.figures.reported.fetch_add(amount, Ordering::Relaxed);
        }
        has_arrived
    }

    async fn charge_all(
        &self,
        owned: &Owned,
        asks: &[Ask],
        mode: Mode,
        now: Nanos,
    ) -> Result<(), StoreError> {
        let parts = owned.parts();
        let counter = owned.counter(&parts);
        let charges: SmallVec<[Charge<'_>; 4]> = asks
            .iter()
            .map(|ask| Charge { counter, limit: &owned.limit, ask: *ask, role: Role::Must })
            .collect();
        let mut outcomes = Outcomes::new();
        let requests = [Request { charges: &charges, mode }];
        self.inner.decide(&requests, now, &mut outcomes).await.map(|_| ())
    }

    fn recover(&self, at: Nanos) {
        let Some(outage) = self.outage.lock().take() else { return };
        // The next outage starts from what is known then.
        *self.memory.write() = Arc::new(MemoryStore::new(self.options.max_counters));
        let Counts { local, open, closed, reported } = self.figures.counts().since(outage.counts);
        let lasted = Duration::from_nanos(at.saturating_sub(outage.since));
        tracing::info!(
            ?lasted,
            local,
            open,
            closed,
            reported,
            "the shared store is back after {lasted:?}: {local} requests were decided on shares, \
            {open} let pass and {closed} refused; {reported} reported back"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_nodes_are_believed_at_once_and_fewer_after_a_while() {
        let of = |nodes, rank| Membership { nodes, rank };
        let mut heard = Heard::new(Membership::ALONE);
        heard.hear(of(3, 2));
        assert_eq!(heard.membership, of(3, 2));
        heard.hear(of(1, 0));
        assert_eq!(heard.membership, of(3, 2), "the others have not come back yet");
        heard.hear(of(3, 1));
        assert_eq!(heard.membership, of(3, 1));
        for _ in 1..BELIEVED {
            heard.hear(of(2, 0));
            assert_eq!(heard.membership, of(3, 1));
        }
        heard.hear(of(2, 0));
        assert_eq!(heard.membership, of(2, 0));
    }
}
