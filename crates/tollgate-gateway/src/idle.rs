//! A bound on how long a body may stand still.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Measures how long a source has had nothing to give while somebody asked for it. A reader that does
/// not ask does not count: its own slowness is not the source's.
///
/// A timer is armed only when the source is first waited for, and not moved with every piece.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    limit: Duration,
    waiting_since: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl IdleTimer {
    pub(crate) const fn new(limit: Duration) -> Self {
        Self { limit, waiting_since: None, sleep: None }
    }

    /// Measures from now on, with another limit.
    pub(crate) const fn restart(&mut self, limit: Duration) {
        self.limit = limit;
        self.waiting_since = None;
    }

    /// Measures with another limit, from when it began to.
    pub(crate) const fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// The source gave something.
    pub(crate) const fn progressed(&mut self) {
        self.waiting_since = None;
    }

    /// The source has nothing: ready when that has been so for too long.
    pub(crate) fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let deadline = since + self.limit;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        // It stands from a time with a longer limit.
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(context).is_ready() {
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}
