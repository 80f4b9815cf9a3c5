//! How much is asked of one counter on this node, as a rate.
//!
//! Three views of the same requests, of which the highest counts: two metering windows blended
//! (steady), the current window alone (a start after a pause), and what was asked since the last
//! fetch (a jump of the rate). A rate that is too high costs a larger chunk; one that is too low makes
//! requests wait.

use tollgate_core::{Nanos, SECOND};

/// The length of a metering window.
const METER: Nanos = SECOND;

/// The shortest interval that a rate is measured over, so that a few requests at once do not look
/// like a high rate.
const SHORTEST: Nanos = METER / 8;

/// An amount in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    amount: u64,
    per: Nanos,
}

impl Rate {
    /// What is asked for in this time, rounded down.
    pub(super) fn over(&self, time: Nanos) -> u64 {
        let scaled = u128::from(self.amount) * u128::from(time) / u128::from(self.per.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// How long it takes until this amount is asked for.
    pub(super) fn time_of(&self, amount: u64) -> Nanos {
        let scaled = u128::from(amount) * u128::from(self.per) / u128::from(self.amount.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    fn higher(self, other: Self) -> Self {
        let (mine, theirs) = (
            u128::from(self.amount) * u128::from(other.per),
            u128::from(other.amount) * u128::from(self.per),
        );
        if theirs > mine { other } else { self }
    }
}

/// What one window has seen.
#[derive(Debug, Clone, Copy, Default)]
struct Metered {
    amount: u64,
    /// The largest single cost.
    largest: u64,
}

/// What this node asks of one counter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Demand {
    /// When the current window began; 0 before the first request.
    began: Nanos,
    current: Metered,
    previous: Metered,
    /// What was asked for since the last fetch, and when that was; 0 before the first fetch.
    since_fetch: u64,
    fetched_at: Nanos,
}

impl Demand {
    #[inline]
    pub(super) fn ask(&mut self, cost: u64, at: Nanos) {
        if at.abs_diff(self.began) >= METER {
            self.roll(at);
        }
        self.current.amount = self.current.amount.saturating_add(cost);
        self.current.largest = self.current.largest.max(cost);
        self.since_fetch = self.since_fetch.saturating_add(cost);
    }

    #[cold]
    fn roll(&mut self, at: Nanos) {
        let is_next = at >= self.began && at - self.began < 2 * METER;
        self.previous = if is_next { self.current } else { Metered::default() };
        self.began = if is_next { self.began + METER } else { at };
        self.current = Metered::default();
    }

    /// What was asked for in this window.
    #[inline]
    pub(super) const fn in_window(&self) -> u64 {
        self.current.amount
    }

    /// Whether more was asked for lately than one request of this cost.
    pub(super) const fn is_repeated(&self, cost: u64) -> bool {
        self.current.amount.saturating_add(self.previous.amount) > cost
    }

    /// The largest single cost lately, at least 1.
    pub(super) fn largest(&self) -> u64 {
        self.current.largest.max(self.previous.largest).max(1)
    }

    /// A fetch departs.
    pub(super) const fn fetches(&mut self, at: Nanos) {
        (self.since_fetch, self.fetched_at) = (0, at);
    }

    /// The rate now.
    pub(super) fn rate(&self, at: Nanos) -> Rate {
        let age = at.saturating_sub(self.began).min(METER);
        let carried = Rate { amount: self.previous.amount, per: METER }.over(METER - age);
        let steady = Rate { amount: self.current.amount.saturating_add(carried), per: METER };
        let fresh = Rate { amount: self.current.amount, per: age.max(SHORTEST) };
        let rate = steady.higher(fresh);
        if self.fetched_at == 0 {
            return rate;
        }
        let elapsed = at.saturating_sub(self.fetched_at).max(SHORTEST);
        rate.higher(Rate { amount: self.since_fetch, per: elapsed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = 1_789_000_000 * SECOND + 123;

    /// Asks `per_second` times a second from `from` on, for `time`.
    fn steady(demand: &mut Demand, from: Nanos, per_second: u64, time: Nanos) -> Nanos {
        let mut at = from;
        while at < from + time {
            demand.ask(1, at);
            at += SECOND / per_second;
        }
        at
    }

    #[test]
    fn a_steady_rate_is_met_within_a_quarter_once_a_window_has_passed() {
        for per_second in [5, 20, 200, 2_000] {
            let mut demand = Demand::default();
            let mut at = steady(&mut demand, START, per_second, 2 * SECOND);
            for _ in 0..40 {
                at = steady(&mut demand, at, per_second, SECOND / 7);
                let rate = demand.rate(at).over(SECOND);
                assert!(rate + 1 >= per_second, "{rate} of {per_second}");
                assert!(rate <= per_second + per_second / 4 + 8, "{rate} of {per_second}");
            }
        }
    }

    #[test]
    fn a_start_is_seen_before_the_window_is_over() {
        let mut demand = Demand::default();
        let at = steady(&mut demand, START, 200, SECOND / 5);
        assert!(demand.rate(at).over(SECOND) >= 190);
        let mut demand = Demand::default();
        demand.ask(1, START);
        assert!(!demand.is_repeated(1), "one request is no demand");
        demand.ask(1, START + SECOND / 10);
        assert!(demand.is_repeated(1));
    }

    #[test]
    fn a_jump_is_seen_since_the_last_fetch() {
        let mut demand = Demand::default();
        let at = steady(&mut demand, START, 20, 3 * SECOND);
        demand.fetches(at);
        let at = steady(&mut demand, at, 2_000, SECOND / 5);
        assert!(demand.rate(at).over(SECOND) >= 1_900);
    }

    #[test]
    fn a_rate_that_falls_is_forgotten_after_two_windows() {
        let mut demand = Demand::default();
        let at = steady(&mut demand, START, 2_000, 2 * SECOND);
        demand.fetches(at);
        let at = steady(&mut demand, at, 4, 3 * SECOND);
        assert!(demand.rate(at).over(SECOND) <= 6);
        assert_eq!(demand.largest(), 1);
        demand.ask(7, at);
        assert_eq!(demand.largest(), 7);
    }

    #[test]
    fn a_clock_that_is_set_back_begins_anew_and_nothing_overflows() {
        let mut demand = Demand::default();
        let at = steady(&mut demand, START, 100, SECOND / 2);
        steady(&mut demand, at - 3600 * SECOND, 100, SECOND / 2);
        assert!(demand.rate(at - 3600 * SECOND + SECOND / 2).over(SECOND) <= 110);
        demand.ask(u64::MAX, 7);
        demand.ask(u64::MAX, 7);
        assert_eq!(demand.rate(7).over(Nanos::MAX), u64::MAX);
        assert_eq!(Rate { amount: 0, per: 0 }.time_of(u64::MAX), 0);
    }
}
