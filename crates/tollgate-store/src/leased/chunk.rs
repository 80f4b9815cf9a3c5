//! A chunk of quota: one charge on the shared counter, spent here piece by piece.
//!
//! Pieces are parts of one refundable charge, and so is what is returned at the end: each is refunded for itself. Pieces
//! that nobody gives back any more are closed with the next fetch, so that the shared counter keeps nothing for them.

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
    /// From then on it may not be spent: its window is over.
    pub(super) void_at: Nanos,
    /// From then on the shared counter no longer counts it in full, so that spending it is admitting
    /// more than the counter would.
    pub(super) late_at: Nanos,
    /// What was spent since.
    pub(super) late: u64,
    /// What was spent and is not given back any more, and is not closed yet.
    pub(super) kept: u64,
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
        kept: 0,
    };

    /// A charge of `whole` at `at`, of which `spent` is gone at once. `reset_at` is when the counter is reset, absent
    /// other traffic; `bridge` is for how long a chunk of a fixed window may be spent after its window.
    pub(super) fn new(
        limit: &Limit,
        receipt: Receipt,
        whole: u64,
        spent: u64,
        (at, wait, reset_at): (Nanos, Nanos, Nanos),
        (expires_at, bridge): (Nanos, Nanos),
    ) -> Self {
        let late_at = match receipt {
            Receipt::Window { end, .. } => end,
            Receipt::Log { at, .. } => at.saturating_add(limit.window_nanos()),
            Receipt::Bucket { .. } | Receipt::LatestOfBucket { .. } | Receipt::Open { .. } => {
                reset_at
            }
            Receipt::Nothing | Receipt::Slot(_) => Nanos::MAX,
        };
        let is_fixed = limit.algorithm() == Algorithm::FixedWindow;
        Self {
            left: whole.saturating_sub(spent),
            whole,
            receipt,
            starts_at: at.saturating_add(wait),
            expires_at,
            void_at: if is_fixed { late_at.saturating_add(bridge) } else { Nanos::MAX },
            late_at,
            late: 0,
            kept: 0,
        }
    }

    #[inline]
    pub(super) const fn may_spend(&self, cost: u64, at: Nanos) -> bool {
        self.left >= cost && at < self.expires_at && at < self.void_at
    }

    /// Whether something is left that can no longer be spent.
    #[inline]
    pub(super) const fn is_expired(&self, at: Nanos) -> bool {
        self.left > 0 && !self.may_spend(1, at)
    }

    /// Whether its window has ended and is forgotten, so that it is worth nothing to the counter.
    pub(super) fn is_worthless(&self, limit: &Limit, at: Nanos) -> bool {
        limit.algorithm() == Algorithm::FixedWindow && at >= self.late_at
    }

    /// When it must be renewed or replaced, so that its end is not noticed: `within` before it expires,
    /// or, in a fixed window, at the end of that.
    pub(super) fn renew_at(&self, limit: &Limit, within: Nanos) -> Nanos {
        let is_fixed = limit.algorithm() == Algorithm::FixedWindow;
        let ends_at = if is_fixed { self.late_at } else { Nanos::MAX };
        self.expires_at.saturating_sub(within).min(ends_at)
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
        Piece { receipt: self.receipt.part(cost), wait }
    }

    /// Takes a piece back if it is of this chunk. What the chunk gets back may not exceed `most`.
    pub(super) fn put_back(&mut self, receipt: &Receipt, most: u64) -> bool {
        let cost = receipt.cost();
        let fits = (1..=most).contains(&cost)
            && cost <= self.whole.saturating_sub(self.left)
            && self.receipt.part(cost) == *receipt;
        if fits {
            self.left += cost;
            // Rather too little is closed than what may be given back.
            self.kept = self.kept.saturating_sub(cost);
        }
        fits
    }

    /// Notes that a piece is not given back any more, if it is of this chunk.
    pub(super) fn keep(&mut self, receipt: &Receipt) -> bool {
        let (cost, spent) = (receipt.cost(), self.whole.saturating_sub(self.left));
        let is_ours = matches!(receipt, Receipt::Open { .. })
            && self.receipt.part(cost) == *receipt
            && cost <= spent.saturating_sub(self.kept);
        if is_ours {
            self.kept += cost;
        }
        is_ours
    }

    /// The receipt of what is to be closed.
    pub(super) fn take_kept(&mut self) -> Option<Receipt> {
        let kept = std::mem::replace(&mut self.kept, 0);
        (kept > 0).then(|| self.receipt.part(kept))
    }

    /// The receipt of what is not spent, if it is worth returning.
    pub(super) fn rest(&self, limit: &Limit, at: Nanos) -> Option<Receipt> {
        let is_worth_it = self.left > 0 && !self.is_worthless(limit, at);
        is_worth_it.then(|| self.receipt.part(self.left))
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
            let receipt = limit.charge(&mut state, &Ask::cost(20).refundable(), NOW);
            let reset_at = limit.status(&state, NOW).reset_at;
            let ends = (NOW + SECOND, 0);
            let mut chunk = Chunk::new(&limit, receipt, 20, 2, (NOW, 0, reset_at), ends);
            let first = chunk.piece(&limit, 2, NOW);
            let second = chunk.spend(&limit, 5, NOW);
            let third = chunk.spend(&limit, 3, NOW);
            assert_eq!(chunk.left, 10, "{algorithm}");
            let in_turn = chunk.put_back(&second.receipt, 100);
            assert!(in_turn, "{algorithm}: whichever was taken last");
            assert!(chunk.put_back(&third.receipt, 3), "{algorithm}");
            assert!(!chunk.put_back(&third.receipt, 2), "{algorithm}: more than allowed");
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
    fn a_leaky_bucket_gives_each_piece_its_turn() {
        let limit = limit(Algorithm::LeakyBucket);
        let mut state = limit.fresh();
        limit.charge(&mut state, &Ask::cost(7), NOW);
        let wait = 6 * SECOND;
        let receipt = limit.charge(&mut state, &Ask::cost(14).refundable(), NOW);
        let reset_at = limit.status(&state, NOW).reset_at;
        let ends = (NOW + 100 * SECOND, 0);
        let mut chunk = Chunk::new(&limit, receipt, 14, 7, (NOW, wait, reset_at), ends);
        assert_eq!(chunk.piece(&limit, 7, NOW).wait, wait);
        assert_eq!(chunk.spend(&limit, 7, NOW + SECOND).wait, 11 * SECOND);
    }

    #[test]
    fn a_fixed_window_takes_its_chunks_with_it_and_others_do_not() {
        for algorithm in costs() {
            let limit = limit(algorithm);
            let mut state = limit.fresh();
            let receipt = limit.charge(&mut state, &Ask::cost(20).refundable(), NOW);
            let reset_at = limit.status(&state, NOW).reset_at;
            let far = NOW + 1000 * SECOND;
            let mut chunk = Chunk::new(&limit, receipt, 20, 2, (NOW, 0, reset_at), (far, 0));
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

    #[test]
    fn a_bridge_lets_a_fixed_windows_chunk_be_spent_for_a_while_and_never_returned() {
        let limit = limit(Algorithm::FixedWindow);
        let mut state = limit.fresh();
        let receipt = limit.charge(&mut state, &Ask::cost(20), NOW);
        let far = NOW + 1000 * SECOND;
        let mut chunk = Chunk::new(&limit, receipt, 20, 0, (NOW, 0, 0), (far, SECOND));
        let over = chunk.late_at;
        assert_eq!(chunk.renew_at(&limit, SECOND), over);
        assert!(chunk.may_spend(1, over) && !chunk.may_spend(1, over + SECOND));
        assert!(chunk.rest(&limit, over).is_none() && chunk.is_expired(over + SECOND));
        chunk.spend(&limit, 3, over);
        assert_eq!(chunk.late, 3, "and it is counted as admitted beyond the window");
    }
}
