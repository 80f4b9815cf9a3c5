//! What was last known of every counter, so that a node that is cut off does not start from nothing.
//!
//! Two generations: when the younger is full, it becomes the older, and the older is dropped. What was
//! seen lately is therefore always known, nothing is searched for when room is needed, and memory
//! stays within its bound.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    /// The generation in which it was carried over; 0: in none.
    carried_in: u32,
    /// The store said so after it was carried over.
    is_news: bool,
}

/// How what is known of a counter is accounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carry {
    /// Instead of what is counted: the store knows of that.
    Replace,
    /// At least so much is counted.
    Raise,
}

impl Usage {
    const fn status(self) -> Status {
        Status { used: self.used, remaining: 0, reset_at: self.reset_at }
    }

    /// Whether it is not accounted for in this generation.
    const fn is_due(self, generation: u32) -> bool {
        self.is_news || self.carried_in != generation
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
    /// Counts the hand-overs that have ended, from 1.
    generation: AtomicU32,
    /// When the last one ended. What the store said before may lack what other nodes had admitted.
    fresh_from: AtomicU64,
}

impl Known {
    pub(super) fn new(max_counters: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            per_generation: max_counters.div_ceil(2 * SHARDS).max(1),
            generation: AtomicU32::new(1),
            fresh_from: AtomicU64::new(0),
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
        let (used, reset_at) = (status.used, status.reset_at);
        let mut usage = Usage { at, used, reset_at, carried_in: 0, is_news: true };
        if let Some(known) = young.get_mut(&fingerprint) {
            if usage.is_after(*known) {
                *known = Usage { carried_in: known.carried_in, ..usage };
            }
            return;
        }
        let older = old.get_mut(&fingerprint);
        if let Some(known) = &older {
            if !usage.is_after(**known) {
                return;
            }
            usage.carried_in = known.carried_in;
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

    /// Replaces what is known by the store's answer to a report of what it missed.
    pub(super) fn correct(&self, fingerprint: u128, at: Nanos, status: &Status) {
        if let Some(shard) = self.shard(fingerprint) {
            let mut shard = shard.lock();
            let Generations { young, old } = &mut *shard;
            let usage = young.get_mut(&fingerprint).or_else(|| old.get_mut(&fingerprint));
            if let Some(usage) = usage {
                // Older than anything: what is remembered next replaces it.
                (usage.at, usage.used) = (0, 0);
            }
        }
        self.remember(fingerprint, at, status);
    }

    /// Whether something is known of a counter that is not accounted for.
    pub(super) fn is_news(&self, fingerprint: u128) -> bool {
        let generation = self.generation();
        self.find(fingerprint).is_some_and(|usage| usage.is_due(generation))
    }

    /// Notes that a counter of which nothing is known is decided here. What the store says after this
    /// node's report then adds to what is counted here, and does not replace it. Nothing that is known is
    /// dropped for it: many new keys during an outage must not make a node forget the others.
    pub(super) fn begin(&self, fingerprint: u128) {
        let Some(shard) = self.shard(fingerprint) else { return };
        let mut shard = shard.lock();
        let Generations { young, old } = &mut *shard;
        let is_known = young.contains_key(&fingerprint) || old.contains_key(&fingerprint);
        if !is_known && young.len() < self.per_generation {
            let (carried_in, is_news) = (self.generation(), false);
            young.insert(fingerprint, Usage { at: 0, used: 0, reset_at: 0, carried_in, is_news });
        }
    }

    /// Hands on what is known of a counter: it is accounted for before anybody else can find that it is no
    /// news. It stays known: the next outage may begin before the store has said more.
    pub(super) fn hand_on(&self, fingerprint: u128, account: impl FnOnce(Status, Carry)) {
        let Some(shard) = self.shard(fingerprint) else { return };
        let mut shard = shard.lock();
        let Generations { young, old } = &mut *shard;
        let usage = young.get_mut(&fingerprint).or_else(|| old.get_mut(&fingerprint));
        let generation = self.generation();
        if let Some(usage) = usage.filter(|usage| usage.is_due(generation)) {
            let is_fresh = usage.at >= self.fresh_from.load(Ordering::Relaxed);
            let is_first = usage.carried_in != generation;
            (usage.carried_in, usage.is_news) = (generation, false);
            account(
                usage.status(),
                if is_fresh && is_first { Carry::Replace } else { Carry::Raise },
            );
        }
    }

    /// A hand-over has ended at `at`: what the store says from now on has what all nodes admitted.
    pub(super) fn begin_generation(&self, at: Nanos) {
        self.fresh_from.fetch_max(at, Ordering::Relaxed);
        // Outages do not come by the billion; if they did, one counter might start from nothing.
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
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
        carried(known, fingerprint).map(|(used, _)| used)
    }

    fn carried(known: &Known, fingerprint: u128) -> Option<(u64, Carry)> {
        let mut taken = None;
        known.hand_on(fingerprint, |status, carry| taken = Some((status.used, carry)));
        taken
    }

    #[test]
    fn the_last_answer_counts_and_is_carried_once_in_every_generation() {
        let known = Known::new(1000);
        known.remember(1, AT, &status(3));
        known.remember(1, AT, &status(5));
        assert_eq!(known.get(1), Some(status(5)));
        assert_eq!(carried(&known, 1), Some((5, Carry::Replace)));
        assert!(!known.is_news(1));
        assert_eq!(take(&known, 1), None);
        assert_eq!(known.get(1), Some(status(5)), "it stays known");
        known.begin_generation(AT + 2);
        assert!(known.is_news(1));
        assert_eq!(carried(&known, 1), Some((5, Carry::Raise)), "of before the hand-over ended");
        known.remember(1, AT + 3, &status(6));
        assert_eq!(carried(&known, 1), Some((6, Carry::Raise)), "it was carried already");
        known.begin_generation(AT + 4);
        known.remember(1, AT + 4, &status(7));
        assert_eq!(carried(&known, 1), Some((7, Carry::Replace)));
        known.correct(1, AT + 4, &status(8));
        assert_eq!(carried(&known, 1), Some((8, Carry::Raise)));
        known.remember(2, AT, &status(0));
        assert_eq!(take(&known, 2), None, "nothing used is nothing known");
        known.remember(3, AT, &status(1));
        known.forget(3);
        assert_eq!(take(&known, 3), None);
    }

    #[test]
    fn a_counter_decided_here_before_anything_was_known_is_not_replaced() {
        let known = Known::new(1000);
        known.begin(1);
        assert!(!known.is_news(1));
        known.correct(1, AT, &status(5));
        assert_eq!(carried(&known, 1), Some((5, Carry::Raise)), "what is counted here stays");
        known.remember(2, AT, &status(3));
        known.begin(2);
        assert_eq!(carried(&known, 2), Some((3, Carry::Replace)), "this one was known");
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
