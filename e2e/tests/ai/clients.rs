//! The official clients of the API, unchanged.

mod anthropic;

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tollgate_e2e::{Model, Server, ServerBuilder, eventually};
use tollgate_testkit::of_the_tools;

use super::{registered, rules, used};

const TEXT: &str = "tok tok tok tok tok ";

/// Tokens and requests for everybody, and a bucket that one request empties for two seconds.
const SLOW: &str = "
default: false
rules:
  - {rule_id: slow, identifier_type: tenant_id, limit: 1, window: 2s, burst: 1, algorithm: token_bucket}
";

fn start(model: &Model, rules: &str, more: &str) -> Server {
    start_kind(model, "openai", rules, more)
}

fn start_kind(model: &Model, kind: &str, rules: &str, more: &str) -> Server {
    let url = model.url();
    let builder = ServerBuilder::default().gateway().rules(rules);
    let keys = builder.file("keys", &registered());
    let config = format!(
        "identity: {{api_keys_file: '{}', api_key_as_bearer: true}}
gateway:
  pools: {{gpu: {{targets: [{{url: '{url}'}}]}}}}
  routes: [{{name: ai, kind: {kind}, paths: ['/v1/*'], pool: gpu}}]
{more}",
        keys.display()
    );
    builder.config(&config).start()
}

fn here(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ai/clients");
    folder.join(file).display().to_string()
}

fn run(command: Command, server: &Server) -> Value {
    run_at(command, server, "/v1")
}

fn run_at(mut command: Command, server: &Server, base: &str) -> Value {
    command.env("BASE_URL", format!("http://{}{base}", server.gateway_addr()));
    let output = command.output().expect("the client runs");
    let (out, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{error}\n{}", server.log());
    serde_json::from_str(out.trim()).unwrap_or_else(|wrong| panic!("{wrong}: {out} {error}"))
}

fn python(server: &Server, act: &str) -> Value {
    let mut command = Command::new("python3");
    command.arg(here("client.py")).arg(act).env("PYTHONPATH", of_the_tools("openai"));
    run(command, server)
}

fn node(server: &Server, act: &str) -> Value {
    let mut command = Command::new("node");
    let package = of_the_tools("openai-js/node_modules/openai");
    command.arg(here("client.cjs")).arg(act).env("OPENAI_PACKAGE", package);
    run(command, server)
}

#[test]
fn the_python_client_works_unchanged() {
    let model = Model::start();
    let server = start(&model, &rules(10_000, 100), "");
    assert_eq!(python(&server, "plain"), json!({"text": TEXT, "total": 14}));
    let streamed = python(&server, "stream");
    assert_eq!(streamed, json!({"text": TEXT, "usage": [false, false, false, false, false]}));
    assert_eq!(python(&server, "stream_usage"), json!({"total": [14]}));
    assert_eq!(python(&server, "async_stream"), json!({"texts": vec![TEXT; 5]}));
    let others = python(&server, "others");
    let expected = json!({"embedding": 1, "completion": TEXT, "response": TEXT,
        "last_event": "response.completed", "models": ["own"]});
    assert_eq!(others, expected);
    eventually("what it used is what is counted", || {
        used(&server, "tokens") == model.ledger().tokens
    });
}

#[test]
fn the_python_client_reads_refusals_as_its_own_errors() {
    let model = Model::start();
    let models = "  openai: {models: [{name: m}]}";
    let server = start(&model, &rules(20, 100), models);
    let limited = python(&server, "limited");
    assert_eq!(
        (&limited["code"], &limited["type"]),
        (&json!("rate_limit_exceeded"), &json!("tokens"))
    );
    assert!(limited["message"].as_str().is_some_and(|it| it.contains("costs 29")), "{limited}");
    let errors = python(&server, "errors");
    let expected =
        json!([["NotFoundError", "model_not_found"], ["AuthenticationError", "unknown_api_key"]]);
    assert_eq!(errors["errors"], expected);
    assert_eq!(model.ledger().requests, 0);
}

#[test]
fn the_python_client_retries_when_it_is_asked_to() {
    let model = Model::start();
    let server = start(&model, SLOW, "");
    assert_eq!(python(&server, "retried"), json!({"texts": [TEXT, TEXT]}));
    // One try in between was refused. With its own patience, half a second, the second would have been, too.
    assert_eq!(model.ledger().requests, 2);
}

#[test]
fn the_node_client_works_unchanged() {
    let model = Model::start();
    let server = start(&model, &rules(60, 100), "");
    assert_eq!(node(&server, "plain"), json!({"text": TEXT, "total": 14}));
    let streamed = node(&server, "stream");
    assert_eq!(streamed, json!({"text": TEXT, "usage": [false, false, false, false, false]}));
    eventually("it is settled", || used(&server, "tokens") == 28);
    assert_eq!(node(&server, "plain")["total"], 14);
    let limited = node(&server, "limited");
    assert_eq!((&limited["is_limit"], &limited["type"]), (&json!(true), &json!("tokens")));
    assert!(limited["retry_after_ms"].as_str().is_some_and(|millis| millis.parse::<u64>().is_ok()));
    assert_eq!(model.ledger().requests, 3);
    let server = start(&model, SLOW, "");
    assert_eq!(node(&server, "retried"), json!({"texts": [TEXT, TEXT]}));
    assert_eq!(model.ledger().requests, 5);
}
