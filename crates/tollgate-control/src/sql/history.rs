//! The bounds of versions of rules and of the log of changes. A change removes as many of the oldest records as it adds
//! beyond a bound, in its own transaction, and each removal is added to a checkpoint. Tenants have shares: what the
//! admins of one write removes only what they have written before.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::batch::{Batch, Column, int, text};
use super::driver::Dialect;
use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_first, fetch_int};
use crate::{Checkpoint, HistoryBounds, RepositoryError};

/// The fewest records that a change may remove beyond a bound, so that a bound that was lowered is reached step by
/// step. A change that adds more may remove as many.
const MIN_REMOVED_PER_CHANGE: usize = 200;

/// The most checkpoints that one answer lists.
const MAX_CHECKPOINTS: i64 = 1_000;

/// The entry of a checkpoint that belongs to no single rule.
const NO_ENTRY: &str = "";

/// A log with a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Log {
    /// `rate_limit_rule_versions`.
    Versions,
    /// `admin_audit_log`.
    Changes,
}

impl Log {
    const fn name(self) -> &'static str {
        match self {
            Self::Versions => "versions",
            Self::Changes => "changes",
        }
    }

    fn bound(self, bounds: &HistoryBounds, owner: &str) -> i64 {
        i64::from(match (self, owner.is_empty()) {
            (Self::Versions, true) => bounds.versions,
            (Self::Versions, false) => bounds.versions_per_tenant,
            (Self::Changes, true) => bounds.changes,
            (Self::Changes, false) => bounds.changes_per_tenant,
        })
    }
}

/// What a change has added.
#[derive(Debug, Default)]
pub(super) struct Added<'a> {
    /// The newest version of each rule.
    pub(super) newest: BTreeMap<&'a str, i64>,
    /// How many versions, by the tenant of their rule; `''` without one.
    pub(super) versions: BTreeMap<&'a str, i64>,
    /// How many changes.
    pub(super) changes: i64,
    /// The tenant of who made them; `''` without one.
    pub(super) owner: &'a str,
}

/// A record that is removed.
#[derive(Debug)]
struct Removed {
    entry: String,
    number: i64,
    owner: String,
    at: i64,
    /// Everything else, for the digest.
    rest: Vec<String>,
}

/// Counts what was added, and removes what is too much.
pub(super) async fn keep_bounds(
    session: &mut dyn Session,
    dialect: &Dialect,
    bounds: &HistoryBounds,
    added: &Added<'_>,
) -> Result<(), RepositoryError> {
    let mut usage = Batch::new();
    for (owner, count) in &added.versions {
        usage.row(&[Log::Versions.name().into(), (*owner).into(), (*count).into()])?;
    }
    if added.changes > 0 {
        usage.row(&[Log::Changes.name().into(), added.owner.into(), added.changes.into()])?;
    }
    if usage.is_empty() {
        return Ok(());
    }
    count(session, dialect, usage).await?;
    let total = usize::try_from(added.changes).unwrap_or(usize::MAX);
    let most = i64::try_from(total.max(MIN_REMOVED_PER_CHANGE)).unwrap_or(i64::MAX);
    for (rule, newest) in &added.newest {
        let last = newest.saturating_sub(i64::from(bounds.versions_per_rule.max(1)));
        if last > 0 {
            let removed = old_versions_of(session, rule, last, most).await?;
            remove_versions(session, dialect, &removed).await?;
        }
    }
    for owner in added.versions.keys() {
        let excess = excess(session, bounds, Log::Versions, owner).await?;
        if excess > 0 {
            let removed = oldest_versions(session, owner, excess.min(most)).await?;
            remove_versions(session, dialect, &removed).await?;
        }
    }
    let excess = excess(session, bounds, Log::Changes, added.owner).await?;
    if excess > 0 {
        remove_changes(session, dialect, added.owner, excess.min(most)).await?;
    }
    Ok(())
}

/// The highest version of any rule of this tenant of which no version is left: versions of new rules come after it, so
/// that none is given twice.
pub(super) async fn forgotten_versions(
    session: &mut dyn Session,
    owner: &str,
) -> Result<i64, RepositoryError> {
    let query = Query::new(
        "SELECT last_number FROM history_checkpoints WHERE log = $1 AND owner = $2 AND entry_id = $3",
    );
    fetch_int(session, query.bind(Log::Versions.name()).bind(owner).bind(NO_ENTRY)).await
}

/// What was removed of a rule's versions.
pub(super) async fn rule_checkpoint(
    session: &mut dyn Session,
    rule: &str,
) -> Result<Option<Checkpoint>, RepositoryError> {
    let mut query = Query::new(SELECT_CHECKPOINT).bind(Log::Versions.name());
    query.push_bind(" AND entry_id = ", rule);
    fetch_first(session, query, read_checkpoint).await
}

/// What was removed of the changes of this tenant's admins, or of all.
pub(super) async fn change_checkpoints(
    session: &mut dyn Session,
    tenant: Option<&str>,
) -> Result<Vec<Checkpoint>, RepositoryError> {
    let mut query = Query::new(SELECT_CHECKPOINT).bind(Log::Changes.name());
    query.push_if(" AND owner = ", tenant);
    query.push_bind(" ORDER BY owner LIMIT ", MAX_CHECKPOINTS);
    fetch_all(session, query, read_checkpoint).await
}

const SELECT_CHECKPOINT: &str = "SELECT owner, removed, first_number, last_number, from_at, \
                                 until_at, digest FROM history_checkpoints WHERE log = $1";

fn read_checkpoint(row: &mut Columns<'_>) -> Result<Checkpoint, RepositoryError> {
    Ok(Checkpoint {
        tenant: Some(row.text()?).filter(|owner| !owner.is_empty()),
        removed: row.int()?,
        first: row.int()?,
        last: row.int()?,
        from: row.int()?,
        until: row.int()?,
        digest: row.text()?,
    })
}

/// Adds to the figures of owners.
async fn count(
    session: &mut dyn Session,
    dialect: &Dialect,
    rows: Batch,
) -> Result<(), RepositoryError> {
    const COLUMNS: [Column; 3] = [text("log"), text("owner"), int("records")];
    let conflict = "ON CONFLICT (log, owner) DO UPDATE SET \
                    records = history_usage.records + excluded.records";
    session.execute(rows.insert(dialect, "history_usage", &COLUMNS, conflict)).await.map(drop)
}

async fn excess(
    session: &mut dyn Session,
    bounds: &HistoryBounds,
    log: Log,
    owner: &str,
) -> Result<i64, RepositoryError> {
    let query = Query::new("SELECT records FROM history_usage WHERE log = $1 AND owner = $2");
    let records = fetch_int(session, query.bind(log.name()).bind(owner)).await?;
    Ok(records.saturating_sub(log.bound(bounds, owner)))
}

const SELECT_VERSIONS: &str = "SELECT v.rule_id, v.version, COALESCE(v.tenant_id, ''), \
                               v.created_at, v.created_by, COALESCE(v.body, '') \
                               FROM rate_limit_rule_versions v WHERE";

fn read_version(row: &mut Columns<'_>) -> Result<Removed, RepositoryError> {
    Ok(Removed {
        entry: row.text()?,
        number: row.int()?,
        owner: row.text()?,
        at: row.int()?,
        rest: vec![row.text()?, row.text()?],
    })
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

async fn remove_changes(
    session: &mut dyn Session,
    dialect: &Dialect,
    owner: &str,
    most: i64,
) -> Result<(), RepositoryError> {
    let query = "SELECT id, timestamp, actor, token_id, action, kind, entry_id, \
                 COALESCE(tenant_id, ''), version, revision, COALESCE(before, ''), \
                 COALESCE(after, ''), COALESCE(request_id, ''), COALESCE(ip_address, '') \
                 FROM admin_audit_log WHERE owner = $1 ORDER BY id LIMIT $2";
    let read = |row: &mut Columns<'_>| {
        let (number, at) = (row.int()?, row.int()?);
        let mut rest = Vec::with_capacity(12);
        for _ in 0..6 {
            rest.push(row.text()?);
        }
        rest.extend([row.int()?.to_string(), row.int()?.to_string()]);
        for _ in 0..4 {
            rest.push(row.text()?);
        }
        Ok(Removed { entry: NO_ENTRY.to_owned(), number, owner: owner.to_owned(), at, rest })
    };
    let removed = fetch_all(session, Query::new(query).bind(owner).bind(most), read).await?;
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
    let removed = i64::try_from(records.len()).unwrap_or(i64::MAX);
    let mut usage = Batch::new();
    usage.row(&[log.name().into(), owner.into(), removed.saturating_neg().into()])?;
    count(session, dialect, usage).await
}

async fn checkpoint_of(
    session: &mut dyn Session,
    log: Log,
    owner: &str,
    entry: &str,
) -> Result<Option<Checkpoint>, RepositoryError> {
    let query = Query::new(format!("{SELECT_CHECKPOINT} AND owner = $2 AND entry_id = $3"));
    let query = query.bind(log.name()).bind(owner).bind(entry);
    fetch_first(session, query, read_checkpoint).await
}

fn add(checkpoint: &mut Option<Checkpoint>, record: &Removed) {
    let before = checkpoint.take();
    let mut hash = Sha256::new();
    hash.update(before.as_ref().map_or("", |before| before.digest.as_str()));
    let numbers = [record.number.to_string(), record.at.to_string()];
    for part in [&record.owner, &record.entry].into_iter().chain(&numbers).chain(&record.rest) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let before = before.unwrap_or_else(|| Checkpoint {
        tenant: None,
        removed: 0,
        first: record.number,
        last: record.number,
        from: record.at,
        until: record.at,
        digest: String::new(),
    });
    *checkpoint = Some(Checkpoint {
        tenant: before.tenant,
        removed: before.removed.saturating_add(1),
        first: before.first.min(record.number),
        last: before.last.max(record.number),
        from: before.from.min(record.at),
        until: before.until.max(record.at),
        digest: crate::token::hex(&hash.finalize()),
    });
}

async fn put(
    session: &mut dyn Session,
    log: Log,
    (owner, entry): (&str, &str),
    checkpoint: &Checkpoint,
) -> Result<(), RepositoryError> {
    let query = Query::new(
        "INSERT INTO history_checkpoints (log, owner, entry_id, removed, first_number, \
         last_number, from_at, until_at, digest) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
         ON CONFLICT (log, owner, entry_id) DO UPDATE SET removed = excluded.removed, \
         first_number = excluded.first_number, last_number = excluded.last_number, \
         from_at = excluded.from_at, until_at = excluded.until_at, digest = excluded.digest",
    );
    let query = query.bind(log.name()).bind(owner).bind(entry).bind(checkpoint.removed);
    let query = query.bind(checkpoint.first).bind(checkpoint.last).bind(checkpoint.from);
    let query = query.bind(checkpoint.until).bind(checkpoint.digest.as_str());
    session.execute(query).await.map(drop)
}

/// Nothing is left of a rule: its checkpoints become part of its owners', so that rules which come and go leave no rows.
async fn fold_checkpoints(session: &mut dyn Session, rule: &str) -> Result<(), RepositoryError> {
    let mut of_rule = Query::new(SELECT_CHECKPOINT).bind(Log::Versions.name());
    of_rule.push_bind(" AND entry_id = ", rule);
    for own in fetch_all(session, of_rule, read_checkpoint).await? {
        let owner = own.tenant.clone().unwrap_or_default();
        let mut all = checkpoint_of(session, Log::Versions, &owner, NO_ENTRY).await?;
        // The digest covers that of the rule, which covers its versions.
        let summary = Removed {
            entry: rule.to_owned(),
            number: own.last,
            owner: owner.clone(),
            at: own.until,
            rest: vec![own.digest.clone()],
        };
        add(&mut all, &summary);
        if let Some(all) = &mut all {
            // One was counted by `add`.
            all.removed = all.removed.saturating_add(own.removed.saturating_sub(1));
            all.first = all.first.min(own.first);
            all.from = all.from.min(own.from);
            put(session, Log::Versions, (&owner, NO_ENTRY), all).await?;
        }
        let delete = Query::new(
            "DELETE FROM history_checkpoints WHERE log = $1 AND owner = $2 AND entry_id = $3",
        );
        session.execute(delete.bind(Log::Versions.name()).bind(owner).bind(rule)).await?;
    }
    Ok(())
}
