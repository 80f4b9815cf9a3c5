//! A client that leaves pays at least its prompt once it was sent, and nothing before that.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};
use tollgate_e2e::{Model, Server, eventually};
use tollgate_testkit::Redis;

use super::{
    PATH, WHOLE_ANSWERS, chat, earn_allowance, gateway, gateway_to, post, rules, used, with,
};

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
    // Else what is reserved for the answers is paid: the model may have worked on them.
    let mut paid = earn_allowance(&server, 1_000);
    for (nth, (path, body, least)) in (WHOLE_ANSWERS + 1..).zip(calls) {
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
    eventually("the upstream's work ends", || model.active() == 0);
    assert_eq!(used(&server, "tokens"), PROMPT + 20, "nothing is known of the model");
    assert_eq!((used(&server, "requests"), model.ledger().requests), (1, 1));
}

/// Before its answer begins, it pays what was reserved where nothing is known of the model: it may have thought for long.
#[test]
fn before_the_answer_of_an_unknown_model_it_pays_what_was_reserved() {
    let model = Model::start();
    let server = gateway(&model, &rules(100_000, 100), "").start();
    let body = with(long(&json!({"gated": true})), "max_tokens", json!(5_000));
    let client = send(&server, PATH, &body);
    eventually("it arrives", || model.active() == 1);
    drop(client);
    eventually("the upstream's work ends", || model.active() == 0);
    assert_eq!(used(&server, "tokens"), PROMPT + 5_000);
}

/// Short answers that hide nothing do not make those free that hide much: a client that leaves before the usage pays it.
#[test]
fn harmless_answers_do_not_make_hidden_tokens_free() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000_000, 1_000), "").start();
    for _ in 0..3 {
        earn_allowance(&server, 6);
    }
    let stream = |stand_in: &Value, thinking: u64| {
        let body = with(chat(stand_in), "stream", json!(true));
        with(body, "max_tokens", json!(20 + thinking))
    };
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 1_505, "total_tokens": 1_514});
    let hidden = json!({"tokens": 5, "gated": true, "usage": usage});
    for _ in 0..3 {
        let before = used(&server, "tokens");
        let mut answer = std::thread::scope(|scope| {
            let opened = scope.spawn(|| post(&server, &stream(&hidden, 2_000)));
            model.go_on(4);
            opened.join().expect("an answer")
        });
        for _ in 0..4 {
            answer.event().expect("an event");
        }
        drop(answer);
        model.go_on(1);
        eventually("what it used is paid", || used(&server, "tokens") == before + 1_514);
    }
    // The model is known to hide tokens now, however many plain answers follow: without a usage, the reservation is paid.
    earn_allowance(&server, 1_000);
    let before = used(&server, "tokens");
    let mut answer = post(&server, &stream(&json!({"tokens": 20, "hang_after": 2}), 2_000));
    for _ in 0..2 {
        answer.event().expect("an event");
    }
    drop(answer);
    eventually("the upstream's work ends", || model.active() == 0);
    assert_eq!(used(&server, "tokens"), before + 9 + 2_020);
}

/// Streams of every API, left after each number of tokens: the prompt and what was seen are paid.
fn leaves_at_any_point(store: &[String]) {
    const TOKENS: u64 = 5;
    let text = "xyz ".repeat(100);
    let stand_in = |after: u64| json!({"stand_in": {"tokens": TOKENS, "hang_after": after}});
    let user = json!([{"role": "user", "content": text}]);
    let calls = [
        ("openai", PATH, json!({"model": "m", "max_tokens": 20, "messages": user})),
        ("openai", "/v1/completions", json!({"model": "m", "max_tokens": 20, "prompt": text})),
        ("openai", "/v1/responses", json!({"model": "m", "max_output_tokens": 20, "input": text})),
        ("anthropic", "/v1/messages", json!({"model": "m", "max_tokens": 20, "messages": user})),
    ];
    for (kind, path, body) in calls {
        let model = Model::start();
        let config = format!(
            "gateway:
  pools: {{gpu: {{targets: [{{url: '{}'}}]}}}}
  routes: [{{name: ai, kind: {kind}, paths: ['/v1/*'], pool: gpu}}]",
            model.url()
        );
        let builder = tollgate_e2e::ServerBuilder::default().gateway().rules(&rules(100_000, 100));
        let server = builder.config(&config).args(store).start();
        let start = used(&server, "tokens");
        let mut least = start;
        for after in 1..=TOKENS {
            let body = with(with(body.clone(), "stream", json!(true)), "metadata", stand_in(after));
            let answer = tollgate_e2e::EventStream::post(server.gateway_addr(), path, &[], &body);
            let (mut answer, mut seen) = (answer.expect("an answer"), 0);
            while seen < after {
                let event = answer.event().expect("an event").expect("not the end");
                seen += event.matches("tok ").count() as u64;
            }
            drop(answer);
            eventually("the upstream's work ends", || model.active() == 0);
            least += 100 + after;
            eventually("it is paid", || used(&server, "tokens") >= least);
        }
    }
}

#[test]
fn at_any_point_it_pays_its_prompt_and_what_it_has_seen() {
    leaves_at_any_point(&[]);
}

#[test]
fn at_any_point_it_pays_its_prompt_and_what_it_has_seen_on_redis() {
    let redis = Redis::start();
    leaves_at_any_point(&["--redis".to_owned(), redis.url()]);
}
