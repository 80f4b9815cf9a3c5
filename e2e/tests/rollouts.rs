//! Candidates of rules, from the first try to their promotion, on one node and on several.

use serde_json::{Value, json};
use tollgate_e2e::{Server, ServerBuilder, eventually};
use tollgate_testkit::{Postgres, Redis};

fn rule(limit: u64, candidate: &Value) -> Value {
    json!({"rule_id": "r", "identifier_type": "user_id", "limit": limit, "window": "365d",
           "algorithm": "fixed_window", "candidate": candidate})
}

fn allow(server: &Server, user: &str) -> Value {
    server.client().post("/rate-limit/allow", &json!({"userId": user})).json()
}

fn allows(server: &Server, user: &str) -> bool {
    allow(server, user)["allowed"] == json!(true)
}

#[test]
fn a_candidate_is_tried_rolled_out_halted_and_promoted() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.put("rules", &rule(5, &json!({"limit": 2})));
    // Tried: nobody is refused by it, and what it would refuse is reported.
    for number in 1..=3 {
        let answer = allow(&server, "ann");
        assert_eq!(answer["allowed"], json!(true), "{answer}");
        assert_eq!(answer.to_string().contains("wouldDeny"), number > 2, "{answer}");
    }
    assert!(allows(&server, "bob"));
    let seen = admin.get("rules/r/candidate");
    assert_eq!(seen["percent"], json!(0.0));
    let expected = json!({"both_allow": 3, "both_refuse": 0, "only_live_refuses": 0,
                          "only_candidate_refuses": 1});
    assert_eq!(seen["agreement"], expected);
    // Rolled out: what passed before counts.
    let (status, dry) =
        admin.post("rules/r/candidate/advance?dry_run=true", &json!({"percent": 100}));
    assert_eq!((status, &dry["dry_run"]), (200, &json!(true)));
    assert!(allows(&server, "ann"), "only tried");
    let (status, answer) = admin.post("rules/r/candidate/advance", &json!({"percent": 100}));
    assert_eq!(status, 200, "{answer}");
    assert!(!allows(&server, "ann"));
    // Halted: so does it for the limits in force.
    assert_eq!(admin.post("rules/r/candidate/halt", &json!({})).0, 200);
    assert!(allows(&server, "ann"), "the fifth of five");
    assert!(!allows(&server, "ann"));
    // Promoted: its counters continue.
    let (status, promoted) = admin.post("rules/r/candidate/promote", &json!({}));
    assert_eq!(status, 200, "{promoted}");
    let rule = &promoted["rule"];
    assert_eq!((&rule["limit"], &rule["generation"]), (&json!(2), &json!(1)));
    assert_eq!(rule.get("candidate"), None);
    assert!(allows(&server, "bob") && !allows(&server, "bob"), "one of two was used");
    assert!(!allows(&server, "ann"));
    let log = admin.get("audit?entry_id=r");
    let actions: Vec<&str> =
        log["items"].as_array().unwrap().iter().filter_map(|it| it["action"].as_str()).collect();
    let steps = ["promote", "halt", "advance"].map(|step| format!("rule.candidate.{step}"));
    assert_eq!(actions[..3], steps.each_ref().map(String::as_str));
    // Wrong calls change nothing.
    assert_eq!(admin.post("rules/r/candidate/promote", &json!({})).0, 409);
    assert_eq!(admin.post("rules/none/candidate/halt", &json!({})).0, 404);
    assert_eq!(admin.call("GET", "rules/r/candidate", &[], None).status, 404);
    for wrong in [json!({}), json!({"percent": 101}), json!({"percent": 5, "x": 1}), json!([])] {
        assert_eq!(admin.post("rules/r/candidate/advance", &wrong).0, 400, "{wrong}");
    }
}

#[test]
fn all_nodes_roll_out_to_the_same_keys_and_share_the_counters() {
    let (redis, postgres) = (Redis::start(), Postgres::start());
    let database = postgres.database();
    let start = || {
        let args = ["--postgres", &database, "--redis", &redis.url()].map(str::to_owned);
        ServerBuilder::default().args(&args).env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start()
    };
    let mut nodes = [start(), start()];
    // A limit of 0 refuses those that it enforces for.
    let rollout = json!({"percent": 50, "salt": "one"});
    nodes[0].admin().put("rules", &rule(1_000, &json!({"limit": 0, "rollout": rollout})));
    let has_candidate =
        |node: &Server| node.admin().call("GET", "rules/r/candidate", &[], None).status == 200;
    eventually("all nodes have the candidate", || nodes.iter().all(has_candidate));
    let users: Vec<String> = (0..60).map(|number| format!("user-{number}")).collect();
    let refused =
        |node: &Server| -> Vec<bool> { users.iter().map(|user| !allows(node, user)).collect() };
    let first = refused(&nodes[0]);
    let count = first.iter().filter(|is_refused| **is_refused).count();
    assert!((15..=45).contains(&count), "{count}");
    assert_eq!(refused(&nodes[1]), first, "on every node");
    nodes[1].restart();
    eventually("the node has it after its restart", || has_candidate(&nodes[1]));
    assert_eq!(refused(&nodes[1]), first, "and after a restart");

    // Both counters are shared: what passes on one node counts on the other, above the candidate's limit.
    nodes[0].admin().put("rules", &rule(6, &json!({"limit": 3, "rollout": {"percent": 0}})));
    let knows = |node: &Server| {
        let peeked = node.client().post("/rate-limit/peek", &json!({"userId": "nobody"})).json();
        peeked["effectiveLimit"] == json!(6)
    };
    eventually("all nodes have the new share", || nodes.iter().all(knows));
    assert!((0..4).all(|number| allows(&nodes[number % 2], "zoe")));
    assert_eq!(nodes[1].admin().post("rules/r/candidate/advance", &json!({"percent": 100})).0, 200);
    let has_share = |node: &Server, share: f64| {
        node.admin().get("rules/r/candidate")["percent"] == json!(share)
    };
    eventually("both nodes enforce it", || nodes.iter().all(|node| has_share(node, 100.0)));
    assert!(nodes.iter().all(|node| !allows(node, "zoe")), "four of three");
    assert_eq!(nodes[0].admin().post("rules/r/candidate/halt", &json!({})).0, 200);
    eventually("both nodes have halted it", || nodes.iter().all(|node| has_share(node, 0.0)));
    assert!(allows(&nodes[1], "zoe"), "the fifth of six");
    assert_eq!(nodes[0].admin().post("rules/r/candidate/promote", &json!({})).0, 200);
    eventually("both nodes have promoted it", || !nodes.iter().any(has_candidate));
    assert!(nodes.iter().all(|node| !allows(node, "zoe")), "five of three");
}
