//! Slots of rules that pass requests uncounted while the store does not answer.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::TcpListener;
use std::sync::Arc;

use tollgate_core::SECOND;
use tollgate_engine::{Decision, Engine, EngineError, ManualClock, Refunds, Request};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::redis::{RedisOptions, RedisStore};
use tollgate_store::resilient::{Resilient, ResilientOptions};

const RULES: &str = "
default: false
rules:
- {rule_id: slots, identifier_type: tenant_id, unit: concurrency, limit: 1, on_store_failure: open}
";

fn held_under(decision: &Decision<'_>) -> Option<u128> {
    decision.reservation_id()
}

/// The caller cannot know that no slot is held: it releases what it was given, and may repeat that.
#[tokio::test]
async fn what_passed_uncounted_is_released_like_a_slot() {
    let nobody_listens = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options =
        RedisOptions { urls: vec![format!("redis://{nobody_listens}")], ..RedisOptions::default() };
    let store = RedisStore::new(&options).unwrap();
    let store = Resilient::new(store, ResilientOptions::new("node".to_owned()));
    let clock = Arc::new(ManualClock::new(1_000_000 * SECOND));
    let engine = Engine::new(store, clock, RuleSet::from_yaml(RULES, "t").unwrap());
    let rules = engine.rules();
    let mut request = Request { refunds: Refunds::Never, ..Request::default() };
    request.attributes.set(Known::TenantId, "acme");
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = engine.decide_once(&rules, &request, held_under);
        ids.push(id.await.unwrap().unwrap());
    }
    for id in ids {
        for _ in 0..2 {
            engine.release_reservation(id).await.unwrap();
        }
    }
    let unknown = engine.release_reservation(0).await;
    assert!(!matches!(unknown, Ok(_) | Err(EngineError::ReservationUnknown)), "the store decides");
}
