//! Eight nodes, one Redis, one counter: as exact as one node.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_e2e::{Fleet, PATIENCE, Server, ServerBuilder, eventually, eventually_within};
use tollgate_testkit::{FaultProxy, Redis};

/// Nodes and clients of the large runs; `make soak` runs more of them.
const NODES: usize = 8;
const CLIENTS: usize = 64;
const QUOTA: u64 = 1_000;

const ALGORITHMS: [&str; 7] = [
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
    "token_bucket",
    "leaky_bucket",
    "gcra",
    "concurrency",
];

fn runs() -> usize {
    std::env::var("TOLLGATE_SOAK_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(3)
}

/// One rule for every algorithm, chosen by the model; no token comes back within a day.
fn rules(extra: &str) -> String {
    let mut rules = String::from("rules:\n");
    for algorithm in ALGORITHMS {
        let how = match algorithm {
            "concurrency" => "unit: concurrency, slot_ttl: 1h".to_owned(),
            "gcra" => format!("algorithm: gcra, burst: {QUOTA}, window: 30d"),
            other => format!("algorithm: {other}, window: 30d"),
        };
        let extra = if algorithm == "concurrency" { "" } else { extra };
        rules.push_str(&format!(
            "  - {{rule_id: {algorithm}, identifier_type: user_id, limit: {QUOTA}, {how}, \
             applies_to: {{models: [{algorithm}]}}{extra}}}\n"
        ));
    }
    rules
}

fn used(server: &Server, user: &str, model: &str) -> u64 {
    let body = json!({"userId": user, "modelId": model});
    let answer = server.client().post("/rate-limit/peek", &body).json();
    answer["scopes"][0]["current"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn strict_admits_exactly_the_quota() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let fleet = Fleet::patient(NODES, &rules(""), &["--redis", &redis.url()]);
    for run in 0..runs() {
        for algorithm in ALGORITHMS {
            let user = format!("user-{run}");
            let body = json!({"userId": user, "modelId": algorithm});
            let answers = fleet.flood(CLIENTS, 4, move |_, _| body.clone());
            assert_eq!(answers.len(), NODES * CLIENTS * 4, "every request is answered");
            let degraded = answers.iter().filter(|answer| answer.is_degraded()).count();
            let admitted = answers.iter().filter(|answer| answer.is_allowed()).count() as u64;
            assert_eq!(degraded, 0, "{algorithm}: Redis is there");
            assert_eq!(admitted, QUOTA, "{algorithm}, run {run}");
            for node in [0, NODES - 1] {
                assert_eq!(used(&fleet.nodes()[node], &user, algorithm), QUOTA, "{algorithm}");
            }
        }
    }
    let look = "local found = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
                if redis.call('PTTL', key) == -1 then found[#found + 1] = key end end return found";
    let without_ttl = redis.cli(&["EVAL", look, "0"]);
    assert!(redis.cli(&["DBSIZE"]).trim().parse::<u64>().is_ok_and(|keys| keys > 20));
    assert_eq!(without_ttl.trim(), "", "every key has a time to live");
}

/// How long a lease lasts at most.
const MAX_LEASE: Duration = Duration::from_secs(60);

#[test]
fn leased_stays_within_its_bound() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let lent = QUOTA / 10;
    let extra = ", consistency: leased, max_overshoot: 0.1";
    let fleet = Fleet::patient(NODES, &rules(extra), &["--redis", &redis.url()]);
    for run in 0..runs() {
        for algorithm in ALGORITHMS.into_iter().filter(|name| *name != "concurrency") {
            let user = format!("user-{run}");
            let body = json!({"userId": user, "modelId": algorithm});
            let answers = fleet.flood(CLIENTS, 4, move |_, _| body.clone());
            assert_eq!(answers.len(), NODES * CLIENTS * 4, "every request is answered");
            let admitted = answers.iter().filter(|answer| answer.is_allowed()).count() as u64;
            // All of it happens in one window, so nothing can be spent that was not counted in it.
            assert!(admitted <= QUOTA, "{algorithm}, run {run}: {admitted} of {QUOTA}");
            assert!(
                admitted >= QUOTA - lent,
                "{algorithm}, run {run}: {admitted} of {QUOTA}, at most {lent} are on lease"
            );
            // What was taken ahead and not spent goes back, at the latest when its lease ends. On a machine that is busy
            // the store looks far, and leases are long.
            eventually_within(MAX_LEASE + PATIENCE, "unused quota is returned", || {
                used(&fleet.nodes()[0], &user, algorithm) == admitted
            });
        }
    }
}

/// How long a call is remembered at most, with timeouts of 5 s.
const MAX_CALL_MEMORY_MS: i64 = 32_000;

/// Nothing is left in Redis once windows have passed.
#[test]
fn what_is_over_is_gone() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let rules = "rules:
  - {rule_id: a, identifier_type: user_id, limit: 5, window: 1s, algorithm: fixed_window}
  - {rule_id: b, identifier_type: user_id, limit: 5, window: 1s, algorithm: sliding_window_log}
  - {rule_id: c, identifier_type: user_id, limit: 5, window: 1s, algorithm: sliding_window_counter}
  - {rule_id: d, identifier_type: user_id, limit: 5, window: 1s, algorithm: token_bucket}
  - {rule_id: e, identifier_type: user_id, limit: 5, unit: concurrency, slot_ttl: 1s}
  - {rule_id: f, identifier_type: tenant_id, limit: 500, window: 1s, consistency: leased, max_overshoot: 0.5}
";
    let mut fleet = Fleet::patient(2, rules, &["--redis", &redis.url()]);
    let body = |client: usize, request: usize| {
        let (user, id) = (format!("u{client}"), format!("{client}-{request}"));
        json!({"userId": user, "tenantId": "t", "requestId": id})
    };
    let answers = fleet.flood(8, 10, body);
    assert!(answers.iter().any(is_refused));
    let keys = redis.cli(&["DBSIZE"]);
    assert!(keys.trim().parse::<u64>().is_ok_and(|keys| keys > 16), "{keys}");
    for node in fleet.nodes_mut() {
        node.signal("TERM");
        node.wait();
    }
    // Request ids, and which nodes have reported after an outage, are remembered for a minute, returns of leased quota for
    // three, calls for a few of these nodes' long timeouts, the figures of nodes for a day and an hour; they go as if that
    // had passed.
    let remembered = [
        ("*answer*", 60_000),
        ("*{nodes}*reported*", 70_000),
        ("*:settled:*", 180_000),
        ("*:once:*", MAX_CALL_MEMORY_MS),
        ("*figures*", 25 * 3_600_000),
    ];
    for (pattern, most) in remembered {
        for key in redis.cli(&["--scan", "--pattern", pattern]).lines() {
            let left: i64 = redis.cli(&["PTTL", key]).trim().parse().unwrap_or(0);
            assert!(left != -1 && left <= most, "{key} lives {left} ms");
            redis.cli(&["DEL", key]);
        }
    }
    eventually("Redis is empty", || redis.cli(&["DBSIZE"]).trim() == "0");
}

pub fn is_refused(answer: &tollgate_e2e::Answer) -> bool {
    !answer.is_allowed()
}

/// Three nodes whose clocks are ten minutes apart see the same windows.
#[test]
fn nodes_whose_clocks_differ_agree() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let rules = "rules:
  - {rule_id: day, identifier_type: user_id, limit: 60, window: 365d, algorithm: fixed_window}
  - {rule_id: log, identifier_type: user_id, limit: 60, window: 1h, algorithm: sliding_window_log}
  - {rule_id: minute, identifier_type: user_id, limit: 60, calendar: year, timezone: Europe/Berlin, algorithm: fixed_window}
  - {rule_id: bucket, identifier_type: user_id, limit: 60, window: 30d, algorithm: token_bucket}
";
    let start = |offset: Option<&str>| {
        let builder = ServerBuilder::default()
            .rules(rules)
            .args(&["--redis".to_owned(), redis.url()])
            .env("TOLLGATE_REDIS_TIMEOUT_MS", "5000");
        match offset {
            None => builder.start(),
            Some(offset) => builder
                .wrapped(&["faketime", "-f", offset])
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .start(),
        }
    };
    let fleet = Fleet::of(vec![start(None), start(Some("+10m")), start(Some("-10m"))]);
    let mut resets = HashSet::new();
    for request in 0..75 {
        let node = request % 3;
        let answer = fleet.ask(node, "/rate-limit/allow", &json!({"userId": "ann"})).json();
        assert_eq!(answer["allowed"], request < 60, "request {request}, node {node}: {answer}");
        assert_eq!(answer["degraded"], false, "{answer}");
        for scope in answer["scopes"].as_array().expect("scopes") {
            assert_eq!(scope["current"], (request + 1).min(60), "{answer}");
        }
        resets.insert(answer["scopes"].as_array().map(|scopes| {
            let reset = |name: &str| {
                let of = |scope: &&Value| scope["ruleId"] == name;
                scopes.iter().find(of).map(|scope| scope["resetAt"].to_string())
            };
            (reset("day"), reset("minute"))
        }));
    }
    assert_eq!(resets.len(), 1, "one window for all nodes: {resets:?}");
    let peek = |node| fleet.ask(node, "/rate-limit/peek", &json!({"userId": "ann"})).json();
    let retry = |answer: &Value| answer["retryAfterMs"].as_u64().expect("a wait");
    let (first, second, third) = (retry(&peek(0)), retry(&peek(1)), retry(&peek(2)));
    let spread = first.max(second).max(third) - first.min(second).min(third);
    assert!(spread < 10_000, "all wait for the same instant: {first}, {second}, {third}");
}

/// An answer that is lost on the way is asked for again, and charged once.
#[test]
fn a_lost_answer_is_charged_once() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let server = ServerBuilder::default()
        .rules(&rules(""))
        .args(&["--redis".to_owned(), proxy.url("redis")])
        .env("TOLLGATE_REDIS_TIMEOUT_MS", "1000")
        .start();
    let mut client = server.client();
    for round in 1..=20 {
        for algorithm in ALGORITHMS {
            if round % 2 == 0 {
                proxy.swallow_replies(1);
            }
            let answer = client.allow(&json!({"userId": "ann", "modelId": algorithm}));
            assert_eq!(answer["allowed"], true, "{algorithm}: {answer}");
            assert_eq!(answer["degraded"], false, "{algorithm}, round {round}: {answer}");
            assert_eq!(answer["scopes"][0]["current"], round, "{algorithm}: {answer}");
        }
    }
    assert!(proxy.swallowed() >= 20, "answers were lost: {}", proxy.swallowed());
}

/// The same request id on another node gets the first answer.
#[test]
fn a_request_id_is_answered_once_by_all_nodes() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let fleet = Fleet::patient(3, &rules(""), &["--redis", &redis.url()]);
    let body = json!({"userId": "ann", "modelId": "fixed_window", "requestId": "r1", "cost": 3});
    let first = fleet.ask(0, "/rate-limit/allow", &body).json();
    assert_eq!(first["scopes"][0]["current"], 3);
    for node in [1, 2, 0] {
        let again = fleet.ask(node, "/rate-limit/allow", &body).json();
        assert_eq!(again["scopes"], first["scopes"], "node {node}");
        assert_eq!(again["allowed"], true);
    }
    assert_eq!(used(&fleet.nodes()[2], "ann", "fixed_window"), 3);
    let other = json!({"userId": "ann", "modelId": "fixed_window", "requestId": "r1", "cost": 4});
    let answer = fleet.ask(1, "/rate-limit/allow", &other);
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].as_str()),
        (409, Some("REQUEST_ID_REUSED"))
    );
    // Many at once on all nodes: charged once.
    let ids = json!({"userId": "bob", "modelId": "token_bucket", "requestId": "r2"});
    let answers = fleet.flood(16, 1, move |_, _| ids.clone());
    assert!(answers.iter().all(|answer| answer.is_allowed() || answer.status == 409));
    assert!(answers.iter().filter(|answer| answer.is_allowed()).count() > 1);
    assert_eq!(used(&fleet.nodes()[0], "bob", "token_bucket"), 1);
}

/// Values with every awkward character name counters of their own, and API keys are not shown.
#[test]
fn nothing_a_client_sends_chooses_another_key() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let rules = "rules:
  - {rule_id: both, identifier_type: composite, key_by: [tenant_id, user_id], limit: 1, window: 365d, algorithm: fixed_window}
  - {rule_id: keyed, identifier_type: api_key, limit: 1, window: 365d, algorithm: fixed_window}
  - {rule_id: any, identifier_type: client, limit: 1, window: 365d, algorithm: fixed_window}
";
    let server =
        ServerBuilder::default().rules(rules).args(&["--redis".to_owned(), redis.url()]).start();
    let mut client = server.client();
    let long = "x".repeat(256);
    let awkward = [
        "a",
        "a:b",
        "{a}",
        "}{",
        "%3A",
        ":",
        "a\u{0}b",
        "a\nb",
        "a\r\nDEL x",
        "*",
        " ",
        "ü",
        &long,
    ];
    for tenant in awkward {
        for user in awkward {
            let body = json!({"tenantId": tenant, "userId": user, "ip": "10.0.0.1"});
            let peeked = client.post("/rate-limit/peek", &body).json();
            let both = peeked["scopes"]
                .as_array()
                .and_then(|scopes| scopes.iter().find(|scope| scope["ruleId"] == "both").cloned());
            assert_eq!(both.expect("the rule applies")["current"], 0, "{tenant:?} {user:?} is new");
            let answer = client.post("/rate-limit/peek", &body);
            assert_eq!(answer.status, 200);
            let body = json!({"tenantId": tenant, "userId": user, "ip": "10.0.0.1", "cost": 1});
            client.post("/rate-limit/allow", &body);
        }
        // The client rule counts by user; it is reset so that it does not refuse the next round.
        for key in redis.cli(&["--scan", "--pattern", "tg:*:any:*"]).lines() {
            redis.cli(&["DEL", key]);
        }
    }
    let body = json!({"apiKey": "sk-geheim-1234", "tenantId": "t", "userId": "fresh"});
    assert_eq!(client.allow(&body)["allowed"], true);
    assert_eq!(client.allow(&body)["allowed"], false);
    let keys = redis.cli(&["--scan"]);
    assert!(keys.contains(":keyed:"), "{keys}");
    assert!(!keys.contains("geheim"), "API keys are kept as hashes only: {keys}");
    assert!(!server.log().contains("geheim"));
    for key in keys.lines().filter(|key| !key.is_empty()) {
        assert!(key.bytes().all(|byte| byte.is_ascii_graphic()), "{key:?}");
        assert_eq!(key.matches('{').count(), 1, "one hash tag: {key:?}");
    }
}

/// A client that hangs up and asks another node again is charged once.
#[test]
fn a_client_that_hangs_up_and_asks_again_is_charged_once() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let fleet = Fleet::patient(2, &rules(""), &["--redis", &redis.url()]);
    for number in 0..60_u64 {
        let id = format!("id-{number}");
        let body = json!({"userId": "ann", "modelId": "fixed_window", "requestId": id});
        let after = std::time::Duration::from_micros(number * 20);
        fleet.nodes()[0].client().send_and_hang_up("/rate-limit/allow", &body, after);
        eventually("the second node answers", || {
            let answer = fleet.ask(1, "/rate-limit/allow", &body);
            assert!(answer.status == 200 || answer.status == 409, "{}", answer.text());
            answer.status == 200
        });
        assert_eq!(used(&fleet.nodes()[1], "ann", "fixed_window"), number + 1, "{id}");
    }
}
