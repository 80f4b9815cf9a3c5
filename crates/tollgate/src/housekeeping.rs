//! Housekeeping on the way: once a second, one of the callers does it.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Nanos, SECOND};

/// The parts of a store that are visited one after another, one each second.
pub(crate) const TIDY_PARTS: usize = 60;

#[derive(Debug, Default)]
pub(crate) struct Housekeeping {
    /// When it is due next.
    due: AtomicU64,
    rounds: AtomicU64,
}

impl Housekeeping {
    /// The number of the round, if one is due: the caller does it.
    #[inline]
    pub(crate) fn claim(&self, now: Nanos) -> Option<usize> {
        if now < self.due.load(Ordering::Relaxed) { None } else { self.claim_due(now) }
    }

    #[cold]
    fn claim_due(&self, now: Nanos) -> Option<usize> {
        let due = self.due.load(Ordering::Relaxed);
        let next = now.saturating_add(SECOND);
        self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        Some(self.rounds.fetch_add(1, Ordering::Relaxed) as usize)
    }
}
