//! A connection that is lent for one call.

use async_trait::async_trait;

use super::query::{Columns, Query, Row};
use crate::RepositoryError;

/// What is done with each row.
pub(crate) type Each<'a> =
    &'a mut (dyn for<'r> FnMut(&'r dyn Row) -> Result<(), RepositoryError> + Send);

/// A connection that is lent for one call. One that is let go in the middle of a statement or of a
/// transaction, because its call ran out of time or was given up, is closed and not lent again: the
/// database then rolls back what was open.
#[async_trait]
pub(crate) trait Session: Send {
    /// Runs a statement, and says how many rows it changed.
    async fn execute(&mut self, query: Query) -> Result<u64, RepositoryError>;

    /// Runs a query.
    async fn fetch(&mut self, query: Query, each: Each<'_>) -> Result<(), RepositoryError>;

    /// Runs several statements.
    async fn script(&mut self, sql: &'static str) -> Result<(), RepositoryError>;

    /// Begins a transaction.
    async fn begin(&mut self, statement: &'static str) -> Result<(), RepositoryError>;

    /// Ends the transaction: everything, or nothing.
    async fn end(&mut self, keep: bool) -> Result<(), RepositoryError>;
}

/// All rows of a query.
pub(crate) async fn fetch_all<T: Send>(
    session: &mut dyn Session,
    query: Query,
    mut read: impl FnMut(&mut Columns<'_>) -> Result<T, RepositoryError> + Send,
) -> Result<Vec<T>, RepositoryError> {
    let mut all = Vec::new();
    let mut each = |row: &dyn Row| {
        all.push(read(&mut Columns::new(row))?);
        Ok(())
    };
    session.fetch(query, &mut each).await?;
    Ok(all)
}

/// The first row of a query.
pub(crate) async fn fetch_first<T: Send>(
    session: &mut dyn Session,
    query: Query,
    read: impl FnMut(&mut Columns<'_>) -> Result<T, RepositoryError> + Send,
) -> Result<Option<T>, RepositoryError> {
    Ok(fetch_all(session, query, read).await?.into_iter().next())
}

/// The number that a query answers with; nothing counts as 0.
pub(crate) async fn fetch_int(
    session: &mut dyn Session,
    query: Query,
) -> Result<i64, RepositoryError> {
    let read = |row: &mut Columns<'_>| row.optional_int();
    let number = fetch_first(session, query, read).await?;
    Ok(number.flatten().unwrap_or(0))
}

/// A row of one number.
pub(crate) fn read_int(row: &mut Columns<'_>) -> Result<i64, RepositoryError> {
    row.int()
}

/// Ends a transaction as its work ended.
pub(crate) async fn finish<T>(
    mut session: Box<dyn Session>,
    result: Result<T, RepositoryError>,
) -> Result<T, RepositoryError> {
    match &result {
        Ok(_) => session.end(true).await?,
        // A connection that is lost, or that may hold what it should read again, is not asked for more.
        Err(error) if error.ends_connection() => {}
        // Closing the connection, if this fails, does the same.
        Err(_) => drop(session.end(false).await),
    }
    result
}

/// Makes a [`Session`] of a connection of a pool. The drivers have the same methods, but no trait that
/// says so without a page of bounds.
macro_rules! pool_session {
    ($name:ident, $database:ty, $arguments:ty, $row:ty) => {
        /// A connection that is lent for one call.
        pub(crate) struct $name {
            connection: sqlx::pool::PoolConnection<$database>,
            in_flight: bool,
            in_transaction: bool,
        }

        impl $name {
            pub(crate) fn new(connection: sqlx::pool::PoolConnection<$database>) -> Self {
                Self { connection, in_flight: false, in_transaction: false }
            }

            /// Notes how a statement ended: a connection that was lost stays `in_flight`.
            fn landed<T>(
                &mut self,
                result: Result<T, crate::RepositoryError>,
            ) -> Result<T, crate::RepositoryError> {
                self.in_flight = result.as_ref().is_err_and(|error| error.ends_connection());
                result
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if self.in_flight || self.in_transaction {
                    self.connection.close_on_drop();
                }
            }
        }

        fn arguments(
            binds: Vec<crate::sql::query::Bind>,
        ) -> Result<$arguments, crate::RepositoryError> {
            use crate::sql::query::Bind;
            let mut arguments = <$arguments>::default();
            for bind in binds {
                let added = match bind {
                    Bind::Int(value) => sqlx::Arguments::add(&mut arguments, value),
                    Bind::Text(value) => sqlx::Arguments::add(&mut arguments, value),
                };
                added.map_err(|error| crate::RepositoryError::Invalid(error.to_string()))?;
            }
            Ok(arguments)
        }

        impl crate::sql::query::Row for $row {
            fn int(&self, column: usize) -> Result<Option<i64>, crate::RepositoryError> {
                sqlx::Row::try_get(self, column).map_err(crate::sql::failure)
            }

            fn text(&self, column: usize) -> Result<Option<&str>, crate::RepositoryError> {
                sqlx::Row::try_get(self, column).map_err(crate::sql::failure)
            }
        }

        #[async_trait::async_trait]
        impl crate::sql::session::Session for $name {
            async fn execute(
                &mut self,
                query: crate::sql::query::Query,
            ) -> Result<u64, crate::RepositoryError> {
                query.check()?;
                let arguments = arguments(query.binds)?;
                self.in_flight = true;
                let done = sqlx::query_with(sqlx::AssertSqlSafe(query.sql), arguments)
                    .execute(&mut *self.connection)
                    .await;
                self.landed(done.map_err(crate::sql::failure)).map(|done| done.rows_affected())
            }

            async fn fetch(
                &mut self,
                query: crate::sql::query::Query,
                each: crate::sql::session::Each<'_>,
            ) -> Result<(), crate::RepositoryError> {
                query.check()?;
                let arguments = arguments(query.binds)?;
                self.in_flight = true;
                let mut rows = sqlx::query_with(sqlx::AssertSqlSafe(query.sql), arguments)
                    .fetch(&mut *self.connection);
                let result = loop {
                    match futures_util::TryStreamExt::try_next(&mut rows).await {
                        Ok(None) => break Ok(()),
                        Ok(Some(row)) => match each(&row) {
                            Ok(()) => {}
                            Err(error) => break Err(error),
                        },
                        Err(error) => break Err(crate::sql::failure(error)),
                    }
                };
                drop(rows);
                self.landed(result)
            }

            async fn script(&mut self, sql: &'static str) -> Result<(), crate::RepositoryError> {
                self.in_flight = true;
                let done = sqlx::raw_sql(sql).execute(&mut *self.connection).await;
                self.landed(done.map(drop).map_err(crate::sql::failure))
            }

            async fn begin(
                &mut self,
                statement: &'static str,
            ) -> Result<(), crate::RepositoryError> {
                self.in_transaction = true;
                self.script(statement).await
            }

            async fn end(&mut self, keep: bool) -> Result<(), crate::RepositoryError> {
                self.script(if keep { "COMMIT" } else { "ROLLBACK" }).await?;
                self.in_transaction = false;
                Ok(())
            }
        }
    };
}
pub(crate) use pool_session;
