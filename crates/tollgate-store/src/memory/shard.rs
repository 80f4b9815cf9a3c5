//! One shard: the counters behind one lock.

use std::sync::Arc;

use tollgate_core::{
    Algorithm, Ask, Examination, Limit, Nanos, Outcome, Receipt, Slot, SlotId, Small, State, Status,
};

use super::fingerprint::Fingerprint;
use super::group::{FULL, Level};
use super::large::{Budget, Large, LargeCounters, Unsaved, as_slots};
use super::pack::{Packed, pack, unpack};
use super::table::{Inserted, Place, Table};
use crate::resets::Resets;

/// Counters behind one lock. What every decision needs comes first and, with the lock, fills one cache
/// line; the rest lies apart.
pub(crate) struct Shard {
    pub(crate) table: Table,
    /// Something changed since the last flush.
    pub(crate) is_dirty: bool,
    pub(crate) rest: Box<Rest>,
}

/// What few decisions need.
pub(crate) struct Rest {
    pub(crate) large: LargeCounters,
    /// Counters that were reset or emptied, whose removal must be written to the journal.
    pub(crate) removed: Vec<Fingerprint>,
    /// Whether there is a journal to write to.
    journals: bool,
    /// Counters in use that had to go for want of room.
    pub(crate) evicted: u64,
    /// Refundable charges that became final because their bucket had too many.
    pub(crate) finalized: u64,
    /// Counters that were reset lately.
    pub(crate) resets: Resets<Fingerprint>,
}

/// Where a counter was found, and its state if that is small.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// In the table.
    Packed(Place, Small),
    /// Among the large ones, in a small state too big to pack.
    Oversized(Small),
    /// Among the large ones: a bucket with refundable charges, as callers see it.
    Open(Small),
    /// Among the large ones: a log or slots.
    Large,
    /// Nowhere: it is fresh.
    Absent,
}

impl Found {
    #[inline]
    pub(crate) fn small(&self, limit: &Limit) -> Small {
        match self {
            Self::Packed(_, small) | Self::Oversized(small) | Self::Open(small) => *small,
            Self::Large | Self::Absent => limit.fresh_small(),
        }
    }
}

pub(crate) const fn is_large(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::SlidingWindowLog | Algorithm::Concurrency)
}

/// How much of the limit is used, in sixteenths, by shifts alone. Where the limit is smaller than that
/// it is the count itself: a counter that a single request fills is no better than one that a single
/// request touched, or a flood of such would drive out the rest.
#[inline]
pub(super) fn level(limit: &Limit, used: u64) -> Level {
    let capacity = limit.capacity().max(1);
    let shift = 60 - capacity.leading_zeros().min(60);
    (used >> shift).min(FULL.into()) as Level
}

impl Shard {
    pub(crate) fn new(most_counters: usize, budget: Arc<Budget>, journals: bool) -> Self {
        let rest = Rest {
            large: LargeCounters::new(most_counters, budget, journals),
            removed: Vec::new(),
            journals,
            evicted: 0,
            finalized: 0,
            resets: Resets::default(),
        };
        Self { table: Table::new(most_counters), is_dirty: false, rest: Box::new(rest) }
    }

    #[inline]
    pub(crate) fn find(&self, fingerprint: Fingerprint, limit: &Limit) -> Found {
        if is_large(limit) {
            return match self.rest.large.get(fingerprint) {
                Some(_) => Found::Large,
                None => Found::Absent,
            };
        }
        if let Some((place, packed)) = self.table.find(fingerprint) {
            return Found::Packed(place, unpack(packed, limit));
        }
        match self.rest.large.get(fingerprint).map(|large| &large.state) {
            Some(State::Small(small)) => Found::Oversized(limit.adopt(*small)),
            Some(State::Open(open)) => Found::Open(limit.adopt(Small::Bucket(open.bucket()))),
            Some(State::Log(_) | State::Slots(_)) | None => Found::Absent,
        }
    }

    #[inline]
    pub(crate) fn examine(
        &self,
        found: &Found,
        fingerprint: Fingerprint,
        limit: &Limit,
        ask: &Ask,
        now: Nanos,
    ) -> Examination {
        if is_large(limit) {
            return match self.rest.large.get(fingerprint) {
                Some(large) => limit.examine(&large.state, ask, now),
                None => limit.examine(&limit.fresh(), ask, now),
            };
        }
        limit.examine_small(&found.small(limit), ask, now)
    }

    #[inline]
    pub(crate) fn status(
        &self,
        found: &Found,
        fingerprint: Fingerprint,
        limit: &Limit,
        now: Nanos,
    ) -> Status {
        if is_large(limit) {
            return match self.rest.large.get(fingerprint) {
                Some(large) => limit.status(&large.state, now),
                None => limit.status(&limit.fresh(), now),
            };
        }
        limit.status_small(&found.small(limit), now)
    }

    /// Examines and, if it passes, charges one counter of a fixed-size algorithm in one go.
    #[inline]
    pub(crate) fn decide_small(
        &mut self,
        fingerprint: Fingerprint,
        limit: &Limit,
        ask: &Ask,
        now: Nanos,
    ) -> Outcome {
        let Some(held) = self.table.find_mut(fingerprint) else {
            return self.decide_unpacked(fingerprint, limit, ask, now);
        };
        let packed = held.packed();
        if packed.word == 0
            && let Some((tat, outcome)) = limit.decide_instant(packed.fresh_at, ask, now)
        {
            if outcome.examination.admits() {
                let packed = Packed { fresh_at: tat, word: 0 };
                let level = limit.rough_level(tat.saturating_sub(now)).min(FULL.into());
                held.write(packed, level as Level);
                if !self.is_dirty {
                    self.is_dirty = true;
                }
            }
            return outcome;
        }
        let mut small = unpack(packed, limit);
        let outcome = limit.decide_small(&mut small, ask, now);
        if outcome.examination.admits() {
            match pack(&small, limit) {
                Some(packed) => held.write(packed, level(limit, outcome.status.used)),
                None => self.rewrite(fingerprint, limit, &small, outcome.status.used, now),
            }
            if !self.is_dirty {
                self.is_dirty = true;
            }
        }
        outcome
    }

    /// [`Shard::decide_small`] for a counter that is not in the table.
    #[cold]
    fn decide_unpacked(
        &mut self,
        fingerprint: Fingerprint,
        limit: &Limit,
        ask: &Ask,
        now: Nanos,
    ) -> Outcome {
        let found = self.find(fingerprint, limit);
        let mut small = found.small(limit);
        if let Found::Open(_) = found {
            let examination = limit.examine_small(&small, ask, now);
            let (receipt, status) = if examination.admits() {
                self.charge(&found, fingerprint, limit, ask, now)
            } else {
                (Receipt::Nothing, limit.status_small(&small, now))
            };
            return Outcome { examination, status, receipt };
        }
        let outcome = limit.decide_small(&mut small, ask, now);
        if outcome.examination.admits() {
            self.is_dirty = true;
            self.write(&found, fingerprint, limit, &small, outcome.status.used, now);
        }
        outcome
    }

    #[cold]
    fn rewrite(&mut self, at: Fingerprint, limit: &Limit, small: &Small, used: u64, now: Nanos) {
        let found = self.find(at, limit);
        self.write(&found, at, limit, small, used, now);
    }

    /// Charges the counter that [`Shard::find`] found, and reports it after.
    #[inline]
    pub(crate) fn charge(
        &mut self,
        found: &Found,
        fingerprint: Fingerprint,
        limit: &Limit,
        ask: &Ask,
        now: Nanos,
    ) -> (Receipt, Status) {
        self.is_dirty = true;
        if is_large(limit) {
            return self.charge_large(limit.fresh(), fingerprint, limit, ask, now);
        }
        if limit.opens_charge(ask) || matches!(found, Found::Open(_)) {
            return self.charge_open(found, fingerprint, limit, ask, now);
        }
        let mut small = found.small(limit);
        let receipt = limit.charge_small(&mut small, ask.cost, now);
        let status = limit.status_small(&small, now);
        self.write(found, fingerprint, limit, &small, status.used, now);
        (receipt, status)
    }

    /// What a charge would do to a counter and, where that is an entry in the table and stays one,
    /// its place and what it becomes. Nothing is changed yet.
    #[inline]
    pub(crate) fn work_out(
        &self,
        fingerprint: Fingerprint,
        limit: &Limit,
        ask: &Ask,
        now: Nanos,
    ) -> (Outcome, Option<(Place, Packed)>) {
        if !is_large(limit)
            && !limit.opens_charge(ask)
            && let Some((place, packed)) = self.table.find(fingerprint)
        {
            let mut small = unpack(packed, limit);
            let outcome = limit.decide_small(&mut small, ask, now);
            return (outcome, pack(&small, limit).map(|packed| (place, packed)));
        }
        (self.examine_remote(fingerprint, limit, ask, now), None)
    }

    /// Examines a counter that is not in the table. The outcome has no status yet: the caller adds
    /// it once it is known whether the request passes.
    #[cold]
    fn examine_remote(
        &self,
        fingerprint: Fingerprint,
        limit: &Limit,
        ask: &Ask,
        now: Nanos,
    ) -> Outcome {
        let found = self.find(fingerprint, limit);
        let examination = self.examine(&found, fingerprint, limit, ask, now);
        Outcome { examination, status: Status::default(), receipt: Receipt::Nothing }
    }

    /// Overwrites the entry that [`Shard::work_out`] found.
    #[inline]
    pub(crate) fn overwrite(&mut self, place: Place, packed: Packed, limit: &Limit, used: u64) {
        self.is_dirty = true;
        self.table.update(place, packed, level(limit, used));
    }

    #[inline]
    pub(super) fn write(
        &mut self,
        found: &Found,
        fingerprint: Fingerprint,
        limit: &Limit,
        small: &Small,
        used: u64,
        now: Nanos,
    ) {
        let level = level(limit, used);
        match (found, pack(small, limit)) {
            (Found::Packed(place, _), Some(packed)) => {
                self.table.update(*place, packed, level);
            }
            (Found::Absent, Some(packed)) if packed.fresh_at > now => {
                if self.table.insert(fingerprint, packed, level, now) == Inserted::ByEviction {
                    self.rest.evicted += 1;
                }
            }
            (Found::Absent, Some(_)) => {}
            _ => self.write_oversized(found, fingerprint, limit, small, level, now),
        }
    }

    #[cold]
    fn write_oversized(
        &mut self,
        found: &Found,
        fingerprint: Fingerprint,
        limit: &Limit,
        small: &Small,
        level: Level,
        now: Nanos,
    ) {
        if let Found::Packed(place, _) = found {
            self.table.remove(*place);
        }
        let fresh_at = small.fresh_at(limit.window_nanos());
        let state = State::Small(*small);
        // Not where it was found: another charge of the same request may have moved it or evicted
        // it since.
        let known = self.rest.large.change(fingerprint, |large| {
            (large.state, large.fresh_at, large.level) = (state.clone(), fresh_at, level);
            large.unsaved = Unsaved::All;
        });
        if known.is_none() {
            let unsaved = Unsaved::All;
            let large = Large { fingerprint, state, fresh_at, level, unsaved };
            self.rest.evicted += self.rest.large.insert(large, now);
        }
    }

    /// Charges a counter among the large ones; one that is not there yet is put there in this state.
    pub(super) fn charge_large(
        &mut self,
        state: State,
        fingerprint: Fingerprint,
        limit: &Limit,
        ask: &Ask,
        now: Nanos,
    ) -> (Receipt, Status) {
        let charge = |large: &mut Large| {
            let receipt = limit.charge(&mut large.state, ask, now);
            let status = limit.status(&large.state, now);
            large.fresh_at = limit.fresh_at(&large.state);
            large.level = level(limit, status.used);
            let mut finalized = 0;
            large.unsaved = match &mut large.state {
                State::Log(_) => large.unsaved.appended(),
                State::Open(open) => {
                    finalized = open.take_finalized();
                    Unsaved::All
                }
                _ => Unsaved::All,
            };
            (receipt, status, finalized)
        };
        if let Some((receipt, status, finalized)) = self.rest.large.change(fingerprint, charge) {
            self.rest.finalized += u64::from(finalized);
            self.rest.evicted += self.rest.large.make_room(fingerprint, now);
            return (receipt, status);
        }
        let unsaved = Unsaved::All;
        let mut large = Large { fingerprint, state, fresh_at: 0, level: 0, unsaved };
        let (receipt, status, _) = charge(&mut large);
        if large.fresh_at > now {
            self.rest.evicted += self.rest.large.insert(large, now);
        }
        (receipt, status)
    }

    pub(crate) fn pending_changes(&self) -> usize {
        self.rest.removed.len() + self.rest.large.pending_changes()
    }

    /// Drops the changes that wait for the journal.
    pub(crate) fn forget_changes(&mut self) {
        self.rest.removed = Vec::new();
        self.table.drain_dirty(|_, _, _| {});
        self.rest.large.forget_changes();
        self.is_dirty = false;
    }

    /// Drops a counter without writing that to the journal.
    pub(crate) fn forget(&mut self, fingerprint: Fingerprint) {
        if let Some((place, _)) = self.table.find(fingerprint) {
            self.table.remove(place);
        }
        self.rest.large.remove(fingerprint);
    }

    /// Resets a counter: charges that were made before give back nothing.
    pub(crate) fn reset(&mut self, fingerprint: Fingerprint, now: Nanos) {
        let packed = self.table.find(fingerprint).map(|(_, packed)| packed.fresh_at);
        let large = self.rest.large.get(fingerprint).map(|large| large.fresh_at);
        if let Some(fresh_at) = packed.max(large).filter(|fresh_at| *fresh_at > now) {
            self.rest.resets.note(fingerprint, fresh_at, now);
        }
        self.remove(fingerprint);
    }

    /// Drops a counter, which is fresh then.
    pub(crate) fn remove(&mut self, fingerprint: Fingerprint) {
        let packed = self.table.find(fingerprint).map(|(place, _)| self.table.remove(place));
        let large = self.rest.large.remove(fingerprint);
        if self.rest.journals && (packed.is_some() || large) {
            self.rest.removed.push(fingerprint);
            self.is_dirty = true;
        }
    }

    pub(crate) fn renew(
        &mut self,
        fingerprint: Fingerprint,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> bool {
        let renew = |large: &mut Large| {
            let renewed = as_slots(&mut large.state)
                .is_some_and(|slots| slots.renew(slot, limit.slot_ttl(), now));
            large.fresh_at = limit.fresh_at(&large.state);
            large.unsaved = Unsaved::All;
            renewed
        };
        self.is_dirty = true;
        self.rest.large.change(fingerprint, renew).unwrap_or(false)
    }

    /// The slots that are held, the one that expires first before the others.
    pub(crate) fn slots(&self, fingerprint: Fingerprint, now: Nanos) -> Vec<Slot> {
        let Some(State::Slots(slots)) = self.rest.large.get(fingerprint).map(|large| &large.state)
        else {
            return Vec::new();
        };
        let held = slots.iter().filter(|slot| slot.expires_at > now);
        held.take(crate::MAX_REPORTED_SLOTS).copied().collect()
    }

    pub(crate) fn release(&mut self, fingerprint: Fingerprint, slot: SlotId, now: Nanos) -> bool {
        let release = |large: &mut Large| {
            let Some(slots) = as_slots(&mut large.state) else { return (false, false) };
            slots.prune(now);
            let released = slots.release(slot);
            large.fresh_at = slots.fresh_at();
            large.unsaved = Unsaved::All;
            (released, large.fresh_at <= now)
        };
        self.is_dirty = true;
        let (released, fresh) = self.rest.large.change(fingerprint, release).unwrap_or_default();
        if fresh {
            self.remove(fingerprint);
        }
        released
    }
}
