//! Checkpoints: what is known of versions of rules and of changes that were removed.

use sha2::{Digest as _, Sha256};

use super::history::{Log, NO_ENTRY, Removed};
use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_first, fetch_int};
use crate::{Checkpoint, RepositoryError};

/// The most checkpoints that one answer lists.
const MAX_CHECKPOINTS: i64 = 1_000;

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

pub(super) async fn checkpoint_of(
    session: &mut dyn Session,
    log: Log,
    owner: &str,
    entry: &str,
) -> Result<Option<Checkpoint>, RepositoryError> {
    let query = Query::new(format!("{SELECT_CHECKPOINT} AND owner = $2 AND entry_id = $3"));
    let query = query.bind(log.name()).bind(owner).bind(entry);
    fetch_first(session, query, read_checkpoint).await
}

pub(super) fn add(checkpoint: &mut Option<Checkpoint>, record: &Removed) {
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

pub(super) async fn put(
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
pub(super) async fn fold_checkpoints(
    session: &mut dyn Session,
    rule: &str,
) -> Result<(), RepositoryError> {
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
            body_bytes: 0,
            rest: vec![own.digest.clone()],
            link: None,
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
