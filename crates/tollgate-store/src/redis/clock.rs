//! What a server's clock shows, as well as round trips tell.
//!
//! A server reads its clock somewhere between question and answer, so a sample is wrong by at most half
//! the round trip. One that took long, because somebody was stopped, must not displace a good one.

/// A clock may gain or lose so many microseconds per second against ours.
const DRIFT: i64 = 200;

/// Microseconds, since some beginning of ours where nothing else is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// The server's clock less ours.
    offset: i64,
    /// By how much it was wrong at most, when it was made.
    error: i64,
    made: i64,
}

impl Estimate {
    /// The server's clock showed `theirs` at some instant from `sent` to `received`.
    pub fn new(theirs: i64, sent: i64, received: i64) -> Self {
        let ours = i64::midpoint(sent, received);
        let error = received.saturating_sub(sent) / 2 + 1;
        Self { offset: theirs.saturating_sub(ours), error, made: received }
    }

    /// Half the round trip it was made by.
    pub(super) const fn error(&self) -> i64 {
        self.error
    }

    /// By how much it may be wrong at `now`: half the round trip it was made by, and more with age.
    fn error_at(&self, now: i64) -> i64 {
        let age = now.saturating_sub(self.made).max(0);
        self.error.saturating_add(age / 1_000_000 * DRIFT + age % 1_000_000 * DRIFT / 1_000_000)
    }

    /// The better one of this and a newer one.
    #[must_use]
    pub fn or(self, newer: Self) -> Self {
        let error = self.error_at(newer.made);
        let apart = self.offset.saturating_sub(newer.offset).saturating_abs();
        // Where both cannot be true, the clock was set, or it is another server's.
        let was_set = apart > error.saturating_add(newer.error);
        if was_set || newer.error <= error { newer } else { self }
    }

    /// What the server's clock shows when ours shows `ours`.
    pub fn at(&self, ours: i64) -> Option<u64> {
        u64::try_from(self.offset.saturating_add(ours)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn a_stall_does_not_displace_a_good_sample() {
        // The server is 5 s ahead; the good sample is 100 us wrong at most.
        let good = Estimate::new(5 * SECOND + 1_100, 1_000, 1_200);
        assert_eq!(good.at(0), Some(5_000_000));
        // It read its clock, and then the answer was stuck for two seconds.
        let stalled = Estimate::new(6 * SECOND, SECOND, 3 * SECOND);
        assert_eq!(good.or(stalled), good);
        // The next good one counts again.
        let next = Estimate::new(8 * SECOND + 150, 3 * SECOND, 3 * SECOND + 200);
        assert_eq!(good.or(next), next);
    }

    #[test]
    fn a_sample_grows_old() {
        let good = Estimate::new(5 * SECOND, 0, 200);
        let later = 60 * SECOND;
        let worse = Estimate::new(later + 5 * SECOND, later, later + 10_000);
        assert_eq!(good.or(worse), worse);
        let soon = Estimate::new(SECOND + 5 * SECOND, SECOND, SECOND + 10_000);
        assert_eq!(good.or(soon), good);
    }

    #[test]
    fn a_clock_that_was_set_is_believed_at_once() {
        let good = Estimate::new(5 * SECOND, 0, 200);
        for theirs in [2 * SECOND, 90 * SECOND] {
            let set = Estimate::new(theirs, SECOND, SECOND + 20_000);
            assert_eq!(good.or(set), set);
        }
    }
}
