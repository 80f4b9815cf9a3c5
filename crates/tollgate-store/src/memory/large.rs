//! Counters that do not fit a packed entry: logs, slots, buckets with refundable charges, and the rare oversized
//! small state.
//!
//! They live in a slab with an index beside it, so that a victim can be drawn at random when the
//! budget is spent. The budget is in the same unit as a packed counter (about 40 bytes).

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use tollgate_core::{Nanos, Slots, State};

use super::fingerprint::Fingerprint;
use super::group::Level;

/// What an entry costs beside its contents, in packed counters.
const BASE_WEIGHT: usize = 4;

/// Candidates looked at when something must go.
const SAMPLES: u64 = 16;

/// A counter of variable size.
#[derive(Debug)]
pub(crate) struct Large {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) state: State,
    pub(crate) fresh_at: Nanos,
    pub(crate) level: Level,
    pub(crate) unsaved: Unsaved,
}

/// What the journal does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsaved {
    /// Nothing.
    Nothing,
    /// Nothing, but it was saved to another file than the present journal.
    Elsewhere,
    /// The last entries of a log, this many.
    Tail(u32),
    /// Everything.
    All,
}

impl Unsaved {
    /// Another entry was appended to a log, or its last one grew.
    pub(crate) const fn appended(self) -> Self {
        match self {
            Self::Nothing => Self::Tail(1),
            // One too many where the last entry grew: harmless, entries are saved as absolutes.
            Self::Tail(entries) => Self::Tail(entries.saturating_add(1)),
            Self::Elsewhere | Self::All => Self::All,
        }
    }

    const fn is_something(self) -> bool {
        matches!(self, Self::Tail(_) | Self::All)
    }
}

impl Large {
    fn weight(&self) -> usize {
        BASE_WEIGHT
            + match &self.state {
                State::Small(_) => 0,
                State::Log(log) => log.len() / 2,
                State::Slots(slots) => slots.len(),
                State::Open(open) => open.charges().len() * 2,
            }
    }
}

/// Fingerprints are hashes already.
#[derive(Default, Clone, Copy)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// What the large counters of all shards weigh together. One long log may outweigh its shard's share
/// many times; as long as other shards leave room, its neighbours are not evicted for it.
pub(crate) struct Budget {
    weight: AtomicUsize,
    most_weight: usize,
}

impl Budget {
    pub(crate) const fn new(most_weight: usize) -> Self {
        Self { weight: AtomicUsize::new(0), most_weight }
    }

    fn is_exceeded(&self) -> bool {
        self.weight.load(Ordering::Relaxed) > self.most_weight
    }

    /// Twice the budget: from here on even a counter that is being charged is not spared.
    fn is_far_exceeded(&self) -> bool {
        self.weight.load(Ordering::Relaxed) > self.most_weight.saturating_mul(2)
    }

    fn change(&self, from: usize, to: usize) {
        if to > from {
            self.weight.fetch_add(to - from, Ordering::Relaxed);
        } else if to < from {
            self.weight.fetch_sub(from - to, Ordering::Relaxed);
        }
    }
}

/// The large counters of one shard.
pub(crate) struct LargeCounters {
    slab: Vec<Large>,
    index: HashMap<Fingerprint, u32, BuildHasherDefault<Identity>>,
    weight: usize,
    /// The shard's share of the budget.
    share: usize,
    budget: Arc<Budget>,
    /// Counters that must be written to the journal.
    dirty: Vec<Fingerprint>,
    /// Whether there is a journal to write to.
    journals: bool,
    draw: u64,
}

impl LargeCounters {
    pub(crate) fn new(share: usize, budget: Arc<Budget>, journals: bool) -> Self {
        Self {
            slab: Vec::new(),
            index: HashMap::default(),
            weight: 0,
            share: share.max(BASE_WEIGHT),
            budget,
            dirty: Vec::new(),
            journals,
            draw: 0x9E37_79B9_7F4A_7C15,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.slab.len()
    }

    /// A rough count of the bytes in use.
    pub(crate) const fn bytes(&self) -> usize {
        self.weight * 40
    }

    #[inline]
    fn position(&self, fingerprint: Fingerprint) -> Option<usize> {
        if self.slab.is_empty() {
            return None;
        }
        self.index.get(&fingerprint).map(|position| *position as usize)
    }

    #[inline]
    pub(crate) fn get(&self, fingerprint: Fingerprint) -> Option<&Large> {
        self.position(fingerprint).and_then(|position| self.slab.get(position))
    }

    /// Changes a counter in place and keeps the books.
    pub(crate) fn change<T>(
        &mut self,
        fingerprint: Fingerprint,
        change: impl FnOnce(&mut Large) -> T,
    ) -> Option<T> {
        let large = self.index.get(&fingerprint).and_then(|at| self.slab.get_mut(*at as usize))?;
        let (weight, was) = (large.weight(), large.unsaved);
        let result = change(large);
        if !self.journals {
            large.unsaved = Unsaved::Nothing;
        } else if !was.is_something() && large.unsaved.is_something() {
            self.dirty.push(fingerprint);
        }
        let changed = large.weight();
        self.weight = self.weight + changed - weight;
        self.budget.change(weight, changed);
        Some(result)
    }

    /// Adds a counter that is not there yet, and returns how many in use had to go for it.
    pub(crate) fn insert(&mut self, large: Large, now: Nanos) -> u64 {
        let fingerprint = large.fingerprint;
        if self.journals && large.unsaved.is_something() {
            self.dirty.push(fingerprint);
        }
        self.weight += large.weight();
        self.budget.change(0, large.weight());
        self.index.insert(fingerprint, self.slab.len() as u32);
        self.slab.push(large);
        self.make_room(fingerprint, now)
    }

    /// Brings the weight under the budget, without touching `spared` unless it alone is the trouble.
    pub(crate) fn make_room(&mut self, spared: Fingerprint, now: Nanos) -> u64 {
        let mut evicted = 0;
        while self.weight > self.share && self.budget.is_exceeded() && self.slab.len() > 1 {
            let Some(victim) = self.draw_victim(spared, now) else { break };
            evicted += u64::from(victim.fresh_at > now);
            self.remove(victim.fingerprint);
        }
        if self.weight > self.share && self.budget.is_far_exceeded() && self.remove(spared) {
            evicted += 1;
        }
        evicted
    }

    /// The least used of a few counters drawn at random; one that is fresh at once.
    fn draw_victim(&mut self, spared: Fingerprint, now: Nanos) -> Option<Victim> {
        let mut least: Option<Victim> = None;
        for _ in 0..SAMPLES {
            // xorshift: which ones are drawn need not be secret, only spread.
            self.draw ^= self.draw << 13;
            self.draw ^= self.draw >> 7;
            self.draw ^= self.draw << 17;
            let at = ((u128::from(self.draw) * self.slab.len() as u128) >> 64) as usize;
            let Some(large) = self.slab.get(at) else { continue };
            if large.fingerprint == spared {
                continue;
            }
            let (fingerprint, fresh_at) = (large.fingerprint, large.fresh_at);
            let candidate = Victim { level: large.level, fresh_at, fingerprint };
            if fresh_at <= now {
                return Some(candidate);
            }
            if least.is_none_or(|known| candidate.rank() < known.rank()) {
                least = Some(candidate);
            }
        }
        least
    }

    pub(crate) fn remove(&mut self, fingerprint: Fingerprint) -> bool {
        let Some(position) = self.index.remove(&fingerprint).map(|at| at as usize) else {
            return false;
        };
        if position >= self.slab.len() {
            return false;
        }
        let removed = self.slab.swap_remove(position);
        self.weight -= removed.weight();
        self.budget.change(removed.weight(), 0);
        if let Some(moved) = self.slab.get(position) {
            self.index.insert(moved.fingerprint, position as u32);
        }
        true
    }

    /// Drops the counters that are fresh.
    pub(crate) fn tidy(&mut self, now: Nanos) {
        let mut position = 0;
        while let Some(large) = self.slab.get(position) {
            if large.fresh_at <= now {
                let fingerprint = large.fingerprint;
                self.remove(fingerprint);
            } else {
                position += 1;
            }
        }
        if self.slab.capacity() > 64 && self.slab.len() < self.slab.capacity() / 4 {
            self.slab.shrink_to(self.slab.len() * 2);
            self.index.shrink_to(self.slab.len() * 2);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Large> {
        self.slab.iter()
    }

    pub(crate) const fn pending_changes(&self) -> usize {
        self.dirty.len()
    }

    /// A new journal starts: each log is first written to it as a whole.
    pub(crate) fn expect_new_journal(&mut self) {
        for large in &mut self.slab {
            large.unsaved =
                if large.unsaved.is_something() { Unsaved::All } else { Unsaved::Elsewhere };
        }
    }

    /// Drops the changes that wait for the journal: they were saved to another file, or never will
    /// be.
    pub(crate) fn forget_changes(&mut self) {
        self.dirty = Vec::new();
        for large in &mut self.slab {
            large.unsaved = Unsaved::Elsewhere;
        }
    }

    /// Every counter changed since the last call, with what of it is unsaved.
    pub(crate) fn drain_dirty(&mut self, mut each: impl FnMut(&Large)) {
        for fingerprint in std::mem::take(&mut self.dirty) {
            let Some(at) = self.index.get(&fingerprint) else { continue };
            if let Some(large) = self.slab.get_mut(*at as usize) {
                each(large);
                large.unsaved = Unsaved::Nothing;
            }
        }
    }
}

impl Drop for LargeCounters {
    fn drop(&mut self) {
        self.budget.change(self.weight, 0);
    }
}

#[derive(Clone, Copy)]
struct Victim {
    level: Level,
    fresh_at: Nanos,
    fingerprint: Fingerprint,
}

impl Victim {
    const fn rank(&self) -> (Level, Nanos) {
        (self.level, self.fresh_at)
    }
}

/// The state as slots.
pub(crate) fn as_slots(state: &mut State) -> Option<&mut Slots> {
    if let State::Slots(slots) = state { Some(slots) } else { None }
}
