//! Rules in force: several scopes, actions, lists, tiers, idempotency, batches.

use serde_json::{Value, json};
use tollgate_e2e::{Client, Server, ServerBuilder};

fn allowed(client: &mut Client, body: &Value) -> bool {
    client.allow(body)["allowed"].as_bool().expect("a decision")
}

#[test]
fn all_limits_are_charged_or_none() {
    let server = Server::with_rules(
        "
rules:
  - {rule_id: user, scope: USER, identifier_type: user_id, limit: 100, window: 365d, algorithm: fixed_window}
  - {rule_id: tenant, scope: TENANT_GLOBAL, identifier_type: tenant_id, limit: 3, window: 1h, algorithm: sliding_window_log}
  - {rule_id: all, scope: ALL, limit: 50, window: 1h, algorithm: token_bucket}
",
    );
    let mut client = server.client();
    let body = json!({"userId": "ann", "tenantId": "acme"});
    for _ in 0..3 {
        assert!(allowed(&mut client, &body));
    }
    for _ in 0..20 {
        let decision = client.allow(&body);
        assert_eq!(decision["reason"], "HIT_TENANT_GLOBAL_LIMIT");
        assert_eq!(decision["effectiveLimit"], 3, "a standard scope gives the effective limit");
    }
    let decision = client.allow(&json!({"userId": "ann"}));
    let current = |name: &str| {
        let scopes = decision["scopes"].as_array().expect("scopes");
        scopes.iter().find(|scope| scope["name"] == name).map(|scope| scope["current"].clone())
    };
    assert_eq!(current("USER"), Some(json!(4)), "refused requests charged the user nothing");
    assert_eq!(current("ALL"), Some(json!(4)));
    assert_eq!(current("TENANT_GLOBAL"), None, "a rule whose key is absent does not apply");
}

#[test]
fn encoded_slashes_are_matched_in_both_readings() {
    let server = Server::with_rules(
        "
no_match: deny
default: false
rules:
  - {rule_id: login, limit: 1, window: 365d, algorithm: fixed_window, applies_to: {endpoints: [/login]}}
  - {rule_id: file, key_by: [name], limit: 1, window: 365d, algorithm: fixed_window, applies_to: {endpoints: ['/files/{name}']}}
  - {rule_id: all, limit: 100, window: 365d, algorithm: fixed_window, applies_to: {endpoints: [/files/*, /login]}}
",
    );
    let mut client = server.client();
    let mut reason = |endpoint: &str| {
        let decision = client.allow(&json!({"endpoint": endpoint}));
        decision["reason"].as_str().expect("a reason").to_owned()
    };
    assert_eq!(reason("/files/a%2Fb"), "WITHIN_LIMITS");
    assert_eq!(reason("/files/a%2fb?x"), "HIT_FILE_LIMIT");
    assert_eq!(reason("/files/a%2Fc"), "WITHIN_LIMITS", "another name");
    assert_eq!(reason("/files/a%5Cb"), "WITHIN_LIMITS", "a backslash is part of a name");
    assert_eq!(reason("/login"), "WITHIN_LIMITS");
    assert_eq!(reason("/files/x%2F..%2F..%2Flogin"), "HIT_LOGIN_LIMIT");
    // Nothing admits its other reading.
    assert_eq!(reason("/files/..%2F..%2Fadmin"), "NO_MATCH");
}

#[test]
fn throttle_returns_the_wait_and_log_only_only_reports() {
    let server = Server::with_rules(
        "
rules:
  - {rule_id: slow, identifier_type: user_id, limit: 1, window: 1h, burst: 1, algorithm: token_bucket,
     action: throttle, max_delay_ms: 3600000}
  - {rule_id: watch, identifier_type: user_id, limit: 1, window: 365d, algorithm: fixed_window, action: log_only}
",
    );
    let mut client = server.client();
    let body = json!({"userId": "ann"});
    let first = client.allow(&body);
    assert_eq!((&first["allowed"], &first["waitMs"]), (&json!(true), &json!(0)));
    assert_eq!(first["wouldDeny"], Value::Null);
    let second = client.allow(&body);
    assert_eq!(second["allowed"], true);
    assert_eq!(second["reason"], "THROTTLED");
    let wait = second["waitMs"].as_u64().expect("a wait");
    assert!((3_590_000..=3_600_000).contains(&wait), "{wait}");
    assert_eq!(second["wouldDeny"][0]["ruleId"], "watch");
    let third = client.allow(&body);
    assert_eq!(third["allowed"], false, "the wait would be longer than max_delay_ms");
    assert_eq!(third["reason"], "HIT_SLOW_LIMIT");
}

#[test]
fn lists_tiers_costs_and_soft_limits() {
    let server = Server::with_rules(
        "
tiers: [{name: free, is_default: true}, {name: premium}, {name: enterprise}]
client_tiers: [{type: user_id, value: pat, tier: premium}]
allow_list: ['ip:10.0.0.0/8']
deny_list: [{type: user_id, value: mallory, reason: abuse}]
rules:
  - rule_id: api
    identifier_type: user_id
    limit: 10
    window: 365d
    algorithm: fixed_window
    soft_limit: 0.5
    tier_limits: {free: 10, premium: 20, enterprise: unlimited}
    costs: [{endpoint: /search, cost: 4}]
",
    );
    let mut client = server.client();
    let denied = client.allow(&json!({"userId": "mallory"}));
    assert_eq!(denied["reason"], "DENY_LISTED");
    assert!(denied["explanation"].as_str().is_some_and(|text| text.contains("abuse")));
    let listed = client.allow(&json!({"userId": "ann", "ip": "10.1.2.3"}));
    assert_eq!((&listed["reason"], &listed["scopes"]), (&json!("ALLOW_LISTED"), &json!([])));
    let body = json!({"userId": "ann", "endpoint": "/search?q=1"});
    let response = client.post("/rate-limit/allow", &body);
    assert_eq!(response.json()["remaining"], 6);
    assert!(response.header("x-ratelimit-warning").is_none());
    let response = client.post("/rate-limit/allow", &body);
    assert!(response.header("x-ratelimit-warning").is_some_and(|text| text.contains("8 of 10")));
    assert_eq!(response.json()["warnings"].as_array().map(Vec::len), Some(1));
    assert!(!allowed(&mut client, &body));
    assert_eq!(client.allow(&json!({"userId": "pat"}))["effectiveLimit"], 20);
    let enterprise = client.allow(&json!({"userId": "eve", "tier": "enterprise"}));
    assert_eq!((&enterprise["allowed"], &enterprise["scopes"]), (&json!(true), &json!([])));
}

#[test]
fn a_request_id_is_charged_once() {
    let server = Server::start();
    let mut client = server.client();
    let body = json!({"userId": "ann", "modelId": "gpt4", "requestId": "r-1"});
    let first = client.allow(&body);
    for _ in 0..5 {
        assert_eq!(client.allow(&body), first, "the first answer, word for word");
    }
    let other = json!({"userId": "ann", "modelId": "gpt4", "requestId": "r-1", "cost": 2});
    let response = client.post("/rate-limit/allow", &other);
    assert_eq!(response.status, 409);
    assert_eq!(response.json()["error"]["field"], "requestId");
    let plain = json!({"userId": "ann", "modelId": "gpt4"});
    assert_eq!(client.allow(&plain)["remaining"], 98);

    // Many at once: still one charge.
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let body = json!({"userId": "ann", "modelId": "gpt4", "requestId": "r-2"});
                assert_eq!(server.client().allow(&body)["remaining"], 97);
            });
        }
    });
    assert_eq!(client.allow(&plain)["remaining"], 96);
}

#[test]
fn a_batch_is_decided_in_order_each_for_itself() {
    let server = Server::with_rules(
        "rules: [{rule_id: u, identifier_type: user_id, limit: 3, window: 365d, algorithm: fixed_window}]",
    );
    let mut client = server.client();
    let costs = [2, 2, 1, 1];
    let requests: Vec<_> =
        costs.iter().map(|cost| json!({"userId": "ann", "cost": cost})).collect();
    let mut requests = requests;
    requests.push(json!({"userId": "x".repeat(300)}));
    requests.push(json!({"userId": "bob"}));
    let answer = client.post("/rate-limit/allow/batch", &json!({"requests": requests})).json();
    let decisions = answer["decisions"].as_array().expect("decisions");
    let allowed: Vec<_> = decisions.iter().map(|decision| decision["allowed"].as_bool()).collect();
    assert_eq!(allowed, [Some(true), Some(false), Some(true), Some(false), None, Some(true)]);
    assert_eq!(decisions[4]["error"]["field"], "userId");
    let full = vec![json!({"userId": "carl", "cost": 0}); 1000];
    let answer = client.post("/rate-limit/allow/batch", &json!({"requests": full})).json();
    assert_eq!(answer["decisions"].as_array().map(Vec::len), Some(1000));
}

#[test]
fn sixty_four_clients_at_once_get_exactly_the_limit() {
    let server = Server::with_rules(
        "rules: [{rule_id: u, identifier_type: user_id, limit: 500, window: 365d, algorithm: sliding_window_counter}]",
    );
    let admitted: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..64)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = server.client();
                    let body = json!({"userId": "ann"});
                    (0..20).filter(|_| allowed(&mut client, &body)).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert_eq!(admitted, 500);
}

#[test]
fn enforcement_in_shadow_refuses_nothing_and_off_counts_nothing() {
    let rules = "
deny_list: ['user_id:mallory']
rules: [{rule_id: u, identifier_type: user_id, limit: 1, window: 365d, algorithm: fixed_window}]";
    let shadow = ServerBuilder::default().rules(rules).arg("--enforcement").arg("shadow").start();
    let mut client = shadow.client();
    let body = json!({"userId": "ann"});
    assert!(allowed(&mut client, &body));
    let second = client.allow(&body);
    assert_eq!(second["allowed"], true);
    assert_eq!(second["wouldDeny"][0]["ruleId"], "u");
    assert!(allowed(&mut client, &json!({"userId": "mallory"})));

    let off = ServerBuilder::default().rules(rules).env("TOLLGATE_ENFORCEMENT", "off").start();
    let mut client = off.client();
    for _ in 0..3 {
        assert_eq!(client.allow(&body)["reason"], "ENFORCEMENT_OFF");
    }
}

#[test]
fn decision_calls_need_a_token_where_one_is_configured() {
    let dir = tempfile::tempdir().expect("a directory");
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, "first-secret\nsecond-secret\n").expect("a file");
    let server = ServerBuilder::default()
        .env("TOLLGATE_DATA_AUTH", "token")
        .env("TOLLGATE_DATA_TOKEN_FILE", &tokens.display().to_string())
        .start();
    let mut client = server.client();
    let body = json!({"userId": "ann", "modelId": "gpt4"}).to_string();
    let mut ask = |authorization: Option<&str>| {
        let headers: Vec<_> =
            authorization.map(|value| ("authorization", value)).into_iter().collect();
        client.request("POST", "/rate-limit/allow", &headers, body.as_bytes()).status
    };
    assert_eq!(ask(None), 401);
    assert_eq!(ask(Some("Bearer wrong")), 401);
    assert_eq!(ask(Some("Basic first-secret")), 401);
    assert_eq!(ask(Some("Bearer first-secret")), 200);
    assert_eq!(ask(Some("bearer second-secret")), 200);
    assert_eq!(client.get("/healthz").status, 200, "health needs no token");
    assert_eq!(client.get("/api/v1/rate-limits/status?user_id=ann").status, 401);
    assert!(!server.log().contains("first-secret"));
}

#[test]
fn a_quota_group_pays_while_any_member_can() {
    let server = Server::with_rules(
        "
rules:
  - {rule_id: month, scope: M, identifier_type: user_id, limit: 2, window: 30d, algorithm: fixed_window, quota_mode: true}
  - {rule_id: hour, scope: H, identifier_type: user_id, limit: 3, window: 1h, algorithm: sliding_window_log, quota_mode: true}
",
    );
    let mut client = server.client();
    let body = json!({"userId": "ann"});
    for left in [2, 1, 0] {
        let decision = client.allow(&body);
        assert_eq!((&decision["allowed"], &decision["remaining"]), (&json!(true), &json!(left)));
    }
    let refused = client.allow(&body);
    assert_eq!(refused["allowed"], false);
    assert_eq!(refused["ruleId"], "hour", "the first member that has room again");
    assert!(refused["retryAfterMs"].as_u64().is_some_and(|wait| wait <= 3_600_000), "{refused}");
}

#[test]
fn every_one_of_many_scopes_is_enforced() {
    let mut rules = String::from("rules:\n");
    for n in 0..300 {
        let limit = if n == 299 { 1 } else { 1000 };
        rules.push_str(&format!(
            "  - {{rule_id: r{n:03}, identifier_type: user_id, limit: {limit}, window: 365d, algorithm: fixed_window}}\n"
        ));
    }
    let server = Server::with_rules(&rules);
    let mut client = server.client();
    let body = json!({"userId": "ann"});
    assert_eq!(client.allow(&body)["scopes"].as_array().map(Vec::len), Some(300));
    let refused = client.allow(&body);
    assert_eq!((&refused["allowed"], &refused["ruleId"]), (&json!(false), &json!("r299")));
    assert!(refused["retryAfterMs"].is_u64());
}

#[test]
fn an_empty_request_id_is_none() {
    let server = Server::start();
    let mut client = server.client();
    client.allow(&json!({"userId": "ann", "modelId": "m", "requestId": ""}));
    let second =
        client.allow(&json!({"userId": "ann", "modelId": "m", "requestId": "", "cost": 2}));
    assert_eq!(second["remaining"], 97);
}
