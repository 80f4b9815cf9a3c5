//! Bounds of versions of rules and of the log of changes, and what is known of what was removed.

use std::sync::Arc;

use tollgate_control::{Actor, ChangeFilter, HistoryBounds, Kind, Repository, Write};

use crate::ground::{Ground, actor, delete, of_tenant, page, rule, token};

const BOUNDS: HistoryBounds = HistoryBounds {
    versions_per_rule: 10,
    versions_per_tenant: 25,
    versions: 1_000,
    changes_per_tenant: 30,
    changes: 1_000,
    bytes_per_rule: 1 << 20,
    bytes_per_tenant: 1 << 20,
    bytes: 1 << 30,
};

async fn bounded(ground: &Ground) -> Arc<dyn Repository> {
    let repository = ground.config.open_with(BOUNDS, None).expect("a repository");
    repository.migrate().await.expect("a migration");
    repository
}

fn admin_of(tenant: &str) -> Actor {
    Actor { name: format!("admin of {tenant}"), tenant: Some(tenant.to_owned()), ..actor() }
}

async fn write(repository: &Arc<dyn Repository>, writes: &[Write], actor: &Actor) -> Vec<i64> {
    repository.commit(None, writes, actor).await.expect("a change").versions
}

async fn versions(repository: &Arc<dyn Repository>, id: &str) -> Vec<i64> {
    let found = repository.rule_versions(id, &page(None, 1_000)).await.unwrap();
    found.iter().map(|entry| entry.version).collect()
}

async fn changes(repository: &Arc<dyn Repository>, filter: ChangeFilter) -> Vec<i64> {
    let found = repository.changes(&filter, &page(None, 1_000)).await.unwrap();
    found.iter().map(|record| record.id).collect()
}

fn by(actor: &Actor) -> ChangeFilter {
    ChangeFilter { actor: Some(actor.name.clone()), ..ChangeFilter::default() }
}

pub(crate) async fn versions_of_a_rule_are_bounded(ground: Ground) {
    let repository = bounded(&ground).await;
    for limit in 1..=10 {
        write(&repository, &[rule("r", limit)], &actor()).await;
    }
    assert_eq!(repository.rule_checkpoint("r").await.unwrap(), None, "nothing was removed yet");
    let mut digests = Vec::new();
    for limit in 11..=24 {
        write(&repository, &[rule("r", limit), rule("other", limit)], &actor()).await;
        digests.push(repository.rule_checkpoint("r").await.unwrap().unwrap().digest);
    }
    assert_eq!(versions(&repository, "r").await, (15..=24).rev().collect::<Vec<_>>());
    assert_eq!(repository.rule_version("r", 14).await.unwrap(), None);
    let removed = repository.rule_checkpoint("r").await.unwrap().unwrap();
    assert_eq!((removed.removed, removed.first, removed.last), (14, 1, 14));
    assert!(removed.tenant.is_none() && 0 < removed.from && removed.from <= removed.until);
    digests.dedup();
    assert_eq!(digests.len(), 14, "each removal changes the digest");
    assert!(digests.iter().all(|digest| digest.len() == 64));
    // A deleted rule is still remembered, and goes on counting.
    write(&repository, &[delete(Kind::Rule, "r")], &actor()).await;
    assert_eq!(write(&repository, &[rule("r", 1)], &actor()).await, [26]);
}

pub(crate) async fn a_tenant_has_a_share_of_the_history(ground: Ground) {
    let repository = bounded(&ground).await;
    let (loud, quiet) = (admin_of("loud"), admin_of("quiet"));
    write(&repository, &[of_tenant("quiet", rule("quiet.a", 1))], &quiet).await;
    write(&repository, &[token("t9", "d9"), rule("own", 1)], &actor()).await;
    let own = of_tenant("loud", rule("loud.kept", 7));
    // The installation's admin changes a tenant's rule: that is no change by the tenant.
    write(&repository, &[own], &actor()).await;
    for number in 0..200 {
        let id = format!("loud.{number}");
        write(&repository, &[of_tenant("loud", rule(&id, 1))], &loud).await;
        write(&repository, &[of_tenant("loud", delete(Kind::Rule, &id))], &loud).await;
    }
    assert_eq!(changes(&repository, by(&loud)).await.len(), 30);
    assert_eq!(changes(&repository, by(&quiet)).await.len(), 1, "others keep theirs");
    assert_eq!(changes(&repository, by(&actor())).await.len(), 3, "and so does the installation");
    let mut kept = versions(&repository, "loud.kept").await.len();
    assert_eq!(kept, 1, "what a rule is now is never removed");
    for number in 0..200 {
        kept += versions(&repository, &format!("loud.{number}")).await.len();
    }
    assert_eq!(kept, 25);
    assert_eq!(versions(&repository, "quiet.a").await, [1]);
    let removed = repository.change_checkpoints(Some("loud")).await.unwrap();
    assert_eq!(removed.len(), 1);
    assert_eq!((removed[0].removed, removed[0].tenant.as_deref()), (370, Some("loud")));
    assert_eq!(repository.change_checkpoints(Some("quiet")).await.unwrap(), []);
    assert_eq!(repository.change_checkpoints(None).await.unwrap(), removed);
    // No number of a version is given twice, although nothing is left of the first rules.
    assert!(versions(&repository, "loud.0").await.is_empty());
    assert_eq!(repository.rule_checkpoint("loud.0").await.unwrap(), None, "rows do not pile up");
    let again = write(&repository, &[of_tenant("loud", rule("loud.0", 1))], &loud).await;
    assert!(again[0] > 2, "{again:?}");
    assert_eq!(write(&repository, &[rule("fresh", 1)], &actor()).await, [1]);
}

pub(crate) async fn a_lowered_bound_is_reached_step_by_step(ground: Ground) {
    let repository = ground.ready().await;
    for limit in 1..=40 {
        write(&repository, &[rule("r", limit)], &actor()).await;
    }
    assert_eq!(versions(&repository, "r").await.len(), 40);
    repository.close().await;
    let bounds = HistoryBounds { versions_per_rule: 3, changes: 5, ..BOUNDS };
    let repository = ground.config.open_with(bounds, None).expect("a repository");
    write(&repository, &[rule("r", 41)], &actor()).await;
    assert_eq!(versions(&repository, "r").await, [41, 40, 39]);
    assert_eq!(changes(&repository, ChangeFilter::default()).await.len(), 5);
    let removed = repository.change_checkpoints(None).await.unwrap();
    assert_eq!((removed.len(), removed[0].removed), (1, 36));
}

/// A rule with a description of so many bytes.
fn large_rule(id: &str, number: i64, bytes: usize) -> Write {
    let mut write = rule(id, number);
    if let Some(body) = &mut write.body {
        body["description"] = "x".repeat(bytes).into();
    }
    write.note.after = write.body.clone();
    write
}

/// A few large versions take as much as many small ones: they are bounded in bytes, and leave a checkpoint.
pub(crate) async fn the_history_is_bounded_in_bytes(ground: Ground) {
    let bounds = HistoryBounds {
        versions_per_rule: 1_000,
        versions_per_tenant: 1_000,
        changes_per_tenant: 1_000,
        bytes_per_rule: 50_000,
        bytes_per_tenant: 120_000,
        ..BOUNDS
    };
    let repository = ground.config.open_with(bounds, None).expect("a repository");
    repository.migrate().await.expect("a migration");
    for number in 1..=20 {
        write(&repository, &[large_rule("r", number, 10_000)], &actor()).await;
    }
    assert_eq!(versions(&repository, "r").await, [20, 19, 18, 17], "four fit");
    let removed = repository.rule_checkpoint("r").await.unwrap().expect("a checkpoint");
    assert_eq!((removed.removed, removed.first, removed.last), (16, 1, 16));
    // What a rule is now is never removed, however large.
    write(&repository, &[large_rule("r", 21, 90_000)], &actor()).await;
    assert_eq!(versions(&repository, "r").await, [21]);

    let (loud, quiet) = (admin_of("loud"), admin_of("quiet"));
    write(&repository, &[of_tenant("quiet", large_rule("quiet.a", 1, 10_000))], &quiet).await;
    for number in 0..50 {
        let id = format!("loud.{number}");
        let large = of_tenant("loud", large_rule(&id, number, 10_000));
        write(&repository, &[large], &loud).await;
        write(&repository, &[of_tenant("loud", delete(Kind::Rule, &id))], &loud).await;
    }
    let mut bytes = 0;
    for number in 0..50 {
        let id = format!("loud.{number}");
        let found = repository.rule_versions(&id, &page(None, 1_000)).await.unwrap();
        bytes += found.iter().map(|entry| entry.body.to_string().len()).sum::<usize>();
    }
    assert!((60_000..=120_000).contains(&bytes), "{bytes}");
    assert_eq!(versions(&repository, "quiet.a").await, [1], "others keep theirs");
    let kept = repository.changes(&by(&loud), &page(None, 1_000)).await.unwrap();
    let change_bytes: usize = kept
        .iter()
        .flat_map(|change| [&change.before, &change.after])
        .flatten()
        .map(|body| body.to_string().len())
        .sum();
    assert!(change_bytes <= 120_000, "{change_bytes}");
    let removed = repository.change_checkpoints(Some("loud")).await.unwrap();
    assert_eq!(removed.len(), 1);
    assert_eq!(usize::try_from(removed[0].removed).unwrap() + kept.len(), 100);
}
