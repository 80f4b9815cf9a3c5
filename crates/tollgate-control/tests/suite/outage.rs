//! Databases that are away, and files that are not databases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_control::{
    DatabaseConfig, DecisionRecord, Kind, PostgresRepository, Repository, RepositoryError,
    SqliteRepository,
};
use tollgate_testkit::Postgres;

use crate::ground::{commit, rule};

/// What any call that is only a question may take, and then some for a busy machine.
const BOUND: Duration = Duration::from_secs(12);

async fn is_away(repository: &Arc<dyn Repository>) {
    let begin = Instant::now();
    let error = repository.get(Kind::Rule, "r1").await.unwrap_err();
    assert!(matches!(error, RepositoryError::Unavailable(_)), "{error:?}");
    let took = begin.elapsed();
    assert!(took < BOUND, "{took:?}");
}

async fn comes_back(repository: &Arc<dyn Repository>) {
    let deadline = Instant::now() + tollgate_testkit::PATIENCE;
    while let Err(error) = repository.revision().await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_may_go_and_come_back() {
    let server = Postgres::start();
    let url = server.database();
    server.stop();
    // It need not be there to begin with.
    let repository: Arc<dyn Repository> = Arc::new(PostgresRepository::connect_lazy(&url).unwrap());
    is_away(&repository).await;
    server.start_again();
    comes_back_empty(&repository).await;
    commit(&repository, &[rule("r1", 1)]).await.unwrap();
    let mut waker = repository.waker().await.unwrap().expect("PostgreSQL announces changes");

    server.stop();
    let lost = tokio::time::timeout(BOUND, waker.wait()).await.expect("word of the loss");
    assert!(matches!(lost, Err(RepositoryError::Unavailable(_))), "{lost:?}");
    let still = tokio::time::timeout(BOUND, waker.wait()).await.expect("an answer");
    assert!(still.is_err(), "it stays lost");
    is_away(&repository).await;
    let begin = Instant::now();
    let error = commit(&repository, &[rule("r1", 2)]).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Unavailable(_)), "{error:?}");
    assert!(begin.elapsed() < BOUND);
    let record = repository.record(&[DecisionRecord::default()]).await.unwrap_err();
    assert!(matches!(record, RepositoryError::Unavailable(_)), "{record:?}");
    assert!(repository.waker().await.is_err());

    server.start_again();
    comes_back(&repository).await;
    assert_eq!(repository.get(Kind::Rule, "r1").await.unwrap().unwrap().version, 1);
    let mut waker = repository.waker().await.unwrap().expect("another waker");
    commit(&repository, &[rule("r1", 2)]).await.unwrap();
    tokio::time::timeout(BOUND, waker.wait()).await.expect("word of the change").unwrap();
}

/// Up again, with a schema.
async fn comes_back_empty(repository: &Arc<dyn Repository>) {
    let deadline = Instant::now() + tollgate_testkit::PATIENCE;
    while let Err(error) = repository.migrate().await {
        assert!(Instant::now() < deadline, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_postgres_is_given_up_in_time() {
    let server = Postgres::start();
    let url = server.database();
    let repository: Arc<dyn Repository> = Arc::new(PostgresRepository::connect_lazy(&url).unwrap());
    repository.migrate().await.unwrap();
    commit(&repository, &[rule("r1", 1)]).await.unwrap();
    server.pause();
    // More than there are connections: those that were given up must not be lent again.
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let repository = repository.clone();
        tasks.spawn(async move { is_away(&repository).await });
    }
    tasks.join_all().await;
    server.resume();
    comes_back(&repository).await;
    commit(&repository, &[rule("r1", 2)]).await.unwrap();
}

#[test]
fn a_wrong_url_is_refused_without_being_repeated() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let error =
        PostgresRepository::connect_lazy("postgres://me:secret@host:port/db").err().unwrap();
    assert!(matches!(error, RepositoryError::Invalid(_)), "{error:?}");
    assert!(!error.to_string().contains("secret"));
    let config = DatabaseConfig::Postgres("postgres://me:secret@host/db".to_owned());
    assert!(!format!("{config:?}").contains("secret"));
}

#[tokio::test]
async fn a_database_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let repository = SqliteRepository::open(dir.path().join("control.db")).unwrap();
    repository.migrate().await.unwrap();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.path());
    }
    repository.close().await;
}

#[tokio::test]
async fn a_file_that_is_no_database_differs_from_a_missing_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    std::fs::write(&path, "these are my notes, and nobody shall take them for pages\n".repeat(100))
        .unwrap();
    let error = SqliteRepository::open(&path).unwrap().migrate().await.unwrap_err();
    assert!(matches!(error, RepositoryError::Corrupt(_)), "{error:?}");
    let error = SqliteRepository::open(dir.path().join("no/such/folder.db")).err().unwrap();
    assert!(matches!(error, RepositoryError::Unavailable(_)), "{error:?}");
}
