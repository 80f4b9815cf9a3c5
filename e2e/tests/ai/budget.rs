//! Budgets in money: reserved at the price of the estimate, settled at the price of what was used.

use serde_json::json;
use tollgate_e2e::{Model, Server, eventually};

use super::{chat, gateway, post, with};

const RULES: &str = r#"default: false
rules:
  - {rule_id: budget, identifier_type: global, unit: money, currency: USD, limit: "0.0005", calendar: month}
"#;

const PRICES: &str =
    "prices: [{model: m, currency: USD, per_million: {input: '10', output: '20'}}]\n";

/// What is spent, in 1e-9 dollars.
fn spent(server: &Server) -> u64 {
    let peeked = server.client().post("/rate-limit/peek", &json!({})).json();
    peeked["scopes"][0]["current"].as_u64().expect("an amount")
}

#[test]
fn a_budget_is_reserved_settled_and_refused_as_a_quota() {
    let model = Model::start();
    let server = gateway(&model, RULES, PRICES).start();
    // Nine input and twenty output tokens are reserved: 0.00009 + 0.0004.
    let answer = post(&server, &chat(&json!({"tokens": 5})));
    assert_eq!(answer.status, 200);
    drop(answer);
    eventually("nine and five tokens are charged", || spent(&server) == 190_000);
    let mut refused = post(&server, &chat(&json!({})));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    let error = refused.json()["error"].clone();
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("insufficient_quota"), &json!("insufficient_quota"))
    );
    assert!(error["message"].as_str().is_some_and(|text| text.contains("0.0005 USD")), "{error}");
    // What costs less has room.
    assert_eq!(
        post(&server, &with(chat(&json!({"tokens": 1})), "max_tokens", json!(10))).status,
        200
    );
    let unpriced = post(&server, &with(chat(&json!({})), "model", json!("other")));
    assert_eq!(unpriced.status, 400, "a model without a price is not free");
    assert_eq!(model.arrived().len(), 2, "refusals do not arrive");
}
