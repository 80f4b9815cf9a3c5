//! The whole set at once.

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
        if kind.is_in_set() && kind != Kind::ClientTier {
            let table = Table::of(kind);
            let query = Query::new(format!("{} ORDER BY {}", table.select(), table.id));
            entries.extend(fetch_all(session, query, |row| read_entry(kind, row)).await?);
        }
    }
    let client_tiers = match since {
        None => all_buckets(session).await?,
        Some(since) => changed_buckets(session, since).await?,
    };
    Ok(Loaded { installation, revision, entries, client_tiers })
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
