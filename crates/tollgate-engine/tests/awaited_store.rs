//! A third-party store that has to be awaited: every way to a decision waits for it, and decides as on a store that
//! answers at once.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::sync::Arc;

use tollgate_core::SECOND;
use tollgate_engine::{
    Actual, Amounts, Decision, Engine, EngineError, Hits, ManualClock, Part, Refunds, Request,
};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::conformance::Awaited;
use tollgate_store::{MemoryStore, Mode, Store};

const RULES: &str = "
default: false
rules:
- {rule_id: user, identifier_type: user_id, limit: 9, window: 1d, algorithm: fixed_window}
- {rule_id: tokens, identifier_type: user_id, unit: tokens, limit: 100, window: 1h}
- {rule_id: slots, identifier_type: tenant_id, unit: concurrency, limit: 1}
";

fn engine<S: Store>(store: S) -> Engine<S> {
    let rules = RuleSet::from_yaml(RULES, "t").unwrap();
    let engine = Engine::new(store, Arc::new(ManualClock::new(1_000_000 * SECOND)), rules);
    engine.with_missing_key(tollgate_engine::MissingKey::Allow)
}

fn request<'a>(user: &'a str, tenant: &'a str, tokens: u64) -> Request<'a> {
    let mut request = Request {
        amounts: Amounts::tokens(tokens),
        refunds: Refunds::Always,
        ..Request::default()
    };
    request.attributes.set(Known::UserId, user);
    request.attributes.set(Known::TenantId, tenant);
    request
}

fn figures(decision: &Decision<'_>) -> String {
    let used = decision.scopes().map(|scope| scope.outcome.status.used);
    format!("{:?} {} {:?}", decision.verdict, decision.reason_code(), used.collect::<Vec<_>>())
}

fn held_under(decision: &Decision<'_>) -> Option<u128> {
    decision.reservation_id()
}

/// What every way to a decision says, in order.
async fn history<S: Store>(engine: &Engine<S>) -> Vec<String> {
    let rules = engine.rules();
    let mut seen = Vec::new();
    let plain = request("ann", "", 10);
    for mode in [Mode::Peek, Mode::Charge, Mode::Owe] {
        seen.push(figures(&engine.decide(&rules, &plain, mode).await.unwrap()));
    }
    let with_id = Request { request_id: Some("id"), ..request("ann", "", 1) };
    for _ in 0..2 {
        seen.push(engine.decide_once(&rules, &with_id, figures).await.unwrap());
    }
    // A slot, which is released by its record.
    let second = Request { refunds: Refunds::Never, ..request("bob", "acme", 0) };
    let slot = engine.decide_once(&rules, &second, held_under);
    let slot = slot.await.unwrap().unwrap();
    seen.push(engine.decide_once(&rules, &second, figures).await.unwrap());
    engine.release_reservation(slot).await.unwrap();
    seen.push(engine.decide_once(&rules, &second, figures).await.unwrap());
    // A reservation, and a charge that is settled by its receipts.
    let reserving = Request { reserve: Some(60 * SECOND), ..request("eve", "", 60) };
    let id = engine.decide_once(&rules, &reserving, held_under);
    let id = id.await.unwrap().unwrap();
    let actual = Actual::from(Amounts::tokens(20));
    seen.push(format!("{:?}", engine.settle_reservation(id, actual).await.unwrap()));
    let charged = request("eve", "", 60);
    let decision = engine.decide(&rules, &charged, Mode::Charge).await.unwrap();
    let receipts = engine.receipts(&charged, &decision);
    seen.push(format!("{:?}", engine.settle(7, &receipts, actual).await.unwrap()));
    let batch = [request("eve", "", 40), request("eve", "", 40), request("bob", "", 1)];
    let show = |decided: Result<&Decision<'_>, EngineError>| seen.push(figures(decided.unwrap()));
    engine.decide_batch(&rules, &batch, show).await;
    for hits in [Hits::Charge(2), Hits::Check, Hits::GiveBack(1)] {
        let request = request("ann", "", 0);
        let parts = [Part { request, hits, has_own_hits: false, limit_override: None }];
        let together = engine.decide_together(&rules, &parts).await.unwrap();
        seen.extend(together.parts.iter().map(figures));
    }
    seen
}

#[tokio::test]
async fn an_awaited_store_decides_as_one_that_answers_at_once() {
    let at_once = history(&engine(MemoryStore::new(10_000))).await;
    assert_eq!(at_once.len(), 15);
    for is_in_process in [false, true] {
        assert_eq!(history(&engine(Awaited::new(is_in_process))).await, at_once);
    }
}

#[test]
fn without_a_future_an_awaited_store_decides_nothing() {
    let engine = engine(Awaited::new(true));
    let rules = engine.rules();
    let asked = request("ann", "", 1);
    assert!(!engine.answers_now());
    assert!(engine.decide_now(&rules, &asked, Mode::Charge).is_none());
    assert!(engine.decide_once_now(&rules, &asked, figures).is_none());
    assert!(engine.decide_together_now(&rules, &[]).is_none());
}

#[test]
fn without_a_future_a_store_that_answers_at_once_decides_the_same() {
    let engine = engine(MemoryStore::new(10_000));
    let rules = engine.rules();
    let asked = request("ann", "acme", 30);
    let first = engine.decide_now(&rules, &asked, Mode::Charge).unwrap().unwrap();
    assert_eq!(figures(&first), "Allowed WITHIN_LIMITS [1, 30, 1]");
    let second = engine.decide_once_now(&rules, &asked, figures).unwrap().unwrap();
    assert_eq!(second, "Denied HIT_SLOTS_LIMIT [1, 30, 1]");
    let receipts = engine.receipts(&asked, &first);
    let actual = Actual::from(Amounts::tokens(10));
    assert_eq!(engine.settle_now(7, &receipts, actual).unwrap().unwrap().refunded.tokens, Some(20));
    assert_eq!(engine.settle_now(7, &receipts, actual).unwrap().unwrap().refunded.tokens, Some(20));
    let third = engine.decide_now(&rules, &asked, Mode::Charge).unwrap().unwrap();
    assert_eq!(figures(&third), "Allowed WITHIN_LIMITS [1, 40, 2]", "settled once");
    let receipts = engine.receipts(&asked, &third);
    engine.release_now(8, &receipts).unwrap().unwrap();
    let fourth = engine.decide_now(&rules, &asked, Mode::Peek).unwrap().unwrap();
    assert_eq!(figures(&fourth), "Allowed WITHIN_LIMITS [0, 10, 1]");
    let with_id = Request { request_id: Some("id"), ..asked };
    assert!(engine.decide_once_now(&rules, &with_id, figures).is_none(), "another may hold the id");
}
