//! What a queue in a file survives, and what it refuses.

use std::sync::Arc;
use std::time::Duration;

use tollgate_queue::{QueueError, QueueOptions, QueueStore, SqliteQueue};

use crate::ground::{id, request, running_clock};

async fn open(path: &std::path::Path) -> Result<SqliteQueue, QueueError> {
    SqliteQueue::open(path, QueueOptions::default(), running_clock()).await
}

#[tokio::test]
async fn nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let queue = open(&dir.path().join("queue.db")).await.unwrap();
    queue.push(&id(1), "lane", &request("1"), Duration::ZERO).await.unwrap();
    let mut files = 0;
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        files += 1;
    }
    assert!(files >= 2, "the file and its log");
}

#[tokio::test]
async fn a_newer_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.db");
    open(&path).await.unwrap().close().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    sqlx::query("PRAGMA user_version = 3").execute(&pool).await.unwrap();
    pool.close().await;
    let refused = open(&path).await.err();
    assert_eq!(refused, Some(QueueError::NewerSchema { have: 3, known: 2 }));
}

/// What the first version kept is counted from then on, and can still be sent.
#[tokio::test]
async fn a_file_of_the_first_version_is_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let schema = include_str!("../../src/sqlite/schema.sql");
    sqlx::raw_sql(schema).execute(&pool).await.unwrap();
    sqlx::raw_sql("PRAGMA user_version = 1").execute(&pool).await.unwrap();
    let insert = "INSERT INTO entries (id, lane, shelf, since, enqueued_at, attempts, label, request) \
                  VALUES ($1, 'lane', 0, $2, $2, 0, 'POST /', $3)";
    let mut large = request("x");
    large.body = vec![b'x'; 900_000];
    sqlx::query(insert)
        .bind(id(1))
        .bind(i64::try_from(crate::ground::START).unwrap())
        .bind(large.encode().unwrap())
        .execute(&pool)
        .await
        .unwrap();
    let lane = "INSERT INTO lanes (lane, due_at) VALUES ('lane', 0)";
    sqlx::raw_sql(lane).execute(&pool).await.unwrap();
    pool.close().await;
    let options = QueueOptions { max_lane_bytes: 1_000_000, ..QueueOptions::default() };
    let clock: tollgate_queue::Clock = Arc::new(|| crate::ground::START + 1);
    let queue = SqliteQueue::open(&path, options, clock).await.unwrap();
    let room = queue.room("lane", "", 500_000).await;
    assert!(matches!(room, Err(QueueError::FullOfBytes { .. })), "{room:?}");
    let claim = queue.claim(1).await.unwrap().claims.remove(0);
    queue.complete(&claim, &crate::ground::response(b"")).await.unwrap();
    assert_eq!(queue.room("lane", "", 500_000).await, Ok(()));
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let refused = open(&dir.path().join("nowhere/queue.db")).await.err();
    assert!(matches!(refused, Some(QueueError::Unavailable(_))), "{refused:?}");
}

/// Copies of the files while a queue is in use are what a power cut leaves: nothing accepted is missing.
#[tokio::test]
async fn what_was_accepted_is_on_the_disk() {
    let (dir, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let queue = Arc::new(open(&dir.path().join("queue.db")).await.unwrap());
    for number in 0..50 {
        queue.push(&id(number), "lane", &request("x"), Duration::ZERO).await.unwrap();
    }
    let claims = queue.claim(10).await.unwrap().claims;
    assert_eq!(claims.len(), 1);
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        // The index of the log is in shared memory, and made anew.
        if !file.file_name().to_string_lossy().ends_with("-shm") {
            std::fs::copy(file.path(), after.path().join(file.file_name())).unwrap();
        }
    }
    let again = open(&after.path().join("queue.db")).await.unwrap();
    assert_eq!(again.counts().await.unwrap().waiting, 50);
    for number in 0..50 {
        assert!(again.ticket(&id(number)).await.unwrap().is_some());
    }
    assert!(again.complete(&claims[0], &crate::ground::response(b"")).await.unwrap());
}

/// A push that is given up half-way is there as a whole or not at all, and the next one goes on.
#[tokio::test]
async fn a_push_that_is_given_up_leaves_nothing_half_done() {
    let dir = tempfile::tempdir().unwrap();
    let queue = Arc::new(open(&dir.path().join("queue.db")).await.unwrap());
    for number in 0..100_u32 {
        let own = Arc::clone(&queue);
        let pushing = tokio::spawn(async move {
            own.push(&id(number as usize), "lane", &request("x"), Duration::ZERO).await
        });
        tokio::time::sleep(Duration::from_micros(u64::from(number * 37 % 2_000))).await;
        pushing.abort();
        let _ = pushing.await;
    }
    queue.push(&id(1_000), "lane", &request("x"), Duration::ZERO).await.unwrap();
    let mut found = 0;
    for number in 0..=1_000 {
        found += u64::from(queue.ticket(&id(number)).await.unwrap().is_some());
    }
    let counts = queue.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.lanes), (found, 1));
}
