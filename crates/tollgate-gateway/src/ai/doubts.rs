//! Reports of usage that is not believed, at most one every few seconds.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::usage::Doubt;

/// How far reports are apart at least.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Reports that what an upstream stated as its usage is not believed, and what was charged in its place.
pub(super) fn report(model: &str, doubt: Doubt, charged: u64) {
    static REPORTS: Reports = Reports::new();
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    let elapsed = EPOCH.get_or_init(Instant::now).elapsed();
    if let Some(suppressed) = REPORTS.next(elapsed) {
        let (reason, shown) = (doubt.reason(), model.chars().take(100).collect::<String>());
        tracing::warn!(
            model = shown,
            reason,
            charged,
            suppressed,
            "the usage that an upstream stated is not believed: what was counted is charged"
        );
    }
}

/// When a report is due.
struct Reports {
    next_ms: AtomicU64,
    suppressed: AtomicU64,
}

impl Reports {
    const fn new() -> Self {
        Self { next_ms: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// How many were left out before this one; None if this one is, too.
    fn next(&self, elapsed: Duration) -> Option<u64> {
        let now_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        let after_ms = now_ms.saturating_add(REPORT_INTERVAL.as_millis() as u64);
        let is_due = now_ms >= next_ms
            && self
                .next_ms
                .compare_exchange(next_ms, after_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_due {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_seldom_and_count_those_left_out() {
        let reports = Reports::new();
        assert_eq!(reports.next(Duration::ZERO), Some(0));
        assert_eq!(reports.next(Duration::from_secs(9)), None);
        assert_eq!(reports.next(Duration::from_secs(9)), None);
        assert_eq!(reports.next(Duration::from_secs(10)), Some(2));
    }
}
