//! What goes wrong.

use std::fmt;

use crate::Kind;

/// Why a repository could not do what it was asked. Nothing was written then, with one exception: a
/// change that ends as [`Unavailable`](Self::Unavailable) may have been written just before the
/// connection was lost. A caller that needs to know has to read again.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The database does not answer, or not in time.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The database can be read and not written: its files, their directory, or the server.
    #[error("the database is read-only: {0}")]
    ReadOnly(String),
    /// The disk of the database has no room for what was to be written.
    #[error("the disk of the database is full: {0}")]
    DiskFull(String),
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
    /// What was to be written or looked for cannot be in a database: a NUL character in a text, an id
    /// that is too long, the tier of a client that there is not, or a tier gone that clients have.
    #[error("that cannot be kept: {0}")]
    Invalid(String),
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

impl RepositoryError {
    /// Whether the connection is lost, or holds what must be looked at again: pages of a file in memory, or a file that
    /// was opened to be read only.
    pub(crate) const fn ends_connection(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::ReadOnly(_) | Self::DiskFull(_) | Self::Corrupt(_) => true,
            Self::Stale | Self::Conflict { .. } | Self::Invalid(_) | Self::NewerSchema { .. } => {
                false
            }
        }
    }
}

/// One thing that is wrong with what was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldProblem {
    /// Which field.
    pub field: Option<String>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Why a change was not made, or a question not answered.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// What was sent is wrong.
    #[error("{}", listed(.0))]
    Invalid(Vec<FieldProblem>),
    /// There is no such thing, or it belongs to another tenant.
    #[error("there is no {0} {1:?}")]
    NotFound(&'static str, String),
    /// It was there, and was removed to keep a bound.
    #[error("{0}")]
    Removed(String),
    /// It is there already, or has another version than the caller said.
    #[error("{0}")]
    Conflict(String),
    /// The caller's `If-Match` names another version than the one there is.
    #[error("the version is {have}, not the one of If-Match: get it again, and change that")]
    PreconditionFailed {
        /// The version there is, as an entity tag; `none` if there is none.
        have: String,
    },
    /// The database failed.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// Something that should not be.
    #[error("{0}")]
    Internal(String),
}

impl ControlError {
    /// One field is wrong.
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldProblem { field: Some(field.to_owned()), message: message.into() }])
    }
}

fn listed(problems: &[FieldProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
