//! Figures of nodes, for those who look at all nodes together.

use std::collections::HashMap;
use std::time::Duration;

use super::batch::{Batch, text};
use super::driver::Dialect;
use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_int};
use crate::RepositoryError;

/// Nodes with figures at most, as in Redis.
const MAX_NODES: i64 = 100;
/// The longest figures of one field, in bytes, as in Redis.
const MAX_FIGURES: usize = 128 << 10;
/// The longest name of a node.
const MAX_NODE_NAME: usize = 64;

fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

pub(super) async fn put(
    session: &mut dyn Session,
    dialect: &Dialect,
    node: &str,
    fields: &[(String, String)],
    (kept, live): (Duration, Duration),
) -> Result<bool, RepositoryError> {
    if node.len() > MAX_NODE_NAME || fields.iter().any(|(_, body)| body.len() > MAX_FIGURES) {
        return Err(RepositoryError::Invalid("figures of a node are too long".to_owned()));
    }
    let now = fetch_int(session, Query::new(dialect.now)).await?;
    let seen = Query::new("UPDATE node_reports SET seen_at = $1 WHERE node = $2");
    let is_known = session.execute(seen.bind(now).bind(node.to_owned())).await? > 0;
    if !is_known && !enter(session, node, now, (kept, live)).await? {
        return Ok(false);
    }
    let mut rows = Batch::new();
    for (field, body) in fields {
        rows.row(&[node.into(), field.as_str().into(), body.as_str().into()])?;
    }
    if !rows.is_empty() {
        let conflict = "ON CONFLICT (node, field) DO UPDATE SET body = excluded.body";
        let columns = [text("node"), text("field"), text("body")];
        session.execute(rows.insert(dialect, "node_figures", &columns, conflict)).await?;
    }
    Ok(true)
}

/// Makes room for a node that is new. False if all others are alive.
async fn enter(
    session: &mut dyn Session,
    node: &str,
    now: i64,
    (kept, live): (Duration, Duration),
) -> Result<bool, RepositoryError> {
    let old = Query::new("DELETE FROM node_reports WHERE seen_at < $1");
    session.execute(old.bind(now.saturating_sub(millis(kept)))).await?;
    if fetch_int(session, Query::new("SELECT COUNT(*) FROM node_reports")).await? >= MAX_NODES {
        // The one that was not seen for longest makes room, unless it is alive.
        let oldest = Query::new(
            "DELETE FROM node_reports WHERE seen_at < $1 AND node = \
             (SELECT node FROM node_reports ORDER BY seen_at, node LIMIT 1)",
        );
        if session.execute(oldest.bind(now.saturating_sub(millis(live)))).await? == 0 {
            return Ok(false);
        }
    }
    let rest = "DELETE FROM node_figures WHERE node NOT IN (SELECT node FROM node_reports)";
    session.execute(Query::new(rest)).await?;
    let add = Query::new(
        "INSERT INTO node_reports (node, seen_at) VALUES ($1, $2) \
         ON CONFLICT (node) DO UPDATE SET seen_at = excluded.seen_at",
    );
    session.execute(add.bind(node.to_owned()).bind(now)).await?;
    Ok(true)
}

/// The nodes with figures, and how long ago each was seen, the latest first.
pub(super) async fn nodes(
    session: &mut dyn Session,
    dialect: &Dialect,
) -> Result<Vec<(String, Duration)>, RepositoryError> {
    let now = fetch_int(session, Query::new(dialect.now)).await?;
    let query =
        Query::new("SELECT node, seen_at FROM node_reports ORDER BY seen_at DESC, node LIMIT $1");
    let read = |row: &mut Columns<'_>| {
        let (node, seen) = (row.text()?, row.int()?);
        let age = u64::try_from(now.saturating_sub(seen)).unwrap_or(0);
        Ok((node, Duration::from_millis(age)))
    };
    let mut nodes = fetch_all(session, query.bind(MAX_NODES), read).await?;
    nodes.retain(|(node, _)| node.len() <= MAX_NODE_NAME);
    Ok(nodes)
}

/// Figures of a node, in the order of the fields.
pub(super) async fn figures(
    session: &mut dyn Session,
    dialect: &Dialect,
    node: &str,
    fields: &[String],
) -> Result<Vec<Option<Vec<u8>>>, RepositoryError> {
    let mut rows = Batch::new();
    for field in fields {
        rows.row(&[field.as_str().into()])?;
    }
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let statement = "SELECT field, body FROM node_figures";
    let rest = "AND node = $2 AND LENGTH(body) <= $3";
    let query = rows.select_in(dialect, statement, text("field"), rest);
    let longest = i64::try_from(MAX_FIGURES).unwrap_or(i64::MAX);
    let read = |row: &mut Columns<'_>| Ok((row.text()?, row.text()?));
    let found = fetch_all(session, query.bind(node.to_owned()).bind(longest), read).await?;
    let mut found: HashMap<String, String> = found.into_iter().collect();
    Ok(fields.iter().map(|field| found.remove(field).map(String::into_bytes)).collect())
}
