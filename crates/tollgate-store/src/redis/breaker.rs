//! A circuit breaker: a node that fails again and again is left alone for a moment.
//!
//! A pure state machine: the instant is an argument, and so is the random number that spreads probes.

use std::time::Duration;

/// So many failures in a row open it.
const FAILURES: u32 = 5;

/// How long it stays open at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a probe may take before another one goes.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);

/// What the breaker does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls go through.
    Closed,
    /// Calls fail at once.
    Open,
    /// One call has gone to see whether the node is back.
    Probing,
}

/// Instants are given as the time since an arbitrary start.
#[derive(Debug)]
pub struct Breaker {
    failures: u32,
    pause: Duration,
    /// While open: when a probe may go.
    probe_at: Option<Duration>,
    probing: bool,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 0, pause: FIRST_PAUSE, probe_at: None, probing: false }
    }
}

impl Breaker {
    /// Whether a call may go now. If so, its result must be reported.
    pub fn admits(&mut self, now: Duration) -> bool {
        let Some(probe_at) = self.probe_at else { return true };
        if now < probe_at {
            return false;
        }
        // A probe whose result is never reported must not keep the breaker open for ever.
        self.probe_at = Some(now + PROBE_PATIENCE);
        self.probing = true;
        true
    }

    /// A call was answered: calls go through again.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// A call failed. `spread` from 0 to 255 moves the probe by up to a half of the pause.
    pub fn failed(&mut self, now: Duration, spread: u8) {
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES {
            return;
        }
        if self.probe_at.is_some() && !self.probing {
            // A call that went before it opened.
            return;
        }
        self.probe_at = Some(now + self.pause / 2 + self.pause / 2 * u32::from(spread) / 255);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.probing = false;
    }

    /// What it does at the moment.
    pub fn state(&self) -> BreakerState {
        match (self.probe_at, self.probing) {
            (None, _) => BreakerState::Closed,
            (Some(_), false) => BreakerState::Open,
            (Some(_), true) => BreakerState::Probing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES {
            assert!(breaker.admits(at(0)));
            breaker.failed(at(0), 255);
        }
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_it() {
        let mut breaker = Breaker::default();
        for _ in 0..20 {
            for _ in 0..FAILURES - 1 {
                assert!(breaker.admits(at(0)));
                breaker.failed(at(0), 0);
            }
            breaker.succeeded();
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert_eq!(opened().state(), BreakerState::Open);
    }

    #[test]
    fn one_probe_goes_after_the_pause_and_its_success_closes() {
        let mut breaker = opened();
        assert!(!breaker.admits(at(99)));
        assert!(breaker.admits(at(100)));
        assert_eq!(breaker.state(), BreakerState::Probing);
        assert!(!breaker.admits(at(101)), "one probe only");
        breaker.succeeded();
        assert!(breaker.admits(at(102)));
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn pauses_double_up_to_a_second() {
        let mut breaker = opened();
        let mut now = at(100);
        for pause in [200, 400, 800, 1_000, 1_000] {
            assert!(breaker.admits(now));
            breaker.failed(now, 255);
            assert!(!breaker.admits(now + at(pause - 1)));
            now += at(pause);
        }
        assert!(breaker.admits(now));
    }

    #[test]
    fn stragglers_do_not_move_the_probe() {
        let mut breaker = opened();
        breaker.failed(at(90), 255);
        assert!(breaker.admits(at(100)));
    }

    #[test]
    fn a_probe_without_a_result_is_followed_by_another() {
        let mut breaker = opened();
        assert!(breaker.admits(at(100)));
        assert!(!breaker.admits(at(1_099)));
        assert!(breaker.admits(at(1_100)));
    }

    #[test]
    fn the_spread_brings_a_probe_forward_by_a_half() {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES {
            breaker.failed(at(0), 0);
        }
        assert!(!breaker.admits(at(49)));
        assert!(breaker.admits(at(50)));
    }
}
