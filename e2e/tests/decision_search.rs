//! Searching decisions over the admin API and the command line, and would-deny outcomes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tollgate_e2e::{ADMIN_TOKEN, Admin, Server, ServerBuilder, eventually, server::binary};
use tollgate_testkit::Postgres;

fn per_user(limit: u64) -> Value {
    json!({"rule_id": "per-user", "scope": "USER", "identifier_type": "user_id", "limit": limit,
        "window": "365d", "algorithm": "fixed_window"})
}

/// Ann of acme is refused, bob of umbrella would be, and each is known by all attributes.
fn fill(server: &Server) -> Admin {
    let mut admin = server.admin();
    admin.put("rules", &per_user(1));
    admin.put("rules", &per_user(2));
    let watched = json!({"rule_id": "watched", "scope": "TRIAL", "identifier_type": "user_id",
        "limit": 1, "window": "365d", "algorithm": "fixed_window", "action": "log_only",
        "applies_to": {"users": ["bob"]}});
    admin.put("rules", &watched);
    let mut client = server.client();
    let ann = json!({"userId": "ann", "tenantId": "acme", "apiKey": "k-1", "ip": "192.0.2.1",
        "modelId": "m1", "endpoint": "/v1/chat", "method": "POST"});
    for _ in 0..3 {
        client.allow(&ann);
    }
    for _ in 0..2 {
        let decision = client.allow(&json!({"userId": "bob", "tenantId": "umbrella"}));
        assert_eq!(decision["allowed"], true);
    }
    eventually("both are written", || items(&mut admin, "").len() == 2);
    admin
}

fn items(admin: &mut Admin, query: &str) -> Vec<Value> {
    admin.get(&format!("decisions?{query}"))["items"].as_array().expect("items").clone()
}

fn search_finds_by_every_attribute(server: &Server) {
    let mut admin = fill(server);
    let found = items(&mut admin, "from=15m&user_id=ann");
    let [ann] = found.as_slice() else { panic!("{found:?}") };
    let sentence = ann["sentence"].as_str().unwrap();
    let wanted = "ann was refused by per-user: 2 of 2 used in 31536000 s, would pass in ";
    assert!(sentence.starts_with(wanted), "{sentence}");
    assert_eq!((&ann["result"], &ann["rule_version"]), (&json!("denied"), &json!(2)), "{ann}");
    assert!(ann["rule_change"]["actor"].is_string(), "{ann}");
    let key = ann["api_key_id"].as_str().unwrap().to_owned();
    for query in [
        "tenant_id=acme",
        "ip=192.0.2.1",
        "rule_id=per-user",
        "scope=USER",
        "model_id=m1",
        "endpoint=/v1/chat",
        "reason=HIT_USER_LIMIT",
        "result=denied",
        "until=0s&from=1d&result=refused",
        &format!("api_key_id={key}"),
        "user_id=ann&result=denied&rule_id=per-user",
    ] {
        assert_eq!(items(&mut admin, query), found, "{query}");
    }
    let watched = items(&mut admin, "result=would_deny");
    assert_eq!(watched.len(), 1, "{watched:?}");
    assert_eq!(watched[0]["would_deny"], json!(["watched"]));
    let sentence = watched[0]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("bob would have been refused by watched: 1 of 1"), "{sentence}");
    assert_eq!(items(&mut admin, "request_id=none"), Vec::<Value>::new());
    // Pages.
    let first = admin.get("decisions?limit=1");
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = items(&mut admin, &format!("limit=1&cursor={cursor}"));
    assert!(second.len() == 1 && second[0] != first["items"][0]);
    // What cannot be is said, and not answered with an empty list.
    for (query, field) in [
        ("from=1h&until=2h", "from"),
        ("from=2999-01-01T00:00:00Z", "from"),
        ("until=4000d", "until"),
        ("from=soon", "from"),
        ("result=maybe", "result"),
        ("colour=red", "colour"),
        ("cursor=x", "cursor"),
    ] {
        let answer = admin.call("GET", &format!("decisions?{query}"), &[], None);
        assert_eq!(answer.status, 400, "{query}: {}", answer.text());
        assert!(answer.text().contains(&format!("\"field\":\"{field}\"")), "{query}");
    }
    // A tenant's admin sees its tenant's alone.
    let (_, token) = admin.token("tenant_admin", Some("acme"));
    let mut tenant = Admin::with_token(server.admin_addr(), &token);
    for query in ["", "tenant_id=acme", "user_id=bob"] {
        let seen = items(&mut tenant, query);
        assert!(seen.iter().all(|one| one["tenant_id"] == "acme"), "{query}: {seen:?}");
    }
    assert_eq!(items(&mut tenant, "")[0]["rule_change"], Value::Null);
}

#[test]
fn decisions_are_found_by_every_attribute() {
    search_finds_by_every_attribute(&Server::start());
}

#[test]
fn decisions_are_found_by_every_attribute_in_postgres() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let server =
        ServerBuilder::default().args(&["--postgres", &database].map(str::to_owned)).start();
    search_finds_by_every_attribute(&server);
}

/// A tenant searches once at a time. The table is locked, so that a search lasts until another one has been refused.
#[test]
fn a_second_search_of_a_tenant_is_refused_meanwhile() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let name = database.rsplit('/').next().unwrap().split('?').next().unwrap();
    let server =
        ServerBuilder::default().args(&["--postgres", &database].map(str::to_owned)).start();
    let (_, token) = server.admin().token("tenant_admin", Some("acme"));
    let tenant = || Admin::with_token(server.admin_addr(), &token);
    let search = || tenant().call("GET", "decisions?from=15m", &[], None);
    assert_eq!(search().status, 200);
    let is_over = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        let lock = "BEGIN; LOCK TABLE rate_limit_audit_log; SELECT pg_sleep(600)";
        scope.spawn(|| std::panic::catch_unwind(|| postgres.query(name, lock)));
        let locked = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted \
                      AND relation = 'rate_limit_audit_log'::regclass";
        eventually("the table is locked", || postgres.query(name, locked) == "1");
        let (send, refusals) = std::sync::mpsc::channel();
        for _ in 0..2 {
            let (send, is_over) = (send.clone(), &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let answer = search();
                    if answer.status == 429 {
                        is_over.store(true, Ordering::Relaxed);
                        send.send(answer).unwrap();
                    }
                }
            });
        }
        let refused = refusals.recv_timeout(std::time::Duration::from_secs(60));
        is_over.store(true, Ordering::Relaxed);
        postgres.query(
            name,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()",
        );
        refused
    });
    let refused = refused.expect("a refusal");
    assert_eq!(refused.json()["error"]["code"], "TOO_MANY_SEARCHES", "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(search().status, 200, "the other one is over");
}

#[test]
fn would_deny_outcomes_are_part_of_no_refusal() {
    let server = Server::start();
    let mut admin = fill(&server);
    let text = server.client().get("/metrics").text();
    let line =
        r#"rate_limiter_would_deny_total{scope="TRIAL",model_id="none",tenant_id="umbrella"} 1"#;
    assert!(text.contains(line), "{text}");
    assert!(!text.contains(r#"result="denied",scope="TRIAL""#), "{text}");
    let top = admin.get("top");
    let rules = top["rules"].as_array().unwrap();
    let watched = rules.iter().find(|rule| rule["rule_id"] == "watched").unwrap();
    assert_eq!((&watched["would_deny"], &watched["refused"]), (&json!(1), &json!(0)), "{watched}");
    assert_eq!(watched["top_would_deny"][0]["key"], "user_id=bob", "{watched}");
    let node = admin.get("node");
    assert_eq!(
        (&node["decisions"]["denied"], &node["decisions"]["would_deny"]),
        (&json!(1), &json!(1))
    );
    // In shadow the same.
    admin.call("PUT", "settings/enforcement", &[], Some(&json!({"value": "shadow"})));
    eventually("nothing is refused", || {
        let ann = json!({"userId": "ann", "tenantId": "acme"});
        server.client().allow(&ann)["allowed"] == true
    });
    eventually("it is found", || {
        !items(&mut admin, "user_id=ann&result=would_deny&rule_id=per-user").is_empty()
    });
}

fn tollgate(server: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).env("TOLLGATE_URL", format!("http://{}", server.admin_addr()));
    command.env("TOLLGATE_TOKEN", ADMIN_TOKEN).stdin(Stdio::null());
    command
}

/// A process that ends with the test.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_command_line_finds_and_follows_decisions() {
    let server = Server::start();
    let _admin = fill(&server);
    let run = |args: &[&str]| {
        let output = tollgate(&server, args).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = run(&["decisions", "--user", "ann", "--since", "15m"]);
    assert!(
        code == 0 && out.contains("was refused by per-user: 2 of 2 used in 31536000 s"),
        "{out}{err}"
    );
    let (_, out, _) = run(&["decisions", "--result", "would_deny", "--json"]);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["user_id"]), (1, &json!("bob")));
    let (code, _, err) = run(&["decisions", "--since", "1h", "--until", "2h"]);
    assert!(code == 2 && err.contains("from: must be before until"), "{err}");

    let mut command = tollgate(&server, &["decisions", "--user", "eve", "--follow", "--json"]);
    let mut follower = Follower(command.stdout(Stdio::piped()).spawn().expect("it runs"));
    let out = BufReader::new(follower.0.stdout.take().expect("its output"));
    let mut client = server.client();
    // Until it has begun to follow, what is refused may be part of its first answer.
    for _ in 0..5 {
        client.allow(&json!({"userId": "eve"}));
        client.allow(&json!({"userId": "carl"}));
    }
    let lines =
        out.lines().take(3).map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let users: Vec<Value> = lines.map(|line| line["user_id"].clone()).collect();
    assert_eq!(users, [json!("eve"), json!("eve"), json!("eve")]);
}
