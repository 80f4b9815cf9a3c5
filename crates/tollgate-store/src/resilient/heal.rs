//! Who is alive, and coming back to the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join;
use smallvec::SmallVec;
use tollgate_core::{Ask, Nanos, SECOND, SlotId, Status};

use super::Resilient;
use super::handover::Ended;
use super::outage::{Extent, extent};
use super::report::Sending;
use crate::leased::key::{Named, Owned};
use crate::{
    Announcement, Charge, Counter, Failure, Membership, Mode, Outcomes, Request, Role, Roll,
    SharedStore, StoreError,
};

/// So many slots that were released without the store are remembered; others expire there.
const MAX_RELEASES: usize = 10_000;

/// For how long an announcement holds. Five times the beat, so that a lost one is no funeral.
const ALIVE: Nanos = 5 * SECOND;

/// A store that decided something so short a time ago is not lost because an announcement failed.
const LATELY: Nanos = SECOND / 2;

/// So many counters are reported at the same time.
const AT_ONCE: usize = 64;

/// After so many attempts that all failed the rest waits for the next time: there may be a hundred
/// thousand.
pub(super) const MAX_IN_VAIN: usize = 4;

/// A smaller number of nodes is believed when it was heard so often in a row: after an outage, the
/// first to announce itself finds nobody else.
const BELIEVED: u32 = 5;

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

    /// Whether the number is believed. During a hand-over a smaller one is not: shares must not grow.
    fn hear(&mut self, membership: Membership, is_handing_over: bool) -> bool {
        let is_fewer = membership.nodes < self.membership.nodes;
        self.fewer = if is_fewer { self.fewer.saturating_add(1) } else { 0 };
        let is_believed = !is_fewer || self.fewer >= BELIEVED && !is_handing_over;
        if is_believed {
            *self = Self::new(membership);
        }
        is_believed
    }
}

impl<S: SharedStore> Resilient<S> {
    /// Says that this node is alive, and learns who else is. To be called every second.
    pub async fn heartbeat(&self, now: Nanos) -> Result<Membership, StoreError> {
        let roll = match self.announce(ALIVE).await {
            Ok(roll) => roll,
            Err(error) => {
                self.miss(error.failure, now);
                return Err(error);
            }
        };
        let is_open = self.handover.is_open();
        let mut known = self.heard.lock();
        let is_believed = known.hear(roll.membership, is_open);
        self.awaited.lock().hear(&roll, is_believed && !is_open);
        Ok(known.membership)
    }

    /// An announcement failed. If the store has not decided anything lately either, others may decide
    /// without it by now, though nothing was asked of this node. A store of parts may have lost only the
    /// part that announcements are in.
    fn miss(&self, failure: Failure, now: Nanos) {
        let last_answer = self.last_answer.load(Ordering::Relaxed);
        let is_lost = extent(failure) == Extent::Store && !self.inner.has_parts();
        if is_lost && now > last_answer.saturating_add(LATELY) {
            self.handover.lost(failure);
        }
    }

    /// Says goodbye, so that others need not wait for this node to be missed.
    pub async fn goodbye(&self) -> Result<(), StoreError> {
        self.announce(0).await.map(|_| ())
    }

    /// Announces this node and whether it has reported, and ends a hand-over that can be ended.
    async fn announce(&self, ttl: Nanos) -> Result<Roll, StoreError> {
        let has_reported = self.outages.lock().since().is_none() && self.has_reported();
        let losses = self.handover.losses();
        let node = self.options.node.as_str();
        let roll = self.inner.announce(&Announcement { node, ttl, has_reported }).await?;
        if has_reported {
            self.handover.announced(roll.at, losses);
        }
        if self.handover.is_open() {
            let mut awaited = self.awaited.lock();
            awaited.hear(&roll, false);
            let reported_since = awaited.reported_since(&roll, node);
            drop(awaited);
            // Of the same instant may be an announcement of before.
            self.end_handover(roll.at, |since| reported_since > since);
        }
        Ok(roll)
    }

    /// Ends a hand-over whose time is up.
    pub(super) fn end_overdue_handover(&self, now: Nanos) {
        self.end_handover(self.inner.clock(now), |_| false);
    }

    fn end_handover(&self, at: Nanos, has_reported: impl Fn(Nanos) -> bool) {
        let Some(ended) = self.handover.end(at, has_reported) else { return };
        self.known.begin_generation(at);
        match ended {
            Ended::AllReported => {
                self.figures.handovers.fetch_add(1, Ordering::Relaxed);
            }
            Ended::TimedOut => {
                self.figures.handovers_timed_out.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "some node has not reported in time what it admitted without the shared store: \
                    until it does, a limit may admit up to twice its quota"
                );
            }
        }
    }

    /// Tries to come back: asks for what failed, and reports what was admitted here. True if
    /// everything is there. To be called four times a second; costs nothing while all is well.
    pub async fn heal(&self, now: Nanos) -> bool {
        let (is_calm, [store, counters]) = {
            let outages = self.outages.lock();
            (outages.is_calm(), outages.probes())
        };
        let is_idle = self.reports.len() == 0
            && self.releases.lock().is_empty()
            && self.settlements.lock().is_empty();
        if is_calm && is_idle {
            if self.handover.is_open() {
                self.end_overdue_handover(now);
                let _unanswered = self.announce(ALIVE).await;
            }
            return true;
        }
        let failed = |probe: Option<Arc<Owned>>| async move {
            let looked = self.charge_all(&*probe?, &[Ask::cost(1)], Mode::Peek, now).await;
            looked.err().map(|error| error.failure)
        };
        let (store, counters) = join(failed(store), failed(counters)).await;
        let is_store = |failure: Failure| extent(failure) == Extent::Store;
        // Whatever the probes say: a server or a key that fails does not block the reports of other
        // counters.
        let is_reported = self.report_all(now).await;
        let is_released = self.release_all(now).await;
        let is_settled = self.settle_all(now).await;
        let at = self.inner.clock(now);
        let is_lost = store.is_some_and(is_store);
        let is_back = !is_lost && is_reported && is_released && is_settled;
        if is_back {
            self.recover(Extent::Store, at);
        } else if is_lost && self.inner.has_parts() {
            self.handover.still_lost();
        }
        if !is_lost && self.handover.is_open() {
            // Also where something is yet to be reported: others must know that this node is there.
            let _unanswered = self.announce(ALIVE).await;
        }
        if counters.is_none() {
            self.recover(Extent::Counters, at);
        }
        is_back && counters.is_none()
    }

    /// Reports everything that waits. False if the store did not answer for some of it.
    async fn report_all(&self, now: Nanos) -> bool {
        let mut waiting = self.reports.waiting(self.inner.clock(now));
        if waiting.is_empty() {
            self.unreportable.store(0, Ordering::Relaxed);
            return true;
        }
        // Where only some can be reported, each attempt starts with other counters.
        let first = self.turn.load(Ordering::Relaxed) % waiting.len();
        waiting.rotate_left(first);
        let (mut is_reported, mut in_vain, mut unreportable) = (true, 0, 0);
        for some in waiting.chunks(AT_ONCE) {
            let results = self.tell(some, now).await;
            let lost = |result: &Result<(), Failure>| {
                result.err().is_some_and(|failure| extent(failure) == Extent::Store)
            };
            is_reported &= !results.iter().any(|(_, result)| lost(result));
            let failed = results.iter().filter(|(_, result)| result.is_err() && !lost(result));
            unreportable += failed.count();
            if results.iter().all(|(_, result)| lost(result)) && !results.is_empty() {
                in_vain += 1;
            }
            if in_vain >= MAX_IN_VAIN {
                self.turn.fetch_add(MAX_IN_VAIN * AT_ONCE, Ordering::Relaxed);
                break;
            }
        }
        self.unreportable.store(unreportable, Ordering::Relaxed);
        is_reported
    }

    /// Releases a slot when the store is back. Beyond so many, they come back by themselves.
    pub(super) fn release_later(&self, counter: &Counter<'_>, slot: SlotId) {
        let mut releases = self.releases.lock();
        if releases.len() < MAX_RELEASES {
            releases.push((Arc::new(Named::new(counter)), slot));
        }
    }

    /// Releases the slots that were given up without the store; releasing twice is harmless. They stay
    /// on the list until they are released: the caller may drop this future before.
    async fn release_all(&self, now: Nanos) -> bool {
        let releases: Vec<_> = self.releases.lock().clone();
        let mut in_vain = 0;
        for (name, slot) in releases {
            let parts = name.parts();
            let released = self.inner.release(&name.counter(&parts), slot, now).await;
            let is_lost = released.is_err_and(|error| extent(error.failure) == Extent::Store);
            let mut releases = self.releases.lock();
            let is_it = |it: &(Arc<Named>, SlotId)| Arc::ptr_eq(&it.0, &name) && it.1 == slot;
            if let Some(place) = releases.iter().position(is_it) {
                let release = releases.remove(place);
                if is_lost {
                    // Others first, the next time.
                    releases.push(release);
                }
            }
            drop(releases);
            in_vain += usize::from(is_lost);
            if in_vain >= MAX_IN_VAIN {
                break;
            }
        }
        in_vain == 0
    }

    /// Reports to the store what was admitted of a counter, and remembers the usage that it
    /// returns.
    pub(super) async fn report(&self, mut sending: Sending<'_>, now: Nanos) -> Result<(), Failure> {
        let owned = Arc::clone(&sending.owned);
        // First of all a look, which charges nothing if its answer is lost: a slow store would charge
        // every attempt.
        let mut said = self.charge_all(&owned, &[Ask::cost(1)], Mode::Peek, now).await;
        if let Ok(looked) = said {
            let counted = looked.map_or(0, |(_, status)| status.used);
            sending.load(counted, self.inner.clock(now));
            let slots = sending.slots.iter().map(|slot| Ask::slot(*slot));
            let cost = (sending.cost > 0).then(|| Ask::cost(sending.cost));
            let asks: SmallVec<[Ask; 4]> = slots.chain(cost).collect();
            if !asks.is_empty() {
                said = self.charge_all(&owned, &asks, Mode::Owe, now).await;
            }
        }
        let result = said.map(|_| ()).map_err(|error| error.failure);
        // Nobody accounts for the counter between the two: he would count it twice or not at all.
        let counting = self.memory.write();
        if let Ok(Some((at, status))) = said {
            let amount = sending.cost + sending.slots.len() as u64;
            self.figures.reported.fetch_add(amount, Ordering::Relaxed);
            self.known.correct(sending.fingerprint, at, &status);
        }
        sending.end(result, self.inner.clock(now));
        drop(counting);
        result
    }

    /// What the store says of a counter after these charges.
    async fn charge_all(
        &self,
        owned: &Owned,
        asks: &[Ask],
        mode: Mode,
        now: Nanos,
    ) -> Result<Option<(Nanos, Status)>, StoreError> {
        let parts = owned.parts();
        let counter = owned.counter(&parts);
        let charges: SmallVec<[Charge<'_>; 4]> = asks
            .iter()
            .map(|ask| Charge { counter, limit: &owned.limit, ask: *ask, role: Role::Must })
            .collect();
        let mut outcomes = Outcomes::new();
        let requests = [Request { charges: &charges, mode }];
        let decided = self.inner.decide(&requests, now, &mut outcomes).await?;
        Ok(outcomes.last().map(|outcome| (decided.of(outcomes.len() - 1), outcome.status)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_nodes_are_believed_at_once_and_fewer_after_a_while() {
        let of = |nodes, rank| Membership { nodes, rank };
        let mut heard = Heard::new(Membership::ALONE);
        heard.hear(of(3, 2), false);
        assert_eq!(heard.membership, of(3, 2));
        heard.hear(of(1, 0), false);
        assert_eq!(heard.membership, of(3, 2), "the others have not come back yet");
        heard.hear(of(3, 1), false);
        assert_eq!(heard.membership, of(3, 1));
        for _ in 0..2 * BELIEVED {
            heard.hear(of(2, 0), true);
            assert_eq!(heard.membership, of(3, 1), "shares do not grow during a hand-over");
        }
        heard.hear(of(3, 1), true);
        for _ in 1..BELIEVED {
            heard.hear(of(2, 0), false);
            assert_eq!(heard.membership, of(3, 1));
        }
        heard.hear(of(2, 0), false);
        assert_eq!(heard.membership, of(2, 0));
    }
}
