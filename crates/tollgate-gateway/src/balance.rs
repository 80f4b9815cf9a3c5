//! Which target of a pool is next: smooth weighted round robin over those that are available.

use crate::options::MAX_TARGETS;

/// Targets of one pool that a request has been to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tried(u64);

// A set is one word.
const _: () = assert!(MAX_TARGETS <= u64::BITS as usize);

impl Tried {
    pub(crate) const fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    pub(crate) const fn contains(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }
}

/// The turn of each target of one pool. Each worker has its own, so that none waits for another.
#[derive(Debug)]
pub(crate) struct Balancer {
    turns: Vec<Turn>,
}

#[derive(Debug)]
struct Turn {
    weight: i64,
    credit: i64,
}

impl Balancer {
    pub(crate) fn new(weights: impl Iterator<Item = u32>) -> Self {
        Self { turns: weights.map(|weight| Turn { weight: weight.into(), credit: 0 }).collect() }
    }

    /// The next of those that may be taken: in any stretch each gets its share, spread evenly.
    pub(crate) fn next(&mut self, mut may: impl FnMut(usize) -> bool) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<(usize, i64)> = None;
        for (index, turn) in self.turns.iter_mut().enumerate() {
            if !may(index) {
                continue;
            }
            total += turn.weight;
            turn.credit += turn.weight;
            if best.is_none_or(|(_, credit)| turn.credit > credit) {
                best = Some((index, turn.credit));
            }
        }
        let (index, _) = best?;
        if let Some(turn) = self.turns.get_mut(index) {
            turn.credit -= total;
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn turns_are_spread_evenly() {
        let mut balancer = Balancer::new([5, 1, 1].into_iter());
        let order: Vec<_> = (0..7).map(|_| balancer.next(|_| true).unwrap()).collect();
        assert_eq!(order, [0, 0, 1, 0, 2, 0, 0]);
        assert_eq!(balancer.next(|_| false), None);
        assert_eq!(balancer.next(|index| index == 2), Some(2));
    }

    proptest! {
        #[test]
        fn shares_are_exact_over_a_whole_round(weights in prop::collection::vec(1..20_u32, 1..10)) {
            let mut balancer = Balancer::new(weights.iter().copied());
            let total: u32 = weights.iter().sum();
            let mut counts = vec![0; weights.len()];
            for _ in 0..total * 3 {
                counts[balancer.next(|_| true).unwrap()] += 1;
            }
            let expected: Vec<u32> = weights.iter().map(|weight| weight * 3).collect();
            prop_assert_eq!(counts, expected);
        }
    }
}
