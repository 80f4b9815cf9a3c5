//! Streams that outrun what was reserved for them, and get more.

use serde_json::{Value, json};
use tollgate_e2e::{Model, Server, eventually};
use tollgate_testkit::{FaultProxy, Redis};

use super::{chat, gateway, post, used, with};

/// Tokens, and so many requests and slots.
fn rules(tokens: u64, requests: u64, slots: u64) -> String {
    format!(
        "default: false
rules:
  - {{rule_id: tokens, identifier_type: global, unit: tokens, limit: {tokens}, window: 365d, algorithm: fixed_window, on_store_failure: closed}}
  - {{rule_id: also, scope: also, identifier_type: global, unit: tokens, limit: 100000, window: 1d, algorithm: sliding_window_log, on_store_failure: closed}}
  - {{rule_id: requests, identifier_type: global, limit: {requests}, window: 365d, algorithm: fixed_window, on_store_failure: closed}}
  - {{rule_id: slots, identifier_type: global, unit: concurrency, algorithm: concurrency, limit: {slots}, slot_ttl: 60s, on_store_failure: closed}}
"
    )
}

/// Four tokens are reserved for an answer, unless the client says.
const TOP_UP: &str =
    "  openai: {stream_overrun: top_up, default_output_tokens: 4, learn_output_tokens: false}";

/// A top-up that took a slot or counted a request would find none.
fn start(model: &Model, tokens: u64, store: &[String]) -> Server {
    start_by(model, &rules(tokens, 3, 1), store)
}

fn start_by(model: &Model, rules: &str, store: &[String]) -> Server {
    let builder = gateway(model, rules, TOP_UP).args(store);
    // A busy machine is no outage.
    builder.env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start()
}

/// A stream without a bound of its own.
fn stream(stand_in: &Value) -> Value {
    let mut body = with(chat(stand_in), "stream", json!(true));
    body.as_object_mut().expect("an object").remove("max_tokens");
    body
}

/// A counter without labels, or with these.
fn metric(server: &Server, name: &str) -> u64 {
    let text = server.client().get("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.trim().parse().expect("a number")
}

/// Checks what is counted, and that no token was lost or made up; gives how many charges there were.
fn check(server: &Server, tokens: u64, requests: u64) -> u64 {
    eventually("it is settled", || used(server, "tokens") == tokens);
    assert_eq!((used(server, "also"), used(server, "requests")), (tokens, requests));
    eventually("slots are given back", || used(server, "slots") == 0);
    let state = |state: &str| {
        metric(server, &format!("rate_limiter_reservations_total{{state=\"{state}\"}}"))
    };
    eventually("each has ended", || state("settled") + state("released") == state("reserved"));
    let of = |name: &str| metric(server, &format!("rate_limiter_{name}_tokens_total{{}}"));
    assert_eq!(of("reserved") + of("extra"), tokens + of("refunded"));
    state("reserved")
}

fn topped_up(store: &[String]) {
    let model = Model::start();
    let server = start(&model, 10_000, store);
    let (text, error) = post(&server, &stream(&json!({"tokens": 50}))).rest();
    assert!(error.is_none() && text.ends_with("data: [DONE]\n\n"), "{error:?}: {text}");
    assert_eq!(text.matches("tok ").count(), 50);
    // Four, and 64 more when twice as many have passed: those are for 136 in all.
    assert_eq!(check(&server, 59, 1), 2);
    let (text, error) = post(&server, &stream(&json!({"tokens": 700, "silent": true}))).rest();
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text.matches("tok ").count(), 700);
    eventually("unreported tokens are counted", || used(&server, "tokens") == 59 + 709);
    assert_eq!((used(&server, "requests"), model.ledger().tokens), (2, 59 + 709));
    let metrics = server.client().get("/metrics").text();
    let decided = metrics.lines().filter(|line| {
        line.starts_with("rate_limiter_requests_total{") && line.contains("model_id=\"m\"")
    });
    let decided: Vec<&str> = decided.collect();
    assert!(matches!(decided[..], [one] if one.ends_with(" 2")), "{decided:?}");
}

#[test]
fn a_stream_gets_more_and_is_settled_exactly_in_memory() {
    topped_up(&[]);
}

#[test]
fn a_stream_gets_more_and_is_settled_exactly_in_redis() {
    let redis = Redis::start();
    topped_up(&["--redis".to_owned(), redis.url()]);
}

fn refused(store: &[String]) {
    let model = Model::start();
    // Thirteen are reserved, then 64 more; for another 68 there is no room, and what there is goes in small pieces.
    let server = start(&model, 100, store);
    let mut body = stream(&json!({"tokens": 4_000, "delay_ms": 1}));
    let (text, error) = post(&server, &body).rest();
    assert!(error.is_none(), "ended properly: {error:?}");
    let passed = text.matches("tok ").count() as u64;
    assert!((175..4_000).contains(&passed), "{passed}");
    let last = text.trim_end().rsplit("data: ").next().expect("an event");
    let said: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(said["error"]["code"], "reservation_exceeded");
    let message = said["error"]["message"].as_str().expect("a message");
    for part in ["rule \"tokens\"", "of 100 tokens used", "passes in"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    // What was left when it was asked again depends on how fast the store answers.
    assert!(check(&server, 9 + passed, 1) >= 2, "some got more");
    eventually("the upstream's work ends", || model.active() == 0);
    // Now there is a debt, and nobody is let in.
    body["metadata"]["stand_in"] = json!({"tokens": 1});
    assert_eq!(post(&server, &body).status, 429);
}

#[test]
fn where_there_is_no_more_a_stream_is_stopped_in_memory() {
    refused(&[]);
}

#[test]
fn where_there_is_no_more_a_stream_is_stopped_in_redis() {
    let redis = Redis::start();
    refused(&["--redis".to_owned(), redis.url()]);
}

/// What is granted to a client that has left is given back.
#[test]
fn a_client_that_leaves_while_more_is_asked_for_leaks_nothing() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let model = Model::start();
    let server = start(&model, 10_000, &["--redis".to_owned(), proxy.url("redis")]);
    let mut answer = std::thread::scope(|scope| {
        let body = stream(&json!({"tokens": 50, "gated": true}));
        let opened = scope.spawn(|| post(&server, &{ body }));
        model.go_on(8);
        opened.join().expect("an answer")
    });
    for _ in 0..8 {
        answer.event().expect("an event");
    }
    assert_eq!(used(&server, "tokens"), 13, "nothing more so far");
    // From now on an answer of the store takes longer than the client stays.
    proxy.delay(std::time::Duration::from_millis(500));
    model.go_on(1);
    assert!(answer.event().expect("an event").is_some(), "not held up");
    drop(answer);
    eventually("the upstream's work ends", || model.active() == 0);
    proxy.heal();
    assert_eq!(check(&server, 18, 1), 2);
    let released = metric(&server, "rate_limiter_reservations_total{state=\"released\"}");
    assert_eq!(released, 1, "what nobody wanted any more");
}

/// Many streams want more of one limit than there is: some are stopped, and every token is counted once.
#[test]
fn many_streams_share_what_there_is_exactly() {
    const STREAMS: u64 = 60;
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    for store in [vec![], vec!["--redis".to_owned(), redis.url()]] {
        let model = Model::start();
        let server = start_by(&model, &rules(6_000, STREAMS, STREAMS), &store);
        let ends: Vec<(u64, bool)> = std::thread::scope(|scope| {
            let streams: Vec<_> = (0..STREAMS)
                .map(|number| {
                    let tokens = 20 + number * 7;
                    let body = stream(&json!({"tokens": tokens, "delay_ms": 1}));
                    let server = &server;
                    scope.spawn(move || {
                        let (text, error) = post(server, &body).rest();
                        assert!(error.is_none(), "{error:?}");
                        let is_whole = text.ends_with("data: [DONE]\n\n");
                        assert!(is_whole || text.contains("reservation_exceeded"), "{text}");
                        let passed = text.matches("tok ").count() as u64;
                        assert!(!is_whole || passed == tokens);
                        (passed, is_whole)
                    })
                })
                .collect();
            streams.into_iter().map(|stream| stream.join().expect("a stream")).collect()
        });
        let whole = ends.iter().filter(|(_, is_whole)| *is_whole).count();
        println!("{whole} of {STREAMS} came to their end");
        assert!(whole > 0 && whole < ends.len(), "{whole} of {STREAMS}");
        let used_in_all: u64 = ends.iter().map(|(passed, _)| 9 + passed).sum();
        assert!(check(&server, used_in_all, STREAMS) > STREAMS, "some got more");
    }
}
