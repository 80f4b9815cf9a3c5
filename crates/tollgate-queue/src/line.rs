//! The queue as the rest of the gateway has it: a store, and a bell that wakes its workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::id::{is_id, new_id};
use super::request::StoredRequest;
use super::store::{Accepted, Change, QueueError, QueueStore, Ticket};

/// A queue. Clones are the same queue.
#[derive(Clone)]
pub struct Queue {
    store: Arc<dyn QueueStore>,
    bell: Arc<Notify>,
    removed_dead: Arc<AtomicU64>,
}

/// A request that was taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Its ticket. Any client that knows it may read what became of the request.
    pub ticket: String,
    /// How many of its lane are before it.
    pub position: u64,
}

impl Queue {
    /// A queue in this store.
    pub fn new(store: Arc<dyn QueueStore>) -> Self {
        Self { store, bell: Arc::new(Notify::new()), removed_dead: Arc::default() }
    }

    /// How many dead letters requests of this process have removed to make room.
    pub fn removed_dead_letters(&self) -> u64 {
        self.removed_dead.load(Ordering::Relaxed)
    }

    /// The store, for what needs no bell.
    pub fn store(&self) -> &dyn QueueStore {
        &*self.store
    }

    /// Takes a request in. It is due after `due_in` if nothing else of its lane waits.
    ///
    /// A store that does not answer is asked once more under the same ticket, so that an answer that was
    /// lost makes no second entry.
    pub async fn push(
        &self,
        lane: &str,
        request: &StoredRequest,
        due_in: Duration,
    ) -> Result<Receipt, QueueError> {
        let ticket = new_id()?;
        let pushed = match self.store.push(&ticket, lane, request, due_in).await {
            Err(QueueError::Unavailable(_)) => {
                self.store.push(&ticket, lane, request, due_in).await
            }
            pushed => pushed,
        };
        let Accepted { position, removed_dead } = pushed?;
        if removed_dead > 0 {
            self.removed_dead.fetch_add(removed_dead, Ordering::Relaxed);
            tracing::debug!(count = removed_dead, "dead letters made room for a request");
        }
        self.ring();
        Ok(Receipt { ticket, position })
    }

    /// What is known of a ticket.
    pub async fn ticket(&self, id: &str) -> Result<Option<Ticket>, QueueError> {
        if is_id(id) { self.store.ticket(id).await } else { Ok(None) }
    }

    /// Puts a dead letter at the end of its lane.
    pub async fn retry(&self, id: &str) -> Result<Change, QueueError> {
        let change = self.store.retry(id).await?;
        self.ring();
        Ok(change)
    }

    /// Wakes a worker of this process.
    fn ring(&self) {
        self.bell.notify_one();
    }

    /// Waits until something was put in by this process.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }
}
