//! The way of a request through the file: in, claimed, and out.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnection;

use super::{SqliteQueue, Transaction, signed, unsigned};
use crate::id::new_id;
use crate::options::millis;
use crate::request::{StoredRequest, StoredResponse};
use crate::store::{
    ABANDONED, Accepted, BURIALS_PER_CLAIM, BYTE_BOUNDS, Claim, Claimed, EXPIRED, QueueError,
    SWEEP_BATCH, bounded_error, counted_bytes, encoded, tenant_of,
};

pub(super) async fn push(
    queue: &SqliteQueue,
    id: &str,
    lane: &str,
    request: &StoredRequest,
    due_in: Duration,
) -> Result<Accepted, QueueError> {
    let bytes = encoded(lane, request, &queue.options)?;
    let (mut transaction, now) = queue.begin().await?;
    let known: Option<i64> = sqlx::query_scalar("SELECT seq FROM entries WHERE id = $1")
        .bind(id)
        .fetch_optional(&mut *transaction)
        .await?;
    if let Some(seq) = known {
        let position = before(&mut transaction, lane, seq).await?;
        return Ok(Accepted { position, removed_dead: 0 });
    }
    let (tenant, counted) = (tenant_of(request), counted_bytes(bytes.len()));
    let position = room(queue, &mut transaction, lane, tenant, counted).await?;
    let removed_dead = make_room(queue, &mut transaction, lane, tenant, counted).await?;
    sqlx::query(
        "INSERT INTO entries (id, lane, shelf, since, enqueued_at, attempts, label, request, \
         tenant, request_bytes) VALUES ($1, $2, 0, $3, $3, 0, $4, $5, $6, $7)",
    )
    .bind(id)
    .bind(lane)
    .bind(signed(now))
    .bind(request.label())
    .bind(bytes)
    .bind(tenant)
    .bind(signed(counted))
    .execute(&mut *transaction)
    .await?;
    let due_at = now.saturating_add(millis(due_in));
    open_lane(&mut transaction, lane, due_at).await?;
    transaction.commit().await?;
    Ok(Accepted { position, removed_dead })
}

/// How many of the lane wait, if there is room for one more.
pub(super) async fn room(
    queue: &SqliteQueue,
    connection: &mut SqliteConnection,
    lane: &str,
    tenant: &str,
    bytes: u64,
) -> Result<u64, QueueError> {
    let depth: i64 = sqlx::query_scalar("SELECT count FROM totals WHERE shelf = 0")
        .fetch_one(&mut *connection)
        .await?;
    if unsigned(depth) >= queue.options.max_depth {
        return Err(QueueError::Full(unsigned(depth)));
    }
    let position = before(connection, lane, i64::MAX).await?;
    if position >= queue.options.max_lane_depth {
        return Err(QueueError::LaneFull(position));
    }
    if bytes > 0 {
        bytes_fit(queue, connection, lane, tenant, bytes).await?;
    }
    Ok(position)
}

/// A bound of bytes.
struct ByteBound<'a> {
    /// Its kind and name in the table of usage.
    kind: i64,
    name: &'a str,
    max_bytes: u64,
    /// Whose it is, for errors.
    of: &'static str,
    /// Which dead letters make room; `$1` is the name.
    dead: &'static str,
}

/// The bounds of a lane, of its tenant and of all, in this order.
fn byte_bounds<'a>(queue: &SqliteQueue, lane: &'a str, tenant: &'a str) -> [ByteBound<'a>; 3] {
    let [of_lane, of_tenant, of_all] = BYTE_BOUNDS;
    let bound = |kind, name, max_bytes, of, dead| ByteBound { kind, name, max_bytes, of, dead };
    let options = &queue.options;
    [
        bound(0, lane, options.max_lane_bytes, of_lane, "lane = $1"),
        bound(1, tenant, options.max_tenant_bytes, of_tenant, "tenant = $1"),
        bound(2, "", options.max_bytes, of_all, "$1 = ''"),
    ]
}

impl ByteBound<'_> {
    /// How many bytes are kept, and how many are too much if so many are added.
    async fn usage(
        &self,
        connection: &mut SqliteConnection,
        bytes: u64,
    ) -> Result<(u64, u64), QueueError> {
        let kept: Option<i64> =
            sqlx::query_scalar("SELECT bytes FROM usage WHERE kind = $1 AND name = $2")
                .bind(self.kind)
                .bind(self.name)
                .fetch_optional(connection)
                .await?;
        let kept = kept.map_or(0, unsigned);
        Ok((kept, kept.saturating_add(bytes).saturating_sub(self.max_bytes)))
    }

    /// How many bytes its dead letters take.
    async fn dead_bytes(&self, connection: &mut SqliteConnection) -> Result<u64, QueueError> {
        let dead: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT COALESCE(SUM(request_bytes), 0) FROM entries INDEXED BY dead_letters \
             WHERE shelf = 2 AND {}",
            self.dead
        )))
        .bind(self.name)
        .fetch_one(connection)
        .await?;
        Ok(unsigned(dead))
    }
}

/// Whether so many bytes more fit into the lane, its tenant's share, and the queue, or dead letters can make room.
async fn bytes_fit(
    queue: &SqliteQueue,
    connection: &mut SqliteConnection,
    lane: &str,
    tenant: &str,
    bytes: u64,
) -> Result<(), QueueError> {
    for bound in byte_bounds(queue, lane, tenant) {
        let (kept, excess) = bound.usage(connection, bytes).await?;
        if excess == 0 {
            continue;
        }
        let dead = bound.dead_bytes(connection).await?;
        if dead < excess {
            let bytes = kept.saturating_sub(dead);
            return Err(QueueError::FullOfBytes { of: bound.of, bytes });
        }
    }
    Ok(())
}

/// Removes the oldest dead letters until so many bytes more fit. Returns how many were removed.
async fn make_room(
    queue: &SqliteQueue,
    transaction: &mut Transaction,
    lane: &str,
    tenant: &str,
    bytes: u64,
) -> Result<u64, QueueError> {
    let mut removed = 0;
    for bound in byte_bounds(queue, lane, tenant) {
        let (_, mut excess) = bound.usage(transaction, bytes).await?;
        if excess == 0 {
            continue;
        }
        let oldest: Vec<(i64, i64)> = sqlx::query_as(AssertSqlSafe(format!(
            "SELECT seq, request_bytes FROM entries INDEXED BY dead_letters \
             WHERE shelf = 2 AND {} ORDER BY since, id",
            bound.dead
        )))
        .bind(bound.name)
        .fetch_all(&mut **transaction)
        .await?;
        for (seq, bytes) in oldest {
            if excess == 0 {
                break;
            }
            sqlx::query("DELETE FROM entries WHERE seq = $1")
                .bind(seq)
                .execute(&mut **transaction)
                .await?;
            excess = excess.saturating_sub(unsigned(bytes));
            removed += 1;
        }
    }
    Ok(removed)
}

async fn before(
    connection: &mut SqliteConnection,
    lane: &str,
    seq: i64,
) -> Result<u64, QueueError> {
    let count: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM entries WHERE shelf = 0 AND lane = $1 AND seq < $2",
    )
    .bind(lane)
    .bind(seq)
    .fetch_one(&mut *connection)
    .await?;
    Ok(unsigned(count))
}

/// Makes a lane due, unless others of it wait already.
pub(super) async fn open_lane(
    transaction: &mut Transaction,
    lane: &str,
    due_at: u64,
) -> Result<(), QueueError> {
    sqlx::query("INSERT INTO lanes (lane, due_at) VALUES ($1, $2) ON CONFLICT (lane) DO NOTHING")
        .bind(lane)
        .bind(signed(due_at))
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

pub(super) async fn claim(queue: &SqliteQueue, most: usize) -> Result<Claimed, QueueError> {
    // A look that finds nothing keeps no writer waiting.
    let soonest: Option<i64> =
        sqlx::query_scalar("SELECT MIN(due_at) FROM lanes").fetch_one(&queue.readers).await?;
    let now = queue.now();
    match soonest.map(unsigned) {
        None => return Ok(Claimed::default()),
        Some(soonest) if soonest > now => return Ok(nothing_before(soonest, now)),
        Some(_) => (),
    }
    let (mut transaction, now) = queue.begin().await?;
    let lanes: Vec<String> =
        sqlx::query_scalar("SELECT lane FROM lanes WHERE due_at <= $1 ORDER BY due_at LIMIT $2")
            .bind(signed(now))
            .bind(signed(most as u64))
            .fetch_all(&mut *transaction)
            .await?;
    let token = new_id()?;
    let mut claims = Vec::with_capacity(lanes.len());
    for lane in lanes {
        claims.extend(claim_head(queue, &mut transaction, lane, &token, now).await?);
    }
    let soonest: Option<i64> =
        sqlx::query_scalar("SELECT MIN(due_at) FROM lanes").fetch_one(&mut *transaction).await?;
    transaction.commit().await?;
    let next_due_in =
        soonest.and_then(|soonest| nothing_before(unsigned(soonest), now).next_due_in);
    Ok(Claimed { claims, next_due_in })
}

fn nothing_before(soonest: u64, now: u64) -> Claimed {
    let next_due_in = Some(Duration::from_millis(soonest.saturating_sub(now)));
    Claimed { claims: Vec::new(), next_due_in }
}

/// Claims the first entry of a lane that can still be sent.
async fn claim_head(
    queue: &SqliteQueue,
    transaction: &mut Transaction,
    lane: String,
    token: &str,
    now: u64,
) -> Result<Option<Claim>, QueueError> {
    let oldest = now.saturating_sub(millis(queue.options.max_age));
    for _ in 0..BURIALS_PER_CLAIM {
        let head: Option<(i64, String, i64, i64)> = sqlx::query_as(
            "SELECT seq, id, since, attempts FROM entries WHERE shelf = 0 AND lane = $1 \
             ORDER BY seq LIMIT 1",
        )
        .bind(&lane)
        .fetch_optional(&mut **transaction)
        .await?;
        let Some((seq, id, since, attempts)) = head else { break };
        let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
        if unsigned(since) < oldest {
            bury(transaction, seq, EXPIRED, now).await?;
        } else if attempts
            >= queue.options.max_attempts.saturating_add(queue.options.max_lost_claims)
        {
            bury(transaction, seq, ABANDONED, now).await?;
        } else {
            let request: Vec<u8> = sqlx::query_scalar(
                "UPDATE entries SET claim = $2, attempts = attempts + 1 WHERE seq = $1 \
                 RETURNING request",
            )
            .bind(seq)
            .bind(token)
            .fetch_one(&mut **transaction)
            .await?;
            let due_at = now.saturating_add(millis(queue.options.lease));
            lane_due(transaction, &lane, due_at).await?;
            let (token, attempts) = (token.to_owned(), attempts + 1);
            return Ok(Some(Claim { id, lane, token, attempts, request }));
        }
    }
    lane_due(transaction, &lane, now).await?;
    Ok(None)
}

/// Makes an entry a dead letter. Its lane is to be looked after by the caller.
pub(super) async fn bury(
    transaction: &mut Transaction,
    seq: i64,
    why: &str,
    now: u64,
) -> Result<(), QueueError> {
    sqlx::query(
        "UPDATE entries SET shelf = 2, since = $2, claim = NULL, error = $3 WHERE seq = $1",
    )
    .bind(seq)
    .bind(signed(now))
    .bind(bounded_error(why))
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// Says when a lane is due, or that nothing of it waits any more.
pub(super) async fn lane_due(
    transaction: &mut Transaction,
    lane: &str,
    due_at: u64,
) -> Result<(), QueueError> {
    sqlx::query("UPDATE lanes SET due_at = $2 WHERE lane = $1")
        .bind(lane)
        .bind(signed(due_at))
        .execute(&mut **transaction)
        .await?;
    sqlx::query(
        "DELETE FROM lanes WHERE lane = $1 \
         AND NOT EXISTS (SELECT 1 FROM entries WHERE shelf = 0 AND lane = $1)",
    )
    .bind(lane)
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// Where the claimed entry is, if the claim is not lost.
async fn claimed(transaction: &mut Transaction, claim: &Claim) -> Result<Option<i64>, QueueError> {
    let found =
        sqlx::query_scalar("SELECT seq FROM entries WHERE id = $1 AND shelf = 0 AND claim = $2")
            .bind(&claim.id)
            .bind(&claim.token)
            .fetch_optional(&mut **transaction)
            .await?;
    Ok(found)
}

pub(super) async fn renew(queue: &SqliteQueue, claim: &Claim) -> Result<bool, QueueError> {
    let (mut transaction, now) = queue.begin().await?;
    if claimed(&mut transaction, claim).await?.is_none() {
        return Ok(false);
    }
    let due_at = now.saturating_add(millis(queue.options.lease));
    lane_due(&mut transaction, &claim.lane, due_at).await?;
    transaction.commit().await?;
    Ok(true)
}

pub(super) async fn postpone(
    queue: &SqliteQueue,
    claim: &Claim,
    wait: Duration,
) -> Result<bool, QueueError> {
    let (mut transaction, now) = queue.begin().await?;
    let Some(seq) = claimed(&mut transaction, claim).await? else { return Ok(false) };
    sqlx::query("UPDATE entries SET claim = NULL, attempts = attempts - 1 WHERE seq = $1")
        .bind(seq)
        .execute(&mut *transaction)
        .await?;
    let due_at = now.saturating_add(millis(wait));
    lane_due(&mut transaction, &claim.lane, due_at).await?;
    transaction.commit().await?;
    Ok(true)
}

pub(super) async fn complete(
    queue: &SqliteQueue,
    claim: &Claim,
    response: &StoredResponse,
) -> Result<bool, QueueError> {
    let bytes = response.encode()?;
    let (mut transaction, now) = queue.begin().await?;
    let Some(seq) = claimed(&mut transaction, claim).await? else { return Ok(false) };
    sqlx::query(
        "UPDATE entries SET shelf = 1, since = $2, claim = NULL, error = NULL, request = NULL, \
         request_bytes = 0, response = $3, response_bytes = $4 WHERE seq = $1",
    )
    .bind(seq)
    .bind(signed(now))
    .bind(&bytes)
    .bind(signed(counted_bytes(bytes.len())))
    .execute(&mut *transaction)
    .await?;
    trim_results(queue, &mut transaction).await?;
    lane_due(&mut transaction, &claim.lane, now).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Removes the oldest answers where all of them take too many bytes.
async fn trim_results(
    queue: &SqliteQueue,
    transaction: &mut Transaction,
) -> Result<(), QueueError> {
    let kept: i64 = sqlx::query_scalar("SELECT bytes FROM usage WHERE kind = 3 AND name = ''")
        .fetch_one(&mut **transaction)
        .await?;
    let mut excess = unsigned(kept).saturating_sub(queue.options.max_bytes);
    if excess == 0 {
        return Ok(());
    }
    let oldest: Vec<(i64, i64)> = sqlx::query_as(
        "SELECT seq, response_bytes FROM entries WHERE shelf = 1 ORDER BY since, id LIMIT $1",
    )
    .bind(SWEEP_BATCH)
    .fetch_all(&mut **transaction)
    .await?;
    for (seq, bytes) in oldest {
        if excess == 0 {
            break;
        }
        sqlx::query("DELETE FROM entries WHERE seq = $1")
            .bind(seq)
            .execute(&mut **transaction)
            .await?;
        excess = excess.saturating_sub(unsigned(bytes));
    }
    Ok(())
}

pub(super) async fn fail(
    queue: &SqliteQueue,
    claim: &Claim,
    why: &str,
    retry_in: Option<Duration>,
) -> Result<bool, QueueError> {
    let (mut transaction, now) = queue.begin().await?;
    let Some(seq) = claimed(&mut transaction, claim).await? else { return Ok(false) };
    let due_at = if let Some(pause) = retry_in {
        sqlx::query("UPDATE entries SET claim = NULL, error = $2 WHERE seq = $1")
            .bind(seq)
            .bind(bounded_error(why))
            .execute(&mut *transaction)
            .await?;
        now.saturating_add(millis(pause))
    } else {
        bury(&mut transaction, seq, why, now).await?;
        now
    };
    lane_due(&mut transaction, &claim.lane, due_at).await?;
    transaction.commit().await?;
    Ok(true)
}
