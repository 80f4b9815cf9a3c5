//! A model that cannot be reached is replaced by its fallback, decided anew as that model.

use serde_json::json;
use tollgate_e2e::{ClosedPort, EventStream, Model, Server, ServerBuilder, eventually};

use super::{chat, post, used, with};

const RULES: &str = "
default: false
rules:
  - {rule_id: large, identifier_type: global, unit: tokens, limit: 1000, window: 365d, algorithm: fixed_window, applies_to: {models: [large]}}
  - {rule_id: small, identifier_type: global, unit: tokens, limit: 1000, window: 365d, algorithm: fixed_window, applies_to: {models: [small]}}
  - {rule_id: tokens, identifier_type: global, unit: tokens, limit: 100000, window: 365d, algorithm: fixed_window}
  - {rule_id: requests, identifier_type: global, limit: 1000, window: 365d, algorithm: fixed_window}
";

fn start(large: &str, small: &str, health: &str) -> Server {
    let config = format!(
        "gateway:
  pools:
    gpu: {{targets: [{{url: '{large}'}}]{health}}}
    cpu: {{targets: [{{url: '{small}'}}]}}
  routes: [{{name: ai, kind: openai, paths: ['/v1/*'], pool: gpu}}]
  openai:
    models:
      - {{name: large, pool: gpu, upstream_name: org/large, fallback: small}}
      - {{name: small, pool: cpu, upstream_name: org/small}}"
    );
    ServerBuilder::default().gateway().rules(RULES).config(&config).start()
}

fn of_model(server: &Server, model: &str) -> u64 {
    let asked = json!({"tokens": 1, "modelId": model});
    let peeked = server.client().post("/rate-limit/peek", &asked).json();
    let scopes = peeked["scopes"].as_array().expect("scopes").clone();
    let scope = scopes.iter().find(|scope| scope["ruleId"] == model).expect("a rule").clone();
    scope["current"].as_u64().expect("a count")
}

#[test]
fn an_upstream_that_refuses_connections_is_replaced() {
    let (nobody, model) = (ClosedPort::new(), Model::start());
    let server = start(&nobody.url(), &model.url(), "");
    for nth in 1..=8 {
        let mut answer = post(&server, &with(chat(&json!({"tokens": 5})), "model", json!("large")));
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-tollgate-model"), Some("small"));
        assert_eq!(answer.json()["model"], "small");
        eventually("it is settled as the model that it is", || {
            of_model(&server, "small") == 14 * nth
        });
        assert_eq!((of_model(&server, "large"), used(&server, "requests")), (0, nth));
    }
    let body: serde_json::Value = serde_json::from_slice(&model.arrived()[0].body).expect("JSON");
    assert_eq!(body["model"], "org/small");
    // Where the last of them cannot be reached either, nothing is charged.
    let also_nobody = ClosedPort::new();
    let server = start(&nobody.url(), &also_nobody.url(), "");
    let mut answer = post(&server, &with(chat(&json!({})), "model", json!("large")));
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (503, &json!("server_error")));
    assert_eq!((used(&server, "tokens"), used(&server, "requests")), (0, 0));
}

#[test]
fn an_upstream_that_is_unhealthy_is_replaced_without_being_asked() {
    let (sick, model) = (Model::start(), Model::start());
    // The stand-in answers 400 to what is no JSON.
    let health = ", health: {path: /health, interval_ms: 20, timeout_ms: 5000, unhealthy_after: 1}";
    let server = start(&sick.url(), &model.url(), health);
    let body = with(chat(&json!({"tokens": 5})), "model", json!("large"));
    eventually("it is found unhealthy", || {
        let answer = post(&server, &body);
        answer.status == 200 && answer.header("x-tollgate-model") == Some("small")
    });
    let before = sick.ledger().served;
    assert_eq!(post(&server, &body).header("x-tollgate-model"), Some("small"));
    assert_eq!(sick.ledger().served, before);
}

/// A client that may not use the fallback did not ask for it: the refusal is about the model that it did ask for.
#[test]
fn a_fallback_that_a_key_may_not_use_is_not_named() {
    let (model, nobody) = (Model::start(), ClosedPort::new());
    for (large, status, code) in
        [(model.url(), 429, "insufficient_quota"), (nobody.url(), 503, "no_upstream")]
    {
        let config = format!(
            "gateway:
  pools: {{gpu: {{targets: [{{url: '{large}'}}]}}, cpu: {{targets: [{{url: '{}'}}]}}}}
  routes: [{{name: ai, kind: openai, paths: ['/v1/*'], pool: gpu}}]
  openai:
    models:
      - {{name: large, pool: gpu, fallback: small, fallback_rules: [virtual_key.budget]}}
      - {{name: small, pool: cpu}}
prices: [{{model: '*', currency: USD, per_million: {{input: '1', output: '1'}}}}]",
            model.url()
        );
        let rules = "default: false\nrules: []\n";
        let server = ServerBuilder::default().gateway().rules(rules).config(&config).start();
        let amount = if status == 429 { "0.00001" } else { "1" };
        let made = server.admin().put(
            "keys",
            &json!({"name": "one", "models": ["large"],
                "budget": {"amount": amount, "currency": "USD", "calendar": "year"}}),
        );
        let bearer = format!("Bearer {}", made["secret"].as_str().expect("a secret"));
        let body = with(chat(&json!({})), "model", json!("large"));
        let headers = [("authorization", bearer.as_str())];
        let mut answer = EventStream::post(server.gateway_addr(), super::PATH, &headers, &body)
            .expect("an answer");
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (status, &json!(code)), "{error}");
    }
}
