//! Several repositories on one database.

use std::time::Duration;

use tollgate_control::{DatabaseConfig, Kind, RepositoryError};

use crate::ground::{Ground, commit, rule, token};

pub(crate) async fn two_repositories_see_each_other(ground: Ground) {
    let (one, other) = (ground.ready().await, ground.ready().await);
    let waker = other.waker().await.unwrap();
    commit(&one, &[rule("r1", 1)]).await.unwrap();
    assert_eq!(other.revision().await.unwrap(), 1);
    assert!(other.get(Kind::Rule, "r1").await.unwrap().is_some());
    commit(&other, &[rule("r1", 2)]).await.unwrap();
    assert_eq!(one.load(None).await.unwrap(), other.load(None).await.unwrap());

    let Some(mut waker) = waker else {
        assert!(matches!(ground.config, DatabaseConfig::Sqlite(_)));
        return;
    };
    let deadline = Duration::from_secs(5);
    tokio::time::timeout(deadline, waker.wait()).await.expect("word of the first change").unwrap();
    // Word of the second may have come with the first, or after it.
    let _ = tokio::time::timeout(Duration::from_millis(200), waker.wait()).await;
    commit(&one, &[token("t1", "d1")]).await.unwrap();
    let quiet = tokio::time::timeout(Duration::from_millis(200), waker.wait()).await;
    assert!(quiet.is_err(), "a token is no part of the set");
    commit(&one, &[rule("r1", 3)]).await.unwrap();
    tokio::time::timeout(deadline, waker.wait()).await.expect("word of a later change").unwrap();

    drop(waker);
    other.close().await;
    let error = other.revision().await.unwrap_err();
    assert!(matches!(error, RepositoryError::Unavailable(_)), "{error:?}");
    one.close().await;
}

pub(crate) async fn a_change_given_up_leaves_nothing_behind(ground: Ground) {
    let repository = ground.ready().await;
    // The caller is dropped at any point of it.
    for patience in (0..40).map(|step| Duration::from_micros(step * 100)) {
        let writes = [rule("r1", 1), rule("r2", 1)];
        let done = tokio::time::timeout(patience, commit(&repository, &writes)).await;
        // One that was given up at its very end may still come about.
        let loaded = repository.load(None).await.unwrap();
        let versions: Vec<_> = loaded.entries.iter().map(|entry| entry.version).collect();
        if loaded.revision == 0 {
            assert!(versions.is_empty());
        } else {
            assert_eq!(versions, [loaded.revision; 2], "both or none");
        }
        if let Ok(done) = done {
            assert!(done.unwrap().revision <= loaded.revision);
        }
    }
    commit(&repository, &[rule("r3", 1)]).await.expect("it still works");
}
