//! Why a repository could not do what it was asked.

use crate::Kind;

/// Why a repository could not do what it was asked. Nothing was written then.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The database does not answer, or not in time.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The set has changed since the revision that the change was made for: look again.
    #[error("the rule set has changed meanwhile")]
    Stale,
    /// An entry is not as expected.
    #[error("{kind:?} {id:?} is at version {have:?}")]
    Conflict {
        /// What kind of entry.
        kind: Kind,
        /// Which.
        id: String,
        /// Its version; `None`: it is not there.
        have: Option<i64>,
    },
    /// What the database holds makes no sense to this version of Tollgate.
    #[error("the database holds something unexpected: {0}")]
    Corrupt(String),
    /// The schema is newer than this version of Tollgate knows.
    #[error(
        "the database's schema is version {have}, this Tollgate knows up to {known}: update it"
    )]
    NewerSchema {
        /// The version of the schema.
        have: i64,
        /// The newest this program knows.
        known: i64,
    },
}
