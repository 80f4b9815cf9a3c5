//! A deadline for each answer, without arming a timer for each request: a timer that goes off too early
//! looks at what is due now and sleeps on.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Nothing came in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expired;

/// The deadline of one lane.
#[derive(Debug)]
pub(crate) struct Deadline {
    timeout: Duration,
    due: Instant,
    /// Never set later than `due`.
    sleep: Pin<Box<Sleep>>,
}

impl Deadline {
    pub(crate) fn new(timeout: Duration, now: Instant) -> Self {
        let due = now + timeout;
        Self { timeout, due, sleep: Box::pin(sleep_until(due)) }
    }

    /// Waits for what begins now.
    pub(crate) async fn within<T>(
        &mut self,
        now: Instant,
        work: impl Future<Output = T>,
    ) -> Result<T, Expired> {
        self.due = now + self.timeout;
        let mut work = pin!(work);
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => self.poll_expired(context).map(|()| Err(Expired)),
        })
        .await
    }

    fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(context).is_ready() {
            if self.sleep.deadline() >= self.due {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(self.due);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_than_its_time_expires_and_the_next_has_its_own_time() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut deadline = Deadline::new(second, start);
        for _ in 0..5 {
            let work = tokio::time::sleep(second * 7 / 10);
            assert_eq!(deadline.within(Instant::now(), work).await, Ok(()));
        }
        let before = Instant::now();
        assert_eq!(deadline.within(before, std::future::pending::<()>()).await, Err(Expired));
        assert_eq!(before.elapsed(), second);
        let work = tokio::time::sleep(second / 2);
        assert_eq!(deadline.within(Instant::now(), work).await, Ok(()));
    }
}
