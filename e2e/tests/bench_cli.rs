//! `tollgate bench` against a real server: what it counts is what the server decided.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tollgate_e2e::server::binary;
use tollgate_e2e::{Server, ServerBuilder, eventually};
use tollgate_testkit::Certificates;

/// Every key may pass so often; the window outlasts any test.
const LIMIT: u64 = 3;
const KEYS: u64 = 20;
const REQUESTS: u64 = 600;

const TOKEN: &str = "data-token-0123456789";
/// Its SHA-256.
const TOKEN_DIGEST: &str = "888280e914aa9fb50e349019f4dc437b9e6f91d03d2960b8f710aec8693bec2c";

const RULES: &str = "
default: false
rules:
  - {rule_id: per-user, identifier_type: user_id, limit: 3, window: 365d, algorithm: fixed_window}
  - {rule_id: per-tenant, identifier_type: tenant_id, limit: 3, window: 365d, algorithm: fixed_window}
  - {rule_id: per-key, identifier_type: api_key, limit: 3, window: 365d, algorithm: fixed_window}
  - {rule_id: per-address, identifier_type: ip, limit: 3, window: 365d, algorithm: fixed_window}
";

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("bench").args(args).env_remove("TOLLGATE_TOKEN").stdin(Stdio::null());
    command
}

/// Runs it to its end, which is to be a good one.
fn report(args: &[&str]) -> Value {
    let output = bench(args).arg("--json").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn count(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name}: {report:#}"))
}

/// Loads until every key has met its limit, and checks what was counted.
fn load(url: &str, target: &str, vary: &str, batch: u64, more: &[&str]) -> Value {
    let (requests, keys, batch_text) =
        ((REQUESTS / batch).to_string(), KEYS.to_string(), batch.to_string());
    let mut args = vec![url, "--target", target, "--vary", vary, "--requests", &requests];
    args.extend(["--keys", &keys, "--connections", "4", "--threads", "2", "--batch", &batch_text]);
    args.extend(more);
    let report = report(&args);
    assert_eq!(count(&report, "requests"), REQUESTS / batch, "{report:#}");
    assert_eq!(count(&report, "decisions"), REQUESTS, "{report:#}");
    assert_eq!(count(&report, "allowed"), KEYS * LIMIT, "{target} by {vary}: {report:#}");
    assert_eq!(count(&report, "refused"), REQUESTS - KEYS * LIMIT, "{report:#}");
    assert_eq!(count(&report, "errors"), 0, "{report:#}");
    report
}

fn urls(server: &Server) -> (String, String) {
    (format!("http://{}", server.addr()), format!("http://{}", server.grpc_addr()))
}

/// What the server says was used by all keys together.
fn used(server: &Server) -> u64 {
    let mut client = server.client();
    let users = (0..KEYS).map(|key| json!({"userId": format!("user-{key:02}")}));
    let answers = users.map(|user| client.post("/rate-limit/peek", &user).json());
    answers.map(|answer| answer["scopes"][0]["current"].as_u64().expect("a figure")).sum()
}

#[test]
fn http_counts_are_the_servers() {
    let server = Server::with_rules(RULES);
    let (url, _) = urls(&server);
    load(&url, "http", "userId", 1, &["--field", "modelId=gpt4"]);
    assert_eq!(used(&server), KEYS * LIMIT);
    load(&url, "batch", "tenantId", 10, &[]);
    load(&url, "http", "ip", 1, &["--rate", "3000"]);
    // All of one user's quota is spent already.
    let spent = report(&[&url, "--target", "check", "--requests", "50", "--keys", "20"]);
    assert_eq!((count(&spent, "allowed"), count(&spent, "refused")), (0, 50));
}

#[test]
fn grpc_streams_and_envoy_counts_are_the_servers() {
    let server = Server::with_rules(RULES);
    let (_, url) = urls(&server);
    load(&url, "grpc", "userId", 1, &["--streams", "8"]);
    assert_eq!(used(&server), KEYS * LIMIT);
    load(&url, "grpc-batch", "tenantId", 10, &["--streams", "2"]);
    load(&url, "grpc-stream", "apiKey", 5, &["--streams", "3"]);
    load(&url, "envoy", "ip", 1, &["--streams", "4", "--rate", "3000"]);
    let descriptor = ["--target", "envoy", "--descriptor", "user_id=ann-{key}", "--keys", "2"];
    let own = report(&[&[url.as_str(), "--requests", "50"], &descriptor[..]].concat());
    assert_eq!((count(&own, "allowed"), count(&own, "refused")), (2 * LIMIT, 50 - 2 * LIMIT));
}

#[test]
fn tls_is_spoken_by_both_protocols() {
    let certificates = Certificates::new();
    let path = |path: std::path::PathBuf| path.display().to_string();
    let ca = path(certificates.ca_file());
    let config = format!(
        "tls: {{cert_file: '{}', key_file: '{}'}}",
        path(certificates.server_cert_file()),
        path(certificates.server_key_file())
    );
    let server = ServerBuilder::default().config(&config).rules(RULES).start();
    let url = format!("https://localhost:{}", server.addr().port());
    load(&url, "http", "userId", 1, &["--ca", &ca]);
    let url = format!("https://localhost:{}", server.grpc_addr().port());
    load(&url, "grpc", "tenantId", 1, &["--ca", &ca]);
    let distrusting =
        bench(&[&url, "--target", "grpc", "--requests", "1"]).output().expect("it runs");
    assert_eq!(distrusting.status.code(), Some(1));
}

#[test]
fn a_page_is_written_that_needs_nothing_else() {
    let server = Server::with_rules(RULES);
    let (url, _) = urls(&server);
    let file = server.dir().join("report.html");
    let path = file.display().to_string();
    let output = bench(&[&url, "--requests", "200", "--html", &path, "--token", "secret-token"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("requests      200") && table.contains("service time"), "{table}");
    assert!(!table.contains('\u{1b}'), "no colour where there is no terminal");
    let page = fs::read_to_string(file).expect("the page");
    assert!(page.starts_with("<!doctype html>") && page.contains("Throughput"));
    for unwanted in ["secret-token", "<script", "<link", "<img", "src=", "href=", "url(", "@import"]
    {
        assert!(!page.contains(unwanted), "{unwanted}");
    }
}

#[test]
fn an_interrupt_ends_a_run_that_still_reports() {
    let server = Server::with_rules(RULES);
    let (url, _) = urls(&server);
    let args = [url.as_str(), "--rate", "500", "--duration", "1h", "--keys", "20", "--json"];
    let child = bench(&args).stdout(Stdio::piped()).spawn().expect("it runs");
    eventually("requests arrive", || used(&server) > 0);
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["was_halted"], true);
    assert!(count(&report, "requests") > 0);
}

#[test]
fn what_cannot_work_says_so_by_its_exit_code() {
    let server = ServerBuilder::default()
        .rules(RULES)
        .config(&format!("data_auth: token\ndata_tokens: [{TOKEN_DIGEST}]"))
        .start();
    let (url, grpc) = urls(&server);
    let code = |args: &[&str]| {
        let output = bench(args).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Nobody listens on port 1.
    let (unreachable, said) = code(&["http://127.0.0.1:1", "--requests", "1"]);
    assert_eq!(unreachable, Some(1), "{said}");
    assert!(said.contains("no connection"), "{said}");
    // Without a token every request fails.
    assert_eq!(code(&[&url, "--requests", "20"]).0, Some(1));
    assert_eq!(code(&[&grpc, "--target", "grpc", "--requests", "20"]).0, Some(1));
    let token = ["--token", TOKEN];
    assert_eq!(code(&[&[url.as_str(), "--requests", "20"], &token[..]].concat()).0, Some(0));
    for wrong in [
        &["127.0.0.1:8080"][..],
        &[&url, "--batch", "3"],
        &[&url, "--streams", "3"],
        &[&url, "--duration", "5"],
        &[&url, "--duration", "1s", "--requests", "5"],
        &[&url, "--keys", "0"],
        &[&url, "--field", "user=ann"],
        &[&url, "--header", "Content-Length: 3"],
        &[&url, "--target", "check", "--field", "cost=3"],
        &[&url, "--distribution", "hot", "--hot-share", "2"],
    ] {
        let (code, said) = code(wrong);
        assert_eq!(code, Some(2), "{wrong:?}: {said}");
    }
}
