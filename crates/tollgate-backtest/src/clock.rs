//! The time of the replay.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::Nanos;
use tollgate_engine::Clock;

/// A clock that is set by the traffic and never goes back, whatever the traffic says: a time that was
/// reached once cannot be used a second time.
#[derive(Debug, Default)]
pub(crate) struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Moves the clock forward to this instant; an earlier one changes nothing.
    pub(crate) fn advance_to(&self, at: Nanos) {
        self.0.fetch_max(at, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        self.0.load(Ordering::Relaxed)
    }
}
