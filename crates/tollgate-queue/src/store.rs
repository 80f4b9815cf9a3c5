//! What a store of queued requests can do. Every store passes the same suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::options::QueueOptions;
use super::request::{StoredRequest, StoredResponse};

/// The longest name of a lane.
pub const MAX_LANE_BYTES: usize = 512;

/// The most entries that one page of a list holds.
pub const MAX_PAGE: usize = 1_000;

/// The most that is kept of the reason of a failure.
pub const MAX_ERROR_BYTES: usize = 1_024;

/// How many entries a sweep expires or removes of each kind before it lets others have a turn.
pub(super) const SWEEP_BATCH: u32 = 500;

/// How many entries of one lane a claim buries in search of one that can still be sent.
pub(super) const BURIALS_PER_CLAIM: usize = 100;

/// Milliseconds since 1970, for stores that have no clock of their own.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Why a queue did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// There is no room.
    #[error("the queue is full: {0} requests wait")]
    Full(u64),
    /// There is no room in the lane.
    #[error("the queue is full for this caller: {0} of its requests wait")]
    LaneFull(u64),
    /// There is no room for the bytes of the request.
    #[error("the queue is full: requests of {of} take {bytes} bytes")]
    FullOfBytes {
        /// Of whom: this key, this tenant, or all callers.
        of: &'static str,
        /// How many they take.
        bytes: u64,
    },
    /// The request is too long to be kept.
    #[error("a queued request may have {most} bytes, and this one has {bytes}")]
    TooLarge {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// The store does not answer, or not as it should.
    #[error("the queue's store is not available: {0}")]
    Unavailable(String),
    /// The store was written by a newer version.
    #[error("the queue's store has schema {have}, and this version knows {known}")]
    NewerSchema {
        /// The store's.
        have: i64,
        /// Ours.
        known: i64,
    },
    /// An entry that cannot be read or written.
    #[error("the entry is not readable: {0}")]
    Corrupt(String),
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TicketState {
    /// It waits for its turn.
    Queued,
    /// A worker has it.
    Sending,
    /// It was sent, and answered.
    Done,
    /// It will not be sent: a dead letter.
    Failed,
}

/// What is known of an entry. Instants are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub state: TicketState,
    /// Its lane.
    pub lane: String,
    /// Method and path.
    pub label: String,
    /// How many of its lane are before it, where that is known.
    pub position: Option<u64>,
    /// Since when it waits.
    pub enqueued_at: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// When it is tried next, where that is known.
    pub next_attempt_at: Option<u64>,
    /// When it was done, or failed.
    pub finished_at: Option<u64>,
    /// The answer. Lists leave it out.
    pub response: Option<StoredResponse>,
    /// Why the last attempt failed, or why the request did.
    pub error: Option<String>,
}

/// What was taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// How many of its lane are before it.
    pub position: u64,
    /// How many dead letters were removed to make room for it.
    pub removed_dead: u64,
}

/// An entry that a worker has, until it says what became of it or its lease ends.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The entry's id.
    pub id: String,
    /// Its lane, in which nothing else is under way.
    pub lane: String,
    /// Names this claim, so that one that was lost cannot be mistaken for its successor.
    pub token: String,
    /// How often it was tried, this time included.
    pub attempts: u32,
    /// The request, as it was encoded.
    pub request: Vec<u8>,
}

/// The answer to a call for work.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The work.
    pub claims: Vec<Claim>,
    /// When there may be more, if nothing is pushed; absent if nothing waits.
    pub next_due_in: Option<Duration>,
}

/// Part of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shelf {
    /// Queued or under way.
    Waiting,
    /// Answered.
    Done,
    /// Dead letters.
    Dead,
}

/// A page of a list.
#[derive(Debug, Default)]
pub struct Page {
    /// The entries, oldest first, without their answers.
    pub tickets: Vec<Ticket>,
    /// Where the next page starts; absent after the last.
    pub next: Option<String>,
}

/// What became of a retry or a drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It was made.
    Made,
    /// There is no such entry.
    NotThere,
    /// The entry's state does not allow it: only dead letters are retried, and what is under way is not
    /// dropped.
    NotNow,
}

/// Figures for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that wait or are under way.
    pub waiting: u64,
    /// Lanes that they are in.
    pub lanes: u64,
    /// How long the oldest of them has waited.
    pub oldest_age: Option<Duration>,
    /// Answers that are kept.
    pub done: u64,
    /// Dead letters.
    pub dead: u64,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Requests that were too old to be sent, and are dead letters now.
    pub expired: u64,
    /// Answers and dead letters that were kept long enough.
    pub removed: u64,
    /// Whether there is more to do at once.
    pub is_partial: bool,
}

/// Keeps requests, in lanes. In a lane they go out one by one, in the order they came in: at most one is
/// claimed, and one that failed is tried again before the next.
///
/// All changes are atomic, and those that were answered with `Ok` survive what the store survives.
#[async_trait]
pub trait QueueStore: Send + Sync + 'static {
    /// The bounds that it keeps.
    fn options(&self) -> &QueueOptions;

    /// How often a worker looks for what other processes pushed.
    fn poll_interval(&self) -> Duration;

    /// Whether there is room for one more request of so many bytes, or dead letters can make it: checked before its body is read, and again when
    /// it is pushed.
    async fn room(&self, lane: &str, tenant: &str, bytes: usize) -> Result<(), QueueError>;

    /// Takes an entry in. Where its bytes do not fit, the oldest dead letters of its lane, of its tenant or of all are
    /// removed, by which bound it is. If it is the only one of its lane, it is due after `due_in`. The same id twice
    /// is one entry, so that a call whose answer was lost can be made again.
    async fn push(
        &self,
        id: &str,
        lane: &str,
        request: &StoredRequest,
        due_in: Duration,
    ) -> Result<Accepted, QueueError>;

    /// Claims the heads of up to so many lanes that are due. An entry whose claim has ended without a word
    /// is claimed again, and becomes a dead letter when it was tried too often.
    async fn claim(&self, most: usize) -> Result<Claimed, QueueError>;

    /// Makes a claim hold for another lease. `false`: it is lost.
    async fn renew(&self, claim: &Claim) -> Result<bool, QueueError>;

    /// Gives a claim back: its lane is due after `wait`, and this was no attempt. `false`: it is lost.
    async fn postpone(&self, claim: &Claim, wait: Duration) -> Result<bool, QueueError>;

    /// The entry was sent and answered. `false`: the claim is lost.
    async fn complete(&self, claim: &Claim, response: &StoredResponse) -> Result<bool, QueueError>;

    /// The attempt failed: its lane is due again after `retry_in`, or without one the entry becomes a dead
    /// letter. `false`: the claim is lost.
    async fn fail(
        &self,
        claim: &Claim,
        why: &str,
        retry_in: Option<Duration>,
    ) -> Result<bool, QueueError>;

    /// What is known of an entry.
    async fn ticket(&self, id: &str) -> Result<Option<Ticket>, QueueError>;

    /// A page of a shelf, from where the last one ended. At most [`MAX_PAGE`] entries.
    async fn list(
        &self,
        shelf: Shelf,
        after: Option<&str>,
        most: usize,
    ) -> Result<Page, QueueError>;

    /// Puts a dead letter at the end of its lane, as if it were new.
    async fn retry(&self, id: &str) -> Result<Change, QueueError>;

    /// Removes an entry that is not under way.
    async fn drop_entry(&self, id: &str) -> Result<Change, QueueError>;

    /// Expires what is too old to be sent, removes what was kept long enough.
    async fn sweep(&self) -> Result<Swept, QueueError>;

    /// Figures for metrics.
    async fn counts(&self) -> Result<Counts, QueueError>;
}

/// The reason of a failure, within its bound.
pub(super) fn bounded_error(why: &str) -> &str {
    let end = (0..=MAX_ERROR_BYTES.min(why.len())).rev().find(|&end| why.is_char_boundary(end));
    why.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// What an entry takes in a store besides its request: keys, indexes, and places in lanes.
const ENTRY_OVERHEAD_BYTES: usize = 512;

/// Bounds of bytes: whose they are, as stores name them, and in errors.
pub(super) const BYTE_BOUNDS: [&str; 3] = ["this key", "this tenant", "all callers"];

/// How many bytes a request is counted as.
pub(super) fn counted_bytes(request: usize) -> u64 {
    request.saturating_add(ENTRY_OVERHEAD_BYTES) as u64
}

/// Whose share a request is counted in.
pub(super) fn tenant_of(request: &StoredRequest) -> &str {
    request.asked.identity.tenant_id.as_deref().unwrap_or_default()
}

/// Encodes a request that is to be pushed, within the bounds.
pub(super) fn encoded(
    lane: &str,
    request: &StoredRequest,
    options: &QueueOptions,
) -> Result<Vec<u8>, QueueError> {
    if lane.len() > MAX_LANE_BYTES {
        return Err(QueueError::TooLarge { bytes: lane.len(), most: MAX_LANE_BYTES });
    }
    let bytes = request.encode()?;
    if bytes.len() > options.max_request_bytes {
        let most = options.max_request_bytes;
        return Err(QueueError::TooLarge { bytes: bytes.len(), most });
    }
    Ok(bytes)
}

/// Where a page ended: the instant and the id of its last entry.
pub(super) fn cursor(at: u64, id: &str) -> String {
    format!("{at}-{id}")
}

/// What [`cursor`] was made of. One that cannot be read starts at the beginning.
pub(super) fn read_cursor(after: Option<&str>) -> (u64, &str) {
    let parts = after.and_then(|after| after.split_once('-'));
    parts.and_then(|(at, id)| Some((at.parse().ok()?, id))).unwrap_or((0, ""))
}

/// Why an entry that was too old is a dead letter.
pub(super) const EXPIRED: &str = "expired: it waited longer than the queue keeps requests";

/// Why an entry whose workers died is a dead letter.
pub(super) const ABANDONED: &str =
    "given up: the last attempts ended without a word of their worker";
