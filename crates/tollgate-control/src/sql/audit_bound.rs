//! The bound of the log of decisions: in bytes, with shares of callers, and of tenants within them. Where there is too
//! much, the oldest records of the tenants that take the most go, of the callers that take the most, so that a flood of
//! one does not erase what is known of the others. A tenant is a name in a request, which a caller can invent.

use std::collections::BTreeMap;

use super::batch::{Batch, Column, int, text};
use super::driver::Dialect;
use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_int};
use crate::RepositoryError;
use crate::records::RECORD_OVERHEAD_BYTES;

/// How many callers, and how many tenants of each, lose records in one transaction.
const MAX_SHARES: i64 = 1_000;

/// What follows a statement that adds or removes records, for [`Changed`].
pub(super) const RETURNING: &str = "RETURNING caller, COALESCE(tenant_id, ''), bytes";

const SHARES: [Column; 3] = [text("caller"), text("tenant_id"), int("bytes")];

/// Records that were added or removed.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) count: u64,
    /// By caller and tenant.
    bytes: BTreeMap<(String, String), i64>,
}

impl Changed {
    /// The bytes of all of them.
    pub(super) fn total_bytes(&self) -> u64 {
        let sum = self.bytes.values().fold(0, |sum: i64, bytes| sum.saturating_add(*bytes));
        u64::try_from(sum).unwrap_or(0)
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        for (share, bytes) in other.bytes {
            self.add_bytes(share, bytes);
        }
    }

    fn add_bytes(&mut self, share: (String, String), bytes: i64) {
        let sum = self.bytes.entry(share).or_default();
        *sum = sum.saturating_add(bytes);
    }
}

/// Runs a statement that ends with [`RETURNING`].
pub(super) async fn run(
    session: &mut dyn Session,
    query: Query,
) -> Result<Changed, RepositoryError> {
    let read = |row: &mut Columns<'_>| Ok((row.text()?, row.text()?, row.int()?));
    let mut changed = Changed::default();
    for (caller, tenant, bytes) in fetch_all(session, query, read).await? {
        changed.count += 1;
        changed.add_bytes((caller, tenant), bytes);
    }
    Ok(changed)
}

/// Counts records that were added, or with a sign of -1 removed. Shares in one order, so that two writers do not wait
/// for each other in a circle.
pub(super) async fn count(
    session: &mut dyn Session,
    dialect: &Dialect,
    changed: &Changed,
    sign: i64,
) -> Result<(), RepositoryError> {
    let mut rows = Batch::new();
    for ((caller, tenant), bytes) in &changed.bytes {
        let bytes = bytes.saturating_mul(sign);
        rows.row(&[caller.as_str().into(), tenant.as_str().into(), bytes.into()])?;
    }
    if rows.is_empty() {
        return Ok(());
    }
    let conflict = "ON CONFLICT (caller, tenant_id) DO UPDATE SET \
                    bytes = rate_limit_audit_shares.bytes + excluded.bytes";
    session.execute(rows.insert(dialect, "rate_limit_audit_shares", &SHARES, conflict)).await?;
    if sign < 0 {
        session.execute(Query::new("DELETE FROM rate_limit_audit_shares WHERE bytes <= 0")).await?;
    }
    Ok(())
}

/// By how many bytes all records are too much; not above 0 where they are not.
pub(super) async fn excess(
    session: &mut dyn Session,
    max_bytes: i64,
) -> Result<i64, RepositoryError> {
    let total = "SELECT CAST(SUM(bytes) AS BIGINT) FROM rate_limit_audit_shares";
    Ok(fetch_int(session, Query::new(total)).await?.saturating_sub(max_bytes))
}

/// Removes the oldest records of the tenants that take the most, of the callers that take the most, at most so many,
/// where all take more than this. Returns what was removed.
pub(super) async fn bound(
    session: &mut dyn Session,
    dialect: &Dialect,
    max_bytes: i64,
    most: u32,
) -> Result<Changed, RepositoryError> {
    let excess = excess(session, max_bytes).await?;
    if excess <= 0 {
        return Ok(Changed::default());
    }
    let callers = Query::new(
        "SELECT caller, CAST(SUM(bytes) AS BIGINT) AS sum FROM rate_limit_audit_shares \
         GROUP BY caller ORDER BY sum DESC, caller LIMIT $1",
    );
    let mut removed = Changed::default();
    for (caller, bytes) in cuts(session, callers.bind(MAX_SHARES + 1), excess).await? {
        let tenants = Query::new(
            "SELECT tenant_id, bytes FROM rate_limit_audit_shares WHERE caller = $1 \
             ORDER BY bytes DESC, tenant_id LIMIT $2",
        );
        let tenants = tenants.bind(caller.clone()).bind(MAX_SHARES + 1);
        for (tenant, bytes) in cuts(session, tenants, bytes).await? {
            let left = u64::from(most).saturating_sub(removed.count);
            if left == 0 {
                break;
            }
            removed.add(remove_oldest(session, &caller, tenant, bytes, left).await?);
        }
    }
    count(session, dialect, &removed, -1).await?;
    Ok(removed)
}

/// Whose records go, and how many bytes of them, so that all give up `excess` bytes together.
async fn cuts(
    session: &mut dyn Session,
    largest: Query,
    excess: i64,
) -> Result<Vec<(String, i64)>, RepositoryError> {
    let read = |row: &mut Columns<'_>| Ok((row.text()?, row.int()?));
    let mut shares = fetch_all(session, largest, read).await?;
    let level = level(&shares, excess);
    shares.truncate(usize::try_from(MAX_SHARES).unwrap_or(usize::MAX));
    let above = shares.into_iter().filter(|(_, bytes)| *bytes > level);
    Ok(above.map(|(name, bytes)| (name, bytes - level)).collect())
}

/// The bytes that each keeps, so that those which take more give up `excess` bytes together. Shares come in the order of
/// their bytes, the largest first.
fn level(shares: &[(String, i64)], excess: i64) -> i64 {
    let mut sum = 0_i64;
    for (index, (_, bytes)) in shares.iter().enumerate() {
        sum = sum.saturating_add(*bytes);
        let count = i64::try_from(index + 1).unwrap_or(i64::MAX);
        let level = (sum - excess).div_euclid(count).max(0);
        let next = shares.get(index + 1).map_or(0, |(_, bytes)| *bytes);
        if level >= next {
            return level;
        }
    }
    0
}

/// Removes the oldest records of a caller and tenant that take so many bytes, at most so many records.
async fn remove_oldest(
    session: &mut dyn Session,
    caller: &str,
    tenant: String,
    bytes: i64,
    most: u64,
) -> Result<Changed, RepositoryError> {
    let is_own =
        if tenant.is_empty() { "(tenant_id IS NULL OR tenant_id = $1)" } else { "tenant_id = $1" };
    let oldest = Query::new(format!(
        "SELECT id, bytes FROM rate_limit_audit_log WHERE {is_own} AND caller = $2 ORDER BY id LIMIT $3"
    ));
    let read = |row: &mut Columns<'_>| Ok((row.int()?, row.int()?));
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    // Records take at least the overhead, so that no more are read than may be removed.
    let needed = bytes / RECORD_OVERHEAD_BYTES + 1;
    let oldest = oldest.bind(tenant.clone()).bind(caller.to_owned()).bind(most.min(needed));
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
        let query =
            Query::new("DELETE FROM rate_limit_audit_shares WHERE caller = $1 AND tenant_id = $2");
        session.execute(query.bind(caller.to_owned()).bind(tenant)).await?;
        return Ok(Changed::default());
    };
    let delete = Query::new(format!(
        "DELETE FROM rate_limit_audit_log WHERE {is_own} AND caller = $2 AND id <= $3 {RETURNING}"
    ));
    run(session, delete.bind(tenant).bind(caller.to_owned()).bind(last)).await
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
