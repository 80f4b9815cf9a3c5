//! Slow, greedy and too many clients.

use serde_json::json;
use tollgate_e2e::{ServerBuilder, eventually};

/// Refusals of one caller are a few records, however many there are; refusals under made-up names are bounded in bytes.
#[test]
fn refused_traffic_does_not_fill_the_disk() {
    const MAX_BYTES: u64 = 1 << 20;
    let server = ServerBuilder::default()
        .rules(
            "default: false\nrules: [{rule_id: u, identifier_type: user_id, limit: 0, window: 1h}]",
        )
        .env("TOLLGATE_AUDIT_AGGREGATE_SECONDS", "1")
        .env("TOLLGATE_AUDIT_MAX_BYTES", &MAX_BYTES.to_string())
        .start();
    let mut admin = server.admin();
    let mut client = server.client();
    let refused = json!({"userId": "ann", "tenantId": "quiet"});
    for _ in 0..200 {
        assert_eq!(client.allow(&refused)["allowed"], false);
    }
    let of = "audit?kind=decisions&user_id=ann&limit=1000";
    eventually("all are counted", || admin.get(of)["of"] == 200);
    let log = admin.get(of);
    assert!(log["items"].as_array().unwrap().len() <= 20, "{log}");
    assert!(log["kept"].as_u64().unwrap() < 20, "{log}");
    let batches: Vec<_> = (0..20)
        .map(|batch| {
            let one =
                |number: u32| json!({"userId": format!("{batch}-{number}"), "tenantId": "loud"});
            json!({"requests": (0..500).map(one).collect::<Vec<_>>()})
        })
        .collect();
    for batch in &batches {
        assert_eq!(client.post("/rate-limit/allow/batch", batch).status, 200);
    }
    // More than the bound was written by then, and the log is within it.
    let log = |filter: &str| format!("audit?kind=decisions{filter}&limit=1000");
    let mut loud = server.admin();
    eventually("the flood is written", || {
        loud.get(&log("&tenant_id=loud"))["items"].as_array().unwrap().len() > 100
    });
    eventually("the log is within its bound", || {
        let mut items = 0_u64;
        let mut cursor = String::new();
        loop {
            let page = loud.get(&log(&cursor));
            items += page["items"].as_array().unwrap().len() as u64;
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        items * 640 <= MAX_BYTES
    });
    assert_eq!(admin.get(of)["of"], 200, "the evidence of others stays");
    assert_eq!(client.allow(&json!({}))["allowed"], true, "and it decides");
}

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
fn one_connection_too_many_is_refused_and_room_returns() {
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

/// A client that never reads its answer holds a bounded part of the memory, and others are answered.
#[test]
fn answers_that_nobody_reads_are_bounded() {
    // An answer to a batch is larger than what the system's buffers take, and two do not fit.
    const MAX_BYTES: usize = 8 << 20;
    let rule = |number| {
        format!(
            "  - {{rule_id: of-all-{number}, identifier_type: global, limit: 1000000, window: 1h}}"
        )
    };
    let rules: Vec<String> = (0..32).map(rule).collect();
    let rules = rules.join("\n");
    let server = ServerBuilder::default()
        .rules(&format!("default: false\nrules:\n{rules}"))
        .env("TOLLGATE_LIMITS_MAX_BUFFERED_BYTES", &MAX_BYTES.to_string())
        .start();
    let batch = json!({"requests": vec![json!({"userId": "ann"}); 1000]});
    let path = "/rate-limit/allow/batch";
    let answer = server.client().post(path, &batch);
    assert!((4 << 20..MAX_BYTES).contains(&answer.body.len()), "{}", answer.body.len());

    let mut stuck = server.client();
    let text = batch.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    let mut last = None;
    eventually("there is no room for another", || {
        // One answer may fit into the buffers of the system; all of them do not.
        stuck.write(format!("{head}{text}").as_bytes()).expect("a request");
        let answer = server.client().post(path, &batch);
        let is_refused = answer.status == 503;
        last = is_refused.then_some(answer);
        is_refused
    });
    let refused = last.expect("a refusal");
    assert_eq!(refused.json()["error"]["code"], "TOO_MANY_BYTES", "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("1"));
    let small =
        server.client().post("/rate-limit/check", &json!({"userId": "ann", "modelId": "m"}));
    assert_eq!(small.status, 200, "small ones pass");
    drop(stuck);
    eventually("there is room again", || server.client().post(path, &batch).status == 200);
}
