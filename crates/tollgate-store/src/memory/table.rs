//! A compact hash table of packed counters.
//!
//! Slots come in groups of 16, with a byte of each fingerprint in the group's head, so that a lookup
//! touches two or three cache lines, the first of which is likely at hand. A group that an insertion found full is marked, and only
//! then does a lookup go on to the next one: removal needs no tombstones. An entry whose `fresh_at`
//! has passed is as good as an empty slot and is taken over in place, so nothing ever has to be
//! scanned for expiry. The table grows by an eighth at a time, which keeps it at least three
//! quarters full.

use tollgate_core::Nanos;

use super::fingerprint::Fingerprint;
use super::group::{
    EMPTY, Entries, Entry, GROUP_SLOTS, Head, Level, at, at_mut, find_in, least_used, vacancy,
};
use super::pack::Packed;

/// Groups an insertion looks at before the table grows or something is evicted. Lookups go as far
/// only past groups that were full.
const PROBES: usize = 16;

/// Where an entry is, until the next insertion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    group: u32,
    slot: u32,
}

/// An entry in place.
pub(crate) struct Held<'a> {
    head: &'a mut Head,
    entry: &'a mut Entry,
    slot: usize,
}

impl Held<'_> {
    #[inline]
    pub(crate) const fn packed(&self) -> Packed {
        self.entry.packed()
    }

    /// Overwrites the state. What already says so is not written again: other cores may be reading
    /// the same line.
    #[inline]
    pub(crate) fn write(self, packed: Packed, level: Level) {
        self.entry.set_packed(packed);
        if self.head.level(self.slot) != level || !self.head.is_dirty(self.slot) {
            self.head.mark(self.slot, level);
        }
    }
}

/// What an insertion did beside inserting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// It took a free slot or that of a fresh counter.
    InRoom,
    /// A counter in use had to go.
    ByEviction,
}

/// The table. Heads and entries lie apart, so that the heads of a large table stay in the cache; what
/// a lookup does not need lies apart from both.
pub(crate) struct Table {
    heads: Box<[Head]>,
    entries: Box<[Entries]>,
    books: Box<Books>,
}

struct Books {
    most_groups: usize,
    occupied: usize,
    /// Counters lost because a full table could not be rearranged.
    evicted_by_rebuild: u64,
}

impl Table {
    pub(crate) fn new(most_slots: usize) -> Self {
        let most_groups = (most_slots / GROUP_SLOTS).max(1);
        let books = Books { most_groups, occupied: 0, evicted_by_rebuild: 0 };
        Self { heads: Box::default(), entries: Box::default(), books: Box::new(books) }
    }

    /// Counters lost because a full table could not be rearranged.
    pub(crate) const fn evicted_by_rebuild(&self) -> u64 {
        self.books.evicted_by_rebuild
    }

    /// Entries kept, those of fresh counters included.
    pub(crate) const fn len(&self) -> usize {
        self.books.occupied
    }

    /// Bytes allocated.
    pub(crate) const fn bytes(&self) -> usize {
        size_of_val::<[Head]>(&self.heads) + size_of_val::<[Entries]>(&self.entries)
    }

    #[inline]
    fn following(&self, group: usize) -> usize {
        if group + 1 >= self.heads.len() { 0 } else { group + 1 }
    }

    #[inline]
    pub(crate) fn find(&self, fingerprint: Fingerprint) -> Option<(Place, Packed)> {
        let mut index = fingerprint.home(self.heads.len());
        for _ in 0..PROBES {
            let (head, entries) = (self.heads.get(index)?, self.entries.get(index)?);
            if let Some(slot) = find_in(head, entries, fingerprint) {
                let place = Place { group: index as u32, slot: slot as u32 };
                return Some((place, at(entries, slot).packed()));
            }
            if !head.overflowed {
                return None;
            }
            index = self.following(index);
        }
        None
    }

    /// The entry of a counter, to be read and overwritten in place.
    #[inline]
    pub(crate) fn find_mut(&mut self, fingerprint: Fingerprint) -> Option<Held<'_>> {
        let mut index = fingerprint.home(self.heads.len());
        let mut probes = PROBES;
        let slot = loop {
            let (head, entries) = (self.heads.get(index)?, self.entries.get(index)?);
            if let Some(slot) = find_in(head, entries, fingerprint) {
                break slot;
            }
            probes -= 1;
            if !head.overflowed || probes == 0 {
                return None;
            }
            index = self.following(index);
        };
        let (head, entries) = self.group_mut(index)?;
        Some(Held { head, entry: at_mut(entries, slot), slot })
    }

    #[inline]
    fn group_mut(&mut self, index: usize) -> Option<(&mut Head, &mut Entries)> {
        Some((self.heads.get_mut(index)?, self.entries.get_mut(index)?))
    }

    /// Overwrites the entry that [`Table::find`] found.
    #[inline]
    pub(crate) fn update(&mut self, place: Place, packed: Packed, level: Level) {
        if let Some((head, entries)) = self.group_mut(place.group as usize) {
            let slot = place.slot as usize;
            Held { head, entry: at_mut(entries, slot), slot }.write(packed, level);
        }
    }

    pub(crate) fn remove(&mut self, place: Place) {
        if let Some((head, entries)) = self.group_mut(place.group as usize) {
            head.set_tag(place.slot as usize, EMPTY);
            head.clean(place.slot as usize);
            *at_mut(entries, place.slot as usize) = Entry::EMPTY;
            self.books.occupied -= 1;
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
        let slots = self.heads.len() * GROUP_SLOTS;
        if self.books.occupied >= slots - slots / 8 && self.heads.len() < self.books.most_groups {
            self.grow(0, now);
        }
        loop {
            if self.insert_in_room(fingerprint, packed, level, now).is_some() {
                return Inserted::InRoom;
            }
            if self.heads.len() >= self.books.most_groups {
                break;
            }
            // Other groups may have room, but not this one: only a larger table spreads its
            // entries.
            self.grow(self.heads.len() + self.heads.len() / 8 + 1, now);
        }
        let home = fingerprint.home(self.heads.len());
        if let Some((head, entries)) = self.group_mut(home) {
            let slot = least_used(head, entries);
            *at_mut(entries, slot) = Entry::new(fingerprint, packed);
            head.set_tag(slot, fingerprint.tag());
            head.mark(slot, level);
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
    ) -> Option<Place> {
        let mut index = fingerprint.home(self.heads.len());
        for _ in 0..self.heads.len().min(PROBES) {
            let following = self.following(index);
            let (head, entries) = self.group_mut(index)?;
            if let Some(slot) = vacancy(head, entries, fingerprint, now) {
                *at_mut(entries, slot) = Entry::new(fingerprint, packed);
                let was_empty = head.tag(slot) == EMPTY;
                head.set_tag(slot, fingerprint.tag());
                head.mark(slot, level);
                self.books.occupied += usize::from(was_empty);
                return Some(Place { group: index as u32, slot: slot as u32 });
            }
            head.overflowed = true;
            index = following;
        }
        None
    }

    fn live(&self, now: Nanos) -> usize {
        occupied_slots(&self.heads, &self.entries)
            .filter(|(_, _, entry)| entry.packed().fresh_at > now)
            .count()
    }

    /// Rebuilds the table without its fresh counters, an eighth larger than those left need, and of
    /// at least so many groups.
    #[cold]
    fn grow(&mut self, at_least: usize, now: Nanos) {
        let live = self.live(now);
        let needed = live + live / 8 + GROUP_SLOTS;
        let mut groups = (needed + needed / 7).div_ceil(GROUP_SLOTS);
        if live * 8 >= self.heads.len() * GROUP_SLOTS * 6 {
            groups = groups.max(self.heads.len() + self.heads.len() / 8 + 1);
        }
        self.rebuild(groups.max(at_least).min(self.books.most_groups), now);
    }

    /// Makes room for so many counters more at once.
    pub(crate) fn reserve(&mut self, more: usize, now: Nanos) {
        let counters = self.books.occupied + more;
        let groups = (counters + counters / 6).div_ceil(GROUP_SLOTS).min(self.books.most_groups);
        if groups > self.heads.len() {
            self.rebuild(groups, now);
        }
    }

    /// Gives memory back when most of the table is fresh counters.
    pub(crate) fn tidy(&mut self, now: Nanos) {
        if self.heads.len() <= 1 {
            return;
        }
        let live = self.live(now);
        if live * 2 < self.heads.len() * GROUP_SLOTS {
            let groups = (live + live / 3).div_ceil(GROUP_SLOTS).max(1);
            self.rebuild(groups.min(self.books.most_groups), now);
        }
    }

    /// Moves the counters in use into a table of so many groups, or of more if their fingerprints
    /// crowd together. What finds no place even in the largest table is evicted.
    fn rebuild(&mut self, groups: usize, now: Nanos) {
        let heads = std::mem::take(&mut self.heads);
        let entries = std::mem::take(&mut self.entries);
        let mut groups = groups;
        loop {
            groups = filling_blocks(groups).min(self.books.most_groups);
            self.heads = exactly(groups, Head::NEW);
            self.entries = exactly(groups, [Entry::EMPTY; GROUP_SLOTS]);
            self.books.occupied = 0;
            let unplaced = self.refill(&heads, &entries, now);
            if unplaced == 0 || groups >= self.books.most_groups {
                self.books.evicted_by_rebuild += unplaced;
                return;
            }
            groups = (groups + groups / 8 + 1).min(self.books.most_groups);
        }
    }

    fn refill(&mut self, heads: &[Head], entries: &[Entries], now: Nanos) -> u64 {
        let mut unplaced = 0;
        for (head, slot, entry) in occupied_slots(heads, entries) {
            let (fingerprint, packed) = (entry.fingerprint(), entry.packed());
            if packed.fresh_at <= now {
                continue;
            }
            match self.insert_in_room(fingerprint, packed, head.level(slot), now) {
                Some(place) if !head.is_dirty(slot) => {
                    if let Some(head) = self.heads.get_mut(place.group as usize) {
                        head.clean(place.slot as usize);
                    }
                }
                Some(_) => {}
                None => unplaced += 1,
            }
        }
        unplaced
    }

    /// Every counter in use.
    pub(crate) fn for_each(&self, now: Nanos, mut each: impl FnMut(Fingerprint, Packed, Level)) {
        for (head, slot, entry) in occupied_slots(&self.heads, &self.entries) {
            if entry.packed().fresh_at > now {
                each(entry.fingerprint(), entry.packed(), head.level(slot));
            }
        }
    }

    /// Every counter changed since the last call.
    pub(crate) fn drain_dirty(&mut self, mut each: impl FnMut(Fingerprint, Packed, Level)) {
        for (head, entries) in self.heads.iter_mut().zip(&self.entries) {
            while head.dirty != 0 {
                let slot = head.dirty.trailing_zeros() as usize;
                head.dirty &= head.dirty - 1;
                let entry = at(entries, slot);
                each(entry.fingerprint(), entry.packed(), head.level(slot));
            }
        }
    }
}

/// Every slot that holds an entry: the first ones of all groups, then the second ones, and so on, so
/// that entries come from the whole range of fingerprints. Inserting them into another table in
/// that order fills its groups evenly.
fn occupied_slots<'a>(
    heads: &'a [Head],
    entries: &'a [Entries],
) -> impl Iterator<Item = (&'a Head, usize, &'a Entry)> {
    (0..GROUP_SLOTS).flat_map(move |slot| {
        let groups = heads.iter().zip(entries);
        let occupied = groups.filter(move |(head, _)| head.tag(slot) != EMPTY);
        occupied.map(move |(head, entries)| (head, slot, at(entries, slot)))
    })
}

/// Rounds a large table up to whole blocks of the allocator, which would be taken from it anyway.
fn filling_blocks(groups: usize) -> usize {
    const BLOCK: usize = 64 << 10;
    let bytes = groups * size_of::<Entries>();
    if bytes < BLOCK { groups } else { bytes.next_multiple_of(BLOCK) / size_of::<Entries>() }
}

fn exactly<T: Clone>(length: usize, value: T) -> Box<[T]> {
    vec![value; length].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Packed = Packed { fresh_at: u64::MAX - 1, word: 1 };

    /// A crowded neighbourhood in a roomy table: growing ends, and what has no place is evicted.
    #[test]
    fn fingerprints_that_crowd_together_do_not_grow_the_table_for_ever() {
        let mut table = Table::new(20_000);
        let crowded = |n: u32| Fingerprint([n, 7, n.rotate_left(16)]);
        let evicted = (0..2_000)
            .filter(|n| table.insert(crowded(*n), NEVER, 1, 0) == Inserted::ByEviction)
            .count();
        assert_eq!(table.len() + evicted, 2_000);
        assert!(table.len() >= PROBES * GROUP_SLOTS);
        assert!(table.find(crowded(1_999)).is_some(), "the newest is there");
    }

    /// What a table hands out in its own order can be put into an empty one without growing it past
    /// what it needs.
    #[test]
    fn a_table_refills_another_in_its_own_order() {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u32
        };
        let mut table = Table::new(200_000);
        for _ in 0..50_000 {
            table.insert(Fingerprint([random(), random(), random()]), NEVER, 1, 0);
        }
        let mut copy = Table::new(200_000);
        table.for_each(0, |fingerprint, packed, level| {
            assert_eq!(copy.insert(fingerprint, packed, level, 0), Inserted::InRoom);
        });
        assert_eq!(copy.len(), table.len());
        assert!(copy.bytes() <= table.bytes() * 5 / 4, "{} {}", copy.bytes(), table.bytes());
    }
}
