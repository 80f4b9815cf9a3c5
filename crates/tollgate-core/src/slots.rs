//! `concurrency`: slots that are held, and come back by release or by expiry.

use crate::state::{Ask, Examination, Receipt, SlotId, Status};
use crate::{Limit, Nanos};

/// One held slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Whose it is.
    pub id: SlotId,
    /// When it comes back by itself.
    pub expires_at: Nanos,
}

/// The held slots, soonest expiry first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slots {
    held: Vec<Slot>,
}

impl Slots {
    /// These slots, in any order.
    pub fn from_slots(slots: impl IntoIterator<Item = Slot>) -> Self {
        let mut held: Vec<Slot> = slots.into_iter().collect();
        held.sort_by_key(|slot| slot.expires_at);
        Self { held }
    }

    /// The slots, soonest expiry first; expired ones may still be among them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Slot> {
        self.held.iter()
    }

    /// How many slots are kept, expired ones included.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True when no slot is kept.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Drops expired slots; unobservable as long as time goes forward.
    pub fn prune(&mut self, now: Nanos) {
        let expired = self.expired(now);
        self.held.drain(..expired);
    }

    /// From this instant on no slot is held.
    pub fn fresh_at(&self) -> Nanos {
        self.held.last().map_or(0, |slot| slot.expires_at)
    }

    /// Gives a slot back. False if it was not held any more, which is harmless.
    pub fn release(&mut self, id: SlotId) -> bool {
        let before = self.held.len();
        self.held.retain(|slot| slot.id != id);
        self.held.len() < before
    }

    /// Holds a slot for another lifetime from now, never shorter than it is held already. False if
    /// it is not held any more.
    pub fn renew(&mut self, id: SlotId, ttl: Nanos, now: Nanos) -> bool {
        let is_held = self.held.iter().any(|slot| slot.id == id && slot.expires_at > now);
        if is_held {
            self.hold(id, now.saturating_add(ttl), now);
        }
        is_held
    }

    /// A clock that stepped back must not bring the slot back sooner: the later expiry counts.
    fn hold(&mut self, id: SlotId, expires_at: Nanos, now: Nanos) {
        self.prune(now);
        let held = self.held.iter().filter(|slot| slot.id == id).map(|slot| slot.expires_at);
        let expires_at = held.fold(expires_at, Nanos::max);
        self.release(id);
        let place = self.held.partition_point(|slot| slot.expires_at <= expires_at);
        self.held.insert(place, Slot { id, expires_at });
    }

    fn expired(&self, now: Nanos) -> usize {
        self.held.partition_point(|slot| slot.expires_at <= now)
    }

    fn live(&self, now: Nanos) -> u64 {
        (self.held.len() - self.expired(now)) as u64
    }

    pub(crate) fn examine(&self, limit: &Limit, id: SlotId, now: Nanos) -> Examination {
        let live = self.live(now);
        let is_own = |slot: &Slot| slot.id == id && slot.expires_at > now;
        if live < limit.quota() || self.held.iter().any(is_own) {
            return Examination::Admit { wait: 0 };
        }
        // The slot whose expiry brings the number held below the quota.
        let frees = self.expired(now) as u64 + (live - limit.quota());
        let slot = usize::try_from(frees).ok().and_then(|index| self.held.get(index));
        Examination::Refuse { retry_at: slot.map(|slot| slot.expires_at) }
    }

    pub(crate) fn charge(&mut self, limit: &Limit, ask: &Ask, now: Nanos) -> Receipt {
        self.hold(ask.slot, now.saturating_add(limit.slot_ttl_of(ask)), now);
        Receipt::Slot(ask.slot)
    }

    pub(crate) fn status(&self, limit: &Limit, now: Nanos) -> Status {
        let used = self.live(now);
        Status {
            used,
            remaining: limit.quota().saturating_sub(used),
            reset_at: self.fresh_at().max(now),
        }
    }
}
