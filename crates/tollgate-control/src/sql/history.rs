//! The bounds of versions of rules and of the log of changes. A change removes as many of the oldest records as it adds
//! beyond a bound, in its own transaction, and each removal is added to a checkpoint. Tenants have shares: what the
//! admins of one write removes only what they have written before.

use std::collections::{BTreeMap, BTreeSet};

use super::batch::{Batch, Cell, Column, int, text};
use super::chain::Chain;
use super::checkpoints::{add, checkpoint_of, fold_checkpoints, put};
use super::driver::Dialect;
use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_first, fetch_int};
use crate::{HistoryBounds, RepositoryError};

/// The fewest records that a change may remove beyond a bound, so that a bound that was lowered is reached step by
/// step. A change that adds more may remove as many.
const MIN_REMOVED_PER_CHANGE: i64 = 200;

/// The most records that are read at once to be removed: each may be large.
const MAX_REMOVED_AT_ONCE: i64 = 50;

/// What a record takes besides its rules. The migration that counted the first ones has the same number.
const RECORD_BYTES: i64 = 256;

/// The entry of a checkpoint that belongs to no single rule.
pub(super) const NO_ENTRY: &str = "";

/// A log with a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Log {
    /// `rate_limit_rule_versions`.
    Versions,
    /// `admin_audit_log`.
    Changes,
}

impl Log {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Versions => "versions",
            Self::Changes => "changes",
        }
    }

    fn bound(self, bounds: &HistoryBounds, owner: &str) -> Size {
        let (records, bytes) = match (self, owner.is_empty()) {
            (Self::Versions, true) => (bounds.versions, bounds.bytes),
            (Self::Versions, false) => (bounds.versions_per_tenant, bounds.bytes_per_tenant),
            (Self::Changes, true) => (bounds.changes, bounds.bytes),
            (Self::Changes, false) => (bounds.changes_per_tenant, bounds.bytes_per_tenant),
        };
        Size { records: i64::from(records), bytes: signed(bytes) }
    }
}

/// How many records, and what they take.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Size {
    pub(super) records: i64,
    pub(super) bytes: i64,
}

impl Size {
    /// Adds a record whose rules, before and after, take so many bytes.
    pub(super) fn add(&mut self, body_bytes: i64) {
        self.records = self.records.saturating_add(1);
        self.bytes = self.bytes.saturating_add(RECORD_BYTES.saturating_add(body_bytes));
    }

    /// Takes the records off that must go, which are the first ones. The others are left.
    fn take_needed(&mut self, records: &mut Vec<Removed>) {
        let mut count = 0;
        for record in &*records {
            if self.records <= 0 && self.bytes <= 0 {
                break;
            }
            self.records = self.records.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(RECORD_BYTES + record.body_bytes);
            count += 1;
        }
        records.truncate(count);
    }
}

/// What a change has added.
#[derive(Debug, Default)]
pub(super) struct Added<'a> {
    /// The newest version of each rule.
    pub(super) newest: BTreeMap<&'a str, i64>,
    /// The versions, by the tenant of their rule; `''` without one.
    pub(super) versions: BTreeMap<&'a str, Size>,
    /// The changes.
    pub(super) changes: Size,
    /// The tenant of who made them; `''` without one.
    pub(super) owner: &'a str,
}

/// A record that is removed.
#[derive(Debug)]
pub(super) struct Removed {
    pub(super) entry: String,
    pub(super) number: i64,
    pub(super) owner: String,
    pub(super) at: i64,
    pub(super) body_bytes: i64,
    /// Everything else, for the digest.
    pub(super) rest: Vec<String>,
    /// Its number and its hash in the chain of changes.
    pub(super) link: Option<(i64, String)>,
}

/// Counts what was added, and removes what is too much.
pub(super) async fn keep_bounds(
    session: &mut dyn Session,
    dialect: &Dialect,
    (bounds, chain): (&HistoryBounds, &mut Chain<'_>),
    added: &Added<'_>,
) -> Result<(), RepositoryError> {
    let mut usage = Batch::new();
    for (owner, size) in &added.versions {
        usage.row(&usage_row(Log::Versions, owner, *size))?;
    }
    if added.changes.records > 0 {
        usage.row(&usage_row(Log::Changes, added.owner, added.changes))?;
    }
    if usage.is_empty() {
        return Ok(());
    }
    count(session, dialect, usage).await?;
    let most = added.changes.records.max(MIN_REMOVED_PER_CHANGE);
    let large = large_rules(session, dialect, bounds, added).await?;
    for (rule, newest) in &added.newest {
        let mut last = newest.saturating_sub(i64::from(bounds.versions_per_rule.max(1)));
        if large.contains(*rule) {
            last = last.max(last_beyond_bytes(session, rule, bounds).await?);
        }
        if last > 0 {
            let removed = old_versions_of(session, rule, last, most).await?;
            remove_versions(session, dialect, &removed).await?;
        }
    }
    for owner in added.versions.keys() {
        reduce(session, dialect, (bounds, &mut *chain), (Log::Versions, owner), most).await?;
    }
    reduce(session, dialect, (bounds, chain), (Log::Changes, added.owner), most).await
}

/// Removes the oldest records of an owner that are too much, but at most so many.
async fn reduce(
    session: &mut dyn Session,
    dialect: &Dialect,
    (bounds, chain): (&HistoryBounds, &mut Chain<'_>),
    (log, owner): (Log, &str),
    most: i64,
) -> Result<(), RepositoryError> {
    let mut excess = excess(session, bounds, log, owner).await?;
    let mut left = most;
    while left > 0 && (excess.records > 0 || excess.bytes > 0) {
        let step = left.min(MAX_REMOVED_AT_ONCE);
        let mut removed = match log {
            Log::Versions => oldest_versions(session, owner, step).await?,
            Log::Changes => oldest_changes(session, owner, step).await?,
        };
        excess.take_needed(&mut removed);
        if removed.is_empty() {
            return Ok(());
        }
        left -= step;
        match log {
            Log::Versions => remove_versions(session, dialect, &removed).await?,
            Log::Changes => {
                remove_changes(session, dialect, owner, &removed).await?;
                let links = removed.into_iter().map(|record| record.link);
                chain.remove(session, links.collect()).await?;
            }
        }
    }
    Ok(())
}

/// The rules of a change whose versions take too many bytes.
async fn large_rules(
    session: &mut dyn Session,
    dialect: &Dialect,
    bounds: &HistoryBounds,
    added: &Added<'_>,
) -> Result<BTreeSet<String>, RepositoryError> {
    let mut rules = Batch::new();
    for rule in added.newest.keys() {
        rules.row(&[(*rule).into()])?;
    }
    if rules.is_empty() {
        return Ok(BTreeSet::new());
    }
    let statement = "SELECT rule_id FROM rate_limit_rule_versions";
    let rest = format!(
        "GROUP BY rule_id HAVING SUM({RECORD_BYTES} + COALESCE(OCTET_LENGTH(body), 0)) > $2"
    );
    let query = rules.select_in(dialect, statement, text("rule_id"), &rest);
    let query = query.bind(signed(bounds.bytes_per_rule));
    let rules = fetch_all(session, query, |row| Ok((row.text()?, ()))).await?;
    Ok(rules.into_iter().map(|(rule, ())| rule).collect())
}

/// The newest version of a rule that must go, so that those after it fit. The newest of all stays.
async fn last_beyond_bytes(
    session: &mut dyn Session,
    rule: &str,
    bounds: &HistoryBounds,
) -> Result<i64, RepositoryError> {
    let query = Query::new(
        "SELECT version, CAST(COALESCE(OCTET_LENGTH(body), 0) AS BIGINT) \
         FROM rate_limit_rule_versions \
         WHERE rule_id = $1 ORDER BY version DESC LIMIT $2",
    );
    let query = query.bind(rule).bind(i64::from(bounds.versions_per_rule.max(1)));
    let sizes = fetch_all(session, query, |row| Ok((row.int()?, row.int()?))).await?;
    let mut kept = Size::default();
    for (index, (version, body_bytes)) in sizes.into_iter().enumerate() {
        kept.add(body_bytes);
        if index > 0 && kept.bytes > signed(bounds.bytes_per_rule) {
            return Ok(version);
        }
    }
    Ok(0)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn length(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

const fn usage_row(log: Log, owner: &str, size: Size) -> [Cell<'_>; 4] {
    [Cell::Text(log.name()), Cell::Text(owner), Cell::Int(size.records), Cell::Int(size.bytes)]
}

/// Adds to the figures of owners.
async fn count(
    session: &mut dyn Session,
    dialect: &Dialect,
    rows: Batch,
) -> Result<(), RepositoryError> {
    const COLUMNS: [Column; 4] = [text("log"), text("owner"), int("records"), int("bytes")];
    let conflict = "ON CONFLICT (log, owner) DO UPDATE SET \
                    records = history_usage.records + excluded.records, \
                    bytes = history_usage.bytes + excluded.bytes";
    session.execute(rows.insert(dialect, "history_usage", &COLUMNS, conflict)).await.map(drop)
}

async fn excess(
    session: &mut dyn Session,
    bounds: &HistoryBounds,
    log: Log,
    owner: &str,
) -> Result<Size, RepositoryError> {
    let query = "SELECT records, bytes FROM history_usage WHERE log = $1 AND owner = $2";
    let query = Query::new(query).bind(log.name()).bind(owner);
    let read = |row: &mut Columns<'_>| Ok(Size { records: row.int()?, bytes: row.int()? });
    let usage = fetch_first(session, query, read).await?.unwrap_or_default();
    let bound = log.bound(bounds, owner);
    Ok(Size {
        records: usage.records.saturating_sub(bound.records),
        bytes: usage.bytes.saturating_sub(bound.bytes),
    })
}

const SELECT_VERSIONS: &str = "SELECT v.rule_id, v.version, COALESCE(v.tenant_id, ''), \
                               v.created_at, v.created_by, COALESCE(v.body, '') \
                               FROM rate_limit_rule_versions v WHERE";

fn read_version(row: &mut Columns<'_>) -> Result<Removed, RepositoryError> {
    let (entry, number, owner) = (row.text()?, row.int()?, row.text()?);
    let (at, by, body) = (row.int()?, row.text()?, row.text()?);
    let body_bytes = length(&body);
    Ok(Removed { entry, number, owner, at, body_bytes, rest: vec![by, body], link: None })
}

async fn old_versions_of(
    session: &mut dyn Session,
    rule: &str,
    last: i64,
    most: i64,
) -> Result<Vec<Removed>, RepositoryError> {
    let query =
        format!("{SELECT_VERSIONS} v.rule_id = $1 AND v.version <= $2 ORDER BY v.version LIMIT $3");
    fetch_all(session, Query::new(query).bind(rule).bind(last).bind(most), read_version).await
}

/// The oldest versions of a tenant's rules, but for the one that each rule has now.
async fn oldest_versions(
    session: &mut dyn Session,
    owner: &str,
    most: i64,
) -> Result<Vec<Removed>, RepositoryError> {
    let is_own =
        if owner.is_empty() { "v.tenant_id IS NULL AND $1 = ''" } else { "v.tenant_id = $1" };
    let query = format!(
        "{SELECT_VERSIONS} {is_own} AND NOT EXISTS (SELECT 1 FROM rate_limit_rules r \
         WHERE r.rule_id = v.rule_id AND r.version = v.version) \
         ORDER BY v.created_at, v.rule_id, v.version LIMIT $2"
    );
    fetch_all(session, Query::new(query).bind(owner).bind(most), read_version).await
}

async fn remove_versions(
    session: &mut dyn Session,
    dialect: &Dialect,
    removed: &[Removed],
) -> Result<(), RepositoryError> {
    let mut of_rules: BTreeMap<(&str, &str), Vec<&Removed>> = BTreeMap::new();
    for record in removed {
        let query =
            Query::new("DELETE FROM rate_limit_rule_versions WHERE rule_id = $1 AND version = $2");
        session.execute(query.bind(record.entry.as_str()).bind(record.number)).await?;
        of_rules.entry((&record.owner, &record.entry)).or_default().push(record);
    }
    for ((owner, rule), records) in &of_rules {
        add_to_checkpoint(session, dialect, Log::Versions, (owner, rule), records).await?;
    }
    let rules: BTreeSet<&str> = removed.iter().map(|record| record.entry.as_str()).collect();
    for rule in rules {
        let left = "SELECT COUNT(*) FROM rate_limit_rule_versions WHERE rule_id = $1";
        if fetch_int(session, Query::new(left).bind(rule)).await? == 0 {
            fold_checkpoints(session, rule).await?;
        }
    }
    Ok(())
}

async fn oldest_changes(
    session: &mut dyn Session,
    owner: &str,
    most: i64,
) -> Result<Vec<Removed>, RepositoryError> {
    let query = "SELECT id, timestamp, actor, token_id, action, kind, entry_id, \
                 COALESCE(tenant_id, ''), version, revision, COALESCE(before, ''), \
                 COALESCE(after, ''), COALESCE(request_id, ''), COALESCE(ip_address, ''), \
                 chain_number, COALESCE(chain_hash, '') FROM admin_audit_log WHERE owner = $1 ORDER BY id LIMIT $2";
    let read = |row: &mut Columns<'_>| {
        let (number, at) = (row.int()?, row.int()?);
        let mut rest = Vec::with_capacity(12);
        for _ in 0..6 {
            rest.push(row.text()?);
        }
        rest.extend([row.int()?.to_string(), row.int()?.to_string()]);
        let (before, after) = (row.text()?, row.text()?);
        let body_bytes = length(&before).saturating_add(length(&after));
        rest.extend([before, after, row.text()?, row.text()?]);
        let (entry, owner) = (NO_ENTRY.to_owned(), owner.to_owned());
        let (place, hash) = (row.optional_int()?, row.text()?);
        let link = place.map(|place| (place, hash));
        Ok(Removed { entry, number, owner, at, body_bytes, rest, link })
    };
    fetch_all(session, Query::new(query).bind(owner).bind(most), read).await
}

async fn remove_changes(
    session: &mut dyn Session,
    dialect: &Dialect,
    owner: &str,
    removed: &[Removed],
) -> Result<(), RepositoryError> {
    let Some(last) = removed.last() else { return Ok(()) };
    let delete = Query::new("DELETE FROM admin_audit_log WHERE owner = $1 AND id <= $2");
    session.execute(delete.bind(owner).bind(last.number)).await?;
    let records: Vec<&Removed> = removed.iter().collect();
    add_to_checkpoint(session, dialect, Log::Changes, (owner, NO_ENTRY), &records).await
}

/// Adds removed records to their checkpoint, and takes them off the owner's figure.
async fn add_to_checkpoint(
    session: &mut dyn Session,
    dialect: &Dialect,
    log: Log,
    (owner, entry): (&str, &str),
    records: &[&Removed],
) -> Result<(), RepositoryError> {
    let mut checkpoint = checkpoint_of(session, log, owner, entry).await?;
    for record in records {
        add(&mut checkpoint, record);
    }
    let Some(checkpoint) = checkpoint else { return Ok(()) };
    put(session, log, (owner, entry), &checkpoint).await?;
    let mut removed = Size::default();
    for record in records {
        removed.add(record.body_bytes);
    }
    let less = Size { records: -removed.records, bytes: removed.bytes.saturating_neg() };
    let mut usage = Batch::new();
    usage.row(&usage_row(log, owner, less))?;
    count(session, dialect, usage).await
}
