//! SQLite: a file of its own, for one process. What was accepted survives a power cut.

mod searching;

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Connection as _;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    Sqlite, SqliteArguments, SqliteAutoVacuum, SqliteConnectOptions, SqliteConnection,
    SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use tokio::time::Instant;

use self::searching::SearchSession;
use crate::sql::query::Query;
use crate::sql::session::{Session, fetch_int, pool_session};
use crate::sql::{Access, Dialect, Driver, Migration, failure};
use crate::{HistoryBounds, RepositoryError, Signer, Waker};

/// How many may read at once; readers do not wait for the writer.
const READERS: u32 = 4;

/// How many may search decisions at once. They have connections of their own, so that others do not wait for them.
const SEARCHERS: u32 = 4;

/// How long a call waits for its turn, within this process and behind others.
const TURN: Duration = Duration::from_secs(5);

/// How long a connection waits that was refused because another process had the file.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// How many rows are read ahead: each hand-over between threads costs as much as many rows.
const ROWS_AHEAD: usize = 1000;

/// Pages that a connection keeps, in KiB as SQLite counts them (negative). A change of ten thousand
/// clients touches most pages of three indexes; with too few, each would be written several times.
const CACHE: &str = "-65536";

/// How long the write-ahead log stays after its pages are in the file.
const MAX_JOURNAL_BYTES: &str = "8388608";

/// Free pages that stay in the file: 8 MiB, which the next records use.
const MAX_FREE_PAGES: i64 = 2_048;

/// Shortens the file by at most 4 MiB, so that other writers do not wait long.
const RELEASE_PAGES: &str = "PRAGMA incremental_vacuum(1024)";

static DIALECT: Dialect = Dialect {
    rows: "json_each($1) AS rows",
    now: "SELECT CAST(ROUND(unixepoch('subsec') * 1000) AS INTEGER)",
    begin_read: "BEGIN DEFERRED",
    begin_write: "BEGIN IMMEDIATE",
    lock_revision: "SELECT revision FROM control_state WHERE id = 1",
    allow_long: None,
    allow_migration: None,
    lock_migrations: None,
    has_right: None,
    count_version_tables: "SELECT COUNT(*) FROM sqlite_schema WHERE name = 'schema_version'",
    notify: None,
    migrations: &[
        Migration { version: 1, sql: include_str!("../../migrations/sqlite/0001_rules.sql") },
        Migration {
            version: 2,
            sql: include_str!("../../migrations/sqlite/0002_decisions_grants_settings.sql"),
        },
        Migration {
            version: 3,
            sql: include_str!("../../migrations/sqlite/0003_audit_bounds.sql"),
        },
        Migration {
            version: 4,
            sql: include_str!("../../migrations/sqlite/0004_history_bounds.sql"),
        },
        Migration {
            version: 5,
            sql: include_str!("../../migrations/sqlite/0005_history_bytes.sql"),
        },
        Migration {
            version: 6,
            sql: include_str!("../../migrations/sqlite/0006_audit_callers.sql"),
        },
        Migration {
            version: 7,
            sql: include_str!("../../migrations/sqlite/0007_decision_search.sql"),
        },
        Migration { version: 8, sql: include_str!("../../migrations/sqlite/0008_api_keys.sql") },
        Migration {
            version: 9,
            sql: include_str!("../../migrations/sqlite/0009_node_figures.sql"),
        },
        Migration {
            version: 10,
            sql: include_str!("../../migrations/sqlite/0010_signed_history.sql"),
        },
        Migration { version: 11, sql: include_str!("../../migrations/sqlite/0011_usage.sql") },
    ],
};

/// A repository in a file.
pub struct SqliteRepository {
    readers: SqlitePool,
    searchers: SqlitePool,
    /// One connection: SQLite has one writer at a time, and a queue here is fairer than trying again
    /// there.
    writer: SqlitePool,
    history: HistoryBounds,
    signer: Option<Arc<Signer>>,
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
            // Takes effect in a file that is new; others keep their free pages, and use them again.
            .auto_vacuum(SqliteAutoVacuum::Incremental)
            .pragma("journal_size_limit", MAX_JOURNAL_BYTES)
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
        Ok(Self {
            readers: pool(READERS),
            searchers: pool(SEARCHERS),
            writer: pool(1),
            history: HistoryBounds::default(),
            signer: None,
        })
    }

    /// With this key, which signs the history of changes.
    #[must_use]
    pub fn with_signer(self, signer: Option<Arc<Signer>>) -> Self {
        Self { signer, ..self }
    }

    /// With these bounds of the history of changes.
    #[must_use]
    pub fn with_history(self, history: HistoryBounds) -> Self {
        Self { history, ..self }
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
        Err(error) => {
            let cause = format!("{}: {error}", path.display());
            Err(match error.kind() {
                ErrorKind::StorageFull => RepositoryError::DiskFull(cause),
                ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
                    RepositoryError::ReadOnly(cause)
                }
                _ => RepositoryError::Unavailable(cause),
            })
        }
    }
}

/// A connection of a pool. One that is made for it switches the file to its write-ahead log, for which
/// SQLite needs the file alone and does not wait its turn: where several processes open a file for the first
/// time, all but one are refused at once. So the turn is waited for here.
async fn connected(pool: &SqlitePool) -> Result<PoolConnection<Sqlite>, RepositoryError> {
    let deadline = Instant::now() + TURN;
    loop {
        match pool.acquire().await {
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            acquired => return acquired.map_err(failure),
        }
    }
}

/// Whether another process has the file at this moment: BUSY or LOCKED, in whatever form.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<u32>().ok());
    code.is_some_and(|code| matches!(code & 0xff, 5 | 6))
}

pool_session!(SqliteSession, Sqlite, SqliteArguments, SqliteRow);

#[async_trait]
impl Driver for SqliteRepository {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn history(&self) -> &HistoryBounds {
        &self.history
    }

    fn signer(&self) -> Option<&Signer> {
        self.signer.as_deref()
    }

    async fn session(&self, access: Access) -> Result<Box<dyn Session>, RepositoryError> {
        let pool = match access {
            Access::Read => &self.readers,
            Access::Search => {
                let session = SearchSession::new(connected(&self.searchers).await?).await?;
                return Ok(Box::new(session));
            }
            Access::Write => &self.writer,
        };
        Ok(Box::new(SqliteSession::new(connected(pool).await?)))
    }

    async fn listen(&self) -> Result<Option<Box<dyn Waker>>, RepositoryError> {
        Ok(None)
    }

    /// Copies the write-ahead log into the database while the disk has room for that, and returns free pages to the
    /// disk, some at a time.
    async fn release_space(&self, _: u64, _: u64) -> Result<(), RepositoryError> {
        let mut reader = self.session(Access::Read).await?;
        reader.script("PRAGMA wal_checkpoint(PASSIVE)").await?;
        let free = fetch_int(&mut *reader, Query::new("PRAGMA freelist_count")).await?;
        drop(reader);
        if free <= MAX_FREE_PAGES {
            return Ok(());
        }
        self.session(Access::Write).await?.script(RELEASE_PAGES).await
    }

    /// With a connection of its own: others may have pages in memory from before they were damaged.
    async fn check_pages(&self) -> Result<(), RepositoryError> {
        let options = self.readers.connect_options();
        let mut connection = SqliteConnection::connect_with(&options).await.map_err(failure)?;
        let checked = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(&mut connection).await;
        let result: String = checked.map_err(failure)?;
        // It was read, and what it holds is known.
        drop(connection.close().await);
        if result == "ok" { Ok(()) } else { Err(RepositoryError::Corrupt(result)) }
    }

    async fn restart_journal(&self) -> Result<(), RepositoryError> {
        // The log keeps its length, so that the next change needs no room.
        self.session(Access::Write).await?.script("PRAGMA wal_checkpoint(RESTART)").await
    }

    async fn end(&self) {
        self.readers.close().await;
        self.searchers.close().await;
        // The last to close puts the log's pages into the file.
        self.writer.close().await;
    }
}
