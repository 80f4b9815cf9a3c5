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
        Meaning::Refused => RepositoryError::Invalid(message),
        Meaning::Odd => RepositoryError::Corrupt(message),
    }
}

enum Meaning {
    /// It may go well later.
    Away,
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
        // Connection; a server that is read-only, for it is a replica; logging in; no such database;
        // deadlock; resources; locks; being shut down, out of time; input and output.
        "08" | "25" | "28" | "3D" | "40" | "53" | "55" | "57" | "58" => Meaning::Away,
        _ => Meaning::Odd,
    }
}

/// By the primary code, the lowest byte of the extended one.
fn of_sqlite(code: &str) -> Meaning {
    match code.parse().unwrap_or(0_u32) & 0xff {
        // TOOBIG, CONSTRAINT, MISMATCH, RANGE.
        18 | 19 | 20 | 25 => Meaning::Refused,
        // PERM, BUSY, LOCKED, NOMEM, READONLY, INTERRUPT, IOERR, FULL, CANTOPEN, PROTOCOL, AUTH.
        3 | 5..=10 | 13..=15 | 23 => Meaning::Away,
        _ => Meaning::Odd,
    }
}
