//! Changes: all of it or nothing.

use std::sync::Arc;

use serde_json::json;
use tollgate_control::{
    ChangeFilter, EntryFilter, Expected, Kind, Repository, RepositoryError, Write,
};

use crate::ground::{
    Ground, actor, client, commit, delete, expecting, ids, of_tenant, page, put, rule, tier, token,
};

fn is_conflict(error: &RepositoryError, expected: Option<i64>) -> bool {
    matches!(error, RepositoryError::Conflict { kind: Kind::Rule, id, have }
        if id == "r1" && *have == expected)
}

pub(crate) async fn expectations_are_checked(ground: Ground) {
    use Expected::{Absent, Any, Present, Version};
    let repository = ground.ready().await;
    for expected in [Present, Version(1), Version(0)] {
        let write = expecting(expected, rule("r1", 1));
        let error = commit(&repository, &[write]).await.unwrap_err();
        assert!(is_conflict(&error, None), "{expected:?}: {error:?}");
    }
    let mut version = 0;
    for expected in [Absent, Present, Version(2), Any] {
        let committed = commit(&repository, &[expecting(expected, rule("r1", 1))]).await.unwrap();
        version += 1;
        assert_eq!(committed.versions, [version], "{expected:?}");
    }
    for expected in [Absent, Version(3)] {
        for write in [rule("r1", 1), delete(Kind::Rule, "r1")] {
            let error = commit(&repository, &[expecting(expected, write)]).await.unwrap_err();
            assert!(is_conflict(&error, Some(4)), "{expected:?}: {error:?}");
        }
    }
    commit(&repository, &[expecting(Version(4), delete(Kind::Rule, "r1"))]).await.unwrap();
    let error = commit(&repository, &[expecting(Version(5), rule("r1", 1))]).await.unwrap_err();
    assert!(is_conflict(&error, None), "{error:?}");
    // To delete what is not there is no mistake unless it was expected.
    let deleted = commit(&repository, &[delete(Kind::Rule, "never")]).await.unwrap();
    assert_eq!(deleted.versions, [0]);
    assert_eq!(repository.rule_versions("never", &page(None, 1)).await.unwrap(), []);
}

pub(crate) async fn a_change_of_another_revision_is_stale(ground: Ground) {
    let repository = ground.ready().await;
    assert_eq!(repository.revision().await.unwrap(), 0);
    let first = repository.commit(Some(0), &[rule("r1", 1)], &actor()).await.unwrap();
    assert_eq!(first.revision, 1);
    let error = repository.commit(Some(0), &[rule("r2", 1)], &actor()).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Stale), "{error:?}");
    let error = repository.commit(Some(2), &[rule("r2", 1)], &actor()).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Stale), "{error:?}");
    let many = [rule("r2", 1), rule("r3", 1), tier("gold")];
    let second = repository.commit(Some(1), &many, &actor()).await.unwrap();
    assert_eq!(second.revision, 2, "one change, one revision");
    assert_eq!(repository.revision().await.unwrap(), 2);
    let nothing = repository.commit(None, &[], &actor()).await.unwrap();
    assert_eq!((nothing.revision, nothing.versions), (2, vec![]));
}

pub(crate) async fn one_conflict_undoes_everything(ground: Ground) {
    let repository = ground.ready().await;
    commit(&repository, &[rule("r1", 1)]).await.unwrap();
    let before = repository.load(None).await.unwrap();
    let writes = [
        rule("r2", 1),
        delete(Kind::Rule, "r1"),
        expecting(Expected::Version(7), rule("r3", 1)),
        token("t1", "d1"),
    ];
    let error = commit(&repository, &writes).await.unwrap_err();
    assert!(
        matches!(&error, RepositoryError::Conflict { id, have: None, .. } if id == "r3"),
        "{error:?}"
    );
    // Refused by the database itself, after others were written.
    let unknown_tier = [rule("r2", 1), client("u1", "nowhere")];
    let error = commit(&repository, &unknown_tier).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Invalid(_)), "{error:?}");

    assert_eq!(repository.load(None).await.unwrap(), before);
    assert_eq!(repository.token("d1").await.unwrap(), None);
    assert_eq!(repository.rule_versions("r2", &page(None, 1)).await.unwrap(), []);
    let changes = repository.changes(&ChangeFilter::default(), &page(None, 10)).await.unwrap();
    assert_eq!(changes.len(), 1, "nothing is audited that was not done");
    // And the repository is none the worse for it.
    commit(&repository, &[rule("r2", 1)]).await.unwrap();
}

fn counter(number: i64) -> Write {
    put(Kind::Setting, "counter", json!(number))
}

async fn add_one(repository: Arc<dyn Repository>) {
    loop {
        let entry = repository.get(Kind::Setting, "counter").await.unwrap().unwrap();
        let next = counter(entry.body.as_i64().unwrap() + 1);
        match commit(&repository, &[expecting(Expected::Version(entry.version), next)]).await {
            Ok(_) => break,
            Err(RepositoryError::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(crate) async fn no_update_is_lost(ground: Ground) {
    const TASKS: i64 = 50;
    let repository = ground.ready().await;
    commit(&repository, &[counter(0)]).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(add_one(repository.clone()));
    }
    tasks.join_all().await;
    let entry = repository.get(Kind::Setting, "counter").await.unwrap().unwrap();
    assert_eq!((entry.body, entry.version), (json!(TASKS), TASKS + 1));
    assert_eq!(repository.revision().await.unwrap(), TASKS + 1);
    let changes = repository.changes(&ChangeFilter::default(), &page(None, 1000)).await.unwrap();
    let revisions: Vec<_> = changes.iter().map(|change| change.revision).collect();
    assert_eq!(revisions, (1..=TASKS + 1).rev().collect::<Vec<_>>());
}

pub(crate) async fn one_entry_may_be_written_twice(ground: Ground) {
    let repository = ground.ready().await;
    let writes = [
        expecting(Expected::Absent, rule("r1", 1)),
        expecting(Expected::Version(1), rule("r1", 2)),
        expecting(Expected::Present, delete(Kind::Rule, "r1")),
        expecting(Expected::Absent, rule("r1", 4)),
        expecting(Expected::Absent, tier("gold")),
        expecting(Expected::Version(1), delete(Kind::Tier, "gold")),
    ];
    let committed = commit(&repository, &writes).await.unwrap();
    assert_eq!(committed.versions, [1, 2, 3, 4, 1, 1]);
    let entry = repository.get(Kind::Rule, "r1").await.unwrap().unwrap();
    assert_eq!((Some(entry.body), entry.version), (rule("r1", 4).body, 4));
    assert_eq!(repository.rule_versions("r1", &page(None, 10)).await.unwrap().len(), 4);
    assert_eq!(repository.get(Kind::Tier, "gold").await.unwrap(), None);
}

pub(crate) async fn tiers_and_their_clients_come_and_go_together(ground: Ground) {
    let repository = ground.ready().await;
    // In whatever order they are named.
    commit(&repository, &[client("u1", "gold"), tier("gold")]).await.unwrap();
    let error = commit(&repository, &[delete(Kind::Tier, "gold")]).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Invalid(_)), "a client has it: {error:?}");
    let writes = [delete(Kind::Tier, "gold"), delete(Kind::ClientTier, "user_id:u1")];
    commit(&repository, &writes).await.unwrap();
    assert!(ids(&repository, Kind::ClientTier, &EntryFilter::default()).await.is_empty());
    assert!(ids(&repository, Kind::Tier, &EntryFilter::default()).await.is_empty());
    // The id of a client need not say who it is, as with API keys: its bucket changes all the same.
    let odd = Write { id: "user_id:hidden".to_owned(), ..client("u1", "gold") };
    let put = commit(&repository, &[tier("gold"), odd]).await.unwrap();
    let gone = commit(&repository, &[delete(Kind::ClientTier, "user_id:hidden")]).await.unwrap();
    for (since, left) in [(put.revision - 1, 0), (gone.revision - 1, 0)] {
        let loaded = repository.load(Some(since)).await.unwrap();
        let bucket = tollgate_control::tier_bucket("user_id", "u1");
        let found = loaded.client_tiers.iter().find(|(number, _)| *number == bucket);
        assert_eq!(found.map(|(_, clients)| clients.len()), Some(left), "since {since}");
    }
}

pub(crate) async fn every_write_is_audited(ground: Ground) {
    let repository = ground.ready().await;
    let mut put = of_tenant("acme", rule("r1", 1));
    put.note.action = "rule.create";
    let created = commit(&repository, &[put, rule("r2", 1)]).await.unwrap();
    let mut bob = actor();
    (bob.name, bob.request_id) = ("bob".to_owned(), Some("r2".to_owned()));
    let mut gone = delete(Kind::Rule, "r1");
    gone.note.before = rule("r1", 1).body;
    let deleted = repository.commit(None, &[gone], &bob).await.unwrap();

    let find = async |filter: ChangeFilter| {
        let changes = repository.changes(&filter, &page(None, 10)).await.unwrap();
        changes.into_iter().map(|change| (change.entry_id, change.revision)).collect::<Vec<_>>()
    };
    let r1 = |revision: i64| ("r1".to_owned(), revision);
    let r2 = ("r2".to_owned(), 1);
    let any = ChangeFilter::default;
    let word = |word: &str| Some(word.to_owned());
    assert_eq!(find(any()).await, [r1(2), r2.clone(), r1(1)], "the newest first");
    let filter = ChangeFilter { kind: Some(Kind::Rule), entry_id: word("r1"), ..any() };
    assert_eq!(find(filter).await, [r1(2), r1(1)]);
    assert_eq!(find(ChangeFilter { kind: Some(Kind::Token), ..any() }).await, []);
    assert_eq!(find(ChangeFilter { actor: word("bob"), ..any() }).await, [r1(2)]);
    assert_eq!(find(ChangeFilter { tenant: word("acme"), ..any() }).await, [r1(1)]);
    assert_eq!(find(ChangeFilter { request_id: word("r2"), ..any() }).await, [r1(2)]);
    let until = ChangeFilter { from: Some(created.at), until: Some(deleted.at + 1), ..any() };
    assert_eq!(find(until).await.len(), 3);
    assert_eq!(find(ChangeFilter { from: Some(deleted.at + 1), ..any() }).await, []);
    assert_eq!(find(ChangeFilter { until: Some(created.at), ..any() }).await, []);

    let newest = repository.changes(&any(), &page(None, 1)).await.unwrap();
    let rest = page(Some(&newest[0].id.to_string()), 10);
    let rest = repository.changes(&any(), &rest).await.unwrap();
    assert_eq!(rest.len(), 2);
    let first = &rest[1];
    assert_eq!((first.at, &*first.actor, &*first.token_id), (created.at, "ann", "t1"));
    assert_eq!((&*first.action, first.kind, first.version), ("rule.create", Kind::Rule, 1));
    assert_eq!(
        (first.tenant.as_deref(), first.address.as_deref()),
        (Some("acme"), Some("192.0.2.1"))
    );
    assert_eq!((&first.before, &first.after), (&None, &rule("r1", 1).body));
    assert_eq!((&newest[0].before, &newest[0].after), (&rule("r1", 1).body, &None));
    assert_eq!(newest[0].version, 2);
}

pub(crate) async fn tokens_are_no_part_of_the_set(ground: Ground) {
    let repository = ground.ready().await;
    let committed = commit(&repository, &[token("t1", "d1")]).await.unwrap();
    assert_eq!((committed.revision, repository.revision().await.unwrap()), (0, 0));
    assert_eq!(repository.load(None).await.unwrap().entries, []);
    let error = commit(&repository, &[token("t2", "d1")]).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Invalid(_)), "digests are unique: {error:?}");
}

pub(crate) async fn ten_thousand_clients_are_one_change(ground: Ground) {
    let repository = ground.ready().await;
    let mut writes = vec![tier("gold"), tier("silver")];
    writes.extend((0..10_000).map(|number| client(&format!("u{number}"), "gold")));
    let committed = commit(&repository, &writes).await.unwrap();
    assert_eq!((committed.revision, committed.versions.len()), (1, writes.len()));
    let count = repository.count(Kind::ClientTier, &EntryFilter::default()).await.unwrap();
    assert_eq!(count, 10_000);
    let writes: Vec<_> = (0..10_000)
        .map(|number| match number % 2 {
            0 => client(&format!("u{number}"), "silver"),
            _ => delete(Kind::ClientTier, &format!("user_id:u{number}")),
        })
        .collect();
    let committed = commit(&repository, &writes).await.unwrap();
    assert_eq!(committed.versions[..2], [2, 1]);
    let silver = EntryFilter { tier: Some("silver".to_owned()), ..EntryFilter::default() };
    assert_eq!(repository.count(Kind::ClientTier, &silver).await.unwrap(), 5_000);
    assert_eq!(repository.count(Kind::ClientTier, &EntryFilter::default()).await.unwrap(), 5_000);
}

pub(crate) async fn the_version_of_a_rule_at_a_revision_is_found(ground: Ground) {
    let repository = ground.ready().await;
    for limit in 1..=3 {
        commit(&repository, &[rule("r1", limit)]).await.unwrap();
    }
    commit(&repository, &[rule("r2", 1)]).await.unwrap();
    let asked = [("r1", 0), ("r1", 2), ("r1", 9), ("r2", 3), ("r2", 4)];
    let asked = asked.map(|(rule, revision)| (rule.to_owned(), revision));
    let found = repository.rule_versions_at(&asked).await.unwrap();
    let versions: Vec<_> = found.iter().map(|one| one.as_ref().map(|one| one.version)).collect();
    assert_eq!(versions, [None, Some(2), Some(3), None, Some(1)]);
    assert_eq!(found[1].as_ref().unwrap().actor, "ann");
}
