//! Trying again: when the server says so, and never sooner.
//!
//! A server that refuses a request states after how long to retry. Clients that were refused at the
//! same time receive the same delay, so the client adds a random delay to it.

use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

use http::header::{DATE, RETRY_AFTER};
use http::{Response, StatusCode};
use tokio::time::sleep;

use crate::date::http_date;
use crate::decision::Decision;
use crate::error::ClientError;

/// When a server says to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfter {
    /// After this long.
    In(Duration),
    /// At this time.
    At(SystemTime),
}

impl RetryAfter {
    /// Reads the header: whole seconds, or a date.
    pub fn parse(value: &str) -> Option<Self> {
        let value = value.trim();
        if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            // More seconds than fit are for ever.
            return Some(Self::In(Duration::from_secs(value.parse().unwrap_or(u64::MAX))));
        }
        http_date(value).map(Self::At)
    }

    /// How long that is from now; nothing if it is over.
    pub fn delay(self, now: SystemTime) -> Duration {
        match self {
            Self::In(duration) => duration,
            Self::At(time) => time.duration_since(now).unwrap_or_default(),
        }
    }
}

/// What an answer says of trying again.
pub trait Reply {
    /// Whether trying again makes sense.
    fn is_retryable(&self) -> bool;

    /// When the server says to.
    fn retry_after(&self) -> Option<RetryAfter> {
        None
    }

    /// What the server's clock said, which its dates are by.
    fn date(&self) -> Option<SystemTime> {
        None
    }
}

/// Only what the server says it has not done is tried again: 429 and 503.
impl<B> Reply for Response<B> {
    fn is_retryable(&self) -> bool {
        matches!(self.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
    }

    fn retry_after(&self) -> Option<RetryAfter> {
        RetryAfter::parse(self.headers().get(RETRY_AFTER)?.to_str().ok()?)
    }

    fn date(&self) -> Option<SystemTime> {
        http_date(self.headers().get(DATE)?.to_str().ok()?)
    }
}

impl Reply for Decision {
    fn is_retryable(&self) -> bool {
        !self.allowed && self.retry_after.is_some()
    }

    fn retry_after(&self) -> Option<RetryAfter> {
        self.retry_after.map(RetryAfter::In)
    }
}

impl Reply for ClientError {
    fn is_retryable(&self) -> bool {
        self.is_transient()
    }

    fn retry_after(&self) -> Option<RetryAfter> {
        match self {
            Self::Unavailable { retry_after, .. } => retry_after.map(RetryAfter::In),
            _ => None,
        }
    }
}

impl<T: Reply, E: Reply> Reply for Result<T, E> {
    fn is_retryable(&self) -> bool {
        match self {
            Ok(reply) => reply.is_retryable(),
            Err(error) => error.is_retryable(),
        }
    }

    fn retry_after(&self) -> Option<RetryAfter> {
        match self {
            Ok(reply) => reply.retry_after(),
            Err(error) => error.retry_after(),
        }
    }

    fn date(&self) -> Option<SystemTime> {
        match self {
            Ok(reply) => reply.date(),
            Err(error) => error.date(),
        }
    }
}

/// How often, and how patiently, something is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// How often it is tried, the first time included.
    pub max_attempts: u32,
    /// The most that is added at random before the second attempt; twice as much before each further one.
    pub base: Duration,
    /// The most that is ever added at random.
    pub cap: Duration,
    /// The most time spent waiting. A server that asks for more is not tried again.
    pub budget: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 4,
            base: Duration::from_millis(200),
            cap: Duration::from_secs(10),
            budget: Duration::from_secs(60),
        }
    }
}

/// What was spent so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// How often it was tried.
    pub attempts: u32,
    /// How long was waited in all.
    pub waited: Duration,
}

impl Retry {
    /// How long to wait before the next attempt; None if there is to be none. What the server asks for, and on
    /// top of it a random share of what attempts so far make of [`base`](Self::base).
    pub fn next(
        &self,
        spent: Spent,
        asked: Option<RetryAfter>,
        now: SystemTime,
        random: &mut impl FnMut() -> u64,
    ) -> Option<Duration> {
        if spent.attempts >= self.max_attempts {
            return None;
        }
        let doublings = spent.attempts.saturating_sub(1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let most = self.base.saturating_mul(factor).min(self.cap);
        let wait = asked.map_or(Duration::ZERO, |asked| asked.delay(now));
        let wait = wait.saturating_add(share(most, random()));
        (spent.waited.saturating_add(wait) <= self.budget).then_some(wait)
    }

    /// Calls until the answer is not worth trying again, or patience ends; returns the last answer.
    pub async fn run<R: Reply, F: Future<Output = R>>(&self, mut call: impl FnMut() -> F) -> R {
        let mut spent = Spent::default();
        loop {
            let reply = call().await;
            spent.attempts += 1;
            if !reply.is_retryable() {
                return reply;
            }
            let now = reply.date().unwrap_or_else(wall_clock);
            let Some(wait) = self.next(spent, reply.retry_after(), now, &mut random) else {
                return reply;
            };
            sleep(wait).await;
            spent.waited += wait;
        }
    }
}

/// A share of a duration, the same for all durations of the same random number.
fn share(most: Duration, random: u64) -> Duration {
    let nanos = most.as_nanos().saturating_mul(u128::from(random)) >> 64;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn random() -> u64 {
    // Without randomness everyone waits the longest: bad for spreading, harmless otherwise.
    getrandom::u64().unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "a date can only be compared with a date")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

impl fmt::Display for RetryAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In(duration) => write!(f, "in {} ms", duration.as_millis()),
            Self::At(_) => f.write_str("at a given time"),
        }
    }
}
