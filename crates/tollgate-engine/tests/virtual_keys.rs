//! Virtual keys: who is refused, and what is charged.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use serde_json::{Value, json};
use tollgate_engine::{Amounts, Enforcement, Engine, ManualClock, Reason, Request};
use tollgate_policy::{Known, RuleSet, VirtualKeys};
use tollgate_store::{MemoryStore, Mode};

const KEY: &str = "key_0000000000000001";

/// The memory store answers at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store answers at once"),
    }
}

fn engine(more: &Value) -> Engine<MemoryStore> {
    let mut body = json!({"id": KEY, "digest": "1".repeat(64)});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let rules = RuleSet::from_yaml("default: false", "t").unwrap();
    let engine = Engine::new(MemoryStore::new(1_000), clock, rules);
    let bodies = [body];
    let keys = VirtualKeys::default().with_buckets([(0, &bodies[..])]).unwrap();
    engine.swap_virtual_keys(&Arc::new(keys));
    engine
}

fn request<'a>(api_key: &'a str, model: &'a str) -> Request<'a> {
    let mut request = Request::default();
    request.attributes.set(Known::ApiKey, api_key);
    request.attributes.set(Known::ModelId, model);
    request
}

/// Whether a request is allowed, and why; `tokens` are more of one that runs already.
fn decide(
    engine: &Engine<MemoryStore>,
    (api_key, model): (&str, &str),
    tokens: Option<u64>,
) -> (bool, Reason) {
    let rules = engine.rules();
    let request = Request {
        is_more: tokens.is_some(),
        amounts: Amounts { tokens, ..Amounts::NONE },
        ..request(api_key, model)
    };
    let decision = ready(engine.decide(&rules, &request, Mode::Charge)).unwrap();
    (decision.is_allowed(), decision.reason)
}

fn reason(engine: &Engine<MemoryStore>, caller: (&str, &str)) -> (bool, Reason) {
    decide(engine, caller, None)
}

#[test]
fn a_key_is_refused_whether_or_not_limits_are_enforced() {
    let disabled = engine(&json!({"disabled_at": "2026-01-01T00:00:00Z"}));
    let restricted = engine(&json!({"models": ["m"]}));
    for mode in [Enforcement::On, Enforcement::Shadow, Enforcement::Off] {
        disabled.set_enforcement(mode);
        restricted.set_enforcement(mode);
        let invalid = (false, Reason::InvalidApiKey);
        assert_eq!(reason(&disabled, (KEY, "m")), invalid, "{mode:?}");
        assert_eq!(reason(&disabled, ("tg_live_x", "m")), invalid, "{mode:?}");
        let refused = (false, Reason::ModelNotAllowed);
        assert_eq!(reason(&restricted, (KEY, "n")), refused, "{mode:?}");
        assert!(reason(&restricted, (KEY, "m")).0, "{mode:?}");
    }
}

#[test]
fn a_request_under_way_goes_on_and_is_charged() {
    let limits = json!([{"unit": "tokens", "limit": 10, "window": "1h"}]);
    let disabled = engine(&json!({"disabled_at": "2026-01-01T00:00:00Z", "limits": limits}));
    let more = |api_key| decide(&disabled, (api_key, "m"), Some(6));
    assert!(more(KEY).0);
    assert_eq!(more(KEY), (false, Reason::HitLimit), "by the key's own limit");
    assert_eq!(more("tg_live_x"), (false, Reason::InvalidApiKey));
}

#[test]
fn rules_change_without_the_keys() {
    let engine = engine(&json!({"limits": [{"limit": 1, "window": "1h"}]}));
    engine.swap_rules(RuleSet::from_yaml("default: false\nrules: []", "t").unwrap());
    assert!(reason(&engine, (KEY, "m")).0);
    assert_eq!(reason(&engine, (KEY, "m")), (false, Reason::HitLimit));
    let rules = engine.rules();
    let once = Request { request_id: Some("r"), ..request(KEY, "m") };
    let decided = ready(engine.decide_once(&rules, &once, |decision| decision.scopes().count()));
    assert_eq!(decided.unwrap(), 1);
}

#[test]
fn a_repeated_call_is_answered_with_the_limits_of_its_key() {
    let engine = engine(&json!({"limits": [{"limit": 5, "window": "1h"}]}));
    let rules = engine.rules();
    let once = Request { request_id: Some("r"), ..request(KEY, "m") };
    let remaining = || {
        let show = |decision: &tollgate_engine::Decision<'_>| {
            decision.scopes().map(|scope| scope.outcome.status.remaining).collect::<Vec<u64>>()
        };
        ready(engine.decide_once(&rules, &once, show)).unwrap()
    };
    assert_eq!(remaining(), [4]);
    assert_eq!(remaining(), [4], "the first answer, not charged again");
}
