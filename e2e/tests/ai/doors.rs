//! What is not let in, and what leaves nothing behind when the door is shut.

use serde_json::{Value, json};
use tollgate_e2e::{Client, EventStream, Model, Server, ServerBuilder, eventually};
use tollgate_testkit::Redis;

use super::{PATH, chat, gateway, registered, rules, used, with};

/// A gateway whose clients have keys, in front of an upstream that has one of its own.
fn start(model: &Model, more: &str) -> Server {
    let url = model.url();
    let builder = ServerBuilder::default().gateway().rules(&rules(1_000, 100));
    let keys = builder.file("keys", &registered());
    let own = builder.file("own", "sk-of-the-operator");
    let config = format!(
        "identity: {{api_keys_file: '{}', api_key_as_bearer: true}}
gateway:
  pools: {{gpu: {{targets: [{{url: '{url}'}}], api_key_file: '{}'}}}}
  routes: [{{name: ai, kind: openai, paths: ['/v1/*'], pool: gpu}}]
{more}",
        keys.display(),
        own.display()
    );
    builder.config(&config).start()
}

fn post(server: &Server, path: &str, headers: &[(&str, &str)]) -> (u16, Value) {
    let body = chat(&json!({"tokens": 5}));
    let mut answer =
        EventStream::post(server.gateway_addr(), path, headers, &body).expect("an answer");
    (answer.status, answer.json())
}

#[test]
fn who_shows_nothing_is_not_served_where_there_are_keys() {
    let model = Model::start();
    let server = start(&model, "");
    for headers in [&[][..], &[("authorization", "Basic eDp5")][..]] {
        let (status, said) = post(&server, PATH, headers);
        assert_eq!((status, &said["error"]["code"]), (401, &json!("missing_api_key")), "{said}");
    }
    assert_eq!((model.ledger().requests, used(&server, "requests")), (0, 0));
    assert_eq!(post(&server, PATH, &[("authorization", "Bearer sk-acme")]).0, 200);
    // Where nobody has a key, nobody is asked for one.
    let open = gateway(&model, &rules(1_000, 100), "").start();
    assert_eq!(post(&open, PATH, &[]).0, 200);
    let shut = gateway(&model, &rules(1_000, 100), "  openai: {anonymous: refuse}").start();
    assert_eq!(post(&shut, PATH, &[]).0, 401);
}

/// Servers differ in how they read a path: what is not exactly a call that is counted goes nowhere.
#[test]
fn what_nobody_counts_is_not_forwarded() {
    let model = Model::start();
    let server = start(&model, "");
    let key = [("authorization", "Bearer sk-acme")];
    for path in [
        "/v1/chat%2Fcompletions",
        "/v1/chat%5Ccompletions",
        "/v1/Chat/Completions",
        "/v1/chat/completions;a=1",
        "/v1/chat/completions%20",
        "/v1/messages",
        "/v1/batches",
        "/v1/..%2fadmin",
    ] {
        let (status, said) = post(&server, path, &key);
        assert!(matches!(status, 400 | 404), "{path}: {status} {said}");
        assert!(said["error"]["type"].is_string() || status == 400, "{path}: {said}");
    }
    let mut client = Client::connect(server.gateway_addr()).expect("a connection");
    for path in ["/v1/files", "/v1/models/..%2ffiles", "/v1/models/a%2F..%2F..%2Ffiles", PATH] {
        let answer = client.request("GET", path, &key, b"");
        assert!(matches!(answer.status, 400 | 404), "{path}: {}", answer.status);
    }
    assert!(model.arrived().is_empty(), "{:?}", model.arrived().len());
    // Who wants it so has it so, and none of our keys goes on, whatever header it is in.
    let server = start(&model, "  openai: {other_calls: forward, forward_paths: [/v1/files]}");
    for key in [("authorization", "Bearer sk-acme"), ("x-api-key", "sk-acme")] {
        post(&server, "/v1/files", &[key]);
        post(&server, PATH, &[key]);
    }
    let arrived = model.arrived();
    assert_eq!(arrived.len(), 4);
    for one in arrived {
        assert_eq!(one.header("authorization"), Some("Bearer sk-of-the-operator"));
        assert_eq!(one.header("x-api-key"), None);
    }
}

/// Headers by which servers behind a proxy take a request for another, and a change of the protocol: what follows it is
/// counted by nobody.
#[test]
fn a_list_of_models_stays_one() {
    let model = Model::start();
    let server = start(&model, "");
    let headers = [
        ("authorization", "Bearer sk-acme"),
        ("x-http-method-override", "POST"),
        ("x_http_method_override", "POST"),
        ("x-original-url", PATH),
        ("x-model-id", "secret-large"),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let mut client = Client::connect(server.gateway_addr()).expect("a connection");
    let answer = client.request("GET", "/v1/models", &headers, b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let arrived = model.arrived().pop().expect("a request");
    assert_eq!(arrived.path, "/v1/models");
    for (name, _) in &headers[1..7] {
        assert_eq!(arrived.header(name), None, "{name}");
    }
}

/// What is not routed is refused in the shape of the API, too.
#[test]
fn refusals_before_a_route_have_the_shape_of_the_api() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    for (path, status, code) in [
        ("/v1/chat/%zz", 400, "invalid_path"),
        ("/v1/a%2Fb%2Fc%2Fd%2Fe%2Ff%2Fg", 400, "invalid_path"),
        ("/other/chat/completions", 404, "no_route"),
    ] {
        let (answered, said) = post(&server, path, &[]);
        assert_eq!((answered, &said["error"]["code"]), (status, &json!(code)), "{path}: {said}");
        assert!(said["error"]["type"].is_string(), "{path}: {said}");
    }
    assert_eq!(model.ledger().requests, 0);
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    for body in [
        with(chat(&json!({})), "stream", json!("true")),
        with(chat(&json!({})), "stream", json!(1)),
    ] {
        let mut answer = super::post(&server, &body);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("stream")));
    }
    // Of two bounds the larger one is reserved.
    let body = with(chat(&json!({"tokens": 1})), "max_completion_tokens", json!(400));
    let answer = super::post(&server, &body);
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), Some("591"));
}

/// Streams that are cut at the end of the drain are settled for what they used, in a shared store too.
#[test]
fn a_server_that_is_stopped_settles_what_it_cuts() {
    let model = Model::start();
    let redis = Redis::start();
    let rules = "
default: false
rules:
  - {rule_id: tokens, identifier_type: global, unit: tokens, limit: 100000, window: 365d, algorithm: fixed_window}
  - {rule_id: slots, identifier_type: global, unit: concurrency, algorithm: concurrency, limit: 10, slot_ttl: 1h}
";
    let store = ["--redis".to_owned(), redis.url()];
    let builder = gateway(&model, rules, "").args(&store);
    let mut server = builder
        .env("TOLLGATE_REDIS_TIMEOUT_MS", "5000")
        .env("TOLLGATE_LIMITS_DRAIN_TIMEOUT_MS", "300")
        .start();
    let body = json!({"model": "m", "max_tokens": 16_000, "stream": true, "metadata": {"stand_in": {"tokens": 50, "hang_after": 3}},
        "messages": [{"role": "user", "content": "abcd"}]});
    let mut streams: Vec<EventStream> = (0..3).map(|_| super::post(&server, &body)).collect();
    for stream in &mut streams {
        let mut seen = 0;
        while seen < 3 {
            let event = stream.event().expect("an event").expect("more of them");
            seen += event.matches("tok ").count();
        }
    }
    assert!(used(&server, "tokens") > 48_000, "reserved");
    server.signal("TERM");
    server.wait();
    server.start_again();
    eventually("what was made is paid, and no more", || used(&server, "tokens") == 3 * (9 + 3));
    assert_eq!(used(&server, "slots"), 0);
}
