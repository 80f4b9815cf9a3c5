//! A compact hash table of packed counters.
//!
//! Slots come in groups of 16: 16 tag bytes, then the entries, side by side, so that a lookup
//! touches two cache lines of one page. A group that an insertion found full is marked, and only
//! then does a lookup go on to the next one: removal needs no tombstones. An entry whose `fresh_at`
//! has passed is as good as an empty slot and is taken over in place, so nothing ever has to be
//! scanned for expiry. The table grows by an eighth at a time, which keeps it at least three
//! quarters full.

use tollgate_core::Nanos;

use super::fingerprint::Fingerprint;
use super::pack::Packed;

pub(crate) const GROUP_SLOTS: usize = 16;

/// Groups an insertion looks at before the table grows or something is evicted. Lookups go as far
/// only past groups that were full.
const PROBES: usize = 16;

/// Tag of an empty slot.
const EMPTY: u8 = 0;

/// How much of its limit a counter has used, in sixteenths. Where something must go, the least used
/// goes first.
pub(crate) type Level = u8;

/// The highest level.
pub(crate) const FULL: Level = 15;

/// 28 bytes, kept as words so that the compiler adds no padding.
#[derive(Debug, Clone, Copy)]
struct Entry([u32; 7]);

impl Entry {
    const EMPTY: Self = Self([0; 7]);

    #[inline]
    const fn new(fingerprint: Fingerprint, packed: Packed) -> Self {
        let Fingerprint([a, b, c]) = fingerprint;
        let (fresh_at, word) = (packed.fresh_at, packed.word);
        Self([a, b, c, fresh_at as u32, (fresh_at >> 32) as u32, word as u32, (word >> 32) as u32])
    }

    #[inline]
    const fn fingerprint(&self) -> Fingerprint {
        let Self([a, b, c, ..]) = *self;
        Fingerprint([a, b, c])
    }

    #[inline]
    const fn packed(&self) -> Packed {
        let Self([_, _, _, fresh_low, fresh_high, word_low, word_high]) = *self;
        Packed {
            fresh_at: (fresh_high as u64) << 32 | fresh_low as u64,
            word: (word_high as u64) << 32 | word_low as u64,
        }
    }
}

#[derive(Debug, Clone)]
#[repr(C, align(32))]
struct Group {
    tags: [u8; GROUP_SLOTS],
    levels: [u8; GROUP_SLOTS / 2],
    /// Slots changed since the last journal flush, one bit each.
    dirty: u16,
    /// An insertion found this group full and went on to the next.
    overflowed: bool,
    entries: [Entry; GROUP_SLOTS],
}

const _: () = assert!(size_of::<Group>() == 480, "30 bytes per slot");

#[expect(clippy::indexing_slicing, reason = "slots are masked to the arrays' length")]
impl Group {
    const NEW: Self = Self {
        tags: [EMPTY; GROUP_SLOTS],
        levels: [0; GROUP_SLOTS / 2],
        dirty: 0,
        overflowed: false,
        entries: [Entry::EMPTY; GROUP_SLOTS],
    };

    /// The slots that carry this tag, one bit each.
    #[inline]
    fn matches(&self, tag: u8) -> u32 {
        let mut mask = 0;
        for (slot, candidate) in self.tags.iter().enumerate() {
            mask |= u32::from(*candidate == tag) << slot;
        }
        mask
    }

    #[inline]
    const fn entry(&self, slot: usize) -> &Entry {
        &self.entries[slot % GROUP_SLOTS]
    }

    #[inline]
    const fn tag(&self, slot: usize) -> u8 {
        self.tags[slot % GROUP_SLOTS]
    }

    #[inline]
    const fn level(&self, slot: usize) -> Level {
        (self.levels[(slot % GROUP_SLOTS) / 2] >> (4 * (slot % 2))) & FULL
    }

    #[inline]
    fn set_level(&mut self, slot: usize, level: Level) {
        let byte = &mut self.levels[(slot % GROUP_SLOTS) / 2];
        let shift = 4 * (slot % 2);
        *byte = *byte & !(FULL << shift) | (level & FULL) << shift;
    }

    #[inline]
    fn put(&mut self, slot: usize, fingerprint: Fingerprint, packed: Packed, level: Level) {
        self.tags[slot % GROUP_SLOTS] = fingerprint.tag();
        self.entries[slot % GROUP_SLOTS] = Entry::new(fingerprint, packed);
        self.set_level(slot, level);
        self.dirty |= 1 << (slot % GROUP_SLOTS);
    }

    fn clear(&mut self, slot: usize) {
        self.tags[slot % GROUP_SLOTS] = EMPTY;
        self.dirty &= !(1 << (slot % GROUP_SLOTS));
    }

    #[inline]
    fn find(&self, fingerprint: Fingerprint) -> Option<usize> {
        let mut mask = self.matches(fingerprint.tag());
        while mask != 0 {
            let slot = mask.trailing_zeros() as usize;
            if self.entry(slot).fingerprint() == fingerprint {
                return Some(slot);
            }
            mask &= mask - 1;
        }
        None
    }

    /// A slot that is empty or whose counter is fresh.
    #[inline]
    fn vacancy(&self, now: Nanos) -> Option<usize> {
        let empty = self.matches(EMPTY);
        if empty != 0 {
            return Some(empty.trailing_zeros() as usize);
        }
        (0..GROUP_SLOTS).find(|slot| self.entry(*slot).packed().fresh_at <= now)
    }

    /// The least used counter, the one soonest fresh among equals. A window's `fresh_at` is the
    /// same for all its counters; then the lower count, which is the word, goes first.
    fn least_used(&self) -> usize {
        let rank = |slot: &usize| {
            let packed = self.entry(*slot).packed();
            (self.level(*slot), packed.fresh_at, packed.word)
        };
        (0..GROUP_SLOTS).min_by_key(rank).unwrap_or(0)
    }
}

/// Where an entry is, until the next insertion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    group: u32,
    slot: u32,
}

/// What an insertion did beside inserting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// It took a free slot or that of a fresh counter.
    InRoom,
    /// A counter in use had to go.
    ByEviction,
}

/// The table.
pub(crate) struct Table {
    groups: Vec<Group>,
    most_groups: usize,
    occupied: usize,
    /// Counters lost because a full table could not be rearranged.
    pub(crate) evicted_by_rebuild: u64,
}

impl Table {
    pub(crate) const fn new(most_slots: usize) -> Self {
        let most_groups = most_slots / GROUP_SLOTS;
        let most_groups = if most_groups == 0 { 1 } else { most_groups };
        Self { groups: Vec::new(), most_groups, occupied: 0, evicted_by_rebuild: 0 }
    }

    /// Entries kept, those of fresh counters included.
    pub(crate) const fn len(&self) -> usize {
        self.occupied
    }

    /// Bytes allocated.
    pub(crate) const fn bytes(&self) -> usize {
        self.groups.capacity() * size_of::<Group>()
    }

    #[inline]
    fn following(&self, group: usize) -> usize {
        if group + 1 >= self.groups.len() { 0 } else { group + 1 }
    }

    #[inline]
    pub(crate) fn find(&self, fingerprint: Fingerprint) -> Option<(Place, Packed)> {
        let mut index = fingerprint.home(self.groups.len());
        for _ in 0..self.groups.len().min(PROBES) {
            let group = self.groups.get(index)?;
            if let Some(slot) = group.find(fingerprint) {
                let place = Place { group: index as u32, slot: slot as u32 };
                return Some((place, group.entry(slot).packed()));
            }
            if !group.overflowed {
                return None;
            }
            index = self.following(index);
        }
        None
    }

    /// Overwrites the entry that [`Table::find`] found.
    #[inline]
    pub(crate) fn update(
        &mut self,
        place: Place,
        fingerprint: Fingerprint,
        packed: Packed,
        level: Level,
    ) {
        if let Some(group) = self.groups.get_mut(place.group as usize) {
            group.put(place.slot as usize, fingerprint, packed, level);
        }
    }

    pub(crate) fn remove(&mut self, place: Place) {
        if let Some(group) = self.groups.get_mut(place.group as usize) {
            group.clear(place.slot as usize);
            self.occupied -= 1;
        }
    }

    /// Adds a counter that is not in the table.
    pub(crate) fn insert(
        &mut self,
        fingerprint: Fingerprint,
        packed: Packed,
        level: Level,
        now: Nanos,
    ) -> Inserted {
        let slots = self.groups.len() * GROUP_SLOTS;
        if self.occupied >= slots - slots / 8 && self.groups.len() < self.most_groups {
            self.grow(now);
        }
        loop {
            if self.insert_in_room(fingerprint, packed, level, now) {
                return Inserted::InRoom;
            }
            if self.groups.len() >= self.most_groups {
                break;
            }
            self.grow(now);
        }
        let home = fingerprint.home(self.groups.len());
        if let Some(group) = self.groups.get_mut(home) {
            let slot = group.least_used();
            group.put(slot, fingerprint, packed, level);
        }
        Inserted::ByEviction
    }

    #[inline]
    fn insert_in_room(
        &mut self,
        fingerprint: Fingerprint,
        packed: Packed,
        level: Level,
        now: Nanos,
    ) -> bool {
        let mut index = fingerprint.home(self.groups.len());
        for _ in 0..self.groups.len().min(PROBES) {
            let following = self.following(index);
            let Some(group) = self.groups.get_mut(index) else { return false };
            if let Some(slot) = group.vacancy(now) {
                self.occupied += usize::from(group.tag(slot) == EMPTY);
                group.put(slot, fingerprint, packed, level);
                return true;
            }
            group.overflowed = true;
            index = following;
        }
        false
    }

    /// Rebuilds the table without its fresh counters, an eighth larger than those left need.
    fn grow(&mut self, now: Nanos) {
        let live = self.groups.iter().map(|group| group.live(now)).sum::<usize>();
        let needed = live + live / 8 + GROUP_SLOTS;
        let mut groups = (needed + needed / 7).div_ceil(GROUP_SLOTS);
        if live * 8 >= self.groups.len() * GROUP_SLOTS * 6 {
            groups = groups.max(self.groups.len() + self.groups.len() / 8 + 1);
        }
        self.rebuild(groups.min(self.most_groups), now);
    }

    /// Gives memory back when most of the table is fresh counters.
    pub(crate) fn tidy(&mut self, now: Nanos) {
        if self.groups.len() <= 1 {
            return;
        }
        let live = self.groups.iter().map(|group| group.live(now)).sum::<usize>();
        if live * 2 < self.groups.len() * GROUP_SLOTS {
            let groups = (live + live / 3).div_ceil(GROUP_SLOTS).max(1);
            self.rebuild(groups, now);
        }
    }

    /// Moves the counters in use into a table of so many groups, or of more if their fingerprints
    /// crowd together. What finds no place even in the largest table is evicted.
    fn rebuild(&mut self, groups: usize, now: Nanos) {
        let old = std::mem::take(&mut self.groups);
        let mut groups = groups;
        loop {
            let mut empty = Vec::new();
            empty.reserve_exact(groups);
            empty.resize(groups, Group::NEW);
            self.groups = empty;
            self.occupied = 0;
            let homeless = self.refill(&old, now);
            if homeless == 0 || groups >= self.most_groups {
                self.evicted_by_rebuild += homeless as u64;
                return;
            }
            groups = (groups + groups / 8 + 1).min(self.most_groups);
        }
    }

    fn refill(&mut self, old: &[Group], now: Nanos) -> usize {
        let mut homeless = 0;
        for group in old {
            for slot in 0..GROUP_SLOTS {
                let entry = group.entry(slot);
                if group.tag(slot) == EMPTY || entry.packed().fresh_at <= now {
                    continue;
                }
                let dirty = group.dirty & 1 << slot != 0;
                homeless += usize::from(!self.reinsert(entry, group.level(slot), dirty, now));
            }
        }
        homeless
    }

    fn reinsert(&mut self, entry: &Entry, level: Level, dirty: bool, now: Nanos) -> bool {
        let fingerprint = entry.fingerprint();
        if !self.insert_in_room(fingerprint, entry.packed(), level, now) {
            return false;
        }
        if !dirty
            && let Some((place, _)) = self.find(fingerprint)
            && let Some(group) = self.groups.get_mut(place.group as usize)
        {
            group.dirty &= !(1 << place.slot);
        }
        true
    }

    /// Every counter in use.
    pub(crate) fn for_each(&self, now: Nanos, mut each: impl FnMut(Fingerprint, Packed, Level)) {
        for group in &self.groups {
            for slot in 0..GROUP_SLOTS {
                let entry = group.entry(slot);
                if group.tag(slot) != EMPTY && entry.packed().fresh_at > now {
                    each(entry.fingerprint(), entry.packed(), group.level(slot));
                }
            }
        }
    }

    /// Every counter changed since the last call.
    pub(crate) fn drain_dirty(&mut self, mut each: impl FnMut(Fingerprint, Packed, Level)) {
        for group in &mut self.groups {
            while group.dirty != 0 {
                let slot = group.dirty.trailing_zeros() as usize;
                group.dirty &= group.dirty - 1;
                let entry = group.entry(slot);
                each(entry.fingerprint(), entry.packed(), group.level(slot));
            }
        }
    }
}

impl Group {
    fn live(&self, now: Nanos) -> usize {
        let live =
            |slot: &usize| self.tag(*slot) != EMPTY && self.entry(*slot).packed().fresh_at > now;
        (0..GROUP_SLOTS).filter(live).count()
    }
}
