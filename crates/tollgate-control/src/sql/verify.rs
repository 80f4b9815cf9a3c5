//! Whether a database that has failed can be used again: all of it is read, and what is written can be written.

use super::driver::{Access, Driver};
use super::query::Query;
use super::session::{Session, fetch_int, finish};
use crate::RepositoryError;

/// Entries that are made, changed and removed.
const ENTRIES: &[&str] = &["INSERT", "UPDATE", "DELETE"];

/// Records that are made and removed.
const RECORDS: &[&str] = &["INSERT", "DELETE"];

/// Every table that a node reads, with what it does to the rows.
const TABLES: [(&str, &[&str]); 26] = [
    ("admin_audit_log", RECORDS),
    ("admin_tokens", ENTRIES),
    ("api_key_buckets", &["UPDATE"]),
    ("api_keys", ENTRIES),
    ("audit_chain", &["INSERT", "UPDATE"]),
    ("audit_chain_removed", ENTRIES),
    ("client_tier_buckets", &["UPDATE"]),
    ("client_tiers", ENTRIES),
    ("control_state", &["UPDATE"]),
    ("history_checkpoints", ENTRIES),
    ("history_usage", &["INSERT", "UPDATE"]),
    ("node_figures", ENTRIES),
    ("node_reports", ENTRIES),
    ("rate_limit_audit_log", RECORDS),
    ("rate_limit_audit_shares", ENTRIES),
    ("rate_limit_audit_usage", &[]),
    ("rate_limit_blacklist", ENTRIES),
    ("rate_limit_grants", ENTRIES),
    ("rate_limit_rule_versions", RECORDS),
    ("rate_limit_rules", ENTRIES),
    ("rate_limit_whitelist", ENTRIES),
    ("settings", ENTRIES),
    ("usage_days", ENTRIES),
    ("usage_events", RECORDS),
    ("usage_open", ENTRIES),
    ("user_tiers", ENTRIES),
];

/// A row that stays as it is would not be written.
const WRITES: [&str; 2] = [
    "UPDATE control_state SET revision = revision + 1 WHERE id = 1",
    "UPDATE control_state SET revision = revision - 1 WHERE id = 1",
];

/// Reads from every table, checks the rights on each of them, and writes one row. One write is enough: a disk without
/// room and a server or a file that is read-only refuse all tables alike, and what differs from table to table are the
/// rights.
pub(crate) async fn verify<D: Driver>(driver: &D) -> Result<(), RepositoryError> {
    driver.check_pages().await?;
    let mut session = driver.session(Access::Read).await?;
    for (table, rights) in TABLES {
        let one = format!("SELECT COUNT(*) FROM (SELECT 1 FROM {table} LIMIT 1) AS one");
        fetch_int(&mut *session, Query::new(one)).await?;
        for right in rights {
            check_right(driver, &mut *session, table, right).await?;
        }
    }
    drop(session);
    let mut session = driver.session(Access::Write).await?;
    session.begin(driver.dialect().begin_write).await?;
    let mut result = Ok(0);
    for statement in WRITES {
        if result.is_ok() {
            result = session.execute(Query::new(statement)).await;
        }
    }
    finish(session, result).await.map(drop)
}

async fn check_right<D: Driver>(
    driver: &D,
    session: &mut dyn Session,
    table: &str,
    right: &str,
) -> Result<(), RepositoryError> {
    let Some(sql) = driver.dialect().has_right else { return Ok(()) };
    match fetch_int(session, Query::new(sql).bind(table).bind(right)).await? {
        0 => Err(RepositoryError::Corrupt(format!("this node has no right to {right} on {table}"))),
        _ => Ok(()),
    }
}
