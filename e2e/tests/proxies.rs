//! `/rate-limit/auth` as nginx, Traefik and Caddy ask it.

use tollgate_e2e::Server;

const RULES: &str = "
deny_list: ['ip:203.0.113.9']
rules: [{rule_id: login, identifier_type: ip, limit: 2, window: 365d, algorithm: fixed_window,
         applies_to: {endpoints: [/login], methods: [POST]}}]";

#[test]
fn the_answer_is_the_status() {
    let server = Server::with_rules(RULES);
    let mut client = server.client();
    let headers = [
        ("x-tollgate-ip", "198.51.100.7"),
        ("x-original-uri", "/a/..//login?next=/"),
        ("x-original-method", "POST"),
    ];
    for _ in 0..2 {
        let response = client.request("GET", "/rate-limit/auth", &headers, b"");
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.header("x-ratelimit-limit"), Some("2"));
        assert_eq!(response.header("x-tollgate-status"), Some("200"));
    }
    let response = client.request("GET", "/rate-limit/auth", &headers, b"");
    assert_eq!(response.status, 429);
    assert!(response.header("retry-after").is_some());
    assert_eq!(response.header("x-tollgate-reason"), Some("HIT_LOGIN_LIMIT"));
    let error = &response.json()["error"];
    assert_eq!(error["code"], "RATE_LIMIT_EXCEEDED");
    assert_eq!((&error["rule_id"], &error["scope"]), (&"login".into(), &"login".into()));

    let response = client.request("GET", "/rate-limit/auth?refuse_status=403", &headers, b"");
    assert_eq!(response.status, 403, "nginx knows only 401 and 403");
    assert_eq!(response.header("x-tollgate-status"), Some("429"));

    let mut problem = headers.to_vec();
    problem.push(("accept", "application/problem+json, */*"));
    let response = client.request("GET", "/rate-limit/auth", &problem, b"");
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    let body = response.json();
    assert!(body["type"].as_str().is_some_and(|kind| kind.ends_with("quota-exceeded")));
    assert_eq!(body["violated-policies"], serde_json::json!(["login"]));

    let other = [("x-tollgate-ip", "198.51.100.7"), ("x-original-uri", "/other")];
    assert_eq!(client.request("GET", "/rate-limit/auth", &other, b"").status, 200);
    let listed = [("x-tollgate-ip", "::ffff:203.0.113.9")];
    let response = client.request("GET", "/rate-limit/auth", &listed, b"");
    assert_eq!(response.status, 403);
    assert_eq!(response.json()["error"]["code"], "DENY_LISTED");
}

#[test]
fn wrong_headers_and_parameters_are_named() {
    let server = Server::with_rules(RULES);
    let mut client = server.client();
    let wrong_ip = [("x-tollgate-ip", "nowhere")];
    let response = client.request("GET", "/rate-limit/auth", &wrong_ip, b"");
    assert_eq!((response.status, &response.json()["error"]["field"]), (400, &"ip".into()));
    let response = client.request("GET", "/rate-limit/auth", &[("x-tollgate-cost", "-1")], b"");
    assert_eq!(response.json()["error"]["field"], "x-tollgate-cost");
    for query in ["refuse_status=200", "refuse_status=abc", "nonsense=1"] {
        let response = client.get(&format!("/rate-limit/auth?{query}"));
        assert_eq!(response.status, 400, "{query}");
    }
    for query in ["", "model_id=m", "user_id=a&user_id=b", "user_id=a&nonsense=1"] {
        let response = client.get(&format!("/api/v1/rate-limits/status?{query}"));
        assert_eq!(response.status, 400, "{query}");
    }
}
