//! Bodies that are read before anything is decided: bounded in time, and all together. And what upstreams say of
//! themselves, and do not say in time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_e2e::{EventStream, Model, Server, eventually};

use super::{PATH, chat, gateway, post, registered, rules, used, with};

/// A request whose body has this length; so much of it is sent.
fn begin(server: &Server, body: &str, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.gateway_addr()).expect("a connection");
    stream.set_read_timeout(Some(tollgate_e2e::PATIENCE)).expect("a timeout");
    stream.set_nodelay(true).expect("no delay");
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(&body.as_bytes()[..sent]).expect("sent");
    stream
}

/// The status of an answer.
fn status(stream: &mut TcpStream) -> u16 {
    let mut start = [0; 12];
    stream.read_exact(&mut start).expect("an answer");
    String::from_utf8_lossy(&start[9..]).parse().expect("a status")
}

/// Whether there is an answer already.
fn is_answered(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("not waiting");
    let is_answered = stream.peek(&mut [0]).is_ok();
    stream.set_nonblocking(false).expect("waiting");
    is_answered
}

fn long_chat() -> Value {
    with(
        chat(&json!({"tokens": 1})),
        "messages",
        json!([{"role": "user", "content": "x".repeat(1_500)}]),
    )
}

#[test]
fn all_bodies_together_are_bounded() {
    let model = Model::start();
    let more = "  openai: {max_body_bytes: 4000, max_buffered_bytes: 4000}";
    let server = gateway(&model, &rules(100_000, 100), more).start();
    let body = long_chat().to_string();
    // Of two requests nearly all is here; a third finds no room as soon as that is so.
    let mut begun: Vec<TcpStream> = (0..2).map(|_| begin(&server, &body, body.len() - 1)).collect();
    let mut refused = None;
    eventually("there is no room", || {
        // One whose bytes came while another's were there was refused itself.
        for stream in begun.iter_mut().filter(|stream| is_answered(stream)) {
            *stream = begin(&server, &body, body.len() - 1);
        }
        let answer = post(&server, &long_chat());
        let is_full = answer.status == 503;
        refused = Some(answer).filter(|_| is_full);
        is_full
    });
    let mut refused = refused.expect("a refusal");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let error = refused.json()["error"].clone();
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("server_error"), &json!("too_many_bodies"))
    );
    let before = model.ledger().requests;
    assert_eq!(used(&server, "requests"), before, "nothing is charged for it");
    for stream in &mut begun {
        stream.write_all(&body.as_bytes()[body.len() - 1..]).expect("sent");
        assert_eq!(status(stream), 200);
    }
    assert_eq!(post(&server, &long_chat()).status, 200, "there is room again");
    assert_eq!(used(&server, "requests"), before + 3);
}

/// A client that always sends something is let go all the same.
#[test]
fn who_sends_a_byte_now_and_then_is_let_go() {
    let model = Model::start();
    let server = gateway(&model, &rules(100_000, 100), "  openai: {body_timeout_ms: 400}").start();
    let body = long_chat().to_string();
    let mut stream = begin(&server, &body, 0);
    let mut answer = stream.try_clone().expect("a second hand");
    let answered = std::thread::spawn(move || status(&mut answer));
    for byte in body.as_bytes() {
        if answered.is_finished() || stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(answered.join().expect("a status"), 408);
    assert_eq!((used(&server, "requests"), model.ledger().requests), (0, 0));
}

#[test]
fn an_upstreams_own_limits_are_hidden_and_its_retry_after_is_not() {
    let model = Model::start();
    let server = gateway(&model, &rules(1_000, 100), "").start();
    let headers = json!({"x-ratelimit-limit-requests": "7", "x-ratelimit-remaining-images": "3",
        "openai-organization": "org-of-the-operator", "set-cookie": "__cf_bm=1", "retry-after": "13",
        "x-request-id": "req_1"});
    for (stand_in, expected) in [
        (json!({"tokens": 1, "headers": headers}), 200),
        (json!({"status": 429, "headers": headers}), 429),
    ] {
        let answer = post(&server, &chat(&stand_in));
        assert_eq!(answer.status, expected);
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("100"), "ours");
        assert_eq!(answer.header("retry-after"), Some("13"), "about this request");
        assert_eq!(answer.header("x-request-id"), Some("req_1"));
        for hidden in ["x-ratelimit-remaining-images", "openai-organization", "set-cookie"] {
            assert_eq!(answer.header(hidden), None, "{hidden}");
        }
    }
}

#[test]
fn an_upstream_that_does_not_answer_in_time_is_paid_for_the_prompt() {
    let model = Model::start();
    let more = "  openai: {answer_timeout_ms: 300}";
    let server = gateway(&model, &rules(1_000, 100), more).start();
    let mut answer = post(&server, &chat(&json!({"tokens": 5, "delay_ms": 60_000})));
    assert_eq!(answer.status, 504);
    let error = answer.json()["error"].clone();
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("server_error"), &json!("upstream_timeout"))
    );
    assert_eq!((used(&server, "tokens"), used(&server, "requests")), (9, 1));
    // Also in the middle of an answer: then what came is paid too.
    let body = with(chat(&json!({"tokens": 5, "hang_after": 3})), "stream", json!(true));
    let (text, error) = post(&server, &body).rest();
    assert!(error.is_some() && !text.contains("[DONE]"), "{text}");
    eventually("it is settled", || used(&server, "tokens") == 9 + 9 + 3);
    assert_eq!(used(&server, "requests"), 2);
}

/// Nobody is charged by what others' answers had.
#[test]
fn lengths_of_answers_are_learned_for_each_tenant() {
    let model = Model::start();
    let dir = tempfile::tempdir().expect("a directory");
    let keys = dir.path().join("keys");
    std::fs::write(&keys, registered()).expect("a file");
    let identity =
        format!("identity: {{api_keys_file: '{}', api_key_as_bearer: true}}", keys.display());
    let server = gateway(&model, &rules(1_000_000, 1_000), &identity).start();
    let mut body = chat(&json!({"tokens": 1}));
    body.as_object_mut().expect("an object").remove("max_tokens");
    let reserved = |key: &str| {
        let before = used(&server, "tokens");
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let mut answer =
            EventStream::post(server.gateway_addr(), PATH, &headers, &body).expect("an answer");
        assert_eq!(answer.status, 200);
        let left = answer.header("x-ratelimit-remaining-tokens").and_then(|it| it.parse().ok());
        let left: u64 = left.expect("a number");
        answer.json();
        eventually("it is settled", || used(&server, "tokens") == before + 10);
        1_000_000 - before - left
    };
    assert_eq!(reserved("sk-acme"), 9 + 1_000, "nothing is known yet");
    for _ in 0..30 {
        reserved("sk-acme");
    }
    assert_eq!(reserved("sk-acme"), 9 + 250, "a quarter of what is said, at least");
    assert_eq!(reserved("sk-other"), 9 + 1_000, "that was another's");
}
