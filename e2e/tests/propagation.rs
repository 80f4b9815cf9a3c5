//! A change reaches every node.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_e2e::{Admin, PATIENCE, Server, ServerBuilder, alone, eventually};
use tollgate_testkit::{Postgres, Redis};

/// Changes whose way is timed; only `make soak` takes so many of the slow ones.
const CHANGES: u64 = 100;

fn rule(limit: u64) -> Value {
    json!({"rule_id": "r", "identifier_type": "user_id", "limit": limit, "window": "365d",
           "algorithm": "fixed_window"})
}

fn control(redis: &Redis, database: &str) -> Server {
    ServerBuilder::default()
        .args(
            &["--role", "control", "--redis", &redis.url(), "--postgres", database]
                .map(str::to_owned),
        )
        .start()
}

fn data(redis: &Redis) -> Server {
    ServerBuilder::default()
        .args(&["--role", "data", "--redis", &redis.url()].map(str::to_owned))
        .env("TOLLGATE_REDIS_TIMEOUT_MS", "1000")
        .env("TOLLGATE_AUDIT_AGGREGATE_SECONDS", "1")
        .start()
}

/// The limit that a node enforces.
fn limit_at(node: &Server) -> Value {
    let body = json!({"userId": "nobody"});
    let response = node.client().post("/rate-limit/peek", &body);
    response.json()["effectiveLimit"].clone()
}

/// Changes the limit again and again; how long each took to be enforced everywhere.
fn time_changes(admin: &mut Admin, nodes: &[Server], changes: u64) -> Vec<Duration> {
    let mut clients: Vec<_> = nodes.iter().map(Server::client).collect();
    let mut took = Vec::new();
    for number in 0..changes {
        let limit = 1_000 + number;
        let start = Instant::now();
        admin.put("rules", &rule(limit));
        for client in &mut clients {
            loop {
                let answer = client.post("/rate-limit/peek", &json!({"userId": "nobody"})).json();
                if answer["effectiveLimit"] == limit {
                    break;
                }
                assert!(start.elapsed() < PATIENCE, "limit {limit} did not arrive: {answer}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        took.push(start.elapsed());
    }
    took.sort();
    took
}

fn report(what: &str, took: &[Duration]) {
    let at = |share: usize| took[(took.len() * share / 100).min(took.len() - 1)];
    println!(
        "{what}: {} changes on all nodes after p50 {:?}, p99 {:?}, most {:?}",
        took.len(),
        at(50),
        at(99),
        took[took.len() - 1]
    );
}

#[test]
fn five_nodes_without_a_database() {
    let _alone = alone();
    let (redis, postgres) = (Redis::start(), Postgres::start());
    let database = postgres.database();
    let mut nodes: Vec<Server> = (0..5).map(|_| data(&redis)).collect();
    let control = control(&redis, &database);
    let mut admin = control.admin();
    report("by word", &time_changes(&mut admin, &nodes, CHANGES));

    // Nobody hears a word any more: neither can it be said nor listened to.
    assert!(redis.call(&["ACL", "SETUSER", "default", "resetchannels"]).is_ok());
    for node in &mut nodes {
        node.restart();
    }
    eventually("all have caught up", || {
        nodes.iter().all(|node| limit_at(node) == 1_000 + CHANGES - 1)
    });
    let is_soak = std::env::var_os("TOLLGATE_SOAK_RUNS").is_some();
    let changes = if is_soak { CHANGES } else { CHANGES / 5 };
    report("by looking only", &time_changes(&mut admin, &nodes, changes));
    assert!(redis.call(&["ACL", "SETUSER", "default", "allchannels"]).is_ok());

    // The database goes: decisions go on, and nodes start without anybody.
    admin.put("rules", &rule(7));
    eventually("the last change is everywhere", || nodes.iter().all(|node| limit_at(node) == 7));
    postgres.stop();
    let refused = admin.call("POST", "rules", &[], Some(&rule(9)));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    for node in &mut nodes {
        assert_eq!(limit_at(node), 7);
        node.restart();
        assert_eq!(limit_at(node), 7);
    }
    // And Redis, too: from what each has kept.
    redis.pause();
    let node = &mut nodes[0];
    node.restart();
    assert_eq!(limit_at(node), 7);
    assert!(node.log().contains("last known rules"), "{}", node.log());
    redis.resume();

    postgres.start_again();
    eventually("the control plane is back", || {
        admin.call("POST", "rules", &[], Some(&rule(11))).status == 200
    });
    eventually("caught up without a restart", || nodes.iter().all(|node| limit_at(node) == 11));
    let metrics = nodes[1].client().get("/metrics").text();
    assert!(metrics.contains("rate_limiter_config_version{source=\"redis\"}"), "{metrics}");
}

/// Two control nodes on one PostgreSQL hear of each other's changes.
#[test]
fn two_nodes_with_one_database() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let start =
        || ServerBuilder::default().args(&["--postgres", &database].map(str::to_owned)).start();
    let (one, other) = (start(), start());
    let reader = ServerBuilder::default()
        .args(&["--role", "data", "--postgres", &database].map(str::to_owned))
        .start();
    let nodes = [one, other, reader];
    let mut admin = nodes[0].admin();
    report("by NOTIFY", &time_changes(&mut admin, &nodes, 20));
    let mut other = nodes[1].admin();
    report("by NOTIFY, from the other", &time_changes(&mut other, &nodes, 20));
    // Both change at once: none is lost.
    let addrs = [nodes[0].admin_addr(), nodes[1].admin_addr()];
    admin.put("rules", &rule(1));
    let writers: Vec<_> = (0..10)
        .map(|writer| {
            let addr = addrs[writer % 2];
            std::thread::spawn(move || {
                let mut admin = Admin::connect(addr);
                let mut accepted = 0;
                while accepted < 5 {
                    let got = admin.call("GET", "rules/r", &[], None);
                    let mut rule = got.json()["rule"].clone();
                    rule["limit"] = json!(rule["limit"].as_u64().unwrap() + 1);
                    let tag = got.header("etag").unwrap().to_owned();
                    let put = admin.call("PUT", "rules/r", &[("if-match", &tag)], Some(&rule));
                    match put.status {
                        200 => accepted += 1,
                        409 | 412 => {}
                        status => panic!("{status} {}", put.text()),
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    assert_eq!(admin.get("rules/r")["rule"]["limit"], 51);
    eventually("both enforce it", || nodes.iter().all(|node| limit_at(node) == 51));
    let reader = &nodes[2];
    assert_eq!(reader.client().get("/admin/api/v1/rate-limits/rules").status, 404);
}

/// A start without the database, and without anything kept: the built-in default, until it is back.
#[test]
fn a_start_without_the_database() {
    let postgres = Postgres::start();
    let database = postgres.database();
    postgres.stop();
    let server =
        ServerBuilder::default().args(&["--postgres", &database].map(str::to_owned)).start();
    let mut client = server.client();
    assert_eq!(client.allow(&json!({"userId": "a", "modelId": "m"}))["effectiveLimit"], 100);
    let refused = server.admin().call("GET", "rules", &[], None);
    assert_eq!(refused.status, 503, "{}", refused.text());
    postgres.start_again();
    eventually("the admin API answers", || {
        server.admin().call("GET", "rules", &[], None).status == 200
    });
    server.admin().put("rules", &rule(5));
    eventually("and its rules are enforced", || limit_at(&server) == 5);
}

/// Decisions of nodes that have no database are in the audit log, too.
#[test]
fn refusals_everywhere_are_in_one_log() {
    let (redis, postgres) = (Redis::start(), Postgres::start());
    let control = control(&redis, &postgres.database());
    let nodes: Vec<Server> = (0..3).map(|_| data(&redis)).collect();
    let mut admin = control.admin();
    admin.put("rules", &rule(5));
    eventually("the rule is everywhere", || nodes.iter().all(|node| limit_at(node) == 5));
    for node in &nodes {
        let mut client = node.client();
        for _ in 0..10 {
            client.allow(&json!({"userId": "ann"}));
        }
    }
    eventually("all refusals are written", || {
        let log = admin.get("audit?kind=decisions&user_id=ann&limit=1000");
        log["of"] == 25
    });
    let log = admin.get("audit?kind=decisions&user_id=ann&limit=1000");
    let items = log["items"].as_array().unwrap();
    let mut names: Vec<&str> = items.iter().map(|one| one["node"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() >= 2, "{names:?}");
}

/// Nodes that share a Redis and have their rules from different databases say so, everywhere.
#[test]
fn two_owners_of_one_redis_are_reported() {
    let redis = Redis::start();
    let start = || ServerBuilder::default().args(&["--redis", &redis.url()].map(str::to_owned));
    let one = start().start();
    one.admin().put("rules", &rule(5));
    let node = data(&redis);
    eventually("the node has them", || limit_at(&node) == 5);
    assert_eq!(one.client().get("/readyz").text(), "ready\n");
    eventually("one owner is known", || {
        one.client().get("/metrics").text().contains("rate_limiter_rule_owners 1")
    });
    eventually("a data node knows it, too", || {
        node.client().get("/metrics").text().contains("rate_limiter_rule_owners 1")
    });

    let mut other = start().start();
    other.admin().put("rules", &rule(6));
    // Both say so: the one whose rules are in Redis, and the one whose rules are not.
    for server in [&one, &other] {
        eventually("readiness says so", || {
            server.client().get("/readyz").text().contains("warning: ")
        });
        let ready = server.client().get("/readyz");
        assert_eq!(ready.status, 200, "it still decides");
        assert!(ready.text().contains("--role data"), "{}", ready.text());
        let metrics = server.client().get("/metrics").text();
        assert!(metrics.contains("rate_limiter_rule_owners 2"), "{metrics}");
        let incidents = server.admin().get("node")["incidents"].clone();
        assert_eq!(incidents[0]["kind"], "rule_owners", "{incidents}");
        assert!(server.log().contains("--role data"), "{}", server.log());
    }
    eventually("a data node says so, too", || {
        node.client().get("/readyz").text().contains("--role data")
    });
    let (said, code) = apply(&other, 8);
    assert!(said.contains("NOT on every node") && code == Some(0), "{said}");
    assert_eq!(limit_at(&node), 5);

    other.signal("TERM");
    other.wait();
    eventually("all agree again", || one.client().get("/readyz").text() == "ready\n");
    let (said, _) = apply(&one, 9);
    assert!(said.contains("every node that has its rules from this server"), "{said}");
    assert!(!said.contains("everywhere"), "{said}");
}

/// A rule file is read by its own node alone: a data node next to it has no rules, and both say so.
#[test]
fn a_node_without_rules_is_reported() {
    let redis = Redis::start();
    let rules = "rules: [{rule_id: all, identifier_type: global, limit: 5, window: 1d}]";
    let start = || ServerBuilder::default().args(&["--redis", &redis.url()].map(str::to_owned));
    let file = start().rules(rules).start();
    let node = data(&redis);
    for server in [&file, &node] {
        eventually("readiness says so", || {
            let ready = server.client().get("/readyz").text();
            ready.contains("no rules but the built-in ones") && ready.contains("without --rules")
        });
        let metrics = server.client().get("/metrics").text();
        assert!(metrics.contains("rate_limiter_rule_owners 2"), "{metrics}");
    }
    // Alone, it waits for rules that nobody has.
    drop(file);
    eventually("the other one is gone", || {
        let ready = node.client().get("/readyz").text();
        ready.contains("no rules but the built-in ones") && !ready.contains("digest")
    });
}

/// `admin.take_over` replaces nothing while the owner is alive, even if that has only just started; nor
/// with an empty database; and it is used once.
#[test]
fn a_take_over_needs_an_absent_owner_and_rules() {
    let redis = Redis::start();
    let start = || ServerBuilder::default().args(&["--redis", &redis.url()].map(str::to_owned));
    let mut owner = start().start();
    owner.admin().put("rules", &rule(5));
    let mut other = start().env("TOLLGATE_ADMIN_TAKE_OVER", "true").start();
    let node = data(&redis);
    eventually("the owner is seen", || other.log().contains("of that database is alive"));
    assert_eq!(limit_at(&node), 5);
    assert_eq!(limit_at(&owner), 5);

    // An empty database replaces nothing, also when the owner has ended.
    owner.signal("KILL");
    owner.wait();
    other.signal("TERM");
    other.wait();
    other.start_again();
    eventually("it says why not", || other.log().contains("holds no rules: apply them first"));
    assert_eq!(limit_at(&node), 5);
    other.admin().put("rules", &rule(7));
    eventually("the node follows", || limit_at(&node) == 7);
    let log = other.log();
    assert!(log.contains("admin.take_over replaced the rules of another database"), "{log}");
    assert!(log.contains("remove admin.take_over"), "{log}");
    let names = std::fs::read_dir(other.dir().join("data")).expect("the data directory");
    let is_saved = |name: std::ffi::OsString| name.to_string_lossy().starts_with("rules.kept.");
    assert!(names.flatten().any(|entry| is_saved(entry.file_name())), "the old rules are saved");
}

/// Nodes without an admin API compare their rules as well.
#[test]
fn data_nodes_with_different_rule_files_report_it() {
    let redis = Redis::start();
    let start = |limit: u64| {
        let args = ["--role", "data", "--redis", &redis.url()].map(str::to_owned);
        let rules = json!({"rules": [rule(limit)]}).to_string();
        ServerBuilder::default().rules(&rules).args(&args).start()
    };
    let nodes = [start(5), start(6)];
    for node in &nodes {
        eventually("readiness says so", || {
            node.client().get("/readyz").text().contains("the same rule file")
        });
        assert!(node.client().get("/metrics").text().contains("rate_limiter_rule_owners 2"));
    }
}

/// Applies a rule with the command line; what it says on standard error, and its exit code.
fn apply(server: &Server, limit: u64) -> (String, Option<i32>) {
    let file = server.dir().join("apply.yaml");
    std::fs::write(&file, json!({"rules": [rule(limit)]}).to_string()).expect("a rule file");
    let output = std::process::Command::new(tollgate_e2e::server::binary())
        .args(["rules", "apply", "--yes", "--file"])
        .arg(&file)
        .args(["--url", &format!("http://{}", server.admin_addr())])
        .env("TOLLGATE_TOKEN", tollgate_e2e::ADMIN_TOKEN)
        .output()
        .expect("tollgate runs");
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

/// A Redis that was set back gives nobody older rules, and a database that was restored is heard all the
/// same.
#[test]
fn nodes_keep_the_newer_rules() {
    let redis = Redis::start();
    let args = ["--role", "control", "--redis", &redis.url()].map(str::to_owned);
    let mut control = ServerBuilder::default().args(&args).start();
    let mut admin = control.admin();
    admin.put("rules", &rule(1));
    let node = data(&redis);
    eventually("the first rules are there", || limit_at(&node) == 1);
    let database = control.dir().join("data");
    let backup = control.dir().join("backup");
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let status = std::process::Command::new("cp").arg("-r").arg(from).arg(to).status();
        assert!(status.unwrap().success());
    };
    control.signal("TERM");
    control.wait();
    copy(&database, &backup);
    control.start_again();
    let mut admin = control.admin();
    for limit in 2..6 {
        admin.put("rules", &rule(limit));
    }
    eventually("the last rules are there", || limit_at(&node) == 5);
    control.signal("TERM");
    control.wait();
    // Redis forgets everything, and the database is that of before.
    assert!(redis.call(&["FLUSHALL"]).is_ok());
    std::fs::remove_dir_all(&database).unwrap();
    copy(&backup, &database);
    control.start_again();
    assert_eq!(control.admin().get("rules/r")["rule"]["limit"], 1);
    eventually("the node follows the restored database", || limit_at(&node) == 1);
    let mut admin = control.admin();
    admin.put("rules", &rule(9));
    eventually("and its next change", || limit_at(&node) == 9);
}
