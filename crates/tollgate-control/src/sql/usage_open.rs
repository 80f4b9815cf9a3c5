//! What was admitted and is not settled yet: it becomes part of the ledger when it is settled, or when it expires.

use std::collections::BTreeMap;

use super::batch::{Batch, int, text};
use super::decisions::cut;
use super::driver::Dialect;
use super::query::{Columns, Query};
use super::session::{Session, fetch_all};
use super::usage;
use crate::{RepositoryError, UsageEvent, UsageSweep};

/// Leaves out what has ended. What is said again may expire later, and never sooner.
const UNLESS_ENDED: &str = "AND NOT EXISTS (SELECT 1 FROM usage_events WHERE usage_events.event_id = \
    CAST(rows.value->>0 AS TEXT)) ON CONFLICT (event_id) DO UPDATE SET expires_at = excluded.expires_at \
    WHERE excluded.expires_at > usage_open.expires_at";

/// Takes events: those that have ended into the ledger, each once, and the others until they end. Returns how many were new
/// in the ledger.
pub(super) async fn record(
    session: &mut dyn Session,
    dialect: &Dialect,
    events: &[UsageEvent],
    max_rows_per_day: u32,
) -> Result<u64, RepositoryError> {
    let (open, ended): (Vec<&UsageEvent>, Vec<&UsageEvent>) =
        events.iter().partition(|event| event.expires_at.is_some());
    // First those that have ended: one that began and ended within a batch is not open.
    let added = end(session, dialect, &ended, max_rows_per_day).await?;
    keep(session, dialect, &open).await?;
    Ok(added)
}

async fn end(
    session: &mut dyn Session,
    dialect: &Dialect,
    ended: &[&UsageEvent],
    max_rows_per_day: u32,
) -> Result<u64, RepositoryError> {
    if ended.is_empty() {
        return Ok(0);
    }
    let added = usage::record(session, dialect, ended, max_rows_per_day).await?;
    let mut ids = Batch::new();
    for event in ended {
        ids.row(&[(&*cut(&event.event_id)).into()])?;
    }
    let delete = ids.select_in(dialect, "DELETE FROM usage_open", text("event_id"), "");
    session.execute(delete).await?;
    Ok(added)
}

async fn keep(
    session: &mut dyn Session,
    dialect: &Dialect,
    open: &[&UsageEvent],
) -> Result<(), RepositoryError> {
    // A statement changes a row once.
    let mut latest = BTreeMap::new();
    for event in open.iter().copied() {
        let kept = latest.entry(cut(&event.event_id)).or_insert(event);
        if event.expires_at > kept.expires_at {
            *kept = event;
        }
    }
    if latest.is_empty() {
        return Ok(());
    }
    let mut rows = Batch::new();
    for (id, event) in latest {
        let ended = UsageEvent { expires_at: None, ..event.clone() };
        // Structs of plain values always serialise.
        let body = serde_json::to_string(&ended).unwrap_or_default();
        rows.row(&[(&*id).into(), event.expires_at.into(), body.as_str().into()])?;
    }
    let columns = [text("event_id"), int("expires_at"), text("body")];
    session.execute(rows.insert(dialect, "usage_open", &columns, UNLESS_ENDED)).await?;
    Ok(())
}

/// Counts what has expired as it was estimated.
pub(super) async fn sweep(
    session: &mut dyn Session,
    dialect: &Dialect,
    sweep: &UsageSweep,
) -> Result<u64, RepositoryError> {
    let query = Query::new(
        "SELECT event_id, body FROM usage_open WHERE expires_at < $1 ORDER BY expires_at LIMIT $2",
    );
    let query = query.bind(sweep.expired_before).bind(i64::from(sweep.most));
    let read = |row: &mut Columns<'_>| Ok((row.text()?, row.text()?));
    let found = fetch_all(session, query, read).await?;
    let event = |(event_id, body): &(String, String)| {
        let read: UsageEvent = serde_json::from_str(body).unwrap_or_else(|error| {
            tracing::error!(%error, "an open event of usage cannot be read and is left out");
            UsageEvent { is_released: true, ..UsageEvent::default() }
        });
        UsageEvent { event_id: event_id.clone(), expires_at: None, ..read }
    };
    let expired: Vec<UsageEvent> = found.iter().map(event).collect();
    let expired: Vec<&UsageEvent> = expired.iter().collect();
    end(session, dialect, &expired, sweep.max_rows_per_day).await?;
    Ok(found.len() as u64)
}
