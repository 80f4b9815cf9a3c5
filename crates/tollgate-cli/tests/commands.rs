//! What the commands print, and how they exit.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail like tests"
)]

mod support;

use std::process::Stdio;

use support::{file, run, run_with, tollgate};

const RULES: &str = "\
default: false
deny_list: ['user_id:mallory']
rules:
  - {rule_id: api, scope: API, identifier_type: user_id, limit: 5, window: 1m}
  - {rule_id: search, scope: SEARCH, limit: 10, window: 1h,
     applies_to: {endpoints: [/search], attributes: {region: eu}}}
";

#[test]
fn without_a_command_it_shows_help_and_exits_2() {
    let ran = run(&[]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("Usage: tollgate"), "{}", ran.stderr);
    assert_eq!(run(&["--help"]).code, 0);
    assert_eq!(run(&["serve", "--nonsense"]).code, 2);
    let version = run(&["--version"]);
    assert_eq!(version.stdout, format!("tollgate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn validate_counts_the_rules_of_a_right_file() {
    let path = file(RULES);
    let path = path.to_str().unwrap();
    let ran = run(&["rules", "validate", path]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, format!("{path}: ok: 2 rules\n").as_str()));
    let json = run(&["rules", "validate", "--json", path]).json();
    assert_eq!(json["ok"], true);
    assert_eq!(json["files"][0]["rules"], 2);
}

#[test]
fn validate_prints_every_problem_with_its_place() {
    let right = file(RULES);
    let wrong = file("rules:\n  - {rule_id: a, limit: x, window: 1m}\n  - {rule_id: b, lim: 1}\n");
    let (right, wrong) = (right.to_str().unwrap(), wrong.to_str().unwrap());
    let ran = run(&["rules", "validate", wrong, right]);
    assert_eq!(ran.code, 2);
    assert!(ran.stdout.contains(&format!("{wrong}:2:")), "{}", ran.stdout);
    assert!(ran.stdout.contains(&format!("{wrong}:3:")), "{}", ran.stdout);
    assert!(ran.stdout.contains(&format!("{right}: ok: 2 rules")), "{}", ran.stdout);
    let ran = run(&["rules", "validate", "--json", wrong]);
    assert_eq!(ran.code, 2);
    let problem = &ran.json()["files"][0]["problems"][0];
    assert_eq!((&problem["line"], &problem["rule"]), (&2.into(), &"a".into()));
}

#[test]
fn validate_reads_standard_input_and_says_what_it_cannot_read() {
    let mut child = tollgate()
        .args(["rules", "validate", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), RULES.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "<stdin>: ok: 2 rules\n");
    let ran = run(&["rules", "validate", "no-such-file.yaml"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.starts_with("error: no-such-file.yaml cannot be read: "), "{}", ran.stderr);
}

#[test]
fn the_schema_is_a_json_schema() {
    let ran = run(&["rules", "schema"]);
    assert_eq!(ran.code, 0);
    assert!(ran.json()["$schema"].is_string());
}

#[test]
fn config_check_reports_all_problems_and_exits_2() {
    let right = file("threads: 2\n");
    let ran = run(&["config", "check", "--config", right.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ok\n"));
    let wrong = file("thread: 2\nhttp: 1\n");
    let wrong = wrong.to_str().unwrap();
    let ran = run_with(&["config", "check"], &[("TOLLGATE_CONFIG", wrong)]);
    assert_eq!(ran.code, 2);
    assert!(ran.stdout.contains(&format!("{wrong}:1:1: thread: there is no such key")));
    assert!(ran.stdout.contains(&format!("{wrong}:2:7: http: must be an address")));
    let ran = run(&["config", "check", "--json", "--config", wrong]);
    assert_eq!(ran.code, 2);
    assert_eq!(ran.json()["problems"][0]["key"], "thread");
    assert_eq!(ran.json()["problems"][0]["line"], 1);
}

#[test]
fn config_check_opens_the_files_that_the_configuration_names() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let rules = write("rules.yaml", "rules: [{rule_id: a, limit: x}]\n");
    let keys = write("keys", "sk-in-the-clear\n");
    let pem = write("no.pem", "no certificate\n");
    let missing = folder.path().join("missing").display().to_string();
    let wrong = write(
        "wrong.yaml",
        &format!(
            "rules: '{rules}'
tls: {{cert_file: '{pem}', key_file: '{missing}'}}
identity: {{api_keys_file: '{keys}', jwt: {{algorithms: [RS256], jwks_file: '{missing}'}}}}
gateway:
  pools: {{a: {{targets: [{{url: 'https://127.0.0.1:1'}}], api_key_file: '{missing}'}}}}
  routes: [{{name: r, pool: a}}]
"
        ),
    );
    let ran = run(&["config", "check", "--config", &wrong]);
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    for says in [
        "rule_id a",
        "identity.api_keys_file: ",
        "line 1: a line begins with sha256:",
        "identity: ",
        "tls: ",
        "gateway.pools.a: ",
    ] {
        let shown = ran.stdout.replace("rule \"a\"", "rule_id a").replace("rule a", "rule_id a");
        assert!(shown.contains(says), "{says} is not in\n{shown}");
    }
    assert!(!ran.stdout.contains("in-the-clear\n"), "{}", ran.stdout);
    let ran = run(&["config", "check", "--skip-files", "--config", &wrong]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ok\n"));
}

#[test]
fn config_check_warns_about_keys_that_rules_by_tenant_do_not_limit() {
    let keys = file(&format!("sha256:{} user_id=ann\n", "a".repeat(64)));
    let rules = file(
        "rules: [{rule_id: by-tenant, identifier_type: tenant_id, limit: 9, window: 1m, algorithm: fixed_window}]\n",
    );
    let config = file(&format!(
        "rules: '{}'\nidentity: {{api_keys_file: '{}'}}\n",
        rules.display(),
        keys.display()
    ));
    let ran = run(&["config", "check", "--config", config.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ok\n"));
    assert!(ran.stderr.contains("1 of 1 registered API keys have no tenant_id"), "{}", ran.stderr);
    assert!(ran.stderr.contains("by-tenant"), "{}", ran.stderr);
    let ran = run(&["config", "check", "--json", "--config", config.to_str().unwrap()]);
    assert_eq!(ran.json()["warnings"].as_array().map(Vec::len), Some(1));
}

#[test]
fn config_show_lays_flags_over_variables_over_the_file() {
    let path = file("threads: 2\nmax_counters: 2000\nhttp: 127.0.0.1:1\n");
    let env = [
        ("TOLLGATE_CONFIG", path.to_str().unwrap()),
        ("TOLLGATE_MAX_COUNTERS", "3000"),
        ("TOLLGATE_HTTP", "127.0.0.1:2"),
        ("TOLLGATE_HTPP", "typo"),
    ];
    let ran = run_with(&["config", "show", "--json", "--http", "127.0.0.1:3"], &env);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let json = ran.json();
    assert_eq!(json["threads"], 2);
    assert_eq!(json["max_counters"], 3000);
    assert_eq!(json["http"], "127.0.0.1:3");
    assert!(ran.stderr.contains("warning: TOLLGATE_HTPP is set"), "{}", ran.stderr);
    let ran = run(&["config", "show", "--http", "0.0.0.0:80"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("--http: data_auth: is missing although"), "{}", ran.stderr);
}

#[test]
fn the_default_file_is_a_configuration() {
    let ran = run(&["config", "default"]);
    let path = file(&ran.stdout);
    let from_file = run(&["config", "show", "--config", path.to_str().unwrap()]);
    assert_eq!(from_file.stdout, run(&["config", "show"]).stdout);
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.stdout.contains("tollgate"), "{shell}");
    }
    assert_eq!(run(&["completions", "tcsh"]).code, 2);
}

#[test]
fn a_rule_file_is_asked_without_a_server() {
    let path = file(RULES);
    let rules = ["check", "--rules", path.to_str().unwrap()];
    let check = |more: &[&str]| run(&[&rules, more].concat());

    let ran = check(&["--user", "ann"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("ALLOWED  WITHIN_LIMITS\nrule \"api\""), "{}", ran.stdout);
    assert!(ran.stdout.contains("SCOPE  RULE  LIMIT  USED  REMAINING"), "{}", ran.stdout);
    assert!(ran.stdout.contains("API    api   5      1     4"), "{}", ran.stdout);

    let ran = check(&["--user", "ann", "--cost", "6"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.starts_with("BLOCKED  COST_EXCEEDS_LIMIT\n"), "{}", ran.stdout);
    assert_eq!(check(&["--user", "mallory"]).code, 1);

    let both = ["--user", "ann", "--endpoint", "/search", "--attribute", "region=eu", "--json"];
    let json = check(&both).json();
    assert_eq!(json["scopes"].as_array().unwrap().len(), 2);
    let peeked = check(&["--user", "ann", "--peek", "--json"]).json();
    assert_eq!(peeked["remaining"], 5);
}

#[test]
fn what_was_typed_wrongly_exits_2() {
    let path = file(RULES);
    let path = path.to_str().unwrap();
    let long = "x".repeat(300);
    for args in [
        &["check", "--rules", path, "--user", &long] as &[&str],
        &["check", "--rules", path, "--attribute", "region"],
        &["check", "--rules", path, "--url", "http://127.0.0.1:1"],
        &["check", "--ip", "here"],
        &["check", "--url", "ftp://127.0.0.1"],
        &["check", "--rules", "no-such-file.yaml"],
        &["serve", "--rules", "no-such-file.yaml", "--http", "127.0.0.1:0", "--data-dir", "null"],
        &["serve", "--enforcement", "maybe"],
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 2, "{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.starts_with("error: "), "{args:?}: {}", ran.stderr);
    }
}
