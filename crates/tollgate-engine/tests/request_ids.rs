//! Repeated request ids, while rules change.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::sync::Arc;

use tollgate_core::SECOND;
use tollgate_engine::{Engine, EngineError, ManualClock, REMEMBERED_FOR, Request};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::{MemoryStore, Mode};

const START: u64 = 1_794_700_800 * SECOND;

fn rules(limit: u64, rest: &str) -> RuleSet {
    let yaml = format!(
        "default: false\n{rest}\nrules:\n\
         - {{rule_id: calls, identifier_type: user_id, limit: {limit}, window: 1d, algorithm: fixed_window}}\n\
         - {{rule_id: slots, identifier_type: user_id, unit: concurrency, limit: 9, slot_ttl: 1h}}"
    );
    RuleSet::from_yaml(&yaml, "rules").unwrap()
}

fn request(id: Option<&str>) -> Request<'_> {
    let mut request = Request { request_id: id, ..Request::default() };
    request.attributes.set(Known::UserId, "ann");
    request
}

/// Whether it is allowed, what is left, and what it holds.
type Shown = (bool, u64, Option<u128>);

async fn ask(engine: &Engine<MemoryStore>, id: &str) -> Result<Shown, EngineError> {
    let rules = engine.rules();
    let request = request(Some(id));
    let show = |decision: &tollgate_engine::Decision<'_>| {
        let calls = decision.scopes().find(|scope| scope.rule.id == "calls");
        let left = calls.map_or(u64::MAX, |scope| scope.outcome.status.remaining);
        (decision.is_allowed(), left, decision.reservation_id())
    };
    engine.decide_once(&rules, &request, show).await
}

/// How much of the first rule is used.
async fn used(engine: &Engine<MemoryStore>) -> u64 {
    let (rules, request) = (engine.rules(), request(None));
    let decision = engine.decide(&rules, &request, Mode::Peek).await.unwrap();
    decision.scopes().find(|scope| scope.rule.id == "calls").unwrap().outcome.status.used
}

/// An answer is remembered for a minute; the rules that made it are not kept alive by it.
#[tokio::test]
async fn a_remembered_answer_keeps_no_rules_alive() {
    let clock = Arc::new(ManualClock::new(START));
    let engine =
        Engine::new(MemoryStore::new(100), Arc::<ManualClock>::clone(&clock), rules(5, ""));
    let first = ask(&engine, "a").await.unwrap();
    assert_eq!((first.0, first.1), (true, 4));
    assert!(first.2.is_some(), "a slot");
    assert_eq!(ask(&engine, "a").await.unwrap(), first);
    let mut replaced = Vec::new();
    for limit in 6..10 {
        replaced.push(Arc::downgrade(&engine.rules()));
        engine.swap_rules(rules(limit, ""));
        ask(&engine, &limit.to_string()).await.unwrap();
    }
    let alive = replaced.iter().filter(|rules| rules.strong_count() > 0).count();
    assert_eq!(alive, 0, "of {} rule sets that were replaced", replaced.len());

    // The same limits: the first answer again, and no charge.
    assert_eq!(ask(&engine, "a").await.unwrap(), first);
    assert_eq!(used(&engine).await, 5);
    // Other limits: it stays allowed and holds what it held.
    engine.swap_rules(RuleSet::from_yaml("default: false\nrules: []", "rules").unwrap());
    assert_eq!(ask(&engine, "a").await.unwrap(), (true, u64::MAX, first.2));
    // It is not remembered for longer because it was repeated.
    engine.swap_rules(rules(9, ""));
    clock.advance(REMEMBERED_FOR);
    assert_eq!(ask(&engine, "a").await.unwrap().1, 3);
    assert_eq!(used(&engine).await, 6);
}

/// A caller that was denied since is refused, also under an id that was admitted before.
#[tokio::test]
async fn a_deny_list_holds_for_repeated_requests_too() {
    let clock = Arc::new(ManualClock::new(START));
    let engine = Engine::new(MemoryStore::new(100), clock, rules(5, ""));
    assert!(ask(&engine, "a").await.unwrap().0);
    engine.swap_rules(rules(5, "deny_list: [\"user_id:ann\"]"));
    assert!(!ask(&engine, "a").await.unwrap().0);
}
