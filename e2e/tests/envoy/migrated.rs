//! A real Envoy that used envoyproxy/ratelimit, with Tollgate in its place: the scenarios of that project's
//! integration suite in our own words, health checks, token budgets, headers and statistics.
//!
//! `migrated/` holds the Envoy and the limits.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tollgate_e2e::server::binary;
use tollgate_e2e::{PATIENCE, Response, eventually};
use tollgate_testkit::{EdgeKind, Redis};

use super::values;
use crate::beside::Beside;

/// Health checks that have passed before a test counts.
const HEALTH_CHECKS: usize = 5;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/envoy/migrated")
}

/// Envoy with the imported limits, once its health checks have passed.
struct Migrated {
    beside: Beside,
    _dir: TempDir,
}

impl Migrated {
    fn start() -> Self {
        Self::start_with("", &folder())
    }

    /// With counters in memory, and with counters in this Redis.
    fn with_each_store(redis: &Redis) -> [Self; 2] {
        let config = format!("redis: {{urls: ['{}'], timeout_ms: 5000}}", redis.url());
        [Self::start(), Self::start_with(&config, &folder())]
    }

    /// With this configuration of Tollgate, and the Envoy of this folder.
    fn start_with(config: &str, envoy: &Path) -> Self {
        let migrated = Self::unchecked(config, envoy);
        eventually("health checks pass", || migrated.health_checks(true) >= HEALTH_CHECKS);
        migrated
    }

    fn unchecked(config: &str, envoy: &Path) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let imported = Command::new(binary())
            .args(["rules", "import-envoy"])
            .args(["limits.yaml", "quota.yaml"])
            .current_dir(folder())
            .output()
            .expect("tollgate runs");
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
        let (rules, file) = (dir.path().join("rules.yaml"), dir.path().join("tollgate.yaml"));
        fs::write(&rules, imported.stdout).expect("the rules are written");
        fs::write(&file, config).expect("the configuration is written");
        let mut args = vec!["--rules".to_owned(), rules.display().to_string()];
        if !config.is_empty() {
            args.extend(["--config".to_owned(), file.display().to_string()]);
        }
        let beside = Beside::start_from(EdgeKind::Envoy, envoy, "envoy.yaml", &args);
        Self { beside, _dir: dir }
    }

    /// How many health checks have passed, or failed.
    fn health_checks(&self, has_passed: bool) -> usize {
        let event =
            if has_passed { "successful_health_check_event" } else { "health_check_failure_event" };
        self.beside.edge.written("health.log").matches(event).count()
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.beside.ask("GET", path, headers)
    }

    /// How many of so many requests pass.
    fn admitted(&self, count: usize, path: &str, headers: &[(&str, &str)]) -> usize {
        self.beside.admitted(count, 429, |_| self.get(path, headers))
    }

    /// What is left of a limit, without a charge.
    fn remaining(&self, domain: &str, key: &str, value: &str) -> u64 {
        let entries = json!([{"key": key, "value": value}]);
        let descriptors = json!([{"entries": entries, "hitsAddend": "0"}]);
        let asked = json!({"domain": domain, "descriptors": descriptors});
        let answer = self.beside.tollgate().post("/json", &asked).json();
        answer["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0)
    }
}

#[test]
fn limits_are_found_by_their_keys() {
    let migrated = Migrated::start();
    assert_eq!(migrated.admitted(20, "/", &[]), 20, "no descriptor, no limit");
    assert_eq!(migrated.admitted(5, "/simple", &[]), 3);
    assert_eq!(migrated.admitted(5, "/tenant", &[("x-tenant", "a")]), 2);
    assert_eq!(migrated.admitted(5, "/tenant", &[("x-tenant", "b")]), 2, "each has its own");
    let tool = |tool| [("x-tenant", "a"), ("x-tool", tool)];
    assert_eq!(migrated.admitted(5, "/tools", &tool("saw")), 3);
    assert_eq!(migrated.admitted(2, "/tools", &tool("banned")), 0);
}

#[test]
fn limits_in_shadow_mode_refuse_nothing() {
    let migrated = Migrated::start();
    let trial = |trial| [("x-tenant", "a"), ("x-trial", trial)];
    assert_eq!(migrated.admitted(5, "/tools", &trial("shaded")), 5);
    assert_eq!(migrated.admitted(3, "/tools", &trial("open")), 1, "the others are enforced");
}

#[test]
fn limits_replace_others_by_name() {
    let migrated = Migrated::start();
    let asked = |tenant, tool, office| {
        [("x-tenant", tenant), ("x-tool", tool), ("x-region", "home"), ("x-office", office)]
    };
    // A limit that is replaced neither refuses nor counts.
    assert_eq!(migrated.admitted(1, "/tools", &asked("a", "banned", "other")), 0);
    assert_eq!(migrated.admitted(3, "/tools", &asked("a", "banned", "main")), 2);
    assert_eq!(migrated.admitted(3, "/tools", &asked("b", "small", "branch")), 2);
    assert_eq!(migrated.admitted(2, "/tools", &asked("b", "small", "other")), 1);

    // One may replace several.
    let mut account = asked("c", "small", "named").to_vec();
    account.push(("x-category", "account"));
    assert_eq!(migrated.admitted(6, "/tools", &account), 4);
    assert_eq!(migrated.admitted(2, "/tools", &asked("c", "small", "none")), 1);
    assert_eq!(migrated.admitted(3, "/tools", &asked("c", "saw", "named")), 2);
}

#[test]
fn a_quota_refuses_when_all_of_it_is_used_up() {
    for migrated in Migrated::with_each_store(&Redis::start()) {
        assert_eq!(migrated.admitted(4, "/quota", &[]), 2, "one of both, one of the larger alone");
    }
}

/// The check before a request passes at exactly the limit, and what it takes is charged above it.
#[test]
fn a_token_quota_is_charged_when_the_response_is_sent() {
    for migrated in Migrated::with_each_store(&Redis::start()) {
        for charged in 1..=3 {
            assert_eq!(migrated.admitted(1, "/token-quota", &[]), 1);
            let large = ["domain=\"quota\"", "key1=\"service_large\""];
            let hits = || figure(&migrated, "total_hits", &large);
            eventually("the response is charged", || hits() == charged);
        }
        assert_eq!(migrated.admitted(3, "/token-quota", &[]), 0);
    }
}

/// The answer names the services that have quota left; Envoy calls the first, and charges it.
#[test]
fn a_token_quota_of_several_services_says_which_has_room() {
    let migrated = Migrated::start();
    let total_hits = |service: &str| {
        let key = format!("key1=\"service_{service}\"");
        figure(&migrated, "total_hits", &["domain=\"quota\"", &key])
    };
    let mut charged = [0, 0];
    for service in ["small", "small", "large", "large", "large"] {
        assert_eq!(migrated.admitted(1, "/services", &[("x-service", "forged")]), 1);
        let head = migrated.beside.service.last_head();
        assert!(head.contains(&format!("x-service: {service}")), "{head}");
        charged[usize::from(service == "large")] += 1;
        eventually("the response is charged", || {
            [total_hits("small"), total_hits("large")] == charged
        });
    }
    assert_eq!(migrated.admitted(3, "/services", &[]), 0);
}

#[test]
fn token_budgets_are_charged_above_their_limit() {
    for migrated in Migrated::with_each_store(&Redis::start()) {
        let chat = |tenant: &str| migrated.get("/budget", &[("x-tenant", tenant)]).status;
        let remaining = |tenant: &str| migrated.remaining("shop", "budget", tenant);
        assert_eq!(remaining("a"), 1000);
        assert_eq!(chat("a"), 200);
        eventually("600 tokens are charged", || remaining("a") == 400);
        assert_eq!(chat("a"), 200, "there are some left");
        eventually("600 more are charged", || remaining("a") == 0);
        for _ in 0..3 {
            assert_eq!(chat("a"), 429);
        }
        assert_eq!(chat("b"), 200, "another tenant has its own");
        assert_eq!(migrated.beside.service.count(), 3);
    }
}

/// Many requests at the same time pass the check together; all that they take is charged, and then none
/// passes.
#[test]
fn token_budgets_hold_after_a_burst() {
    const BURST: u64 = 20;
    for migrated in Migrated::with_each_store(&Redis::start()) {
        let tenant = [("x-tenant", "a")];
        let passed: u64 = std::thread::scope(|scope| {
            let ask = || u64::from(migrated.get("/budget", &tenant).status == 200);
            let asked: Vec<_> = (0..BURST).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().map(|one| one.join().expect("an answer")).sum()
        });
        let hits = || figure(&migrated, "total_hits", &["key1=\"budget\""]);
        eventually("all responses are charged", || hits() == 600 * passed);
        assert_eq!(migrated.admitted(5, "/budget", &tenant), 0, "{passed} of {BURST} passed");
    }
}

/// Envoy makes the headers from the answer, and Tollgate adds none of the same name.
#[test]
fn headers_appear_once_and_resets_are_whole_seconds() {
    let migrated = Migrated::start();
    let seconds = |response: &Response| -> u64 {
        let values = values(response, "x-ratelimit-reset");
        assert_eq!(values.len(), 1, "{:?}", response.headers);
        values[0].parse().expect("whole seconds")
    };
    for remaining in ["1", "0"] {
        let response = migrated.get("/tenant", &[("x-tenant", "a")]);
        assert_eq!(response.status, 200);
        let limit = "2, 2;w=86400;name=\"per-tenant\"";
        assert_eq!(values(&response, "x-ratelimit-limit"), [limit]);
        assert_eq!(values(&response, "x-ratelimit-remaining"), [remaining]);
        assert!((1..=86_400).contains(&seconds(&response)));
    }
    let refused = migrated.get("/tenant", &[("x-tenant", "a")]);
    assert_eq!(refused.status, 429);
    assert_eq!(values(&refused, "x-ratelimit-remaining"), ["0"]);
    assert!((1..=86_400).contains(&seconds(&refused)));
    for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert_eq!(values(&refused, name).len(), 1, "{name}: {:?}", refused.headers);
    }
    // A window that ends every second: whatever is left of it is a second.
    for _ in 0..50 {
        let refused = migrated.get("/closed", &[]);
        assert_eq!(refused.status, 429);
        assert_eq!(values(&refused, "x-ratelimit-limit"), ["0, 0;w=1"]);
        assert_eq!(seconds(&refused), 1);
    }
}

#[test]
fn health_checks_by_the_name_of_the_other_service_pass() {
    for name in ["ratelimit", "''"] {
        let envoy = with_health_checks_of(name);
        let migrated = Migrated::start_with("", envoy.path());
        assert_eq!(migrated.admitted(5, "/simple", &[]), 3, "{name}");
        let before = migrated.health_checks(true);
        eventually("more checks pass", || migrated.health_checks(true) > before + HEALTH_CHECKS);
        assert_eq!(migrated.health_checks(false), 0, "{name}");
        assert_eq!(migrated.admitted(3, "/simple", &[]), 0, "{name}");
    }
    // Where the name is not known, Envoy has no rate limit service: the checks decide.
    let envoy = with_health_checks_of("unknown");
    let migrated = Migrated::unchecked("", envoy.path());
    eventually("checks fail", || migrated.health_checks(false) >= HEALTH_CHECKS);
    assert_eq!(migrated.get("/simple", &[]).status, 500);
    assert_eq!(migrated.health_checks(true), 0);
}

/// The Envoy of the folder, with health checks of this service.
fn with_health_checks_of(service: &str) -> TempDir {
    changed("service_name: ratelimit", &format!("service_name: {service}"))
}

/// The Envoy of the folder, with one text in the place of another.
fn changed(from: &str, to: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let text = fs::read_to_string(folder().join("envoy.yaml")).expect("the configuration");
    assert!(text.contains(from), "{from}");
    fs::write(dir.path().join("envoy.yaml"), text.replace(from, to)).expect("it is written");
    dir
}

/// Callers need a token, health checks do not.
#[test]
fn a_token_in_the_initial_metadata_is_accepted() {
    // printf %s envoy-token-0123456789 | sha256sum
    let digest = "c9b61832c4616041abddb2c7531a8be3a10640c706f79b3ed9b82c5e11cbbcc2";
    let config = format!("data_auth: token\ndata_tokens: [{digest}]\n");
    let service = "envoy_grpc: {cluster_name: ratelimit}";
    let metadata = "initial_metadata: [{key: authorization, value: Bearer envoy-token-0123456789}]";
    let envoy = changed(service, &format!("{service}\n                          {metadata}"));
    let migrated = Migrated::start_with(&config, envoy.path());
    assert_eq!(migrated.admitted(5, "/simple", &[]), 3);
    let without = Migrated::start_with(&config, &folder());
    assert_eq!(without.get("/simple", &[]).status, 500, "an error, and failure_mode_deny is set");
}

/// A figure of `/metrics`; 0 where it is not there.
fn figure(migrated: &Migrated, name: &str, labels: &[&str]) -> u64 {
    let text = migrated.beside.tollgate().get("/metrics").text();
    let begin = format!("ratelimit_service_rate_limit_{name}{{");
    let mut found = text
        .lines()
        .filter(|line| line.starts_with(&begin) && labels.iter().all(|label| line.contains(label)));
    let whole = |line: &str| line.rsplit(' ').next()?.strip_suffix(".0")?.parse().ok();
    let value = found.next().map_or(0, |line| whole(line).unwrap_or_else(|| panic!("{line}")));
    assert_eq!(found.next(), None, "one series of {name} has {labels:?}");
    value
}

#[test]
fn statistics_have_the_names_of_the_other_service() {
    let statsd = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    statsd.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let address = statsd.local_addr().expect("an address");
    let config = format!(
        "metrics: {{statsd: {{address: '{address}', interval_ms: 100, envoy_names: true}}}}"
    );
    let migrated = Migrated::start_with(&config, &folder());
    assert_eq!(migrated.admitted(3, "/clients", &[("x-client", "known.one")]), 2);
    assert_eq!(migrated.admitted(1, "/clients", &[("x-client", "another")]), 1);
    let trial = [("x-tenant", "a"), ("x-trial", "shaded")];
    assert_eq!(migrated.admitted(3, "/tools", &trial), 3);

    let client = |figure_name, client: &str| {
        let key = format!("key1=\"client_{client}\"");
        figure(&migrated, figure_name, &["domain=\"shop\"", &key])
    };
    for (name, expected) in [
        ("total_hits", 3),
        ("within_limit", 2),
        ("over_limit", 1),
        ("near_limit", 1),
        ("shadow_mode", 0),
    ] {
        assert_eq!(client(name, "known.one"), expected, "{name}");
    }
    assert_eq!(client("total_hits", "another"), 1);
    let shaded = ["domain=\"shop\"", "key1=\"tenant\"", "key2=\"trial_shaded\""];
    for (name, expected) in [("total_hits", 3), ("over_limit", 2), ("shadow_mode", 2)] {
        assert_eq!(figure(&migrated, name, &shaded), expected, "{name}");
    }

    let mut expected = vec![
        "ratelimit.service.rate_limit.shop.client_known.one.total_hits:3|c",
        "ratelimit.service.rate_limit.shop.client_known.one.over_limit:1|c",
        "ratelimit.service.rate_limit.shop.tenant.trial_shaded.shadow_mode:2|c",
    ];
    let deadline = std::time::Instant::now() + PATIENCE;
    let mut sums = std::collections::BTreeMap::<String, u64>::new();
    while !expected.is_empty() {
        assert!(std::time::Instant::now() < deadline, "{expected:?} did not come: {sums:?}");
        let mut packet = vec![0; 65_536];
        let Ok(length) = statsd.recv(&mut packet) else { continue };
        let text = String::from_utf8_lossy(&packet[..length]).into_owned();
        // What is counted in two intervals is sent in two parts.
        for (name, value) in
            text.lines().filter_map(|line| line.strip_suffix("|c")?.split_once(':'))
        {
            *sums.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap_or(0);
        }
        expected.retain(|line| {
            let known = line.strip_suffix("|c").and_then(|line| line.split_once(':'));
            known.is_none_or(|(name, value)| {
                sums.get(name).map(u64::to_string).as_deref() != Some(value)
            })
        });
    }
}

/// `/json` and `/healthcheck` are where scripts and probes of the other service look for them.
#[test]
fn the_http_calls_of_the_other_service_are_answered() {
    let migrated = Migrated::start();
    let mut client = migrated.beside.tollgate();
    let health = client.get("/healthcheck");
    assert_eq!((health.status, health.text().as_str()), (200, "OK"));
    let entries = json!([{"key": "tenant", "value": "a"}]);
    let asked = json!({"domain": "shop", "descriptors": [{"entries": entries}]});
    for remaining in [json!(1), json!(null)] {
        let answer = client.post("/json", &asked);
        assert_eq!(answer.status, 200);
        let answer = answer.json();
        assert_eq!(answer["overallCode"], "OK");
        let status = &answer["statuses"][0];
        let limit = json!({"name": "per-tenant", "requestsPerUnit": 2, "unit": "DAY"});
        assert_eq!(status["currentLimit"], limit);
        assert_eq!(status["limitRemaining"], remaining);
    }
    let answer = client.post("/json", &asked);
    assert_eq!((answer.status, &answer.json()["overallCode"]), (429, &json!("OVER_LIMIT")));
    let nameless = json!({"descriptors": [{"entries": entries}]});
    assert_eq!(client.post("/json", &nameless).status, 400);
}
