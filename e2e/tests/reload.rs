//! Rules that change under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tollgate_e2e::{Server, eventually};

fn rules(limit: u64) -> String {
    format!(
        "
rules:
  - {{rule_id: a, scope: A, identifier_type: user_id, limit: {limit}, window: 365d, algorithm: fixed_window}}
  - {{rule_id: b, scope: B, identifier_type: user_id, limit: {limit}, window: 1d, algorithm: token_bucket}}
  - {{rule_id: c, scope: C, limit: {limit}, window: 365d, algorithm: sliding_window_counter}}
"
    )
}

#[test]
fn a_changed_limit_is_in_force_soon_and_keeps_what_was_counted() {
    let server = Server::with_rules(&rules(1000));
    let mut client = server.client();
    let body = json!({"userId": "ann"});
    for _ in 0..5 {
        client.allow(&body);
    }
    server.write_rules(&rules(2000));
    let mut decision = client.allow(&body);
    let mut sent = 6;
    eventually("the new limit is in force", || {
        decision = client.allow(&body);
        sent += 1;
        decision["scopes"][0]["limit"] == 2000
    });
    assert_eq!(decision["scopes"][0]["current"], sent, "what was counted is kept");
}

#[test]
fn a_broken_file_keeps_the_old_rules_and_says_why() {
    let server = Server::with_rules(&rules(1000));
    let mut client = server.client();
    server.write_rules("rules: [{rule_id: a, limit: -5, window: 1m}]");
    eventually("the log says what is wrong", || server.log().contains("must not be negative"));
    let decision = client.allow(&json!({"userId": "ann"}));
    assert_eq!(decision["scopes"][0]["limit"], 1000);
    std::fs::remove_file(server.dir().join("rules.yaml")).expect("the file goes");
    eventually("the log says that it is gone", || server.log().contains("cannot be read"));
    assert_eq!(client.allow(&json!({"userId": "ann"}))["scopes"][0]["limit"], 1000);
    server.write_rules(&rules(3000));
    eventually("a good file is taken again", || {
        client.allow(&json!({"userId": "ann"}))["scopes"][0]["limit"] == 3000
    });
}

#[test]
fn an_empty_file_a_pipe_and_a_folder_keep_the_rules_and_do_not_hold_up_the_end() {
    let mut server = Server::with_rules(&rules(1000));
    let path = server.dir().join("rules.yaml");
    let limit = |server: &Server| {
        server.client().allow(&json!({"userId": "ann"}))["scopes"][0]["limit"].clone()
    };
    std::fs::write(&path, "# nothing yet\n\n").expect("the file is emptied");
    eventually("the log says that it is empty", || server.log().contains("the rule file is empty"));
    assert_eq!(limit(&server), 1000);
    std::fs::remove_file(&path).expect("the file goes");
    std::fs::create_dir(&path).expect("a folder comes");
    eventually("the log says so", || server.log().contains("not a regular file"));
    std::fs::remove_dir(&path).expect("the folder goes");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    server.signal("HUP");
    assert_eq!(limit(&server), 1000);
    std::fs::remove_file(&path).expect("the pipe goes");
    server.write_rules(&rules(2000));
    eventually("a good file is taken again", || limit(&server) == 2000);
    std::fs::remove_file(&path).expect("the file goes");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
}

/// 100 changes a second for five seconds, one in three broken.
#[test]
fn a_storm_of_reloads_fails_no_request_and_mixes_no_rules() {
    const CHANGES: u64 = 500;
    let server = Server::with_rules(&rules(1_000_000_000));
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let sets_seen = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let (server, stop, answered) = (&server, &stop, &answered);
                scope.spawn(move || {
                    let mut client = server.client();
                    let body = json!({"userId": format!("u{number}")});
                    let mut seen = std::collections::BTreeSet::new();
                    while !stop.load(Ordering::Relaxed) {
                        let decision = client.allow(&body);
                        assert_eq!(decision["allowed"], true, "{decision}");
                        let scopes = decision["scopes"].as_array().expect("scopes");
                        assert_eq!(scopes.len(), 3, "{decision}");
                        let limit = scopes[0]["limit"].as_u64().expect("a limit");
                        for scope in scopes {
                            assert_eq!(scope["limit"], limit, "a mixed rule set: {decision}");
                        }
                        seen.insert(limit);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    seen
                })
            })
            .collect();
        for change in 0..CHANGES {
            if change % 3 == 2 {
                server.write_rules("rules: [{rule_id: broken");
            } else {
                server.write_rules(&rules(1_000_000_000 + change));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("a client").len()).max()
    });
    let sets_seen = sets_seen.expect("clients");
    println!("{} requests, {sets_seen} rule sets seen by one client", answered.into_inner());
    assert!(sets_seen > 20, "the storm was enforced: {sets_seen} sets");
    server.write_rules(&rules(7));
    let mut client = server.client();
    eventually("the last file is in force", || {
        client.allow(&json!({"userId": "late"}))["scopes"][0]["limit"] == 7
    });
}
