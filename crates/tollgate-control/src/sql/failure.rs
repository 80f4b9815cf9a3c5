//! What a driver's error means to the caller.

use sqlx::error::DatabaseError;

use crate::RepositoryError;

/// What a driver's error means.
pub(crate) fn failure(error: sqlx::Error) -> RepositoryError {
    match error {
        sqlx::Error::Database(error) => from_database(&*error),
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::TypeNotFound { .. }
        | sqlx::Error::RowNotFound => RepositoryError::Corrupt(error.to_string()),
        sqlx::Error::Encode(_) | sqlx::Error::InvalidArgument(_) => {
            RepositoryError::Invalid(error.to_string())
        }
        // The network, TLS, the pool, a worker that is gone.
        error => RepositoryError::Unavailable(error.to_string()),
    }
}

fn from_database(error: &dyn DatabaseError) -> RepositoryError {
    let message = error.message().to_owned();
    let code = error.code().unwrap_or_default();
    let meaning = if error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
        of_postgres(&code)
    } else {
        of_sqlite(&code)
    };
    match meaning {
        Meaning::Away => RepositoryError::Unavailable(message),
        Meaning::ReadOnly => RepositoryError::ReadOnly(message),
        Meaning::DiskFull => RepositoryError::DiskFull(message),
        Meaning::Refused => RepositoryError::Invalid(message),
        Meaning::Odd => RepositoryError::Corrupt(message),
    }
}

enum Meaning {
    /// It may go well later.
    Away,
    ReadOnly,
    DiskFull,
    /// It will not take what it was given.
    Refused,
    /// The schema is not what it should be.
    Odd,
}

/// By the class of the code, its first two characters.
fn of_postgres(code: &str) -> Meaning {
    match code.get(..2).unwrap_or_default() {
        // Constraints, values that do not fit, limits of the program.
        "22" | "23" | "54" => Meaning::Refused,
        // A server that is read-only, for it is a replica.
        "25" if code == "25006" => Meaning::ReadOnly,
        "53" if code == "53100" => Meaning::DiskFull,
        // Connection; transactions; logging in; no such database; deadlock; resources; locks; being shut down, out of
        // time; input and output.
        "08" | "25" | "28" | "3D" | "40" | "53" | "55" | "57" | "58" => Meaning::Away,
        _ => Meaning::Odd,
    }
}

/// The index of the write-ahead log found no room.
const SQLITE_IOERR_SHMSIZE: u32 = 4874;

/// By the primary code, the lowest byte of the extended one.
fn of_sqlite(code: &str) -> Meaning {
    let code: u32 = code.parse().unwrap_or(0);
    if code == SQLITE_IOERR_SHMSIZE {
        return Meaning::DiskFull;
    }
    match code & 0xff {
        // PERM, READONLY, CANTOPEN: no rights, or a disk that is mounted to be read.
        3 | 8 | 14 => Meaning::ReadOnly,
        13 => Meaning::DiskFull,
        // TOOBIG, CONSTRAINT, MISMATCH, RANGE.
        18 | 19 | 20 | 25 => Meaning::Refused,
        // BUSY, LOCKED, NOMEM, INTERRUPT, IOERR, PROTOCOL, AUTH.
        5 | 6 | 7 | 9 | 10 | 15 | 23 => Meaning::Away,
        _ => Meaning::Odd,
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
    use sqlx::{Connection as _, Executor as _};

    use super::*;

    /// As SQLite itself reports them.
    #[tokio::test]
    async fn a_disk_that_is_full_or_read_only_is_not_a_database_that_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let options =
            SqliteConnectOptions::new().filename(dir.path().join("one.db")).create_if_missing(true);
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        connection.execute("CREATE TABLE one (text TEXT)").await.unwrap();
        connection.execute("PRAGMA max_page_count = 2").await.unwrap();
        let insert = "INSERT INTO one VALUES (hex(zeroblob(100000)))";
        let error = failure(connection.execute(insert).await.unwrap_err());
        assert!(matches!(error, RepositoryError::DiskFull(_)), "{error:?}");

        let mut reader =
            SqliteConnection::connect_with(&options.clone().read_only(true)).await.unwrap();
        let error = failure(reader.execute("DELETE FROM one").await.unwrap_err());
        assert!(matches!(error, RepositoryError::ReadOnly(_)), "{error:?}");
        let missing = options.filename(dir.path().join("missing/one.db"));
        let error = failure(SqliteConnection::connect_with(&missing).await.unwrap_err());
        assert!(matches!(error, RepositoryError::ReadOnly(_)), "{error:?}");
        for (code, is_read_only) in [("25006", true), ("25P02", false)] {
            assert_eq!(matches!(of_postgres(code), Meaning::ReadOnly), is_read_only);
        }
        assert!(matches!(of_postgres("53100"), Meaning::DiskFull));
    }
}
