//! Sixteen slots: their entries, and a head with a tag for each.

use tollgate_core::Nanos;

use super::fingerprint::Fingerprint;
use super::pack::Packed;

pub(crate) const GROUP_SLOTS: usize = 16;

/// Tag of an empty slot.
pub(super) const EMPTY: u8 = 0;

/// How much of its limit a counter has used, in sixteenths. Where something must go, the least used
/// goes first.
pub(crate) type Level = u8;

/// The highest level.
pub(crate) const FULL: Level = 15;

/// 28 bytes, kept as words so that the compiler adds no padding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry([u32; 7]);

impl Entry {
    pub(super) const EMPTY: Self = Self([0; 7]);

    #[inline]
    pub(super) const fn new(fingerprint: Fingerprint, packed: Packed) -> Self {
        let Fingerprint([a, b, c]) = fingerprint;
        let (fresh_at, word) = (packed.fresh_at, packed.word);
        Self([a, b, c, fresh_at as u32, (fresh_at >> 32) as u32, word as u32, (word >> 32) as u32])
    }

    #[inline]
    pub(super) const fn set_packed(&mut self, packed: Packed) {
        let Self([_, _, _, fresh_low, fresh_high, word_low, word_high]) = self;
        (*fresh_low, *fresh_high) = (packed.fresh_at as u32, (packed.fresh_at >> 32) as u32);
        (*word_low, *word_high) = (packed.word as u32, (packed.word >> 32) as u32);
    }

    #[inline]
    pub(super) const fn fingerprint(&self) -> Fingerprint {
        let Self([a, b, c, ..]) = *self;
        Fingerprint([a, b, c])
    }

    #[inline]
    pub(super) const fn packed(&self) -> Packed {
        let Self([_, _, _, fresh_low, fresh_high, word_low, word_high]) = *self;
        Packed {
            fresh_at: (fresh_high as u64) << 32 | fresh_low as u64,
            word: (word_high as u64) << 32 | word_low as u64,
        }
    }
}

/// What is known of a group's slots without their entries: enough to find, judge and mark one.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Head {
    pub(super) tags: [u8; GROUP_SLOTS],
    pub(super) levels: [u8; GROUP_SLOTS / 2],
    /// Slots changed since the last journal flush, one bit each.
    pub(super) dirty: u16,
    /// An insertion found this group full and went on to the next.
    pub(super) overflowed: bool,
}

pub(super) type Entries = [Entry; GROUP_SLOTS];

const _: () = assert!(size_of::<Head>() + size_of::<Entries>() == 480, "30 bytes per slot");

pub(super) const LOW_BITS: u64 = 0x0101_0101_0101_0101;
pub(super) const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// The bytes of `word` that equal `tag`, as their high bits. A byte above an equal one may be shown
/// too, wrongly; the lowest is always right.
#[inline]
pub(super) const fn equal_bytes(word: u64, tag: u8) -> u64 {
    let difference = word ^ (LOW_BITS * tag as u64);
    difference.wrapping_sub(LOW_BITS) & !difference & HIGH_BITS
}

#[expect(clippy::indexing_slicing, reason = "slots are masked to the arrays' length")]
impl Head {
    pub(super) const NEW: Self = Self {
        tags: [EMPTY; GROUP_SLOTS],
        levels: [0; GROUP_SLOTS / 2],
        dirty: 0,
        overflowed: false,
    };

    #[inline]
    pub(super) const fn words(&self) -> [u64; 2] {
        let all = u128::from_le_bytes(self.tags);
        [all as u64, (all >> 64) as u64]
    }

    #[inline]
    pub(super) const fn first_empty(&self) -> Option<usize> {
        let [low, high] = self.words();
        let (low, high) = (equal_bytes(low, EMPTY), equal_bytes(high, EMPTY));
        if low != 0 {
            Some(low.trailing_zeros() as usize / 8)
        } else if high != 0 {
            Some(8 + high.trailing_zeros() as usize / 8)
        } else {
            None
        }
    }

    #[inline]
    pub(super) const fn tag(&self, slot: usize) -> u8 {
        self.tags[slot % GROUP_SLOTS]
    }

    #[inline]
    pub(super) const fn level(&self, slot: usize) -> Level {
        (self.levels[(slot % GROUP_SLOTS) / 2] >> (4 * (slot % 2))) & FULL
    }

    #[inline]
    pub(super) fn mark(&mut self, slot: usize, level: Level) {
        let byte = &mut self.levels[(slot % GROUP_SLOTS) / 2];
        let shift = 4 * (slot % 2);
        *byte = *byte & !(FULL << shift) | (level & FULL) << shift;
        self.dirty |= 1 << (slot % GROUP_SLOTS);
    }

    #[inline]
    pub(super) fn set_tag(&mut self, slot: usize, tag: u8) {
        self.tags[slot % GROUP_SLOTS] = tag;
    }

    pub(super) const fn is_dirty(&self, slot: usize) -> bool {
        self.dirty & 1 << (slot % GROUP_SLOTS) != 0
    }

    pub(super) fn clean(&mut self, slot: usize) {
        self.dirty &= !(1 << (slot % GROUP_SLOTS));
    }
}

/// The entry of a slot.
#[inline]
#[expect(clippy::indexing_slicing, reason = "masked to the array's length")]
pub(super) const fn at(entries: &Entries, slot: usize) -> &Entry {
    &entries[slot % GROUP_SLOTS]
}

#[inline]
#[expect(clippy::indexing_slicing, reason = "masked to the array's length")]
pub(super) const fn at_mut(entries: &mut Entries, slot: usize) -> &mut Entry {
    &mut entries[slot % GROUP_SLOTS]
}

/// The slot of a fingerprint. Most are where they would rather be, which is known without the head: the
/// entry can be fetched at once. A slot that was emptied holds no fingerprint.
#[inline]
pub(super) fn find_in(head: &Head, entries: &Entries, fingerprint: Fingerprint) -> Option<usize> {
    let preferred = fingerprint.preferred_slot();
    if at(entries, preferred).fingerprint() == fingerprint {
        return Some(preferred);
    }
    for (half, word) in head.words().into_iter().enumerate() {
        let mut equal = equal_bytes(word, fingerprint.tag());
        while equal != 0 {
            let slot = half * 8 + equal.trailing_zeros() as usize / 8;
            if at(entries, slot).fingerprint() == fingerprint {
                return Some(slot);
            }
            equal &= equal - 1;
        }
    }
    None
}

/// A slot that is empty or whose counter is fresh, the preferred one if it is.
#[inline]
pub(super) fn vacancy(
    head: &Head,
    entries: &Entries,
    fingerprint: Fingerprint,
    now: Nanos,
) -> Option<usize> {
    let preferred = fingerprint.preferred_slot();
    if head.tag(preferred) == EMPTY {
        return Some(preferred);
    }
    head.first_empty().or_else(|| entries.iter().position(|entry| entry.packed().fresh_at <= now))
}

/// The least used counter, the one soonest fresh among equals. A window's `fresh_at` is the same for
/// all its counters; then the lower count, which is the word, goes first.
pub(super) fn least_used(head: &Head, entries: &Entries) -> usize {
    let rank = |slot: &usize| {
        let packed = at(entries, *slot).packed();
        (head.level(*slot), packed.fresh_at, packed.word)
    };
    (0..GROUP_SLOTS).min_by_key(rank).unwrap_or(0)
}
