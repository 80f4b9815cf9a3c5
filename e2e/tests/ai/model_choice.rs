//! The model that limits are decided on is the model that the upstream serves.

use serde_json::{Value, json};
use tollgate_e2e::{EventStream, Model, Server, ServerBuilder};

use super::{PATH, chat, with};

/// A gateway with a wide route: every path of the upstream is below it.
fn start(model: &Model, openai: &str) -> Server {
    let rules = "
default: false
rules:
  - {rule_id: small, identifier_type: global, unit: tokens, limit: 1000, window: 365d, algorithm: fixed_window, applies_to: {models: [small]}}
  - {rule_id: large, identifier_type: global, unit: tokens, limit: 0, window: 365d, algorithm: fixed_window, applies_to: {models: [secret-large]}}
";
    let url = model.url();
    let config = format!(
        "gateway:
  pools: {{gpu: {{targets: [{{url: '{url}'}}]}}}}
  routes: [{{name: ai, kind: openai, paths: ['/*'], pool: gpu}}]
  openai: {{{openai}}}"
    );
    ServerBuilder::default().gateway().rules(rules).config(&config).start()
}

fn ask(server: &Server, path: &str, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
    let mut answer =
        EventStream::post(server.gateway_addr(), path, headers, body).expect("an answer");
    (answer.status, answer.json()["error"]["code"].clone())
}

fn small() -> Value {
    with(chat(&json!({"tokens": 1})), "model", json!("small"))
}

#[test]
fn queries_do_not_choose_a_model() {
    let model = Model::start();
    let server = start(&model, "");
    for query in ["model=secret-large", "api-version=1&model=secret-large", "mod%65l=secret-large"]
    {
        let refused = ask(&server, &format!("{PATH}?{query}"), &[], &small());
        assert_eq!(refused, (400, json!("unknown_query")), "{query}");
    }
    assert!(model.arrived().is_empty());
    let azure = "/openai/deployments/small/chat/completions?api-version=2024-10-21";
    for path in [azure, "/v1/chat/completions?"] {
        assert_eq!(ask(&server, path, &[], &small()).0, 200, "{path}");
    }
    let arrived: Vec<String> = model.arrived().into_iter().map(|it| it.path).collect();
    assert_eq!(arrived, [azure, PATH]);
}

#[test]
fn engines_and_deployments_are_models() {
    let model = Model::start();
    let server = start(&model, "");
    for path in [
        "/engines/secret-large/chat/completions",
        "/v1/engines/secret-large/chat/completions",
        "/openai/deployments/secret-large/chat/completions",
    ] {
        assert_eq!(ask(&server, path, &[], &small()), (400, json!("invalid_request")), "{path}");
        let mut unnamed = small();
        unnamed.as_object_mut().expect("an object").remove("model");
        let refused = ask(&server, path, &[], &unnamed);
        assert_eq!(refused, (429, json!("rate_limit_exceeded")), "{path}: its own limit decides");
        let path = path.replace("secret-large", "small");
        assert_eq!(ask(&server, &path, &[], &unnamed).0, 200, "{path}");
    }
    assert_eq!(model.ledger().requests, 3);
    // The upstream's own name stands in the path, too.
    let listed = "models: [{name: small, aliases: [tiny], upstream_name: org/small-7b}]";
    let server = start(&model, listed);
    let mut named = with(small(), "model", json!("tiny"));
    assert_eq!(ask(&server, "/engines/tiny/chat/completions", &[], &named).0, 200);
    let arrived = model.arrived().pop().expect("a request");
    assert_eq!(arrived.path, "/engines/org/small-7b/chat/completions");
    named["model"] = json!("org/small-7b");
    assert_eq!(serde_json::from_slice::<Value>(&arrived.body).expect("JSON"), named);
}

#[test]
fn what_merely_ends_like_a_call_is_not_served() {
    for openai in ["", "other_calls: forward"] {
        let model = Model::start();
        let server = start(&model, openai);
        for path in [
            "/x/chat/completions",
            "/v1/secret-large/chat/completions",
            "/v1/threads/completions",
            "/x/v1/embeddings",
            "/v1/Chat/Completions",
            "/deployments/secret-large/chat/completions",
        ] {
            assert_eq!(ask(&server, path, &[], &small()), (404, json!("unknown_url")), "{path}");
        }
        assert!(model.arrived().is_empty(), "{openai}");
    }
}

#[test]
fn nothing_else_chooses_a_model() {
    let model = Model::start();
    let server = start(&model, "");
    for (name, value) in [
        ("fallbacks", json!(["secret-large"])),
        ("models", json!(["secret-large"])),
        ("user_config", json!({"model_list": []})),
        ("engine", json!("secret-large")),
        ("model", json!("small,secret-large")),
        ("model", json!("small@preset/secret-large")),
        ("tags", json!(["secret"])),
        ("provider", json!("secret")),
        ("providerOptions", json!({"gateway": {"models": ["secret-large"]}})),
        ("options", json!({"model": "secret-large"})),
        ("mock_testing_fallbacks", json!(true)),
    ] {
        let refused = ask(&server, PATH, &[], &with(small(), name, value));
        assert_eq!(refused, (400, json!("invalid_request")), "{name}");
    }
    assert!(model.arrived().is_empty());
    for name in [
        "azureml-model-deployment",
        "x-amzn-sagemaker-target-model",
        "x-gateway-model-name",
        "x-gateway-destination-endpoint",
        "mm-vmodel-id",
        "x-litellm-tags",
        "x-model-id",
    ] {
        assert_eq!(ask(&server, PATH, &[(name, "secret-large")], &small()).0, 200, "{name}");
        let arrived = model.arrived().pop().expect("a request");
        assert_eq!(arrived.header(name), None, "{name}");
    }
}
