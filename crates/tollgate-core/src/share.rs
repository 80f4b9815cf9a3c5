//! Parts: of a limit among nodes, and of a charge among those who spend it.

use crate::state::Status;
use crate::{Algorithm, Limit, LimitSpec, Nanos, Span};

/// The part of `whole` that falls to one of `nodes`: parts differ by one at most and sum up to it.
pub const fn share_of(whole: u64, rank: u32, nodes: u32) -> u64 {
    let nodes = if nodes == 0 { 1 } else { nodes as u64 };
    whole / nodes + ((rank as u64) < whole % nodes) as u64
}

impl Limit {
    /// This limit's part for the node of this rank (from 0) among so many: the shares of all nodes
    /// together admit what the whole admits, and no more. A share of 0, of the quota or of the burst,
    /// admits nothing.
    #[must_use]
    pub fn share(&self, rank: u32, nodes: u32) -> Self {
        let quota = share_of(self.quota(), rank, nodes);
        let capacity = share_of(self.capacity(), rank, nodes);
        let is_bucket = self.algorithm().is_bucket();
        let of = |quota: u64| {
            Self::new(LimitSpec {
                algorithm: self.algorithm(),
                quota,
                window: self.window().clone(),
                burst: (is_bucket && quota > 0).then_some(capacity),
                slot_ttl: self.slot_ttl(),
            })
        };
        // Where a share cannot be counted (no burst, or one that lasts too long), nothing passes;
        // suspending is always possible.
        of(quota).or_else(|_| of(0)).unwrap_or_else(|_| self.clone())
    }

    /// What a counter whose figures were `then` has in use at `now`, absent other traffic.
    #[inline]
    pub fn used_later(&self, then: &Status, now: Nanos) -> u64 {
        let ahead = then.reset_at.saturating_sub(now);
        if ahead == 0 {
            0
        } else if self.algorithm().is_bucket() {
            self.pace().cost_of(Span::whole(ahead)).min(then.used)
        } else {
            then.used
        }
    }

    /// How long this limit takes to pay for a cost, rounded up: for buckets, what it occupies.
    #[inline]
    pub fn time_of(&self, cost: u64) -> Nanos {
        if self.algorithm().is_bucket() { self.pace().span_of(cost).ceil() } else { 0 }
    }

    /// Whether slots are held instead of costs counted.
    pub const fn holds_slots(&self) -> bool {
        matches!(self.algorithm(), Algorithm::Concurrency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ask, SECOND, Window};

    fn limit(algorithm: Algorithm, quota: u64, burst: Option<u64>) -> Limit {
        let window = Window::Every(60 * SECOND);
        Limit::new(LimitSpec { algorithm, quota, window, burst, slot_ttl: SECOND }).expect("sound")
    }

    #[test]
    fn shares_sum_up_to_the_whole() {
        for algorithm in Algorithm::ALL {
            for quota in [0, 1, 2, 3, 7, 10, 99, 100, 1_000_003, u64::from(u32::MAX)] {
                for nodes in [1, 2, 3, 7, 8, 64, 1000] {
                    let burst = (algorithm.is_bucket() && quota > 0).then_some(quota * 2 + 1);
                    let whole = limit(algorithm, quota, burst);
                    let shares: Vec<Limit> = (0..nodes).map(|r| whole.share(r, nodes)).collect();
                    let sum: u64 = shares.iter().map(Limit::quota).sum();
                    assert_eq!(sum, quota, "{algorithm} {quota} among {nodes}");
                    let sum: u64 = shares.iter().map(Limit::capacity).sum();
                    assert!(sum <= whole.capacity(), "{algorithm} {quota} among {nodes}");
                    if quota >= u64::from(nodes) {
                        assert_eq!(sum, whole.capacity(), "{algorithm} {quota} among {nodes}");
                    }
                }
            }
        }
    }

    #[test]
    fn nobody_gets_more_than_one_above_another_and_low_ranks_get_it() {
        let shares: Vec<u64> = (0..4).map(|rank| share_of(10, rank, 4)).collect();
        assert_eq!(shares, [3, 3, 2, 2]);
        assert_eq!(share_of(10, 0, 0), 10, "no nodes at all count as one");
        assert_eq!(share_of(10, 9, 4), 2, "a rank that cannot be gets no more");
    }

    #[test]
    fn a_burst_of_one_falls_to_the_first_node_alone() {
        let whole = limit(Algorithm::Gcra, 100, None);
        assert_eq!(whole.share(0, 3).capacity(), 1);
        let second = whole.share(1, 3);
        assert_eq!((second.quota(), second.capacity()), (0, 0), "it admits nothing");
    }

    #[test]
    fn what_is_used_is_known_later_too() {
        let now = 1_789_000_000 * SECOND;
        for algorithm in Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Concurrency) {
            let limit = limit(algorithm, 60, algorithm.is_bucket().then_some(60));
            let mut state = limit.fresh();
            limit.charge(&mut state, &Ask::cost(30), now);
            let then = limit.status(&state, now);
            assert_eq!(limit.used_later(&then, now), 30, "{algorithm}");
            assert_eq!(limit.used_later(&then, then.reset_at), 0, "{algorithm}");
            let later = now + 10 * SECOND;
            let expected = limit.status(&state, later).used;
            if algorithm.is_bucket() {
                assert_eq!(limit.used_later(&then, later), expected, "{algorithm}");
            }
            assert!(limit.used_later(&then, later) >= expected, "{algorithm}: never too little");
        }
    }

    #[test]
    fn parts_given_back_one_by_one_are_the_whole() {
        let now = 1_789_000_000 * SECOND;
        for algorithm in Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Concurrency) {
            let limit = limit(algorithm, 70, algorithm.is_bucket().then_some(70));
            for later in [0, SECOND, 7 * SECOND] {
                let mut state = limit.fresh();
                limit.charge(&mut state, &Ask::cost(5), now);
                let mut once = state.clone();
                let whole = limit.charge(&mut state, &Ask::cost(10).refundable(), now);
                limit.charge(&mut once, &Ask::cost(10).refundable(), now);
                limit.give_back(&mut once, &whole, now + later);
                for cost in [4, 3, 3] {
                    let part = whole.part(cost);
                    limit.give_back(&mut state, &part, now + later);
                }
                let at = now + later;
                let used = (limit.status(&state, at).used, limit.status(&once, at).used);
                assert_eq!(used.0, used.1, "{algorithm} after {later}");
            }
        }
    }
}
