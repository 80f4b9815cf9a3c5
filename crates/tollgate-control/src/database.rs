//! Which database there is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{
    HistoryBounds, PostgresRepository, Repository, RepositoryError, Signer, SqliteRepository,
};

/// Where the control plane keeps what it knows.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseConfig {
    /// In a file.
    Sqlite(PathBuf),
    /// Behind a URL, `postgres://…`.
    Postgres(String),
}

impl fmt::Debug for DatabaseConfig {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
            Self::Postgres(_) => f.write_str("Postgres(…)"),
        }
    }
}

impl DatabaseConfig {
    /// The repository. The server of a URL may come up later. To be called within a Tokio runtime.
    pub fn open(&self) -> Result<Arc<dyn Repository>, RepositoryError> {
        self.open_with(HistoryBounds::default(), None)
    }

    /// As [`DatabaseConfig::open`], with these bounds of the history of changes, and with the key that signs it.
    pub fn open_with(
        &self,
        history: HistoryBounds,
        signer: Option<Arc<Signer>>,
    ) -> Result<Arc<dyn Repository>, RepositoryError> {
        Ok(match self {
            Self::Sqlite(path) => {
                let repository = SqliteRepository::open(path)?;
                Arc::new(repository.with_history(history).with_signer(signer))
            }
            Self::Postgres(url) => {
                let repository = PostgresRepository::connect_lazy(url)?;
                Arc::new(repository.with_history(history).with_signer(signer))
            }
        })
    }
}
