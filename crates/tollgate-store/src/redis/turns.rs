//! Which requests of one call go at the same time.
//!
//! Requests are decided in order. Where they have no slot in common, nobody can tell; those of one slot go in
//! order in one script; but one that is held in several slots must be settled before the next may see any
//! of them.

use std::collections::BTreeMap;

use super::node_connection::{MAX_CHARGES, MAX_REQUESTS};

/// When the next request that has a slot may go.
#[derive(Debug, Clone, Copy, Default)]
struct Next {
    /// If it has only this slot; so many requests and charges go then already.
    one: usize,
    requests: usize,
    charges: usize,
    /// If it has others too.
    several: usize,
}

/// The turns given so far.
#[derive(Debug, Default)]
pub(super) struct Turns {
    next: BTreeMap<u16, Next>,
    pub(super) last: usize,
}

impl Turns {
    /// The turn of a request that has only this slot.
    pub(super) fn of_one(&mut self, slot: u16, charges: usize) -> usize {
        let next = self.next_of(slot);
        let is_full = next.requests >= MAX_REQUESTS || next.charges + charges > MAX_CHARGES;
        if next.requests > 0 && is_full {
            (next.one, next.requests, next.charges) = (next.one + 1, 0, 0);
        }
        next.requests += 1;
        next.charges += charges;
        let turn = next.one;
        next.several = next.several.max(turn + 1);
        self.last = self.last.max(turn);
        turn
    }

    /// The turn of a request that has these slots.
    pub(super) fn of_several(&mut self, slots: &[u16]) -> usize {
        let turn = slots.iter().map(|slot| self.next_of(*slot).several).max().unwrap_or(0);
        for slot in slots {
            *self.next_of(*slot) = Next { one: turn + 1, several: turn + 1, ..Next::default() };
        }
        self.last = self.last.max(turn);
        turn
    }

    fn next_of(&mut self, slot: u16) -> &mut Next {
        self.next.entry(slot).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_one_slot_go_together_and_those_over_several_wait_for_each_other() {
        let mut turns = Turns::default();
        assert_eq!(turns.of_one(1, 1), 0);
        assert_eq!(turns.of_one(1, 1), 0);
        assert_eq!(turns.of_several(&[1, 2]), 1, "after those of slot 1");
        assert_eq!(turns.of_several(&[3, 4]), 0, "nothing in common");
        assert_eq!(turns.of_several(&[2, 4]), 2);
        assert_eq!(turns.of_one(1, 1), 2);
        assert_eq!(turns.of_one(2, 1), 3);
        assert_eq!(turns.of_one(3, 1), 1);
        assert_eq!(turns.last, 3);
    }

    #[test]
    fn a_call_does_not_grow_without_bounds() {
        let mut turns = Turns::default();
        for request in 0..3 * MAX_REQUESTS {
            assert_eq!(turns.of_one(1, 1), request / MAX_REQUESTS);
        }
        assert_eq!(turns.of_one(2, 2 * MAX_CHARGES), 0);
        assert_eq!(turns.of_one(2, 1), 1);
        assert_eq!(turns.of_several(&[1, 2]), 3);
    }
}
