//! A model that is full: who waits, who is next, who has what.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};
use tollgate_e2e::{EventStream, Model, Server, ServerBuilder, eventually};

use super::{PATH, chat, gateway, post, registered, with};

const NO_RULES: &str = "default: false\nrules: []";

/// Slots of the model, in the store, which requests wait for.
const SLOTS: &str = "
default: false
rules:
  - {rule_id: slots, identifier_type: composite, key_by: [model_id], unit: concurrency, algorithm: concurrency, limit: 4, slot_ttl: 60s, action: throttle, max_delay_ms: 20000}
";

/// Requests without a key are served.
const OPEN: &str = "  openai: {anonymous: allow}";

fn start(model: &Model, rules: &str, pool: &str, more: &str) -> Server {
    let url = model.url();
    let builder = ServerBuilder::default().gateway().rules(rules);
    let keys = builder.file("keys", &registered());
    let config = format!(
        "identity: {{api_keys_file: '{}', api_key_as_bearer: true}}
gateway:
  pools: {{gpu: {{targets: [{{url: '{url}'}}]{pool}}}}}
  routes: [{{name: ai, kind: openai, pool: gpu}}]
{more}",
        keys.display()
    );
    builder.config(&config).start()
}

fn ask(server: &Server, key: &str, body: &Value) -> std::io::Result<u16> {
    let bearer = format!("Bearer {key}");
    let mut answer =
        EventStream::post(server.gateway_addr(), PATH, &[("authorization", &bearer)], body)?;
    let status = answer.status;
    let (_, error) = answer.rest();
    error.map_or(Ok(status), Err)
}

fn finished(model: &Model, key: &str) -> u64 {
    model.ledger().marks.get(key).copied().unwrap_or(0)
}

/// Of `count` completions after the first hundred, how many were each tenant's, where one sends ten times as much.
fn shared(model: &Model, server: &Server, count: u64) -> (u64, u64) {
    let stop = AtomicBool::new(false);
    let refused = AtomicU64::new(0);
    let send = |key: &'static str| {
        while !stop.load(Ordering::Relaxed) {
            let body = chat(&json!({"tokens": 1, "delay_ms": 2, "mark": key}));
            if ask(server, key, &body).ok() != Some(200) {
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let counts = std::thread::scope(|scope| {
        for _ in 0..80 {
            scope.spawn(|| send("sk-other"));
        }
        for _ in 0..8 {
            scope.spawn(|| send("sk-acme"));
        }
        eventually("both are at it", || model.ledger().finished >= 100);
        let before = (finished(model, "sk-acme"), finished(model, "sk-other"));
        let begun = model.ledger().finished;
        while model.ledger().finished < begun + count {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let after = (finished(model, "sk-acme"), finished(model, "sk-other"));
        stop.store(true, Ordering::Relaxed);
        (after.0 - before.0, after.1 - before.1)
    });
    assert_eq!(refused.load(Ordering::Relaxed), 0, "all found their turn; {}", server.log());
    counts
}

fn is_within_5_percent(counts: (u64, u64), weights: (u64, u64)) -> bool {
    let (one, other) = counts;
    let expected = (one + other) * weights.0 / (weights.0 + weights.1);
    one.abs_diff(expected) * 20 <= expected
}

#[test]
fn a_full_model_is_shared_by_weight_however_much_one_sends() {
    let _alone = tollgate_e2e::alone();
    let model = Model::start();
    model.forget_arrivals();
    let server = start(&model, NO_RULES, ", max_concurrency: 4", "");
    let counts = shared(&model, &server, 2_000);
    println!("equal weights: {counts:?}");
    assert!(is_within_5_percent(counts, (1, 1)), "{counts:?}");
    assert!(model.ledger().most_active <= 4, "{:?}", model.ledger());
    let more = "  openai: {tenant_weights: {acme: 3}}";
    let server = start(&model, NO_RULES, ", max_concurrency: 4", more);
    let counts = shared(&model, &server, 2_000);
    println!("weights of 3 to 1: {counts:?}");
    assert!(is_within_5_percent(counts, (3, 1)), "{counts:?}");
}

#[test]
fn slots_of_a_rule_are_waited_for_in_the_same_way() {
    let _alone = tollgate_e2e::alone();
    let model = Model::start();
    model.forget_arrivals();
    let server = start(&model, SLOTS, "", "");
    let counts = shared(&model, &server, 1_000);
    println!("slots of a rule: {counts:?}");
    assert!(is_within_5_percent(counts, (1, 1)), "{counts:?}");
    assert!(model.ledger().most_active <= 4, "{:?}", model.ledger());
}

#[test]
fn what_an_idle_tenant_leaves_is_used_and_given_back() {
    let _alone = tollgate_e2e::alone();
    let model = Model::start();
    let server = start(&model, NO_RULES, ", max_concurrency: 2", "");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let send = |key: &'static str| {
            while !stop.load(Ordering::Relaxed) {
                let _ = ask(&server, key, &chat(&json!({"tokens": 1, "delay_ms": 2, "mark": key})));
            }
        };
        for _ in 0..20 {
            scope.spawn(move || send("sk-other"));
        }
        eventually("one has all of it", || finished(&model, "sk-other") >= 200);
        for _ in 0..20 {
            scope.spawn(move || send("sk-acme"));
        }
        eventually("the other is back", || finished(&model, "sk-acme") >= 1);
        let (own, others) = (finished(&model, "sk-acme"), finished(&model, "sk-other"));
        eventually("it goes on", || finished(&model, "sk-acme") >= own + 100);
        let meanwhile = finished(&model, "sk-other") - others;
        stop.store(true, Ordering::Relaxed);
        // From its first completion on it has its half.
        assert!((80..=125).contains(&meanwhile), "{meanwhile} of the other to 100");
    });
}

#[test]
fn the_line_is_bounded_in_number_and_time_and_who_leaves_leaves_it() {
    let model = Model::start();
    let server =
        start(&model, NO_RULES, ", max_concurrency: 1, max_waiting: 1, max_wait_ms: 200", OPEN);
    let hang = with(chat(&json!({"hang_after": 1})), "stream", json!(true));
    let first = post(&server, &hang);
    assert_eq!(first.status, 200);
    let metrics = server.client().get("/metrics").text();
    for (state, count) in [("held", 1), ("waiting", 0), ("limit", 1)] {
        let line =
            format!("rate_limiter_gateway_pool_places{{pool=\"gpu\",state=\"{state}\"}} {count}");
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
    // A request that waits for as long as it may is refused with a retry-after.
    let mut late = post(&server, &chat(&json!({})));
    assert_eq!(late.status, 429);
    assert_eq!(late.header("retry-after"), Some("1"));
    assert!(late.header("retry-after-ms").is_some());
    let error = late.json()["error"].clone();
    assert_eq!(error["code"], "model_busy");
    assert!(error["message"].as_str().is_some_and(|it| it.contains("no place became free")));
    // The first goes: its place is free.
    drop(first);
    eventually("it is free again", || post(&server, &chat(&json!({}))).status == 200);
    assert_eq!(model.ledger().requests, 2, "who waited in vain never arrived");
}

#[test]
fn a_full_pool_or_a_rule_leads_to_the_fallback() {
    let (large, small) = (Model::start(), Model::start());
    let config = format!(
        "gateway:
  pools:
    large: {{targets: [{{url: '{}'}}], max_concurrency: 1}}
    small: {{targets: [{{url: '{}'}}]}}
  routes: [{{name: ai, kind: openai, pool: large}}]
  openai:
    models:
      - {{name: m, upstream_name: org/large, fallback: tiny, fallback_rules: [cap]}}
      - {{name: tiny, pool: small, aliases: [t]}}",
        large.url(),
        small.url()
    );
    let rules = "
default: false
rules:
  - {rule_id: cap, identifier_type: composite, key_by: [model_id], unit: tokens, limit: 192, window: 365d, algorithm: fixed_window, applies_to: {models: [m]}}
  - {rule_id: all, identifier_type: global, limit: 13, window: 365d, algorithm: fixed_window}
";
    let server = ServerBuilder::default().gateway().rules(rules).config(&config).start();
    assert_eq!(super::earn_allowance(&server, 10), 152);
    let hang = with(chat(&json!({"hang_after": 1})), "stream", json!(true));
    let first = post(&server, &hang);
    assert_eq!((first.status, first.header("x-tollgate-model")), (200, None));
    let sent: Value = serde_json::from_slice(&large.arrived()[8].body).expect("JSON");
    assert_eq!(sent["model"], "org/large", "under the name that it has there");
    // The cap has 11 of 192 left: the rule leads on.
    let mut second = post(&server, &chat(&json!({})));
    assert_eq!((second.status, second.header("x-tollgate-model")), (200, Some("tiny")));
    assert_eq!(second.json()["model"], "tiny");
    drop(first);
    // Of the 29 that were reserved, what was not used is back, and so is the place.
    let free = "rate_limiter_gateway_pool_places{pool=\"large\",state=\"held\"} 0";
    eventually("it is settled, and its place is free", || {
        let body = json!({"modelId": "m", "tokens": 1});
        let peeked = server.client().post("/rate-limit/peek", &body).json();
        let scopes = peeked["scopes"].as_array().expect("scopes").clone();
        let cap = scopes.iter().find(|scope| scope["ruleId"] == "cap").expect("the cap");
        let metrics = server.client().get("/metrics").text();
        cap["current"].as_u64() < Some(181) && metrics.contains(free)
    });
    // The pool is full: so does that.
    let small_one = with(chat(&json!({"hang_after": 1})), "max_tokens", json!(2));
    let third = post(&server, &with(small_one, "stream", json!(true)));
    assert_eq!((third.status, third.header("x-tollgate-model")), (200, None));
    let fourth = post(&server, &with(chat(&json!({})), "max_tokens", json!(2)));
    assert_eq!((fourth.status, fourth.header("x-tollgate-model")), (200, Some("tiny")));
    assert_eq!((large.ledger().requests, small.ledger().requests), (10, 2));
    // A rule that is not listed refuses.
    assert_eq!(post(&server, &chat(&json!({}))).status, 200);
    assert_eq!(post(&server, &chat(&json!({}))).status, 429);
}

#[test]
fn aliases_and_names_of_upstreams() {
    let model = Model::start();
    let more = "  openai: {models: [{name: m, aliases: [best], upstream_name: \"org/\\\"m\\\"\"}]}";
    let rules = super::rules(1_000, 100);
    let server = gateway(&model, &rules, more).start();
    let body = r#"{"stream":false, "model" : "best","max_tokens":3,"messages":[]}"#;
    let body: Value = serde_json::from_str(body).expect("JSON");
    let mut answer = post(&server, &body);
    assert_eq!(answer.json()["model"], "m", "as clients call it");
    let sent = String::from_utf8_lossy(&model.arrived()[0].body).into_owned();
    assert_eq!(sent, body.to_string().replace("\"best\"", r#""org/\"m\"""#));
}
