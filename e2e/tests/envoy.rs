//! Tollgate as the rate limit service of a real Envoy, with the configurations of `examples/envoy`.

mod migrated;

use std::fs;
use std::process::Command;

use serde_json::json;
use tollgate_e2e::server::binary;
use tollgate_e2e::{Response, eventually};
use tollgate_testkit::EdgeKind;

use crate::beside::Beside;

/// What `rules.yaml` admits.
const PER_KEY: usize = 5;
const LOGINS: usize = 3;
const PER_ADDRESS: usize = 20;

fn with_own_rules() -> Beside {
    let rules = EdgeKind::Envoy.example().join("rules.yaml").display().to_string();
    Beside::start(EdgeKind::Envoy, "envoy.yaml", &["--rules".into(), rules])
}

/// All values of a header: none is to be sent twice.
fn values<'r>(response: &'r Response, name: &str) -> Vec<&'r str> {
    let headers = response.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
    headers.map(|(_, value)| value.as_str()).collect()
}

#[test]
fn limits_hold_by_key_by_path_and_by_address() {
    let beside = with_own_rules();
    let limit = "5, 20;w=60;name=\"per-address\", 5;w=60;name=\"per-key\"";
    for used in 1..=PER_KEY {
        let response = beside.with_key("ann");
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(values(&response, "x-ratelimit-limit"), [limit]);
        assert_eq!(values(&response, "x-ratelimit-remaining"), [(PER_KEY - used).to_string()]);
        assert_eq!(values(&response, "ratelimit-policy"), ["\"per-key\";q=5;w=60"]);
        assert_eq!(response.header("retry-after"), None);
    }
    let response = beside.with_key("ann");
    assert_eq!(response.status, 429);
    assert_eq!(response.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(values(&response, "x-ratelimit-limit"), [limit]);
    assert_eq!(values(&response, "x-ratelimit-remaining"), ["0"]);
    for name in ["x-ratelimit-reset", "retry-after"] {
        let seconds = values(&response, name).concat();
        let seconds: u64 = seconds.parse().unwrap_or_else(|_| panic!("{name}: {seconds}"));
        assert!((1..=60).contains(&seconds), "{name}: {seconds}");
    }
    assert_eq!(beside.service.count(), PER_KEY, "a refused request reached the service");

    // However the path is written.
    let spellings = ["/login", "//login", "/a/../login?next=/", "/%6Cogin"];
    let login = |index: usize| beside.ask("POST", spellings[index], &[]);
    assert_eq!(beside.admitted(spellings.len(), 429, login), LOGINS);
    assert_eq!(beside.ask("GET", "/login", &[]).status, 200, "only POST is limited");

    // An address that a client claims to have is not believed.
    let forged = [("x-api-key", "ann"), ("x-forwarded-for", "10.1.2.3"), ("x-tollgate-cost", "0")];
    assert_eq!(beside.admitted(3, 429, |_| beside.get(&forged)), 0);
    assert_eq!(beside.admitted(3, 429, |_| beside.ask("POST", "/login", &forged[1..])), 0);
    // Envoy knows one refusal.
    assert_eq!(beside.admitted(1, 429, |_| beside.with_key("key-leaked")), 0);

    let used = PER_KEY + LOGINS + 1;
    let keys: Vec<String> = (0..PER_ADDRESS).map(|index| format!("new-{index}")).collect();
    let ask = |index: usize| match index % 2 {
        0 => beside.with_key(&keys[index]),
        _ => beside.get(&[("x-forwarded-for", &format!("10.0.0.{index}"))]),
    };
    assert_eq!(beside.admitted(PER_ADDRESS, 429, ask), PER_ADDRESS - used);
    assert_eq!(beside.service.count(), PER_ADDRESS);
}

/// An error of the rate limit service refuses nothing, so no client may be able to bring one about.
#[test]
fn no_request_is_too_odd_to_be_limited() {
    let beside = with_own_rules();
    assert_eq!(beside.admitted(PER_KEY + 1, 429, |_| beside.with_key("ann")), PER_KEY);
    for length in [256, 257, 4_000, 8_300, 15_000] {
        let long = "a".repeat(length);
        if length > 256 {
            assert_eq!(beside.admitted(1, 400, |_| beside.with_key(&long)), 0);
        }
        for path in [format!("/{long}"), format!("/?{long}")] {
            let ask = |_| beside.ask("GET", &path, &[("x-api-key", "ann")]);
            assert_eq!(beside.admitted(1, 429, ask), 0, "{length}");
        }
    }
    for key in ["", "clé", "\u{80}"] {
        assert_eq!(beside.admitted(1, 400, |_| beside.with_key(key)), 0, "{key:?}");
    }
}

#[test]
fn without_tollgate_everything_passes_and_limits_hold_again_with_it() {
    let mut beside = with_own_rules();
    let count = 2 * PER_KEY;
    assert_eq!(beside.admitted(count, 429, |_| beside.with_key("ann")), PER_KEY);
    for _ in 0..2 {
        beside.kill_tollgate();
        let ask = |_| {
            let response = beside.with_key("ann");
            assert_eq!(response.header("x-ratelimit-limit"), None);
            response
        };
        assert_eq!(beside.admitted(2 * PER_ADDRESS, 0, ask), 2 * PER_ADDRESS);
        beside.start_tollgate_again();
        // It charges nothing.
        eventually("Tollgate is asked again", || beside.with_key("key-leaked").status == 429);
        assert_eq!(beside.admitted(count, 429, |_| beside.with_key("ann")), PER_KEY);
    }
}

/// The answer says how many tokens it took, and they are charged when it has been sent.
#[test]
fn tokens_are_charged_when_they_are_known() {
    let beside = with_own_rules();
    let chat = |key: &str| beside.ask("POST", "/v1/chat", &[("x-api-key", key)]);
    let remaining = |key: &str| {
        let asked = json!({"apiKey": key, "modelId": "small", "domain": "edge", "tokens": 0});
        let peeked = beside.tollgate().post("/rate-limit/peek", &asked).json();
        peeked["remaining"].as_u64().unwrap_or_else(|| panic!("{peeked}"))
    };
    assert_eq!(remaining("ann"), 1000);
    let response = chat("ann");
    assert_eq!(response.status, 200);
    eventually("600 tokens are charged", || remaining("ann") < 1000);
    assert!((400..410).contains(&remaining("ann")), "the bucket refills by one in 3.6 s");
    // There are some left, so it may begin; what it takes above them is a debt.
    assert_eq!(chat("ann").status, 200);
    eventually("600 more are charged", || remaining("ann") < 400);
    assert_eq!(remaining("ann"), 0);
    let refused = chat("ann");
    assert_eq!(refused.status, 429);
    let retry_after: u64 =
        refused.header("retry-after").and_then(|it| it.parse().ok()).expect("one");
    assert!((600..=730).contains(&retry_after), "200 tokens at 1000 an hour: {retry_after}");
    assert_eq!(chat("bob").status, 200, "another key has its own");
    assert_eq!(beside.service.count(), 3);
}

#[test]
fn imported_rules_mean_what_the_file_means() {
    let example = EdgeKind::Envoy.example();
    let imported = Command::new(binary())
        .args(["rules", "import-envoy", "ratelimit.yaml"])
        .current_dir(&example)
        .output()
        .expect("tollgate runs");
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let rules = example.join("imported.yaml");
    let known = fs::read_to_string(&rules).expect("the imported rules");
    assert_eq!(String::from_utf8_lossy(&imported.stdout), known, "examples/envoy/imported.yaml");
    let args = ["--rules".to_owned(), rules.display().to_string()];
    let beside = Beside::start(EdgeKind::Envoy, "envoy-ratelimit.yaml", &args);
    let get = |path: &str, headers: &[(&str, &str)]| beside.ask("GET", path, headers);
    let admitted = |count: usize, path: &str, headers: &[(&str, &str)]| {
        beside.admitted(count, 429, |_| get(path, headers))
    };

    // Nested, per address; the headers are Envoy's own.
    let response = get("/login", &[]);
    assert_eq!(response.status, 200);
    let limit = "3, 3;w=86400";
    assert_eq!(values(&response, "x-ratelimit-limit"), [limit]);
    assert_eq!(values(&response, "x-ratelimit-remaining"), ["2"]);
    assert_eq!(admitted(4, "/login", &[]), 2);
    assert_eq!(values(&get("/login", &[]), "x-ratelimit-remaining"), ["0"]);

    // A report costs five of ten.
    assert_eq!(admitted(4, "/reports", &[]), 2);

    // By value, wildcard, and bare key.
    assert_eq!(admitted(8, "/", &[("x-api-key", "ann")]), 5);
    assert_eq!(admitted(8, "/", &[("x-api-key", "bob")]), 5);
    assert_eq!(admitted(12, "/", &[("x-api-key", "partner-1")]), 10);
    assert_eq!(admitted(12, "/", &[("x-api-key", "partner-2")]), 10, "each has its own");
    assert_eq!(admitted(30, "/", &[("x-api-key", "key-status-page")]), 30);
    assert_eq!(admitted(30, "/", &[]), 30, "no descriptor, no limit");

    // In shadow mode: nothing is refused, and the headers report the limit.
    assert_eq!(admitted(5, "/beta", &[]), 5);
    assert_eq!(values(&get("/beta", &[]), "x-ratelimit-remaining"), ["0"]);

    // Refused when both are used up: the common four pass, two of them by a's quota as well; then b has
    // two of its own.
    assert_eq!(admitted(6, "/batch", &[("x-team", "a")]), 4);
    assert_eq!(admitted(6, "/batch", &[("x-team", "b")]), 2);
}
