//! Bringing the schema up to date.

use super::driver::Dialect;
use super::query::Query;
use super::session::{Session, fetch_int};
use crate::RepositoryError;

/// The version of the schema; 0: there is none.
pub(super) async fn version(
    session: &mut dyn Session,
    dialect: &Dialect,
) -> Result<i64, RepositoryError> {
    if fetch_int(session, Query::new(dialect.count_version_tables)).await? == 0 {
        return Ok(0);
    }
    fetch_int(session, Query::new("SELECT MAX(version) FROM schema_version")).await
}

/// The newest version this program knows.
fn known(dialect: &Dialect) -> i64 {
    dialect.migrations.last().map_or(0, |migration| migration.version)
}

/// Whether nothing is to be done, which needs no lock and no right to change the schema.
pub(super) async fn is_done(
    session: &mut dyn Session,
    dialect: &Dialect,
) -> Result<Option<i64>, RepositoryError> {
    let (have, known) = (version(session, dialect).await?, known(dialect));
    if have > known {
        return Err(RepositoryError::NewerSchema { have, known });
    }
    Ok((have == known).then_some(have))
}

/// Takes the next step. Returns its version, or `None` if there is none left.
pub(super) async fn step(
    session: &mut dyn Session,
    dialect: &Dialect,
) -> Result<Option<i64>, RepositoryError> {
    if let Some(lock) = dialect.lock_migrations {
        session.script(lock).await?;
    }
    // Another process may have taken it while this one waited.
    if is_done(session, dialect).await?.is_some() {
        return Ok(None);
    }
    let have = version(session, dialect).await?;
    if have == 0 {
        session
            .script(
                "CREATE TABLE schema_version (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)",
            )
            .await?;
    }
    let next = dialect.migrations.iter().find(|migration| migration.version > have);
    let Some(migration) = next else { return Ok(None) };
    session.script(migration.sql).await?;
    let at = fetch_int(session, Query::new(dialect.now)).await?;
    let query = Query::new("INSERT INTO schema_version (version, applied_at) VALUES ($1, $2)");
    session.execute(query.bind(migration.version).bind(at)).await?;
    Ok(Some(migration.version))
}
