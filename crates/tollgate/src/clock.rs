//! A clock that tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::{Nanos, SECOND};

use crate::Clock;

/// Where a test clock starts: the first midnight of 2026, UTC.
const START: Nanos = 1_767_225_600 * SECOND;

/// A clock that moves only when a test moves it. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Quota, TestClock};
///
/// let clock = TestClock::new();
/// let limiter = Limiter::keyed(Quota::per_minute(3)).with_clock(clock.clone());
/// limiter.check_n("ann", 3)?;
/// assert!(limiter.check("ann").is_err());
/// clock.advance(Duration::from_secs(20));
/// assert!(limiter.check("ann").is_ok());
/// # Ok::<(), tollgate::Refusal>(())
/// ```
#[derive(Debug, Clone)]
pub struct TestClock(Arc<AtomicU64>);

impl TestClock {
    /// A clock that stands at a midnight.
    ///
    /// ```
    /// use tollgate::{Clock, TestClock};
    /// assert_eq!(TestClock::new().now(), TestClock::new().now());
    /// ```
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START)))
    }

    /// Moves it forward.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, TestClock};
    /// let clock = TestClock::new();
    /// let before = clock.now();
    /// clock.advance(Duration::from_millis(5));
    /// assert_eq!(clock.now() - before, 5_000_000);
    /// ```
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(by, Ordering::SeqCst);
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TestClock {
    fn now(&self) -> Nanos {
        self.0.load(Ordering::SeqCst)
    }
}
