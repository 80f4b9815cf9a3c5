//! One fetch under way: the charge that started it receives its answer, others wait until it has
//! landed.

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tollgate_core::{Outcome, Receipt};

use crate::StoreError;

/// What a fetch brought to the charge that it was started for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Landing {
    /// It is charged, with this outcome.
    Granted(Outcome),
    /// The counter has no room.
    Refused(Outcome),
    /// It was not started for a charge.
    Nothing,
    /// The store did not answer.
    Failed(StoreError),
}

/// A fetch that is on its way or has landed.
#[derive(Debug)]
pub(super) struct Flight {
    /// Has no permits, ever; closed when the fetch has landed, which wakes all who wait.
    landed: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    landing: Option<Landing>,
    /// Nobody will ask for the landing.
    is_abandoned: bool,
}

impl Flight {
    pub(super) fn new() -> Self {
        Self { landed: Semaphore::new(0), state: Mutex::default() }
    }

    /// Returns when the fetch has landed.
    pub(super) async fn wait(&self) {
        // The only answer is that it was closed.
        let _closed = self.landed.acquire().await;
    }

    /// The answer, once it is there; for the one who started the fetch.
    pub(super) fn landing(&self) -> Option<Landing> {
        self.state.lock().landing
    }

    /// Why it failed, for those who only waited.
    pub(super) fn failure(&self) -> Option<StoreError> {
        match self.landing()? {
            Landing::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Says the answer. What comes back was charged for somebody who has gone, and is to be undone.
    pub(super) fn land(&self, landing: Landing) -> Option<Receipt> {
        let mut state = self.state.lock();
        state.landing = Some(landing);
        let is_abandoned = state.is_abandoned;
        drop(state);
        self.landed.close();
        is_abandoned.then(|| granted(landing)).flatten()
    }

    /// The one who started it has gone. What comes back was charged already, and is to be undone.
    pub(super) fn abandon(&self) -> Option<Receipt> {
        let mut state = self.state.lock();
        state.is_abandoned = true;
        state.landing.and_then(granted)
    }
}

fn granted(landing: Landing) -> Option<Receipt> {
    match landing {
        Landing::Granted(outcome) => Some(outcome.receipt),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;
    use tollgate_core::{Examination, Status};

    fn outcome() -> Outcome {
        Outcome {
            examination: Examination::Admit { wait: 0 },
            status: Status::default(),
            receipt: Receipt::Window { end: 1, at: 0, cost: 2 },
        }
    }

    #[tokio::test]
    async fn all_who_wait_are_woken_and_latecomers_do_not_wait() {
        let flight = std::sync::Arc::new(Flight::new());
        let waiters: Vec<_> = (0..10)
            .map(|_| {
                let flight = std::sync::Arc::clone(&flight);
                tokio::spawn(async move { flight.wait().await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(flight.landing().is_none());
        assert!(flight.land(Landing::Failed(Failure::Timeout.into())).is_none());
        for waiter in waiters {
            waiter.await.expect("woken");
        }
        flight.wait().await;
        assert_eq!(flight.failure(), Some(Failure::Timeout.into()));
    }

    #[test]
    fn what_was_charged_for_nobody_is_undone_once() {
        let before = Flight::new();
        assert!(before.abandon().is_none());
        assert_eq!(before.land(Landing::Granted(outcome())), Some(outcome().receipt));
        let after = Flight::new();
        assert!(after.land(Landing::Granted(outcome())).is_none());
        assert_eq!(after.abandon(), Some(outcome().receipt));
    }
}
