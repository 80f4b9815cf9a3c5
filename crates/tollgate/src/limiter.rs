//! One quota for each key.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use tollgate_core::{Ask, Limit, Nanos};
use tollgate_engine::{Clock, SystemClock};
use tollgate_store::{MemoryStore, Mode};

use crate::housekeeping::{Housekeeping, TIDY_PARTS};
use crate::outcome::{Pass, Refusal, result_of};
use crate::quota::Quota;

/// How many counters a limiter holds unless [`Limiter::with_max_counters`] says otherwise.
///
/// ```
/// assert_eq!(tollgate::DEFAULT_MAX_COUNTERS, 1_000_000);
/// ```
pub const DEFAULT_MAX_COUNTERS: usize = 1_000_000;

/// One quota for each key.
///
/// A limiter is shared by reference or in an [`Arc`]; checks from any number of threads are exact together. A check never
/// waits. Counters that are fully reset are dropped on the way, so nothing needs to run in the background.
///
/// ```
/// use tollgate::{Limiter, Quota};
///
/// let logins = Limiter::keyed(Quota::per_minute(5));
/// assert!(logins.check("ann").is_ok());
/// assert!(logins.check(&("ann", [127, 0, 0, 1])).is_ok(), "any key that hashes");
/// ```
pub struct Limiter {
    quota: Quota,
    limit: Limit,
    store: MemoryStore,
    time: Time,
    housekeeping: Housekeeping,
}

enum Time {
    System(SystemClock),
    Given(Arc<dyn Clock>),
}

impl Time {
    #[inline]
    fn now(&self) -> Nanos {
        match self {
            Self::System(clock) => clock.now(),
            Self::Given(clock) => clock.now(),
        }
    }
}

impl Limiter {
    /// A limiter with this quota for each key.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_day(1));
    /// assert!(limiter.check("ann").is_ok() && limiter.check("bob").is_ok());
    /// assert!(limiter.check("ann").is_err());
    /// ```
    pub fn keyed(quota: Quota) -> Self {
        Self {
            limit: quota.limit(),
            quota,
            store: MemoryStore::new(DEFAULT_MAX_COUNTERS),
            time: Time::System(SystemClock::new()),
            housekeeping: Housekeeping::default(),
        }
    }

    /// The same with room for this many counters. When all are in use, the one that is nearest to its reset is evicted.
    /// Counts that were made before are dropped.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_second(1)).with_max_counters(10_000);
    /// assert!(limiter.check("ann").is_ok());
    /// ```
    #[must_use]
    pub fn with_max_counters(self, max_counters: usize) -> Self {
        Self { store: MemoryStore::new(max_counters), ..self }
    }

    /// The same with another clock, for tests or for a program with a time of its own.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Limiter, Quota, TestClock};
    /// let clock = TestClock::new();
    /// let limiter = Limiter::keyed(Quota::per_second(1)).with_clock(clock.clone());
    /// assert!(limiter.check("ann").is_ok() && limiter.check("ann").is_err());
    /// clock.advance(Duration::from_secs(1));
    /// assert!(limiter.check("ann").is_ok());
    /// ```
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { time: Time::Given(Arc::new(clock)), ..self }
    }

    /// The quota of each key.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// assert_eq!(Limiter::keyed(Quota::per_day(9)).quota(), Quota::per_day(9));
    /// ```
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Charges a request of cost 1, if it passes.
    ///
    /// Keys of different types that hash alike share a counter (`1u8` and `true`): use one type of key for a limiter.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota, Refusal};
    /// fn report(limiter: &Limiter, user: &str) -> Result<String, Refusal> {
    ///     limiter.check(user)?;
    ///     Ok(format!("a report for {user}"))
    /// }
    /// let limiter = Limiter::keyed(Quota::per_minute(1));
    /// assert!(report(&limiter, "ann").is_ok());
    /// assert!(report(&limiter, "ann").is_err());
    /// ```
    #[inline]
    pub fn check<K: Hash + ?Sized>(&self, key: &K) -> Result<Pass, Refusal> {
        self.decide(key, 1, Mode::Charge)
    }

    /// Charges a request of this cost, all of it or nothing.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_minute(10));
    /// assert_eq!(limiter.check_n("ann", 7).unwrap().remaining(), 3);
    /// assert_eq!(limiter.check_n("ann", 7).unwrap_err().remaining(), 3);
    /// ```
    #[inline]
    pub fn check_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Result<Pass, Refusal> {
        self.decide(key, cost, Mode::Charge)
    }

    /// What [`Limiter::check`] would return now. Charges nothing.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_minute(1));
    /// assert_eq!(limiter.peek("ann").unwrap().remaining(), 1);
    /// assert!(limiter.check("ann").is_ok() && limiter.peek("ann").is_err());
    /// ```
    pub fn peek<K: Hash + ?Sized>(&self, key: &K) -> Result<Pass, Refusal> {
        self.decide(key, 1, Mode::Peek)
    }

    /// Resets the counter of a key.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// let limiter = Limiter::keyed(Quota::per_minute(1));
    /// assert!(limiter.check("ann").is_ok() && limiter.check("ann").is_err());
    /// limiter.reset("ann");
    /// assert!(limiter.check("ann").is_ok());
    /// ```
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) {
        self.store.reset_keyed(key, self.time.now());
    }

    /// Waits until a request of cost 1 passes, and charges it. Returns a refusal only where it can never pass. Requests that
    /// wait for the same key pass in no particular order. Bound the wait with `tokio::time::timeout`; nothing is charged if
    /// the future is dropped.
    ///
    /// ```
    /// # use tollgate::{Limiter, Quota};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Refusal> {
    /// let limiter = Limiter::keyed(Quota::per_second(100).burst(1));
    /// for _ in 0..3 {
    ///     limiter.until_ready("ann").await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn until_ready<K: Hash + ?Sized>(&self, key: &K) -> Result<Pass, Refusal> {
        loop {
            match self.check(key) {
                Ok(pass) => {
                    tokio::time::sleep(pass.wait()).await;
                    return Ok(pass);
                }
                Err(refusal) => match refusal.retry_after() {
                    Some(after) => tokio::time::sleep(after).await,
                    None => return Err(refusal),
                },
            }
        }
    }

    #[inline]
    fn decide<K: Hash + ?Sized>(&self, key: &K, cost: u64, mode: Mode) -> Result<Pass, Refusal> {
        let now = self.time.now();
        if let Some(round) = self.housekeeping.claim(now) {
            self.tidy(round, now);
        }
        let outcome = self.store.decide_keyed(key, &self.limit, &Ask::cost(cost), mode, now);
        result_of(&outcome, &self.quota, cost, now)
    }

    /// Frees counters that are fully reset, in one part of the store, and follows the wall clock.
    #[cold]
    fn tidy(&self, round: usize, now: Nanos) {
        if let Time::System(clock) = &self.time {
            clock.follow();
        }
        self.store.tidy(round, TIDY_PARTS, now);
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("quota", &self.quota).finish_non_exhaustive()
    }
}
