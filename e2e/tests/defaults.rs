//! What a newcomer gets without any configuration.

use serde_json::json;
use tollgate_e2e::Server;

const LIMIT: u64 = 100;

#[test]
fn the_default_rule_allows_100_an_hour_and_explains_the_101st() {
    let server = Server::start();
    let mut client = server.client();
    let body = json!({"userId": "ann", "modelId": "gpt4"});
    for count in 1..=LIMIT {
        let response = client.post("/rate-limit/allow", &body);
        let decision = response.json();
        assert_eq!(decision["allowed"], true, "request {count}");
        assert_eq!(decision["reason"], "WITHIN_LIMITS");
        assert_eq!(decision["effectiveLimit"], LIMIT);
        assert_eq!(decision["remaining"], LIMIT - count);
        assert_eq!(decision["scopes"][0]["current"], count);
        assert_eq!(decision["scopes"][0]["windowSeconds"], 3600);
        assert_eq!(response.header("x-ratelimit-limit"), Some("100"));
        assert_eq!(response.header("x-ratelimit-remaining"), Some(&*(LIMIT - count).to_string()));
        assert_eq!(response.header("x-ratelimit-policy"), Some("100;w=3600"));
        assert_eq!(response.header("ratelimit-policy"), Some("\"default\";q=100;w=3600"));
        assert!(response.header("retry-after").is_none());
    }
    let response = client.post("/rate-limit/allow", &body);
    assert_eq!(response.status, 200);
    let decision = response.json();
    assert_eq!(decision["allowed"], false);
    assert_eq!(decision["reason"], "HIT_DEFAULT_LIMIT");
    assert_eq!(decision["scopeHit"], "DEFAULT");
    assert_eq!(decision["ruleId"], "default");
    assert_eq!(decision["remaining"], 0);
    let explanation = decision["explanation"].as_str().expect("an explanation");
    assert!(explanation.contains("user_id=ann"), "{explanation}");
    assert!(explanation.contains("100 of 100"), "{explanation}");

    // The first of the hundred leaves the window an hour after it came, and not a moment before.
    let retry = decision["retryAfterMs"].as_u64().expect("a retry-after");
    assert!((3_500_000..=3_600_000).contains(&retry), "{retry}");
    let header: u64 = response.header("retry-after").expect("a header").parse().expect("a number");
    assert_eq!(header, retry.div_ceil(1000));
    assert!(
        response.header("ratelimit").is_some_and(|value| value.starts_with("\"default\";r=0;t="))
    );

    // Another user, and another model, have counters of their own.
    for other in
        [json!({"userId": "bob", "modelId": "gpt4"}), json!({"userId": "ann", "modelId": "llama"})]
    {
        assert_eq!(client.allow(&other)["remaining"], LIMIT - 1);
    }
}

#[test]
fn the_small_form_counts_to_100() {
    let server = Server::start();
    let mut client = server.client();
    let body = json!({"userId": "ann", "modelId": "gpt4"});
    for count in 1..=LIMIT {
        let answer = client.post("/rate-limit/check", &body).json();
        let expected =
            json!({"allowed": true, "limit": LIMIT, "count": count, "windowSeconds": 3600});
        assert_eq!(answer, expected);
    }
    let answer = client.post("/rate-limit/check", &body).json();
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["count"], LIMIT);
}

#[test]
fn peek_and_status_charge_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let body = json!({"userId": "ann", "modelId": "gpt4"});
    client.allow(&body);
    for _ in 0..3 {
        let peeked = client.post("/rate-limit/peek", &body).json();
        assert_eq!(peeked["allowed"], true);
        assert_eq!(peeked["remaining"], LIMIT - 1);
        let status = client.get("/api/v1/rate-limits/status?user_id=ann&model_id=gpt4").json();
        assert_eq!(status["client_id"], "ann");
        assert_eq!(status["limits"][0]["rule_id"], "default");
        assert_eq!(status["limits"][0]["remaining"], LIMIT - 1);
        assert_eq!(status["limits"][0]["window_seconds"], 3600);
    }
    let costly = json!({"userId": "ann", "modelId": "gpt4", "cost": 100});
    let peeked = client.post("/rate-limit/peek", &costly).json();
    assert_eq!(peeked["allowed"], false, "peek evaluates the stated cost");
    let impossible = json!({"userId": "ann", "modelId": "gpt4", "cost": 101});
    let peeked = client.post("/rate-limit/peek", &impossible).json();
    assert_eq!(peeked["reason"], "COST_EXCEEDS_LIMIT");
    assert_eq!(peeked["retryAfterMs"], serde_json::Value::Null);
}

#[test]
fn it_reports_its_health_and_its_services() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.get("/healthz").status, 200);
    assert_eq!(client.get("/readyz").status, 200);
    let document = client.get("/openapi.json").json();
    for path in
        ["/rate-limit/allow", "/rate-limit/check", "/rate-limit/peek", "/rate-limit/allow/batch"]
    {
        assert!(document["paths"][path]["post"].is_object(), "{path}");
    }
    assert_eq!(client.get("/nothing/here").status, 404);
    let wrong_method = client.get("/rate-limit/allow");
    assert_eq!(wrong_method.status, 405);
    assert_eq!(wrong_method.header("allow"), Some("POST"));
}
