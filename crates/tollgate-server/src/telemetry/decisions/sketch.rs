//! The keys that are seen most, in bounded room: the space-saving sketch.
//!
//! So many keys are counted. A key that is not among them takes the place of the one with the least,
//! and begins with what that one had, which is also the most it may be wrong by. A key with more than
//! a share of 1/entries of all is certainly there, and no count is too low.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by numbers that are hashes already.
pub(super) type ByHash<V> = HashMap<u64, V, BuildHasherDefault<Hashed>>;

/// Takes a hash for what it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[derive(Debug, Clone)]
struct Entry {
    hash: u64,
    name: String,
    count: u64,
    /// How much of the count may be others'.
    error: u64,
}

/// One key of those seen most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) name: String,
    /// At most so often.
    pub(crate) count: u64,
    /// And at least so often.
    pub(crate) at_least: u64,
}

/// Counts the keys that are seen most.
#[derive(Debug, Clone)]
pub(crate) struct Sketch {
    most: usize,
    /// A heap with the least count on top.
    heap: Vec<Entry>,
    /// Where in the heap a key is.
    places: ByHash<usize>,
    total: u64,
}

impl Sketch {
    /// A sketch of at most so many keys; room is taken as they come.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), heap: Vec::new(), places: ByHash::default(), total: 0 }
    }

    /// How much was counted, of all keys.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// How many keys are counted.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// No key that is not here was seen more often.
    pub(crate) fn floor(&self) -> u64 {
        if self.heap.len() < self.most { 0 } else { self.heap.first().map_or(0, |one| one.count) }
    }

    /// Counts a key, known by its hash; it is named when it takes a place.
    pub(crate) fn add(&mut self, hash: u64, weight: u64, name: impl FnOnce() -> String) {
        self.total = self.total.saturating_add(weight);
        if let Some(place) = self.places.get(&hash).copied() {
            if let Some(entry) = self.heap.get_mut(place) {
                entry.count = entry.count.saturating_add(weight);
            }
            self.sink(place);
            return;
        }
        if self.heap.len() < self.most {
            let place = self.heap.len();
            self.heap.push(Entry { hash, name: name(), count: weight, error: 0 });
            self.places.insert(hash, place);
            self.rise(place);
            return;
        }
        let Some(least) = self.heap.first_mut() else { return };
        self.places.remove(&least.hash);
        let error = least.count;
        *least = Entry { hash, name: name(), count: error.saturating_add(weight), error };
        self.places.insert(hash, 0);
        self.sink(0);
    }

    /// Those seen most, the first first.
    pub(crate) fn top(&self, most: usize) -> Vec<Counted> {
        let mut all: Vec<&Entry> = self.heap.iter().collect();
        all.sort_unstable_by(|one, other| {
            other.count.cmp(&one.count).then_with(|| one.name.cmp(&other.name))
        });
        let counted = |entry: &Entry| Counted {
            name: entry.name.clone(),
            count: entry.count,
            at_least: entry.count - entry.error,
        };
        all.into_iter().take(most).map(counted).collect()
    }

    /// Adds what another one has counted. Keys that only one of them has may have been seen by the
    /// other as often as its least one.
    pub(crate) fn merge(&mut self, other: &Self) {
        let (floor, their_floor) = (self.floor(), other.floor());
        let mut all = std::mem::take(&mut self.heap);
        for entry in &mut all {
            let theirs = other.places.get(&entry.hash).and_then(|place| other.heap.get(*place));
            let (count, error) =
                theirs.map_or((their_floor, their_floor), |one| (one.count, one.error));
            entry.count = entry.count.saturating_add(count);
            entry.error = entry.error.saturating_add(error);
        }
        for theirs in &other.heap {
            if !self.places.contains_key(&theirs.hash) {
                let mut entry = theirs.clone();
                entry.count = entry.count.saturating_add(floor);
                entry.error = entry.error.saturating_add(floor);
                all.push(entry);
            }
        }
        all.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.count));
        all.truncate(self.most);
        // In ascending order it is a heap.
        all.reverse();
        self.places = all.iter().enumerate().map(|(place, entry)| (entry.hash, place)).collect();
        self.heap = all;
        self.total = self.total.saturating_add(other.total);
    }

    fn count_at(&self, place: usize) -> Option<u64> {
        self.heap.get(place).map(|entry| entry.count)
    }

    fn rise(&mut self, mut place: usize) {
        while let Some(above) = place.checked_sub(1).map(|below| below / 2) {
            if self.count_at(above) <= self.count_at(place) {
                return;
            }
            self.swap(above, place);
            place = above;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let left = place * 2 + 1;
            let Some(mut least) = self.count_at(left) else { return };
            let mut below = left;
            if let Some(right) = self.count_at(left + 1)
                && right < least
            {
                (least, below) = (right, left + 1);
            }
            if self.count_at(place).is_none_or(|count| count <= least) {
                return;
            }
            self.swap(place, below);
            place = below;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        for place in [one, other] {
            if let Some(entry) = self.heap.get(place) {
                self.places.insert(entry.hash, place);
            }
        }
    }
}
