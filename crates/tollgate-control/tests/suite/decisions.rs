//! The log of decisions.

use std::sync::Arc;

use tollgate_control::{DecisionFilter, DecisionPlace, DecisionRecord, Repository};

use crate::ground::{Ground, page};

fn decision(number: i64) -> DecisionRecord {
    DecisionRecord {
        event_id: format!("{number:032x}"),
        at: number,
        action: "rejected".to_owned(),
        reason: "HIT_USER_LIMIT".to_owned(),
        client_id: "u1".to_owned(),
        node: "n1".to_owned(),
        cost: 1,
        ..DecisionRecord::default()
    }
}

async fn times(repository: &Arc<dyn Repository>, filter: DecisionFilter) -> Vec<i64> {
    let decisions = repository.decisions(&filter, &page(None, 100)).await.unwrap();
    decisions.into_iter().map(|decision| decision.record.at).collect()
}

pub(crate) async fn decisions_come_back_the_newest_first(ground: Ground) {
    let repository = ground.ready().await;
    let full = DecisionRecord {
        rule_id: Some("r1".into()),
        scope: Some("global".into()),
        request_count: Some(i64::MAX),
        limit_count: Some(i64::MIN),
        retry_after_ms: Some(0),
        window_seconds: Some(60),
        would_deny: vec!["r2".into(), "r3".into()],
        endpoint: Some("/v1/chat".into()),
        method: Some("POST".into()),
        ip_address: Some("2001:db8::1".into()),
        user_id: Some("u1".into()),
        tenant_id: Some("acme".into()),
        api_key_id: Some("k1".into()),
        model_id: Some("m1".into()),
        request_id: Some("q1".into()),
        cost: -5,
        revision: 9,
        ..decision(0)
    };
    assert_eq!(repository.record(&[]).await.unwrap(), 0);
    let mut all = vec![full];
    all.extend((1..25).map(decision));
    assert_eq!(repository.record(&all).await.unwrap(), 25);
    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let next = page(after.as_deref(), 10);
        let decisions = repository.decisions(&DecisionFilter::default(), &next).await.unwrap();
        let Some(last) = decisions.last() else { break };
        after = Some(last.id.to_string());
        seen.extend(decisions.into_iter().map(|decision| decision.record));
    }
    seen.reverse();
    assert_eq!(seen, all);
}

pub(crate) async fn filters_find_decisions(ground: Ground) {
    let repository = ground.ready().await;
    let one = DecisionRecord {
        action: "allowed".to_owned(),
        client_id: "u2".to_owned(),
        rule_id: Some("r1".into()),
        user_id: Some("u2".into()),
        tenant_id: Some("acme".into()),
        ip_address: Some("192.0.2.1".into()),
        api_key_id: Some("k1".into()),
        scope: Some("USER".into()),
        model_id: Some("m1".into()),
        endpoint: Some("/v1".into()),
        reason: "WITHIN_LIMITS".into(),
        request_id: Some("q1".into()),
        ..decision(2)
    };
    repository.record(&[decision(1), one, decision(3)]).await.unwrap();
    let any = DecisionFilter::default;
    assert_eq!(times(&repository, any()).await, [3, 2, 1]);
    for filter in [
        DecisionFilter { action: Some("allowed".into()), ..any() },
        DecisionFilter { client_id: Some("u2".into()), ..any() },
        DecisionFilter { rule_id: Some("r1".into()), ..any() },
        DecisionFilter { user_id: Some("u2".into()), ..any() },
        DecisionFilter { tenant_id: Some("acme".into()), ..any() },
        DecisionFilter { ip_address: Some("192.0.2.1".into()), ..any() },
        DecisionFilter { request_id: Some("q1".into()), ..any() },
        DecisionFilter { api_key_id: Some("k1".into()), ..any() },
        DecisionFilter { scope: Some("USER".into()), ..any() },
        DecisionFilter { model_id: Some("m1".into()), ..any() },
        DecisionFilter { endpoint: Some("/v1".into()), ..any() },
        DecisionFilter { reason: Some("WITHIN_LIMITS".into()), ..any() },
        DecisionFilter { user_id: Some("u2".into()), action: Some("allowed".into()), ..any() },
        DecisionFilter { from: Some(2), until: Some(3), ..any() },
    ] {
        assert_eq!(times(&repository, filter.clone()).await, [2], "{filter:?}");
        let found = repository.search_decisions(&filter, None, 10).await.unwrap();
        assert_eq!(found.len(), 1, "{filter:?}");
        assert_eq!(repository.count_decisions(&filter, 10).await.unwrap(), 1);
        let newer = DecisionFilter { written_after: Some(found[0].id), ..filter.clone() };
        assert!(times(&repository, newer).await.is_empty());
        let newer = DecisionFilter { written_after: Some(found[0].id - 1), ..filter.clone() };
        assert_eq!(times(&repository, newer).await, [2]);
        let none = DecisionFilter { from: Some(4), ..filter };
        assert!(times(&repository, none).await.is_empty());
    }
}

pub(crate) async fn a_decision_is_kept_once(ground: Ground) {
    let repository = ground.ready().await;
    assert_eq!(repository.record(&[decision(1), decision(2), decision(1)]).await.unwrap(), 2);
    let changed = DecisionRecord { reason: "OTHER".to_owned(), ..decision(2) };
    assert_eq!(repository.record(&[changed, decision(3)]).await.unwrap(), 1);
    let decisions =
        repository.decisions(&DecisionFilter::default(), &page(None, 10)).await.unwrap();
    assert_eq!(decisions.len(), 3);
    assert!(decisions.iter().all(|decision| decision.record.reason == "HIT_USER_LIMIT"));
}

/// A flood of one tenant erases nothing of the others, and the log never takes more than it may.
pub(crate) async fn the_log_is_bounded_in_bytes_and_the_loudest_goes_first(ground: Ground) {
    const MAX_BYTES: u64 = 150_000;
    let repository = ground.ready().await;
    let of = |tenant: Option<&str>, numbers: std::ops::Range<i64>| -> Vec<DecisionRecord> {
        let tenant_id = tenant.map(str::to_owned);
        numbers.map(|n| DecisionRecord { tenant_id: tenant_id.clone(), ..decision(n) }).collect()
    };
    let bound = async || {
        while repository.bound_decisions(MAX_BYTES, 50).await.unwrap() > 0 {}
    };
    repository.record(&of(Some("quiet"), 0..10)).await.unwrap();
    repository.record(&of(None, 10..20)).await.unwrap();
    for start in 1..=20 {
        repository.record(&of(Some("loud"), start * 100..start * 100 + 100)).await.unwrap();
        bound().await;
    }
    let kept_of = async |tenant: Option<&str>| -> Vec<i64> {
        let all = repository.decisions(&DecisionFilter::default(), &page(None, 1_000)).await;
        let all = all.unwrap().into_iter().map(|decision| decision.record);
        all.filter(|one| one.tenant_id.as_deref() == tenant).map(|one| one.at).collect()
    };
    assert_eq!(kept_of(Some("quiet")).await.len(), 10);
    assert_eq!(kept_of(None).await.len(), 10);
    let loud = kept_of(Some("loud")).await;
    assert!((50..200).contains(&loud.len()), "{}", loud.len());
    assert_eq!(loud.first(), Some(&2_099), "the newest stay");
    // What is pruned by age is not counted any more.
    while repository.prune(i64::MAX, 100).await.unwrap() > 0 {}
    repository.record(&of(Some("quiet"), 3_000..3_050)).await.unwrap();
    assert_eq!(repository.bound_decisions(MAX_BYTES, 50).await.unwrap(), 0);
    // The loudest goes first also where it has no tenant.
    repository.record(&of(None, 4_000..4_200)).await.unwrap();
    bound().await;
    assert_eq!(kept_of(Some("quiet")).await.len(), 50);
}

/// Records that were removed leave no room behind that only a later clean-up by the server would give back.
pub(crate) async fn a_flood_keeps_the_tables_small(ground: Ground) {
    const MAX_BYTES: u64 = 2_000_000;
    let repository = ground.ready().await;
    for start in (0..30_000_i64).step_by(500) {
        let records: Vec<_> = (start..start + 500).map(decision).collect();
        repository.record(&records).await.unwrap();
        while repository.bound_decisions(MAX_BYTES, 500).await.unwrap() > 0 {}
    }
    let limit = 2 * MAX_BYTES;
    let check = format!(
        "DO $$ BEGIN IF pg_total_relation_size('rate_limit_audit_log') > {limit} THEN \
         RAISE EXCEPTION '% bytes', pg_total_relation_size('rate_limit_audit_log'); END IF; END $$"
    );
    ground.run(&check).await;
}

/// A tenant is a name in a request: those that one caller invents do not push out the records of others.
pub(crate) async fn invented_tenants_of_a_caller_leave_the_records_of_others(ground: Ground) {
    const MAX_BYTES: u64 = 100_000;
    let repository = ground.ready().await;
    let quiet: Vec<_> = (0..20)
        .map(|n| DecisionRecord {
            caller: "aa".into(),
            tenant_id: Some("quiet".into()),
            ..decision(n)
        })
        .collect();
    repository.record(&quiet).await.unwrap();
    for start in 1..=20_i64 {
        let invented = (start * 100..start * 100 + 100).map(|n| DecisionRecord {
            caller: "192.0.2.1".into(),
            tenant_id: Some(format!("invented-{n}")),
            ..decision(n)
        });
        repository.record(&invented.collect::<Vec<_>>()).await.unwrap();
        while repository.bound_decisions(MAX_BYTES, 50).await.unwrap() > 0 {}
    }
    let of = DecisionFilter { tenant_id: Some("quiet".into()), ..DecisionFilter::default() };
    let left = repository.decisions(&of, &page(None, 100)).await.unwrap();
    assert_eq!(left.len(), 20);
    assert!(left.iter().all(|one| one.record.caller == "aa"));
}

pub(crate) async fn old_decisions_are_pruned_in_parts(ground: Ground) {
    let repository = ground.ready().await;
    let all: Vec<_> = (0..100).map(decision).collect();
    repository.record(&all).await.unwrap();
    assert_eq!(repository.prune(50, 30).await.unwrap(), 30);
    assert_eq!(times(&repository, DecisionFilter::default()).await.len(), 70);
    assert_eq!(repository.prune(50, 30).await.unwrap(), 20);
    assert_eq!(repository.prune(50, 30).await.unwrap(), 0);
    let left = times(&repository, DecisionFilter::default()).await;
    assert_eq!(left, (50..100).rev().collect::<Vec<_>>());
    // Numbers are not given twice, or pages would miss what came later.
    let newest = async || {
        let newest =
            repository.decisions(&DecisionFilter::default(), &page(None, 1)).await.unwrap();
        newest.first().map(|decision| decision.id)
    };
    let before = newest().await;
    assert_eq!(repository.prune(1000, 1000).await.unwrap(), 50);
    repository.record(&[decision(1)]).await.unwrap();
    assert!(newest().await > before);
}

pub(crate) async fn no_text_of_a_client_spoils_a_batch(ground: Ground) {
    let repository = ground.ready().await;
    let long = "\u{1f600}".repeat(5_000);
    let odd = DecisionRecord {
        client_id: long.clone(),
        request_id: Some(long.clone()),
        tenant_id: Some(format!("x{long}")),
        endpoint: Some("/a\0b".into()),
        ..decision(1)
    };
    assert_eq!(repository.record(&[odd, decision(2)]).await.unwrap(), 2);
    let decisions =
        repository.decisions(&DecisionFilter::default(), &page(None, 10)).await.unwrap();
    let odd = &decisions[1].record;
    assert!(odd.client_id.len() == 1024 && long.starts_with(&odd.client_id));
    assert_eq!(odd.tenant_id.as_ref().unwrap().len(), 1021, "not within a character");
    assert_eq!(odd.endpoint.as_deref(), Some("/a?b"));
}

pub(crate) async fn a_search_goes_by_time_and_its_pages_have_no_gaps(ground: Ground) {
    let repository = ground.ready().await;
    // Written out of order, and several at one instant.
    let all: Vec<_> = (0..60).map(|number| (number * 7) % 60).collect();
    let of = |number: &i64| DecisionRecord { at: number / 3, ..decision(*number) };
    repository.record(&all.iter().map(of).collect::<Vec<_>>()).await.unwrap();
    let filter = DecisionFilter { from: Some(1), until: Some(19), ..DecisionFilter::default() };
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let found = repository.search_decisions(&filter, before, 7).await.unwrap();
        let Some(last) = found.last() else { break };
        before = Some(DecisionPlace { at: last.record.at, id: last.id });
        seen.extend(found.into_iter().map(|one| (one.record.at, one.id)));
    }
    assert_eq!(seen.len(), 54);
    assert!(seen.is_sorted_by(|one, next| one > next), "{seen:?}");
    assert_eq!(repository.count_decisions(&filter, 10).await.unwrap(), 10, "and no further");
}

/// A search that finds nothing and never ends stops when it takes too long: it no longer reads the file.
pub(crate) async fn a_search_that_takes_too_long_stops(ground: Ground) {
    use sqlx::{Connection as _, SqliteConnection, raw_sql, sqlite::SqliteConnectOptions};
    let repository = ground.ready().await;
    ground
        .run(
            "ALTER TABLE rate_limit_audit_log RENAME TO log;
             CREATE VIEW rate_limit_audit_log AS
             WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers)
             SELECT log.* FROM numbers CROSS JOIN log ON log.id = -n",
        )
        .await;
    let filter = DecisionFilter { tenant_id: Some("acme".to_owned()), ..DecisionFilter::default() };
    let error = repository.search_decisions(&filter, None, 10).await.unwrap_err();
    assert!(error.to_string().contains("narrow the time range"), "{error}");
    let tollgate_control::DatabaseConfig::Sqlite(path) = &ground.config else { unreachable!() };
    let options = SqliteConnectOptions::new().filename(path);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    // As long as it reads, what was written since is not put into the file.
    raw_sql("CREATE TABLE written_since (id INTEGER)").execute(&mut connection).await.unwrap();
    let stopped = async {
        loop {
            let checkpoint = sqlx::query_as("PRAGMA wal_checkpoint(TRUNCATE)");
            let (busy, _, _): (i64, i64, i64) =
                checkpoint.fetch_one(&mut connection).await.unwrap();
            if busy == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let stopped = tokio::time::timeout(std::time::Duration::from_secs(30), stopped).await;
    stopped.expect("the statement has ended");
    repository.close().await;
}
