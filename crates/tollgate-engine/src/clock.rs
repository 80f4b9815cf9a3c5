//! The one place where the clock is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tollgate_core::{Nanos, SECOND};

/// A wall clock that is behind ours by more than this is worth a warning.
const TOLERATED_LAG: Nanos = SECOND;

/// A wall clock that is ahead of ours by more than this is followed. Less is noise.
const FOLLOWED_LEAD: Nanos = SECOND / 1_000;

/// A source of the current time.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the Unix epoch. Never less than it said before.
    fn now(&self) -> Nanos;
}

/// The system's time, made monotonic: it follows the wall clock forward and never goes back with it.
pub struct SystemClock {
    started: Instant,
    /// What the wall clock said at the start, plus the steps it made forward since.
    anchor: AtomicU64,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
impl SystemClock {
    /// A clock that starts at the wall clock's time.
    pub fn new() -> Self {
        Self { started: Instant::now(), anchor: AtomicU64::new(wall()) }
    }

    fn elapsed(&self) -> Nanos {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Follows the wall clock if it has gone ahead. Called about once a second; returns by how much
    /// ours is ahead of it (which it stays) in nanoseconds.
    pub fn follow(&self) -> Nanos {
        let (ours, wall) = (self.now(), wall());
        if wall > ours.saturating_add(FOLLOWED_LEAD) {
            self.anchor.fetch_add(wall - ours, Ordering::Relaxed);
        }
        let ahead = ours.saturating_sub(wall);
        if ahead > TOLERATED_LAG {
            tracing::debug!(
                ahead_ms = ahead / 1_000_000,
                "the wall clock was set back; ours goes on"
            );
        }
        ahead
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn wall() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Nanos {
        self.anchor.load(Ordering::Relaxed).saturating_add(self.elapsed())
    }
}

/// The system's time, corrected by that of the store that nodes share, so that nodes whose clocks
/// differ agree on when a rule begins and which window it is.
pub struct SharedClock {
    system: Arc<SystemClock>,
    /// What is added to the system's time, in nanoseconds.
    correction: AtomicI64,
    /// How far the shared clock was ahead of the system's when last heard of, in nanoseconds.
    drift: AtomicI64,
    /// The latest time that was returned.
    latest: AtomicU64,
}

/// Clocks that differ by less are as good as each other.
const TOLERATED_DIFFERENCE: u64 = SECOND / 10;

impl SharedClock {
    /// A clock that returns the system's time until it is corrected.
    pub const fn new(system: Arc<SystemClock>) -> Self {
        let (correction, drift) = (AtomicI64::new(0), AtomicI64::new(0));
        Self { system, correction, drift, latest: AtomicU64::new(0) }
    }

    /// Follows the clock of this store from now on, which reads `shared` where the system's reads
    /// `system`. Time never goes back: while the store is behind, the clock stands still.
    pub fn follow(&self, system: Nanos, shared: Nanos) {
        let known = self.correction.load(Ordering::Relaxed);
        let difference = i64::try_from(i128::from(shared) - i128::from(system)).unwrap_or(known);
        self.drift.store(difference, Ordering::Relaxed);
        if known.abs_diff(difference) < TOLERATED_DIFFERENCE {
            return;
        }
        self.correction.store(difference, Ordering::Relaxed);
        tracing::warn!(
            ahead_seconds = difference / SECOND.cast_signed(),
            "the shared store's clock differs from this node's; decisions go by the store's"
        );
    }
}

impl SharedClock {
    /// How far the shared clock was ahead of the system's when last heard of, in nanoseconds.
    pub fn drift(&self) -> i64 {
        self.drift.load(Ordering::Relaxed)
    }
}

impl Clock for SharedClock {
    #[inline]
    fn now(&self) -> Nanos {
        let correction = self.correction.load(Ordering::Relaxed);
        if correction == 0 && self.latest.load(Ordering::Relaxed) == 0 {
            return self.system.now();
        }
        let now = self.system.now().saturating_add_signed(correction);
        self.latest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

/// A clock that stands still until it is moved, for tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that says `now`.
    pub const fn new(now: Nanos) -> Self {
        Self(AtomicU64::new(now))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Nanos) {
        self.0.fetch_add(by, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_clock_follows_and_never_goes_back() {
        let system = Arc::new(SystemClock::new());
        let clock = SharedClock::new(Arc::clone(&system));
        let before = clock.now();
        assert!(before >= system.now() - SECOND);
        clock.follow(system.now(), system.now() + SECOND / 20);
        assert!(clock.now() < system.now() + SECOND / 20, "too little to care about");
        clock.follow(system.now(), system.now() + 600 * SECOND);
        let ahead = clock.now();
        assert!(ahead >= before + 599 * SECOND);
        clock.follow(system.now(), system.now() - 600 * SECOND);
        assert!(clock.now() >= ahead);
        assert!(clock.now() < ahead + SECOND, "it waits to be reached");
    }
}
