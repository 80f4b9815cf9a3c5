//! The official clients of Anthropic's API, unchanged.

use std::process::Command;

use serde_json::{Value, json};
use tollgate_e2e::{Model, Server, eventually};
use tollgate_testkit::of_the_tools;

use super::{SLOW, TEXT, here, rules, run_at, start_kind, used};

fn start(model: &Model, rules: &str) -> Server {
    let more = "  openai: {list_models: true, models: [{name: m}]}";
    start_kind(model, "anthropic", rules, more)
}

fn python(server: &Server, act: &str) -> Value {
    let mut command = Command::new("python3");
    let script = here("anthropic_client.py");
    command.arg(script).arg(act).env("PYTHONPATH", of_the_tools("anthropic"));
    run_at(command, server, "")
}

fn node(server: &Server, act: &str) -> Value {
    let mut command = Command::new("node");
    let package = of_the_tools("anthropic-js/node_modules/@anthropic-ai/sdk");
    command.arg(here("anthropic_client.cjs")).arg(act).env("ANTHROPIC_PACKAGE", package);
    run_at(command, server, "")
}

#[test]
fn the_python_client_works_unchanged() {
    let model = Model::start();
    let server = start(&model, &rules(10_000, 100));
    let plain = python(&server, "plain");
    assert_eq!(plain, json!({"text": TEXT, "total": 14, "reason": "end_turn"}));
    assert_eq!(python(&server, "bearer"), json!({"text": TEXT}));
    let streamed = python(&server, "stream");
    let expected =
        json!({"text": TEXT, "output": 5, "first": "message_start", "last": "message_stop"});
    assert_eq!(streamed, expected);
    assert_eq!(python(&server, "async_stream"), json!({"texts": vec![TEXT; 5]}));
    let call = json!(["weather", {"city": "Paris"}]);
    assert_eq!(python(&server, "tools"), json!({"calls": [call, call], "reason": "tool_use"}));
    let others = python(&server, "others");
    assert_eq!(others, json!({"counted": 9, "beta": TEXT, "models": ["m"]}));
    eventually("what it used is what is counted", || {
        used(&server, "tokens") == model.ledger().tokens
    });
}

#[test]
fn the_python_client_reads_refusals_and_failures_as_its_own_errors() {
    let model = Model::start();
    let server = start(&model, &rules(20, 100));
    let limited = python(&server, "limited");
    assert_eq!(limited["body"]["error"]["type"], "rate_limit_error");
    let message = &limited["body"]["error"]["message"];
    assert!(message.as_str().is_some_and(|it| it.contains("costs 29")), "{limited}");
    let expected = json!([
        ["NotFoundError", "not_found_error"],
        ["AuthenticationError", "authentication_error"],
        ["BadRequestError", "invalid_request_error"]
    ]);
    assert_eq!(python(&server, "errors")["errors"], expected);
    assert_eq!(model.ledger().requests, 0);
    let server = start(&model, &rules(1_000, 100));
    let expected =
        json!([["OverloadedError", 529], ["InternalServerError", 500], "overloaded_error"]);
    assert_eq!(python(&server, "failing")["errors"], expected);
}

#[test]
fn the_python_client_retries_when_it_is_asked_to() {
    let model = Model::start();
    let server = start(&model, SLOW);
    assert_eq!(python(&server, "retried"), json!({"texts": [TEXT, TEXT]}));
    assert_eq!(model.ledger().requests, 2);
}

#[test]
fn the_node_client_works_unchanged() {
    let model = Model::start();
    let server = start(&model, &rules(10_000, 100));
    assert_eq!(node(&server, "plain"), json!({"text": TEXT, "total": 14}));
    assert_eq!(node(&server, "stream"), json!({"text": TEXT, "output": 5}));
    let call = json!(["weather", {"city": "Paris"}]);
    assert_eq!(node(&server, "tools"), json!({"calls": [call, call]}));
    assert_eq!(node(&server, "others"), json!({"counted": 9, "models": ["m"]}));
    let expected = json!([
        ["NotFoundError", "not_found_error"],
        ["AuthenticationError", "authentication_error"]
    ]);
    assert_eq!(node(&server, "errors")["errors"], expected);
    eventually("what it used is what is counted", || {
        used(&server, "tokens") == model.ledger().tokens
    });
    let small = start(&model, &rules(20, 100));
    let limited = node(&small, "limited");
    assert_eq!(
        (&limited["is_limit"], &limited["type"]),
        (&json!(true), &json!("rate_limit_error"))
    );
    let slow = start(&model, SLOW);
    assert_eq!(node(&slow, "retried"), json!({"texts": [TEXT, TEXT]}));
}
