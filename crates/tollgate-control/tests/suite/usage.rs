//! The ledger of usage.

use std::sync::Arc;

use tollgate_control::{
    Repository, UsageAmounts, UsageDimension, UsageEvent, UsageQuery, UsageRetention, UsageRow,
    UsageSweep,
};

use crate::ground::Ground;

const DAY: i64 = 86_400_000;
const MAX_ROWS: u32 = 1_000;
const REQUESTS: usize = 0;
const TOKENS: usize = 2;
const NANOS: usize = 10;

fn event(number: u64, user: &str, nanos: u64) -> UsageEvent {
    UsageEvent {
        event_id: format!("{number:032x}"),
        at: 20_000 * DAY + 5,
        tenant_id: "acme".into(),
        api_key_id: "vk_1".into(),
        user_id: user.into(),
        model_id: "gpt".into(),
        currency: "USD".into(),
        amounts: UsageAmounts { requests: 1, tokens: 10, nanos, ..UsageAmounts::default() },
        ..UsageEvent::default()
    }
}

async fn add(repository: &Arc<dyn Repository>, events: &[UsageEvent]) -> u64 {
    repository.record_usage(events, MAX_ROWS).await.unwrap()
}

fn all(group_by: &[UsageDimension]) -> UsageQuery {
    UsageQuery {
        group_by: group_by.to_vec(),
        from_day: 0,
        until_day: i64::from(u32::MAX),
        limit: 100,
        ..UsageQuery::default()
    }
}

async fn report(repository: &Arc<dyn Repository>, group_by: &[UsageDimension]) -> Vec<UsageRow> {
    repository.usage_report(&all(group_by)).await.unwrap()
}

pub(crate) async fn an_event_counts_once_however_often_it_is_delivered(ground: Ground) {
    let repository = ground.ready().await;
    let other = ground.open();
    let events: Vec<_> = (0..50).map(|number| event(number, "ann", number + 1)).collect();
    assert_eq!(add(&repository, &[]).await, 0);
    assert_eq!(add(&repository, &events[..20]).await, 20);
    // A batch that has an event twice, and others that are known.
    let again: Vec<_> = events.iter().chain(&events[30..40]).cloned().collect();
    assert_eq!(add(&other, &again).await, 30);
    let (one, two) = tokio::join!(add(&repository, &events), add(&other, &events));
    assert_eq!((one, two), (0, 0));
    let rows = report(&repository, &[]).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].amounts[REQUESTS], 50);
    assert_eq!(rows[0].amounts[TOKENS], 500);
    assert_eq!(rows[0].amounts[NANOS], (1..=50).sum::<u128>());
}

pub(crate) async fn two_writers_of_the_same_events_count_them_once(ground: Ground) {
    let repository = ground.ready().await;
    let other = ground.open();
    let events: Vec<_> = (0..200).map(|number| event(number, "ann", 7)).collect();
    let (one, two) = tokio::join!(
        repository.record_usage(&events, MAX_ROWS),
        other.record_usage(&events, MAX_ROWS)
    );
    assert_eq!(one.unwrap() + two.unwrap(), 200);
    assert_eq!(report(&repository, &[]).await[0].amounts[NANOS], 1_400);
}

pub(crate) async fn reports_group_and_filter(ground: Ground) {
    let repository = ground.ready().await;
    let mut later = event(3, "bob", 30);
    later.at += DAY;
    later.tenant_id = "umbrella".into();
    let mut unpriced = event(4, "ann", 0);
    unpriced.currency = String::new();
    add(&repository, &[event(1, "ann", 5), event(2, "bob", 20), later, unpriced]).await;
    let users = report(&repository, &[UsageDimension::User]).await;
    let shown: Vec<_> = users
        .iter()
        .map(|row| (row.user_id.as_deref().unwrap(), &*row.currency, row.amounts[NANOS]))
        .collect();
    assert_eq!(shown, [("bob", "USD", 50), ("ann", "USD", 5), ("ann", "", 0)]);
    assert!(users.iter().all(|row| row.day.is_none() && row.tenant_id.is_none()));
    // In any order, and named twice.
    let by = [UsageDimension::Tenant, UsageDimension::Day, UsageDimension::Tenant];
    let days = report(&repository, &by).await;
    let shown: Vec<_> = days.iter().map(|row| (row.day.unwrap(), row.amounts[NANOS])).collect();
    assert_eq!(shown, [(20_001, 30), (20_000, 25), (20_000, 0)]);
    let acme = UsageQuery { tenant_id: Some("acme".into()), ..all(&[]) };
    let sum = |rows: Vec<UsageRow>| rows.iter().map(|row| row.amounts[NANOS]).sum::<u128>();
    assert_eq!(sum(repository.usage_report(&acme).await.unwrap()), 25);
    let first = UsageQuery { until_day: 20_001, from_day: 20_000, ..all(&[]) };
    assert_eq!(sum(repository.usage_report(&first).await.unwrap()), 25);
    let none = UsageQuery { model_id: Some("other".into()), ..all(&[]) };
    assert!(repository.usage_report(&none).await.unwrap().is_empty());
    let few = UsageQuery { limit: 2, ..all(&[UsageDimension::User]) };
    assert_eq!(repository.usage_report(&few).await.unwrap().len(), 2);
}

/// Hostile callers choose names and amounts.
pub(crate) async fn invented_names_and_amounts_stay_within_bounds(ground: Ground) {
    let repository = ground.ready().await;
    for batch in 0..6 {
        let events: Vec<_> = (0..10)
            .map(|number| {
                let number = batch * 10 + number;
                let mut event = event(number, &format!("user-{number}\0{}", "x".repeat(3_000)), 1);
                event.tenant_id = format!("tenant-{number}");
                event
            })
            .collect();
        repository.record_usage(&events, 20).await.unwrap();
    }
    let by = [UsageDimension::Tenant, UsageDimension::User];
    let rows = report(&repository, &by).await;
    assert!(rows.len() <= 31, "{}", rows.len());
    assert_eq!(rows.iter().map(|row| row.amounts[NANOS]).sum::<u128>(), 60, "nothing is lost");
    assert!(rows.iter().any(|row| row.user_id.as_deref() == Some("(several)")));

    let huge: Vec<_> = (100..700).map(|number| event(number, "max", u64::MAX)).collect();
    for _ in 0..3 {
        add(&repository, &huge).await;
    }
    let more: Vec<_> = (700..1_300).map(|number| event(number, "max", u64::MAX)).collect();
    add(&repository, &more).await;
    let rows = report(&repository, &[]).await;
    assert!(rows[0].amounts[NANOS] >= 4_000_000_000_000_000_000, "{rows:?}");
}

pub(crate) async fn old_usage_is_removed(ground: Ground) {
    let repository = ground.ready().await;
    let mut old = event(1, "ann", 5);
    old.at = 19_000 * DAY;
    add(&repository, &[old.clone(), event(2, "ann", 7)]).await;
    let keep = UsageRetention { before_day: 19_500, ids_before: 0, most: 10 };
    assert_eq!(repository.prune_usage(&keep).await.unwrap(), 1);
    assert_eq!(repository.prune_usage(&keep).await.unwrap(), 0);
    assert_eq!(report(&repository, &[]).await[0].amounts[NANOS], 7);
    assert_eq!(add(&repository, &[event(2, "ann", 7)]).await, 0, "its id is known");
    let forget = UsageRetention { ids_before: i64::MAX, most: 1, ..keep };
    assert_eq!(repository.prune_usage(&forget).await.unwrap(), 1);
    assert_eq!(repository.prune_usage(&forget).await.unwrap(), 1);
    assert_eq!(repository.prune_usage(&forget).await.unwrap(), 0);
}

pub(crate) async fn what_expires_counts_as_estimated_and_what_ends_does_not_expire(ground: Ground) {
    let repository = ground.ready().await;
    let open = |number, expires_at| UsageEvent {
        expires_at: Some(expires_at),
        ..event(number, "o'ann\"\0", 100)
    };
    let released =
        UsageEvent { event_id: format!("{:032x}", 3), is_released: true, ..UsageEvent::default() };
    // The first expires, the second is settled, the third released, the fourth renewed, and of the fifth the end arrives
    // before its beginning.
    add(&repository, &[open(1, 10), open(2, 10), open(2, 10), open(3, 10), open(4, 10)]).await;
    assert_eq!(
        add(&repository, &[event(2, "ann", 7), released, open(4, 30), open(4, 20)]).await,
        1
    );
    assert_eq!(add(&repository, &[event(5, "ann", 1)]).await, 1);
    add(&repository, &[open(5, 10), open(2, 10), open(3, 10)]).await;
    let sweep =
        |expired_before| UsageSweep { expired_before, most: 10, max_rows_per_day: MAX_ROWS };
    assert_eq!(repository.sweep_usage(&sweep(10)).await.unwrap(), 0, "not yet");
    assert_eq!(repository.sweep_usage(&sweep(25)).await.unwrap(), 1);
    assert_eq!(repository.sweep_usage(&sweep(25)).await.unwrap(), 0, "once");
    let money = |rows: &[UsageRow]| rows.iter().map(|row| row.amounts[NANOS]).sum::<u128>();
    assert_eq!(money(&report(&repository, &[]).await), 100 + 7 + 1);
    // What was counted as estimated is not counted again.
    assert_eq!(add(&repository, &[event(1, "ann", 5), open(1, 99)]).await, 0);
    assert_eq!(repository.sweep_usage(&sweep(31)).await.unwrap(), 1, "the renewed one");
    assert_eq!(money(&report(&repository, &[]).await), 208);
}
