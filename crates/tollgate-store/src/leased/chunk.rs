//! A chunk of quota: one charge on the shared counter, spent here piece by piece.
//!
//! Pieces are taken from its front, so that on a bucket's time line the unspent rest is always its
//! tail: the pieces' receipts do not overlap, and neither does what is returned at the end.

use tollgate_core::{Algorithm, Limit, Nanos, Receipt};

/// Quota that was charged ahead. With nothing left it is only remembered for give-backs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    /// What is not spent.
    pub(super) left: u64,
    /// What was charged, what was spent at once included.
    pub(super) whole: u64,
    /// The charge.
    pub(super) receipt: Receipt,
    /// When its first unit would leave a leaky bucket.
    pub(super) starts_at: Nanos,
    /// From then on it is not spent: the shared record of it may be gone.
    pub(super) expires_at: Nanos,
    /// From then on it is worth nothing: its window is over and forgotten.
    pub(super) void_at: Nanos,
    /// From then on the shared counter no longer counts it in full, so that spending it is admitting
    /// more than the counter would.
    pub(super) late_at: Nanos,
    /// What was spent since.
    pub(super) late: u64,
}

/// A piece taken from a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) receipt: Receipt,
    pub(super) wait: Nanos,
}

impl Chunk {
    /// No chunk.
    pub(super) const NONE: Self = Self {
        left: 0,
        whole: 0,
        receipt: Receipt::Nothing,
        starts_at: 0,
        expires_at: 0,
        void_at: 0,
        late_at: 0,
        late: 0,
    };

    /// A charge of `whole` at `at`, of which `spent` is gone at once.
    pub(super) fn new(
        limit: &Limit,
        receipt: Receipt,
        whole: u64,
        spent: u64,
        (at, wait): (Nanos, Nanos),
        expires_at: Nanos,
    ) -> Self {
        let late_at = match receipt {
            Receipt::Window { end, .. } => end,
            Receipt::Log { at, .. } => at.saturating_add(limit.window_nanos()),
            Receipt::Bucket { nominal_end, .. } => nominal_end.nanos,
            Receipt::Nothing | Receipt::Slot(_) => Nanos::MAX,
        };
        let is_fixed = limit.algorithm() == Algorithm::FixedWindow;
        Self {
            left: whole.saturating_sub(spent),
            whole,
            receipt,
            starts_at: at.saturating_add(wait),
            expires_at,
            void_at: if is_fixed { late_at } else { Nanos::MAX },
            late_at,
            late: 0,
        }
    }

    #[inline]
    pub(super) const fn may_spend(&self, cost: u64, at: Nanos) -> bool {
        self.left >= cost && at < self.expires_at && at < self.void_at
    }

    /// Takes a piece from the front. The caller knows that it may.
    #[inline]
    pub(super) fn spend(&mut self, limit: &Limit, cost: u64, at: Nanos) -> Piece {
        self.left = self.left.saturating_sub(cost);
        if at >= self.late_at {
            self.late = self.late.saturating_add(cost);
        }
        self.piece(limit, cost, at)
    }

    /// The piece of this cost that ends where the unspent rest begins.
    #[inline]
    pub(super) fn piece(&self, limit: &Limit, cost: u64, at: Nanos) -> Piece {
        let wait = if limit.algorithm() == Algorithm::LeakyBucket {
            let before = self.whole.saturating_sub(self.left).saturating_sub(cost);
            self.starts_at.saturating_add(limit.time_of(before)).saturating_sub(at)
        } else {
            0
        };
        Piece { receipt: limit.part_of(&self.receipt, cost, self.left), wait }
    }

    /// Takes a piece back if it fits where it came from: on a time line only the last one taken
    /// does. What it gets back may not exceed `most`.
    pub(super) fn put_back(&mut self, limit: &Limit, receipt: &Receipt, most: u64) -> bool {
        let cost = match *receipt {
            Receipt::Window { cost, .. }
            | Receipt::Log { cost, .. }
            | Receipt::Bucket { cost, .. } => cost,
            Receipt::Nothing | Receipt::Slot(_) => return false,
        };
        let fits = cost <= most
            && cost <= self.whole.saturating_sub(self.left)
            && limit.part_of(&self.receipt, cost, self.left) == *receipt;
        if fits {
            self.left += cost;
        }
        fits
    }

    /// The receipt of what is not spent, if it is worth returning.
    pub(super) fn rest(&self, limit: &Limit, at: Nanos) -> Option<Receipt> {
        (self.left > 0 && at < self.void_at).then(|| limit.part_of(&self.receipt, self.left, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Ask, LimitSpec, SECOND, Window};

    const NOW: Nanos = 1_789_000_000 * SECOND;

    fn limit(algorithm: Algorithm) -> Limit {
        let burst = algorithm.is_bucket().then_some(70);
        let window = Window::Every(60 * SECOND);
        Limit::new(LimitSpec { algorithm, quota: 70, window, burst, slot_ttl: 1 }).expect("sound")
    }

    fn costs() -> impl Iterator<Item = Algorithm> {
        Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Concurrency)
    }

    /// Whatever is spent, put back and returned: given back in the end, all of it is the whole.
    #[test]
    fn pieces_and_rest_make_up_the_whole() {
        for algorithm in costs() {
            let limit = limit(algorithm);
            let mut state = limit.fresh();
            let receipt = limit.charge(&mut state, &Ask::cost(20), NOW);
            let mut chunk = Chunk::new(&limit, receipt, 20, 2, (NOW, 0), NOW + SECOND);
            let first = chunk.piece(&limit, 2, NOW);
            let second = chunk.spend(&limit, 5, NOW);
            let third = chunk.spend(&limit, 3, NOW);
            assert_eq!(chunk.left, 10, "{algorithm}");
            let in_turn = chunk.put_back(&limit, &second.receipt, 100);
            assert_eq!(in_turn, !algorithm.is_bucket(), "{algorithm}: the third lies behind it");
            assert!(chunk.put_back(&limit, &third.receipt, 3), "{algorithm}");
            assert!(!chunk.put_back(&limit, &third.receipt, 2), "{algorithm}: more than allowed");
            let mut given = vec![chunk.rest(&limit, NOW).expect("something is left")];
            if !in_turn {
                given.push(second.receipt);
            }
            given.push(first.receipt);
            for receipt in given {
                limit.give_back(&mut state, &receipt, NOW);
            }
            assert_eq!(limit.status(&state, NOW).used, 0, "{algorithm}");
        }
    }

    #[test]
    fn a_leaky_bucket_tells_each_piece_its_turn() {
        let limit = limit(Algorithm::LeakyBucket);
        let mut state = limit.fresh();
        limit.charge(&mut state, &Ask::cost(7), NOW);
        let wait = 6 * SECOND;
        let receipt = limit.charge(&mut state, &Ask::cost(14), NOW);
        let mut chunk = Chunk::new(&limit, receipt, 14, 7, (NOW, wait), NOW + 100 * SECOND);
        assert_eq!(chunk.piece(&limit, 7, NOW).wait, wait);
        assert_eq!(chunk.spend(&limit, 7, NOW + SECOND).wait, 11 * SECOND);
    }

    #[test]
    fn a_fixed_window_takes_its_chunks_with_it_and_others_do_not() {
        for algorithm in costs() {
            let limit = limit(algorithm);
            let mut state = limit.fresh();
            let receipt = limit.charge(&mut state, &Ask::cost(20), NOW);
            let far = NOW + 1000 * SECOND;
            let mut chunk = Chunk::new(&limit, receipt, 20, 2, (NOW, 0), far);
            let over = chunk.late_at;
            assert!(chunk.may_spend(18, over - 1) && !chunk.may_spend(19, over - 1));
            let is_fixed = algorithm == Algorithm::FixedWindow;
            assert_eq!(chunk.may_spend(1, over), !is_fixed, "{algorithm}");
            assert_eq!(chunk.rest(&limit, over).is_none(), is_fixed, "{algorithm}");
            assert!(!chunk.may_spend(1, far), "{algorithm}: expired");
            chunk.spend(&limit, 1, over - 1);
            assert_eq!(chunk.late, 0, "{algorithm}");
            chunk.spend(&limit, 2, over);
            assert_eq!(chunk.late, 2, "{algorithm}");
        }
    }
}
