//! The bounds of a queue.

use std::time::Duration;

/// The shortest lease: one that ends while its worker is merely slow makes requests go out twice.
const MIN_LEASE: Duration = Duration::from_millis(100);

/// How much a queue takes, how long it keeps it, and how often it tries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOptions {
    /// The most requests that wait or are under way.
    pub max_depth: u64,
    /// The most of one lane.
    pub max_lane_depth: u64,
    /// The most bytes of all requests that are kept, dead letters included. The oldest dead letters make room for a
    /// new request, those of its own lane or tenant where it is their bound. Answers have as much again; the oldest of
    /// them go.
    pub max_bytes: u64,
    /// The most of one tenant's requests, and of those without a tenant.
    pub max_tenant_bytes: u64,
    /// The most of one lane.
    pub max_lane_bytes: u64,
    /// The longest request, headers included.
    pub max_request_bytes: usize,
    /// How much of an answer's body is kept.
    pub max_response_bytes: usize,
    /// A request that has waited longer is not sent any more.
    pub max_age: Duration,
    /// How often a request is tried before it becomes a dead letter.
    pub max_attempts: u32,
    /// How many claims of a request may end without a word of their worker, beside its attempts: a worker
    /// that is killed is not the request's fault, one that dies of each of its requests is.
    pub max_lost_claims: u32,
    /// The pause after the first failure; it doubles with each further one.
    pub first_back_off: Duration,
    /// The longest pause after a failure.
    pub max_back_off: Duration,
    /// How long a claim holds when its worker does not renew it: the pause after a worker was killed.
    pub lease: Duration,
    /// How long the answers to requests can be fetched.
    pub keep_results: Duration,
    /// The most answers that are kept; the oldest go.
    pub max_results: u64,
    /// How long dead letters are kept.
    pub keep_dead: Duration,
    /// The most dead letters that are kept; the oldest go.
    pub max_dead: u64,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            max_depth: 10_000,
            max_lane_depth: 1_000,
            max_bytes: 256 << 20,
            max_tenant_bytes: 64 << 20,
            max_lane_bytes: 16 << 20,
            max_request_bytes: 1 << 20,
            max_response_bytes: 1 << 20,
            max_age: Duration::from_secs(60 * 60),
            max_attempts: 10,
            max_lost_claims: 50,
            first_back_off: Duration::from_secs(1),
            max_back_off: Duration::from_secs(5 * 60),
            lease: Duration::from_secs(15),
            keep_results: Duration::from_secs(60 * 60),
            max_results: 10_000,
            keep_dead: Duration::from_secs(7 * 24 * 60 * 60),
            max_dead: 1_000,
        }
    }
}

impl QueueOptions {
    /// What makes no sense in them, with the option's name.
    pub fn check(&self) -> Result<(), String> {
        let numbers = [
            ("max_depth", self.max_depth),
            ("max_lane_depth", self.max_lane_depth),
            ("max_bytes", self.max_bytes),
            ("max_tenant_bytes", self.max_tenant_bytes),
            ("max_lane_bytes", self.max_lane_bytes),
            ("max_request_bytes", self.max_request_bytes as u64),
            ("max_attempts", u64::from(self.max_attempts)),
            ("max_age", millis(self.max_age)),
            ("keep_results", millis(self.keep_results)),
            ("max_results", self.max_results),
        ];
        if let Some((name, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Err(format!("{name} must be more than 0"));
        }
        if self.lease < MIN_LEASE {
            return Err(format!("lease must be at least {MIN_LEASE:?}"));
        }
        Ok(())
    }

    /// The pause after so many attempts.
    pub fn back_off(&self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(u32::BITS - 1);
        self.first_back_off.saturating_mul(1 << doublings).min(self.max_back_off)
    }
}

/// Whole milliseconds, as stores count.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_named() {
        let wrong = |change: fn(&mut QueueOptions)| {
            let mut options = QueueOptions::default();
            change(&mut options);
            options.check().err().unwrap_or_default()
        };
        assert_eq!(wrong(|_| ()), "");
        assert_eq!(wrong(|options| options.max_attempts = 0), "max_attempts must be more than 0");
        assert_eq!(
            wrong(|options| options.max_age = Duration::ZERO),
            "max_age must be more than 0"
        );
        assert!(wrong(|options| options.lease = Duration::from_millis(1)).starts_with("lease"));
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let options = QueueOptions::default();
        let seconds = |attempts| options.back_off(attempts).as_secs();
        assert_eq!([0, 1, 2, 3, 9, 10, 100].map(seconds), [1, 1, 2, 4, 256, 300, 300]);
    }
}
