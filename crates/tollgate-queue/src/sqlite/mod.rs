//! A queue in a file of its own, for one node. What was accepted survives a power cut.

mod change;
mod open;
mod read;
mod work;

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Sqlite;
use sqlx::sqlite::SqlitePool;

use super::options::QueueOptions;
use super::request::{StoredRequest, StoredResponse};
use super::store::{
    Accepted, Change, Claim, Claimed, Clock, Counts, Page, QueueError, QueueStore, Shelf, Swept,
    Ticket, counted_bytes,
};

/// How often the file is looked at for what another process changed, such as a retry by hand.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

type Transaction = sqlx::Transaction<'static, Sqlite>;

/// A queue in a file.
pub struct SqliteQueue {
    readers: SqlitePool,
    /// One connection: SQLite has one writer at a time, and a queue here is fairer than trying again
    /// there.
    writer: SqlitePool,
    options: QueueOptions,
    clock: Clock,
}

impl SqliteQueue {
    /// Begins a change, at this instant.
    async fn begin(&self) -> Result<(Transaction, u64), QueueError> {
        let transaction = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        Ok((transaction, self.now()))
    }

    fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Closes the file; what is under way ends first.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

impl From<sqlx::Error> for QueueError {
    fn from(error: sqlx::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// As SQLite takes numbers. What does not fit is further away than anything.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

const fn shelf_number(shelf: Shelf) -> i64 {
    match shelf {
        Shelf::Waiting => 0,
        Shelf::Done => 1,
        Shelf::Dead => 2,
    }
}

#[async_trait]
impl QueueStore for SqliteQueue {
    fn options(&self) -> &QueueOptions {
        &self.options
    }

    fn poll_interval(&self) -> Duration {
        POLL_INTERVAL
    }

    async fn room(&self, lane: &str, tenant: &str, bytes: usize) -> Result<(), QueueError> {
        let mut reader = self.readers.acquire().await?;
        work::room(self, &mut reader, lane, tenant, counted_bytes(bytes)).await.map(|_| ())
    }

    async fn push(
        &self,
        id: &str,
        lane: &str,
        request: &StoredRequest,
        due_in: Duration,
    ) -> Result<Accepted, QueueError> {
        work::push(self, id, lane, request, due_in).await
    }

    async fn claim(&self, most: usize) -> Result<Claimed, QueueError> {
        work::claim(self, most).await
    }

    async fn renew(&self, claim: &Claim) -> Result<bool, QueueError> {
        work::renew(self, claim).await
    }

    async fn postpone(&self, claim: &Claim, wait: Duration) -> Result<bool, QueueError> {
        work::postpone(self, claim, wait).await
    }

    async fn complete(&self, claim: &Claim, response: &StoredResponse) -> Result<bool, QueueError> {
        work::complete(self, claim, response).await
    }

    async fn fail(
        &self,
        claim: &Claim,
        why: &str,
        retry_in: Option<Duration>,
    ) -> Result<bool, QueueError> {
        work::fail(self, claim, why, retry_in).await
    }

    async fn ticket(&self, id: &str) -> Result<Option<Ticket>, QueueError> {
        read::ticket(self, id).await
    }

    async fn list(
        &self,
        shelf: Shelf,
        after: Option<&str>,
        most: usize,
    ) -> Result<Page, QueueError> {
        read::list(self, shelf, after, most).await
    }

    async fn retry(&self, id: &str) -> Result<Change, QueueError> {
        change::retry(self, id).await
    }

    async fn drop_entry(&self, id: &str) -> Result<Change, QueueError> {
        change::drop_entry(self, id).await
    }

    async fn sweep(&self) -> Result<Swept, QueueError> {
        change::sweep(self).await
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        read::counts(self).await
    }
}
