//! Slow, greedy and too many clients.

use serde_json::json;
use tollgate_e2e::{ServerBuilder, eventually};

#[test]
fn a_slow_header_a_slow_body_and_an_idle_connection_are_cut() {
    let server = ServerBuilder::default()
        .env("TOLLGATE_LIMITS_HEADER_TIMEOUT_MS", "300")
        .env("TOLLGATE_LIMITS_BODY_TIMEOUT_MS", "300")
        .env("TOLLGATE_LIMITS_IDLE_TIMEOUT_MS", "600")
        .start();
    let mut slow_header = server.client();
    slow_header.write(b"GET /healthz HTTP/1.1\r\nhost:").expect("a write");
    assert!(slow_header.is_closed_by_server());
    let mut slow_body = server.client();
    slow_body
        .write(b"POST /rate-limit/allow HTTP/1.1\r\nhost: t\r\ncontent-length: 50\r\n\r\n{\"user")
        .expect("a write");
    let response = slow_body.read_response().expect("an answer");
    assert_eq!(response.status, 408);
    assert!(slow_body.is_closed_by_server());
    let mut idle = server.client();
    assert_eq!(idle.get("/healthz").status, 200);
    assert!(idle.is_closed_by_server());
}

#[test]
fn one_connection_too_many_is_told_so_and_room_comes_back() {
    let server = ServerBuilder::default().env("TOLLGATE_LIMITS_MAX_CONNECTIONS", "4").start();
    let mut held: Vec<_> = (0..4).map(|_| server.client()).collect();
    for client in &mut held {
        assert_eq!(client.get("/healthz").status, 200);
    }
    let response = server.client().read_response().expect("an answer");
    assert_eq!(response.status, 503);
    assert_eq!(response.json()["error"]["code"], "TOO_MANY_CONNECTIONS");
    held.clear();
    eventually("a connection is free again", || {
        let mut client = server.client();
        client.try_request("GET", "/healthz", &[], b"").is_ok_and(|answer| answer.status == 200)
    });
}

#[test]
fn a_header_section_beyond_its_bound_is_refused() {
    let server = ServerBuilder::default().start();
    let value = "x".repeat(64 << 10);
    let mut client = server.client();
    if let Ok(response) = client.try_request("GET", "/healthz", &[("x-big", &value)], b"") {
        assert_eq!(response.status, 431);
    }
    let body = json!({"userId": "ann", "modelId": "gpt4"});
    assert_eq!(server.client().allow(&body)["remaining"], 99);
}

#[test]
fn an_answer_is_not_held_back_by_what_follows_its_request() {
    let server = ServerBuilder::default().start();
    let body = r#"{"userId":"ann","modelId":"gpt4"}"#;
    let whole = format!(
        "POST /rate-limit/allow HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for rest in ["\r\n", "GET /healthz HT", "\0\0"] {
        let mut client = server.client();
        client.write(format!("{whole}{rest}").as_bytes()).expect("a write");
        let response = client.read_response().expect("the first request is answered");
        assert_eq!(response.status, 200);
    }
    // Two whole ones in one write are both answered, in order.
    let mut client = server.client();
    client.write(format!("{whole}{whole}").as_bytes()).expect("a write");
    let first = client.read_response().expect("an answer").json();
    let second = client.read_response().expect("an answer").json();
    assert_eq!((&first["remaining"], &second["remaining"]), (&json!(96), &json!(95)));
    // What is no request gets an answer, not silence.
    let mut client = server.client();
    client.write(b"complete garbage\r\n\r\n").expect("a write");
    assert_eq!(client.read_response().expect("an answer").status, 400);
}
