//! Redis Cluster: limits over several slots, resharding, failover, nodes killed while they hold.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_e2e::{Answer, Fleet, eventually};
use tollgate_testkit::{Cluster, Sentinel};

/// Three scopes whose counters live in different slots.
const RULES: &str = "rules:
  - {rule_id: tenant, identifier_type: tenant_id, limit: 300, window: 30d, algorithm: fixed_window}
  - {rule_id: user, identifier_type: user_id, limit: 40, window: 30d, algorithm: token_bucket}
  - {rule_id: model, identifier_type: composite, key_by: [model_id], limit: 400, window: 30d, algorithm: sliding_window_log}
";

/// With patience where exactness is tested, and without where it is how fast a failure is noticed.
fn fleet(cluster: &Cluster, nodes: usize, is_patient: bool) -> Fleet {
    let urls = cluster.urls();
    let mut args = vec!["--redis-cluster"];
    for url in &urls {
        args.extend(["--redis", url]);
    }
    if is_patient { Fleet::patient(nodes, RULES, &args) } else { Fleet::start(nodes, RULES, &args) }
}

fn body(client: usize, request: usize) -> Value {
    let mixed = (client * 7919 + request * 104_729) % 1_000;
    json!({
        "tenantId": format!("t{}", mixed % 3),
        "userId": format!("u{}", mixed % 17),
        "modelId": format!("m{}", mixed % 2),
    })
}

/// How much of every limit the admitted requests have charged.
fn charged(answers: &[Answer], bodies: &[Value]) -> std::collections::BTreeMap<String, u64> {
    let mut sums = std::collections::BTreeMap::new();
    for (answer, body) in answers.iter().zip(bodies) {
        if answer.is_allowed() {
            for field in ["tenantId", "userId", "modelId"] {
                let name = format!("{field}={}", body[field].as_str().unwrap_or_default());
                *sums.entry(name).or_insert(0) += 1;
            }
        }
    }
    sums
}

fn counted(fleet: &Fleet, name: &str) -> u64 {
    let (field, value) = name.split_once('=').expect("a name");
    let rule = match field {
        "tenantId" => "tenant",
        "userId" => "user",
        _ => "model",
    };
    let answer = fleet.ask(0, "/rate-limit/peek", &json!({field: value})).json();
    let scopes = answer["scopes"].as_array().expect("scopes");
    let scope = scopes.iter().find(|scope| scope["ruleId"] == rule);
    scope.and_then(|scope| scope["current"].as_u64()).unwrap_or_else(|| panic!("{answer}"))
}

/// Sends so many requests per client and returns the answers with the bodies of their requests.
fn run(fleet: &Fleet, clients: usize, requests: usize) -> (Vec<Answer>, Vec<Value>) {
    let answers = fleet.flood(clients, requests, |client, request| {
        let mut body = body(client, request);
        body["attributes"] = json!({"sent": format!("{client}/{request}")});
        body
    });
    let nodes = fleet.nodes().len();
    assert_eq!(answers.len(), nodes * clients * requests);
    // Answers come client by client, in the order of their requests.
    let bodies = (0..nodes * clients)
        .flat_map(|client| (0..requests).map(move |request| body(client, request)))
        .collect();
    (answers, bodies)
}

#[test]
fn limits_over_several_slots_are_charged_together() {
    let _alone = tollgate_e2e::alone();
    let cluster = Cluster::start(3, 0);
    let fleet = fleet(&cluster, 3, true);
    let (answers, bodies) = run(&fleet, 12, 25);
    assert!(answers.iter().all(|answer| !answer.is_degraded()));
    let refused = answers.iter().filter(|answer| !answer.is_allowed()).count();
    assert!(refused > 0 && refused < answers.len(), "{refused} of {}", answers.len());
    for (name, sum) in charged(&answers, &bodies) {
        let most = if name.starts_with('t') {
            300
        } else if name.starts_with('u') {
            40
        } else {
            400
        };
        assert!(sum <= most, "{name}: {sum} of {most}");
        assert_eq!(counted(&fleet, &name), sum, "{name}: what is counted is what was admitted");
    }
}

/// Nodes killed while their requests are under way leave at most what they held.
#[test]
fn nodes_killed_mid_flight_over_admit_nothing() {
    let _alone = tollgate_e2e::alone();
    let cluster = Cluster::start(3, 0);
    let fleet = fleet(&cluster, 3, true);
    let load = fleet.load(16, body);
    std::thread::sleep(Duration::from_millis(400));
    for node in &fleet.nodes()[1..] {
        node.signal("KILL");
    }
    std::thread::sleep(Duration::from_millis(300));
    let answers = load.stop();
    let admitted = |answer: &&Answer| answer.is_allowed();
    let sum = answers.iter().filter(admitted).count() as u64;
    // At most one request of every client was under way; each may have left a charge behind.
    let held = 2 * 16;
    let mut total = 0;
    for tenant in ["t0", "t1", "t2"] {
        let used = counted(&fleet, &format!("tenantId={tenant}"));
        assert!(used <= 300, "{tenant}: {used}");
        total += used;
    }
    for user in 0..17 {
        assert!(counted(&fleet, &format!("userId=u{user}")) <= 40, "u{user}");
    }
    assert!(total >= sum, "nothing that was admitted is missing: {total} < {sum}");
    assert!(total <= sum + held, "{total} counted, {sum} admitted, at most {held} held");
}

#[test]
fn resharding_under_load_loses_and_mints_nothing() {
    let _alone = tollgate_e2e::alone();
    let cluster = Cluster::start(3, 0);
    let fleet = fleet(&cluster, 2, true);
    let users: Vec<String> = (0..4).map(|user| format!("u{user}")).collect();
    let slot = tollgate_testkit::slot_of("u0");
    let from = cluster.master_of(slot);
    let to = cluster.masters().into_iter().find(|node| *node != from).expect("another master");
    let load = fleet.load(8, |client, request| {
        std::thread::sleep(Duration::from_millis(1));
        json!({"userId": format!("u{}", (client + request) % 4)})
    });
    std::thread::sleep(Duration::from_millis(200));
    cluster.begin_move(slot, to);
    std::thread::sleep(Duration::from_millis(300));
    while cluster.move_keys(slot, to, 10) > 0 {}
    cluster.finish_move(slot, to);
    std::thread::sleep(Duration::from_millis(300));
    let answers = load.stop();
    let degraded = answers.iter().filter(|answer| answer.is_degraded()).count();
    println!("resharding: {} answers, {degraded} degraded", answers.len());
    assert_eq!(cluster.master_of(slot), to);
    assert!(degraded * 10 <= answers.len(), "{degraded} of {}", answers.len());
    let admitted = answers.iter().filter(|answer| answer.is_allowed()).count() as u64;
    let mut total = 0;
    for user in &users {
        let used = counted(&fleet, &format!("userId={user}"));
        assert!(used <= 40 + degraded as u64, "{user}: {used}");
        total += used;
    }
    assert!(
        total >= admitted.saturating_sub(degraded as u64),
        "{total} counted, {admitted} admitted"
    );
    assert!(admitted <= 160 + degraded as u64, "{admitted}");
}

#[test]
fn service_goes_on_when_a_master_is_killed() {
    let _alone = tollgate_e2e::alone();
    let cluster = Cluster::start(3, 1);
    let fleet = fleet(&cluster, 2, false);
    let load = fleet.load(8, |client, request| {
        std::thread::sleep(Duration::from_millis(5));
        json!({"userId": format!("u{}-{}", client, request / 10)})
    });
    std::thread::sleep(Duration::from_millis(300));
    cluster.kill_master_of(tollgate_testkit::slot_of("u0"));
    cluster.wait_until_healthy();
    for node in 0..2 {
        let mut user = 0;
        let mut good = 0;
        eventually("decisions are made by the cluster again", || {
            user += 1;
            let body = json!({"userId": format!("after-{user}")});
            let answer = fleet.ask(node, "/rate-limit/allow", &body).json();
            good = if answer["degraded"] == false { good + 1 } else { 0 };
            good > 60
        });
    }
    let answers = load.stop();
    let degraded = answers.iter().filter(|answer| answer.is_degraded()).count();
    println!("failover: {} answers, {degraded} degraded", answers.len());
    assert!(answers.iter().all(|answer| answer.status == 200), "every request is answered");
    assert!(degraded < answers.len() / 2, "two thirds of the slots have their master");
}

#[test]
fn sentinel_leads_to_the_new_master() {
    let _alone = tollgate_e2e::alone();
    let sentinel = Sentinel::start();
    let urls = sentinel.urls();
    let mut args = vec!["--redis-sentinel", sentinel.master_name()];
    for url in &urls {
        args.extend(["--redis", url]);
    }
    let fleet = Fleet::patient(2, RULES, &args);
    for node in 0..2 {
        let answer = fleet.ask(node, "/rate-limit/allow", &json!({"userId": "ann"})).json();
        assert_eq!(
            (&answer["degraded"], &answer["scopes"][0]["current"]),
            (&json!(false), &json!(node + 1))
        );
    }
    sentinel.kill_master();
    sentinel.wait_for_new_master();
    for node in 0..2 {
        eventually("the new master is found", || {
            fleet.ask(node, "/rate-limit/allow", &json!({"userId": "bob"})).json()["degraded"]
                == false
        });
    }
    let answer = fleet.ask(0, "/rate-limit/peek", &json!({"userId": "ann"})).json();
    assert_eq!(answer["scopes"][0]["current"], 2, "what was replicated is there: {answer}");
}
