//! The bound of the log of decisions: in bytes, with shares of tenants. Where there is too much, the oldest records of
//! the tenant that takes the most go, so that a flood of one does not erase what is known of the others.

use std::collections::BTreeMap;

use super::batch::{Batch, Column, int, text};
use super::driver::Dialect;
use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_first, fetch_int};
use crate::{DecisionRecord, RepositoryError};

/// What a record takes besides its texts: numbers, headers of rows, and entries of six indexes.
const RECORD_OVERHEAD_BYTES: usize = 640;

/// Texts are in the row, and half of them in indexes and in what a page leaves empty.
const TEXT_FACTOR: usize = 2;

/// What follows a statement that adds or removes records, for [`Changed`].
pub(super) const RETURNING: &str = "RETURNING COALESCE(tenant_id, ''), bytes";

const USAGE: [Column; 2] = [text("tenant_id"), int("bytes")];

/// What a record takes on disk, indexes included: an estimate from above.
pub(super) fn estimated_bytes(record: &DecisionRecord) -> i64 {
    let needed =
        [&record.event_id, &record.action, &record.reason, &record.client_id, &record.node];
    let optional = [
        &record.rule_id,
        &record.scope,
        &record.endpoint,
        &record.method,
        &record.ip_address,
        &record.user_id,
        &record.tenant_id,
        &record.api_key_id,
        &record.model_id,
        &record.request_id,
    ];
    let texts = needed.iter().map(|text| text.len()).sum::<usize>()
        + optional.iter().filter_map(|text| text.as_ref()).map(String::len).sum::<usize>();
    i64::try_from(RECORD_OVERHEAD_BYTES + TEXT_FACTOR * texts).unwrap_or(i64::MAX)
}

/// Records that were added or removed.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) count: u64,
    bytes_by_tenant: BTreeMap<String, i64>,
}

/// Runs a statement that ends with [`RETURNING`].
pub(super) async fn run(
    session: &mut dyn Session,
    query: Query,
) -> Result<Changed, RepositoryError> {
    let read = |row: &mut Columns<'_>| Ok((row.text()?, row.int()?));
    let mut changed = Changed::default();
    for (tenant, bytes) in fetch_all(session, query, read).await? {
        changed.count += 1;
        let sum = changed.bytes_by_tenant.entry(tenant).or_default();
        *sum = sum.saturating_add(bytes);
    }
    Ok(changed)
}

/// Counts records that were added, or with a sign of -1 removed. Tenants in one order, so that two writers do not wait
/// for each other in a circle.
pub(super) async fn count(
    session: &mut dyn Session,
    dialect: &Dialect,
    changed: &Changed,
    sign: i64,
) -> Result<(), RepositoryError> {
    let mut rows = Batch::new();
    for (tenant, bytes) in &changed.bytes_by_tenant {
        rows.row(&[tenant.as_str().into(), bytes.saturating_mul(sign).into()])?;
    }
    if rows.is_empty() {
        return Ok(());
    }
    let conflict = "ON CONFLICT (tenant_id) DO UPDATE SET \
                    bytes = rate_limit_audit_usage.bytes + excluded.bytes";
    session.execute(rows.insert(dialect, "rate_limit_audit_usage", &USAGE, conflict)).await?;
    if sign < 0 {
        session.execute(Query::new("DELETE FROM rate_limit_audit_usage WHERE bytes <= 0")).await?;
    }
    Ok(())
}

/// A row of one text.
fn read_text(row: &mut Columns<'_>) -> Result<String, RepositoryError> {
    row.text()
}

/// By how many bytes all records are too much; not above 0 where they are not.
pub(super) async fn excess(
    session: &mut dyn Session,
    max_bytes: i64,
) -> Result<i64, RepositoryError> {
    let total = "SELECT CAST(SUM(bytes) AS BIGINT) FROM rate_limit_audit_usage";
    Ok(fetch_int(session, Query::new(total)).await?.saturating_sub(max_bytes))
}

/// Removes the oldest records of the tenant that takes the most, at most so many, where all take more than this.
/// Returns how many were removed.
pub(super) async fn bound(
    session: &mut dyn Session,
    dialect: &Dialect,
    max_bytes: i64,
    most: u32,
) -> Result<u64, RepositoryError> {
    let excess = excess(session, max_bytes).await?;
    if excess <= 0 {
        return Ok(0);
    }
    let largest =
        "SELECT tenant_id FROM rate_limit_audit_usage ORDER BY bytes DESC, tenant_id LIMIT 1";
    let tenant = fetch_first(session, Query::new(largest), read_text).await?;
    let Some(tenant) = tenant else { return Ok(0) };
    let is_own =
        if tenant.is_empty() { "(tenant_id IS NULL OR tenant_id = $1)" } else { "tenant_id = $1" };
    let oldest = Query::new(format!(
        "SELECT id, bytes FROM rate_limit_audit_log WHERE {is_own} ORDER BY id LIMIT $2"
    ));
    let read = |row: &mut Columns<'_>| Ok((row.int()?, row.int()?));
    let oldest = oldest.bind(tenant.clone()).bind(i64::from(most));
    let mut last = None;
    let mut freed = 0_i64;
    for (id, bytes) in fetch_all(session, oldest, read).await? {
        if freed >= excess {
            break;
        }
        freed = freed.saturating_add(bytes);
        last = Some(id);
    }
    let Some(last) = last else {
        // Figures without records: nothing of this tenant is left.
        let query = Query::new("DELETE FROM rate_limit_audit_usage WHERE tenant_id = $1");
        return session.execute(query.bind(tenant)).await.map(|_| 0);
    };
    let delete = Query::new(format!(
        "DELETE FROM rate_limit_audit_log WHERE {is_own} AND id <= $2 {RETURNING}"
    ));
    let removed = run(session, delete.bind(tenant).bind(last)).await?;
    count(session, dialect, &removed, -1).await?;
    Ok(removed.count)
}
