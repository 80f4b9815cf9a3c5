//! The queue of the gateway, for operators.

use serde_json::json;
use tollgate_queue::{Change, EntryView, QueueError, Shelf};

use super::read::Query;
use super::respond::{Answer, Obstacle};
use super::{Admin, AdminError, Asked};
use crate::edge::queue::Tickets;

impl Admin {
    /// From now on the calls of the queue are answered.
    pub(crate) fn serve_queue(&self, tickets: Tickets) {
        // A process has one queue, and sets it once.
        let _ = self.queue.set(tickets);
    }

    fn tickets(&self) -> Result<&Tickets, AdminError> {
        self.queue.get().ok_or_else(|| {
            let message = "this node has no queue: `tollgate gateway` with a data directory or \
                           Redis has one";
            AdminError::Conflict(Obstacle::NoQueue, message.to_owned())
        })
    }

    /// A page of what waits, of answers, or of dead letters.
    pub(super) async fn queued(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let page = query.page()?;
        let shelf = match query.take("state").as_deref() {
            None | Some("waiting") => Shelf::Waiting,
            Some("done") => Shelf::Done,
            Some("dead") => Shelf::Dead,
            Some(_) => {
                return Err(AdminError::invalid("state", "must be waiting, done or dead"));
            }
        };
        query.end()?;
        let (queue, runtime) = self.tickets()?.parts();
        let queue = queue.clone();
        let listed = runtime.spawn(async move {
            let page =
                queue.store().list(shelf, page.after.as_deref(), page.limit as usize).await?;
            Ok::<_, QueueError>((page, queue.store().counts().await?))
        });
        let (page, counts) = done(listed.await)?;
        let items: Vec<EntryView> = page.tickets.into_iter().map(EntryView::from).collect();
        let age = counts.oldest_age.map(|age| age.as_secs());
        Ok(Answer::ok(json!({
            "items": items,
            "next_cursor": page.next,
            "waiting": counts.waiting,
            "keys": counts.lanes,
            "oldest_seconds": age,
            "done": counts.done,
            "dead": counts.dead,
        })))
    }

    /// Puts a dead letter back into the queue.
    pub(super) async fn retry_queued(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let (queue, runtime) = self.tickets()?.parts();
        let (queue, id) = (queue.clone(), asked.id().to_owned());
        let changed = done(runtime.spawn(async move { queue.retry(&id).await }).await)?;
        change_answer(asked, changed, "queued", "only dead letters can be sent again")
    }

    /// Removes a request that is not under way.
    pub(super) async fn drop_queued(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let (queue, runtime) = self.tickets()?.parts();
        let (queue, id) = (queue.clone(), asked.id().to_owned());
        let changed =
            done(runtime.spawn(async move { queue.store().drop_entry(&id).await }).await)?;
        change_answer(asked, changed, "dropped", "it is being sent at this moment")
    }
}

/// The answer to a change of a queued request.
fn change_answer(
    asked: &Asked,
    changed: Change,
    state: &str,
    not_now: &str,
) -> Result<Answer, AdminError> {
    match changed {
        Change::Made => {
            let ticket: String = asked.id().chars().take(8).collect();
            tracing::info!(by = %asked.actor.name, ticket, state, "a queued request was changed");
            Ok(Answer::ok(json!({ "ticket": asked.id(), "state": state })))
        }
        Change::NotThere => Err(AdminError::NoTicket),
        Change::NotNow => Err(AdminError::Conflict(Obstacle::TicketState, not_now.to_owned())),
    }
}

fn done<T>(result: Result<Result<T, QueueError>, tokio::task::JoinError>) -> Result<T, AdminError> {
    match result {
        Ok(Ok(done)) => Ok(done),
        _ => Err(AdminError::QueueUnavailable),
    }
}
