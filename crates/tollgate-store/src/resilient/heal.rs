//! Who is alive, and coming back to the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join;
use smallvec::SmallVec;
use tollgate_core::{Ask, Nanos, SECOND, SlotId, Status};

use super::Resilient;
use super::outage::{Extent, extent};
use super::report::Sending;
use crate::leased::key::{Named, Owned};
use crate::{
    Charge, Counter, Failure, Membership, Mode, Outcomes, Request, Role, SharedStore, StoreError,
};

/// So many slots that were released without the store are remembered; others expire there.
const MOST_RELEASES: usize = 10_000;

/// For how long an announcement holds. Five times the beat, so that a lost one is no funeral.
const ALIVE: Nanos = 5 * SECOND;

/// So many counters are reported at the same time.
const AT_ONCE: usize = 64;

/// After so many attempts that all failed the rest waits for the next time: there may be a hundred
/// thousand.
pub(super) const MOST_IN_VAIN: usize = 4;

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

    fn hear(&mut self, membership: Membership) {
        self.fewer = if membership.nodes < self.membership.nodes { self.fewer + 1 } else { 0 };
        if self.fewer == 0 || self.fewer >= BELIEVED {
            *self = Self::new(membership);
        }
    }
}

impl<S: SharedStore> Resilient<S> {
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
            return true;
        }
        let failed = |probe: Option<Arc<Owned>>| async move {
            let looked = self.charge_all(&*probe?, &[Ask::cost(1)], Mode::Peek, now).await;
            looked.err().map(|error| error.failure)
        };
        let (store, counters) = join(failed(store), failed(counters)).await;
        let is_store = |failure: Failure| extent(failure) == Extent::Store;
        // Whatever the probes say: what one server or one key keeps from being decided does not keep
        // others from being told.
        let is_told = self.report_all(now).await;
        let is_released = self.release_all(now).await;
        let is_settled = self.settle_all(now).await;
        let at = self.inner.clock(now);
        let is_back = !store.is_some_and(is_store) && is_told && is_released && is_settled;
        if is_back {
            self.recover(Extent::Store, at);
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
            return true;
        }
        // Where only some can be told, all get their turn.
        let first = self.turn.load(Ordering::Relaxed) % waiting.len();
        waiting.rotate_left(first);
        let (mut is_told, mut in_vain) = (true, 0);
        for some in waiting.chunks(AT_ONCE) {
            let told = self.tell(some, now).await;
            let lost = |result: &Result<(), Failure>| {
                result.err().is_some_and(|failure| extent(failure) == Extent::Store)
            };
            is_told &= !told.iter().any(|(_, result)| lost(result));
            if told.iter().all(|(_, result)| lost(result)) && !told.is_empty() {
                in_vain += 1;
            }
            if in_vain >= MOST_IN_VAIN {
                self.turn.fetch_add(MOST_IN_VAIN * AT_ONCE, Ordering::Relaxed);
                break;
            }
        }
        is_told
    }

    /// Releases a slot when the store is back. Beyond so many, they come back by themselves.
    pub(super) fn release_later(&self, counter: &Counter<'_>, slot: SlotId) {
        let mut releases = self.releases.lock();
        if releases.len() < MOST_RELEASES {
            releases.push((Arc::new(Named::new(counter)), slot));
        }
    }

    /// Releases the slots that were given up without the store; releasing twice is harmless. They stay
    /// on the list until they are released: whoever heals may be gone before.
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
            if in_vain >= MOST_IN_VAIN {
                break;
            }
        }
        in_vain == 0
    }

    /// Tells the store what was admitted of a counter, and keeps what it says of it.
    pub(super) async fn report(&self, mut sending: Sending<'_>, now: Nanos) -> Result<(), Failure> {
        let owned = Arc::clone(&sending.owned);
        // First of all a look, which charges nothing if its answer is lost: a slow store would charge
        // every attempt.
        let mut said = self.charge_all(&owned, &[Ask::cost(1)], Mode::Peek, now).await;
        if said.is_ok() {
            sending.load(self.inner.clock(now));
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
