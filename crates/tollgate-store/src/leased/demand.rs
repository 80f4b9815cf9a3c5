//! How much to take ahead: what is likely to be asked for within a horizon.

use tollgate_core::Nanos;

/// An estimate of what one node asks of one counter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Demand {
    /// What a chunk should hold.
    size: u64,
    /// What was asked for since the last chunk was sized.
    asked: u64,
    /// When that was; 0 before the first.
    since: Nanos,
}

impl Demand {
    #[inline]
    pub(super) const fn ask(&mut self, cost: u64) {
        self.asked = self.asked.saturating_add(cost);
    }

    /// The size of the next chunk. It follows what was asked for since the last one, as a rate times
    /// the horizon: up by doubling at most, so that one burst does not empty the pool; down half way
    /// at a time. A counter that is asked for less often than once in a horizon gets nothing ahead.
    pub(super) fn next(&mut self, at: Nanos, horizon: Nanos) -> u64 {
        let elapsed = at.saturating_sub(self.since).max(1);
        if self.since > 0 {
            let seen = u128::from(self.asked) * u128::from(horizon) / u128::from(elapsed);
            let seen = u64::try_from(seen).unwrap_or(u64::MAX);
            self.size = if seen >= self.size {
                seen.min(self.size.max(self.asked).saturating_mul(2))
            } else {
                // Rounded down, so that it reaches 0.
                self.size.midpoint(seen)
            };
        }
        (self.asked, self.since) = (0, at);
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: Nanos = 100_000_000;

    #[test]
    fn the_first_chunk_is_not_guessed() {
        let mut demand = Demand::default();
        demand.ask(1);
        assert_eq!(demand.next(5 * HORIZON, HORIZON), 0);
    }

    #[test]
    fn chunks_double_until_one_lasts_for_the_horizon() {
        let mut demand = Demand::default();
        let (mut at, mut sizes) = (HORIZON, Vec::new());
        // One a microsecond: 100 000 in a horizon.
        for _ in 0..30 {
            let size = demand.next(at, HORIZON).max(1);
            sizes.push(size);
            demand.ask(size);
            at += size * 1000;
        }
        assert!(sizes.windows(2).all(|pair| pair[1] <= pair[0] * 2), "{sizes:?}");
        let last = sizes.last().copied().unwrap();
        assert!((90_000..=110_000).contains(&last), "{sizes:?}");
    }

    #[test]
    fn chunks_shrink_when_demand_falls_and_vanish_when_it_is_slow() {
        let mut demand = Demand { size: 1000, asked: 0, since: HORIZON };
        let mut at = HORIZON;
        let mut sizes = Vec::new();
        for _ in 0..20 {
            demand.ask(1);
            at += 5 * HORIZON;
            sizes.push(demand.next(at, HORIZON));
        }
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        assert_eq!(sizes.last(), Some(&0));
    }

    #[test]
    fn a_clock_that_stands_still_does_not_overflow() {
        let mut demand = Demand { size: 1, asked: u64::MAX, since: 7 };
        assert_eq!(demand.next(7, u64::MAX), u64::MAX);
        assert_eq!(demand.next(3, u64::MAX), u64::MAX / 2);
    }
}
