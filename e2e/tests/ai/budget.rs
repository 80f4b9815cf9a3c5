//! Budgets in money: reserved at the price of the estimate, settled at the price of what was used.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tollgate_e2e::{EventStream, Model, Server, eventually};

use super::{chat, gateway, post, with};

const RULES: &str = r#"default: false
rules:
  - {rule_id: budget, identifier_type: global, unit: money, currency: USD, limit: "0.0005", calendar: month}
"#;

const PRICES: &str =
    "prices: [{model: m, currency: USD, per_million: {input: '10', output: '20'}}]\n";

/// What is spent, in 1e-9 dollars.
pub(super) fn spent(server: &Server) -> u64 {
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

const BY_KIND: &str = "prices: [{model: m, currency: USD, per_request: '0.000000007', per_million: {input: '10', \
                       output: '20', cached_read: '1', cached_write: '12.5', reasoning: '30'}}]\n";

const LARGE: &str = r#"default: false
rules:
  - {rule_id: budget, identifier_type: global, unit: money, currency: USD, limit: "5", calendar: month}
"#;

/// A prompt of nine tokens that is estimated at 1,000 more: what was read is not what was thought to be.
fn with_image(stand_in: &Value, is_stream: bool) -> Value {
    let content = json!([{"type": "image_url", "image_url": {"url": "https://example.com/1.png", "detail": "low"}}]);
    let messages = json!([{"role": "user", "content": content}]);
    with(with(chat(stand_in), "messages", messages), "stream", json!(is_stream))
}

#[test]
fn money_is_the_price_of_what_was_reported_by_kind() {
    let model = Model::start();
    let server = gateway(&model, LARGE, BY_KIND).start();
    let usage = json!({"prompt_tokens": 900, "completion_tokens": 500, "total_tokens": 1400,
        "prompt_tokens_details": {"cached_tokens": 600}, "completion_tokens_details": {"reasoning_tokens": 400}});
    // 300 fresh at 10, 600 cached at 1, 100 written at 20, 400 of reasoning at 30, and the request.
    let price = 3_000_000 + 600_000 + 2_000_000 + 12_000_000 + 7;
    for (number, is_stream) in [(1, false), (2, true)] {
        let stand_in = json!({"tokens": 5, "usage": usage});
        let (text, error) = post(&server, &with_image(&stand_in, is_stream)).rest();
        assert!(error.is_none(), "{text}");
        eventually("it is settled", || spent(&server) == number * price);
    }
}

#[test]
fn messages_are_paid_by_kind_too() {
    let model = Model::start();
    let server = super::anthropic::gateway(&model, LARGE, BY_KIND).start();
    let usage = json!({"input_tokens": 100, "cache_creation_input_tokens": 40,
        "cache_read_input_tokens": 1000, "output_tokens": 70});
    let price = 1_000_000 + 500_000 + 1_000_000 + 1_400_000 + 7;
    for (number, is_stream) in [(1, false), (2, true)] {
        let body = super::anthropic::message(&json!({"tokens": 5, "usage": usage}));
        let body = with(body, "stream", json!(is_stream));
        let path = super::anthropic::PATH;
        let answer = EventStream::post(server.gateway_addr(), path, &[], &body);
        let (text, error) = answer.expect("an answer").rest();
        assert!(error.is_none(), "{text}");
        eventually("it is settled", || spent(&server) == number * price);
    }
}

#[test]
fn what_is_not_reported_is_paid_as_it_was_counted() {
    let model = Model::start();
    let server = gateway(&model, LARGE, BY_KIND).start();
    // Nine of input at 12.5 and five of output at 30: which kinds they were is not known.
    let _ =
        post(&server, &with(chat(&json!({"tokens": 5, "silent": true})), "stream", json!(true)))
            .rest();
    eventually("it is settled", || spent(&server) == 112_500 + 150_000 + 7);
    let embed =
        json!({"model": "m", "input": "abcdabcd", "metadata": {"stand_in": {"silent": true}}});
    let answer = EventStream::post(server.gateway_addr(), "/v1/embeddings", &[], &embed);
    let _ = answer.expect("an answer").rest();
    eventually("an embedding pays input", || spent(&server) == 262_507 + 25_007);
    // What an upstream refuses costs nothing.
    assert_eq!(post(&server, &chat(&json!({"status": 429}))).status, 429);
    eventually("nothing is charged", || spent(&server) == 287_514);
}

const DEAR: &str = "prices: [{model: m, currency: USD, per_million: {input: '10', output: '10', \
                    cached_write: '20', reasoning: '30', audio_input: '100', audio_output: '200'}}]\n";

/// Sends so many such requests at once, with answers that are held until all have been decided on. How many passed.
fn at_once(model: &Model, server: &Server, count: u64, body: &Value) -> u64 {
    let (passed, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    model.hold(true);
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                let mut answer = post(server, body);
                let counter = if answer.status == 200 { &passed } else { &refused };
                let _ = answer.rest();
                counter.fetch_add(1, Ordering::Relaxed);
            });
        }
        eventually("all are decided on", || {
            model.active() + refused.load(Ordering::Relaxed) == count
        });
        model.hold(false);
    });
    eventually("all are over", || model.active() == 0);
    passed.load(Ordering::Relaxed)
}

#[test]
fn kinds_that_are_dearer_than_output_are_reserved_at_their_price() {
    let rules = LARGE.replace("\"5\"", "\"1\"");
    let usage = |parts: [u64; 4]| {
        let [written, heard, thought, said] = parts;
        json!({"prompt_tokens": 9, "completion_tokens": 500, "total_tokens": 509,
            "prompt_tokens_details": {"cache_write_tokens": written, "audio_tokens": heard},
            "completion_tokens_details": {"reasoning_tokens": thought, "audio_tokens": said}})
    };
    // What 500 tokens of output cost, by what they are: 0.005 of text, 0.015 of reasoning, 0.1 of sound.
    let spoken = json!(["text", "audio"]);
    for (parts, more, price, most) in [
        ([9, 0, 500, 0], json!({"modalities": ["text"]}), 15_180_000, 65),
        ([0, 0, 0, 500], json!({"modalities": spoken, "audio": {"voice": "a"}}), 100_090_000, 9),
    ] {
        let model = Model::start();
        let server = gateway(&model, &rules, DEAR).start();
        let stand_in = json!({"tokens": 1, "usage": usage(parts)});
        let mut body = with(chat(&stand_in), "max_tokens", json!(500));
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        let passed = at_once(&model, &server, 100, &body);
        eventually("it is settled", || spent(&server) == passed * price);
        assert!(spent(&server) <= 1_000_000_000, "{passed} passed: {}", spent(&server));
        assert!(passed <= most && passed > most / 2, "{passed} passed of {most}");
    }
}
