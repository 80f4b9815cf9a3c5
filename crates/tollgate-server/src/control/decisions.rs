//! The audit log of decisions, written in batches off the request path.
//!
//! A node with a database writes to it; one without sends them through Redis to those that have one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_control::{Control, DecisionRecord, Millis};
use tollgate_store::redis::Board;

use super::Keeper;
use crate::audit::AuditTrail;
use crate::audit::aggregate::Aggregator;
use crate::config::Config;

/// How often decisions are written.
const WRITE_EVERY: Duration = Duration::from_millis(200);
/// Decisions of one write.
const MOST_AT_ONCE: usize = 2_000;
/// A batch is tried so often before it is given up.
const ATTEMPTS: u32 = 3;
/// Batches that wait in Redis at most.
const MOST_BATCHES: usize = 1_000;
/// Batches that are taken from Redis at once.
const BATCHES_AT_ONCE: usize = 16;
/// One name for all control nodes: what two of them take at once is kept once, by its event ids.
const READER: &str = "control";
/// How often old decisions are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Decisions that are forgotten at once.
const MOST_FORGOTTEN: u32 = 10_000;
/// How often the log is kept within its bytes.
const BOUND_EVERY: Duration = Duration::from_secs(1);
/// How often that is done in a row, where the log takes too much.
const MAX_BOUND_ROUNDS: usize = 8;
/// What the log takes where nothing else is said: this, or a part of the free disk if that is less.
const DEFAULT_BOUND_BYTES: u64 = 1 << 30;
const FREE_DISK_SHARE: u64 = 10;
/// But not less than this.
const MIN_BOUND_BYTES: u64 = 1 << 20;
/// With less free disk, decisions are not written at all.
const MIN_FREE_BYTES: u64 = 64 << 20;

impl Keeper {
    /// Writes what the trail has until `stopped` is set, and a last time then.
    pub(super) async fn write_decisions(self: Arc<Self>, mut stopped: watch::Receiver<bool>) {
        let board = self.redis.as_ref().map(tollgate_store::redis::RedisStore::board);
        let (mut forgotten, mut bounded) = (Instant::now(), Instant::now());
        let interval = self.around.config.control.audit.aggregate.as_millis();
        let mut aggregator = Aggregator::new(Millis::try_from(interval).unwrap_or(Millis::MAX));
        let bound = DiskBound::new(&self.around.config);
        loop {
            let is_over = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => true,
                () = tokio::time::sleep(WRITE_EVERY) => false,
            };
            if let Some(trail) = &self.around.trail {
                if bound.is_disk_short() {
                    self.drop_all(trail);
                } else {
                    self.write_all(trail, &mut aggregator, board.as_ref()).await;
                    let now = crate::admin::now();
                    let ended = if is_over { aggregator.finish() } else { aggregator.end(now) };
                    self.write_counted(&ended, board.as_ref()).await;
                }
            }
            if is_over {
                return;
            }
            let leads = self.around.config.has_control();
            if let Some(control) = self.control.as_ref().filter(|_| leads) {
                if let Some(board) = &board {
                    self.take_over(control, board).await;
                }
                if bounded.elapsed() >= BOUND_EVERY {
                    bounded = Instant::now();
                    self.keep_within(control, bound.max_bytes).await;
                }
                if forgotten.elapsed() >= FORGET_EVERY {
                    forgotten = Instant::now();
                    self.forget(control).await;
                }
            }
        }
    }

    async fn write_all(
        &self,
        trail: &AuditTrail,
        aggregator: &mut Aggregator,
        board: Option<&Board>,
    ) {
        loop {
            let mut records = trail.drain(MOST_AT_ONCE);
            if records.is_empty() {
                return;
            }
            let is_last = records.len() < MOST_AT_ONCE;
            for record in &mut records {
                record.node.clone_from(&self.around.node);
            }
            if !self.write_counted(&aggregator.take(records), board).await || is_last {
                return;
            }
        }
    }

    /// Writes records, and counts what became of them; false if they are lost.
    async fn write_counted(&self, records: &[DecisionRecord], board: Option<&Board>) -> bool {
        if records.is_empty() {
            return true;
        }
        let figures = &self.around.figures;
        let written = self.write(records, board).await;
        let is_written = written.is_ok();
        let counter = if is_written { &figures.decisions_written } else { &figures.decisions_lost };
        counter.fetch_add(records.len() as u64, Ordering::Relaxed);
        // A node without a database and a Redis has nowhere to write, as configured.
        if self.control.is_some() || board.is_some() {
            self.report_loss(written.err().as_deref());
        }
        is_written
    }

    /// Reports that records of decisions are lost, and why, or that they are written again; each once.
    fn report_loss(&self, cause: Option<&str>) {
        let figures = &self.around.figures;
        let was_losing = figures.is_losing_decisions.swap(cause.is_some(), Ordering::Relaxed);
        match cause {
            Some(cause) if !was_losing => {
                tracing::error!(
                    cause,
                    "records of decisions cannot be written and are missing from the audit"
                );
            }
            None if was_losing => tracing::info!("records of decisions are written again"),
            _ => {}
        }
    }

    /// Forgets what was noted: the disk is nearly full, and rules and counters need the rest of it.
    fn drop_all(&self, trail: &AuditTrail) {
        loop {
            let count = trail.drain(MOST_AT_ONCE).len();
            if count > 0 {
                self.report_loss(Some("the disk is nearly full"));
            }
            self.around.figures.decisions_lost.fetch_add(count as u64, Ordering::Relaxed);
            if count < MOST_AT_ONCE {
                return;
            }
        }
    }

    /// Removes what is too much. More than one batch brings, so that it comes to an end.
    async fn keep_within(&self, control: &Control, max_bytes: u64) {
        for _ in 0..MAX_BOUND_ROUNDS {
            let removed = control.repository().bound_decisions(max_bytes, MOST_FORGOTTEN).await;
            if !matches!(removed, Ok(1..)) {
                return;
            }
        }
    }

    /// Writes a batch. The error says why it could not be written.
    async fn write(&self, records: &[DecisionRecord], board: Option<&Board>) -> Result<(), String> {
        let leads = self.around.config.has_control();
        let mut cause = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(WRITE_EVERY).await;
            }
            let written = match (&self.control, board) {
                // Its own event ids keep a repeated batch from being kept twice.
                (Some(control), _) if leads => record(control, records).await,
                (_, Some(board)) => {
                    let pushed = board.push_records(&encode(records), MOST_BATCHES).await;
                    pushed.map_err(|failure| failure.to_string())
                }
                (Some(control), None) => record(control, records).await,
                (None, None) => Err("this node has neither a database nor a Redis".to_owned()),
            };
            match written {
                Ok(()) => return Ok(()),
                Err(error) => cause = error,
            }
        }
        Err(cause)
    }

    /// Takes what other nodes have sent through Redis into the database.
    async fn take_over(&self, control: &Control, board: &Board) {
        // Asked first, so that a Redis to which no node sends records stays as it is.
        if !matches!(board.records_waiting().await, Ok(1..)) {
            return;
        }
        let Ok(batches) = board.pull_records(READER, BATCHES_AT_ONCE).await else { return };
        let mut done = Vec::new();
        for (id, batch) in batches {
            // What cannot be read will not be readable later either.
            let Some(records) = decode(&batch) else {
                tracing::warn!(bytes = batch.len(), "decisions of another node cannot be read");
                done.push(id);
                continue;
            };
            if control.repository().record(&records).await.is_err() {
                break;
            }
            done.push(id);
        }
        if !done.is_empty() {
            // If this fails they come again, and are known by their event ids.
            let _ = board.done_records(&done).await;
        }
    }

    async fn forget(&self, control: &Control) {
        let retention = self.around.config.control.audit.retention.as_millis();
        let before = crate::admin::now() - i64::try_from(retention).unwrap_or(i64::MAX);
        while let Ok(count) = control.repository().prune(before, MOST_FORGOTTEN).await {
            if count < u64::from(MOST_FORGOTTEN) {
                return;
            }
        }
    }
}

/// How much the log may take, and whether there is room for anything.
struct DiskBound {
    max_bytes: u64,
    /// The directory of the database, where that is on a disk of this node.
    dir: Option<PathBuf>,
}

impl DiskBound {
    fn new(config: &Config) -> Self {
        let dir = config.data_dir.clone().filter(|_| config.control.postgres.url.is_none());
        let max_bytes = config.control.audit.max_bytes.unwrap_or_else(|| {
            let free = dir.as_deref().and_then(free_bytes).unwrap_or(u64::MAX);
            (free / FREE_DISK_SHARE).clamp(MIN_BOUND_BYTES, DEFAULT_BOUND_BYTES)
        });
        Self { max_bytes, dir }
    }

    fn is_disk_short(&self) -> bool {
        self.dir.as_deref().and_then(free_bytes).is_some_and(|free| free < MIN_FREE_BYTES)
    }
}

fn free_bytes(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

async fn record(control: &Control, records: &[DecisionRecord]) -> Result<(), String> {
    let recorded = control.repository().record(records).await;
    recorded.map(|_| ()).map_err(|error| error.to_string())
}

fn encode(records: &[DecisionRecord]) -> Vec<u8> {
    // Structs of plain values always serialise.
    serde_json::to_vec(records).unwrap_or_default()
}

fn decode(bytes: &[u8]) -> Option<Vec<DecisionRecord>> {
    serde_json::from_slice(bytes).ok()
}
