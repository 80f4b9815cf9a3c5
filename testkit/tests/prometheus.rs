use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tollgate_testkit::{Prometheus, eventually, free_addr};

const INTERVAL: Duration = Duration::from_secs(1);

const RULES: &str = "
groups:
  - name: test
    rules:
      - alert: NobodyThere
        expr: up == 0
";

#[test]
fn it_scrapes_evaluates_and_answers() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let rules = dir.path().join("rules.yaml");
    fs::write(&rules, RULES).expect("a rule file");

    let nobody: SocketAddr = free_addr();
    let prometheus = Prometheus::start(&[nobody], &[rules], INTERVAL);
    eventually("the alert fires", || prometheus.has_alert("NobodyThere", "firing"));
    assert_eq!(prometheus.alerts()[0]["labels"]["instance"], nobody.to_string());

    // It has metrics of its own, so it can be another's target.
    let other = Prometheus::start(&[prometheus.addr()], &[], INTERVAL);
    other.wait_until_scraped();
    let result = other.query("prometheus_build_info * 0 + 42");
    assert_eq!(result[0]["value"][1], "42", "{result}");
    let error = other.try_query("sum(").expect_err("no query");
    assert!(error.contains("parse error"), "{error}");
}
