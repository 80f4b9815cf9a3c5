//! Live decisions, recorded and replayed.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tollgate_e2e::server::binary;
use tollgate_e2e::{Server, ServerBuilder, eventually};
use tollgate_testkit::Redis;

use crate::reservations::Draw;

/// All algorithms, with limits that are met often.
const RULES: &str = "
default: none
tiers: [{name: free, is_default: true}, {name: gold}]
client_tiers: [{type: user_id, value: u1, tier: gold}]
rules:
  - {rule_id: fixed, scope: A, identifier_type: user_id, limit: 40, window: 1s, algorithm: fixed_window,
     applies_to: {endpoints: [/fixed]}, tier_limits: {gold: 90}}
  - {rule_id: log, scope: B, identifier_type: user_id, limit: 30, window: 2s, algorithm: sliding_window_log,
     applies_to: {endpoints: [/log]}}
  - {rule_id: sliding, scope: C, identifier_type: tenant_id, limit: 60, window: 1s,
     algorithm: sliding_window_counter, applies_to: {endpoints: [/sliding]}}
  - {rule_id: token, scope: D, identifier_type: user_id, limit: 300, window: 1s, burst: 50, algorithm: token_bucket,
     applies_to: {endpoints: [/token]}}
  - {rule_id: leaky, scope: E, limit: 1000, window: 1s, algorithm: leaky_bucket, burst: 100,
     applies_to: {endpoints: [/leaky]}}
  - {rule_id: gcra, scope: F, identifier_type: composite, key_by: [region], limit: 700, window: 1s, burst: 7,
     algorithm: gcra, applies_to: {endpoints: [/gcra]}}
  - {rule_id: slots, scope: G, identifier_type: api_key, unit: concurrency, limit: 30, slot_ttl: 60s,
     applies_to: {endpoints: [/slots]}}
  - {rule_id: all, scope: ALL, identifier_type: tenant_id, limit: 4000, window: 1s, algorithm: fixed_window, unit: cost}
  - {rule_id: tokens, scope: T, identifier_type: user_id, unit: tokens, limit: 6000, window: 3s,
     algorithm: token_bucket, applies_to: {endpoints: [/token, /gcra]}}
";

const ENDPOINTS: [&str; 8] =
    ["/fixed", "/log", "/sliding", "/token", "/leaky", "/gcra", "/slots", "/a/../unknown"];

/// Decisions: 100 batches of so many.
const BATCH: u64 = 1_000;
const BATCHES: u64 = 100;

fn batch(seed: u64) -> Value {
    let requests: Vec<Value> = (0..BATCH)
        .map(|number| {
            let mut random = (seed * BATCH + number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            random ^= random >> 29;
            random = random.wrapping_mul(0xbf58_476d_1ce4_e5b9);
            random ^= random >> 32;
            let user = random % 40;
            let mut request = json!({
                "userId": format!("u{user}"), "tenantId": format!("t{}", user % 5),
                "apiKey": format!("key-{}", user % 7), "endpoint": ENDPOINTS[(random >> 8) as usize % 8],
                "tokens": (random >> 16) % 50,
                "attributes": {"region": if random & 1 == 0 { "eu" } else { "us" }},
            });
            if (random >> 24).is_multiple_of(4) {
                request["cost"] = json!(1 + (random >> 32) % 3);
            }
            request
        })
        .collect();
    json!({ "requests": requests })
}

fn backtest(rules: &Path, more: &[&str], recording: &str) -> Value {
    let output = Command::new(binary())
        .args(["backtest", "--json", "--rules", rules.to_str().expect("a path")])
        .args(more)
        .args(["--traffic", recording])
        .output()
        .expect("tollgate runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// Decides all batches and ends the server; returns how many requests were refused.
fn decide_batches(server: &mut Server) -> u64 {
    let mut client = server.client();
    let mut refused = 0;
    for seed in 0..BATCHES {
        let answer = client.post("/rate-limit/allow/batch", &batch(seed)).json();
        let decisions = answer["decisions"].as_array().expect("decisions").clone();
        assert_eq!(decisions.len() as u64, BATCH);
        refused += decisions.iter().filter(|decision| decision["allowed"] == false).count() as u64;
    }
    server.signal("TERM");
    assert!(server.wait().success());
    assert!(refused > BATCH && refused < (BATCHES - 1) * BATCH, "{refused} were refused");
    refused
}

fn recorded_differently(report: &Value) -> u64 {
    report["recorded_differently"].as_u64().expect("a count")
}

/// Issue 22: replay equals reality, over all algorithms, one decision after the other.
#[test]
fn a_replay_of_the_recording_decides_as_the_node_did() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("recording");
    let folder = folder.to_str().expect("a path");
    let mut server =
        ServerBuilder::default().rules(RULES).args(&["--record".into(), folder.into()]).start();
    let refused = decide_batches(&mut server);
    let rules = server.dir().join("rules.yaml");
    // The baseline is what was in force while it was recorded.
    let report = backtest(&rules, &[], folder);
    assert_eq!(report["requests"], BATCHES * BATCH);
    assert_eq!(report["recorded"], BATCHES * BATCH);
    assert_eq!(recorded_differently(&report), 0, "{}", report["sentences"]);
    assert_eq!(report["after"]["refused"], refused);
    assert_eq!(report["before"]["refused"], refused);
    // Other rules decide otherwise, and the report says so.
    server.write_rules(&RULES.replace("limit: 40,", "limit: 4,"));
    let report = backtest(&rules, &[], folder);
    assert_eq!(recorded_differently(&report), 0);
    assert!(report["after"]["refused"].as_u64().expect("a count") > refused);
    let report = backtest(&rules, &["--baseline", rules.to_str().expect("a path")], folder);
    assert!(recorded_differently(&report) > 0);
}

/// The same on Redis. A decision has the time of the server to the microsecond, and several of one batch are decided at
/// one instant in one script: nothing differs but what is decided within that grain.
#[test]
fn a_replay_of_a_recording_on_redis_decides_as_the_node_did() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("recording");
    let folder = folder.to_str().expect("a path");
    let args = ["--record", folder, "--redis", &redis.url()].map(str::to_owned);
    let mut server = ServerBuilder::default().rules(RULES).args(&args).start();
    let refused = decide_batches(&mut server);
    let report = backtest(&server.dir().join("rules.yaml"), &[], folder);
    assert_eq!(report["recorded"], BATCHES * BATCH);
    let differently = recorded_differently(&report);
    eprintln!("{differently} of {} differ; {refused} refused", BATCHES * BATCH);
    assert!(differently <= BATCHES * BATCH / 10_000, "{differently} differ: {}", report["input"]);
}

/// Limits that are changed after the decision, reset, and changed themselves.
const HELD: &str = "
default: none
rules:
  - {rule_id: tokens, scope: T, identifier_type: user_id, unit: tokens, limit: 3000, window: 30d, algorithm: fixed_window}
  - {rule_id: bucket, scope: B, identifier_type: user_id, unit: tokens, limit: 500, window: 1s, burst: 1500, algorithm: token_bucket}
  - {rule_id: log, scope: L, identifier_type: tenant_id, unit: cost, limit: 400, window: 1d, algorithm: sliding_window_log}
  - {rule_id: slots, scope: S, identifier_type: tenant_id, unit: concurrency, limit: 6, slot_ttl: 60s}
  - {rule_id: named, scope: K, identifier_type: api_key, limit: 40, window: 30d, algorithm: fixed_window,
     applies_to: {api_keys: [sk-secret-0]}}
deny_list: ['user_id:u9']
";

/// Reserves, settles, releases, renews and resets; returns how many requests were refused.
fn work(server: &Server, draw: &mut Draw, rounds: u64) -> u64 {
    let (mut client, mut admin) = (server.client(), server.admin());
    // What is held, and whether it can be settled: a slot of an allowed request is only released.
    let (mut open, mut refused): (Vec<(String, bool)>, u64) = (Vec::new(), 0);
    let id_of = |answer: &Value| answer["reservationId"].as_str().map(str::to_owned);
    for _ in 0..rounds {
        let user = draw.next(10);
        let mut body = json!({
            "userId": format!("u{user}"), "tenantId": format!("t{}", user % 3),
            "apiKey": format!("sk-secret-{}", user % 4),
            "tokens": 1 + draw.next(120), "cost": 1 + draw.next(3),
        });
        match draw.next(20) {
            0..8 => {
                body["ttlMs"] = json!(600_000);
                let answer = client.post("/rate-limit/reserve", &body).json();
                open.extend(id_of(&answer).map(|id| (id, true)));
                refused += u64::from(answer["allowed"] == false);
            }
            8 => {
                let path = format!("usage/user_id/u{user}/reset");
                admin.put(&path, &json!({}));
            }
            9 if !open.is_empty() => {
                let (id, _) = &open[draw.next(open.len() as u64) as usize];
                client.post("/rate-limit/renew", &json!({ "reservationId": id, "ttlMs": 700_000 }));
            }
            10..17 if !open.is_empty() => {
                let (id, can_settle) = open.swap_remove(draw.next(open.len() as u64) as usize);
                let (path, body) = if draw.next(3) == 0 || !can_settle {
                    ("/rate-limit/release", json!({ "reservationId": id }))
                } else {
                    ("/rate-limit/settle", json!({ "reservationId": id, "tokens": draw.next(200) }))
                };
                let answer = client.post(path, &body);
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            _ => {
                let answer = client.post("/rate-limit/allow", &body).json();
                open.extend(id_of(&answer).map(|id| (id, false)));
                refused += u64::from(answer["allowed"] == false);
            }
        }
    }
    // What is held is released, so that the next part begins without slots.
    for (id, _) in open {
        client.post("/rate-limit/release", &json!({ "reservationId": id }));
    }
    refused
}

/// Settlements, releases, renewals, resets, lists, changes of rules, and what counters held at the start.
#[test]
fn what_happens_after_decisions_is_recorded_and_replayed() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("recording");
    let path = folder.to_str().expect("a path");
    let mut server =
        ServerBuilder::default().rules(HELD).args(&["--record".into(), path.into()]).start();
    let mut draw = Draw(22);
    let refused = work(&server, &mut draw, 1_500);
    assert!(refused > 100, "{refused}");
    // A list and a limit change while it is recorded.
    server.write_rules(&HELD.replace("limit: 400,", "limit: 700,").replace("u9", "u8"));
    eventually("the rules are reloaded", || server.log().contains("rules reloaded"));
    work(&server, &mut draw, 1_500);
    server.restart();
    let before = files(&folder);
    work(&server, &mut draw, 1_500);
    server.signal("TERM");
    assert!(server.wait().success());
    let rules = server.dir().join("rules.yaml");
    let report = backtest(&rules, &[], path);
    assert!(report["recorded"].as_u64().expect("a count") > 2_000, "{}", report["input"]);
    assert_eq!(recorded_differently(&report), 0, "{}", report["input"]["notes"]);
    let notes = report["input"]["notes"].to_string();
    assert!(notes.contains("changed once while it was recorded"), "{notes}");
    // Nothing that a caller could use is in the files.
    for file in files(&folder) {
        let content = inflated(&file);
        assert!(!content.contains("sk-secret"), "{}", file.display());
    }
    // The part after the restart alone: what the counters held is in it, exact but for the times of single entries.
    for file in &before {
        std::fs::remove_file(file).expect("removed");
    }
    let report = backtest(&rules, &[], path);
    let (all, differently) =
        (report["recorded"].as_u64().unwrap_or(0), recorded_differently(&report));
    assert!(all > 700, "{all}");
    assert!(differently * 100 <= all, "{differently} of {all} differ: {}", report["input"]);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// All blocks of a recording, as text.
fn inflated(file: &Path) -> String {
    let bytes = std::fs::read(file).expect("a recording");
    let (mut rest, mut text) = (&bytes[8..], String::new());
    while let Some((frame, after)) = rest.split_first_chunk::<8>() {
        let (body, next) = after.split_at(u64::from_le_bytes(*frame) as u32 as usize);
        let mut plain = Vec::new();
        flate2::read::DeflateDecoder::new(body).read_to_end(&mut plain).expect("a block");
        text.push_str(&String::from_utf8_lossy(&plain));
        rest = next;
    }
    text
}
