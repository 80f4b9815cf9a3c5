//! Which counters were reset lately: a charge that was made before gives back nothing afterwards.
//!
//! A refund names the window that was charged, and after a reset that window counts other charges. So a reset is noted with
//! its instant until nothing of what it removed would count any more, and refunds of earlier charges are dropped.

use std::collections::HashMap;
use std::hash::Hash;

use tollgate_core::{Nanos, Receipt, SECOND};

/// The most resets that are remembered one by one. Beyond, the oldest one voids the earlier charges of all counters: they
/// stay counted when they are refunded.
const MAX_RESETS: usize = 1024;

/// Threads read the clock before they change a counter. Charges whose instant is so little after that of a reset may have
/// been made before it, and give back nothing either.
pub(crate) const RESET_MARGIN: Nanos = SECOND / 1_000;

#[derive(Debug, Clone, Copy)]
struct Reset {
    /// Charges of earlier instants are void.
    before: Nanos,
    /// From then on none of them would count in any case.
    until: Nanos,
}

/// Resets by counter.
#[derive(Debug)]
pub(crate) struct Resets<K> {
    by_counter: HashMap<K, Reset>,
    /// Charges of earlier instants are void, whichever counter they were made to.
    all_before: Nanos,
}

impl<K> Default for Resets<K> {
    fn default() -> Self {
        Self { by_counter: HashMap::new(), all_before: 0 }
    }
}

impl<K: Copy + Eq + Hash> Resets<K> {
    /// Notes that a counter was reset that would have been fresh at `fresh_at`.
    pub(crate) fn note(&mut self, counter: K, fresh_at: Nanos, now: Nanos) {
        if self.by_counter.len() >= MAX_RESETS {
            self.make_room(now);
        }
        let reset = Reset { before: now.saturating_add(RESET_MARGIN), until: fresh_at };
        let known = self.by_counter.entry(counter).or_insert(reset);
        known.before = known.before.max(reset.before);
        known.until = known.until.max(reset.until);
    }

    /// Whether the receipt is of a charge that a reset has removed.
    pub(crate) fn voids(&self, counter: K, receipt: &Receipt) -> bool {
        let Some(charged_at) = receipt.charged_at() else { return false };
        charged_at < self.all_before
            || self.by_counter.get(&counter).is_some_and(|reset| charged_at < reset.before)
    }

    /// Forgets resets that make no difference any more.
    pub(crate) fn tidy(&mut self, now: Nanos) {
        if !self.by_counter.is_empty() {
            self.by_counter.retain(|_, reset| reset.until > now);
        }
    }

    #[cold]
    fn make_room(&mut self, now: Nanos) {
        self.tidy(now);
        if self.by_counter.len() < MAX_RESETS {
            return;
        }
        let oldest = self.by_counter.iter().min_by_key(|(_, reset)| reset.before);
        if let Some((counter, reset)) = oldest.map(|(counter, reset)| (*counter, *reset)) {
            self.by_counter.remove(&counter);
            self.all_before = self.all_before.max(reset.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn charge(at: Nanos) -> Receipt {
        Receipt::Window { end: 100 * SECOND, at, cost: 1 }
    }

    #[test]
    fn charges_from_before_a_reset_are_void() {
        let mut resets = Resets::default();
        resets.note(1, 100 * SECOND, 10 * SECOND);
        assert!(resets.voids(1, &charge(9 * SECOND)) && resets.voids(1, &charge(10 * SECOND)));
        assert!(!resets.voids(1, &charge(11 * SECOND)), "a later charge");
        assert!(!resets.voids(2, &charge(9 * SECOND)), "another counter");
        resets.note(1, 50 * SECOND, 20 * SECOND);
        assert!(resets.voids(1, &charge(11 * SECOND)), "a second reset");
        resets.tidy(99 * SECOND);
        assert!(resets.voids(1, &charge(9 * SECOND)));
        resets.tidy(100 * SECOND);
        assert!(resets.by_counter.is_empty());
    }

    #[test]
    fn more_resets_than_are_remembered_void_more_and_not_less() {
        let mut resets = Resets::default();
        for counter in 0..=MAX_RESETS as u64 {
            resets.note(counter, 1_000_000 * SECOND, (counter + 1) * SECOND);
        }
        assert_eq!(resets.by_counter.len(), MAX_RESETS, "the bound holds");
        assert!(resets.voids(0, &charge(SECOND)), "the oldest one is not forgotten");
        assert!(resets.voids(u64::MAX, &charge(SECOND)), "at the price of others");
        assert!(!resets.voids(u64::MAX, &charge(2 * SECOND)));
    }
}
