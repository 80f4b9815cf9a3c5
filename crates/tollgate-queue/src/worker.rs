//! The worker: claims what is due, and sends it on at the rate that is permitted.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tollgate_tower::Decide;

use super::deliver::{Forward, deliver};
use super::line::Queue;

/// How many lanes are claimed at once: each claim brings a body along.
const MAX_CLAIMS: usize = 32;

/// How often the queue is swept.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The pause after the store did not answer.
const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// How a worker works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOptions {
    /// The most requests under way at once. Lanes do not wait for each other, up to that.
    pub max_concurrency: usize,
    /// How long requests that are under way may take when the worker is stopped. Those that take longer
    /// are sent again later.
    pub drain: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self { max_concurrency: 64, drain: Duration::from_secs(10) }
    }
}

/// Sends queued requests on. Several may work on one queue, in one process or in many.
pub struct Worker<D, F> {
    queue: Queue,
    parts: Arc<Parts<D, F>>,
    options: WorkerOptions,
}

struct Parts<D, F> {
    decide: D,
    forward: F,
}

impl<D: Decide, F: Forward> Worker<D, F> {
    /// A worker that asks `decide` and sends by `forward`.
    pub fn new(queue: Queue, decide: D, forward: F, options: WorkerOptions) -> Self {
        Self { queue, parts: Arc::new(Parts { decide, forward }), options }
    }

    /// Works until `stop`, and then until what is under way has ended.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let mut stop = pin!(stop);
        let mut under_way = JoinSet::new();
        let mut sweep_at = Instant::now();
        loop {
            if Instant::now() >= sweep_at {
                let is_partial = self.sweep().await;
                sweep_at =
                    Instant::now() + if is_partial { Duration::ZERO } else { SWEEP_INTERVAL };
            }
            let wake_at = self.take(&mut under_way).await.min(sweep_at);
            let is_busy = under_way.len() >= self.options.max_concurrency.max(1);
            tokio::select! {
                () = &mut stop => break,
                // One that has ended makes room, and its lane has perhaps another.
                Some(_) = under_way.join_next() => {}
                () = self.queue.rung(), if !is_busy => {}
                () = sleep_until(wake_at) => {}
            }
            while under_way.try_join_next().is_some() {}
        }
        // What does not end in time is cut off, and claimed again when its lease has ended.
        let ended = async { while under_way.join_next().await.is_some() {} };
        let _ = timeout(self.options.drain, ended).await;
    }

    /// Claims as much as there is room for. Returns when to look again.
    async fn take(&self, under_way: &mut JoinSet<()>) -> Instant {
        let most = self.options.max_concurrency.max(1);
        loop {
            let room = most.saturating_sub(under_way.len()).min(MAX_CLAIMS);
            if room == 0 {
                return Instant::now() + SWEEP_INTERVAL;
            }
            let claimed = match self.queue.store().claim(room).await {
                Ok(claimed) => claimed,
                Err(error) => {
                    // A supervised queue reports it once; this is repeated every second.
                    tracing::debug!(%error, "the queue cannot be read");
                    return Instant::now() + AWAY_PAUSE;
                }
            };
            let count = claimed.claims.len();
            for claim in claimed.claims {
                let (queue, parts) = (self.queue.clone(), Arc::clone(&self.parts));
                under_way.spawn(async move {
                    deliver(&queue, &parts.decide, &parts.forward, claim).await;
                });
            }
            if count < room {
                let poll = self.queue.store().poll_interval();
                return Instant::now() + claimed.next_due_in.map_or(poll, |due| due.min(poll));
            }
        }
    }

    /// Whether there is more to sweep.
    async fn sweep(&self) -> bool {
        match self.queue.store().sweep().await {
            Ok(swept) => {
                if swept.expired > 0 {
                    tracing::warn!(
                        count = swept.expired,
                        "queued requests were too old to be sent"
                    );
                }
                swept.is_partial
            }
            Err(error) => {
                tracing::debug!(%error, "the queue cannot be swept");
                false
            }
        }
    }
}
