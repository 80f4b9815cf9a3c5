//! SQLite: a file of its own, for one process. What was accepted survives a power cut.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{
    Sqlite, SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePool,
    SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};

use crate::sql::session::{Session, pool_session};
use crate::sql::{Access, Dialect, Driver, Migration, failure};
use crate::{RepositoryError, Waker};

/// How many may read at once; readers do not wait for the writer.
const READERS: u32 = 4;

/// How long a call waits for its turn, within this process and behind others.
const TURN: Duration = Duration::from_secs(5);

/// How many rows are read ahead: each hand-over between threads costs as much as many rows.
const ROWS_AHEAD: usize = 1000;

/// Pages that a connection keeps, in KiB as SQLite counts them (negative). A change of ten thousand
/// clients touches most pages of three indexes; with too few, each would be written several times.
const CACHE: &str = "-65536";

static DIALECT: Dialect = Dialect {
    rows: "json_each($1) AS rows",
    now: "SELECT CAST(ROUND(unixepoch('subsec') * 1000) AS INTEGER)",
    begin_read: "BEGIN DEFERRED",
    begin_write: "BEGIN IMMEDIATE",
    lock_revision: "SELECT revision FROM control_state WHERE id = 1",
    allow_long: None,
    lock_migrations: None,
    count_version_tables: "SELECT COUNT(*) FROM sqlite_schema WHERE name = 'schema_version'",
    notify: None,
    migrations: &[
        Migration { version: 1, sql: include_str!("../../migrations/sqlite/0001_rules.sql") },
        Migration {
            version: 2,
            sql: include_str!("../../migrations/sqlite/0002_decisions_grants_settings.sql"),
        },
    ],
};

/// A repository in a file.
pub struct SqliteRepository {
    readers: SqlitePool,
    /// One connection: SQLite has one writer at a time, and a queue here is fairer than trying again
    /// there.
    writer: SqlitePool,
}

impl SqliteRepository {
    /// Opens the file, or makes one that nobody else may read. To be called within a Tokio runtime.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RepositoryError> {
        let path = path.as_ref();
        make_private(path)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(TURN)
            .row_buffer_size(ROWS_AHEAD)
            .pragma("cache_size", CACHE);
        let pool = |most: u32| {
            SqlitePoolOptions::new()
                .max_connections(most)
                .acquire_timeout(TURN)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
                .connect_lazy_with(options.clone())
        };
        Ok(Self { readers: pool(READERS), writer: pool(1) })
    }
}

/// Makes the file, if there is none. SQLite's further files get the same permissions.
fn make_private(path: &Path) -> Result<(), RepositoryError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(RepositoryError::Unavailable(format!("{}: {error}", path.display()))),
    }
}

pool_session!(SqliteSession, Sqlite, SqliteArguments, SqliteRow);

#[async_trait]
impl Driver for SqliteRepository {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    async fn session(&self, access: Access) -> Result<Box<dyn Session>, RepositoryError> {
        let pool = match access {
            Access::Read => &self.readers,
            Access::Write => &self.writer,
        };
        let connection = pool.acquire().await.map_err(failure)?;
        Ok(Box::new(SqliteSession::new(connection)))
    }

    async fn listen(&self) -> Result<Option<Box<dyn Waker>>, RepositoryError> {
        Ok(None)
    }

    async fn end(&self) {
        self.readers.close().await;
        // The last to close puts the log's pages into the file.
        self.writer.close().await;
    }
}
