//! What a check returns.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Examination, Nanos, Outcome};

use crate::Quota;

/// A request that passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    remaining: u64,
    reset_after: Duration,
    wait: Duration,
}

impl Pass {
    /// How many more requests of cost 1 would pass now.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_minute(3));
    /// assert_eq!(limiter.check("ann").unwrap().remaining(), 2);
    /// ```
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The time until the counter is fully reset, if nothing else is charged.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_minute(3));
    /// assert_eq!(limiter.check("ann").unwrap().reset_after(), Duration::from_secs(20));
    /// ```
    pub const fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// How long to wait before going ahead. Zero, except with [`Quota::leaky_bucket`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_minute(3));
    /// assert_eq!(limiter.check("ann").unwrap().wait(), Duration::ZERO);
    /// ```
    pub const fn wait(&self) -> Duration {
        self.wait
    }
}

/// A request that does not pass. Nothing was charged.
///
/// ```
/// # use tollgate::{Limiter, Quota};
/// let limiter = Limiter::keyed(Quota::per_minute(3));
/// let refusal = limiter.check_n("ann", 4).unwrap_err();
/// assert_eq!(refusal.to_string(), "a cost of 4 is above the limit of 3 per minute and never passes");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    quota: Quota,
    cost: u64,
    remaining: u64,
    retry_after: Option<Duration>,
}

impl Refusal {
    /// When the same request passes, if nothing else is charged: it is refused at every instant before, and passes then.
    /// `None`: never, because its cost is above what the limit can ever hold.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_minute(3));
    /// limiter.check_n("ann", 3).unwrap();
    /// let refusal = limiter.check("ann").unwrap_err();
    /// assert!(refusal.retry_after() <= Some(Duration::from_secs(20)));
    /// assert_eq!(limiter.check_n("ann", 4).unwrap_err().retry_after(), None);
    /// ```
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// How much of the limit is left: less than the request costs.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_day(3));
    /// limiter.check_n("ann", 2).unwrap();
    /// assert_eq!(limiter.check_n("ann", 2).unwrap_err().remaining(), 1);
    /// ```
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The quota that was exceeded.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_day(0));
    /// assert_eq!(limiter.check("ann").unwrap_err().quota(), Quota::per_day(0));
    /// ```
    pub const fn quota(&self) -> Quota {
        self.quota
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, cost, .. } = self;
        match self.retry_after {
            Some(after) => write!(f, "limit of {quota} exceeded; retry in {after:?}"),
            None => write!(f, "a cost of {cost} is above the limit of {quota} and never passes"),
        }
    }
}

impl std::error::Error for Refusal {}

/// What the store decided, as callers see it.
pub(crate) fn result_of(
    outcome: &Outcome,
    quota: &Quota,
    cost: u64,
    now: Nanos,
) -> Result<Pass, Refusal> {
    let remaining = outcome.status.remaining;
    let from_now = |at: Nanos| Duration::from_nanos(at.saturating_sub(now));
    match outcome.examination {
        Examination::Admit { wait } => Ok(Pass {
            remaining,
            reset_after: from_now(outcome.status.reset_at),
            wait: Duration::from_nanos(wait),
        }),
        Examination::Refuse { retry_at } => {
            Err(Refusal { quota: *quota, cost, remaining, retry_after: retry_at.map(from_now) })
        }
    }
}
