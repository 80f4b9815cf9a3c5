//! Two regions, each with a Redis of its own, and a global one far away.

use std::time::Duration;

use serde_json::json;
use tollgate_e2e::{Fleet, Server, ServerBuilder, eventually};
use tollgate_testkit::{FaultProxy, Redis};

const RULES: &str = "rules:
  - {rule_id: here, scope: REGION, identifier_type: user_id, limit: 60, window: 30d, algorithm: fixed_window, store: regional}
  - {rule_id: everywhere, scope: WORLD, identifier_type: user_id, limit: 100, window: 30d, algorithm: fixed_window, store: global, consistency: leased, max_overshoot: 0.2}
";

fn node(regional: &Redis, global: &FaultProxy) -> Server {
    let config = format!(
        "stores:\n  regional: {{urls: [\"{}\"], timeout_ms: 2000}}\n  global: {{urls: [\"{}\"], timeout_ms: 3000}}\n",
        regional.url(),
        global.url("redis"),
    );
    ServerBuilder::default().config(&config).rules(RULES).start()
}

#[test]
fn a_region_has_its_own_limit_and_a_part_of_the_global_one() {
    let _alone = tollgate_e2e::alone();
    let (east, west, world) = (Redis::start(), Redis::start(), Redis::start());
    let far = FaultProxy::start(world.addr());
    far.delay(Duration::from_millis(40));
    let fleet = Fleet::of(vec![node(&east, &far), node(&east, &far), node(&west, &far)]);
    let answers = fleet.flood(8, 10, |_, _| json!({"userId": "ann"}));
    assert!(answers.iter().all(|answer| !answer.is_degraded()), "the stores are there");
    let by_region = |nodes: &[usize]| {
        answers.iter().filter(|a| a.is_allowed() && nodes.contains(&a.node)).count()
    };
    let (in_east, in_west) = (by_region(&[0, 1]), by_region(&[2]));
    println!("east {in_east}, west {in_west} of 60 each and 100 together");
    assert!(in_east <= 60 && in_west <= 60, "{in_east} and {in_west}");
    assert!(in_east + in_west <= 100, "one window: nothing can be spent twice");
    assert!(in_east + in_west >= 80, "at most a fifth is on lease");
    // Regions count for themselves; the global store counts both once leases are returned.
    eventually("the global count is what was admitted", || {
        let answer = fleet.ask(2, "/rate-limit/peek", &json!({"userId": "ann"})).json();
        let scopes = answer["scopes"].as_array().cloned().unwrap_or_default();
        let of = |rule: &str| {
            scopes
                .iter()
                .find(|scope| scope["ruleId"] == rule)
                .map(|scope| scope["current"].clone())
        };
        of("everywhere") == Some(json!(in_east + in_west)) && of("here") == Some(json!(in_west))
    });
}

/// The global store is gone: regions go on with their own limits, and their share of the global one.
#[test]
fn a_region_outlives_the_global_store() {
    let _alone = tollgate_e2e::alone();
    let (east, world) = (Redis::start(), Redis::start());
    let far = FaultProxy::start(world.addr());
    let server = node(&east, &far);
    let mut client = server.client();
    assert_eq!(client.allow(&json!({"userId": "ann"}))["degraded"], false);
    far.cut();
    eventually("it notices", || client.allow(&json!({"userId": "bob"}))["degraded"] == true);
    let mut admitted = 0;
    for _ in 0..80 {
        let answer = client.post("/rate-limit/allow", &json!({"userId": "cid"})).json();
        admitted += u64::from(answer["allowed"] == true);
    }
    assert_eq!(admitted, 60, "the region's own limit holds, exactly");
    far.heal();
    eventually("the global store counts again", || {
        client.allow(&json!({"userId": format!("dee-{admitted}")}))["degraded"] == false
    });
}

#[test]
fn a_rule_for_a_store_that_is_not_there_is_refused() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let rules =
        "rules: [{rule_id: a, identifier_type: user_id, limit: 1, window: 1m, store: mars}]";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("rules.yaml");
    std::fs::write(&path, rules).expect("written");
    let output = std::process::Command::new(tollgate_e2e::server::binary())
        .args([
            "serve",
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--data-dir",
            "null",
            "--redis",
            &redis.url(),
            "--rules",
        ])
        .arg(&path)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("mars") && said.contains("default"), "{said}");
}

/// A refused request leaves nothing behind in any store, whenever its client hangs up.
#[test]
fn clients_that_hang_up_leave_nothing_behind() {
    let _alone = tollgate_e2e::alone();
    let (east, world) = (Redis::start(), Redis::start());
    let far = FaultProxy::start(world.addr());
    far.delay(Duration::from_millis(2));
    let rules = "rules:
  - {rule_id: here, scope: REGION, identifier_type: user_id, limit: 1000, window: 30d, algorithm: fixed_window, store: regional}
  - {rule_id: everywhere, scope: WORLD, identifier_type: user_id, limit: 10, window: 30d, algorithm: fixed_window, store: global}
";
    let config = format!(
        "stores:\n  regional: {{urls: [\"{}\"], timeout_ms: 2000}}\n  global: {{urls: [\"{}\"], timeout_ms: 3000}}\n",
        east.url(),
        far.url("redis"),
    );
    let server = ServerBuilder::default().config(&config).rules(rules).start();
    let ann = json!({"userId": "ann"});
    for _ in 0..10 {
        assert_eq!(server.client().allow(&ann)["allowed"], true);
    }
    for number in 0..100 {
        let after = Duration::from_micros(number * 70);
        server.client().send_and_hang_up("/rate-limit/allow", &ann, after);
    }
    eventually("what was held is given back", || {
        let answer = server.client().post("/rate-limit/peek", &ann).json();
        let scopes = answer["scopes"].as_array().cloned().unwrap_or_default();
        scopes.len() == 2 && scopes.iter().all(|scope| scope["current"] == 10)
    });
    std::thread::sleep(Duration::from_millis(100));
    let answer = server.client().post("/rate-limit/peek", &ann).json();
    assert_eq!(
        (&answer["scopes"][0]["current"], &answer["scopes"][1]["current"]),
        (&json!(10), &json!(10))
    );
}
