use tollgate_policy::prices::{Currency, Money, Usage};

use super::*;

fn ledger(is_shared: bool) -> Ledger {
    Ledger::new(Arc::from(&b"secret"[..]), is_shared, Arc::default())
}

fn used(id: u128) -> SettledUsage {
    let usage = Usage::new(10, 5).with(TokenKind::CachedRead, 4).with(TokenKind::Reasoning, 2);
    SettledUsage {
        id,
        at: 1_700_000_000_123 * MILLI,
        spender: Spender { user_id: Some("ann".to_owned()), ..Spender::default() },
        requests: 1,
        tokens: 15,
        usage,
        money: Some(Money { currency: Currency::USD, nanos: 77 }),
    }
}

#[tokio::test]
async fn a_settlement_waits_for_redis_and_never_for_a_database() {
    let own = ledger(false);
    own.append(used(1)).await;
    assert_eq!(own.waiting(), 1, "noted, and not waited for");

    let shared = Arc::new(ledger(true));
    let other = Arc::clone(&shared);
    let appending = tokio::spawn(async move { other.append(used(2)).await });
    shared.arrived(Duration::from_secs(10)).await;
    let taken = shared.take(10);
    assert!(!appending.is_finished());
    assert_eq!(taken[0].event.amounts.cached_read_tokens, 4);
    assert_eq!((taken[0].event.amounts.nanos, &*taken[0].event.currency), (77, "USD"));
    assert_eq!(taken[0].event.at, 1_700_000_000_123);
    taken.into_iter().for_each(Waiting::done);
    appending.await.unwrap();

    // After a failure nobody waits until events are stored again.
    shared.note(used(3));
    let failed = shared.take(10);
    shared.put_back(failed);
    shared.append(used(4)).await;
    let ids = shared.take(10).into_iter().map(|one| one.event.event_id).collect::<Vec<_>>();
    assert_eq!(ids, [format!("{:032x}", 3), format!("{:032x}", 4)], "in their order");
}

#[tokio::test(start_paused = true)]
async fn a_redis_that_hangs_holds_no_settlement_for_longer_than_its_bound() {
    let shared = ledger(true);
    shared.append(used(1)).await;
    assert_eq!(shared.waiting(), 1, "it still waits to be stored");
}

#[test]
fn the_queue_is_bounded_and_losses_are_counted() {
    let ledger = ledger(false);
    for id in 0..MAX_WAITING as u128 + 5 {
        ledger.note(used(id));
    }
    assert_eq!(ledger.waiting(), MAX_WAITING);
    assert_eq!(ledger.figures.usage_lost.load(Ordering::Relaxed), 5);
}

#[test]
fn refusals_are_counted_together_and_bounded() {
    let ledger = ledger(false);
    for number in 0..3 * MAX_REFUSED {
        let tenant_id = Some(format!("tenant-{number}"));
        ledger.refused(Spender { tenant_id, ..Spender::default() }, 5 * MILLI);
    }
    let first = Spender { tenant_id: Some("tenant-0".to_owned()), ..Spender::default() };
    ledger.refused(first, 6 * MILLI);
    ledger.flush_refused();
    let events = ledger.take(usize::MAX);
    assert!(events.len() <= 2 * MAX_REFUSED + 1, "{}", events.len());
    let count = |waiting: &Waiting| waiting.event.amounts.refusals;
    assert_eq!(events.iter().map(count).sum::<u64>(), 3 * MAX_REFUSED as u64 + 1);
    let of_first = events.iter().find(|one| one.event.tenant_id == "tenant-0").unwrap();
    assert_eq!((count(of_first), of_first.event.at), (2, 6));
    ledger.flush_refused();
    assert_eq!(ledger.waiting(), 0);
}

#[test]
fn what_is_open_says_until_when_and_what_is_given_back_says_so() {
    let ledger = ledger(false);
    ledger.opened(used(7), 1_700_000_060_000 * MILLI);
    ledger.released(7, 1_700_000_000_500 * MILLI);
    let events = ledger.take(10);
    let [open, released] = &events[..] else { panic!("two events") };
    assert_eq!(open.event.event_id, released.event.event_id);
    assert_eq!((open.event.expires_at, open.event.is_released), (Some(1_700_000_060_000), false));
    assert_eq!(open.event.amounts.nanos, 77);
    assert!(released.event.is_released && released.event.expires_at.is_none());
}
