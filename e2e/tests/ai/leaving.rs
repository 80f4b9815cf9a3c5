//! A client that leaves pays at least its prompt once it was sent, and nothing before that.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};
use tollgate_e2e::{Model, Server, eventually};
use tollgate_testkit::Redis;

use super::{PATH, chat, gateway, gateway_to, rules, used, with};

/// Sends a request and reads nothing of its answer.
fn send(server: &Server, path: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(server.gateway_addr()).expect("a connection");
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).expect("sent");
    stream
}

/// A prompt of 1,000 short words: 1,000 tokens, and 8 for two messages' beginnings.
fn long(stand_in: &Value) -> Value {
    let content = "xyz ".repeat(1_000);
    with(chat(stand_in), "messages", json!([{"role": "user", "content": content}]))
}

const PROMPT: u64 = 1_008;

/// Leaves while the upstream has not answered, and before the first event of a stream.
fn leaves_before_the_answer(store: &[String]) {
    let model = Model::start();
    let server = gateway(&model, &rules(100_000, 100), "").args(store).start();
    let calls: [(&str, Value, u64); 4] = [
        (PATH, long(&json!({"gated": true})), PROMPT),
        (PATH, with(long(&json!({"hang_after": 0})), "stream", json!(true)), PROMPT),
        (
            "/v1/completions",
            json!({"model": "m", "prompt": "xyz ".repeat(1_000), "metadata": {"stand_in": {"gated": true}}}),
            1_000,
        ),
        (
            "/v1/responses",
            json!({"model": "m", "input": "xyz ".repeat(1_000), "metadata": {"stand_in": {"gated": true}}}),
            1_000,
        ),
    ];
    let mut paid = 0;
    for (nth, (path, body, least)) in (1..).zip(calls) {
        let client = send(&server, path, &body);
        eventually("it arrives", || model.active() == 1);
        assert!(used(&server, "tokens") >= paid + least, "{path}: reserved");
        drop(client);
        eventually("the upstream's work ends", || model.active() == 0);
        let was = paid;
        eventually("it is settled at its prompt", || {
            paid = used(&server, "tokens");
            (was + least..was + least + 20).contains(&paid)
        });
        assert_eq!(used(&server, "requests"), nth);
    }
}

#[test]
fn before_the_answer_it_pays_its_prompt() {
    leaves_before_the_answer(&[]);
}

#[test]
fn before_the_answer_it_pays_its_prompt_on_redis() {
    let redis = Redis::start();
    leaves_before_the_answer(&["--redis".to_owned(), redis.url()]);
}

#[test]
fn before_anything_was_sent_it_pays_nothing() {
    // An upstream that accepts connections, and never completes a TLS handshake.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let url = format!("https://{}", silent.local_addr().expect("an address"));
    let server = gateway_to(&url, &rules(100_000, 100), "").start();
    let client = send(&server, PATH, &long(&json!({})));
    let _connection = silent.accept().expect("a connection");
    assert_eq!((used(&server, "tokens"), used(&server, "requests")), (PROMPT + 20, 1), "reserved");
    drop(client);
    eventually("all of it is refunded", || {
        (used(&server, "tokens"), used(&server, "requests")) == (0, 0)
    });
}

#[test]
fn while_it_waits_for_its_turn_it_owes_nothing() {
    let model = Model::start();
    let more = "  openai: {models: [{name: m, pool: small}]}";
    let config = format!(
        "gateway:
  pools: {{small: {{targets: [{{url: '{}'}}], max_concurrency: 1}}}}
  routes: [{{name: ai, kind: openai, paths: ['/v1/*'], pool: small}}]
{more}",
        model.url()
    );
    let builder = tollgate_e2e::ServerBuilder::default().gateway().rules(&rules(100_000, 100));
    let server = builder.config(&config).start();
    let first = send(&server, PATH, &long(&json!({"gated": true})));
    eventually("it arrives", || model.active() == 1);
    let second = send(&server, PATH, &long(&json!({"gated": true})));
    eventually("the second is reserved", || used(&server, "tokens") == 2 * (PROMPT + 20));
    drop(second);
    eventually("the second is refunded", || used(&server, "tokens") == PROMPT + 20);
    drop(first);
    eventually("the first pays its prompt", || used(&server, "tokens") == PROMPT);
    assert_eq!((used(&server, "requests"), model.ledger().requests), (1, 1));
}
