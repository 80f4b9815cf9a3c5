//! What can be known of the file's entries.

use std::time::Duration;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqlitePool};

use super::{SqliteQueue, shelf_number, signed, unsigned};
use crate::request::StoredResponse;
use crate::store::{
    Counts, MAX_PAGE, Page, QueueError, Shelf, Ticket, TicketState, cursor, read_cursor,
};

/// One entry. The answer is read with it.
const ONE: &str = "SELECT id, entries.lane, shelf, since, enqueued_at, attempts, label, error, \
    claim IS NOT NULL AS is_claimed, due_at, response, \
    (SELECT COUNT(*) FROM entries AS others WHERE others.shelf = 0 AND entries.shelf = 0 \
     AND others.lane = entries.lane AND others.seq < entries.seq) AS position \
    FROM entries LEFT JOIN lanes ON lanes.lane = entries.lane WHERE id = $1";

/// A page of entries, without answers and positions.
const MANY: &str = "SELECT id, entries.lane, shelf, since, enqueued_at, attempts, label, error, \
    claim IS NOT NULL AS is_claimed, due_at, NULL AS response, NULL AS position \
    FROM entries LEFT JOIN lanes ON lanes.lane = entries.lane \
    WHERE shelf = $1 AND (since, id) > ($2, $3) ORDER BY since, id LIMIT $4";

pub(super) async fn ticket(queue: &SqliteQueue, id: &str) -> Result<Option<Ticket>, QueueError> {
    let row = sqlx::query(ONE).bind(id).fetch_optional(&queue.readers).await?;
    row.map(|row| ticket_of(&row, queue.now())).transpose()
}

pub(super) async fn list(
    queue: &SqliteQueue,
    shelf: Shelf,
    after: Option<&str>,
    most: usize,
) -> Result<Page, QueueError> {
    let most = most.clamp(1, MAX_PAGE);
    let (since, id) = read_cursor(after);
    let rows = sqlx::query(MANY)
        .bind(shelf_number(shelf))
        .bind(signed(since))
        .bind(id)
        .bind(signed(most as u64))
        .fetch_all(&queue.readers)
        .await?;
    let now = queue.now();
    let next = match rows.last() {
        Some(row) if rows.len() == most => {
            let since: i64 = row.try_get("since")?;
            let id: String = row.try_get("id")?;
            Some(cursor(unsigned(since), &id))
        }
        _ => None,
    };
    let tickets = rows.iter().map(|row| ticket_of(row, now)).collect::<Result<_, _>>()?;
    Ok(Page { tickets, next })
}

fn ticket_of(row: &SqliteRow, now: u64) -> Result<Ticket, QueueError> {
    let number = |name| row.try_get::<i64, _>(name).map(unsigned);
    let maybe = |name| row.try_get::<Option<i64>, _>(name).map(|value| value.map(unsigned));
    let text = |name| row.try_get::<String, _>(name);
    let shelf = row.try_get::<i64, _>("shelf")?;
    let is_waiting = shelf == shelf_number(Shelf::Waiting);
    let is_claimed: bool = row.try_get("is_claimed")?;
    let due_at = maybe("due_at")?.filter(|_| is_waiting);
    let state = if is_waiting {
        let is_held = is_claimed && due_at.is_some_and(|due_at| due_at > now);
        if is_held { TicketState::Sending } else { TicketState::Queued }
    } else if shelf == shelf_number(Shelf::Done) {
        TicketState::Done
    } else {
        TicketState::Failed
    };
    let position = maybe("position")?.filter(|_| is_waiting);
    let is_next = state == TicketState::Queued && position == Some(0);
    let response: Option<Vec<u8>> = row.try_get("response")?;
    Ok(Ticket {
        id: text("id")?,
        state,
        lane: text("lane")?,
        label: text("label")?,
        position,
        enqueued_at: number("enqueued_at")?,
        attempts: u32::try_from(number("attempts")?).unwrap_or(u32::MAX),
        next_attempt_at: due_at.filter(|_| is_next),
        finished_at: if is_waiting { None } else { Some(number("since")?) },
        response: response.as_deref().map(StoredResponse::decode).transpose()?,
        error: row.try_get("error")?,
    })
}

pub(super) async fn counts(queue: &SqliteQueue) -> Result<Counts, QueueError> {
    let (waiting, done, dead) = (
        total(&queue.readers, Shelf::Waiting).await?,
        total(&queue.readers, Shelf::Done).await?,
        total(&queue.readers, Shelf::Dead).await?,
    );
    let lanes: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM lanes").fetch_one(&queue.readers).await?;
    let oldest: Option<i64> = sqlx::query_scalar("SELECT MIN(since) FROM entries WHERE shelf = 0")
        .fetch_one(&queue.readers)
        .await?;
    let now = queue.now();
    let age = |since| Duration::from_millis(now.saturating_sub(unsigned(since)));
    Ok(Counts { waiting, lanes: unsigned(lanes), oldest_age: oldest.map(age), done, dead })
}

async fn total(readers: &SqlitePool, shelf: Shelf) -> Result<u64, QueueError> {
    let count: i64 = sqlx::query_scalar("SELECT count FROM totals WHERE shelf = $1")
        .bind(shelf_number(shelf))
        .fetch_one(readers)
        .await?;
    Ok(unsigned(count))
}
