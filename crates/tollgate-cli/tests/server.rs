//! `serve` and `check` against each other.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail like tests"
)]

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use support::{file, run, run_with, tollgate};

/// A server of its own, ended with the test.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = tollgate()
            .args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            .args(["--data-dir", "null", "--threads", "1"])
            .args(args)
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening http=").expect(&line);
        let address = address.split_whitespace().next().unwrap();
        Self { url: format!("http://{address}"), child }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_is_asked_and_charged_until_it_refuses() {
    let rules = file("rules: [{rule_id: two, identifier_type: user_id, limit: 2, window: 1d}]\n");
    let server = Server::start(&["--rules", rules.to_str().unwrap()], &[]);
    let check =
        |more: &[&str]| run(&[&["check", "--url", &server.url, "--user", "ann"], more].concat());
    assert_eq!(check(&["--peek"]).code, 0);
    assert_eq!(check(&["--json"]).json()["remaining"], 1);
    assert_eq!(check(&[]).code, 0);
    let ran = check(&[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("BLOCKED  HIT_TWO_LIMIT\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("retry after: "), "{}", ran.stdout);
    let ran = check(&["--model", &"x".repeat(300)]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("modelId"), "{}", ran.stderr);
}

#[test]
fn a_token_is_asked_for_and_taken_from_the_environment() {
    let tokens = file("open-sesame\n");
    let env = [("TOLLGATE_DATA_TOKEN_FILE", tokens.to_str().unwrap())];
    let server = Server::start(&["--data-auth", "token"], &env);
    let args = ["check", "--user", "ann"];
    let with =
        |token: &str| run_with(&args, &[("TOLLGATE_URL", &server.url), ("TOLLGATE_TOKEN", token)]);
    assert_eq!(with("open-sesame").code, 0);
    let ran = with("wrong");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("(status 401)"), "{}", ran.stderr);
}

#[test]
fn a_signal_ends_it_well() {
    let mut server = Server::start(&["--log-format", "json"], &[]);
    let kill =
        Command::new("sh").args(["-c", &format!("kill {}", server.child.id())]).status().unwrap();
    assert!(kill.success());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn no_server_is_a_failure() {
    // Bound and closed again: nobody listens there.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ran = run(&["check", "--url", &format!("http://127.0.0.1:{port}")]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("`tollgate serve` starts a server"), "{}", ran.stderr);
}

#[test]
fn a_taken_address_is_a_failure() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = run(&["serve", "--data-dir", "null", "--grpc", "null", "--http", &address]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("cannot listen on"), "{}", ran.stderr);
}
