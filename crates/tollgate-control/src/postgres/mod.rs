//! PostgreSQL, from version 13: one database for many processes, which hear of each other's changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Executor;
use sqlx::postgres::{
    PgArguments, PgConnectOptions, PgListener, PgPool, PgPoolOptions, PgRow, Postgres,
};
use tokio::time::timeout;

use crate::sql::session::{Session, pool_session};
use crate::sql::{Access, Dialect, Driver, Migration, failure};
use crate::{HistoryBounds, RepositoryError, Signer, Waker};

/// How many connections a process has.
const CONNECTIONS: u32 = 8;

/// How long a call waits for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// The server gives up a statement after this, and a transaction whose client has gone silent after
/// that: it holds the lock that every change needs.
const SERVER_LIMITS: [(&str, &str); 2] =
    [("statement_timeout", "5s"), ("idle_in_transaction_session_timeout", "30s")];

/// How long a listener hears nothing before it asks whether anybody is there.
const SILENCE: Duration = Duration::from_secs(30);

/// The space of removed records is made usable again when they take this part of the log's bound ... PostgreSQL does so
/// by itself about once a minute, and until then the tables of a flood grow.
const VACUUM_AFTER_PART: u64 = 8;

/// ... and so many bytes at least.
const MIN_VACUUM_BYTES: u64 = 1 << 20;

/// It waits for nobody, and must end within the time of a call.
const VACUUM: [&str; 3] = [
    "SET statement_timeout = '20s'",
    "VACUUM (SKIP_LOCKED) rate_limit_audit_log, rate_limit_audit_shares",
    "RESET statement_timeout",
];

/// The channel that announces changes.
const CHANNEL: &str = "tollgate_changes";

static DIALECT: Dialect = Dialect {
    rows: "jsonb_array_elements(CAST($1 AS jsonb)) AS rows (value)",
    now: "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    begin_read: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    begin_write: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
    lock_revision: "SELECT revision FROM control_state WHERE id = 1 FOR UPDATE",
    allow_long: Some("SET LOCAL statement_timeout = '30s'"),
    allow_migration: Some("SET LOCAL statement_timeout = '15min'"),
    // The number is arbitrary, and must stay.
    lock_migrations: Some("SELECT pg_advisory_xact_lock(6075926184321043457)"),
    has_right: Some(
        "SELECT CAST(CAST(has_table_privilege(CAST($1 AS text), CAST($2 AS text)) AS INT) AS BIGINT)",
    ),
    count_version_tables: "SELECT COUNT(*) FROM pg_catalog.pg_class WHERE oid = to_regclass('schema_version')",
    notify: Some("NOTIFY tollgate_changes"),
    migrations: &[
        Migration { version: 1, sql: include_str!("../../migrations/postgres/0001_rules.sql") },
        Migration {
            version: 2,
            sql: include_str!("../../migrations/postgres/0002_decisions_grants_settings.sql"),
        },
        Migration {
            version: 3,
            sql: include_str!("../../migrations/postgres/0003_audit_bounds.sql"),
        },
        Migration {
            version: 4,
            sql: include_str!("../../migrations/postgres/0004_history_bounds.sql"),
        },
        Migration {
            version: 5,
            sql: include_str!("../../migrations/postgres/0005_history_bytes.sql"),
        },
        Migration {
            version: 6,
            sql: include_str!("../../migrations/postgres/0006_audit_callers.sql"),
        },
        Migration {
            version: 7,
            sql: include_str!("../../migrations/postgres/0007_decision_search.sql"),
        },
        Migration { version: 8, sql: include_str!("../../migrations/postgres/0008_api_keys.sql") },
        Migration {
            version: 9,
            sql: include_str!("../../migrations/postgres/0009_node_figures.sql"),
        },
        Migration {
            version: 10,
            sql: include_str!("../../migrations/postgres/0010_signed_history.sql"),
        },
        Migration { version: 11, sql: include_str!("../../migrations/postgres/0011_usage.sql") },
    ],
};

/// A repository in a PostgreSQL database.
pub struct PostgresRepository {
    pool: PgPool,
    history: HistoryBounds,
    signer: Option<Arc<Signer>>,
    /// Bytes of records that were removed since the last [`VACUUM`].
    removed_bytes: AtomicU64,
}

impl PostgresRepository {
    /// A repository behind this URL (`postgres://…`); the server may come up later. To be called within
    /// a Tokio runtime.
    pub fn connect_lazy(url: &str) -> Result<Self, RepositoryError> {
        // The driver's error is not passed on: it may hold the URL, and so the password.
        let wrong =
            |_| RepositoryError::Invalid("the database's URL is not a valid one".to_owned());
        let options: PgConnectOptions = url.parse().map_err(wrong)?;
        let options = options.application_name("tollgate").options(SERVER_LIMITS);
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(CONNECT)
            .connect_lazy_with(options);
        Ok(Self {
            pool,
            history: HistoryBounds::default(),
            signer: None,
            removed_bytes: AtomicU64::default(),
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

pool_session!(PostgresSession, Postgres, PgArguments, PgRow);

#[async_trait]
impl Driver for PostgresRepository {
    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn history(&self) -> &HistoryBounds {
        &self.history
    }

    fn signer(&self) -> Option<&Signer> {
        self.signer.as_deref()
    }

    async fn session(&self, _: Access) -> Result<Box<dyn Session>, RepositoryError> {
        let connection = self.pool.acquire().await.map_err(failure)?;
        Ok(Box::new(PostgresSession::new(connection)))
    }

    async fn listen(&self) -> Result<Option<Box<dyn Waker>>, RepositoryError> {
        let mut listener = PgListener::connect_with(&self.pool).await.map_err(failure)?;
        // A lost connection is an error, not reopened silently: notifications may have been missed.
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await.map_err(failure)?;
        Ok(Some(Box::new(PostgresWaker { listener, is_lost: false })))
    }

    async fn release_space(
        &self,
        removed_bytes: u64,
        max_bytes: u64,
    ) -> Result<(), RepositoryError> {
        let removed = self.removed_bytes.fetch_add(removed_bytes, Ordering::Relaxed);
        let due = (max_bytes / VACUUM_AFTER_PART).max(MIN_VACUUM_BYTES);
        if removed.saturating_add(removed_bytes) < due {
            return Ok(());
        }
        self.removed_bytes.store(0, Ordering::Relaxed);
        let mut connection = self.pool.acquire().await.map_err(failure)?;
        for statement in VACUUM {
            connection.execute(statement).await.map_err(failure)?;
        }
        Ok(())
    }

    async fn end(&self) {
        self.pool.close().await;
    }
}

struct PostgresWaker {
    listener: PgListener,
    is_lost: bool,
}

impl PostgresWaker {
    /// A connection can be gone without a word of it.
    async fn ask(&mut self) -> Result<(), RepositoryError> {
        let silent = |_| RepositoryError::Unavailable("the listener hears nothing".to_owned());
        let answer = timeout(CONNECT, self.listener.execute("SELECT 1")).await.map_err(silent)?;
        answer.map(drop).map_err(failure)
    }

    async fn heard(&mut self) -> Result<(), RepositoryError> {
        loop {
            match timeout(SILENCE, self.listener.try_recv()).await {
                Ok(Ok(Some(_))) => break,
                Ok(Ok(None)) => {
                    return Err(RepositoryError::Unavailable("the connection is lost".to_owned()));
                }
                Ok(Err(error)) => return Err(failure(error)),
                Err(_) => self.ask().await?,
            }
        }
        // Many words are one reason to look.
        while self.listener.next_buffered().is_some() {}
        Ok(())
    }
}

#[async_trait]
impl Waker for PostgresWaker {
    async fn wait(&mut self) -> Result<(), RepositoryError> {
        // The driver would connect again by itself.
        if self.is_lost {
            return Err(RepositoryError::Unavailable("the connection was lost".to_owned()));
        }
        let result = self.heard().await;
        self.is_lost = result.is_err();
        result
    }
}
