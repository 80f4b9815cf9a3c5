//! The history of changes is checked by the real binary, on a server and in an export.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};
use tollgate_e2e::{ADMIN_TOKEN, Server, ServerBuilder, server::binary};
use tollgate_testkit::Postgres;

/// The exit code and what was printed.
fn audit(server: &Server, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(binary());
    command.arg("audit").args(args).env("TOLLGATE_TOKEN", ADMIN_TOKEN);
    command.env("TOLLGATE_URL", format!("http://{}", server.admin_addr()));
    let output = command.output().expect("it runs");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code().expect("an exit code"), text)
}

fn done(server: &Server, args: &[&str]) -> String {
    let (code, text) = audit(server, args);
    assert_eq!(code, 0, "{text}");
    text
}

fn change(server: &Server, limit: u64) {
    let rule =
        json!({"rule_id": "r", "identifier_type": "user_id", "limit": limit, "window": "1h"});
    server.admin().put("rules", &rule);
}

#[test]
fn a_history_is_verified_on_a_server_and_in_an_export() {
    let mut server = Server::start();
    for limit in 1..=5 {
        change(&server, limit);
    }
    let key = done(&server, &["key"]).trim().to_owned();
    assert_eq!(key.len(), 64);
    let before: Value = serde_json::from_str(&done(&server, &["verify", "--json"])).unwrap();
    assert_eq!((&before["ok"], &before["public_keys"]), (&json!(true), &json!([key])));
    let head = format!("{}:{}", before["head"]["number"], before["head"]["hash"].as_str().unwrap());
    // The key is in the data directory, and is the same after a restart.
    let file = server.dir().join("data/history.key");
    let mode = fs::metadata(&file).map(|found| found.permissions().mode() & 0o777);
    assert_eq!(mode.expect("a key"), 0o600);
    server.restart();
    assert_eq!(done(&server, &["key"]).trim(), key);
    change(&server, 6);
    let text = done(&server, &["verify", "--public-key", &key, "--head", &head]);
    assert!(text.starts_with("ok: ") && text.contains(&format!("signed by {key}\n")), "{text}");

    let export = server.dir().join("history.jsonl").display().to_string();
    done(&server, &["export", "--output", &export]);
    done(&server, &["verify", "--file", &export, "--public-key", &key]);
    let whole = fs::read_to_string(&export).unwrap();
    let altered = whole.replacen("\\\"limit\\\":3", "\\\"limit\\\":4", 1);
    assert_ne!(altered, whole);
    fs::write(&export, altered).unwrap();
    let (code, text) = audit(&server, &["verify", "--file", &export]);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("BROKEN: change 4 "), "{text}");
    // Without its last line, or with a line that is none.
    let cut: Vec<&str> = whole.lines().collect();
    fs::write(&export, cut[..cut.len() - 1].join("\n")).unwrap();
    assert_eq!(audit(&server, &["verify", "--file", &export]).0, 1);
    fs::write(&export, "\u{0}\u{1}{").unwrap();
    assert_eq!(audit(&server, &["verify", "--file", &export]).0, 1);
    let other = "aa".repeat(32);
    assert_eq!(audit(&server, &["verify", "--public-key", &other]).0, 1);
    assert_eq!(audit(&server, &["verify", "--public-key", "short"]).0, 2);
    assert_eq!(audit(&server, &["verify", "--head", "5"]).0, 2);
}

#[test]
fn nodes_of_one_postgres_sign_with_one_configured_key() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let node = || {
        let builder = ServerBuilder::default().args(&["--postgres".to_owned(), database.clone()]);
        let key = builder.file("key", &"7".repeat(64)).display().to_string();
        builder.env("TOLLGATE_HISTORY_SIGNING_KEY_FILE", &key).start()
    };
    let nodes = [node(), node()];
    for limit in 1..=6 {
        change(&nodes[limit % 2], limit as u64);
    }
    let key = done(&nodes[0], &["key"]).trim().to_owned();
    assert_eq!(done(&nodes[1], &["key"]).trim(), key);
    for node in &nodes {
        done(node, &["verify", "--public-key", &key]);
    }
    // Somebody with access to the database.
    let name = database.rsplit('/').next().unwrap().split('?').next().unwrap().to_owned();
    postgres.query(&name, "UPDATE admin_audit_log SET actor = 'eve' WHERE chain_number = 3");
    let (code, text) = audit(&nodes[0], &["verify"]);
    assert_eq!((code, text.starts_with("BROKEN: change 3 ")), (1, true), "{text}");
    // The key does not leave the node.
    for secret in [nodes[0].log(), done(&nodes[0], &["export"])] {
        assert!(!secret.contains(&"7".repeat(64)));
    }
}
