//! What Tollgate reports about itself: metrics that a real Prometheus scrapes, traces that a receiver gets,
//! StatsD, the log of decisions, top keys, history, and the level of the log.

mod traces;

use std::collections::HashMap;
use std::fs;
use std::net::UdpSocket;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_e2e::server::{Server, ServerBuilder};
use tollgate_e2e::{Client, Fleet, eventually};
use tollgate_testkit::{Prometheus, Redis};

const RULES: &str = "
default: false
deny_list: ['user_id:mallory']
rules:
  - {rule_id: tenant, identifier_type: tenant_id, limit: 10, window: 365d, algorithm: fixed_window, scope: TENANT_GLOBAL}
  - {rule_id: drip, identifier_type: user_id, limit: 1, window: 60s, algorithm: leaky_bucket, burst: 3, action: throttle, max_delay_ms: 600000, scope: DRIP}
  - {rule_id: later, identifier_type: api_key, limit: 1, window: 365d, algorithm: fixed_window, action: queue, scope: LATER}
";

/// The sum of a query's results.
fn sum(prometheus: &Prometheus, query: &str) -> f64 {
    let result = prometheus.query(query);
    let of = |one: &Value| one.pointer("/value/1")?.as_str()?.parse::<f64>().ok();
    result.as_array().unwrap().iter().filter_map(of).sum()
}

fn wait_for_sum(prometheus: &Prometheus, query: &str, wanted: f64) {
    eventually(&format!("{query} = {wanted}"), || (sum(prometheus, query) - wanted).abs() < 1e-9);
}

#[test]
fn a_prometheus_that_scrapes_three_nodes_sees_the_traffic_as_it_was() {
    let redis = Redis::start();
    let url = redis.url();
    let fleet = Fleet::patient(3, RULES, &["--redis", &url]);
    let addrs: Vec<_> = fleet.nodes().iter().map(Server::addr).collect();
    let prometheus = Prometheus::start(&addrs, &[], Duration::from_millis(250));
    prometheus.wait_until_scraped();
    // Each node: 5 of tenant acme on gpt4 (limit 10 in all: 10 pass, 5 do not), 2 throttled users (the
    // first passes at once), 2 of one API key (1 passes in all, 5 are to be queued), 1 deny-listed, 1 that
    // no rule knows.
    for node in fleet.nodes() {
        let mut client = node.client();
        for _ in 0..5 {
            client.allow(&json!({"tenantId": "acme", "modelId": "gpt4"}));
        }
        let user = format!("user-of-{}", node.pid());
        for _ in 0..2 {
            client.allow(&json!({"userId": user}));
        }
        for _ in 0..2 {
            client.allow(&json!({"apiKey": "k"}));
        }
        client.allow(&json!({"userId": "mallory"}));
        client.allow(&json!({"ip": "10.0.0.1"}));
        client.post("/rate-limit/peek", &json!({"tenantId": "acme"}));
    }
    let requests = |labels: &str| format!("rate_limiter_requests_total{{{labels}}}");
    let acme = r#"scope="TENANT_GLOBAL",model_id="gpt4",tenant_id="acme""#;
    wait_for_sum(&prometheus, &requests(&format!(r#"result="allowed",{acme}"#)), 10.0);
    wait_for_sum(&prometheus, &requests(&format!(r#"result="denied",{acme}"#)), 5.0);
    wait_for_sum(&prometheus, &requests(r#"result="throttled",scope="DRIP""#), 3.0);
    wait_for_sum(&prometheus, &requests(r#"result="allowed",scope="DRIP""#), 3.0);
    wait_for_sum(&prometheus, &requests(r#"result="queued",scope="LATER""#), 5.0);
    wait_for_sum(&prometheus, &requests(r#"result="allowed",scope="LATER""#), 1.0);
    wait_for_sum(&prometheus, &requests(r#"result="denied",scope="none""#), 3.0);
    wait_for_sum(&prometheus, &requests(r#"result="allowed",scope="none""#), 3.0);
    // Once for each decision, and a peek is none.
    wait_for_sum(&prometheus, "rate_limiter_requests_total", 33.0);
    let ratio = format!("max(rate_limiter_usage_ratio{{{acme}}})");
    wait_for_sum(&prometheus, &ratio, 1.0);
    wait_for_sum(&prometheus, r#"rate_limiter_latency_seconds_count{operation="allow"}"#, 33.0);
    wait_for_sum(&prometheus, r#"rate_limiter_latency_seconds_count{operation="peek"}"#, 3.0);
    let finite = r#"rate_limiter_latency_seconds_bucket{operation="allow",le="10.0"}"#;
    wait_for_sum(&prometheus, finite, 33.0);
    assert!(sum(&prometheus, "rate_limiter_latency_seconds_sum") > 0.0);
    assert!(sum(&prometheus, "rate_limiter_redis_calls_total") > 0.0);
    assert!(sum(&prometheus, "rate_limiter_redis_latency_seconds_count") > 0.0);
    wait_for_sum(&prometheus, "rate_limiter_redis_errors_total", 0.0);
    wait_for_sum(&prometheus, "rate_limiter_fallback_total", 0.0);
    wait_for_sum(&prometheus, r#"count(rate_limiter_config_version{source="file"})"#, 3.0);
    wait_for_sum(&prometheus, "count(rate_limiter_clock_drift_seconds)", 3.0);
    wait_for_sum(&prometheus, "count(rate_limiter_config_last_success_timestamp_seconds)", 3.0);
    wait_for_sum(&prometheus, "rate_limiter_config_load_failures_total", 0.0);
    wait_for_sum(&prometheus, "count(rate_limiter_build_info)", 3.0);
    assert!(sum(&prometheus, "process_resident_memory_bytes") > 1e6);

    // A rule file that is wrong is counted, and Redis that goes away is seen.
    fleet.nodes()[0].write_rules("rules: [{}]");
    wait_for_sum(&prometheus, "rate_limiter_config_load_failures_total", 1.0);
    drop(redis);
    for _ in 0..5 {
        fleet.nodes()[1].client().allow(&json!({"tenantId": "beta"}));
    }
    eventually("fallbacks and errors are counted", || {
        sum(&prometheus, r#"rate_limiter_fallback_total{mode="local"}"#) >= 5.0
            && sum(&prometheus, "rate_limiter_redis_errors_total{type!=\"\",operation!=\"\"}") > 0.0
            && sum(&prometheus, "rate_limiter_store_lost") >= 1.0
    });
}

#[test]
fn a_hundred_thousand_tenants_make_a_bounded_number_of_series() {
    let server = ServerBuilder::default()
        .rules("{default: false, rules: [{rule_id: t, identifier_type: tenant_id, limit: 5, window: 1h}]}")
        .arg("--max-counters")
        .arg("200000")
        .start();
    let mut client = server.client();
    for part in 0..100 {
        let requests: Vec<Value> = (0..1_000)
            .map(|one| json!({"tenantId": format!("t{}", part * 1_000 + one), "modelId": format!("m{}", one % 97)}))
            .collect();
        let answer = client.post("/rate-limit/allow/batch", &json!({ "requests": requests }));
        assert_eq!(answer.status, 200);
    }
    let text = client.get("/metrics").text();
    let series: Vec<&str> =
        text.lines().filter(|line| line.starts_with("rate_limiter_requests_total")).collect();
    assert!(series.len() <= 2_000 + 200 + 2, "{}", series.len());
    let total: f64 =
        series.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
    assert!((total - 100_000.0).abs() < 0.5, "{total}");
    let refused =
        text.lines().find(|line| line.starts_with("rate_limiter_label_sets_refused_total"));
    let refused = refused.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    assert!(refused > Some(90_000.0), "{refused:?}");
    let tenants: std::collections::HashSet<&str> = series
        .iter()
        .filter_map(|line| line.split("tenant_id=\"").nth(1)?.split('"').next())
        .collect();
    assert!(tenants.len() <= 102, "{}", tenants.len());
}

#[test]
fn labels_are_escaped_and_hold_no_api_keys() {
    let server = Server::with_rules(
        "{default: false, rules: [{rule_id: k, identifier_type: api_key, limit: 1, window: 1h}]}",
    );
    let mut client = server.client();
    for _ in 0..3 {
        client.allow(&json!({"apiKey": "sk-hidden", "tenantId": "a\"b\\c\nd", "modelId": "m"}));
    }
    let text = client.get("/metrics").text();
    assert!(text.contains(r#"tenant_id="a\"b\\c\nd""#), "{text}");
    let top = server.admin().get("top").to_string();
    assert!(top.contains("api_key_id="), "{top}");
    assert!(!text.contains("sk-hidden") && !top.contains("sk-hidden"));
    assert!(!server.log().contains("sk-hidden"));
}

#[test]
fn operators_see_top_keys_history_and_the_node() {
    let server = Server::with_rules(
        "{default: false, rules: [{rule_id: u, identifier_type: user_id, limit: 5, window: 1h, scope: USERS}]}",
    );
    let mut client = server.client();
    for (user, times) in [("greedy", 30), ("usual", 5), ("rare", 1)] {
        for _ in 0..times {
            client.allow(&json!({"userId": user, "tenantId": "acme", "modelId": "gpt4"}));
        }
    }
    let mut admin = server.admin();
    let top = admin.get("top?limit=2");
    assert_eq!(top["rules"][0]["rule_id"], "u");
    assert_eq!(top["rules"][0]["refused"], 25);
    assert_eq!(top["rules"][0]["top_refused"][0]["key"], "user_id=greedy");
    assert_eq!(top["rules"][0]["top_refused"][0]["count"], 25);
    assert_eq!(top["rules"][0]["top_allowed"].as_array().unwrap().len(), 2);
    assert_eq!(top["tenants"][0], json!({"key": "acme", "count": 36, "at_least": 36}));
    assert_eq!(admin.get("top?rule_id=nothing")["rules"], json!([]));
    // The same, where people look for it first.
    let bearer = format!("Bearer {}", tollgate_e2e::ADMIN_TOKEN);
    let mut other = Client::connect(server.admin_addr()).unwrap();
    let answer = other.request("GET", "/admin/api/v1/top", &[("authorization", &bearer)], b"");
    assert_eq!((answer.status, &answer.json()["rules"][0]["rule_id"]), (200, &json!("u")));

    eventually("history has the traffic", || {
        let history = admin.get("history?minutes=5");
        let added = |list: &Value| -> u64 {
            list.as_array().unwrap().iter().filter_map(Value::as_u64).sum()
        };
        added(&history["all"]["allowed"]) == 11
            && added(&history["all"]["denied"]) == 25
            && history["values"][0]["name"] == "acme"
            && added(&history["values"][0]["refused"]) == 25
            && history["all"]["p99_ms"].as_array().unwrap().iter().any(Value::is_number)
    });
    let by_scope = admin.get("history?by=scope&name=USERS&minutes=5");
    assert_eq!(by_scope["values"][0]["name"], "USERS");

    let node = admin.get("node");
    assert_eq!((&node["decisions"]["allowed"], &node["log_level"]), (&json!(11), &json!("info")));
    assert_eq!(node["rules"]["source"], "file");

    // A tenant's admin sees its own tenant's history, and nothing of all others together.
    let (_, secret) = admin.token("tenant_admin", Some("acme"));
    let mut tenant = tollgate_e2e::Admin::with_token(server.admin_addr(), &secret);
    let own = tenant.get("history?minutes=5&name=other");
    assert!(own.get("all").is_none(), "{own}");
    assert_eq!(own["values"][0]["name"], "acme");
}

fn level(admin: &mut tollgate_e2e::Admin, level: &str) -> Value {
    let answer = admin.call("PUT", "node/log-level", &[], Some(&json!({ "level": level })));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["level"].clone()
}

#[test]
fn the_level_of_the_log_is_changed_while_it_runs() {
    let server = Server::start();
    let mut admin = server.admin();
    assert_eq!(level(&mut admin, "debug"), "debug");
    assert_eq!(admin.get("node")["log_level"], "debug");
    eventually("the log says so", || server.log().contains("the level of the log is changed"));
    assert_eq!(level(&mut admin, "off"), "off");
    let said = server.log();
    assert_eq!(level(&mut admin, "off"), "off");
    assert_eq!(server.log(), said, "nothing is logged any more");
    let answer = admin.call("PUT", "node/log-level", &[], Some(&json!({"level": "loud"})));
    assert_eq!(answer.status, 400, "{}", answer.text());
}

#[test]
fn decisions_are_logged_as_configured() {
    let server = ServerBuilder::default()
        .config("log: {decisions: {sample_refused: 1, sample_allowed: 2, file: decisions.log}}")
        .rules("{default: false, rules: [{rule_id: u, identifier_type: user_id, limit: 4, window: 1h}]}")
        .env("TOLLGATE_LOG_DECISIONS_FILE", "null")
        .start();
    let mut client = server.client();
    for number in 0..7 {
        client.allow(
            &json!({"userId": "ann", "apiKey": "sk-hidden", "requestId": format!("r{number}")}),
        );
    }
    let lines = || -> Vec<Value> {
        let log = server.log();
        let json = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        json.filter(|line: &Value| line["target"] == "decision").collect()
    };
    eventually("two of four, and three refusals", || lines().len() == 5);
    let refused: Vec<Value> = lines().into_iter().filter(|line| line["allowed"] == false).collect();
    assert_eq!(refused.len(), 3);
    for field in ["timestamp", "level", "requestId", "userId", "apiKeyId", "scopes", "remaining"] {
        assert!(refused[0].get(field).is_some(), "{field} of {}", refused[0]);
    }
    assert!(refused[0]["latencyMs"].is_number() && refused[0]["windowResetAt"].is_string());
    assert!(!server.log().contains("sk-hidden"));

    // To a file of its own.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("decisions.log");
    let mut server = ServerBuilder::default()
        .env("TOLLGATE_LOG_DECISIONS_SAMPLE_ALLOWED", "1")
        .env("TOLLGATE_LOG_DECISIONS_FILE", &path.display().to_string())
        .start();
    server.client().allow(&json!({"userId": "ann", "modelId": "gpt4"}));
    server.signal("TERM");
    assert!(server.wait().success());
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 1, "what waits is written at the end: {text}");
}

#[test]
fn statsd_is_sent_the_same_figures() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let server = ServerBuilder::default()
        .rules("{default: false, rules: [{rule_id: u, identifier_type: user_id, limit: 4, window: 1h, scope: U}]}")
        .env("TOLLGATE_METRICS_STATSD_ADDRESS", &socket.local_addr().unwrap().to_string())
        .env("TOLLGATE_METRICS_STATSD_INTERVAL_MS", "100")
        .start();
    for _ in 0..6 {
        server.client().allow(&json!({"userId": "ann", "tenantId": "acme"}));
    }
    let mut counted: HashMap<String, f64> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    eventually("counters add up", || {
        while let Ok(length) = socket.recv(&mut buffer) {
            assert!(length <= 1_432, "{length}");
            for line in String::from_utf8_lossy(&buffer[..length]).lines() {
                let Some((name, rest)) = line.split_once(':') else { continue };
                let (value, kind) = rest.split_once('|').unwrap();
                let tags = kind.split_once("|#").map_or("", |(_, tags)| tags);
                if kind.starts_with('c') {
                    let value: f64 = value.parse().unwrap();
                    *counted.entry(format!("{name}|{tags}")).or_default() += value;
                }
            }
        }
        let of = |result: &str| {
            let tags = format!("result:{result},scope:U,model_id:none,tenant_id:acme");
            counted.get(&format!("tollgate.rate_limiter_requests_total|{tags}")).copied()
        };
        of("allowed") == Some(4.0) && of("denied") == Some(2.0)
    });
}
