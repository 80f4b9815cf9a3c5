//! The ledger of usage: events from this node's queue to Redis, and from there, or from the queue, into the database.
//! An event is in the database once, however often it is delivered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_control::{Control, UsageEvent, UsageRetention, UsageSweep};
use tollgate_store::redis::Board;

use super::Keeper;
use crate::ledger::{Ledger, Waiting};

/// Events that are moved at once.
const MAX_AT_ONCE: usize = 500;
/// Batches that are moved before other work has its turn.
const MAX_BATCHES_PER_ROUND: usize = 20;
/// Events that wait in Redis for a node with a database, of all nodes. Further ones wait in the nodes.
const MAX_IN_REDIS: u64 = 100_000;
/// How often the queue and Redis are looked at.
const ROUND: Duration = Duration::from_millis(200);
/// How long to wait after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// How often refusals become events.
const REFUSALS_EVERY: Duration = Duration::from_secs(1);
/// One name for all control nodes: what two of them take at once is counted once, by its id.
const READER: &str = "control";
/// How often expired usage is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// What has expired for so long will not be settled any more: an ending that began in time is repeated for two minutes.
const SWEEP_AFTER_MILLIS: i64 = 300_000;
/// Expired events that are counted at once.
const MAX_SWEPT: u32 = 500;
/// How often old usage is removed.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Rows that are removed at once.
const MAX_PRUNED: u32 = 10_000;
/// An event is recognised for so long. Redis delivers one again after 30 seconds at the latest.
const IDS_KEPT_MILLIS: i64 = 7 * DAY_MILLIS;
const DAY_MILLIS: i64 = 86_400_000;
/// With less free disk nothing is written.
const MIN_FREE_BYTES: u64 = 64 << 20;

impl Keeper {
    /// Stores the events of this node: in Redis, where nodes share one, else in the database.
    pub(super) async fn store_usage(self: Arc<Self>, mut stopped: watch::Receiver<bool>) {
        let Some(ledger) = self.around.ledger.clone() else { return };
        let board = self.redis.as_ref().map(tollgate_store::redis::RedisStore::board);
        let mut counted = Instant::now();
        loop {
            let is_over = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => true,
                () = ledger.arrived(ROUND) => false,
            };
            if is_over || counted.elapsed() >= REFUSALS_EVERY {
                counted = Instant::now();
                ledger.flush_refused();
            }
            let mut is_stored = true;
            while is_stored && ledger.waiting() > 0 {
                is_stored = self.store_some(&ledger, board.as_ref()).await;
            }
            if is_over {
                return;
            }
            if !is_stored {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Stores some events; false if they could not be stored, and wait on.
    async fn store_some(&self, ledger: &Ledger, board: Option<&Board>) -> bool {
        let events = ledger.take(MAX_AT_ONCE);
        let stored = match (board, &self.control) {
            (Some(board), _) => push(board, &events).await,
            (None, Some(control)) => {
                let events: Vec<UsageEvent> = events.iter().map(|one| one.event.clone()).collect();
                self.record_usage(control, &events).await
            }
            // Without either there is no ledger.
            (None, None) => Ok(()),
        };
        let is_unsent = &self.around.figures.is_usage_unsent;
        report(is_unsent, stored.as_ref().err().map(String::as_str));
        if stored.is_ok() {
            ledger.works();
            events.into_iter().for_each(Waiting::done);
        } else {
            ledger.put_back(events);
        }
        stored.is_ok()
    }

    /// Moves the events of all nodes from Redis into the database, and removes what is no longer kept.
    pub(super) async fn keep_ledger(self: Arc<Self>) {
        let is_on = self.around.config.control.ledger.is_on;
        let leads = self.around.config.has_control();
        let Some(control) = self.control.as_ref().filter(|_| leads && is_on) else { return };
        let board = self.redis.as_ref().map(tollgate_store::redis::RedisStore::board);
        let (mut swept, mut pruned) = (Instant::now(), Instant::now());
        loop {
            tokio::time::sleep(ROUND).await;
            if let Some(board) = &board
                && let Err(cause) = self.take_usage(control, board).await
            {
                report(&self.around.figures.is_usage_unwritten, Some(&cause));
                tokio::time::sleep(RETRY_DELAY).await;
            }
            if swept.elapsed() >= SWEEP_EVERY {
                swept = Instant::now();
                self.sweep_usage(control, board.as_ref()).await;
            }
            if pruned.elapsed() >= PRUNE_EVERY {
                pruned = Instant::now();
                self.prune_usage(control).await;
            }
        }
    }

    async fn take_usage(&self, control: &Control, board: &Board) -> Result<(), String> {
        for _ in 0..MAX_BATCHES_PER_ROUND {
            // Asked first, so that a Redis to which no node sends events stays as it is. Where it does not answer, the
            // incident of the store says so.
            if !matches!(board.usage_waiting().await, Ok(1..)) {
                return Ok(());
            }
            let Ok(found) = board.pull_usage(READER, MAX_AT_ONCE).await else { return Ok(()) };
            let (mut ids, mut events) = (Vec::new(), Vec::new());
            for (id, bytes) in found {
                if let Ok(event) = serde_json::from_slice::<UsageEvent>(&bytes) {
                    events.push(event);
                } else {
                    // What cannot be read will not be readable later either.
                    self.around.figures.usage_lost.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(bytes = bytes.len(), "usage of another node cannot be read");
                }
                ids.push(id);
            }
            if ids.is_empty() {
                return Ok(());
            }
            self.record_usage(control, &events).await?;
            report(&self.around.figures.is_usage_unwritten, None);
            // If this fails they come again, and are known by their ids.
            let _ = board.done_usage(&ids).await;
        }
        Ok(())
    }

    async fn record_usage(&self, control: &Control, events: &[UsageEvent]) -> Result<(), String> {
        let config = &self.around.config;
        let dir = config.data_dir.as_deref().filter(|_| config.control.postgres.url.is_none());
        let free = dir.and_then(super::decisions::free_bytes);
        if free.is_some_and(|free| free < MIN_FREE_BYTES) {
            return Err("the disk is nearly full".to_owned());
        }
        let most = config.control.ledger.max_rows_per_day;
        let recorded = control.repository().record_usage(events, most).await;
        let recorded = recorded.map_err(|error| error.to_string())?;
        self.around.figures.usage_written.fetch_add(recorded, Ordering::Relaxed);
        Ok(())
    }

    /// Counts what was never settled as it was estimated, unless its end may be on its way.
    async fn sweep_usage(&self, control: &Control, board: Option<&Board>) {
        if let Some(board) = board
            && !matches!(board.usage_waiting().await, Ok(0))
        {
            return;
        }
        if self.around.ledger.as_ref().is_some_and(|ledger| ledger.waiting() > 0) {
            return;
        }
        let sweep = UsageSweep {
            expired_before: crate::admin::now() - SWEEP_AFTER_MILLIS,
            most: MAX_SWEPT,
            max_rows_per_day: self.around.config.control.ledger.max_rows_per_day,
        };
        for _ in 0..MAX_BATCHES_PER_ROUND {
            match control.repository().sweep_usage(&sweep).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    async fn prune_usage(&self, control: &Control) {
        let now = crate::admin::now();
        let days = i64::from(self.around.config.control.ledger.retention_days);
        let retention = UsageRetention {
            before_day: now.div_euclid(DAY_MILLIS) - days,
            ids_before: now - IDS_KEPT_MILLIS,
            most: MAX_PRUNED,
        };
        for _ in 0..MAX_BATCHES_PER_ROUND {
            match control.repository().prune_usage(&retention).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// Reports that usage cannot be stored, and why, or that it can again; each once.
fn report(is_failing: &AtomicBool, cause: Option<&str>) {
    let was_failing = is_failing.swap(cause.is_some(), Ordering::Relaxed);
    match cause {
        Some(cause) if !was_failing => {
            tracing::error!(cause, "usage cannot be written to the ledger; it waits");
        }
        None if was_failing => tracing::info!("usage is written to the ledger again"),
        _ => {}
    }
}

async fn push(board: &Board, events: &[Waiting]) -> Result<(), String> {
    // Structs of plain values always serialise.
    let bytes = |one: &Waiting| serde_json::to_vec(&one.event).unwrap_or_default();
    let bytes: Vec<Vec<u8>> = events.iter().map(bytes).collect();
    match board.push_usage(&bytes, MAX_IN_REDIS).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(format!("{MAX_IN_REDIS} events wait in Redis, and no control node takes them"))
        }
        Err(failure) => Err(failure.to_string()),
    }
}
