//! The set as nodes get it.

use tollgate_control::{ClientTier, Kind, TIER_BUCKETS, tier_bucket};

use crate::ground::{Ground, client, commit, delete, key, line, rule, tier, token};

fn gold(user: &str) -> ClientTier {
    ClientTier {
        identifier_type: "user_id".to_owned(),
        identifier: user.to_owned(),
        tier: "gold".to_owned(),
    }
}

fn bucket(user: &str) -> u16 {
    tier_bucket("user_id", user)
}

pub(crate) async fn the_set_is_whole_and_in_order(ground: Ground) {
    let repository = ground.ready().await;
    let empty = repository.load(None).await.unwrap();
    assert_eq!(empty.installation.len(), 32);
    assert!(empty.installation.chars().all(|char| char.is_ascii_hexdigit()));
    assert_eq!((empty.revision, empty.entries.len(), empty.client_tiers.len()), (0, 0, 0));

    let mut writes = vec![
        line(Kind::Deny, "192.0.2.7"),
        rule("b", 1),
        rule("B", 1),
        rule("a", 1),
        token("t1", "d1"),
        tier("gold"),
    ];
    let users: Vec<String> = (0..1000).map(|number| format!("u{number}")).collect();
    writes.extend(users.iter().map(|user| client(user, "gold")));
    commit(&repository, &writes).await.unwrap();
    let loaded = repository.load(None).await.unwrap();
    assert_eq!((&loaded.installation, loaded.revision), (&empty.installation, 1));
    let entries: Vec<_> = loaded.entries.iter().map(|entry| (entry.kind, &*entry.id)).collect();
    let expected = [
        (Kind::Tier, "gold"),
        (Kind::Rule, "B"),
        (Kind::Rule, "a"),
        (Kind::Rule, "b"),
        (Kind::Deny, "ip:192.0.2.7"),
    ];
    assert_eq!(entries, expected);

    assert!(loaded.client_tiers.iter().map(|(bucket, _)| bucket).is_sorted());
    let mut found = Vec::new();
    for (number, clients) in &loaded.client_tiers {
        assert!(clients.is_sorted_by_key(|client| &client.identifier));
        assert!(clients.iter().all(|client| bucket(&client.identifier) == *number));
        found.extend(clients.iter().cloned());
    }
    let mut expected: Vec<_> = users.iter().map(|user| gold(user)).collect();
    expected.sort_by(|one, other| one.identifier.cmp(&other.identifier));
    found.sort_by(|one, other| one.identifier.cmp(&other.identifier));
    assert_eq!(found, expected);
}

pub(crate) async fn only_changed_buckets_are_loaded(ground: Ground) {
    let repository = ground.ready().await;
    // Two of one bucket, and one of another.
    let users = || (0..100_000).map(|number| format!("u{number}"));
    let second = users().find(|user| bucket(user) == bucket("a")).unwrap();
    let other = users().find(|user| bucket(user) != bucket("a")).unwrap();
    let writes = [tier("gold"), client("a", "gold"), client(&second, "gold")];
    commit(&repository, &writes).await.unwrap();
    commit(&repository, &[client(&other, "gold")]).await.unwrap();
    commit(&repository, &[rule("r1", 1)]).await.unwrap();
    let since = async |revision: i64| {
        let loaded = repository.load(Some(revision)).await.unwrap();
        assert_eq!(loaded.entries.len(), repository.load(None).await.unwrap().entries.len());
        loaded.client_tiers
    };
    assert_eq!(since(0).await.len(), 2);
    assert_eq!(since(1).await, [(bucket(&other), vec![gold(&other)])]);
    assert_eq!(since(2).await, []);
    // A bucket comes whole, without what was deleted, and also when nothing is left.
    commit(&repository, &[delete(Kind::ClientTier, "user_id:a")]).await.unwrap();
    assert_eq!(since(3).await, [(bucket("a"), vec![gold(&second)])]);
    commit(&repository, &[delete(Kind::ClientTier, &format!("user_id:{second}"))]).await.unwrap();
    assert_eq!(since(4).await, [(bucket("a"), vec![])]);
    assert_eq!(repository.load(None).await.unwrap().client_tiers.len(), 1);
}

pub(crate) async fn only_changed_buckets_of_keys_are_loaded(ground: Ground) {
    let repository = ground.ready().await;
    let id = |bucket: u16, number: u16| format!("key_{bucket:02x}{number:014x}");
    let one = |bucket, number: u16| key(&id(bucket, number), &format!("{bucket}-{number}"), "ann");
    let all: Vec<_> = (0..256).map(|bucket| one(bucket, 1)).collect();
    commit(&repository, &all).await.unwrap();
    commit(&repository, &[one(7, 2), one(255, 2)]).await.unwrap();
    commit(&repository, &[rule("r1", 1)]).await.unwrap();
    let since = async |revision: Option<i64>| -> Vec<(u16, Vec<String>)> {
        let loaded = repository.load(revision).await.unwrap();
        let ids = |bodies: Vec<serde_json::Value>| {
            bodies.iter().map(|body| body["id"].as_str().unwrap().to_owned()).collect()
        };
        loaded.keys.into_iter().map(|(bucket, bodies)| (bucket, ids(bodies))).collect()
    };
    assert_eq!(since(None).await.len(), 256);
    assert_eq!(since(Some(0)).await.len(), 256);
    let both = |bucket| (bucket, vec![id(bucket, 1), id(bucket, 2)]);
    assert_eq!(since(Some(1)).await, [both(7), both(255)]);
    assert_eq!(since(Some(2)).await, []);
    // A bucket comes whole, without what was deleted, and also when nothing is left.
    commit(&repository, &[delete(Kind::Key, &id(7, 1))]).await.unwrap();
    assert_eq!(since(Some(3)).await, [(7, vec![id(7, 2)])]);
    commit(&repository, &[delete(Kind::Key, &id(7, 2))]).await.unwrap();
    assert_eq!(since(Some(4)).await, [(7, vec![])]);
    assert_eq!(since(None).await.len(), 255);
    repository.raise_revision(100).await.unwrap();
    assert_eq!(since(Some(99)).await.len(), 256, "nodes may hold any bucket of another time");
    assert!(commit(&repository, &[key("no-id", "d", "ann")]).await.is_err());
}

pub(crate) async fn the_revision_can_be_raised(ground: Ground) {
    let repository = ground.ready().await;
    commit(&repository, &[tier("gold"), client("a", "gold")]).await.unwrap();
    assert_eq!(repository.raise_revision(7).await.unwrap(), 7);
    assert_eq!(repository.raise_revision(3).await.unwrap(), 7, "never lowered");
    assert_eq!(repository.revision().await.unwrap(), 7);
    // Nodes may hold any bucket from a time that this database does not know.
    let loaded = repository.load(Some(6)).await.unwrap();
    assert_eq!(loaded.client_tiers.len(), usize::from(TIER_BUCKETS));
    assert!(loaded.client_tiers.contains(&(bucket("a"), vec![gold("a")])));
    let committed = commit(&repository, &[rule("r1", 1)]).await.unwrap();
    assert_eq!(committed.revision, 8);
}
