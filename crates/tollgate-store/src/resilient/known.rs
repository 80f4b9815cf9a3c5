//! What was last known of every counter, so that a node that is cut off does not start from nothing.
//!
//! Two generations: when the younger is full, it becomes the older, and the older is dropped. What was
//! seen lately is therefore always known, nothing is searched for when room is needed, and memory
//! stays within its bound.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tollgate_core::{Nanos, Status};

use crate::leased::key::ByFingerprint;

/// A power of two.
const SHARDS: usize = 64;

/// Answers do not overtake each other by more than this: the store's clock was set back.
const CLOCK_STEP: Nanos = 1_000_000_000;

#[derive(Debug, Clone, Copy)]
struct Usage {
    /// When the store said so, on its own clock.
    at: Nanos,
    used: u64,
    reset_at: Nanos,
    /// The memory that accounts for it already; 0: none does.
    carried_to: u32,
}

impl Usage {
    const fn status(self) -> Status {
        Status { used: self.used, remaining: 0, reset_at: self.reset_at }
    }

    /// Whether the store said this after that, in whichever order the answers came. Of what it said in
    /// one instant, more used is later.
    const fn is_after(self, that: Self) -> bool {
        if self.at == that.at {
            return self.used >= that.used;
        }
        self.at > that.at || that.at - self.at > CLOCK_STEP
    }
}

#[repr(align(64))]
#[derive(Default)]
struct Generations {
    young: ByFingerprint<Usage>,
    old: ByFingerprint<Usage>,
}

pub(super) struct Known {
    shards: Box<[Mutex<Generations>]>,
    /// How many counters a generation of a shard may have.
    per_generation: usize,
    /// The number of the memory that decides, from 1.
    memory: AtomicU32,
}

impl Known {
    pub(super) fn new(max_counters: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            per_generation: max_counters.div_ceil(2 * SHARDS).max(1),
            memory: AtomicU32::new(1),
        }
    }

    #[inline]
    fn shard(&self, fingerprint: u128) -> Option<&Mutex<Generations>> {
        self.shards.get(fingerprint as usize & (SHARDS - 1))
    }

    #[inline]
    pub(super) fn remember(&self, fingerprint: u128, at: Nanos, status: &Status) {
        let Some(shard) = self.shard(fingerprint) else { return };
        let mut shard = shard.lock();
        let Generations { young, old } = &mut *shard;
        let usage = Usage { at, used: status.used, reset_at: status.reset_at, carried_to: 0 };
        if let Some(known) = young.get_mut(&fingerprint) {
            if usage.is_after(*known) {
                *known = usage;
            }
            return;
        }
        let older = old.get_mut(&fingerprint);
        if older.as_ref().is_some_and(|known| !usage.is_after(**known)) {
            return;
        }
        if usage.used == 0 {
            // As good as unknown, unless more was known.
            if let Some(known) = older {
                *known = usage;
            }
            return;
        }
        if young.len() >= self.per_generation {
            std::mem::swap(young, old);
            young.clear();
        }
        young.insert(fingerprint, usage);
    }

    /// What the store says after it was told what it missed, whatever it said before.
    pub(super) fn correct(&self, fingerprint: u128, at: Nanos, status: &Status) {
        self.forget(fingerprint);
        self.remember(fingerprint, at, status);
    }

    /// Whether something is known of a counter that the memory does not account for.
    pub(super) fn is_news(&self, fingerprint: u128) -> bool {
        let memory = self.memory.load(Ordering::Relaxed);
        self.find(fingerprint).is_some_and(|usage| usage.carried_to != memory)
    }

    /// Hands on what is known of a counter, once to every memory: whoever gets it accounts for it
    /// before anybody else can find that it is no news. It stays known: the next outage may begin
    /// before the store has said more.
    pub(super) fn hand_on(&self, fingerprint: u128, account: impl FnOnce(Status)) {
        let Some(shard) = self.shard(fingerprint) else { return };
        let mut shard = shard.lock();
        let Generations { young, old } = &mut *shard;
        let usage = young.get_mut(&fingerprint).or_else(|| old.get_mut(&fingerprint));
        let memory = self.memory.load(Ordering::Relaxed);
        if let Some(usage) = usage.filter(|usage| usage.carried_to != memory) {
            usage.carried_to = memory;
            account(usage.status());
        }
    }

    /// Another memory decides from now on, to which nothing was handed on yet.
    pub(super) fn change_memory(&self) {
        // Outages do not come by the billion; if they did, one counter might start from nothing.
        self.memory.fetch_add(1, Ordering::Relaxed);
    }

    fn find(&self, fingerprint: u128) -> Option<Usage> {
        let shard = self.shard(fingerprint)?.lock();
        shard.young.get(&fingerprint).or_else(|| shard.old.get(&fingerprint)).copied()
    }

    /// What is known of a counter.
    pub(super) fn get(&self, fingerprint: u128) -> Option<Status> {
        self.find(fingerprint).map(Usage::status)
    }

    pub(super) fn forget(&self, fingerprint: u128) {
        let Some(shard) = self.shard(fingerprint) else { return };
        let mut shard = shard.lock();
        shard.young.remove(&fingerprint);
        shard.old.remove(&fingerprint);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock()).map(|s| s.young.len() + s.old.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(used: u64) -> Status {
        Status { used, remaining: 0, reset_at: 7 }
    }

    const AT: Nanos = 7;

    fn take(known: &Known, fingerprint: u128) -> Option<u64> {
        let mut taken = None;
        known.hand_on(fingerprint, |status| taken = Some(status.used));
        taken
    }

    #[test]
    fn the_last_word_counts_and_is_handed_on_once_to_every_memory() {
        let known = Known::new(1000);
        known.remember(1, AT, &status(3));
        known.remember(1, AT, &status(5));
        assert_eq!(known.get(1), Some(status(5)));
        assert_eq!(take(&known, 1), Some(5));
        assert!(!known.is_news(1));
        assert_eq!(take(&known, 1), None);
        assert_eq!(known.get(1), Some(status(5)), "it stays known");
        known.change_memory();
        assert!(known.is_news(1));
        assert_eq!(take(&known, 1), Some(5));
        known.remember(1, AT, &status(6));
        assert_eq!(take(&known, 1), Some(6), "a new word is news");
        known.remember(2, AT, &status(0));
        assert_eq!(take(&known, 2), None, "nothing used is nothing known");
        known.remember(3, AT, &status(1));
        known.forget(3);
        assert_eq!(take(&known, 3), None);
    }

    #[test]
    fn what_was_seen_lately_is_known_and_memory_is_bounded() {
        let known = Known::new(1_000);
        let name = |number: u128| number << 64 | number;
        for number in 0..100_000 {
            known.remember(name(number), AT, &status(number as u64 + 1));
            // This one is seen again and again.
            known.remember(name(5), AT, &status(number as u64 + 1));
        }
        assert!(known.len() <= 1_000 + 2 * SHARDS, "{}", known.len());
        assert_eq!(take(&known, name(5)), Some(100_000));
        assert_eq!(take(&known, name(99_999)), Some(100_000));
        assert_eq!(take(&known, name(9)), None);
    }

    #[test]
    fn answers_that_overtake_each_other_are_put_in_order() {
        let known = Known::new(1000);
        known.remember(1, 10, &status(3));
        known.remember(1, 12, &status(5));
        known.remember(1, 11, &status(4));
        known.remember(1, 12, &status(4));
        assert_eq!(known.get(1), Some(status(5)));
        assert_eq!(take(&known, 1), Some(5));
        known.remember(1, 11, &status(4));
        assert!(!known.is_news(1), "an older word is none");
        known.remember(1, 13, &status(2));
        assert_eq!(known.get(1), Some(status(2)), "something was given back");
        known.correct(1, 9, &status(8));
        assert_eq!(known.get(1), Some(status(8)));
        known.remember(1, 5 + 2 * CLOCK_STEP, &status(9));
        known.remember(1, 6, &status(1));
        assert_eq!(known.get(1), Some(status(1)), "the clock was set back");
    }

    #[test]
    fn an_older_word_does_not_come_back() {
        let known = Known::new(SHARDS * 2);
        known.remember(0, AT, &status(9));
        // Another of the same shard makes it old.
        known.remember(1 << 64, AT, &status(1));
        known.remember(0, AT + 1, &status(0));
        assert_eq!(take(&known, 0), Some(0));
    }
}
