//! The bound of the log of decisions: in bytes, with shares of tenants. Where there is too much, the oldest records of
//! the tenants that take the most go, so that a flood of one does not erase what is known of the others.

use std::collections::BTreeMap;

use super::batch::{Batch, Column, int, text};
use super::driver::Dialect;
use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_int};
use crate::RepositoryError;
use crate::records::RECORD_OVERHEAD_BYTES;

/// How many tenants lose records in one transaction.
const MAX_TENANTS: i64 = 1_000;

/// What follows a statement that adds or removes records, for [`Changed`].
pub(super) const RETURNING: &str = "RETURNING COALESCE(tenant_id, ''), bytes";

const USAGE: [Column; 2] = [text("tenant_id"), int("bytes")];

/// Records that were added or removed.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) count: u64,
    bytes_by_tenant: BTreeMap<String, i64>,
}

impl Changed {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        for (tenant, bytes) in other.bytes_by_tenant {
            let sum = self.bytes_by_tenant.entry(tenant).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
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

/// By how many bytes all records are too much; not above 0 where they are not.
pub(super) async fn excess(
    session: &mut dyn Session,
    max_bytes: i64,
) -> Result<i64, RepositoryError> {
    let total = "SELECT CAST(SUM(bytes) AS BIGINT) FROM rate_limit_audit_usage";
    Ok(fetch_int(session, Query::new(total)).await?.saturating_sub(max_bytes))
}

/// Removes the oldest records of the tenants that take the most, at most so many, where all take more than this.
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
    let largest = Query::new(
        "SELECT tenant_id, bytes FROM rate_limit_audit_usage ORDER BY bytes DESC, tenant_id LIMIT $1",
    );
    let read = |row: &mut Columns<'_>| Ok((row.text()?, row.int()?));
    let mut tenants = fetch_all(session, largest.bind(MAX_TENANTS + 1), read).await?;
    let level = level(&tenants, excess);
    tenants.truncate(usize::try_from(MAX_TENANTS).unwrap_or(usize::MAX));
    let mut removed = Changed::default();
    for (tenant, bytes) in tenants {
        let left = u64::from(most).saturating_sub(removed.count);
        if left == 0 || bytes <= level {
            break;
        }
        removed.add(remove_oldest(session, tenant, bytes - level, left).await?);
    }
    count(session, dialect, &removed, -1).await?;
    Ok(removed.count)
}

/// The bytes that each tenant keeps, so that those which take more give up `excess` bytes together. Tenants come in
/// the order of their bytes, the largest first.
fn level(tenants: &[(String, i64)], excess: i64) -> i64 {
    let mut sum = 0_i64;
    for (index, (_, bytes)) in tenants.iter().enumerate() {
        sum = sum.saturating_add(*bytes);
        let count = i64::try_from(index + 1).unwrap_or(i64::MAX);
        let level = (sum - excess).div_euclid(count).max(0);
        let next = tenants.get(index + 1).map_or(0, |(_, bytes)| *bytes);
        if level >= next {
            return level;
        }
    }
    0
}

/// Removes the oldest records of a tenant that take so many bytes, at most so many records.
async fn remove_oldest(
    session: &mut dyn Session,
    tenant: String,
    bytes: i64,
    most: u64,
) -> Result<Changed, RepositoryError> {
    let is_own =
        if tenant.is_empty() { "(tenant_id IS NULL OR tenant_id = $1)" } else { "tenant_id = $1" };
    let oldest = Query::new(format!(
        "SELECT id, bytes FROM rate_limit_audit_log WHERE {is_own} ORDER BY id LIMIT $2"
    ));
    let read = |row: &mut Columns<'_>| Ok((row.int()?, row.int()?));
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    // Records take at least the overhead, so that no more are read than may be removed.
    let needed = bytes / RECORD_OVERHEAD_BYTES + 1;
    let oldest = oldest.bind(tenant.clone()).bind(most.min(needed));
    let mut last = None;
    let mut freed = 0_i64;
    for (id, bytes_of_record) in fetch_all(session, oldest, read).await? {
        if freed >= bytes {
            break;
        }
        freed = freed.saturating_add(bytes_of_record);
        last = Some(id);
    }
    let Some(last) = last else {
        // Figures without records: nothing of this tenant is left.
        let query = Query::new("DELETE FROM rate_limit_audit_usage WHERE tenant_id = $1");
        session.execute(query.bind(tenant)).await?;
        return Ok(Changed::default());
    };
    let delete = Query::new(format!(
        "DELETE FROM rate_limit_audit_log WHERE {is_own} AND id <= $2 {RETURNING}"
    ));
    run(session, delete.bind(tenant).bind(last)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_cut_to_one_level() {
        let tenants = |bytes: &[i64]| -> Vec<(String, i64)> {
            bytes.iter().map(|bytes| (String::new(), *bytes)).collect()
        };
        assert_eq!(level(&tenants(&[100, 10, 10]), 30), 70);
        assert_eq!(level(&tenants(&[100, 90, 10]), 30), 80);
        assert_eq!(level(&tenants(&[10, 10, 10]), 6), 8);
        assert_eq!(level(&tenants(&[10, 10, 10]), 60), 0);
        assert_eq!(level(&tenants(&[]), 5), 0);
    }
}
