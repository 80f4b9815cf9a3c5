//! What upstreams answer: compressed, with usage that cannot be, under their own names for models.

use serde_json::{Value, json};
use tollgate_e2e::{Client, EventStream, Model, Server, ServerBuilder, eventually};

use super::{PATH, chat, gateway, post, registered, rules, used, with};

fn stream(stand_in: &Value) -> Value {
    with(chat(stand_in), "stream", json!(true))
}

#[test]
fn usage_with_the_last_words_is_hidden_from_clients_that_did_not_ask() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let body = stream(&json!({"tokens": 3, "usage_with_last": true}));
    let (text, error) = post(&server, &body).rest();
    assert!(error.is_none() && !text.contains("usage"), "{text}");
    assert_eq!(text.matches("tok ").count(), 3, "nothing else is missing");
    assert!(text.contains(r#""finish_reason":"stop""#) && text.ends_with("data: [DONE]\n\n"));
    eventually("it is settled", || used(&server, "tokens") == 12);
    let asked = with(body, "stream_options", json!({"include_usage": true}));
    let (text, _) = post(&server, &asked).rest();
    assert!(text.contains(r#""total_tokens":12"#), "{text}");
}

#[test]
fn an_answer_that_is_compressed_unasked_is_decoded() {
    let model = Model::start();
    let server = gateway(&model, &rules(10_000, 100), "").start();
    let mut paid = 0;
    for encoding in ["gzip", "deflate"] {
        let mut plain = post(&server, &chat(&json!({"tokens": 5, "encoding": encoding})));
        assert_eq!((plain.status, plain.header("content-encoding")), (200, None));
        assert_eq!(plain.json()["usage"]["total_tokens"], 14);
        paid += 14;
        eventually("it is settled at what it used", || used(&server, "tokens") == paid);
        let mut events = post(&server, &stream(&json!({"tokens": 5, "encoding": encoding})));
        assert_eq!(events.header("content-encoding"), None);
        let (text, error) = events.rest();
        assert!(error.is_none() && !text.contains("usage"), "{error:?} {text}");
        assert_eq!(text.matches("tok ").count(), 5);
        paid += 14;
        eventually("so is a stream", || used(&server, "tokens") == paid);
        let mut failed = post(&server, &chat(&json!({"status": 500, "encoding": encoding})));
        assert_eq!(
            (failed.status, &failed.json()["error"]["message"]),
            (500, &json!("as requested"))
        );
        paid += 9;
        eventually("an error pays its prompt", || used(&server, "tokens") == paid);
    }
    assert!(model.arrived().iter().all(|it| it.header("accept-encoding") == Some("identity")));
    // What cannot be read is refused, and costs what a client that leaves pays.
    for encoding in ["br", "zstd", "gzip, gzip"] {
        let headers = json!({"content-encoding": encoding});
        let mut refused = post(&server, &chat(&json!({"tokens": 5, "headers": headers})));
        assert_eq!(refused.status, 502, "{encoding}");
        assert_eq!(refused.json()["error"]["code"], "unsupported_encoding");
        paid += 9;
        eventually("it pays its prompt", || used(&server, "tokens") == paid);
    }
    // An answer that is not what it says breaks off.
    let headers = json!({"content-encoding": "gzip"});
    let body = chat(&json!({"tokens": 5, "headers": headers}));
    let broken = EventStream::post(server.gateway_addr(), PATH, &[], &body);
    assert!(broken.is_err() || broken.is_ok_and(|mut it| it.rest().1.is_some()));
    paid += 9;
    eventually("it pays its prompt", || used(&server, "tokens") == paid);
}

#[test]
fn usage_that_cannot_be_is_not_believed() {
    let model = Model::start();
    let more = "  openai: {max_usage_tokens: 5000, models: [{name: m}, {name: small, max_usage_tokens: 50}]}";
    let server = gateway(&model, &rules(100_000, 100), more).start();
    let mut paid = 0;
    for (usage, charged) in [
        // Too much: at least the nine and twenty that were reserved.
        (json!({"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 5_001}), 29),
        (json!({"total_tokens": 1_000_000_000_000_000_u64}), 29),
        (json!({"prompt_tokens": -9, "completion_tokens": 5, "total_tokens": 14}), 14),
        (json!({"prompt_tokens": 900, "completion_tokens": 5, "total_tokens": 14}), 14),
        (json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}), 14),
    ] {
        let stand_in = json!({"tokens": 5, "usage": usage});
        for body in [chat(&stand_in), stream(&stand_in)] {
            let (_, error) = post(&server, &body).rest();
            assert!(error.is_none(), "{error:?}");
            paid += charged;
            eventually("what was counted is charged", || used(&server, "tokens") == paid);
        }
    }
    let body = chat(&json!({"tokens": 5, "usage": {"total_tokens": 51}}));
    post(&server, &with(body.clone(), "model", json!("small"))).rest();
    paid += 29;
    eventually("a model has a bound of its own", || used(&server, "tokens") == paid);
    post(&server, &body).rest();
    paid += 51;
    eventually("what can be is believed", || used(&server, "tokens") == paid);
    let reports = server.log().matches("is not believed").count();
    assert!((1..=3).contains(&reports), "{reports} reports of eleven");
}

#[test]
fn the_upstreams_name_of_a_model_is_hidden() {
    let model = Model::start();
    let listed = "models: [{name: large, aliases: [gpt-4o], upstream_name: org/large-70b}]";
    let server = gateway(&model, &rules(10_000, 100), &format!("  openai: {{{listed}}}")).start();
    let calls = [
        (PATH, with(chat(&json!({})), "model", json!("gpt-4o"))),
        ("/v1/completions", json!({"model": "large", "prompt": "say \"model\"", "max_tokens": 5})),
        ("/v1/embeddings", json!({"model": "large", "input": "x"})),
        ("/v1/responses", json!({"model": "large", "input": "x", "max_output_tokens": 5})),
    ];
    for (path, body) in &calls {
        for is_stream in [false, true] {
            if is_stream && *path == "/v1/embeddings" {
                continue;
            }
            let body = with(body.clone(), "stream", json!(is_stream));
            let mut answer =
                EventStream::post(server.gateway_addr(), path, &[], &body).expect("an answer");
            let (text, error) = answer.rest();
            assert!(answer.status == 200 && error.is_none(), "{path}: {text}");
            assert!(!text.contains("org/large-70b"), "{path}: {text}");
            assert!(text.contains(r#""model":"large""#), "{path}: {text}");
        }
    }
    assert!(model.arrived().iter().all(|it| String::from_utf8_lossy(&it.body).contains("org/")));
    let open = format!("  openai: {{hide_upstream_names: false, {listed}}}");
    let server = gateway(&model, &rules(10_000, 100), &open).start();
    let mut shown = EventStream::post(server.gateway_addr(), PATH, &[], &calls[0].1).expect("one");
    assert_eq!(shown.json()["model"], "org/large-70b");
}

/// A gateway whose clients have keys and limits by tenant.
fn with_keys(model: &Model, more: &str, cors: &str) -> Server {
    let rules = "
default: false
rules:
  - {rule_id: tokens, identifier_type: tenant_id, unit: tokens, limit: 40, window: 365d, algorithm: fixed_window}
  - {rule_id: requests, identifier_type: tenant_id, limit: 6, window: 365d, algorithm: fixed_window}
";
    let builder = ServerBuilder::default().gateway().rules(rules);
    let keys = builder.file("keys", &registered());
    let config = format!(
        "{cors}
identity: {{api_keys_file: '{}', api_key_as_bearer: true}}
gateway:
  pools: {{gpu: {{targets: [{{url: '{}'}}]}}}}
  routes: [{{name: ai, kind: openai, paths: ['/v1/*'], methods: [GET, POST], pool: gpu}}]
{more}",
        keys.display(),
        model.url()
    );
    builder.config(&config).start()
}

const ACME: (&str, &str) = ("authorization", "Bearer sk-acme");
const OTHER: (&str, &str) = ("authorization", "Bearer sk-other");

#[test]
fn a_tenant_in_debt_can_list_models() {
    let model = Model::start();
    for more in ["", "  openai: {list_models: true, models: [{name: m}]}"] {
        let server = with_keys(&model, more, "");
        let ask = |body: &Value| {
            let answer = EventStream::post(server.gateway_addr(), PATH, &[ACME], body);
            answer.expect("an answer").json()
        };
        ask(&chat(&json!({"tokens": 5, "usage": {"total_tokens": 500}})));
        let mut client = Client::connect(server.gateway_addr()).expect("a connection");
        eventually("it is in debt", || ask(&chat(&json!({})))["error"]["type"] == "tokens");
        let listed = client.request("GET", "/v1/models", &[ACME], b"");
        assert_eq!(listed.status, 200, "{more}: {}", listed.text());
        assert_eq!(listed.json()["object"], "list");
        if more.is_empty() {
            // Requests still count, and are refused in the API's shape.
            let refused = (0..20).map(|_| client.request("GET", "/v1/models", &[ACME], b""));
            let refused = refused.into_iter().find(|it| it.status != 200).expect("a refusal");
            let error = refused.json()["error"].clone();
            assert_eq!((refused.status, &error["type"]), (429, &json!("requests")), "{error}");
            assert_eq!(error["code"], "rate_limit_exceeded");
            assert!(refused.header("x-ratelimit-remaining-requests").is_some());
        }
    }
}

#[test]
fn pages_of_listed_origins_can_call_models() {
    let model = Model::start();
    let server = with_keys(&model, "", "cors_origins: ['https://app.example']");
    let mut client = Client::connect(server.gateway_addr()).expect("a connection");
    let origin = ("origin", "https://app.example");
    let preflight = [
        origin,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
    ];
    let allowed = client.request("OPTIONS", PATH, &preflight, b"");
    assert_eq!(allowed.status, 204, "{}", allowed.text());
    assert_eq!(allowed.header("access-control-allow-origin"), Some(origin.1));
    let lists = |name: &str, value: &str| allowed.header(name).is_some_and(|it| it.contains(value));
    assert!(lists("access-control-allow-methods", "POST"));
    assert!(lists("access-control-allow-headers", "x-stainless-os"));
    let foreign = [("origin", "https://evil.example"), preflight[1], preflight[2]];
    let refused = client.request("OPTIONS", PATH, &foreign, b"");
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None));
    assert!(model.arrived().is_empty(), "answered here");
    // Answers can be read with what they say of limits, refusals too, and nothing that the upstream says of pages.
    let headers = json!({"access-control-allow-origin": "*"});
    let body = chat(&json!({"tokens": 1, "headers": headers})).to_string();
    for (key, status) in [(ACME, 200), (("authorization", "Bearer sk-unknown"), 401)] {
        let json = ("content-type", "application/json");
        let answer = client.request("POST", PATH, &[origin, key, json], body.as_bytes());
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin.1));
        let exposed = answer.header("access-control-expose-headers").unwrap_or_default();
        assert!(exposed.contains("x-ratelimit-remaining-tokens"), "{exposed}");
    }
    let foreign = [("origin", "https://evil.example"), ACME, ("content-type", "application/json")];
    let unread = client.request("POST", PATH, &foreign, body.as_bytes());
    assert_eq!((unread.status, unread.header("access-control-allow-origin")), (200, None));
    // Nobody was charged for asking.
    let listed = client.request("GET", "/v1/models", &[ACME], b"");
    assert_eq!(listed.header("x-ratelimit-remaining-requests"), Some("3"), "6, less 2 and this");
}

#[test]
fn a_background_response_keeps_its_reservation_until_its_usage_is_known() {
    let model = Model::start();
    let listed = "  openai: {models: [{name: m, upstream_name: org/m}]}";
    let server = with_keys(&model, listed, "");
    let body = json!({"model": "m", "input": "abcd", "max_output_tokens": 20, "background": true,
        "metadata": {"stand_in": {"tokens": 7}}});
    let start = || {
        let answer = EventStream::post(server.gateway_addr(), "/v1/responses", &[ACME], &body);
        let mut answer = answer.expect("an answer");
        (answer.status, answer.json())
    };
    let used = || {
        let peeked = server.client().post("/rate-limit/peek", &json!({"tenantId": "acme"})).json();
        let scopes = peeked["scopes"].as_array().expect("scopes").clone();
        let tokens = scopes.iter().find(|it| it["ruleId"] == "tokens").expect("a rule").clone();
        tokens["current"].as_u64().expect("a count")
    };
    let (status, begun) = start();
    assert_eq!((status, &begun["status"], &begun["model"]), (200, &json!("queued"), &json!("m")));
    let reserved = used();
    assert!(reserved > 20, "the estimate stays: {reserved}");
    // There is no room for another: what is reserved is not free.
    assert_eq!(start().0, 429);
    let id = begun["id"].as_str().expect("an id").to_owned();
    let path = format!("/v1/responses/{id}");
    let mut client = Client::connect(server.gateway_addr()).expect("a connection");
    for (method, path) in [("GET", path.clone()), ("POST", format!("{path}/cancel"))] {
        let foreign = client.request(method, &path, &[OTHER], b"");
        assert_eq!(foreign.status, 404, "{method}: {}", foreign.text());
        assert_eq!(foreign.json()["error"]["code"], "response_not_found");
    }
    assert_eq!(client.request("GET", "/v1/responses/resp_none", &[ACME], b"").status, 404);
    let polled = client.request("GET", &path, &[ACME], b"").json();
    assert_eq!((&polled["status"], used()), (&json!("queued"), reserved));
    assert_eq!(client.request("GET", &format!("{path}?model=x"), &[ACME], b"").status, 400);
    model.finish_background();
    let polled = client.request("GET", &path, &[ACME], b"").json();
    assert_eq!((&polled["status"], &polled["model"]), (&json!("completed"), &json!("m")));
    let total = polled["usage"]["total_tokens"].as_u64().expect("usage");
    eventually("it is settled at what it used", || used() == total);
    client.request("GET", &path, &[ACME], b"");
    assert_eq!(used(), total, "once");
    let arrived = model.arrived();
    assert!(arrived.iter().all(|it| it.path != "/v1/responses/resp_none"), "nothing foreign");
}

#[test]
fn a_background_response_that_nobody_asks_for_stays_charged_as_estimated() {
    let model = Model::start();
    let more = "  openai: {background_ttl_ms: 1}";
    let server = gateway(&model, &rules(1_000, 100), more).start();
    let body = json!({"model": "m", "input": "abcd", "max_output_tokens": 20, "background": true});
    let mut answer =
        EventStream::post(server.gateway_addr(), "/v1/responses", &[], &body).expect("an answer");
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let mut client = Client::connect(server.gateway_addr()).expect("a connection");
    eventually("it is forgotten", || client.get(&format!("/v1/responses/{id}")).status == 404);
    model.finish_background();
    assert_eq!(client.get(&format!("/v1/responses/{id}")).status, 404);
    assert!(used(&server, "tokens") > 20, "nothing was refunded");
}

#[test]
fn a_key_without_a_tenant_under_rules_by_tenant_is_warned_about_at_the_start() {
    let rules = "
rules:
  - {rule_id: by-tenant, identifier_type: tenant_id, limit: 40, window: 365d, algorithm: fixed_window}
";
    let start = |keys: &str| {
        let builder = ServerBuilder::default().gateway().rules(rules);
        let keys = builder.file("keys", keys);
        let config = format!(
            "identity: {{api_keys_file: '{}'}}
gateway: {{upstream: 'http://127.0.0.1:1'}}",
            keys.display()
        );
        builder.config(&config).start()
    };
    let unlimited = format!("sha256:{} user_id=ann\n", "a".repeat(64));
    let server = start(&unlimited);
    eventually("it is reported", || server.log().contains("1 of 1 registered API keys have no"));
    assert!(server.log().contains("by-tenant"));
    let server = start(&unlimited.replace("user_id", "tenant_id"));
    eventually("it serves", || server.log().contains("serving"));
    assert!(!server.log().contains("registered API keys have no"));
}
