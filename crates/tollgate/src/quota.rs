//! How much is allowed in what time, and how it is counted.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Algorithm, LONGEST, Limit, LimitSpec, Nanos, SECOND, Window};

const MINUTE: Nanos = 60 * SECOND;
const HOUR: Nanos = 60 * MINUTE;
const DAY: Nanos = 24 * HOUR;

/// How much is allowed in what time.
///
/// A quota is a token bucket unless you choose a window: up to [`burst`](Quota::burst) requests pass at once, and the bucket
/// refills continuously at the stated rate. A quota of 0 refuses every request.
///
/// ```
/// use tollgate::Quota;
///
/// let steady = Quota::per_second(10).burst(1); // one request each 100 ms
/// let bursty = Quota::per_hour(1_000).burst(50);
/// let window = Quota::per_day(10_000).fixed_window(); // starts anew at midnight UTC
/// assert_eq!(bursty.to_string(), "1000 per hour");
/// # let _ = (steady, window);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quota {
    amount: u64,
    window: Nanos,
    burst: u64,
    algorithm: Algorithm,
}

/// A window that cannot be counted: it is empty, or longer than 73 years.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
///
/// let error = Quota::per(Duration::ZERO, 5).unwrap_err();
/// assert_eq!(error.to_string(), "a window must be longer than zero and at most 73 years long");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a window must be longer than zero and at most 73 years long")]
#[non_exhaustive]
pub struct WindowError;

impl Quota {
    const fn every(window: Nanos, amount: u64) -> Self {
        Self { amount, window, burst: amount, algorithm: Algorithm::TokenBucket }
    }

    /// So much per second.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_second(2));
    /// assert_eq!(limiter.check("ann").unwrap().remaining(), 1);
    /// ```
    pub const fn per_second(amount: u64) -> Self {
        Self::every(SECOND, amount)
    }

    /// So much per minute.
    ///
    /// ```
    /// # use tollgate::Quota;
    /// assert_eq!(Quota::per_minute(3).to_string(), "3 per minute");
    /// ```
    pub const fn per_minute(amount: u64) -> Self {
        Self::every(MINUTE, amount)
    }

    /// So much per hour.
    ///
    /// ```
    /// # use tollgate::Quota;
    /// assert_eq!(Quota::per_hour(100).to_string(), "100 per hour");
    /// ```
    pub const fn per_hour(amount: u64) -> Self {
        Self::every(HOUR, amount)
    }

    /// So much per day.
    ///
    /// ```
    /// # use tollgate::Quota;
    /// assert_eq!(Quota::per_day(10_000).to_string(), "10000 per day");
    /// ```
    pub const fn per_day(amount: u64) -> Self {
        Self::every(DAY, amount)
    }

    /// So much per any other window.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::Quota;
    /// let quota = Quota::per(Duration::from_secs(90), 5)?;
    /// assert_eq!(quota.to_string(), "5 per 90s");
    /// # Ok::<(), tollgate::WindowError>(())
    /// ```
    pub fn per(window: Duration, amount: u64) -> Result<Self, WindowError> {
        match Nanos::try_from(window.as_nanos()) {
            Ok(nanos) if (1..=LONGEST).contains(&nanos) => Ok(Self::every(nanos, amount)),
            _ => Err(WindowError),
        }
    }

    /// How much passes at once after a pause; without it, the whole quota. A burst of 1 spaces requests evenly, a burst of 0
    /// refuses every request. A burst that would take more than 73 years to refill counts as one that takes 73 years.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_minute(60).burst(1));
    /// assert!(limiter.check("ann").is_ok());
    /// assert!(limiter.check("ann").is_err(), "the next one passes a second later");
    /// ```
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = burst;
        self
    }

    /// Counts in windows that start at multiples of their length since the Unix epoch. Up to twice the quota can pass around
    /// the end of a window. Windows have no burst.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_day(2).fixed_window());
    /// assert_eq!(limiter.check("ann").unwrap().remaining(), 1);
    /// ```
    #[must_use]
    pub const fn fixed_window(mut self) -> Self {
        self.algorithm = Algorithm::FixedWindow;
        self
    }

    /// Counts in a window that ends now, exactly: never more than the quota in any stretch of the window's length. It keeps an
    /// entry for each admitted request. Windows have no burst.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use tollgate::{Limiter, Quota, TestClock};
    /// let limiter = Limiter::keyed(Quota::per_minute(2).sliding_window());
    /// assert!(limiter.check_n("ann", 2).is_ok() && limiter.check("ann").is_err());
    /// ```
    #[must_use]
    pub const fn sliding_window(mut self) -> Self {
        self.algorithm = Algorithm::SlidingWindowLog;
        self
    }

    /// Counts in a window that ends now, estimated from two fixed windows: constant memory for any quota. Windows have no
    /// burst.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_hour(1_000_000).approximate_sliding_window());
    /// assert_eq!(limiter.check("ann").unwrap().remaining(), 999_999);
    /// ```
    #[must_use]
    pub const fn approximate_sliding_window(mut self) -> Self {
        self.algorithm = Algorithm::SlidingWindowCounter;
        self
    }

    /// Queues instead of refusing: a request passes with the time to [`wait`](crate::Pass::wait) until its turn, and is
    /// refused when [`burst`](Quota::burst) requests are ahead of it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_second(10).leaky_bucket());
    /// assert_eq!(limiter.check("ann").unwrap().wait(), Duration::ZERO);
    /// assert!(limiter.check("ann").unwrap().wait() <= Duration::from_millis(100));
    /// ```
    #[must_use]
    pub const fn leaky_bucket(mut self) -> Self {
        self.algorithm = Algorithm::LeakyBucket;
        self
    }

    pub(crate) const fn window(&self) -> Duration {
        Duration::from_nanos(self.window)
    }

    pub(crate) const fn algorithm_name(&self) -> &'static str {
        self.algorithm.name()
    }

    /// How much is allowed; a burst of 0 lets nothing pass.
    pub(crate) const fn effective_amount(&self) -> u64 {
        if self.algorithm.is_bucket() && self.burst == 0 { 0 } else { self.amount }
    }

    /// The burst, where it is one and is not the quota itself.
    pub(crate) fn own_burst(&self) -> Option<u64> {
        let is_own = self.algorithm.is_bucket() && self.burst != self.amount && self.burst > 0;
        is_own.then_some(self.burst)
    }

    /// Whether both can be quotas of one limit, for different tiers.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        self.window == other.window
            && self.algorithm == other.algorithm
            && self.own_burst() == other.own_burst()
    }

    /// The limit, ready to decide.
    pub(crate) fn limit(&self) -> Limit {
        let is_bucket = self.algorithm.is_bucket();
        let is_suspended = self.amount == 0 || (is_bucket && self.burst == 0);
        let amount = if is_suspended { 0 } else { self.amount };
        let spec = LimitSpec {
            algorithm: self.algorithm,
            quota: amount,
            window: Window::Every(self.window),
            burst: (is_bucket && amount > 0).then(|| self.burst.min(self.max_burst())),
            slot_ttl: SECOND,
        };
        // Every field is within its bounds. Were it not, nothing would pass.
        Limit::new(spec).unwrap_or_else(|_| Limit::suspended())
    }

    /// The largest burst that refills in the longest time that a limit can count.
    fn max_burst(&self) -> u64 {
        let most = u128::from(LONGEST) * u128::from(self.amount) / u128::from(self.window.max(1));
        u64::try_from(most).unwrap_or(u64::MAX).max(1)
    }
}

/// The amount and the window: `3 per minute`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.amount;
        match self.window {
            SECOND => write!(f, "{amount} per second"),
            MINUTE => write!(f, "{amount} per minute"),
            HOUR => write!(f, "{amount} per hour"),
            DAY => write!(f, "{amount} per day"),
            other => write!(f, "{amount} per {:?}", Duration::from_nanos(other)),
        }
    }
}
