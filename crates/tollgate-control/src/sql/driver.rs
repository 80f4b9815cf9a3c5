//! What a database must give for all else to work on it.

use async_trait::async_trait;

use super::session::Session;
use crate::{HistoryBounds, RepositoryError, Signer, Waker};

/// What a connection is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// To search the log of decisions, which may take seconds.
    Search,
    Write,
}

/// A step of the schema.
pub(crate) struct Migration {
    /// Their numbers go up from 1.
    pub(crate) version: i64,
    pub(crate) sql: &'static str,
}

/// Where the databases' SQL differs.
pub(crate) struct Dialect {
    /// `$1`, an array of arrays as JSON, as a table `rows` with a column `value`.
    pub(crate) rows: &'static str,
    /// Milliseconds since 1970 by the database's clock, as they go by and not as the transaction began.
    pub(crate) now: &'static str,
    /// Begins a transaction in which everything that is read belongs together.
    pub(crate) begin_read: &'static str,
    /// Begins a transaction that writes.
    pub(crate) begin_write: &'static str,
    /// Reads the revision so that nobody else writes until the transaction ends.
    pub(crate) lock_revision: &'static str,
    /// Lets statements of this transaction take as long as the call may.
    pub(crate) allow_long: Option<&'static str>,
    /// Lets statements of this transaction take as long as a migration may.
    pub(crate) allow_migration: Option<&'static str>,
    /// Lets nobody else migrate until the transaction ends.
    pub(crate) lock_migrations: Option<&'static str>,
    /// Whether this user has the right `$2` on the table `$1`: 1 or 0. None where there are no rights by table.
    pub(crate) has_right: Option<&'static str>,
    /// Counts tables named `schema_version`.
    pub(crate) count_version_tables: &'static str,
    /// Notifies those who wait for changes, when the transaction ends.
    pub(crate) notify: Option<&'static str>,
    /// The schema.
    pub(crate) migrations: &'static [Migration],
}

/// A database. Each is a [`Repository`](crate::Repository) by this alone.
#[async_trait]
pub(crate) trait Driver: Send + Sync + 'static {
    fn dialect(&self) -> &'static Dialect;

    /// How much of the history of changes is kept.
    fn history(&self) -> &HistoryBounds;

    /// The key that signs the history of changes.
    fn signer(&self) -> Option<&Signer>;

    async fn session(&self, access: Access) -> Result<Box<dyn Session>, RepositoryError>;

    async fn listen(&self) -> Result<Option<Box<dyn Waker>>, RepositoryError>;

    /// Makes the space of removed records usable again: so many bytes of them were removed just now, of a log of at most
    /// so many. Databases clean up after themselves, but later than a flood of records needs it.
    async fn release_space(
        &self,
        removed_bytes: u64,
        max_bytes: u64,
    ) -> Result<(), RepositoryError>;

    /// Reads the database as it is on disk, where that is a file of this node's.
    async fn check_pages(&self) -> Result<(), RepositoryError> {
        Ok(())
    }

    /// Makes the next change overwrite the write-ahead log, after one has failed: a full disk has no room for it to
    /// grow.
    async fn restart_journal(&self) -> Result<(), RepositoryError> {
        Ok(())
    }

    async fn end(&self);
}
