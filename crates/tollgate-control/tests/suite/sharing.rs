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

pub(crate) async fn figures_of_nodes_come_back(ground: Ground) {
    let (one, other) = (ground.ready().await, ground.ready().await);
    let (kept, live) = (Duration::from_secs(60), Duration::from_millis(1));
    let fields = |text: &str| {
        vec![("state".to_owned(), text.to_owned()), ("s0".to_owned(), "{}".to_owned())]
    };
    assert!(one.put_figures("a", &fields("1"), kept, live).await.unwrap());
    assert!(one.put_figures("a", &fields("2"), kept, live).await.unwrap());
    assert!(other.put_figures("b", &fields("3"), kept, live).await.unwrap());
    let asked = ["none".to_owned(), "state".to_owned()];
    assert_eq!(other.figures("a", &asked).await.unwrap(), [None, Some(b"2".to_vec())]);
    assert_eq!(other.figures("nobody", &asked).await.unwrap(), [None, None]);
    let nodes = one.figure_nodes().await.unwrap();
    assert!(nodes.len() == 2 && nodes.iter().all(|(_, age)| *age < kept), "{nodes:?}");
    let long = vec![("state".to_owned(), "x".repeat((128 << 10) + 1))];
    assert!(one.put_figures("a", &long, kept, live).await.is_err());

    // While all others live there is no room for one more; then the one that was silent for longest goes.
    for number in 2..100 {
        assert!(one.put_figures(&format!("n{number}"), &fields("1"), kept, kept).await.unwrap());
    }
    assert!(!one.put_figures("late", &fields("1"), kept, kept).await.unwrap());
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(one.put_figures("late", &fields("1"), kept, live).await.unwrap());
    let nodes = one.figure_nodes().await.unwrap();
    assert!(nodes.len() == 100 && nodes.iter().all(|(name, _)| name != "a"), "{nodes:?}");
    assert_eq!(one.figures("a", &asked).await.unwrap(), [None, None]);
    // Those that were silent for too long are forgotten when another one comes.
    let (soon, new) = (Duration::from_millis(1), fields("1"));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(one.put_figures("newest", &new, soon, live).await.unwrap());
    assert_eq!(one.figure_nodes().await.unwrap().len(), 1);
    one.close().await;
    other.close().await;
}
