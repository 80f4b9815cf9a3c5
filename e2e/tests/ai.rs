//! Models behind the gateway: limited by tokens, on an estimate first, then by what they truly used.

mod answers;
mod anthropic;
mod budget;
mod chaos;
mod clients;
mod doors;
mod examples;
mod fallbacks;
mod hard_budget;
mod intake;
mod leaving;
mod model_choice;
mod places;
mod shapes;
mod shares;
mod streams;
mod top_ups;

use serde_json::{Value, json};
use tollgate_e2e::{ClosedPort, EventStream, Model, Server, ServerBuilder, eventually};

/// The SHA-256 of `sk-acme` and of `sk-other`.
pub(crate) const KEYS: &str = "
sha256:ACME tenant_id=acme user_id=ann
sha256:OTHER tenant_id=other
";

pub(crate) const PATH: &str = "/v1/chat/completions";

/// Tokens and requests, an hour each, for everybody together.
pub(crate) fn rules(tokens: u64, requests: u64) -> String {
    format!(
        "default: false
rules:
  - {{rule_id: tokens, identifier_type: global, unit: tokens, limit: {tokens}, window: 365d, algorithm: fixed_window}}
  - {{rule_id: requests, identifier_type: global, limit: {requests}, window: 365d, algorithm: fixed_window}}
"
    )
}

/// A gateway in front of a model, with these further lines under `gateway`.
pub(crate) fn gateway(model: &Model, rules: &str, more: &str) -> ServerBuilder {
    gateway_to(&model.url(), rules, more)
}

fn gateway_to(url: &str, rules: &str, more: &str) -> ServerBuilder {
    let config = format!(
        "gateway:
  pools: {{gpu: {{targets: [{{url: '{url}'}}]}}}}
  routes: [{{name: ai, kind: openai, paths: ['/v1/*'], pool: gpu}}]
{more}"
    );
    ServerBuilder::default().gateway().rules(rules).config(&config)
}

/// A short conversation: 8 tokens for two messages' beginnings, and one for four characters.
pub(crate) fn chat(stand_in: &Value) -> Value {
    json!({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "abcd"}], "metadata": {"stand_in": stand_in}})
}

pub(crate) fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

pub(crate) fn post(server: &Server, body: &Value) -> EventStream {
    EventStream::post(server.gateway_addr(), PATH, &[], body).expect("an answer")
}

/// Answers that must be read to their end before one that is left is paid as far as it was seen.
pub(crate) const WHOLE_ANSWERS: u64 = 8;

/// From then on clients may leave half as many tokens of answers unseen as these have. Gives what they cost.
pub(crate) fn earn_allowance(server: &Server, tokens: u64) -> u64 {
    let body = with(chat(&json!({"tokens": tokens})), "max_tokens", json!(tokens));
    for _ in 0..WHOLE_ANSWERS {
        assert_eq!(post(server, &body).json()["usage"]["total_tokens"], 9 + tokens);
    }
    WHOLE_ANSWERS * (9 + tokens)
}

/// What is counted on a rule, as a request that charges nothing sees it.
pub(crate) fn used(server: &Server, rule: &str) -> u64 {
    let peeked = server.client().post("/rate-limit/peek", &json!({"tokens": 1})).json();
    let scopes = peeked["scopes"].as_array().expect("scopes").clone();
    let scope = scopes.iter().find(|scope| scope["ruleId"] == rule);
    let scope = scope.unwrap_or_else(|| panic!("no rule {rule} in {peeked}"));
    scope["current"].as_u64().expect("a count")
}

#[test]
fn a_plain_answer_is_settled_at_what_it_used() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let mut answer = post(&server, &chat(&json!({"tokens": 5})));
    assert_eq!(answer.status, 200);
    // Nine for the prompt and twenty for the answer are reserved.
    assert_eq!(answer.header("x-ratelimit-limit-tokens"), Some("1000"));
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), Some("971"));
    assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("100"));
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("99"));
    for reset in ["x-ratelimit-reset-tokens", "x-ratelimit-reset-requests"] {
        assert!(answer.header(reset).is_some_and(|text| text.ends_with('s')), "{reset}");
    }
    let body = answer.json();
    assert_eq!(body["usage"]["total_tokens"], 14);
    assert_eq!(body["choices"][0]["message"]["content"], "tok ".repeat(5));
    assert_eq!(used(&server, "tokens"), 14, "settled before the answer's end was sent on");
    assert_eq!(used(&server, "requests"), 1);
    assert_eq!(model.ledger().tokens, 14);
    // The client's own bytes arrived.
    let sent = chat(&json!({"tokens": 5})).to_string();
    assert_eq!(String::from_utf8_lossy(&model.arrived()[0].body), sent);
}

#[test]
fn a_refusal_is_in_the_words_of_the_api_and_never_arrives() {
    let model = Model::start();
    let server = gateway(&model, &rules(30, 100), "").start();
    assert_eq!(post(&server, &chat(&json!({"tokens": 5}))).status, 200);
    eventually("it is settled", || used(&server, "tokens") == 14);
    let mut refused = post(&server, &chat(&json!({})));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-ratelimit-remaining-tokens"), Some("16"));
    let seconds: u64 = refused.header("retry-after").and_then(|it| it.parse().ok()).expect("when");
    let millis: u64 =
        refused.header("retry-after-ms").and_then(|it| it.parse().ok()).expect("when");
    assert!(
        millis.div_ceil(1_000) == seconds && seconds <= 365 * 86_400,
        "{millis} ms, {seconds} s"
    );
    let error = refused.json()["error"].clone();
    assert_eq!((&error["type"], &error["code"]), (&json!("tokens"), &json!("rate_limit_exceeded")));
    let message = error["message"].as_str().expect("a message");
    for part in ["\"tokens\"", "14 of 30 tokens used", "costs 29"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert_eq!(used(&server, "requests"), 1, "refused by one, charged by none");
    // What can never pass is not worth another try.
    let mut never = post(&server, &with(chat(&json!({})), "max_tokens", json!(500)));
    assert_eq!((never.status, never.header("x-should-retry")), (429, Some("false")));
    assert_eq!(never.header("retry-after"), None);
    assert!(never.json()["error"]["message"].as_str().is_some_and(|it| it.contains("never")));
    assert_eq!(model.ledger().requests, 1);
}

#[test]
fn what_is_wrong_with_a_request_is_said_and_costs_nothing() {
    let model = Model::start();
    let more = "  openai: {max_body_bytes: 2000, models: [{name: m}, {name: big, aliases: [best]}], list_models: true}";
    let server = gateway(&model, &rules(1_000, 100), more).start();
    let long = "x".repeat(3_000);
    for (body, status, code, param) in [
        (json!({"model": "m", "x": long}), 413, "body_too_large", Value::Null),
        (json!([1]), 400, "invalid_request", Value::Null),
        (json!({"messages": []}), 400, "invalid_request", json!("model")),
        (json!({"model": "m", "max_tokens": -1}), 400, "invalid_request", json!("max_tokens")),
        (json!({"model": "other"}), 404, "model_not_found", json!("model")),
    ] {
        let mut answer = post(&server, &body);
        let said = answer.json();
        assert_eq!(answer.status, status, "{said}");
        assert_eq!((&said["error"]["code"], &said["error"]["param"]), (&json!(code), &param));
        assert_eq!(said["error"]["type"], "invalid_request_error");
    }
    assert_eq!((used(&server, "requests"), model.ledger().requests), (0, 0));
    let mut client = tollgate_e2e::Client::connect(server.gateway_addr()).expect("a connection");
    let listed = client.get("/v1/models").json();
    assert_eq!((&listed["data"][0]["id"], &listed["data"][1]["id"]), (&json!("m"), &json!("big")));
    assert_eq!(client.get("/v1/models/big").json()["id"], "big");
    assert_eq!(client.get("/v1/models/none").status, 404);
    assert_eq!(model.ledger().requests, 0, "answered here");
}

#[test]
fn every_call_is_estimated_and_settled() {
    let model = Model::start();
    let server = gateway(&model, &rules(10_000, 100), "").start();
    let text = "xyz ".repeat(10);
    let mut unreported = 0;
    for (path, body, reserved, total) in [
        ("/v1/completions", json!({"model": "m", "prompt": text, "max_tokens": 7}), 17, 15),
        ("/v1/embeddings", json!({"model": "m", "input": [text, text]}), 22, 20),
        ("/v1/responses", json!({"model": "m", "input": text, "max_output_tokens": 9}), 23, 19),
    ] {
        for is_stream in [false, true] {
            // A stream of embeddings is no call of the API: its answer reports nothing, and the estimate stays.
            let extra = if is_stream && path == "/v1/embeddings" { reserved - total } else { 0 };
            let total = total + extra;
            unreported += extra;
            let body = with(body.clone(), "stream", json!(is_stream));
            let was = used(&server, "tokens");
            let mut answer =
                EventStream::post(server.gateway_addr(), path, &[], &body).expect("an answer");
            assert_eq!(answer.status, 200, "{path}");
            let remaining = answer.header("x-ratelimit-remaining-tokens").map(str::to_owned);
            assert_eq!(remaining, Some((10_000 - was - reserved).to_string()), "{path}");
            let (rest, error) = answer.rest();
            assert!(error.is_none() && !rest.is_empty(), "{path}: {error:?}");
            let what = format!("{path} is settled, stream {is_stream}");
            eventually(&what, || used(&server, "tokens") == was + total);
        }
    }
    assert_eq!(used(&server, "tokens"), model.ledger().tokens + unreported);
}

#[test]
fn an_upstream_that_fails_costs_a_request_and_the_prompt_unless_it_did_no_work() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    // A prompt of 9 tokens.
    let cases = [(500_u16, 9), (429, 9), (400, 18), (404, 18), (503, 27), (504, 36), (401, 36)];
    for (nth, (status, paid)) in (1..).zip(cases) {
        let mut answer = post(&server, &chat(&json!({"status": status})));
        assert_eq!(answer.status, status);
        assert_eq!(answer.json()["error"]["message"], "as requested", "the upstream's own words");
        eventually("it is settled", || used(&server, "tokens") == paid);
        assert_eq!(used(&server, "requests"), nth);
    }
    // Nobody there: nothing was done for it, and nothing is charged.
    let nobody = ClosedPort::new();
    let server = gateway_to(&nobody.url(), &rules(1_000, 100), "").start();
    let mut answer = post(&server, &chat(&json!({})));
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["type"], "server_error");
    assert_eq!((used(&server, "tokens"), used(&server, "requests")), (0, 0));
}

#[test]
fn a_users_name_in_a_body_only_divides_who_is_known() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = dir.path().join("keys");
    std::fs::write(&keys, registered()).expect("a file");
    let model = Model::start();
    let rules = "
default: false
rules:
  - {rule_id: users, identifier_type: composite, key_by: [tenant_id, end_user], limit: 1, window: 365d, algorithm: fixed_window}
  - {rule_id: anonymous, identifier_type: composite, key_by: [end_user], limit: 1, window: 365d, algorithm: fixed_window, applies_to: {tenants: [nobody]}}
";
    let url = model.url();
    let config = format!(
        "identity: {{api_keys_file: '{}', api_key_as_bearer: true}}
gateway:
  pools: {{gpu: {{targets: [{{url: '{url}'}}]}}}}
  routes: [{{name: ai, kind: openai, pool: gpu}}]
  openai: {{anonymous: allow}}",
        keys.display()
    );
    let server = ServerBuilder::default().gateway().rules(rules).config(&config).start();
    let ask = |key: &str, user: &str| {
        let bearer = format!("Bearer {key}");
        let headers: &[(&str, &str)] = &[("authorization", &bearer)];
        let headers = if key.is_empty() { &[] } else { headers };
        let body = with(chat(&json!({})), "user", json!(user));
        EventStream::post(server.gateway_addr(), PATH, headers, &body).expect("an answer").status
    };
    assert_eq!((ask("sk-acme", "u1"), ask("sk-acme", "u1")), (200, 429));
    assert_eq!((ask("sk-acme", "u2"), ask("sk-other", "u1")), (200, 200), "counters of their own");
    assert_eq!((ask("", "u1"), ask("", "u1")), (200, 200), "a stranger's user means nothing");
    assert_eq!(ask("sk-unknown", "u1"), 401);
    let seen = model.arrived();
    assert!(seen.iter().all(|it| it.header("authorization").is_none()), "our keys stay here");
}

/// The file of registered keys.
pub(crate) fn registered() -> String {
    let digest = |key: &str| {
        let output = std::process::Command::new("sh")
            .args(["-c", &format!("printf %s {key} | sha256sum")])
            .output()
            .expect("a digest");
        String::from_utf8_lossy(&output.stdout)[..64].to_owned()
    };
    KEYS.replace("ACME", &digest("sk-acme")).replace("OTHER", &digest("sk-other"))
}
