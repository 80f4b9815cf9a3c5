//! Routes of `kind: anthropic`: the Messages API, limited and settled as the other one is.

use serde_json::{Value, json};
use tollgate_e2e::{Client, EventStream, Model, Server, ServerBuilder, eventually};

use super::{registered, rules, used, with};

pub(crate) const PATH: &str = "/v1/messages";

/// A gateway in front of a model, with these further lines under `gateway`.
pub(crate) fn gateway(model: &Model, rules: &str, more: &str) -> ServerBuilder {
    let config = format!(
        "gateway:
  pools: {{gpu: {{targets: [{{url: '{}'}}]}}}}
  routes: [{{name: ai, kind: anthropic, paths: ['/*'], pool: gpu}}]
{more}",
        model.url()
    );
    ServerBuilder::default().gateway().rules(rules).config(&config)
}

/// The same for clients with keys, in front of an upstream that has one of its own.
fn with_keys(model: &Model, rules: &str) -> Server {
    let builder = ServerBuilder::default().gateway().rules(rules);
    let (keys, own) = (builder.file("keys", &registered()), builder.file("own", "sk-operator"));
    let config = format!(
        "identity: {{api_keys_file: '{}', api_key_as_bearer: true}}
gateway:
  pools: {{gpu: {{targets: [{{url: '{}'}}], api_key_file: '{}'}}}}
  routes: [{{name: ai, kind: anthropic, pool: gpu}}]
  openai: {{max_body_bytes: 2000, models: [{{name: m}}]}}",
        keys.display(),
        model.url(),
        own.display()
    );
    builder.config(&config).start()
}

/// A prompt of 9 tokens, as the upstream counts.
pub(crate) fn message(stand_in: &Value) -> Value {
    json!({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "abcd"}], "stand_in": stand_in})
}

fn stream(stand_in: &Value) -> Value {
    with(message(stand_in), "stream", json!(true))
}

fn post(server: &Server, body: &Value) -> EventStream {
    post_with(server, PATH, &[], body)
}

fn post_with(server: &Server, path: &str, headers: &[(&str, &str)], body: &Value) -> EventStream {
    EventStream::post(server.gateway_addr(), path, headers, body).expect("an answer")
}

/// The status and the type of an error.
fn refusal(mut answer: EventStream) -> (u16, String) {
    let said = answer.json();
    assert_eq!(said["type"], "error", "{said}");
    assert!(said["error"]["message"].is_string(), "{said}");
    let kind = said["error"]["type"].as_str().expect("a type").to_owned();
    (answer.status, kind)
}

fn status(status: u16, kind: &str) -> (u16, String) {
    (status, kind.to_owned())
}

#[test]
fn a_plain_message_is_settled_at_what_it_used() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let headers = [("anthropic-version", "2023-06-01"), ("anthropic-beta", "a-2026-01-01")];
    let body = message(&json!({"tokens": 5}));
    let mut answer = post_with(&server, PATH, &headers, &body);
    assert_eq!(answer.status, 200);
    for (name, value) in [
        ("anthropic-ratelimit-requests-limit", "100"),
        ("anthropic-ratelimit-requests-remaining", "99"),
        ("anthropic-ratelimit-tokens-limit", "1000"),
    ] {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    let left = answer.header("anthropic-ratelimit-tokens-remaining");
    let left: u64 = left.and_then(|it| it.parse().ok()).expect("a count");
    assert!((930..=971).contains(&left), "{left}: at least 9 and 20 are reserved");
    for unit in ["requests", "tokens"] {
        let reset = answer.header(&format!("anthropic-ratelimit-{unit}-reset")).expect("when");
        assert!(reset.len() == 20 && reset.ends_with('Z') && reset.contains('T'), "{reset}");
    }
    // Nothing here counts one of the two alone.
    assert_eq!(answer.header("anthropic-ratelimit-input-tokens-limit"), None);
    let said = answer.json();
    assert_eq!(said["content"][0]["text"], "tok ".repeat(5));
    assert_eq!(used(&server, "tokens"), 14, "fresh, cached and written tokens together");
    assert_eq!((model.ledger().tokens, used(&server, "requests")), (14, 1));
    let arrived = &model.arrived()[0];
    assert_eq!(String::from_utf8_lossy(&arrived.body), body.to_string());
    for (name, value) in headers {
        assert_eq!(arrived.header(name), Some(value));
    }
}

#[test]
fn a_stream_passes_unchanged_and_is_settled_by_its_last_statement() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    for crlf in [false, true] {
        let (text, error) = post(&server, &stream(&json!({"tokens": 5, "crlf": crlf}))).rest();
        assert!(error.is_none(), "{error:?}");
        let kinds: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("event: "))
            .filter(|kind| *kind != "content_block_delta")
            .collect();
        let expected = [
            "message_start",
            "content_block_start",
            "ping",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ];
        assert_eq!(kinds, expected);
        assert_eq!(text.matches("tok ").count(), 5);
    }
    eventually("both are settled", || used(&server, "tokens") == 2 * 14);
    // The statement counts, whatever was written.
    let end = json!({"input_tokens": 100, "cache_read_input_tokens": 50, "output_tokens": 33,
        "iterations": [{"type": "compaction", "input_tokens": 200, "output_tokens": 10}]});
    let _ = post(&server, &stream(&json!({"tokens": 5, "usage": end}))).rest();
    // Two of the prompt were written to a cache, as its beginning stated.
    eventually("it is settled", || used(&server, "tokens") == 28 + 100 + 50 + 2 + 33 + 210);
}

/// However a stream ends: exactly what was seen of it, and its prompt as the upstream stated it.
#[test]
fn a_stream_that_is_cut_is_settled_for_what_was_seen() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    // Enough whole answers hid nothing.
    for _ in 0..super::WHOLE_ANSWERS {
        let _ = post(&server, &message(&json!({"tokens": 10}))).rest();
    }
    let paid = super::WHOLE_ANSWERS * 19;
    let (text, error) = post(&server, &stream(&json!({"tokens": 10, "cut_after": 3}))).rest();
    assert!(error.is_some() && text.matches("tok ").count() == 3, "{text}");
    eventually("the cut one is settled", || used(&server, "tokens") == paid + 9 + 3);
    let (text, _) = post(&server, &stream(&json!({"tokens": 10, "error_after": 4}))).rest();
    assert!(text.contains("event: error") && !text.contains("message_stop"), "{text}");
    eventually("the failed one is settled", || used(&server, "tokens") == paid + 12 + 9 + 4);
    let mut answer = None;
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| post(&server, &stream(&json!({"tokens": 10, "gated": true}))));
        model.go_on(2);
        answer = opened.join().ok();
    });
    let mut answer = answer.expect("an answer");
    let mut seen = 0;
    while seen < 2 {
        let event = answer.event().expect("an event").expect("not the end");
        seen += event.matches("tok ").count();
    }
    drop(answer);
    eventually("the one that was left is settled", || used(&server, "tokens") == paid + 25 + 9 + 2);
    assert_eq!(used(&server, "tokens"), model.ledger().tokens);
}

#[test]
fn usage_that_is_missing_or_cannot_be_is_counted() {
    let model = Model::start();
    let server = gateway(&model, &rules(100_000, 100), "").start();
    for (nth, stand_in) in (1..).zip([
        json!({"tokens": 5, "silent": true}),
        json!({"tokens": 5, "usage": {"input_tokens": 0, "output_tokens": 5}}),
        json!({"tokens": 5, "usage": {"input_tokens": -9, "output_tokens": 5}}),
        json!({"tokens": 5, "usage": {"input_tokens": 9, "output_tokens": 99_999_999}}),
    ]) {
        let _ = post(&server, &message(&stand_in)).rest();
        eventually("it is settled", || {
            let used = used(&server, "tokens");
            (nth * 14..nth * 80).contains(&used)
        });
    }
    let before = used(&server, "tokens");
    let _ = post(&server, &stream(&json!({"tokens": 5, "silent": true}))).rest();
    eventually("the stream is settled", || {
        (before + 14..before + 60).contains(&used(&server, "tokens"))
    });
}

#[test]
fn refusals_are_in_the_words_of_the_api_and_never_arrive() {
    let model = Model::start();
    let server = gateway(&model, &rules(60, 3), "").start();
    assert_eq!(post(&server, &message(&json!({"tokens": 20}))).status, 200);
    eventually("it is settled", || used(&server, "tokens") == 29);
    let refused = post(&server, &with(message(&json!({})), "max_tokens", json!(40)));
    let seconds: u64 = refused.header("retry-after").and_then(|it| it.parse().ok()).expect("when");
    assert!((1..=365 * 86_400).contains(&seconds), "{seconds}");
    assert_eq!(refused.header("anthropic-ratelimit-tokens-remaining"), Some("31"));
    assert_eq!(refusal(refused), status(429, "rate_limit_error"));
    // What can never pass is not worth another try, and nothing is charged for a huge bound.
    for bound in [500_u64, u64::MAX] {
        let never = post(&server, &with(message(&json!({})), "max_tokens", json!(bound)));
        assert_eq!(
            (never.header("x-should-retry"), never.header("retry-after")),
            (Some("false"), None)
        );
        assert_eq!(refusal(never), status(429, "rate_limit_error"));
    }
    assert_eq!((used(&server, "tokens"), used(&server, "requests")), (29, 1));
    assert_eq!(model.ledger().requests, 1);
}

#[test]
fn keys_come_in_either_header_and_the_pools_goes_out_in_its_own() {
    let model = Model::start();
    let server = with_keys(&model, &rules(10_000, 100));
    let body = message(&json!({"tokens": 5}));
    for headers in [("x-api-key", "sk-acme"), ("authorization", "Bearer sk-other")] {
        assert_eq!(post_with(&server, PATH, &[headers], &body).status, 200);
    }
    for arrived in model.arrived() {
        assert_eq!(arrived.header("x-api-key"), Some("sk-operator"));
        assert_eq!(arrived.header("authorization"), None);
    }
    let key = ("x-api-key", "sk-acme");
    let long = with(body.clone(), "system", json!("x".repeat(3_000)));
    let other = with(body.clone(), "model", json!("none"));
    let nameless = with(body.clone(), "model", Value::Null);
    for (headers, path, body, expected) in [
        (&[][..], PATH, &body, status(401, "authentication_error")),
        (&[("x-api-key", "sk-none")][..], PATH, &body, status(401, "authentication_error")),
        (&[key][..], PATH, &long, status(413, "request_too_large")),
        (&[key][..], PATH, &other, status(404, "not_found_error")),
        (&[key][..], PATH, &nameless, status(400, "invalid_request_error")),
        (&[key][..], "/v1/messages?model=m", &body, status(400, "invalid_request_error")),
        (&[key][..], "/v1/messages/batches", &body, status(404, "not_found_error")),
        (&[key][..], "/v1/files", &body, status(404, "not_found_error")),
    ] {
        assert_eq!(refusal(post_with(&server, path, headers, body)), expected, "{path}");
    }
    assert_eq!((model.ledger().requests, used(&server, "requests")), (2, 2));
}

#[test]
fn deny_listed_callers_and_missing_upstreams_have_errors_of_the_api() {
    let nobody = tollgate_e2e::ClosedPort::new();
    let rules = "default: false\nno_match: deny\nrules: []\n";
    let config = |url: &str| {
        format!(
            "gateway:\n  pools: {{gpu: {{targets: [{{url: '{url}'}}]}}}}\n  routes: [{{name: ai, kind: anthropic, pool: gpu}}]"
        )
    };
    let start = |rules: &str| {
        ServerBuilder::default().gateway().rules(rules).config(&config(&nobody.url())).start()
    };
    let refused = post(&start(rules), &message(&json!({})));
    assert_eq!(refusal(refused), status(403, "permission_error"));
    let server = start(&super::rules(1_000, 100));
    let unreachable = post(&server, &message(&json!({})));
    assert_eq!(unreachable.header("retry-after"), Some("1"));
    assert_eq!(refusal(unreachable), status(503, "overloaded_error"));
    assert_eq!((used(&server, "tokens"), used(&server, "requests")), (0, 0));
}

#[test]
fn counting_tokens_is_a_request_and_uses_none() {
    let model = Model::start();
    let more = "  openai: {models: [{name: m, upstream_name: org/m}]}";
    let server = gateway(&model, &rules(20, 3), more).start();
    let mut body = message(&json!({"tokens": 15}));
    assert_eq!(post(&server, &body).status, 429, "more tokens than there are");
    body.as_object_mut().expect("an object").remove("max_tokens");
    let path = "/v1/messages/count_tokens";
    for nth in 1..=3 {
        let mut counted = post_with(&server, path, &[], &body);
        assert_eq!((counted.status, counted.json()), (200, json!({"input_tokens": 9})));
        assert_eq!((used(&server, "tokens"), used(&server, "requests")), (0, nth));
    }
    let sent: Value = serde_json::from_slice(&model.arrived()[0].body).expect("JSON");
    assert_eq!(sent["model"], "org/m");
    assert_eq!(refusal(post_with(&server, path, &[], &body)), status(429, "rate_limit_error"));
    let unknown = with(body, "model", json!("none"));
    assert_eq!(refusal(post_with(&server, path, &[], &unknown)), status(404, "not_found_error"));
}

#[test]
fn models_are_listed_and_named_as_clients_know_them() {
    let model = Model::start();
    let more =
        "  openai: {list_models: true, models: [{name: m, upstream_name: org/m}, {name: big}]}";
    let server = gateway(&model, &rules(1_000, 100), more).start();
    let mut client = Client::connect(server.gateway_addr()).expect("a connection");
    let listed = client.get("/v1/models?limit=1000").json();
    assert_eq!((&listed["first_id"], &listed["last_id"]), (&json!("m"), &json!("big")));
    assert_eq!((&listed["has_more"], &listed["data"][1]["type"]), (&json!(false), &json!("model")));
    assert_eq!(client.get("/v1/models/big").json()["display_name"], "big");
    let unknown = client.get("/v1/models/none");
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
    assert_eq!(client.get("/v1/models?model=big").status, 400);
    assert_eq!(post(&server, &message(&json!({}))).json()["model"], "m");
    let (text, _) = post(&server, &stream(&json!({}))).rest();
    assert!(text.contains(r#""model":"m""#) && !text.contains("org/m"), "{text}");
    let sent: Value = serde_json::from_slice(&model.arrived()[1].body).expect("JSON");
    assert_eq!(sent["model"], "org/m");
}

#[test]
fn a_stream_beyond_its_reservation_is_stopped_in_the_words_of_the_api() {
    let model = Model::start();
    let more = "  openai: {stream_overrun: stop}";
    let server = gateway(&model, &rules(1_000, 100), more).start();
    // An upstream that ignores the bound.
    let body = with(stream(&json!({"tokens": 19})), "max_tokens", json!(19));
    let body = with(body, "messages", json!([{"role": "user", "content": "abcd"}]));
    let (text, _) = post(&server, &body).rest();
    assert!(text.contains("message_stop"), "{text}");
    let models = "  openai: {stream_overrun: stop, models: [{name: m, max_output_tokens: 4}]}";
    let server = gateway(&model, &rules(1_000, 100), models).start();
    let (text, _) = post(&server, &stream(&json!({"tokens": 20}))).rest();
    let last = text.trim_end().rsplit("\n\n").next().expect("an event");
    assert!(last.starts_with("event: error\ndata: "), "{last}");
    let error: Value = serde_json::from_str(&last["event: error\ndata: ".len()..]).expect("JSON");
    assert_eq!(error["error"]["type"], "rate_limit_error");
    let seen = text.matches("tok ").count() as u64;
    eventually("it is settled", || used(&server, "tokens") == 9 + seen);
}

/// Next to calls that read something, nothing is forwarded that the operator does not name.
#[test]
fn other_calls_are_forwarded_only_where_they_are_named() {
    let model = Model::start();
    let more = "  openai: {other_calls: forward, forward_paths: [/v1/files, '/v1/stores/*']}";
    let anthropic = gateway(&model, &rules(1_000, 100), more).start();
    let openai = super::gateway(&model, &rules(1_000, 100), more).start();
    for path in ["/v1/complete", "/x/v1/messages", "/v1/Messages", "/v1/messages/batches"] {
        let refused = refusal(post_with(&anthropic, path, &[], &message(&json!({}))));
        assert_eq!(refused, (404, "not_found_error".to_owned()), "{path}");
    }
    assert_eq!(post_with(&anthropic, super::PATH, &[], &message(&json!({}))).status, 404);
    assert_eq!(post_with(&openai, PATH, &[], &message(&json!({}))).status, 404);
    for path in [
        "/v1/batches",
        "/v1/threads/runs",
        "/v1/fine_tuning/jobs",
        "/v1/generate",
        "/v1/responses/compact",
        "/v1/conversations",
        "/v1/ocr",
        "/v1/moderations",
        "/v1/audio/speech",
        "/v1/a_path_of_tomorrow",
        "/v1/stores/s/batches",
        "/v1/health",
    ] {
        let mut answer = post_with(&openai, path, &[], &message(&json!({})));
        let code = answer.json()["error"]["code"].clone();
        assert_eq!((answer.status, code), (404, json!("unknown_url")), "{path}");
    }
    assert_eq!(model.ledger().requests, 0);
    let file = json!({"stand_in": {"status": 418}});
    for server in [&anthropic, &openai] {
        for path in ["/v1/files", "/v1/stores/s/files"] {
            assert_eq!(post_with(server, path, &[], &file).status, 418, "{path}");
        }
        assert_eq!(used(server, "requests"), 2);
    }
    let mut client = tollgate_e2e::Client::connect(openai.gateway_addr()).expect("a connection");
    assert_ne!(client.request("GET", "/v1/health", &[], b"").status, 404, "it reads something");
}

/// What is not routed is refused in the shape of the API, too.
#[test]
fn a_path_that_cannot_be_read_is_refused_in_the_shape_of_the_api() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let invalid = post_with(&server, "/v1/%zz", &[], &message(&json!({})));
    assert_eq!(refusal(invalid), (400, "invalid_request_error".to_owned()));
}

#[test]
fn a_users_name_in_a_body_only_divides_who_is_known() {
    let model = Model::start();
    let rules = "
default: false
rules:
  - {rule_id: users, identifier_type: composite, key_by: [tenant_id, end_user], limit: 1, window: 365d, algorithm: fixed_window}
";
    let server = with_keys(&model, rules);
    let ask = |key: &str, user: &str| {
        let body = with(message(&json!({})), "metadata", json!({"user_id": user}));
        post_with(&server, PATH, &[("x-api-key", key)], &body).status
    };
    assert_eq!((ask("sk-acme", "u1"), ask("sk-acme", "u1")), (200, 429));
    assert_eq!((ask("sk-acme", "u2"), ask("sk-other", "u1")), (200, 200), "counters of their own");
}
