//! A connection for one search. SQLite does not stop a statement when its call runs out of time or is given up, so the
//! statement looks now and then whether its session still exists.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::Sqlite;

use super::SqliteSession;
use crate::RepositoryError;
use crate::sql::failure;
use crate::sql::query::Query;
use crate::sql::session::{Each, Session};

/// How many instructions of SQLite's virtual machine run between two looks: well under a millisecond.
const INSTRUCTIONS_PER_LOOK: i32 = 10_000;

/// A session whose statement ends with it.
pub(super) struct SearchSession {
    session: SqliteSession,
    is_over: Arc<AtomicBool>,
}

impl SearchSession {
    pub(super) async fn new(
        mut connection: PoolConnection<Sqlite>,
    ) -> Result<Self, RepositoryError> {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let mut handle = connection.lock_handle().await.map_err(failure)?;
        handle.set_progress_handler(INSTRUCTIONS_PER_LOOK, move || !seen.load(Ordering::Relaxed));
        drop(handle);
        Ok(Self { session: SqliteSession::new(connection), is_over })
    }
}

impl Drop for SearchSession {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[async_trait]
impl Session for SearchSession {
    async fn execute(&mut self, query: Query) -> Result<u64, RepositoryError> {
        self.session.execute(query).await
    }

    async fn fetch(&mut self, query: Query, each: Each<'_>) -> Result<(), RepositoryError> {
        self.session.fetch(query, each).await
    }

    async fn script(&mut self, sql: &'static str) -> Result<(), RepositoryError> {
        self.session.script(sql).await
    }

    async fn begin(&mut self, statement: &'static str) -> Result<(), RepositoryError> {
        self.session.begin(statement).await
    }

    async fn end(&mut self, keep: bool) -> Result<(), RepositoryError> {
        self.session.end(keep).await
    }
}
