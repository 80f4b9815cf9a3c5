//! Live decisions, recorded and replayed.

use std::process::Command;

use serde_json::{Value, json};
use tollgate_e2e::server::binary;
use tollgate_e2e::{Server, ServerBuilder};

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

fn backtest(server: &Server, recording: &str) -> Value {
    let rules = server.dir().join("rules.yaml");
    let output = Command::new(binary())
        .args(["backtest", "--json", "--rules", rules.to_str().expect("a path")])
        .args(["--traffic", recording])
        .output()
        .expect("tollgate runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// Issue 22: replay equals reality, over all algorithms, one decision after the other.
#[test]
fn a_replay_of_the_recording_decides_as_the_node_did() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("recording");
    let folder = folder.to_str().expect("a path");
    let mut server =
        ServerBuilder::default().rules(RULES).args(&["--record".into(), folder.into()]).start();
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
    let report = backtest(&server, folder);
    assert_eq!(report["requests"], BATCHES * BATCH);
    assert_eq!(report["recorded"], BATCHES * BATCH);
    assert_eq!(report["recorded_differently"], 0, "{}", report["sentences"]);
    assert_eq!(report["after"]["refused"], refused);
    assert!(refused > BATCH && refused < (BATCHES - 1) * BATCH, "{refused} were refused");
    // Other rules decide otherwise, and the report says so.
    server.write_rules(&RULES.replace("limit: 40,", "limit: 4,"));
    let report = backtest(&server, folder);
    assert!(report["recorded_differently"].as_u64().expect("a count") > 0);
    assert!(report["after"]["refused"].as_u64().expect("a count") > refused);
}
