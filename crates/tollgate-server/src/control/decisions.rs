//! The audit log of decisions, written in batches off the request path.
//!
//! A node with a database writes to it; one without sends them through Redis to those that have one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_control::{Control, DecisionRecord, Millis, Repository};
use tollgate_store::redis::Board;

use super::Keeper;
use crate::audit::AuditTrail;
use crate::audit::aggregate::Aggregator;
use crate::config::Config;

/// How often decisions are written.
const WRITE_EVERY: Duration = Duration::from_millis(200);
/// Decisions of one write.
const MAX_AT_ONCE: usize = 2_000;
/// A batch is tried so often before it is given up.
const ATTEMPTS: u32 = 3;
/// The bytes that batches of all nodes take in Redis at most. What does not fit is lost.
const MAX_WAITING_BYTES: u64 = 16 << 20;
/// The estimated bytes of a batch that is sent through Redis.
const MAX_BATCH_BYTES: u64 = 256 << 10;
/// Batches that are taken from Redis at once.
const BATCHES_AT_ONCE: usize = 16;
/// One name for all control nodes: what two of them take at once is kept once, by its event ids.
const READER: &str = "control";
/// How often old decisions are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Decisions that are forgotten at once.
const MAX_FORGOTTEN: u32 = 10_000;
/// How often the log is kept within its bytes.
const BOUND_EVERY: Duration = Duration::from_secs(1);
/// How often that is done in a row, where the log takes too much.
const MAX_BOUND_ROUNDS: usize = 16;
/// Decisions that are removed at once where the disk has no room for the journal of more.
const MIN_REMOVED: u32 = 10;
/// The log has room for these bytes before they are written. It exceeds its bound by at most as many, where several
/// nodes write to one database by as many for each.
const MAX_WRITE_BYTES: u64 = 1 << 20;
/// Batches that are written before other work has its turn.
const MAX_BATCHES_PER_ROUND: usize = 16;
/// What the log takes where nothing else is said: this, or a part of the free disk if that is less.
const DEFAULT_BOUND_BYTES: u64 = 1 << 30;
const FREE_DISK_SHARE: u64 = 10;
/// But not less than this.
const MIN_BOUND_BYTES: u64 = 1 << 20;
/// With less free disk, decisions are not written at all.
const MIN_FREE_BYTES: u64 = 64 << 20;
/// Why they are not.
const DISK_SHORT: &str = "the disk is nearly full";
/// Why they are not sent.
const REDIS_FULL: &str =
    "the records in Redis take all of their room, and no control node takes them";

impl Keeper {
    /// Writes what the trail has until `stopped` is set, and a last time then.
    pub(super) async fn write_decisions(self: Arc<Self>, mut stopped: watch::Receiver<bool>) {
        let board = self.redis.as_ref().map(tollgate_store::redis::RedisStore::board);
        let (mut forgotten, mut bounded) = (Instant::now(), Instant::now());
        let interval = self.around.config.control.audit.aggregate.as_millis();
        let mut aggregator = Aggregator::new(Millis::try_from(interval).unwrap_or(Millis::MAX));
        let bound = DiskBound::new(&self.around.config);
        let mut has_more = false;
        loop {
            let pause = if has_more { Duration::ZERO } else { WRITE_EVERY };
            let is_over = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => true,
                () = tokio::time::sleep(pause) => false,
            };
            if let Some(trail) = &self.around.trail {
                has_more = self.write_some(trail, &mut aggregator, board.as_ref(), &bound).await;
                while has_more && is_over {
                    has_more =
                        self.write_some(trail, &mut aggregator, board.as_ref(), &bound).await;
                }
                let now = crate::admin::now();
                let ended = if is_over { aggregator.finish() } else { aggregator.end(now) };
                self.write_counted(&ended, board.as_ref(), &bound).await;
            }
            if is_over {
                return;
            }
            let leads = self.around.config.has_control();
            if let Some(control) = self.control.as_ref().filter(|_| leads) {
                if let Some(board) = &board {
                    self.take_over(control, board, &bound).await;
                }
                if bounded.elapsed() >= BOUND_EVERY {
                    bounded = Instant::now();
                    bound.make_room(&**control.repository(), 0).await;
                }
                if forgotten.elapsed() >= FORGET_EVERY {
                    forgotten = Instant::now();
                    self.forget(control).await;
                }
            }
        }
    }

    /// Writes some batches. Returns whether there are more.
    async fn write_some(
        &self,
        trail: &AuditTrail,
        aggregator: &mut Aggregator,
        board: Option<&Board>,
        bound: &DiskBound,
    ) -> bool {
        for _ in 0..MAX_BATCHES_PER_ROUND {
            let mut records = trail.drain(MAX_AT_ONCE);
            let is_last = records.len() < MAX_AT_ONCE;
            for record in &mut records {
                record.node.clone_from(&self.around.node);
            }
            let is_written = self.write_counted(&aggregator.take(records), board, bound).await;
            // After a failure, the rest waits for the next round.
            if is_last || !is_written {
                return false;
            }
        }
        true
    }

    /// Writes records, and counts what became of them; false if they are lost.
    async fn write_counted(
        &self,
        records: &[DecisionRecord],
        board: Option<&Board>,
        bound: &DiskBound,
    ) -> bool {
        if records.is_empty() {
            return true;
        }
        let figures = &self.around.figures;
        let leads = self.around.config.has_control();
        let max_bytes = if leads { MAX_WRITE_BYTES } else { MAX_BATCH_BYTES };
        let mut written = Ok(());
        for part in parts(records, max_bytes) {
            // After a failure, the rest is not tried.
            if written.is_ok() {
                written = self.write(part, board, bound).await;
            }
            let counter =
                if written.is_ok() { &figures.decisions_written } else { &figures.decisions_lost };
            counter.fetch_add(part.len() as u64, Ordering::Relaxed);
        }
        let is_written = written.is_ok();
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

    /// Writes a batch. The error says why it could not be written.
    async fn write(
        &self,
        records: &[DecisionRecord],
        board: Option<&Board>,
        bound: &DiskBound,
    ) -> Result<(), String> {
        if bound.is_disk_short() {
            return Err(DISK_SHORT.to_owned());
        }
        let leads = self.around.config.has_control();
        let mut cause = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(WRITE_EVERY).await;
            }
            let written = match (&self.control, board) {
                // Its own event ids keep a repeated batch from being kept twice.
                (Some(control), _) if leads => bound.record(&**control.repository(), records).await,
                (_, Some(board)) => {
                    match board.push_records(&encode(records), MAX_WAITING_BYTES).await {
                        Ok(true) => Ok(()),
                        Ok(false) => return Err(REDIS_FULL.to_owned()),
                        Err(failure) => Err(failure.to_string()),
                    }
                }
                (Some(control), None) => bound.record(&**control.repository(), records).await,
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
    async fn take_over(&self, control: &Control, board: &Board, bound: &DiskBound) {
        if bound.is_disk_short() {
            return;
        }
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
            if bound.record(&**control.repository(), &records).await.is_err() {
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
        while let Ok(count) = control.repository().prune(before, MAX_FORGOTTEN).await {
            if count < u64::from(MAX_FORGOTTEN) {
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
    /// With less free disk, nothing is written.
    min_free_bytes: u64,
}

impl DiskBound {
    fn new(config: &Config) -> Self {
        let dir = config.data_dir.clone().filter(|_| config.control.postgres.url.is_none());
        let max_bytes = config.control.audit.max_bytes.unwrap_or_else(|| {
            let free = dir.as_deref().and_then(free_bytes).unwrap_or(u64::MAX);
            (free / FREE_DISK_SHARE).clamp(MIN_BOUND_BYTES, DEFAULT_BOUND_BYTES)
        });
        Self { max_bytes, dir, min_free_bytes: MIN_FREE_BYTES }
    }

    fn is_disk_short(&self) -> bool {
        self.dir.as_deref().and_then(free_bytes).is_some_and(|free| free < self.min_free_bytes)
    }

    /// Writes records in parts, each after older ones have made room for it. The error says why not all are written.
    async fn record(
        &self,
        repository: &dyn Repository,
        records: &[DecisionRecord],
    ) -> Result<(), String> {
        for part in parts(records, MAX_WRITE_BYTES.min(self.max_bytes / 4)) {
            if self.is_disk_short() {
                return Err(DISK_SHORT.to_owned());
            }
            if !self.make_room(repository, estimated_bytes(part)).await {
                return Err("the log is full, and older records cannot be removed".to_owned());
            }
            repository.record(part).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Removes old records until so many bytes more fit, or for some time. False where records cannot be removed.
    async fn make_room(&self, repository: &dyn Repository, bytes: u64) -> bool {
        let max_bytes = self.max_bytes.saturating_sub(bytes);
        let mut most = MAX_FORGOTTEN;
        let mut removed = 0;
        for _ in 0..MAX_BOUND_ROUNDS {
            match repository.bound_decisions(max_bytes, most).await {
                Ok(0) => return true,
                Ok(count) => {
                    removed += count;
                    most = most.saturating_mul(2).min(MAX_FORGOTTEN);
                }
                // A full disk has no room for the journal of a large change.
                Err(_) if most > MIN_REMOVED => most = (most / 10).max(MIN_REMOVED),
                Err(_) => return false,
            }
        }
        // A log far above its bound, as after that was lowered, shrinks by more than is added.
        removed >= u64::from(MAX_FORGOTTEN)
    }
}

pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// What records take in the log.
fn estimated_bytes(records: &[DecisionRecord]) -> u64 {
    let sum = records.iter().map(DecisionRecord::estimated_bytes).sum::<i64>();
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// Parts of a batch that take at most so many bytes each, or are one record.
fn parts(
    mut records: &[DecisionRecord],
    max_bytes: u64,
) -> impl Iterator<Item = &[DecisionRecord]> {
    std::iter::from_fn(move || {
        let mut bytes = 0_u64;
        let fits = |record: &&DecisionRecord| {
            bytes = bytes.saturating_add(estimated_bytes(std::slice::from_ref(*record)));
            bytes <= max_bytes
        };
        let count = records.iter().take_while(fits).count().max(1).min(records.len());
        let (part, rest) = records.split_at(count);
        records = rest;
        (!part.is_empty()).then_some(part)
    })
}

fn encode(records: &[DecisionRecord]) -> Vec<u8> {
    // Structs of plain values always serialise.
    serde_json::to_vec(records).unwrap_or_default()
}

fn decode(bytes: &[u8]) -> Option<Vec<DecisionRecord>> {
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use tollgate_control::{DatabaseConfig, DecisionFilter, Page};

    use super::*;

    const MAX_BYTES: u64 = 2 << 20;

    /// What a file may have besides records: the rest of the schema, and 8 MiB of free pages.
    const FILE_MARGIN_BYTES: u64 = 9 << 20;

    /// The write-ahead log.
    const JOURNAL_BYTES: u64 = 8 << 20;

    async fn database(dir: &TempDir) -> Arc<dyn Repository> {
        let file = dir.path().join("control.db");
        let repository = DatabaseConfig::Sqlite(file).open().unwrap();
        repository.migrate().await.unwrap();
        repository
    }

    fn bound(dir: &TempDir, min_free_bytes: u64) -> DiskBound {
        DiskBound { max_bytes: MAX_BYTES, dir: Some(dir.path().to_owned()), min_free_bytes }
    }

    fn batch(number: usize, tenant: impl Fn(usize) -> String) -> Vec<DecisionRecord> {
        let record = |n: usize| DecisionRecord {
            event_id: format!("{number}-{n}"),
            action: "rejected".to_owned(),
            client_id: format!("client-{n}"),
            tenant_id: Some(tenant(n)),
            endpoint: Some("/".repeat(200)),
            ..DecisionRecord::default()
        };
        (0..MAX_AT_ONCE).map(record).collect()
    }

    fn file_bytes(dir: &TempDir) -> u64 {
        let files = std::fs::read_dir(dir.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    async fn is_within(repository: &dyn Repository) -> bool {
        repository.bound_decisions(MAX_BYTES, 1).await.unwrap() == 0
    }

    #[tokio::test]
    async fn a_flood_keeps_the_bound_with_every_batch() {
        let dir = tempfile::tempdir().unwrap();
        let repository = database(&dir).await;
        let bound = bound(&dir, 0);
        for number in 0..8 {
            bound.record(&*repository, &batch(number, |_| "loud".to_owned())).await.unwrap();
            assert!(is_within(&*repository).await, "batch {number} of one tenant");
        }
        for number in 8..12 {
            let records = batch(number, |n| format!("made-up-{number}-{n}"));
            bound.record(&*repository, &records).await.unwrap();
            assert!(is_within(&*repository).await, "batch {number} of many tenants");
        }
        let page = Page { after: None, limit: 1 };
        let last = repository.decisions(&DecisionFilter::default(), &page).await.unwrap();
        assert_eq!(last[0].record.event_id, format!("11-{}", MAX_AT_ONCE - 1));
        let bytes = file_bytes(&dir);
        assert!(bytes < MAX_BYTES + FILE_MARGIN_BYTES + JOURNAL_BYTES, "{bytes}");
    }

    #[tokio::test]
    async fn nothing_is_written_to_a_disk_that_is_nearly_full() {
        let dir = tempfile::tempdir().unwrap();
        let repository = database(&dir).await;
        let records = batch(0, |_| "a".to_owned());
        let written = bound(&dir, u64::MAX).record(&*repository, &records).await;
        assert_eq!(written.unwrap_err(), DISK_SHORT);
        assert_eq!(repository.prune(Millis::MAX, 10).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_log_above_its_bound_is_pruned_after_a_restart_and_its_file_gets_shorter() {
        let dir = tempfile::tempdir().unwrap();
        let repository = database(&dir).await;
        for number in 0..20 {
            repository.record(&batch(number, |_| "loud".to_owned())).await.unwrap();
        }
        repository.close().await;
        let before = file_bytes(&dir);
        assert!(before > MAX_BYTES + FILE_MARGIN_BYTES, "{before}");
        let repository = database(&dir).await;
        for _ in 0..20 {
            assert!(bound(&dir, 0).make_room(&*repository, 0).await);
        }
        assert!(is_within(&*repository).await);
        repository.close().await;
        assert!(file_bytes(&dir) < MAX_BYTES + FILE_MARGIN_BYTES, "{}", file_bytes(&dir));
    }

    #[test]
    fn batches_are_divided_by_bytes() {
        let records = batch(0, |_| "a".to_owned());
        let bytes = estimated_bytes(&records[..1]);
        let lengths = |most| parts(&records[..5], most).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(lengths(0), [1, 1, 1, 1, 1]);
        assert_eq!(lengths(bytes * 2 + 100), [2, 2, 1]);
        assert_eq!(lengths(u64::MAX), [5]);
        assert!(parts(&[], 1).next().is_none());
    }
}
