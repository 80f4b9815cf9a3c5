//! The signed history: whatever is done to the log behind the program's back is found, and named.

use std::sync::Arc;

use tollgate_control::chain::{Broken, Link, NotedHead, Verified, Verifier};
use tollgate_control::{
    Actor, ChainPlace, HistoryBounds, Kind, PublicKey, Repository, Signer, Write,
};

use crate::ground::{Ground, actor, delete, of_tenant, rule};
use crate::migrations::make;

fn signer(number: u8) -> Arc<Signer> {
    Arc::new(Signer::from_hex(&format!("{number:02x}").repeat(32)).unwrap())
}

async fn open(ground: &Ground, bounds: HistoryBounds, key: u8) -> Arc<dyn Repository> {
    let repository = ground.config.open_with(bounds, Some(signer(key))).expect("a repository");
    repository.migrate().await.expect("a migration");
    repository
}

async fn signed(ground: &Ground) -> Arc<dyn Repository> {
    open(ground, HistoryBounds::default(), 1).await
}

async fn write(repository: &Arc<dyn Repository>, writes: &[Write], actor: &Actor) {
    repository.commit(None, writes, actor).await.expect("a change");
}

async fn links(repository: &Arc<dyn Repository>, limit: u32) -> Vec<Link> {
    let (mut links, mut place) = (Vec::new(), Some(ChainPlace::Start));
    while let Some(after) = place {
        let page = repository.chain(after, limit).await.expect("a page");
        assert!(page.links.len() <= limit as usize + 2, "a page is bounded");
        links.extend(page.links);
        place = page.next.map(|next| ChainPlace::parse(&next.cursor()).unwrap());
    }
    // As an export has them.
    let text: Vec<String> = links.iter().map(|link| serde_json::to_string(link).unwrap()).collect();
    let read: Vec<Link> = text.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, links);
    links
}

fn check(links: &[Link], keys: Vec<PublicKey>) -> Result<Verified, Broken> {
    check_with(links, keys, None)
}

fn check_with(
    links: &[Link],
    keys: Vec<PublicKey>,
    noted: Option<NotedHead>,
) -> Result<Verified, Broken> {
    let mut verifier = Verifier::new(keys, noted);
    for link in links {
        verifier.push(link.clone())?;
    }
    verifier.finish()
}

async fn verify(repository: &Arc<dyn Repository>) -> Result<Verified, Broken> {
    check(&links(repository, 100).await, vec![signer(1).public_key()])
}

async fn write_some(repository: &Arc<dyn Repository>) {
    write(repository, &[rule("a", 1), rule("b", 2)], &actor()).await;
    for limit in 3..=6 {
        write(repository, &[rule("a", limit)], &actor()).await;
    }
    write(repository, &[delete(Kind::Rule, "b")], &actor()).await;
}

pub(crate) async fn every_change_is_signed_and_follows_the_one_before(ground: Ground) {
    let repository = signed(&ground).await;
    let empty = verify(&repository).await.unwrap();
    assert_eq!((empty.changes, empty.head.number), (0, 0));
    write_some(&repository).await;
    let found = verify(&repository).await.unwrap();
    assert_eq!((found.changes, found.removed, found.earlier), (7, 0, 0));
    assert_eq!(found.head.number, 7);
    assert_eq!(found.keys, [signer(1).public_key().to_string()]);
    // A restart continues it.
    repository.close().await;
    let repository = signed(&ground).await;
    write(&repository, &[rule("a", 9)], &actor()).await;
    assert_eq!(verify(&repository).await.unwrap().changes, 8);
    // A key that is not trusted.
    let all = links(&repository, 100).await;
    let error = check(&all, vec![signer(2).public_key()]).unwrap_err();
    assert!(matches!(error, Broken::Signature { .. }), "{error}");
    // A head that was noted is found again.
    let noted = NotedHead { number: 7, hash: found.head.hash };
    assert!(check_with(&all, Vec::new(), Some(noted)).unwrap().has_noted_head);
}

pub(crate) async fn every_altered_field_is_found_and_named(ground: Ground) {
    let repository = signed(&ground).await;
    write_some(&repository).await;
    for (column, value) in [
        ("timestamp", "timestamp + 1"),
        ("actor", "'eve'"),
        ("token_id", "'t2'"),
        ("action", "'rule.other'"),
        ("kind", "'tier'"),
        ("entry_id", "'z'"),
        ("tenant_id", "''"),
        ("version", "version + 1"),
        ("revision", "revision + 1"),
        ("before", "''"),
        ("after", "'{}'"),
        ("request_id", "NULL"),
        ("ip_address", "'192.0.2.2'"),
        ("owner", "'acme'"),
        ("chain_hash", "lower(chain_hash) || '0'"),
    ] {
        ground.run("CREATE TABLE saved AS SELECT * FROM admin_audit_log;").await;
        let change = "WHERE chain_number = 4";
        ground.run(&format!("UPDATE admin_audit_log SET {column} = {value} {change};")).await;
        let error = verify(&repository).await.unwrap_err();
        assert!(matches!(error, Broken::Change { number: 4, .. }), "{column}: {error}");
        let back = format!(
            "UPDATE admin_audit_log SET {column} = (SELECT saved.{column} FROM saved WHERE \
             saved.chain_number = 4) {change}; DROP TABLE saved;"
        );
        ground.run(&back).await;
        verify(&repository).await.expect("as it was");
    }
    // With the hash that fits, the next one is broken; and with all of them, the head.
    let mut all = links(&repository, 100).await;
    let mut previous = String::new();
    for link in &mut all {
        if let Link::Change(change) = link {
            if change.number == 4 {
                "eve".clone_into(&mut change.actor);
                change.hash = change.hash_after(&previous);
            }
            previous.clone_from(&change.hash);
        }
    }
    let error = check(&all, Vec::new()).unwrap_err();
    assert!(matches!(error, Broken::Change { number: 5, .. }), "{error}");
    let mut previous = String::new();
    for link in &mut all {
        if let Link::Change(change) = link {
            if change.number >= 4 {
                change.hash = change.hash_after(&previous);
            }
            previous.clone_from(&change.hash);
        }
    }
    let error = check(&all, Vec::new()).unwrap_err();
    assert!(matches!(error, Broken::Head { .. }), "{error}");
    if let Some(Link::Head(head)) = all.last_mut() {
        head.hash = previous;
    }
    let error = check(&all, Vec::new()).unwrap_err();
    assert!(matches!(error, Broken::Signature { .. }), "{error}");
}

pub(crate) async fn missing_changes_are_found(ground: Ground) {
    let repository = signed(&ground).await;
    write_some(&repository).await;
    let all = links(&repository, 100).await;
    let noted = NotedHead { number: 7, hash: verify(&repository).await.unwrap().head.hash };
    // An older state with its own signed head is only found by what was noted.
    write(&repository, &[rule("a", 9)], &actor()).await;
    ground.run("DELETE FROM admin_audit_log WHERE chain_number = 8;").await;
    let error = verify(&repository).await.unwrap_err();
    assert_eq!(error, Broken::Head { last: 7, head: 8 });
    check(&all, Vec::new()).expect("it was whole then");
    let later = NotedHead { number: 8, ..noted };
    let error = check_with(&all, Vec::new(), Some(later)).unwrap_err();
    assert_eq!(error, Broken::NotedHead { number: 8 });
    ground.run("DELETE FROM admin_audit_log WHERE chain_number IN (3, 4);").await;
    let error = verify(&repository).await.unwrap_err();
    assert_eq!(error, Broken::Missing { first: 3, last: 4 });
    // A statement that nobody signed does not fill the gap.
    ground
        .run(
            "INSERT INTO audit_chain_removed (first_number, last_number, previous_hash, hash, \
             public_key, signature) SELECT 3, 4, (SELECT chain_hash FROM admin_audit_log \
             WHERE chain_number = 2), chain_hash, '', '' FROM admin_audit_log WHERE \
             chain_number = 5;",
        )
        .await;
    let error = verify(&repository).await.unwrap_err();
    assert!(matches!(error, Broken::Signature { .. }), "{error}");
    // An export that was cut off.
    let error = check(&all[..all.len() - 1], Vec::new()).unwrap_err();
    assert!(matches!(error, Broken::Form(_)), "{error}");
    // A whole log that is gone.
    ground.run("DELETE FROM admin_audit_log;").await;
    verify(&repository).await.expect_err("nothing is left");
}

/// Tenants push out what they wrote themselves, so that the removed changes lie between others.
pub(crate) async fn removed_changes_leave_signed_statements(ground: Ground) {
    let bounds = HistoryBounds { changes_per_tenant: 3, changes: 5, ..HistoryBounds::default() };
    let repository = open(&ground, bounds, 1).await;
    let loud = Actor { tenant: Some("loud".to_owned()), ..actor() };
    let quiet = Actor { tenant: Some("quiet".to_owned()), ..actor() };
    for number in 0..40 {
        write(&repository, &[of_tenant("loud", rule("loud.a", number))], &loud).await;
        if number % 7 == 0 {
            write(&repository, &[of_tenant("quiet", rule("quiet.a", number))], &quiet).await;
        }
        if number % 5 == 0 {
            write(&repository, &[rule("own", number), rule("other", number)], &actor()).await;
        }
        let found = verify(&repository).await.unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(found.changes + found.removed, found.head.number);
    }
    let all = links(&repository, 100).await;
    let removed = all.iter().filter(|link| matches!(link, Link::Removed(_))).count();
    let kept = all.iter().filter(|link| matches!(link, Link::Change(_))).count();
    assert_eq!(kept, 3 + 3 + 5);
    assert!(removed > 1 && removed <= kept + 1, "neighbours are one: {removed} for {kept}");
    // A change that was removed in another place.
    ground.run("UPDATE audit_chain_removed SET last_number = last_number + 1;").await;
    verify(&repository).await.expect_err("that was not signed");
}

pub(crate) async fn nodes_that_write_at_once_do_not_fork_the_chain(ground: Ground) {
    let nodes = [
        open(&ground, HistoryBounds { changes: 30, ..HistoryBounds::default() }, 1).await,
        open(&ground, HistoryBounds { changes: 30, ..HistoryBounds::default() }, 2).await,
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for (index, node) in nodes.iter().enumerate() {
        for writer in 0..3 {
            let node = Arc::clone(node);
            tasks.spawn(async move {
                for limit in 0..15 {
                    let id = format!("r{index}{writer}");
                    write(&node, &[rule(&id, limit)], &actor()).await;
                }
            });
        }
    }
    tasks.join_all().await;
    let keys = vec![signer(1).public_key(), signer(2).public_key()];
    for node in &nodes {
        let found = check(&links(node, 7).await, keys.clone()).unwrap();
        assert_eq!((found.head.number, found.changes, found.removed), (90, 30, 60));
    }
}

pub(crate) async fn records_from_before_are_covered_by_the_genesis(ground: Ground) {
    make(&ground, 9).await;
    let insert = "INSERT INTO admin_audit_log (timestamp, actor, token_id, action, kind, \
                  entry_id, version, revision, after, owner) VALUES";
    for number in 1..=5 {
        let row =
            format!("({number}, 'ann', 't1', 'rule.create', 'rule', 'r', 1, {number}, '{{}}', '')");
        ground.run(&format!("{insert} {row};")).await;
    }
    ground
        .run("INSERT INTO history_usage (log, owner, records, bytes) VALUES ('changes', '', 5, 5);")
        .await;
    let repository = signed(&ground).await;
    write(&repository, &[rule("a", 1)], &actor()).await;
    let found = verify(&repository).await.unwrap();
    assert_eq!((found.changes, found.earlier, found.earlier_are_checked), (1, 5, true));
    assert_eq!(check(&links(&repository, 2).await, Vec::new()).unwrap(), found);

    ground.run("UPDATE admin_audit_log SET actor = 'eve' WHERE timestamp = 3;").await;
    let error = verify(&repository).await.unwrap_err();
    assert!(matches!(error, Broken::Earlier(_)), "{error}");
    ground.run("UPDATE admin_audit_log SET actor = 'ann' WHERE timestamp = 3;").await;
    // A record that something else wrote.
    let row = "(6, 'eve', 't1', 'rule.create', 'rule', 'r', 1, 6, '{}', '')";
    ground.run(&format!("{insert} {row};")).await;
    let error = verify(&repository).await.unwrap_err();
    assert!(matches!(error, Broken::Unchained { .. }), "{error}");
    ground.run("DELETE FROM admin_audit_log WHERE timestamp = 6;").await;
    verify(&repository).await.unwrap();
    repository.close().await;
    // Bounds remove the oldest first; then the others cannot be checked, but none may be missing.
    let bounds = HistoryBounds { changes: 4, ..HistoryBounds::default() };
    let repository = open(&ground, bounds, 1).await;
    write(&repository, &[rule("a", 2)], &actor()).await;
    let found = verify(&repository).await.unwrap();
    assert_eq!((found.changes, found.earlier, found.earlier_are_checked), (2, 2, false));
    ground.run("DELETE FROM admin_audit_log WHERE timestamp = 5;").await;
    let error = verify(&repository).await.unwrap_err();
    assert!(matches!(error, Broken::Earlier(_)), "{error}");
}

pub(crate) async fn pages_of_every_size_are_one_chain(ground: Ground) {
    let bounds = HistoryBounds { changes_per_tenant: 2, ..HistoryBounds::default() };
    let repository = open(&ground, bounds, 1).await;
    let loud = Actor { tenant: Some("loud".to_owned()), ..actor() };
    for number in 0..10 {
        write(&repository, &[of_tenant("loud", rule("loud.a", number))], &loud).await;
        write(&repository, &[rule("own", number)], &actor()).await;
    }
    let all = links(&repository, 1_000).await;
    check(&all, Vec::new()).unwrap();
    for limit in [1, 2, 3, 7, 19] {
        assert_eq!(links(&repository, limit).await, all, "{limit}");
    }
    // More is removed between two pages: what was read before stays valid.
    let first = repository.chain(ChainPlace::Start, 6).await.unwrap();
    for number in 0..4 {
        write(&repository, &[of_tenant("loud", rule("loud.a", number))], &loud).await;
    }
    let (mut read, mut place) = (first.links, first.next);
    while let Some(after) = place {
        let page = repository.chain(after, 6).await.unwrap();
        read.extend(page.links);
        place = page.next;
    }
    assert_eq!(check(&read, Vec::new()).unwrap().head.number, 24);
}
