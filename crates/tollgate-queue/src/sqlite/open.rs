//! Opening the file, and making its schema.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use super::SqliteQueue;
use crate::options::QueueOptions;
use crate::store::{Clock, QueueError};

/// How many may read at once; readers do not wait for the writer.
const READERS: u32 = 2;

/// How long a call waits for its turn, within this process and behind others.
const TURN: Duration = Duration::from_secs(5);

/// The version of the schema that this program writes.
const SCHEMA: i64 = 2;

/// The dead letters with all that is needed to choose which make room: their rows are long.
const DEAD_LETTERS: &str = "CREATE INDEX IF NOT EXISTS dead_letters \
    ON entries (since, id, lane, tenant, request_bytes) WHERE shelf = 2";

impl SqliteQueue {
    /// Opens the file, or makes one that nobody else may read.
    pub async fn open(
        path: impl AsRef<Path>,
        options: QueueOptions,
        clock: Clock,
    ) -> Result<Self, QueueError> {
        let path = path.as_ref();
        make_private(path)?;
        let connect = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            // A 202 is a promise: it is on the disk before it is given.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(TURN)
            // Requests hold credentials; what is deleted is not to be found in the file's free pages.
            .pragma("secure_delete", "ON");
        let pool = |most: u32| {
            SqlitePoolOptions::new()
                .max_connections(most)
                .acquire_timeout(TURN)
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
                .connect_lazy_with(connect.clone())
        };
        let writer = pool(1);
        prepare(&writer).await?;
        Ok(Self { readers: pool(READERS), writer, options, clock })
    }
}

/// Makes the file, if there is none. SQLite's further files get the same permissions.
fn make_private(path: &Path) -> Result<(), QueueError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(QueueError::Unavailable(format!("{}: {error}", path.display()))),
    }
}

/// Makes the schema, if there is none. One that is newer is left alone.
async fn prepare(writer: &SqlitePool) -> Result<(), QueueError> {
    let mut transaction = writer.begin_with("BEGIN IMMEDIATE").await?;
    let have: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *transaction).await?;
    if have > SCHEMA {
        return Err(QueueError::NewerSchema { have, known: SCHEMA });
    }
    if have < 1 {
        sqlx::raw_sql(include_str!("schema.sql")).execute(&mut *transaction).await?;
    }
    if have < SCHEMA {
        sqlx::raw_sql(include_str!("schema_2.sql")).execute(&mut *transaction).await?;
    }
    // Older programs work with it, too.
    sqlx::raw_sql(DEAD_LETTERS).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(())
}
