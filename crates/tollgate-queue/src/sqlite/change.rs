//! What is done by hand, and what is done with time: retries, drops, and the sweep.

use super::work::{bury, lane_due, open_lane, room};
use super::{SqliteQueue, Transaction, shelf_number, signed, unsigned};
use crate::options::millis;
use crate::store::{Change, EXPIRED, QueueError, SWEEP_BATCH, Shelf, Swept};

pub(super) async fn retry(queue: &SqliteQueue, id: &str) -> Result<Change, QueueError> {
    let (mut transaction, now) = queue.begin().await?;
    let found: Option<(i64, String)> =
        sqlx::query_as("SELECT shelf, lane FROM entries WHERE id = $1")
            .bind(id)
            .fetch_optional(&mut *transaction)
            .await?;
    let Some((shelf, lane)) = found else { return Ok(Change::NotThere) };
    if shelf != shelf_number(Shelf::Dead) {
        return Ok(Change::NotNow);
    }
    // Its bytes are counted already.
    room(queue, &mut transaction, &lane, "", 0).await?;
    // The end of the lane is the highest number that was ever given.
    sqlx::query(
        "UPDATE entries SET shelf = 0, since = $2, enqueued_at = $2, attempts = 0, \
         seq = (SELECT seq + 1 FROM sqlite_sequence WHERE name = 'entries') WHERE id = $1",
    )
    .bind(id)
    .bind(signed(now))
    .execute(&mut *transaction)
    .await?;
    sqlx::query("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'entries'")
        .execute(&mut *transaction)
        .await?;
    open_lane(&mut transaction, &lane, now).await?;
    transaction.commit().await?;
    Ok(Change::Made)
}

pub(super) async fn drop_entry(queue: &SqliteQueue, id: &str) -> Result<Change, QueueError> {
    let (mut transaction, now) = queue.begin().await?;
    let found: Option<(i64, String, bool, Option<i64>)> = sqlx::query_as(
        "SELECT shelf, lane, claim IS NOT NULL, \
         (SELECT due_at FROM lanes WHERE lanes.lane = entries.lane) FROM entries WHERE id = $1",
    )
    .bind(id)
    .fetch_optional(&mut *transaction)
    .await?;
    let Some((shelf, lane, is_claimed, due_at)) = found else { return Ok(Change::NotThere) };
    let is_waiting = shelf == shelf_number(Shelf::Waiting);
    let due_at = due_at.map_or(now, unsigned);
    if is_waiting && is_claimed && due_at > now {
        return Ok(Change::NotNow);
    }
    sqlx::query("DELETE FROM entries WHERE id = $1").bind(id).execute(&mut *transaction).await?;
    if is_waiting {
        lane_due(&mut transaction, &lane, due_at).await?;
    }
    transaction.commit().await?;
    Ok(Change::Made)
}

pub(super) async fn sweep(queue: &SqliteQueue) -> Result<Swept, QueueError> {
    let options = &queue.options;
    let now = queue.now();
    let oldest = |age| signed(now.saturating_sub(millis(age)));
    let (expires, done, dead) =
        (oldest(options.max_age), oldest(options.keep_results), oldest(options.keep_dead));
    // Most of the time there is nothing to do, and no writer is kept waiting.
    let is_needed: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM entries WHERE shelf = 0 AND since < $1) \
         OR EXISTS (SELECT 1 FROM entries WHERE shelf = 1 AND since < $2) \
         OR EXISTS (SELECT 1 FROM entries WHERE shelf = 2 AND since < $3) \
         OR EXISTS (SELECT 1 FROM totals WHERE shelf = 1 AND count > $4) \
         OR EXISTS (SELECT 1 FROM totals WHERE shelf = 2 AND count > $5)",
    )
    .bind(expires)
    .bind(done)
    .bind(dead)
    .bind(signed(options.max_results))
    .bind(signed(options.max_dead))
    .fetch_one(&queue.readers)
    .await?;
    if !is_needed {
        return Ok(Swept::default());
    }
    let (mut transaction, now) = queue.begin().await?;
    let expired = expire(&mut transaction, expires, now).await?;
    let done = remove(&mut transaction, Shelf::Done, done, options.max_results).await?;
    let dead = remove(&mut transaction, Shelf::Dead, dead, options.max_dead).await?;
    transaction.commit().await?;
    let is_partial = [expired, done, dead].iter().any(|&count| count >= u64::from(SWEEP_BATCH));
    Ok(Swept { expired, removed: done + dead, is_partial })
}

/// Requests that are too old become dead letters, unless they are under way.
async fn expire(transaction: &mut Transaction, before: i64, now: u64) -> Result<u64, QueueError> {
    let old: Vec<(i64, String, i64)> = sqlx::query_as(
        "SELECT seq, entries.lane, due_at FROM entries JOIN lanes ON lanes.lane = entries.lane \
         WHERE shelf = 0 AND since < $1 AND (claim IS NULL OR due_at <= $2) \
         ORDER BY since LIMIT $3",
    )
    .bind(before)
    .bind(signed(now))
    .bind(SWEEP_BATCH)
    .fetch_all(&mut **transaction)
    .await?;
    for (seq, lane, due_at) in &old {
        bury(transaction, *seq, EXPIRED, now).await?;
        lane_due(transaction, lane, unsigned(*due_at)).await?;
    }
    Ok(old.len() as u64)
}

/// Removes what has been on a shelf for too long, or is too much for it.
async fn remove(
    transaction: &mut Transaction,
    shelf: Shelf,
    before: i64,
    most: u64,
) -> Result<u64, QueueError> {
    let count: i64 = sqlx::query_scalar("SELECT count FROM totals WHERE shelf = $1")
        .bind(shelf_number(shelf))
        .fetch_one(&mut **transaction)
        .await?;
    let excess = unsigned(count).saturating_sub(most).min(u64::from(SWEEP_BATCH));
    let by_number = sqlx::query(
        "DELETE FROM entries WHERE seq IN \
         (SELECT seq FROM entries WHERE shelf = $1 ORDER BY since, id LIMIT $2)",
    )
    .bind(shelf_number(shelf))
    .bind(signed(excess))
    .execute(&mut **transaction)
    .await?;
    let by_age = sqlx::query(
        "DELETE FROM entries WHERE seq IN \
         (SELECT seq FROM entries WHERE shelf = $1 AND since < $2 ORDER BY since, id LIMIT $3)",
    )
    .bind(shelf_number(shelf))
    .bind(before)
    .bind(SWEEP_BATCH)
    .execute(&mut **transaction)
    .await?;
    Ok(by_number.rows_affected() + by_age.rows_affected())
}
