//! Start, drain, stop.

use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tollgate_e2e::server::binary;
use tollgate_e2e::{Client, Server, ServerBuilder};

#[test]
fn sigterm_finishes_what_is_under_way_and_exits_0() {
    let mut server = Server::start();
    let addr = server.addr();
    let mut idle = server.client();
    assert_eq!(idle.get("/healthz").status, 200);
    let mut busy = server.client();
    let body = json!({"userId": "ann", "modelId": "gpt4"}).to_string();
    let head = format!(
        "POST /rate-limit/allow HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // Half a request is under way when the signal comes.
    busy.write(head.as_bytes()).expect("a write");
    busy.write(&body.as_bytes()[..10]).expect("a write");
    tollgate_e2e::eventually("the head is read", || {
        // A second request on another connection has been answered after the head was sent.
        server.client().get("/healthz").status == 200
    });
    server.signal("TERM");
    assert!(idle.is_closed_by_server(), "idle connections are closed");
    busy.write(&body.as_bytes()[10..]).expect("the rest can be sent");
    let response = busy.read_response().expect("the request under way is answered");
    assert_eq!(response.status, 200);
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert!(Client::connect(addr).is_err(), "nobody listens any more");
}

/// Whether the process handles SIGTERM (bit 14 of the mask that the system reports).
fn handles_sigterm(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << 14) != 0)
}

/// A node that reads its configuration from a pipe, and waits because nobody writes to it.
fn waiting_for_its_configuration(command: &str, folder: &Path) -> Child {
    let pipe = folder.join("config.yaml");
    if !pipe.exists() {
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    }
    let mut node = Command::new(binary());
    node.args([command, "--config"]).arg(&pipe).current_dir(folder);
    node.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    node.spawn().expect("it runs")
}

/// Before the process has read anything, SIGTERM and SIGINT end it as they do later.
#[test]
fn a_signal_before_the_configuration_is_read_ends_it_with_0() {
    const ROUNDS: usize = 10;
    let folder = tempfile::tempdir().expect("a folder");
    for round in 0..ROUNDS {
        for (command, signal) in [("serve", "TERM"), ("serve", "INT"), ("gateway", "TERM")] {
            let mut node = waiting_for_its_configuration(command, folder.path());
            tollgate_e2e::eventually("it handles signals", || {
                assert!(node.try_wait().expect("a child").is_none(), "it waits for the pipe");
                handles_sigterm(node.id())
            });
            let kill = format!("kill -{signal} {}", node.id());
            assert!(Command::new("sh").args(["-c", &kill]).status().is_ok_and(|s| s.success()));
            let status = node.wait().expect("it ends");
            assert_eq!(status.code(), Some(0), "{command}, SIG{signal}, round {round}: {status}");
        }
    }
}

/// Commands that serve nothing end by a signal as programs do.
#[test]
fn a_signal_ends_other_commands_as_the_system_does() {
    let mut check = Command::new(binary());
    check.args(["rules", "validate", "-"]);
    check.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut check = check.spawn().expect("it runs");
    let kill = format!("kill -TERM {}", check.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().is_ok_and(|s| s.success()));
    assert_eq!(check.wait().expect("it ends").signal(), Some(15));
}

/// A thread that cannot be stopped, here in the read of a password file that is a pipe now, does not keep the process.
#[test]
fn a_stuck_thread_does_not_keep_the_process() {
    let redis = tollgate_testkit::Redis::start();
    let user = ["ACL", "SETUSER", "counter", "on", ">secret", "~*", "&*", "+@all"];
    assert!(redis.call(&user).is_ok(), "a user of Redis");
    let builder = ServerBuilder::default();
    let file = builder.file("password", "secret\n");
    let mut server = builder
        .arg("--redis")
        .arg(&format!("redis://counter@127.0.0.1:{}", redis.port()))
        .env("TOLLGATE_REDIS_PASSWORD_FILE", file.to_str().expect("a path"))
        .start();
    let pipe = server.dir().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    std::fs::rename(&pipe, &file).expect("the pipe takes the place of the file");
    // A pipe can be opened for writing, without waiting, once somebody reads it.
    let mut write = std::fs::OpenOptions::new();
    write.write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    let mut writer = None;
    tollgate_e2e::eventually("a thread reads the pipe", || {
        writer = write.open(&file).ok();
        writer.is_some()
    });
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    drop(writer);
}

/// Tools such as `timeout` signal the process and its group at the same time.
#[test]
fn two_signals_at_once_are_one_request_to_end() {
    let mut server = Server::start();
    let command = format!("kill -TERM {0}; kill -INT {0}", server.pid());
    let status = Command::new("sh").args(["-c", &command]).status();
    assert!(status.is_ok_and(|status| status.success()));
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn load_balancers_are_notified_before_the_listener_closes() {
    let mut server = ServerBuilder::default().env("TOLLGATE_LIMITS_DRAIN_DELAY_MS", "1500").start();
    let mut client = server.client();
    server.signal("TERM");
    tollgate_e2e::eventually("it is not ready any more", || client.get("/readyz").status == 503);
    let body = json!({"userId": "ann", "modelId": "gpt4"});
    assert_eq!(server.client().allow(&body)["allowed"], true, "and yet it serves");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_taken_port_and_wrong_rules_stop_the_start_with_reasons() {
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a directory");
    let start = |args: &[&str]| {
        let output = Command::new(binary())
            .arg("serve")
            .args(["--data-dir", &dir.path().display().to_string(), "--grpc", "127.0.0.1:0"])
            .args(args)
            .output()
            .expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, stderr) = start(&["--http", &server.addr().to_string()]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("cannot listen on"), "{stderr}");

    let rules = dir.path().join("rules.yaml");
    std::fs::write(
        &rules,
        "rules:
  - {rule_id: a, limit: -1, window: 1m}
  - {rule_id: b, limit: 1, window: 0s}
  - {rule_id: c, limit: 1, window: 1m, algorithm: magic}
  - {rule_id: c, limit: 1, window: 1m, colour: red}
  - {rule_id: d, limit: 5, window: 1m, costs: [{endpoint: /x, cost: 9}]}
  - {rule_id: e, limit: 1, window: 1m, applies_to: {endpoints: ['/a/{b']}}
",
    )
    .expect("a file");
    let rules = rules.display().to_string();
    let (code, stderr) = start(&["--http", "127.0.0.1:0", "--rules", &rules]);
    assert_eq!(code, Some(2), "{stderr}");
    let lines = [
        ("\"a\"", "limit"),
        ("\"b\"", "window"),
        ("\"c\"", "algorithm"),
        ("\"c\"", "rule_id"),
        ("\"c\"", "colour"),
        ("\"d\"", "cost"),
        ("\"e\"", "endpoints"),
    ];
    for (rule, field) in lines {
        let named = stderr.lines().any(|line| {
            line.contains(rule) && line.contains(field) && line.contains("rules.yaml:")
        });
        assert!(named, "{rule} {field} in:\n{stderr}");
    }
}

#[test]
fn a_second_process_on_the_same_data_serves_and_leaves_it_alone() {
    let mut first = Server::start();
    let body = json!({"userId": "ann", "modelId": "gpt4"});
    first.client().allow(&body);
    let data = first.dir().join("data").display().to_string();
    let mut second = ServerBuilder::default().env("TOLLGATE_DATA_DIR", &data).no_data_dir().start();
    assert_eq!(second.client().allow(&body)["remaining"], 99, "it counts on its own");
    assert!(second.log().contains("not persisted"), "{}", second.log());
    second.signal("TERM");
    second.wait();
    first.restart();
    assert_eq!(first.client().allow(&body)["remaining"], 98, "the first one's counters are whole");
}
