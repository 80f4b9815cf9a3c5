//! Where a test runs, and the words it uses.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate_control::{
    Actor, ChangeNote, Committed, DatabaseConfig, Entry, EntryFilter, Expected, Kind, Page,
    Repository, RepositoryError, Write,
};
use tollgate_testkit::Postgres;

/// An empty database.
pub(crate) struct Ground {
    pub(crate) config: DatabaseConfig,
    _dir: Option<TempDir>,
    _server: Option<Arc<Postgres>>,
}

/// Tests of one process share a server, which stops with the last of them.
fn server() -> Arc<Postgres> {
    static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(Postgres::start());
        *shared = Arc::downgrade(&server);
        server
    })
}

impl Ground {
    pub(crate) fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let config = DatabaseConfig::Sqlite(dir.path().join("control.db"));
        Self { config, _dir: Some(dir), _server: None }
    }

    pub(crate) fn postgres() -> Self {
        let server = server();
        let config = DatabaseConfig::Postgres(server.database());
        Self { config, _dir: None, _server: Some(server) }
    }

    /// A repository, as it is before its migration.
    pub(crate) fn open(&self) -> Arc<dyn Repository> {
        self.config.open().expect("a repository")
    }

    /// A repository that is ready.
    pub(crate) async fn ready(&self) -> Arc<dyn Repository> {
        let repository = self.open();
        repository.migrate().await.expect("a migration");
        repository
    }

    /// Runs SQL behind the repository's back.
    pub(crate) async fn run(&self, sql: &str) {
        use sqlx::{AssertSqlSafe, Connection, raw_sql};
        let sql = AssertSqlSafe(sql.to_owned());
        match &self.config {
            DatabaseConfig::Sqlite(path) => {
                let options = sqlx::sqlite::SqliteConnectOptions::new();
                let options = options.filename(path).create_if_missing(true);
                let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
                raw_sql(sql).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
            DatabaseConfig::Postgres(url) => {
                let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
                raw_sql(sql).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
        }
    }

    /// The newest version of the schema.
    pub(crate) fn newest(&self) -> i64 {
        i64::try_from(self.migrations().len()).unwrap()
    }

    /// The migrations of this database, in order.
    pub(crate) fn migrations(&self) -> Vec<String> {
        let folder = match self.config {
            DatabaseConfig::Sqlite(_) => "sqlite",
            DatabaseConfig::Postgres(_) => "postgres",
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(folder);
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
    }
}

pub(crate) fn actor() -> Actor {
    Actor {
        name: "ann".to_owned(),
        token_id: "t1".to_owned(),
        request_id: Some("r1".to_owned()),
        address: Some("192.0.2.1".to_owned()),
        tenant: None,
    }
}

pub(crate) fn put(kind: Kind, id: &str, body: Value) -> Write {
    let note = ChangeNote { action: "test.put", before: None, after: Some(body.clone()) };
    Write { kind, id: id.to_owned(), body: Some(body), tenant: None, expected: Expected::Any, note }
}

pub(crate) fn delete(kind: Kind, id: &str) -> Write {
    let note = ChangeNote { action: "test.delete", before: Some(json!("gone")), after: None };
    Write { kind, id: id.to_owned(), body: None, tenant: None, expected: Expected::Any, note }
}

pub(crate) fn expecting(expected: Expected, write: Write) -> Write {
    Write { expected, ..write }
}

pub(crate) fn of_tenant(tenant: &str, write: Write) -> Write {
    Write { tenant: Some(tenant.to_owned()), ..write }
}

pub(crate) fn rule(id: &str, limit: i64) -> Write {
    let body = json!({"rule_id": id, "name": format!("rule {id}"), "priority": 10,
        "is_active": true, "limits": [{"limit": limit, "window_seconds": 60}]});
    put(Kind::Rule, id, body)
}

pub(crate) fn tier(name: &str) -> Write {
    put(Kind::Tier, name, json!({"name": name, "is_default": false}))
}

pub(crate) fn client(user: &str, tier: &str) -> Write {
    let body = json!({"identifier_type": "user_id", "identifier": user, "tier": tier});
    put(Kind::ClientTier, &format!("user_id:{user}"), body)
}

pub(crate) fn line(kind: Kind, address: &str) -> Write {
    let body = json!({"identifier_type": "ip", "identifier": address, "reason": "why not",
        "expires_at": "2030-01-01T00:00:00Z"});
    put(kind, &format!("ip:{address}"), body)
}

pub(crate) fn token(id: &str, digest: &str) -> Write {
    let body = json!({"token_id": id, "name": "ops", "role": "admin", "digest": digest});
    put(Kind::Token, id, body)
}

/// Writes without a base.
pub(crate) fn key(id: &str, digest: &str, owner: &str) -> Write {
    let body = json!({ "id": id, "name": id, "digest": digest, "owner": owner });
    put(Kind::Key, id, body)
}

pub(crate) async fn commit(
    repository: &Arc<dyn Repository>,
    writes: &[Write],
) -> Result<Committed, RepositoryError> {
    repository.commit(None, writes, &actor()).await
}

pub(crate) fn page(after: Option<&str>, limit: u32) -> Page {
    Page { after: after.map(str::to_owned), limit }
}

/// The ids that a filter finds.
pub(crate) async fn ids(
    repository: &Arc<dyn Repository>,
    kind: Kind,
    filter: &EntryFilter,
) -> Vec<String> {
    let entries = repository.list(kind, filter, &page(None, 1000)).await.unwrap();
    let count = repository.count(kind, filter).await.unwrap();
    assert_eq!(usize::try_from(count).unwrap(), entries.len());
    entries.into_iter().map(|Entry { id, .. }| id).collect()
}
