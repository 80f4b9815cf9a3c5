//! What happens without the store, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Fallback;

/// Counts since the start.
#[derive(Debug, Default)]
pub struct FallbackFigures {
    /// Requests that this node decided on its share of the limits.
    pub local: AtomicU64,
    /// Requests that passed uncounted.
    pub open: AtomicU64,
    /// Requests that were refused for want of the store.
    pub closed: AtomicU64,
    /// Times the store was lost.
    pub outages: AtomicU64,
    /// Costs and slots that were reported to the store when it was back.
    pub reported: AtomicU64,
    /// Hand-overs to the store that ended because every node had reported.
    pub handovers: AtomicU64,
    /// Hand-overs that ended because their time was up.
    pub handovers_timed_out: AtomicU64,
    /// Charges that could not be kept for reporting.
    pub dropped_reports: AtomicU64,
}

/// The counts at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) local: u64,
    pub(super) open: u64,
    pub(super) closed: u64,
    pub(super) reported: u64,
}

impl FallbackFigures {
    /// How often a fallback decided, as `rate_limiter_fallback_total` has it.
    pub fn total(&self, mode: Fallback) -> u64 {
        self.of(mode).load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, mode: Fallback) {
        self.of(mode).fetch_add(1, Ordering::Relaxed);
    }

    const fn of(&self, mode: Fallback) -> &AtomicU64 {
        match mode {
            Fallback::Local { .. } => &self.local,
            Fallback::Open => &self.open,
            Fallback::Closed => &self.closed,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            local: self.local.load(Ordering::Relaxed),
            open: self.open.load(Ordering::Relaxed),
            closed: self.closed.load(Ordering::Relaxed),
            reported: self.reported.load(Ordering::Relaxed),
        }
    }
}

impl Counts {
    pub(super) const fn since(self, then: Self) -> Self {
        Self {
            local: self.local - then.local,
            open: self.open - then.open,
            closed: self.closed - then.closed,
            reported: self.reported - then.reported,
        }
    }
}
