//! A queue whose store may be unavailable, at the start and later: it is opened when it can be, and its
//! state is reported.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::options::QueueOptions;
use super::request::{StoredRequest, StoredResponse};
use super::store::{
    Accepted, Change, Claim, Claimed, Counts, Page, QueueError, QueueStore, Shelf, Swept, Ticket,
};

/// How long calls fail with the same error before the store is opened again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// A problem has ended when a call succeeds and none has failed for this long. A full disk fails some
/// calls and not others; it is one problem.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(5);

/// How often a worker looks for requests while the store is not open.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The result of opening a store.
pub type Opening =
    Pin<Box<dyn Future<Output = Result<Arc<dyn QueueStore>, QueueError>> + Send + 'static>>;

/// Receives the problem when one begins, and `None` when it has ended.
pub type ProblemObserver = Box<dyn Fn(Option<&QueueError>) + Send + Sync>;

/// A queue that is opened at its first use, and again until that succeeds.
pub struct SupervisedQueue {
    open: Box<dyn Fn() -> Opening + Send + Sync>,
    options: QueueOptions,
    store: OnceCell<Arc<dyn QueueStore>>,
    /// Why the store was not opened, and when.
    last_failure: Mutex<Option<(Instant, QueueError)>>,
    /// When a call last failed, while there is a problem.
    failing_since: Mutex<Option<Instant>>,
    observer: ProblemObserver,
}

impl SupervisedQueue {
    /// A queue that `open` opens. The observer is called when a problem begins and when it ends.
    pub fn new(
        open: impl Fn() -> Opening + Send + Sync + 'static,
        options: QueueOptions,
        observer: ProblemObserver,
    ) -> Self {
        Self {
            open: Box::new(open),
            options,
            store: OnceCell::new(),
            last_failure: Mutex::default(),
            failing_since: Mutex::default(),
            observer,
        }
    }

    /// The store; opened now if it is not open yet.
    async fn store(&self) -> Result<&dyn QueueStore, QueueError> {
        let opened = self.store.get_or_try_init(|| async {
            if let Some((at, error)) = &*self.last_failure.lock()
                && at.elapsed() < REOPEN_INTERVAL
            {
                return Err(error.clone());
            }
            let opened = (self.open)().await;
            if let Err(error) = &opened {
                *self.last_failure.lock() = Some((Instant::now(), error.clone()));
            }
            opened
        });
        opened.await.map(|store| &**store)
    }

    /// Reports what a result says about the state of the store.
    fn observed<T>(&self, result: Result<T, QueueError>) -> Result<T, QueueError> {
        self.observe(result.as_ref().err());
        result
    }

    fn observe(&self, error: Option<&QueueError>) {
        let failed = error.filter(|error| is_problem(error));
        let mut failing_since = self.failing_since.lock();
        let is_news = match (failed, *failing_since) {
            (Some(_), last) => {
                *failing_since = Some(Instant::now());
                last.is_none()
            }
            (None, Some(last)) if last.elapsed() >= RECOVERY_INTERVAL => {
                *failing_since = None;
                true
            }
            (None, _) => false,
        };
        drop(failing_since);
        if is_news {
            (self.observer)(failed);
        }
    }
}

/// Whether an error is one of the store, not of the request.
fn is_problem(error: &QueueError) -> bool {
    matches!(error, QueueError::Unavailable(_) | QueueError::NewerSchema { .. })
}

#[async_trait]
impl QueueStore for SupervisedQueue {
    fn options(&self) -> &QueueOptions {
        &self.options
    }

    fn poll_interval(&self) -> Duration {
        self.store.get().map_or(POLL_INTERVAL, |store| store.poll_interval())
    }

    async fn room(&self, lane: &str, tenant: &str, bytes: usize) -> Result<(), QueueError> {
        self.observed(async { self.store().await?.room(lane, tenant, bytes).await }.await)
    }

    async fn push(
        &self,
        id: &str,
        lane: &str,
        request: &StoredRequest,
        due_in: Duration,
    ) -> Result<Accepted, QueueError> {
        self.observed(async { self.store().await?.push(id, lane, request, due_in).await }.await)
    }

    async fn claim(&self, most: usize) -> Result<Claimed, QueueError> {
        self.observed(async { self.store().await?.claim(most).await }.await)
    }

    async fn renew(&self, claim: &Claim) -> Result<bool, QueueError> {
        self.observed(async { self.store().await?.renew(claim).await }.await)
    }

    async fn postpone(&self, claim: &Claim, wait: Duration) -> Result<bool, QueueError> {
        self.observed(async { self.store().await?.postpone(claim, wait).await }.await)
    }

    async fn complete(&self, claim: &Claim, response: &StoredResponse) -> Result<bool, QueueError> {
        self.observed(async { self.store().await?.complete(claim, response).await }.await)
    }

    async fn fail(
        &self,
        claim: &Claim,
        why: &str,
        retry_in: Option<Duration>,
    ) -> Result<bool, QueueError> {
        self.observed(async { self.store().await?.fail(claim, why, retry_in).await }.await)
    }

    async fn ticket(&self, id: &str) -> Result<Option<Ticket>, QueueError> {
        self.observed(async { self.store().await?.ticket(id).await }.await)
    }

    async fn list(
        &self,
        shelf: Shelf,
        after: Option<&str>,
        most: usize,
    ) -> Result<Page, QueueError> {
        self.observed(async { self.store().await?.list(shelf, after, most).await }.await)
    }

    async fn retry(&self, id: &str) -> Result<Change, QueueError> {
        self.observed(async { self.store().await?.retry(id).await }.await)
    }

    async fn drop_entry(&self, id: &str) -> Result<Change, QueueError> {
        self.observed(async { self.store().await?.drop_entry(id).await }.await)
    }

    async fn sweep(&self) -> Result<Swept, QueueError> {
        self.observed(async { self.store().await?.sweep().await }.await)
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        self.observed(async { self.store().await?.counts().await }.await)
    }
}
