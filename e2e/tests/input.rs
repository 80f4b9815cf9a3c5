//! Bad input: a 4xx that names the field, and nothing charged.

use serde_json::{Value, json};
use tollgate_e2e::{Client, Server, ServerBuilder, eventually};

fn remaining(client: &mut Client) -> u64 {
    let body = json!({"userId": "ann", "modelId": "gpt4"});
    let peeked = client.post("/rate-limit/peek", &body).json();
    peeked["remaining"].as_u64().expect("a figure")
}

fn refused(server: &Server, path: &str, body: &[u8], status: u16, field: &str) {
    // A new connection: an answer to an oversized body closes it.
    let response = server.client().request("POST", path, &[], body);
    let shown = String::from_utf8_lossy(body.get(..80.min(body.len())).unwrap_or_default());
    assert_eq!(response.status, status, "{path} {shown}: {}", response.text());
    let error = &response.json()["error"];
    assert_eq!(error["field"], field, "{path} {shown}: {error}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
    assert!(error["code"].as_str().is_some_and(|code| !code.is_empty()));
}

#[test]
fn wrong_fields_are_named_and_charge_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let many: Value =
        (0..100).map(|i| (format!("a{i}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let long = "x".repeat(257);
    let cases = [
        (json!({"userId": "ann", "modelId": "gpt4", "cost": -1}), "cost"),
        (json!({"userId": "ann", "modelId": "gpt4", "cost": 1.5}), "cost"),
        (json!({"userId": "ann", "modelId": "gpt4", "cost": "1"}), "cost"),
        (json!({"userId": "ann", "modelId": "gpt4", "cost": 9_007_199_254_740_992_u64}), "cost"),
        (json!({"userId": "ann", "modelId": "gpt4", "tokens": -5}), "tokens"),
        (json!({"userId": 7, "modelId": "gpt4"}), "userId"),
        (json!({"userId": long, "modelId": "gpt4"}), "userId"),
        (json!({"userId": "ann", "modelId": long}), "modelId"),
        (json!({"userId": "ann", "modelId": "gpt4", "apiKey": long}), "apiKey"),
        (json!({"userId": "ann", "modelId": "gpt4", "ip": "999.1.1.1"}), "ip"),
        (json!({"userId": "ann", "modelId": "gpt4", "endpoint": "/a%zz"}), "endpoint"),
        (json!({"userId": "ann", "modelId": "gpt4", "endpoint": "login"}), "endpoint"),
        (json!({"userId": "ann", "modelId": "gpt4", "attributes": many}), "attributes"),
        (json!({"userId": "ann", "modelId": "gpt4", "attributes": {"a": 1}}), "attributes"),
        (json!({"userId": "ann", "modelId": "gpt4", "attributes": {"user_id": "b"}}), "attributes"),
        (json!({"userId": "ann", "modelId": "gpt4", "requestId": long}), "requestId"),
        (json!({"user_id": "ann", "modelId": "gpt4"}), "user_id"),
    ];
    for path in ["/rate-limit/allow", "/rate-limit/peek"] {
        for (body, field) in &cases {
            refused(&server, path, body.to_string().as_bytes(), 400, field);
        }
    }
    let twice = br#"{"userId": "ann", "modelId": "gpt4", "attributes": {"a": "1", "a": "1"}}"#;
    refused(&server, "/rate-limit/allow", twice, 400, "attributes");
    refused(&server, "/rate-limit/check", br#"{"userId": "ann"}"#, 400, "modelId");
    refused(&server, "/rate-limit/check", br#"{"userId": "", "modelId": "m"}"#, 400, "userId");
    refused(&server, "/rate-limit/allow/batch", b"{}", 400, "requests");
    let batch = json!({"requests": [{"userId": "ann"}, {"userId": "ann", "cost": -1}]});
    let path = "/rate-limit/allow/batch";
    refused(&server, path, batch.to_string().as_bytes(), 400, "requests[1].cost");
    let batch = json!({"requests": vec![json!({"userId": "ann", "modelId": "gpt4"}); 1001]});
    refused(&server, path, batch.to_string().as_bytes(), 400, "requests");
    assert_eq!(remaining(&mut client), 100, "nothing was charged");
}

#[test]
fn bodies_that_are_no_json_are_refused() {
    let server = Server::start();
    let mut client = server.client();
    let deep = "[".repeat(100_000);
    let bodies: [&[u8]; 6] =
        [b"", b"{", b"[]", b"\xff\xfe{}", br#"{"userId":"\ud800"}"#, deep.as_bytes()];
    for body in bodies {
        refused(&server, "/rate-limit/allow", body, 400, "body");
    }
    let mut invalid_utf8 = br#"{"userId":"an"#.to_vec();
    invalid_utf8.extend_from_slice(b"\xc3\x28\"}");
    refused(&server, "/rate-limit/allow", &invalid_utf8, 400, "body");
    assert_eq!(remaining(&mut client), 100);
}

#[test]
fn a_ten_megabyte_field_is_too_large() {
    let server = Server::start();
    let body = json!({"userId": "x".repeat(10 << 20), "modelId": "gpt4"}).to_string();
    let mut client = server.client();
    // The server may answer and close before it has read everything.
    let sent = client.try_request("POST", "/rate-limit/allow", &[], body.as_bytes());
    if let Ok(response) = sent {
        assert_eq!(response.status, 413, "{}", response.text());
        assert_eq!(response.json()["error"]["field"], "body");
    }
    let under = json!({"userId": "x".repeat(1 << 19), "modelId": "gpt4"}).to_string();
    refused(&server, "/rate-limit/allow", under.as_bytes(), 400, "userId");
    assert_eq!(remaining(&mut server.client()), 100);
}

#[test]
fn random_bytes_never_bring_it_down() {
    let server = Server::start();
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let valid = json!({"userId": "ann", "modelId": "gpt4", "cost": 1, "attributes": {"a": "b"},
        "endpoint": "/a/../b", "ip": "::1", "method": "GET"})
    .to_string()
    .into_bytes();
    for round in 0..2_000 {
        let mut body = valid.clone();
        for _ in 0..=random() % 4 {
            let at = (random() % body.len() as u64) as usize;
            if let Some(byte) = body.get_mut(at) {
                *byte = random() as u8;
            }
        }
        let response = server.client().request("POST", "/rate-limit/peek", &[], &body);
        assert!(
            matches!(response.status, 200 | 400),
            "round {round}: {} for {}",
            response.status,
            String::from_utf8_lossy(&body)
        );
    }
    assert_eq!(server.client().get("/healthz").status, 200);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// A browser sends a simple POST of any page to loopback, and hides nothing but the answer.
#[test]
fn a_page_of_another_site_charges_nothing() {
    let server = ServerBuilder::default()
        .rules("rules: [{rule_id: all, limit: 1, window: 365d, algorithm: fixed_window}]")
        .start();
    let mut client = Client::connect(server.addr()).unwrap();
    let own = format!("http://{}", server.addr());
    for headers in [
        &[("origin", "https://evil.example"), ("content-type", "text/plain")][..],
        &[("origin", "null")],
        &[("origin", "http://rebound.example"), ("host", "rebound.example")],
    ] {
        let answer = client.request("POST", "/rate-limit/allow", headers, b"{}");
        assert_eq!(answer.status, 403, "{headers:?}");
    }
    let answer =
        client.request("GET", "/rate-limit/auth", &[("sec-fetch-site", "cross-site")], b"");
    assert_eq!(answer.status, 403);
    // A page under a name that points here is of the same origin: it sends no Origin, and any header but Host.
    for headers in [
        &[("host", "rebound.example")][..],
        &[("host", "rebound.example:8080"), ("x-tollgate-ip", "192.0.2.1")],
    ] {
        let answer = client.request("GET", "/rate-limit/auth", headers, b"");
        assert_eq!(answer.status, 403, "{headers:?}");
        assert_eq!(answer.json()["error"]["code"], "FOREIGN_HOST");
    }
    let kind = ("content-type", "application/x-www-form-urlencoded");
    let allowed = client.request("POST", "/rate-limit/allow", &[kind], b"{}");
    assert_eq!(allowed.json()["allowed"], true, "as curl -d sends it, and nothing was charged");
    let refused = client.request("POST", "/rate-limit/allow", &[("origin", &own)], b"{}");
    assert_eq!(refused.json()["allowed"], false);
}

/// A page under a name that its author has pointed at this machine reads nothing: its calls are of the same origin, so
/// the browser hides no answer from it.
#[test]
fn a_page_under_a_rebound_name_reads_nothing() {
    let server = Server::start();
    let get = |path: &str, host: &str| {
        let mut client = Client::connect(server.addr()).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        client.write(request.as_bytes()).unwrap();
        client.read_response().unwrap()
    };
    let own = server.addr().to_string();
    for path in ["/metrics", "/api/v1/rate-limits/status?user_id=ann"] {
        for host in ["rebound.example", "rebound.example:8080", "127.0.0.1.rebound.example"] {
            let answer = get(path, host);
            assert_eq!(answer.status, 403, "{path} as {host}");
            assert_eq!(answer.json()["error"]["code"], "FOREIGN_HOST");
        }
        for host in [own.as_str(), "localhost:8080", "tollgate:8080"] {
            assert_eq!(get(path, host).status, 200, "{path} as {host}");
        }
    }
    // Health checks get their status under any name.
    for path in ["/healthz", "/readyz", "/healthcheck", "/openapi.json"] {
        assert_eq!(get(path, "rebound.example").status, 200, "{path}");
    }
}

/// The warnings of a node are for its operators.
#[test]
fn readiness_under_a_rebound_name_has_no_detail() {
    let data = tempfile::tempdir().unwrap();
    std::fs::create_dir(data.path().join("control.db")).unwrap();
    let server = ServerBuilder::default()
        .no_data_dir()
        .arg("--data-dir")
        .arg(&data.path().display().to_string())
        .start();
    eventually("readiness warns", || server.client().get("/readyz").text().contains("warning: "));
    let mut client = Client::connect(server.addr()).unwrap();
    client.write(b"GET /readyz HTTP/1.1\r\nhost: rebound.example\r\n\r\n").unwrap();
    let answer = client.read_response().unwrap();
    // It has no rules yet, and says no more than that.
    assert_eq!(answer.status, 503);
    assert!(!answer.text().contains("warning"), "{}", answer.text());
}
