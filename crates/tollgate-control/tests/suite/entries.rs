//! Entries, versions and tokens as they are read.

use serde_json::{Value, json};
use tollgate_control::{Actor, EntryFilter, Expected, Kind, Write};

use crate::ground::{
    Ground, actor, client, commit, delete, expecting, ids, key, line, of_tenant, page, put, rule,
    tier, token,
};

fn one_of_each() -> Vec<Write> {
    vec![
        tier("gold"),
        rule("r1", 100),
        line(Kind::Allow, "192.0.2.0/24"),
        line(Kind::Deny, "2001:db8::/32"),
        client("u1", "gold"),
        put(
            Kind::Grant,
            "g1",
            json!({"grant_id": "g1", "rule_id": "r1", "identifier_type": "user_id",
                "identifier": "u1", "extra": i64::MAX, "expires_at": "2030-01-01T00:00:00Z"}),
        ),
        put(Kind::Setting, "no_match", json!("allow")),
        key("key_0a00", "k1", "ann"),
        token("t1", "d1"),
    ]
}

pub(crate) async fn every_kind_comes_back_as_it_was_written(ground: Ground) {
    let repository = ground.ready().await;
    let writes: Vec<_> = one_of_each().into_iter().map(|write| of_tenant("acme", write)).collect();
    let committed = commit(&repository, &writes).await.unwrap();
    assert_eq!(committed.versions, [1; 9]);
    for write in &writes {
        let entry = repository.get(write.kind, &write.id).await.unwrap().unwrap();
        assert_eq!(entry.kind, write.kind);
        assert_eq!(entry.id, write.id);
        assert_eq!(Some(&entry.body), write.body.as_ref());
        assert_eq!((entry.version, entry.tenant.as_deref()), (1, Some("acme")));
        assert_eq!((entry.created.at, &*entry.created.by), (committed.at, "ann"));
        assert_eq!(entry.updated, entry.created);
        let list = repository.list(write.kind, &EntryFilter::default(), &page(None, 10)).await;
        assert_eq!(list.unwrap(), [entry]);
    }

    let bob = Actor { name: "bob".to_owned(), ..actor() };
    let again = repository.commit(None, &writes, &bob).await.unwrap();
    assert_eq!(again.versions, [2; 9]);
    for write in &writes {
        let entry = repository.get(write.kind, &write.id).await.unwrap().unwrap();
        assert_eq!(entry.version, 2);
        assert_eq!((entry.created.at, &*entry.created.by), (committed.at, "ann"));
        assert_eq!((entry.updated.at, &*entry.updated.by), (again.at, "bob"));
    }

    let deletes: Vec<_> = writes.iter().map(|write| delete(write.kind, &write.id)).collect();
    let deleted = commit(&repository, &deletes).await.unwrap();
    assert_eq!(
        deleted.versions,
        [2, 3, 2, 2, 2, 2, 2, 2, 2],
        "to delete a rule is a version of it"
    );
    for write in &writes {
        assert_eq!(repository.get(write.kind, &write.id).await.unwrap(), None);
        assert_eq!(repository.count(write.kind, &EntryFilter::default()).await.unwrap(), 0);
    }
}

pub(crate) async fn pages_follow_each_other_without_gaps(ground: Ground) {
    let repository = ground.ready().await;
    let mut writes = vec![tier("gold")];
    writes.extend((0..25).map(|number| client(&format!("u{number:02}"), "gold")));
    writes.extend((0..25).map(|number| rule(&format!("r{number:02}"), 1)));
    commit(&repository, &writes).await.unwrap();
    for kind in [Kind::ClientTier, Kind::Rule] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let next = page(after.as_deref(), 10);
            let entries = repository.list(kind, &EntryFilter::default(), &next).await.unwrap();
            let Some(last) = entries.last() else { break };
            assert!(entries.len() <= 10);
            after = Some(last.id.clone());
            seen.extend(entries.into_iter().map(|entry| entry.id));
        }
        assert_eq!(seen, ids(&repository, kind, &EntryFilter::default()).await);
        assert_eq!(seen.len(), 25);
        assert!(seen.is_sorted());
    }
}

pub(crate) async fn filters_find_what_they_name_and_nothing_else(ground: Ground) {
    let repository = ground.ready().await;
    let writes = [
        tier("gold"),
        tier("silver"),
        client("ann", "gold"),
        client("anna", "silver"),
        of_tenant("acme", client("bob", "gold")),
        of_tenant("acme", rule("acme-1", 1)),
        rule("beta-1", 1),
    ];
    commit(&repository, &writes).await.unwrap();
    let filter = |tenant: Option<&str>, prefix: Option<&str>, tier: Option<&str>| EntryFilter {
        owner: None,
        name: None,
        tenant: tenant.map(str::to_owned),
        prefix: prefix.map(str::to_owned),
        tier: tier.map(str::to_owned),
    };
    let clients = [
        (filter(None, None, Some("gold")), vec!["user_id:ann", "user_id:bob"]),
        (filter(None, Some("user_id:ann"), None), vec!["user_id:ann", "user_id:anna"]),
        (filter(None, Some("user_id:ann"), Some("silver")), vec!["user_id:anna"]),
        (filter(Some("acme"), None, None), vec!["user_id:bob"]),
        (filter(Some("acme"), Some("user_id:a"), None), vec![]),
        (filter(None, None, Some("none")), vec![]),
    ];
    for (filter, expected) in clients {
        assert_eq!(ids(&repository, Kind::ClientTier, &filter).await, expected, "{filter:?}");
    }
    let rules = ids(&repository, Kind::Rule, &filter(Some("acme"), None, None)).await;
    assert_eq!(rules, ["acme-1"]);
    let rules = ids(&repository, Kind::Rule, &filter(None, Some("b"), None)).await;
    assert_eq!(rules, ["beta-1"]);
    let rules = ids(&repository, Kind::Rule, &filter(None, None, Some("gold"))).await;
    assert!(rules.is_empty(), "a rule has no tier");
}

pub(crate) async fn rules_keep_every_version(ground: Ground) {
    let repository = ground.ready().await;
    for limit in 1..=3 {
        commit(&repository, &[rule("r1", limit)]).await.unwrap();
    }
    let deleted = commit(&repository, &[delete(Kind::Rule, "r1")]).await.unwrap();
    assert_eq!(deleted.versions, [4]);
    let again = expecting(Expected::Absent, rule("r1", 5));
    let again = commit(&repository, &[again]).await.unwrap();
    assert_eq!(again.versions, [5], "it goes on counting");

    let versions = repository.rule_versions("r1", &page(None, 10)).await.unwrap();
    let numbers: Vec<_> = versions.iter().map(|entry| entry.version).collect();
    assert_eq!(numbers, [5, 4, 3, 2, 1]);
    assert_eq!(versions[1].body, Value::Null, "a deletion has no body");
    let first = repository.rule_versions("r1", &page(None, 2)).await.unwrap();
    assert_eq!(first, versions[..2]);
    let rest = repository.rule_versions("r1", &page(Some("4"), 10)).await.unwrap();
    assert_eq!(rest, versions[2..]);

    // What a rollback starts from.
    let second = repository.rule_version("r1", 2).await.unwrap().unwrap();
    assert_eq!(Some(second.body), rule("r1", 2).body);
    assert_eq!(repository.rule_version("r1", 6).await.unwrap(), None);
    assert_eq!(repository.rule_versions("r2", &page(None, 10)).await.unwrap(), []);
}

pub(crate) async fn a_token_is_found_by_its_digest(ground: Ground) {
    let repository = ground.ready().await;
    commit(&repository, &[token("t1", "d1"), token("t2", "d2")]).await.unwrap();
    assert_eq!(repository.token("d2").await.unwrap().unwrap().id, "t2");
    assert_eq!(repository.token("d3").await.unwrap(), None);
}

pub(crate) async fn keys_are_found_by_owner_and_have_secrets_of_their_own(ground: Ground) {
    let repository = ground.ready().await;
    let writes = [
        of_tenant("acme", key("key_0a01", "d1", "ann")),
        key("key_0b01", "d2", "bob"),
        key("key_0b02", "d3", "ann"),
    ];
    commit(&repository, &writes).await.unwrap();
    let found = async |filter: EntryFilter| {
        let page = page(None, 10);
        let found = repository.list(Kind::Key, &filter, &page).await.unwrap();
        found.into_iter().map(|entry| entry.id).collect::<Vec<String>>()
    };
    let owner =
        |owner: &str| EntryFilter { owner: Some(owner.to_owned()), ..EntryFilter::default() };
    assert_eq!(found(owner("ann")).await, ["key_0a01", "key_0b02"]);
    let tenant = Some("acme".to_owned());
    assert_eq!(found(EntryFilter { tenant, ..owner("ann") }).await, ["key_0a01"]);
    let name = Some("key_0b01".to_owned());
    assert_eq!(found(EntryFilter { name, ..EntryFilter::default() }).await, ["key_0b01"]);
    // A secret names one key.
    assert!(commit(&repository, &[key("key_0c01", "d1", "eve")]).await.is_err());
    assert_eq!(found(EntryFilter::default()).await.len(), 3);
}
