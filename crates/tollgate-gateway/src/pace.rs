//! A bound on how slowly a client may send a body. Not a deadline for the whole: an upload may take as long as it
//! likes, as long as it gets on.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::idle::IdleTimer;

/// Measures a client while somebody waits for it.
///
/// A client may pause for `idle`. Waiting for it uses up a credit of as much time, and every byte earns some of it
/// back, at the least rate that is asked for. A client below that rate runs out of credit, however short its pauses
/// are; one that was fast before is no better off than one that begins.
#[derive(Debug)]
pub(crate) struct ClientPace {
    idle: Duration,
    /// In bytes per second; 0 asks for none.
    min_rate: u64,
    credit: Duration,
    waiting_since: Option<Instant>,
    timer: IdleTimer,
}

impl ClientPace {
    pub(crate) const fn new(idle: Duration, min_rate: u64) -> Self {
        let timer = IdleTimer::new(idle);
        Self { idle, min_rate, credit: idle, waiting_since: None, timer }
    }

    /// The client sent so many bytes.
    pub(crate) fn progressed(&mut self, bytes: usize) {
        self.timer.progressed();
        if let Some(since) = self.waiting_since.take() {
            self.credit = self.credit.saturating_sub(since.elapsed());
        }
        if let Some(nanos) = (bytes as u64).saturating_mul(1_000_000_000).checked_div(self.min_rate)
        {
            let earned = Duration::from_nanos(nanos);
            self.credit = self.credit.saturating_add(earned).min(self.idle);
        }
    }

    /// The client has nothing to give: ready when that has been so for too long, or when it is too slow. Once the
    /// upstream answers, both talk at their own pace, and only pauses count.
    pub(crate) fn poll_expired(
        &mut self,
        context: &mut Context<'_>,
        is_answered: bool,
    ) -> Poll<()> {
        if self.waiting_since.is_none() {
            self.waiting_since = Some(Instant::now());
        }
        let is_measured = self.min_rate > 0 && !is_answered;
        self.timer.set_limit(if is_measured { self.credit } else { self.idle });
        self.timer.poll_expired(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const IDLE: Duration = Duration::from_secs(30);
    const RATE: u64 = 100;

    /// Whether a client is cut that sends so many bytes, again and again, after such pauses; and after how long.
    async fn cut_after(pace: &mut ClientPace, bytes: usize, pause: Duration) -> Option<Duration> {
        let start = Instant::now();
        for _ in 0..10_000 {
            let expired = poll_fn(|context| pace.poll_expired(context, false));
            if tokio::time::timeout(pause, expired).await.is_ok() {
                return Some(start.elapsed());
            }
            pace.progressed(bytes);
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_drips_is_cut_and_a_slow_one_is_not() {
        let second = Duration::from_secs(1);
        let cut = cut_after(&mut ClientPace::new(IDLE, RATE), 1, second).await.unwrap();
        assert!(cut < IDLE * 2, "{cut:?}");
        // Whatever it sent before.
        let mut pace = ClientPace::new(IDLE, RATE);
        pace.progressed(usize::MAX);
        assert!(cut_after(&mut pace, 1, second).await.unwrap() < IDLE * 2);
        let slow = usize::try_from(RATE).unwrap();
        assert_eq!(cut_after(&mut ClientPace::new(IDLE, RATE), slow, second).await, None);
        assert_eq!(cut_after(&mut ClientPace::new(IDLE, RATE), 20 * slow, second * 20).await, None);
        assert_eq!(cut_after(&mut ClientPace::new(IDLE, 0), 1, second).await, None);
        assert!(cut_after(&mut ClientPace::new(IDLE, 0), 1, IDLE * 2).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_ask_costs_no_credit() {
        let mut pace = ClientPace::new(IDLE, RATE);
        for _ in 0..100 {
            let expired = poll_fn(|context| pace.poll_expired(context, false));
            assert!(tokio::time::timeout(Duration::from_millis(1), expired).await.is_err());
            pace.progressed(1);
            // The upstream takes its time.
            tokio::time::advance(IDLE * 10).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn once_there_is_an_answer_only_pauses_count() {
        let mut pace = ClientPace::new(IDLE, RATE);
        for _ in 0..100 {
            let expired = poll_fn(|context| pace.poll_expired(context, true));
            assert!(tokio::time::timeout(IDLE / 2, expired).await.is_err());
            pace.progressed(1);
        }
        let expired = poll_fn(|context| pace.poll_expired(context, true));
        assert!(tokio::time::timeout(IDLE * 2, expired).await.is_ok());
    }
}
