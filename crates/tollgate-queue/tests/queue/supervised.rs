//! A queue whose store cannot be opened, or fails: it answers with an error, reports the problem once, and
//! works as soon as the store does.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_queue::{Opening, QueueError, QueueOptions, QueueStore, SqliteQueue, SupervisedQueue};

use crate::ground::{id, request, running_clock};

/// What was reported, in order: a problem, or its end.
type Reports = Arc<Mutex<Vec<Option<String>>>>;

fn supervised(path: &std::path::Path) -> (SupervisedQueue, Reports) {
    let reports = Reports::default();
    let (path, reported) = (path.to_owned(), Arc::clone(&reports));
    let open = move || -> Opening {
        let path = path.clone();
        Box::pin(async move {
            let opened = SqliteQueue::open(path, QueueOptions::default(), running_clock()).await?;
            Ok(Arc::new(opened) as Arc<dyn QueueStore>)
        })
    };
    let observer = move |problem: Option<&QueueError>| {
        reported.lock().push(problem.map(ToString::to_string));
    };
    (SupervisedQueue::new(open, QueueOptions::default(), Box::new(observer)), reports)
}

async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_is_reported_once_and_opened_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.db");
    std::fs::create_dir(&path).unwrap();
    let (queue, reports) = supervised(&path);
    for _ in 0..3 {
        assert!(matches!(queue.claim(1).await, Err(QueueError::Unavailable(_))));
        assert!(matches!(queue.sweep().await, Err(QueueError::Unavailable(_))));
    }
    assert_eq!(reports.lock().len(), 1, "{reports:?}");

    // It is not opened again for every call.
    std::fs::remove_dir(&path).unwrap();
    let pushed = queue.push(&id(1), "lane", &request("1"), Duration::ZERO).await;
    assert!(matches!(pushed, Err(QueueError::Unavailable(_))), "{pushed:?}");
    pass(Duration::from_secs(1)).await;
    queue.push(&id(1), "lane", &request("1"), Duration::ZERO).await.unwrap();
    assert_eq!(reports.lock().len(), 1, "it may fail again at once: {reports:?}");
    pass(Duration::from_secs(5)).await;
    assert_eq!(queue.claim(1).await.unwrap().claims.len(), 1);
    assert_eq!(reports.lock().last(), Some(&None), "{reports:?}");
    assert_eq!(reports.lock().len(), 2);
}

#[tokio::test]
async fn a_damaged_file_is_a_problem_and_a_full_queue_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("queue.db");
    std::fs::write(&path, b"no database at all".repeat(500)).unwrap();
    let (queue, reports) = supervised(&path);
    assert!(queue.room("lane", "", 1).await.is_err());
    assert_eq!(reports.lock().len(), 1);

    let (queue, reports) = supervised(&dir.path().join("other.db"));
    let mut large = request("1");
    large.body = vec![0; QueueOptions::default().max_request_bytes + 1];
    let refused = queue.push(&id(1), "lane", &large, Duration::ZERO).await;
    assert!(matches!(refused, Err(QueueError::TooLarge { .. })), "{refused:?}");
    assert!(reports.lock().is_empty(), "{reports:?}");
}
