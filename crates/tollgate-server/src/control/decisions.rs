//! The audit log of decisions, written in batches off the request path.
//!
//! A node with a database writes to it; one without tells them through Redis to those that have one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_control::{Control, DecisionRecord};
use tollgate_store::redis::Board;

use super::Keeper;
use crate::audit::AuditTrail;

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

impl Keeper {
    /// Writes what the trail has until told to stop, and a last time then.
    pub(super) async fn write_decisions(self: Arc<Self>, mut stopped: watch::Receiver<bool>) {
        let board = self.redis.as_ref().map(tollgate_store::redis::RedisStore::board);
        let mut forgotten = Instant::now();
        loop {
            let is_over = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => true,
                () = tokio::time::sleep(WRITE_EVERY) => false,
            };
            if let Some(trail) = &self.around.trail {
                self.write_all(trail, board.as_ref()).await;
            }
            if is_over {
                return;
            }
            let leads = self.around.config.has_control();
            if let Some(control) = self.control.as_ref().filter(|_| leads) {
                if let Some(board) = &board {
                    self.take_over(control, board).await;
                }
                if forgotten.elapsed() >= FORGET_EVERY {
                    forgotten = Instant::now();
                    self.forget(control).await;
                }
            }
        }
    }

    async fn write_all(&self, trail: &AuditTrail, board: Option<&Board>) {
        loop {
            let mut records = trail.drain(MOST_AT_ONCE);
            if records.is_empty() {
                return;
            }
            let is_last = records.len() < MOST_AT_ONCE;
            for record in &mut records {
                record.node.clone_from(&self.around.node);
            }
            let count = records.len() as u64;
            let figures = &self.around.figures;
            if self.write(&records, board).await {
                figures.decisions_written.fetch_add(count, Ordering::Relaxed);
            } else {
                figures.decisions_lost.fetch_add(count, Ordering::Relaxed);
                return;
            }
            if is_last {
                return;
            }
        }
    }

    /// Writes a batch; false if it cannot be.
    async fn write(&self, records: &[DecisionRecord], board: Option<&Board>) -> bool {
        let leads = self.around.config.has_control();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(WRITE_EVERY).await;
            }
            let is_written = match (&self.control, board) {
                // Its own event ids keep a repeated batch from being kept twice.
                (Some(control), _) if leads => control.repository().record(records).await.is_ok(),
                (_, Some(board)) => {
                    let batch = encode(records);
                    board.push_records(&batch, MOST_BATCHES).await.is_ok()
                }
                (Some(control), None) => control.repository().record(records).await.is_ok(),
                (None, None) => false,
            };
            if is_written {
                return true;
            }
        }
        false
    }

    /// Takes what other nodes have told through Redis into the database.
    async fn take_over(&self, control: &Control, board: &Board) {
        // Asked first, so that a Redis where nobody tells anything stays as it is.
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

fn encode(records: &[DecisionRecord]) -> Vec<u8> {
    // Structs of plain values always serialise.
    serde_json::to_vec(records).unwrap_or_default()
}

fn decode(bytes: &[u8]) -> Option<Vec<DecisionRecord>> {
    serde_json::from_slice(bytes).ok()
}
