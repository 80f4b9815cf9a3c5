//! Rules, alerts and dashboard on a real Prometheus that scrapes real nodes.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_e2e::{Client, Server, ServerBuilder, Upstream};
use tollgate_testkit::{Prometheus, Redis, eventually};

use super::{dashboard, panels, read, rule_files};

/// How often the tests' Prometheus scrapes, and evaluates rules.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long queries may take to have data: a rate needs two scrapes, rules of rules two evaluations.
const DATA_WITHIN: Duration = Duration::from_secs(60);

/// One rule that refuses, one on leases, and one that queues.
const RULES: &str = "
default: false
rules:
  - {rule_id: per-user, identifier_type: user_id, limit: 5, window: 1s, algorithm: fixed_window}
  - {rule_id: per-tenant, identifier_type: tenant_id, limit: 1000, window: 1s, algorithm: fixed_window,
     consistency: leased, max_overshoot: 0.5}
  - {rule_id: jobs, applies_to: {endpoints: ['/jobs/{job}']}, key_by: [job], limit: 1, window: 365d,
     algorithm: fixed_window, action: queue}
";

/// Rules without anything that needs a shared store or a gateway.
const PLAIN_RULES: &str = "
default: false
rules:
  - {rule_id: per-user, identifier_type: user_id, limit: 5, window: 1s, algorithm: fixed_window}
  - {rule_id: watched, identifier_type: user_id, limit: 1, window: 365d, algorithm: fixed_window, action: log_only}
";

/// A Redis that answers late is not what these tests are about.
const PATIENT: (&str, &str) = ("TOLLGATE_REDIS_TIMEOUT_MS", "2000");

/// Calls that go on until it is dropped.
struct Traffic {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    fn start(http: Vec<SocketAddr>, gateway: SocketAddr) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                for addr in &http {
                    ask(*addr);
                }
                forward(gateway);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Every way of asking, once. Answers do not matter: Redis comes and goes.
fn ask(addr: SocketAddr) {
    let Ok(mut client) = Client::connect(addr) else { return };
    for (tenant, model) in [("acme", "gpt4"), ("beta", "tiny")] {
        let body = json!({"userId": "ann", "tenantId": tenant, "modelId": model});
        let batch = json!({"requests": [body, body]}).to_string();
        let body = body.to_string();
        let calls = [
            ("POST", "/rate-limit/allow", body.as_str()),
            ("POST", "/rate-limit/check", r#"{"user_id": "ann", "model_id": "gpt4"}"#),
            ("POST", "/rate-limit/peek", body.as_str()),
            ("POST", "/rate-limit/allow/batch", batch.as_str()),
            ("GET", "/rate-limit/auth", ""),
        ];
        for (method, path, body) in calls {
            let headers = [("content-type", "application/json"), ("x-tollgate-user", "ann")];
            if client.try_request(method, path, &headers, body.as_bytes()).is_err() {
                return;
            }
        }
    }
}

fn forward(gateway: SocketAddr) {
    let Ok(mut client) = Client::connect(gateway) else { return };
    for path in ["/", "/jobs/one"] {
        if client.try_request("POST", path, &[], b"work").is_err() {
            return;
        }
    }
}

/// Queries of the dashboard, with its variables as Grafana would put them in.
fn dashboard_queries() -> Vec<String> {
    let dashboard = dashboard();
    let targets =
        panels(&dashboard).iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.filter_map(|target| target["expr"].as_str());
    let queries: Vec<String> = queries
        .map(|query| {
            let mut query = query.replace("$__rate_interval", "1m");
            for name in ["$job", "$instance", "$tenant", "$model"] {
                query = query.replace(name, ".*");
            }
            assert!(!query.contains('$'), "an unknown variable: {query}");
            query
        })
        .collect();
    assert!(queries.len() >= 60, "only {} queries", queries.len());
    queries
}

/// Is there a figure, and not only the result of dividing nothing by nothing?
fn has_data(result: &Value) -> bool {
    let is_figure = |sample: &Value| sample["value"][1].as_str().is_some_and(|it| it != "NaN");
    result.as_array().is_some_and(|samples| samples.iter().any(is_figure))
}

/// Waits until every query has data; returns those that never do.
fn without_data(prometheus: &Prometheus, queries: Vec<String>) -> Vec<String> {
    let deadline = Instant::now() + DATA_WITHIN;
    let mut left = queries;
    loop {
        left.retain(|query| !has_data(&prometheus.query(query)));
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The metrics in queries that are not there at all.
fn unknown_metrics(prometheus: &Prometheus, queries: &[String]) -> BTreeSet<String> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == ':';
    let words = queries.iter().flat_map(|query| query.split(move |it| !is_part(it)));
    let names = words.filter(|it| it.starts_with("rate_limiter_") || it.starts_with("process_"));
    let is_unknown = |name: &String| !has_data(&prometheus.query(&format!("count({name})")));
    names.map(str::to_owned).filter(is_unknown).collect()
}

/// What recording rules are called; every rule must have been evaluated without an error.
fn recorded(prometheus: &Prometheus) -> Vec<String> {
    let all = || -> Vec<Value> {
        let groups = prometheus.rules();
        let groups = groups.as_array().expect("groups").iter();
        groups.flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
    };
    eventually("every rule is evaluated", || all().iter().all(|rule| rule["health"] != "unknown"));
    let mut names = Vec::new();
    for rule in all() {
        assert_eq!(rule["health"], "ok", "{rule}");
        if rule["type"] == "recording" {
            names.push(rule["name"].as_str().expect("a name").to_owned());
        }
    }
    assert!(names.len() >= 20, "only {} recording rules", names.len());
    names
}

/// One node by itself with a database of its own, and a gateway with Redis, leases and a queue. Together they
/// have all there is to see.
#[test]
fn every_query_has_data() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let upstream = Upstream::start();
    let plain = Server::with_rules(PLAIN_RULES);
    let gateway = ServerBuilder::default()
        .gateway()
        .rules(RULES)
        .args(&["--redis".to_owned(), redis.url(), "--upstream".to_owned(), upstream.url()])
        .start();
    let nodes = [plain.addr(), gateway.addr()];
    let traffic = Traffic::start(nodes.to_vec(), gateway.gateway_addr());
    let prometheus = Prometheus::start(&nodes, &rule_files(), INTERVAL);
    prometheus.wait_until_scraped();

    // Errors and fallbacks are there to be seen once there were some.
    redis.kill();
    eventually("fallbacks decide", || {
        has_data(&prometheus.query("rate_limiter_fallback_total > 0"))
            && has_data(&prometheus.query("rate_limiter_redis_errors_total"))
    });
    redis.restart();

    let mut queries = recorded(&prometheus);
    queries.extend(dashboard_queries());
    let missing = without_data(&prometheus, queries);
    drop(traffic);
    let unknown = unknown_metrics(&prometheus, &missing);
    assert!(
        missing.is_empty(),
        "{} queries have no data:\n{}\nmetrics that no node has: {unknown:?}",
        missing.len(),
        missing.join("\n")
    );
}

/// The alerts, in force as soon as they hold.
fn impatient_alerts(folder: &std::path::Path) -> PathBuf {
    let [_, alerts] = rule_files();
    let text = read(&alerts);
    let lines = text.lines().map(|line| match line.trim_start().strip_prefix("for: ") {
        Some(_) => "        for: 0s\n".to_owned(),
        None => format!("{line}\n"),
    });
    let path = folder.join("alerts.yaml");
    fs::write(&path, lines.collect::<String>()).expect("the alerts");
    path
}

#[test]
fn a_lost_redis_and_a_lost_node_are_reported() {
    let _alone = tollgate_e2e::alone();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let redis = Redis::start();
    let mut server = ServerBuilder::default()
        .rules(PLAIN_RULES)
        .args(&["--redis".to_owned(), redis.url()])
        .env(PATIENT.0, PATIENT.1)
        .start();
    let [records, _] = rule_files();
    let prometheus =
        Prometheus::start(&[server.addr()], &[records, impatient_alerts(dir.path())], INTERVAL);
    prometheus.wait_until_scraped();
    let ask = || {
        let answer = server.client().allow(&json!({"userId": "ann"}));
        assert!(answer["allowed"].is_boolean(), "{answer}");
    };
    ask();
    eventually("nothing is lost", || has_data(&prometheus.query("rate_limiter_store_lost == 0")));
    for quiet in ["TollgateStoreLost", "TollgateFallbacksInUse", "TollgateDown"] {
        assert!(!prometheus.has_alert(quiet, "firing"), "{}", prometheus.alerts());
    }

    redis.kill();
    for loud in ["TollgateStoreLost", "TollgateFallbacksInUse", "TollgateBreakerOpen"] {
        eventually(loud, || {
            ask();
            prometheus.has_alert(loud, "firing")
        });
    }
    let alerts = prometheus.alerts();
    let of_store = |alert: &&Value| alert["labels"]["alertname"] == "TollgateStoreLost";
    let lost = alerts.as_array().and_then(|all| all.iter().find(of_store)).expect("the alert");
    assert_eq!(lost["labels"]["severity"], "critical");
    let description = lost["annotations"]["description"].as_str().unwrap_or_default();
    let start = format!("{} has lost the store", server.addr());
    assert!(description.starts_with(&start), "{description}");

    redis.restart();
    eventually("the store is back", || {
        ask();
        !prometheus.has_alert("TollgateStoreLost", "firing")
    });

    server.signal("KILL");
    server.wait();
    eventually("the node is missed", || prometheus.has_alert("TollgateDown", "firing"));
}
