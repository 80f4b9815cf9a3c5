//! Looking at entries, at versions of rules, and at what was changed.

use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_first, fetch_int};
use super::table::{Table, read_entry};
use crate::{ChangeFilter, ChangeRecord, Entry, EntryFilter, Kind, Page, RepositoryError, Stamp};

pub(super) async fn get(
    session: &mut dyn Session,
    kind: Kind,
    id: &str,
) -> Result<Option<Entry>, RepositoryError> {
    let table = Table::of(kind);
    let mut query = Query::new(table.select());
    query.push_bind(&format!(" WHERE {} = ", table.id), id);
    fetch_first(session, query, |row| read_entry(kind, row)).await
}

pub(super) async fn list(
    session: &mut dyn Session,
    kind: Kind,
    filter: &EntryFilter,
    page: &Page,
) -> Result<Vec<Entry>, RepositoryError> {
    let table = Table::of(kind);
    let mut query = Query::new(table.select());
    filter_entries(&mut query, kind, filter);
    query.push_if(&format!(" AND {} > ", table.id), page.after.as_deref());
    query.push_bind(&format!(" ORDER BY {} LIMIT ", table.id), i64::from(page.limit));
    fetch_all(session, query, |row| read_entry(kind, row)).await
}

pub(super) async fn count(
    session: &mut dyn Session,
    kind: Kind,
    filter: &EntryFilter,
) -> Result<i64, RepositoryError> {
    let mut query = Query::new(format!("SELECT COUNT(*) FROM {}", Table::of(kind).name));
    filter_entries(&mut query, kind, filter);
    fetch_int(session, query).await
}

fn filter_entries(query: &mut Query, kind: Kind, filter: &EntryFilter) {
    let id = Table::of(kind).id;
    query.push(" WHERE true");
    query.push_if(" AND tenant_id = ", filter.tenant.as_deref());
    if let Some(prefix) = &filter.prefix {
        query.push_bind(&format!(" AND {id} >= "), prefix.as_str());
        query.push_if(&format!(" AND {id} < "), after_prefix(prefix));
    }
    match kind {
        Kind::Key => {
            query.push_if(" AND owner = ", filter.owner.as_deref());
            query.push_if(" AND name = ", filter.name.as_deref());
        }
        // Nothing else has an owner.
        _ if filter.owner.is_some() || filter.name.is_some() => query.push(" AND false"),
        _ => {}
    }
    match kind {
        Kind::ClientTier => query.push_if(" AND tier = ", filter.tier.as_deref()),
        // Nothing else has a tier.
        _ if filter.tier.is_some() => query.push(" AND false"),
        _ => {}
    }
}

/// The first text after all that begin with a prefix, in the order of bytes, which is that of
/// characters. A range needs no escapes, and finds its way in an index.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            text.push(next);
            return Some(text);
        }
    }
    None
}

const SELECT_VERSION: &str = "SELECT rule_id, body, version, tenant_id, created_at, created_by \
                              FROM rate_limit_rule_versions WHERE rule_id = $1";

pub(super) async fn rule_versions(
    session: &mut dyn Session,
    id: &str,
    page: &Page,
) -> Result<Vec<Entry>, RepositoryError> {
    let mut query = Query::new(SELECT_VERSION).bind(id);
    query.push_if(" AND version < ", number(page)?);
    query.push_bind(" ORDER BY version DESC LIMIT ", i64::from(page.limit));
    fetch_all(session, query, read_version).await
}

pub(super) async fn rule_version(
    session: &mut dyn Session,
    id: &str,
    version: i64,
) -> Result<Option<Entry>, RepositoryError> {
    let mut query = Query::new(SELECT_VERSION).bind(id);
    query.push_bind(" AND version = ", version);
    fetch_first(session, query, read_version).await
}

fn read_version(row: &mut Columns<'_>) -> Result<Entry, RepositoryError> {
    let (id, body) = (row.text()?, row.optional_json()?.unwrap_or_default());
    let (version, tenant) = (row.int()?, row.optional_text()?);
    let made = Stamp { at: row.int()?, by: row.text()? };
    Ok(Entry { kind: Kind::Rule, id, body, version, tenant, created: made.clone(), updated: made })
}

pub(super) async fn token(
    session: &mut dyn Session,
    digest: &str,
) -> Result<Option<Entry>, RepositoryError> {
    let mut query = Query::new(Table::of(Kind::Token).select());
    query.push_bind(" WHERE digest = ", digest);
    fetch_first(session, query, |row| read_entry(Kind::Token, row)).await
}

pub(super) async fn changes(
    session: &mut dyn Session,
    filter: &ChangeFilter,
    page: &Page,
) -> Result<Vec<ChangeRecord>, RepositoryError> {
    let mut query = Query::new(
        "SELECT id, timestamp, actor, token_id, action, kind, entry_id, tenant_id, version, \
         revision, before, after, request_id, ip_address FROM admin_audit_log WHERE true",
    );
    query.push_if(" AND kind = ", filter.kind.map(Kind::name));
    query.push_if(" AND entry_id = ", filter.entry_id.as_deref());
    query.push_if(" AND actor = ", filter.actor.as_deref());
    query.push_if(" AND tenant_id = ", filter.tenant.as_deref());
    query.push_if(" AND request_id = ", filter.request_id.as_deref());
    query.push_if(" AND timestamp >= ", filter.from);
    query.push_if(" AND timestamp < ", filter.until);
    query.push_if(" AND id < ", number(page)?);
    query.push_bind(" ORDER BY id DESC LIMIT ", i64::from(page.limit));
    fetch_all(session, query, read_change).await
}

fn read_change(row: &mut Columns<'_>) -> Result<ChangeRecord, RepositoryError> {
    let (id, at) = (row.int()?, row.int()?);
    let (actor, token_id, action) = (row.text()?, row.text()?, row.text()?);
    let kind = row.text()?;
    let kind = Kind::from_name(&kind)
        .ok_or_else(|| RepositoryError::Corrupt(format!("a change of a {kind:?}")))?;
    Ok(ChangeRecord {
        id,
        at,
        actor,
        token_id,
        action,
        kind,
        entry_id: row.text()?,
        tenant: row.optional_text()?,
        version: row.int()?,
        revision: row.int()?,
        before: row.optional_json()?,
        after: row.optional_json()?,
        request_id: row.optional_text()?,
        address: row.optional_text()?,
    })
}

/// The place of a page of records.
pub(super) fn number(page: &Page) -> Result<Option<i64>, RepositoryError> {
    let parse = |place: &String| {
        let wrong = |_| RepositoryError::Invalid(format!("{place:?} is not a place in this list"));
        place.parse().map_err(wrong)
    };
    page.after.as_ref().map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::after_prefix;

    #[test]
    fn what_begins_with_a_prefix_lies_between_it_and_the_next() {
        assert_eq!(after_prefix("user_id:a"), Some("user_id:b".to_owned()));
        assert_eq!(after_prefix("a%_"), Some("a%`".to_owned()));
        // The next character, with the gap of the surrogates in between.
        assert_eq!(after_prefix("a\u{d7ff}"), Some("a\u{e000}".to_owned()));
        assert_eq!(after_prefix("a\u{10ffff}"), Some("b".to_owned()));
        assert_eq!(after_prefix("\u{10ffff}"), None);
        assert_eq!(after_prefix(""), None);
    }
}
