//! Counters across restarts and crashes, and what is reported when they cannot be written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_e2e::{Client, Server, ServerBuilder, eventually};
use tollgate_testkit::Postgres;

const RULES: &str = "
default: none
rules:
  - {rule_id: fixed, scope: A, identifier_type: user_id, limit: 1000000, window: 365d, algorithm: fixed_window}
  - {rule_id: log, scope: B, identifier_type: user_id, limit: 1000000, window: 1d, algorithm: sliding_window_log}
  - {rule_id: counter, scope: C, identifier_type: user_id, limit: 1000000, window: 365d, algorithm: sliding_window_counter}
";

fn currents(client: &mut Client, user: &str) -> Vec<u64> {
    let peeked = client.post("/rate-limit/peek", &json!({"userId": user})).json();
    let scopes = peeked["scopes"].as_array().expect("scopes").clone();
    scopes.iter().map(|scope| scope["current"].as_u64().expect("a count")).collect()
}

#[test]
fn a_gentle_restart_loses_nothing() {
    let mut server = Server::with_rules(RULES);
    let mut client = server.client();
    for user in 0..50 {
        for _ in 0..=user {
            client.allow(&json!({"userId": format!("u{user}")}));
        }
    }
    server.restart();
    let mut client = server.client();
    for user in 0..50 {
        assert_eq!(currents(&mut client, &format!("u{user}")), [user + 1; 3], "u{user}");
    }
}

/// How often the server has written its counters to disk.
fn flushes(server: &Server) -> u64 {
    let metrics = server.client().get("/metrics").text();
    let line =
        metrics.lines().find_map(|line| line.strip_prefix("rate_limiter_memory_flushes_total{} "));
    line.and_then(|count| count.parse().ok()).expect("the number of flushes")
}

/// A crash may cost what was counted since the last flush began, and nothing that was counted before. A flush that begins
/// after a response holds its charge; of two that end after it, the second one has begun after it.
#[test]
fn a_crash_under_load_loses_at_most_the_last_flush_interval() {
    let mut server = Server::with_rules(RULES);
    let stop = AtomicBool::new(false);
    let addr = server.addr();
    let began = Instant::now();
    let mut is_on_disk = Duration::ZERO;
    let mut acknowledged: Vec<Duration> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Client::connect(addr).expect("a connection");
                    let mut answered = Vec::new();
                    let body = json!({"userId": "ann"}).to_string();
                    while !stop.load(Ordering::Relaxed) {
                        let sent =
                            client.try_request("POST", "/rate-limit/allow", &[], body.as_bytes());
                        let Ok(response) = sent else { break };
                        assert_eq!(response.json()["allowed"], Value::Bool(true));
                        answered.push(began.elapsed());
                    }
                    answered
                })
            })
            .collect();
        // In the middle of what follows a flush.
        for _ in 0..2 {
            let before = began.elapsed();
            let flushed = flushes(&server);
            eventually("two flushes", || flushes(&server) >= flushed + 2);
            is_on_disk = before;
        }
        server.signal("KILL");
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    server.wait();
    acknowledged.sort();
    let killed = *acknowledged.last().expect("some requests were answered");
    let kept = acknowledged.partition_point(|at| *at <= is_on_disk);
    assert!(kept > 0, "some requests were answered before the last two flushes");
    server.start_again();
    for count in currents(&mut server.client(), "ann") {
        let lost_from = acknowledged.get(count as usize).copied().unwrap_or(killed);
        println!(
            "answered {}, kept {count}: what was answered in the last {:?} is lost",
            acknowledged.len(),
            killed.saturating_sub(lost_from)
        );
        assert!(count as usize >= kept, "of {} only {count} are left", acknowledged.len());
        assert!(count as usize <= acknowledged.len() + 4, "more than was ever asked");
    }
}

#[test]
fn a_damaged_data_directory_never_stops_the_start() {
    let mut server = Server::with_rules(RULES);
    let mut client = server.client();
    for _ in 0..20 {
        client.allow(&json!({"userId": "ann"}));
    }
    drop(client);
    for round in 0..6 {
        server.signal("TERM");
        server.wait();
        let data = server.dir().join("data");
        for entry in std::fs::read_dir(&data).expect("the data directory").flatten() {
            let path = entry.path();
            let Ok(mut bytes) = std::fs::read(&path) else { continue };
            match round {
                0 => bytes.truncate(bytes.len() / 2),
                1 => bytes.clear(),
                2 => bytes.iter_mut().step_by(7).for_each(|byte| *byte ^= 0x55),
                3 => bytes = b"not a counter file at all".repeat(100),
                4 => bytes.extend_from_slice(&[0xFF; 64]),
                _ => {
                    let _ = std::fs::remove_file(&path);
                    let _ = std::fs::create_dir(&path);
                    continue;
                }
            }
            std::fs::write(&path, bytes).expect("the damage is done");
        }
        server.start_again();
        let decision = server.client().allow(&json!({"userId": "ann"}));
        assert_eq!(decision["allowed"], true, "round {round}");
        let current = decision["scopes"][0]["current"].as_u64().expect("a count");
        assert!(current <= 26, "round {round}: {current} was never counted");
    }
    assert!(server.log().contains("WARN") || server.log().contains("\"level\":\"WARN\""));
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// A data directory that cannot be written is reported, and so is that it can be written again.
#[test]
fn a_disk_that_can_be_written_again_is_reported() {
    let server = Server::with_rules("rules: []\n");
    let (data, aside) = (server.dir().join("data"), server.dir().join("aside"));
    std::fs::rename(&data, &aside).expect("the directory is moved");
    std::fs::write(&data, "in the way").expect("a file in its place");
    eventually("the failure is logged", || {
        server.log().contains("counters cannot be written to disk")
    });
    assert!(!server.log().contains("counters are written to disk again"));
    std::fs::remove_file(&data).expect("the file goes");
    std::fs::rename(&aside, &data).expect("the directory is back");
    eventually("its end is logged", || server.log().contains("counters are written to disk again"));
}

/// Records of decisions that cannot be written are counted, and their loss is logged, with its end.
#[test]
fn lost_records_of_decisions_are_logged() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let name = database.rsplit('/').next().expect("a name").to_owned();
    let rules = "rules:\n  - {rule_id: once, identifier_type: user_id, limit: 1, window: 365d, \
                 algorithm: fixed_window}\n";
    let args = ["--postgres", &database].map(str::to_owned);
    let server = ServerBuilder::default().rules(rules).args(&args).start();
    let refuse = |user: &str| {
        for _ in 0..2 {
            server.client().allow(&json!({"userId": user}));
        }
    };
    postgres.query(&name, "ALTER TABLE rate_limit_audit_log RENAME TO renamed");
    refuse("ann");
    let lost = "records of decisions cannot be written";
    eventually("the loss is logged", || server.log().contains(lost));
    postgres.query(&name, "ALTER TABLE renamed RENAME TO rate_limit_audit_log");
    refuse("ben");
    eventually("its end is logged", || server.log().contains("decisions are written again"));
    assert_eq!(server.log().matches(lost).count(), 1, "{}", server.log());
}
