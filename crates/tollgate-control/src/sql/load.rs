//! The whole set at once.

use std::collections::BTreeMap;

use serde_json::Value;
use tollgate_policy::{KEY_BUCKETS, KEY_ID_PREFIX, key_bucket};

use super::query::{Columns, Query, Row};
use super::session::{Session, fetch_all, fetch_first, read_int};
use super::table::{Table, read_entry};
use crate::{ClientTier, Kind, Loaded, RepositoryError, Revision, TIER_BUCKETS};

pub(super) async fn load(
    session: &mut dyn Session,
    since: Option<Revision>,
) -> Result<Loaded, RepositoryError> {
    let state = Query::new("SELECT installation, revision FROM control_state WHERE id = 1");
    let state = fetch_first(session, state, |row| Ok((row.text()?, row.int()?))).await?;
    let missing = || RepositoryError::Corrupt("control_state is empty".to_owned());
    let (installation, revision) = state.ok_or_else(missing)?;
    let mut entries = Vec::new();
    for kind in Kind::ALL {
        if kind.is_in_set() && !kind.is_in_buckets() {
            let table = Table::of(kind);
            let query = Query::new(format!("{} ORDER BY {}", table.select(), table.id));
            entries.extend(fetch_all(session, query, |row| read_entry(kind, row)).await?);
        }
    }
    let client_tiers = match since {
        None => all_buckets(session).await?,
        Some(since) => changed_buckets(session, since).await?,
    };
    let keys = keys(session, since).await?;
    Ok(Loaded { installation, revision, entries, client_tiers, keys })
}

/// Above so many changed buckets of keys, one pass over the table costs less than a query for each.
const MAX_BUCKET_QUERIES: usize = 32;

/// The bodies of virtual keys in the buckets that changed after `since`, each bucket complete and ordered by id.
async fn keys(
    session: &mut dyn Session,
    since: Option<Revision>,
) -> Result<Vec<(u16, Vec<Value>)>, RepositoryError> {
    const SELECT: &str = "SELECT body FROM api_keys";
    let changed: Vec<u16> = match since {
        None => (0..KEY_BUCKETS).collect(),
        Some(since) => {
            let query = "SELECT bucket FROM api_key_buckets WHERE revision > $1 ORDER BY bucket";
            let found = fetch_all(session, Query::new(query).bind(since), read_int).await?;
            found.into_iter().filter_map(|bucket| u16::try_from(bucket).ok()).collect()
        }
    };
    let mut buckets: BTreeMap<u16, Vec<Value>> = BTreeMap::new();
    if since.is_some() {
        // One that has no keys left changed as well.
        buckets.extend(changed.iter().map(|bucket| (*bucket, Vec::new())));
    }
    let queries: Vec<Query> = if changed.len() > MAX_BUCKET_QUERIES {
        vec![Query::new(format!("{SELECT} ORDER BY id"))]
    } else {
        let of = |bucket: &u16| {
            let mut query = Query::new(SELECT);
            query.push_bind(" WHERE id >= ", format!("{KEY_ID_PREFIX}{bucket:02x}"));
            // After all hexadecimal digits.
            query.push_bind(" AND id < ", format!("{KEY_ID_PREFIX}{bucket:02x}g"));
            query.push(" ORDER BY id");
            query
        };
        changed.iter().map(of).collect()
    };
    for query in queries {
        let bodies =
            fetch_all(session, query, |row| Ok(row.optional_json()?.unwrap_or_default())).await?;
        for body in bodies {
            let id = body.get("id").and_then(Value::as_str).unwrap_or_default();
            let Some(bucket) = key_bucket(id) else {
                return Err(RepositoryError::Corrupt(format!("a key of the id {id:?}")));
            };
            if changed.binary_search(&bucket).is_ok() {
                buckets.entry(bucket).or_default().push(body);
            }
        }
    }
    Ok(buckets.into_iter().collect())
}

const SELECT_CLIENTS: &str = "SELECT bucket, identifier_type, identifier, tier FROM client_tiers";

async fn all_buckets(
    session: &mut dyn Session,
) -> Result<Vec<(u16, Vec<ClientTier>)>, RepositoryError> {
    let buckets = clients(session, Query::new(SELECT_CLIENTS)).await?;
    let buckets = (0..TIER_BUCKETS).zip(buckets);
    Ok(buckets.filter(|(_, clients)| !clients.is_empty()).collect())
}

async fn changed_buckets(
    session: &mut dyn Session,
    since: Revision,
) -> Result<Vec<(u16, Vec<ClientTier>)>, RepositoryError> {
    const CHANGED: &str = "SELECT bucket FROM client_tier_buckets WHERE revision > $1";
    let changed = Query::new(format!("{CHANGED} ORDER BY bucket")).bind(since);
    let changed = fetch_all(session, changed, read_int).await?;
    if changed.is_empty() {
        return Ok(Vec::new());
    }
    let query = Query::new(format!("{SELECT_CLIENTS} WHERE bucket IN ({CHANGED})")).bind(since);
    let buckets = (0..TIER_BUCKETS).zip(clients(session, query).await?);
    Ok(buckets.filter(|(bucket, _)| changed.binary_search(&i64::from(*bucket)).is_ok()).collect())
}

/// Clients by bucket, each in order. Sorting many small lists here is faster than one long one there.
async fn clients(
    session: &mut dyn Session,
    query: Query,
) -> Result<Vec<Vec<ClientTier>>, RepositoryError> {
    let mut buckets = vec![Vec::new(); usize::from(TIER_BUCKETS)];
    let mut each = |row: &dyn Row| {
        let mut row = Columns::new(row);
        let bucket = row.int()?;
        let clients = usize::try_from(bucket).ok().and_then(|bucket| buckets.get_mut(bucket));
        let outside = || RepositoryError::Corrupt(format!("a client in bucket {bucket}"));
        clients.ok_or_else(outside)?.push(ClientTier {
            identifier_type: row.text()?,
            identifier: row.text()?,
            tier: row.text()?,
        });
        Ok(())
    };
    session.fetch(query, &mut each).await?;
    for clients in &mut buckets {
        clients.sort_unstable_by(|one, other| {
            (&one.identifier_type, &one.identifier)
                .cmp(&(&other.identifier_type, &other.identifier))
        });
    }
    Ok(buckets)
}
