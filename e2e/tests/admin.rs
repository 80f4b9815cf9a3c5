//! The admin API as operators use it.

use serde_json::{Value, json};
use tollgate_e2e::{ADMIN, Server, ServerBuilder, eventually};

fn rule(id: &str, limit: u64) -> Value {
    json!({"rule_id": id, "identifier_type": "user_id", "limit": limit, "window": "365d",
           "algorithm": "fixed_window"})
}

/// How many of these requests pass.
fn admitted(server: &Server, body: &Value, count: usize) -> usize {
    let mut client = server.client();
    (0..count).filter(|_| client.allow(body)["allowed"] == true).count()
}

/// The examples of the documents that the product grew from, as they stand, on the day they were
/// written for.
#[test]
fn the_examples_of_the_origin() {
    let server = ServerBuilder::default()
        .wrapped(&["faketime", "-f", "@2024-01-15 10:30:00"])
        .env("TZ", "UTC")
        .start();
    let mut admin = server.admin();
    let body = r#"{
    "rule_id": "api_default",
    "name": "Default API Rate Limit",
    "limit": 1000,
    "window_seconds": 3600,
    "identifier_type": "api_key",  // api_key, user_id, ip, composite
    "applies_to": {
        "endpoints": ["/api/*"],
        "methods": ["GET", "POST", "PUT", "DELETE"],
        "user_tiers": ["free", "basic"]
    },
    "action": "reject",  // reject, throttle, log_only
    "priority": 10
}"#;
    let bearer = format!("Bearer {}", tollgate_e2e::ADMIN_TOKEN);
    let headers = [("authorization", bearer.as_str())];
    let path = format!("{ADMIN}rules");
    let response = server.client().request("POST", &path, &headers, body.as_bytes());
    assert_eq!(response.status, 201, "{}", response.text());
    let answer = response.json();
    assert_eq!(answer["rule_id"], "api_default");
    assert_eq!(answer["status"], "active");
    assert!(answer["created_at"].as_str().unwrap().starts_with("2024-01-15T10:30:"), "{answer}");

    let listed = json!({"identifier": "api_key_premium_123", "identifier_type": "api_key",
        "reason": "Enterprise customer with unlimited access"});
    assert_eq!(admin.post("whitelist", &listed).0, 201);
    let listed = json!({"identifier": "192.168.1.100", "identifier_type": "ip",
        "reason": "Detected abuse pattern", "expires_at": "2024-01-16T10:30:00Z"});
    assert_eq!(admin.post("blacklist", &listed).0, 201);

    let mut client = server.client();
    let refused = client.allow(&json!({"ip": "192.168.1.100"}));
    assert_eq!((&refused["allowed"], &refused["reason"]), (&json!(false), &json!("DENY_LISTED")));
    let free = json!({"apiKey": "k", "tier": "free", "endpoint": "/api/v1/users/123",
        "method": "GET"});
    assert_eq!(client.allow(&free)["effectiveLimit"], 1000);
    let mut premium = free.clone();
    premium["apiKey"] = json!("api_key_premium_123");
    assert_eq!(client.allow(&premium)["reason"], "ALLOW_LISTED");
    let status =
        client.get("/api/v1/rate-limits/status?api_key=k&tier=free&endpoint=/api/x&method=GET");
    let status = status.json();
    assert_eq!(status["limits"][0]["rule_id"], "api_default", "{status}");
    assert_eq!(status["limits"][0]["remaining"], 999);
    assert_eq!(status["limits"][0]["window_seconds"], 3600);
}

#[test]
fn a_rule_from_its_making_to_its_end() {
    let mut server = Server::start();
    let mut admin = server.admin();
    let ann = json!({"userId": "ann"});
    let (status, made) = admin.post("rules", &rule("r", 3));
    assert_eq!(status, 201, "{made}");
    assert_eq!((&made["version"], &made["status"]), (&json!(1), &json!("active")));
    assert_eq!(admitted(&server, &ann, 5), 3, "in force at once");

    // What was counted stays when the limit changes.
    let (status, changed) = admin.post("rules", &rule("r", 5));
    assert_eq!((status, &changed["version"]), (200, &json!(2)));
    assert_eq!(admitted(&server, &ann, 5), 2);

    let got = admin.call("GET", "rules/r", &[], None);
    assert_eq!(got.header("etag"), Some("\"2\""));
    assert_eq!(got.json()["rule"]["limit"], 5);
    let stale = admin.call("PUT", "rules/r", &[("if-match", "\"1\"")], Some(&rule("r", 9)));
    assert_eq!(stale.status, 412);
    assert_eq!(stale.header("etag"), Some("\"2\""));
    assert_eq!(stale.header("content-type"), Some("application/problem+json"));
    let fresh = admin.call("PUT", "rules/r", &[("if-match", "\"2\"")], Some(&rule("r", 9)));
    assert_eq!(fresh.status, 200, "{}", fresh.text());
    let taken = admin.call("POST", "rules", &[("if-none-match", "*")], Some(&rule("r", 9)));
    assert_eq!(taken.status, 412);

    // Tried, not done.
    let mut narrow = rule("s", 1);
    narrow["scope"] = json!("r");
    narrow["applies_to"] = json!({"models": ["m"]});
    let tried = admin.call("POST", "rules?dry_run=true", &[], Some(&narrow));
    assert_eq!(tried.status, 200);
    let tried = tried.json();
    assert_eq!((&tried["dry_run"], &tried["action"]), (&json!(true), &json!("create")));
    assert_eq!(tried["shadows"]["displaces"], json!(["r"]), "more specific: {tried}");
    assert_eq!(admin.call("GET", "rules/s", &[], None).status, 404);

    let versions = admin.get("rules/r/versions");
    let limits: Vec<&Value> =
        versions["items"].as_array().unwrap().iter().map(|one| &one["rule"]["limit"]).collect();
    assert_eq!(limits, [9, 5, 3]);
    let back = admin.put("rules/r/rollback", &json!({"version": 1}));
    assert_eq!((&back["version"], &back["rule"]["limit"]), (&json!(4), &json!(3)));

    assert_eq!(admin.delete("rules/r").0, 200);
    assert_eq!(admin.delete("rules/r").0, 404);
    let (status, _) = admin.post("rules/r/rollback", &json!({"version": 5}));
    assert_eq!(status, 400, "that version is the deletion");
    let back = admin.put("rules/r/rollback", &json!({"version": 2}));
    assert_eq!((&back["version"], &back["rule"]["limit"]), (&json!(6), &json!(5)));

    let audit = admin.get("audit?entry_kind=rule&entry_id=r");
    let actions: Vec<&str> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["action"].as_str().unwrap())
        .collect();
    let expected = [
        "rule.rollback",
        "rule.delete",
        "rule.rollback",
        "rule.update",
        "rule.update",
        "rule.create",
    ];
    assert_eq!(actions, expected);
    assert_eq!(audit["items"][4]["before"]["limit"], 3);
    assert_eq!(audit["items"][4]["after"]["limit"], 5);

    // All of it is still there after a crash.
    server.crash_and_restart();
    let mut admin = server.admin();
    assert_eq!(admin.get("rules/r")["rule"]["limit"], 5);
    eventually("the rule is in force", || admitted(&server, &json!({"userId": "eve"}), 7) == 5);
}

#[test]
fn lists_tiers_grants_and_settings() {
    let server = Server::start();
    let mut admin = server.admin();
    let mut tiered = rule("plan", 2);
    tiered["tier_limits"] = json!({"pro": 4});
    admin.put("tiers", &json!({"name": "free", "is_default": true}));
    admin.put("tiers", &json!({"name": "pro", "description": "Paying"}));
    admin.put("rules", &tiered);
    assert_eq!(admitted(&server, &json!({"userId": "ann"}), 6), 2);
    let pro = json!({"identifier": "bob", "identifier_type": "user_id", "tier": "pro"});
    assert_eq!(admin.post("client-tiers", &pro).0, 201);
    assert_eq!(admitted(&server, &json!({"userId": "bob"}), 6), 4);
    let many: Vec<Value> = (0..500)
        .map(|number| {
            json!({"identifier": format!("u{number}"), "identifier_type": "user_id", "tier": "pro"})
        })
        .collect();
    let put = admin.put("client-tiers", &json!({"client_tiers": many}));
    assert_eq!(put["put"], 500);
    assert_eq!(admitted(&server, &json!({"userId": "u77"}), 6), 4);
    let page = admin.get("client-tiers?tier=pro&limit=300");
    assert_eq!(page["items"].as_array().unwrap().len(), 300);
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = admin.get(&format!("client-tiers?tier=pro&limit=300&cursor={cursor}"));
    assert_eq!(rest["items"].as_array().unwrap().len(), 201);
    assert_eq!(rest["next_cursor"], Value::Null);
    assert_eq!(admin.delete("tiers/pro").0, 409, "clients have it");
    assert_eq!(admin.delete("client-tiers/user_id%3Au77").0, 200);
    assert_eq!(admitted(&server, &json!({"userId": "u77"}), 6), 0, "counted already");

    let grant = json!({"rule_id": "plan", "identifier": "ann", "identifier_type": "user_id",
        "extra": 3, "expires_at": "2099-01-01T00:00:00Z", "reason": "launch"});
    let granted = admin.put("grants", &grant);
    assert_eq!(admitted(&server, &json!({"userId": "ann"}), 9), 3, "what was counted stays");
    let id = granted["grant_id"].as_str().unwrap().to_owned();
    assert_eq!(admin.delete(&format!("grants/{id}")).0, 200);

    let network = json!({"identifier": "203.0.113.77/24", "identifier_type": "ip"});
    let listed = admin.put("blacklist", &network);
    assert_eq!(listed["identifier"], "203.0.113.0/24");
    assert_eq!(listed["created_by"], "first");
    let denied = server.client().allow(&json!({"ip": "203.0.113.9"}));
    assert_eq!(denied["reason"], "DENY_LISTED");
    assert_eq!(admin.delete("blacklist/ip%3A203.0.113.0%2F24").0, 200);
    assert_eq!(server.client().allow(&json!({"ip": "203.0.113.9"}))["allowed"], true);

    let off = admin.call("PUT", "settings/enforcement", &[], Some(&json!({"value": "shadow"})));
    assert_eq!(off.status, 200, "{}", off.text());
    assert_eq!(admitted(&server, &json!({"userId": "ann"}), 9), 9);
    assert_eq!(admin.delete("settings/enforcement").0, 200);
    assert_eq!(admitted(&server, &json!({"userId": "ann"}), 9), 0);
    let deny = admin.call("PUT", "settings/no_match", &[], Some(&json!({"value": "deny"})));
    assert_eq!(deny.status, 200);
    assert_eq!(server.client().allow(&json!({"domain": "x"}))["allowed"], false);

    let tiered =
        json!({"identifier": "sk-very-secret", "identifier_type": "api_key", "tier": "pro"});
    let put = admin.put("client-tiers", &tiered);
    let explained = admin.put("rules/explain", &json!({"apiKey": "sk-very-secret"}));
    assert_eq!(
        (&explained["tier"], &explained["tier_from"]),
        (&json!("pro"), &json!("client_tiers"))
    );
    let id = put["id"].as_str().unwrap().replace(':', "%3A");
    assert_eq!(admin.delete(&format!("client-tiers/{id}")).0, 200);
    let explained = admin.put("rules/explain", &json!({"apiKey": "sk-very-secret"}));
    assert_eq!(explained["tier"], "free");

    // API keys are not to be seen where they are not needed.
    let key = json!({"identifier": "sk-very-secret", "identifier_type": "api_key"});
    let line = admin.put("whitelist", &key);
    let id = line["id"].as_str().unwrap().to_owned();
    assert!(!id.contains("secret"), "{id}");
    assert!(!admin.get("audit?limit=1000").to_string().contains("sk-very-secret"));
    let allowed = server.client().allow(&json!({"apiKey": "sk-very-secret", "domain": "x"}));
    assert_eq!(allowed["reason"], "ALLOW_LISTED");
    assert_eq!(admin.delete(&format!("whitelist/{}", id.replace(':', "%3A"))).0, 200);
    assert!(!server.log().contains("sk-very-secret"));
}

#[test]
fn what_a_client_used_and_why() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.put("rules", &rule("r", 3));
    assert_eq!(admitted(&server, &json!({"userId": "ann"}), 5), 3);
    let usage = admin.get("usage/user_id/ann");
    assert_eq!(usage["limits"][0]["current"], 3, "{usage}");
    assert_eq!(usage["allowed"], false);
    let explained = admin.put("rules/explain", &json!({"userId": "ann"}));
    assert_eq!(explained["rules"][0]["verdict"], "applies", "{explained}");
    assert_eq!(explained["rules"][0]["key"]["user_id"], "ann");
    let reset = admin.put("usage/user_id/ann/reset", &json!({}));
    assert_eq!(reset["reset"], json!(["r"]));
    assert_eq!(admitted(&server, &json!({"userId": "ann"}), 5), 3);

    // Refused requests are in the audit log.
    eventually("the refusals are written", || {
        let log = admin.get("audit?kind=decisions&user_id=ann&action=rejected");
        log["items"].as_array().unwrap().len() == 4
    });
    let log = admin.get("audit?kind=decisions&user_id=ann&limit=1");
    let one = &log["items"][0];
    assert_eq!((&one["rule_id"], &one["limit_count"]), (&json!("r"), &json!(3)), "{one}");
    assert_eq!(one["request_count"], 3);
    let mut client = server.client();
    client.allow(&json!({"userId": "ann", "requestId": "req-7"}));
    eventually("found by its request id", || {
        let log = admin.get("audit?kind=decisions&request_id=req-7");
        log["items"].as_array().unwrap().len() == 1
    });
}

/// Requests of others count in a shared counter: resetting one client would lift the limit for all.
#[test]
fn a_reset_of_a_client_leaves_shared_counters() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.put("rules", &rule("own", 10));
    let cap = json!({"rule_id": "cap", "identifier_type": "global", "limit": 3, "window": "1d"});
    admin.put("rules", &cap);
    assert_eq!(admitted(&server, &json!({"userId": "ann"}), 5), 3);
    let reset = admin.put("usage/user_id/bob/reset", &json!({}));
    assert_eq!((&reset["reset"], &reset["skipped"]), (&json!(["own"]), &json!(["cap"])));
    assert_eq!(admitted(&server, &json!({"userId": "bob"}), 5), 0);
    let reset = admin.put("usage/user_id/bob/reset?rule_id=cap", &json!({}));
    assert_eq!((&reset["reset"], &reset["skipped"]), (&json!(["cap"]), &json!([])));
    assert_eq!(admitted(&server, &json!({"userId": "bob"}), 5), 3);
}

#[test]
fn a_whole_document_at_once() {
    let server = Server::start();
    let mut admin = server.admin();
    let document = json!({"rules": [rule("a", 1), rule("b", 2)], "deny_list": ["ip:192.0.2.1"],
        "tiers": ["free"]});
    let tried = admin.put("apply?dry_run=true", &document);
    assert_eq!(tried["steps"].as_array().unwrap().len(), 4, "{tried}");
    assert_eq!(admin.get("rules")["items"], json!([]));
    let applied = admin.put("apply", &document);
    assert_eq!(applied["steps"].as_array().unwrap().len(), 4);
    let again = admin.put("apply", &document);
    assert_eq!((&again["steps"], &again["unchanged"]), (&json!([]), &json!(4)));
    let less = json!({"rules": [rule("a", 9)]});
    let kept = admin.put("apply", &less);
    assert_eq!(kept["steps"].as_array().unwrap().len(), 1);
    let pruned = admin.put("apply?prune=true", &less);
    assert_eq!(pruned["steps"][0]["action"], "delete", "{pruned}");
    let left = admin.get("document");
    assert_eq!(left["rules"].as_array().unwrap().len(), 1);
    assert_eq!(left["deny_list"].as_array().unwrap().len(), 1, "not a part of that document");
    // All or nothing.
    let bad = json!({"rules": [rule("c", 1), {"rule_id": "d", "limit": -1}]});
    let (status, problem) = admin.post("apply", &bad);
    assert_eq!(status, 400, "{problem}");
    assert_eq!(admin.call("GET", "rules/c", &[], None).status, 404);
    let revision = admin.get("whoami");
    assert_eq!(revision["role"], "admin");
}

#[test]
fn a_rule_file_decides_alone() {
    let server = ServerBuilder::default()
        .rules("rules: [{rule_id: f, identifier_type: user_id, limit: 1, window: 1h}]")
        .start();
    let mut admin = server.admin();
    let (status, problem) = admin.post("rules", &rule("r", 3));
    assert_eq!((status, &problem["code"]), (409, &json!("RULES_FROM_FILE")));
    assert!(problem["detail"].as_str().unwrap().contains("tollgate rules apply"));
    assert_eq!(admitted(&server, &json!({"userId": "ann"}), 3), 1);
}

/// Only a rule file in the way is called one.
#[test]
fn a_node_without_a_queue_says_so_by_its_own_code() {
    let server = Server::start();
    let mut admin = server.admin();
    for (method, path) in
        [("GET", "queue"), ("POST", "queue/some-ticket/retry"), ("DELETE", "queue/some-ticket")]
    {
        let refused = admin.call(method, path, &[], None);
        assert_eq!(refused.status, 409, "{path}: {}", refused.text());
        assert_eq!(refused.json()["code"], "NO_QUEUE", "{path}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn bad_input_is_named_and_changes_nothing() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.put("tiers", &json!({"name": "free"}));
    let circle = json!({"rule_id": "circle", "identifier_type": "user_id", "limit": 5,
        "window": "1h", "scope": "B"});
    admin.put("rules", &circle);
    admin.put(
        "rules",
        &json!({"rule_id": "base", "identifier_type": "user_id", "limit": 5,
        "window": "1h", "scope": "A", "overrides": ["B"]}),
    );
    let base = |field: &str, value: Value| {
        let mut body = rule("bad", 5);
        body[field] = value;
        body
    };
    let huge = "x".repeat(1 << 20);
    let cases = [
        (
            "rules",
            json!({"rule_id": "'; DROP TABLE rate_limit_rules; --\u{0}", "limit": 1}),
            "rule_id",
        ),
        ("rules", base("name", json!(&huge)), ""),
        ("rules", base("limit", json!(9_223_372_036_854_775_808_u64)), "limit"),
        ("rules", base("limit", json!(-5)), "limit"),
        ("rules", base("limit", json!("many")), "limit"),
        ("rules", base("frobnicate", json!(1)), "frobnicate"),
        ("rules", base("action", json!("explode")), "action"),
        ("rules", base("calendar", json!("day")), ""),
        (
            "rules",
            json!({"rule_id": "tz", "identifier_type": "user_id", "limit": 5, "calendar": "day",
                   "timezone": "Mars/Olympus"}),
            "timezone",
        ),
        ("rules", base("overrides", json!(["bad"])), "overrides"),
        (
            "rules",
            json!({"rule_id": "circle", "identifier_type": "user_id", "limit": 5, "window": "1h",
                   "scope": "B", "overrides": ["A"]}),
            "overrides",
        ),
        ("rules", base("tier_limits", json!({"gold": 5})), "tier_limits"),
        (
            "rules",
            {
                let mut body = base("starts_at", json!("2027-01-02T00:00:00Z"));
                body["ends_at"] = json!("2027-01-01T00:00:00Z");
                body
            },
            "ends_at",
        ),
        ("rules", base("scope", json!("tenant:acme:x")), "scope"),
        ("rules", json!({"limit": 5}), "rule_id"),
        ("rules", json!([1, 2]), "body"),
        (
            "blacklist",
            json!({"identifier": "1.2.3.4", "identifier_type": "ip",
                   "expires_at": "2020-01-01T00:00:00Z"}),
            "expires_at",
        ),
        ("blacklist", json!({"identifier": "1.2.3.4/99", "identifier_type": "ip"}), "identifier"),
        ("whitelist", json!({"identifier": "x", "identifier_type": "shoe"}), "identifier_type"),
        ("tiers", json!({"name": "free", "price": 5}), "price"),
        (
            "client-tiers",
            json!({"identifier": "x", "identifier_type": "user_id", "tier": "gold"}),
            "tier",
        ),
        (
            "client-tiers",
            json!({"client_tiers": [{"identifier": "x", "identifier_type": "user_id",
                                     "tier": "free"}, {"identifier": "y"}]}),
            "client_tiers[1].identifier_type",
        ),
        (
            "grants",
            json!({"rule_id": "nope", "identifier": "x", "identifier_type": "user_id", "extra": 1,
                   "expires_at": "2099-01-01T00:00:00Z"}),
            "rule_id",
        ),
        ("tokens", json!({"name": "x", "role": "king"}), "role"),
        ("tokens", json!({"name": "x", "role": "tenant_admin"}), "tenant_id"),
        ("rules/base/rollback", json!({"version": "first"}), "version"),
        ("rules/explain", json!({"userId": 5}), "userId"),
    ];
    let before = admin.get("document");
    for (path, body, field) in cases {
        let (status, problem) = admin.post(path, &body);
        let shown: String = body.to_string().chars().take(200).collect();
        assert!((400..500).contains(&status), "{path} {shown}: {status} {problem}");
        assert_ne!(status, 401, "{path}");
        let named = problem["field"].as_str().unwrap_or_default();
        assert!(named.contains(field), "{path} {shown}: {problem}");
        assert_eq!(problem["error"]["message"].as_str().map(str::is_empty), Some(false));
    }
    assert_eq!(admin.get("document"), before, "nothing half-written");
    assert_eq!(admin.get("client-tiers")["items"], json!([]));
    // What looks like SQL and is none is a name like any other.
    let name = "'; DROP TABLE rate_limit_rules; --";
    let mut odd = rule("odd", 5);
    odd["name"] = json!(name);
    odd["description"] = json!("\" OR 1=1 /* %_\\ 🦀");
    admin.put("rules", &odd);
    assert_eq!(admin.get("rules/odd")["rule"], odd);
    let prefix = admin.get("rules?prefix=%25");
    assert_eq!(prefix["items"], json!([]), "a wildcard is a letter");
}

#[test]
fn tiers_may_come_after_the_rule_that_names_them() {
    let server = Server::start();
    let mut admin = server.admin();
    let mut named = rule("r", 3);
    named["tier_limits"] = json!({"free": 1, "gold": 5});
    admin.put("rules", &named);
    for tier in ["free", "gold"] {
        admin.put("tiers", &json!({"name": tier}));
    }
    // With tiers there, a rule that names another one is a mistake, and a tier that is named stays.
    named["tier_limits"] = json!({"free": 1, "glod": 5});
    let (status, problem) = admin.post("rules", &named);
    assert_eq!(status, 400, "{problem}");
    assert_eq!(problem["errors"][0]["field"], "tier_limits.glod", "{problem}");
    assert_eq!(admin.delete("tiers/gold").0, 400);
}

#[test]
fn an_apply_without_a_change_writes_nothing() {
    let server = Server::start();
    let mut admin = server.admin();
    let document = json!({"rules": [rule("a", 1)], "deny_list": ["ip:192.0.2.1"], "tiers": ["free"],
        "no_match": "deny", "default": false});
    admin.put("apply", &document);
    let state = |admin: &mut tollgate_e2e::Admin| {
        let changes = admin.get("audit?limit=1000")["items"].as_array().unwrap().len();
        (changes, admin.get("node")["rules"]["revision"].clone())
    };
    let before = state(&mut admin);
    let again = admin.put("apply", &document);
    assert_eq!(again["steps"], json!([]), "{again}");
    let exported = admin.get("document");
    let again = admin.put("apply?prune=true", &exported);
    assert_eq!(again["steps"], json!([]), "{again}");
    assert_eq!(state(&mut admin), before);
}
