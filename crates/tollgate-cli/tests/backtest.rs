//! `tollgate backtest`: what it prints, and how it exits.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail like tests"
)]

mod support;

use std::fmt::Write as _;

use support::{file, run};

const RULES: &str = "\
default: false
rules: [{rule_id: api, identifier_type: ip, limit: 3, window: 1m, algorithm: fixed_window}]
";

/// Five requests of one address and one of another, in one minute.
fn log() -> String {
    let mut text = String::new();
    for second in 0..5 {
        let _ = writeln!(
            text,
            "203.0.113.9 - - [10/Oct/2026:13:55:0{second} +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"<script>\""
        );
    }
    text + "198.51.100.1 - - [10/Oct/2026:13:55:06 +0000] \"GET /b HTTP/1.1\" 200 5 \"-\" \"x\"\n"
}

#[test]
fn the_report_is_text_json_and_a_page() {
    let (rules, traffic) = (file(RULES), file(&log()));
    let (rules, traffic) = (rules.to_str().unwrap(), traffic.to_str().unwrap());
    let ran = run(&["backtest", "--rules", rules, "--traffic", traffic]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let sentence = "With these rules, 1 of 2 clients would be refused at least once.";
    assert!(ran.stdout.starts_with(sentence), "{}", ran.stdout);
    assert!(ran.stdout.contains("2 of 6 requests (33.3 %) would be refused."), "{}", ran.stdout);

    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let html = page.to_str().unwrap();
    let ran = run(&[
        "backtest",
        "--rules",
        rules,
        "--baseline",
        rules,
        "--traffic",
        traffic,
        "--json",
        "--html",
        html,
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let json = ran.json();
    assert_eq!(json["after"]["refused"], 2);
    assert_eq!(json["before"]["refused"], 2);
    assert_eq!(json["affected_clients"].as_array().unwrap().len(), 0);
    assert_eq!(json["recommendations"][0]["recommended"], 5);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.ends_with("</html>\n") && !page.contains("<script"));
}

#[test]
fn a_broken_guard_is_exit_code_1() {
    let (rules, traffic) = (file(RULES), file(&log()));
    let (rules, traffic) = (rules.to_str().unwrap(), traffic.to_str().unwrap());
    let guarded = |guard: &str| {
        run(&["backtest", "--rules", rules, "--traffic", traffic, "--fail-if", guard])
    };
    let ran = guarded("refused_share>0.3");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("refused_share>0.3 is true"), "{}", ran.stderr);
    assert_eq!(guarded("refused_share>0.4").code, 0);
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_what_to_do() {
    let (rules, traffic, broken) = (file(RULES), file(&log()), file("rules: [{limit: x}]"));
    let (rules, traffic) = (rules.to_str().unwrap(), traffic.to_str().unwrap());
    let unknown = file("hello\nworld\n");
    for (args, hint) in [
        (vec!["--traffic", traffic], "--rules"),
        (vec!["--rules", rules], "--traffic"),
        (vec!["--rules", rules, "--traffic", "/nonexistent/access.log"], "cannot be read"),
        (vec!["--rules", broken.to_str().unwrap(), "--traffic", traffic], "the rules are wrong"),
        (vec!["--rules", rules, "--traffic", unknown.to_str().unwrap()], "--format"),
        (
            vec!["--rules", rules, "--traffic", traffic, "--fail-if", "refused>"],
            "refused_share>0.01",
        ),
        (vec!["--rules", rules, "--traffic", traffic, "--aim", "refused_share<=2"], "from 0 to 1"),
        (vec!["--rules", rules, "--traffic", traffic, "--map", "x"], "FIELD=ATTRIBUTE"),
        (vec!["--rules", rules, "--traffic", traffic, "--html", "/nonexistent/x.html"], "writing"),
    ] {
        let ran = run(&[vec!["backtest"], args.clone()].concat());
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(hint), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
}
