//! The command line against a real server.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tollgate_e2e::{ADMIN_TOKEN, Server, ServerBuilder, eventually, server::binary};

/// How a run ended.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.out, self.err))
    }

    /// Its output, if all went well.
    fn done(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }
}

fn run(url: &str, token: Option<&str>, args: &[&str]) -> Ran {
    let mut command = Command::new(binary());
    command.args(args).env("TOLLGATE_URL", url).env_remove("TOLLGATE_TOKEN");
    if let Some(token) = token {
        command.env("TOLLGATE_TOKEN", token);
    }
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran {
        code: output.status.code().expect("an exit code"),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

fn url(server: &Server) -> String {
    format!("http://{}", server.admin_addr())
}

/// Runs it with the first token.
fn tollgate(server: &Server, args: &[&str]) -> Ran {
    run(&url(server), Some(ADMIN_TOKEN), args)
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    fs::create_dir_all(folder).expect("a folder");
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    path.display().to_string()
}

const BASE: &str = "\
tiers: [{name: free, is_default: true}, pro]
rules:
  - {rule_id: api, scope: API, identifier_type: user_id, limit: 3, window: 365d,
     algorithm: fixed_window, tier_limits: {pro: 5}}
";

const MORE: &str = r#"{"rules": [{"rule_id": "chat", "scope": "MODEL", "limit": 10, "window": "1s",
    "key_by": ["user_id", "model_id"]}],
  "deny_list": ["user_id:mallory"],
  "client_tiers": [{"type": "user_id", "value": "ann", "tier": "pro"}]}"#;

#[test]
fn a_folder_of_rules_is_applied_changed_and_pruned() {
    let server = Server::start();
    let folder = server.dir().join("rules");
    write(&folder, "10-base.yaml", BASE);
    write(&folder, "20-more.json", MORE);
    write(&folder, "notes.txt", "not a rule file");
    let rules = folder.display().to_string();

    let differs = tollgate(&server, &["rules", "diff", "-f", &rules]);
    assert_eq!(differs.code, 1, "{}", differs.err);
    assert!(differs.out.contains("+ rule api  (3/365d by user_id)\n"), "{}", differs.out);
    let unasked = tollgate(&server, &["rules", "apply", "-f", &rules]);
    assert_eq!(unasked.code, 2);
    assert!(unasked.err.contains("--yes"), "{}", unasked.err);
    let tried = tollgate(&server, &["rules", "apply", "-f", &rules, "--dry-run", "--json"]).done();
    assert_eq!(tried.json()["steps"].as_array().unwrap().len(), 5, "{}", tried.out);
    assert_eq!(tollgate(&server, &["rules", "list", "--json"]).done().json(), json!([]));

    tollgate(&server, &["rules", "apply", "-f", &rules, "--yes"]).done();
    let same = tollgate(&server, &["rules", "diff", "-f", &rules]).done();
    assert_eq!(same.out, "");
    let list = tollgate(&server, &["rules", "list"]).done().out;
    assert!(list.starts_with("RULE  STATUS  SCOPE  LIMIT"), "{list}");
    assert!(list.contains("api   active  API    3/365d"), "{list}");
    assert_eq!(tollgate(&server, &["tiers", "of", "user_id:ann"]).done().out, "pro\n");
    assert_eq!(tollgate(&server, &["tiers", "of", "user_id:bob"]).done().out, "free\n");

    // What is printed can be applied again.
    let got = tollgate(&server, &["rules", "get", "api"]).done().out;
    let file = write(server.dir(), "api.yaml", &got);
    let same = tollgate(&server, &["rules", "diff", "-f", &file]).done();
    assert_eq!(same.out, "");
    write(server.dir(), "api.yaml", &got.replace("limit: 3", "limit: 4"));
    let changed = tollgate(&server, &["rules", "apply", "-f", &file, "--yes", "--prune"]).done();
    assert!(changed.out.contains("~ rule api\n    limit  3 → 4\n- rule chat"), "{}", changed.out);
    let left = tollgate(&server, &["rules", "list", "--json"]).done().json();
    assert_eq!(left.as_array().unwrap().len(), 1);

    let versions = tollgate(&server, &["rules", "versions", "api", "--json"]).done().json();
    assert_eq!(versions.as_array().unwrap().len(), 2);
    let old = tollgate(&server, &["rules", "get", "api", "--version", "1", "--json"]).done();
    assert_eq!(old.json()["rule"]["limit"], 3);
    let tried = tollgate(&server, &["rules", "rollback", "api", "--to", "1", "--dry-run"]).done();
    assert!(tried.out.contains("limit  4 → 3"), "{}", tried.out);
    tollgate(&server, &["rules", "rollback", "api", "--to", "1"]).done();
    let now = tollgate(&server, &["rules", "get", "api", "--json"]).done().json();
    assert_eq!((&now["rule"]["limit"], &now["version"]), (&json!(3), &json!(3)));
    assert_eq!(tollgate(&server, &["rules", "delete", "api"]).code, 2, "nobody to ask");
    tollgate(&server, &["rules", "delete", "api", "--yes"]).done();
    assert_eq!(tollgate(&server, &["rules", "get", "api"]).code, 1);
}

#[test]
fn wrong_files_are_found_before_a_server_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = |args: &[&str]| run("http://127.0.0.1:1", None, args);
    let base = write(folder.path(), "a.yaml", BASE);
    let again = write(folder.path(), "b.yaml", BASE);
    let both = nowhere(&["rules", "apply", "-f", &base, "-f", &again, "--yes"]);
    assert_eq!(both.code, 2);
    assert!(both.err.contains("a.yaml and in ") && both.err.contains("b.yaml"), "{}", both.err);
    let wrong = write(folder.path(), "c.yaml", &BASE.replace("limit: 3", "limit: -3"));
    let wrong = nowhere(&["rules", "diff", "-f", &wrong]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("c.yaml:3:"), "{}", wrong.err);
    let away = nowhere(&["rules", "diff", "-f", &base]);
    assert_eq!(away.code, 1);
    assert!(away.err.contains("`tollgate serve` starts a server"), "{}", away.err);
}

#[test]
fn lists_tiers_grants_usage_and_settings() {
    let server = Server::start();
    let base = write(server.dir(), "base.yaml", BASE);
    tollgate(&server, &["rules", "apply", "-f", &base, "--yes"]).done();
    let check = |user: &str| {
        run(&format!("http://{}", server.addr()), None, &["check", "--user", user]).code
    };

    tollgate(&server, &["lists", "deny", "user_id:mallory", "api_key:k1", "--until", "7d"]).done();
    assert_eq!(check("mallory"), 1);
    let shown = tollgate(&server, &["lists", "show"]).done().out;
    assert!(shown.contains("user_id:mallory") && !shown.contains("k1 "), "{shown}");
    let json = tollgate(&server, &["lists", "show", "--json"]).done().json();
    assert_eq!(json["deny"].as_array().unwrap().len(), 2);
    tollgate(&server, &["lists", "remove", "deny", "user_id:mallory", "api_key:k1"]).done();
    assert_eq!(check("mallory"), 0);
    assert_eq!(tollgate(&server, &["lists", "remove", "deny", "user_id:mallory"]).code, 1);
    tollgate(&server, &["lists", "allow", "ip:10.0.0.0/8", "--reason", "ours"]).done();

    tollgate(&server, &["tiers", "set", "gold", "--description", "More"]).done();
    tollgate(&server, &["tiers", "assign", "user_id:bob", "api_key:k2", "--tier", "gold"]).done();
    assert_eq!(tollgate(&server, &["tiers", "of", "user_id:bob"]).done().out, "gold\n");
    tollgate(&server, &["tiers", "unassign", "user_id:bob", "api_key:k2"]).done();
    tollgate(&server, &["tiers", "delete", "gold"]).done();
    assert_eq!(
        tollgate(&server, &["tiers", "list", "--json"]).done().json().as_array().unwrap().len(),
        2
    );

    assert_eq!([check("ann"), check("ann"), check("ann"), check("ann")], [0, 0, 0, 1]);
    let usage = tollgate(&server, &["usage", "show", "user_id:ann", "--json"]).done().json();
    assert_eq!(usage["limits"][0]["current"], 3, "{usage}");
    let why = tollgate(&server, &["rules", "explain", "--user", "ann"]).done().out;
    assert!(why.starts_with("BLOCKED") && why.contains("user_id=ann: 3 of 3 used"), "{why}");
    let local = run("", None, &["rules", "explain", "--rules", &base, "--user", "ann"]).done().out;
    assert!(local.contains("api      API      applies  user_id=ann\n"), "{local}");
    tollgate(&server, &["usage", "reset", "user_id:ann", "--yes"]).done();
    assert_eq!(check("ann"), 0);

    let add = ["grants", "add", "user_id:ann", "--rule", "api", "--extra", "5", "--until", "1h"];
    tollgate(&server, &add).done();
    let grants = tollgate(&server, &["grants", "list", "--json"]).done().json();
    let id = grants[0]["grant_id"].as_str().unwrap().to_owned();
    tollgate(&server, &["grants", "remove", &id]).done();

    tollgate(&server, &["settings", "set", "enforcement", "shadow"]).done();
    let shown = tollgate(&server, &["settings", "show"]).done().out;
    assert!(shown.contains("enforcement  shadow"), "{shown}");
    tollgate(&server, &["settings", "unset", "enforcement"]).done();
    assert_eq!(tollgate(&server, &["settings", "set", "no_match", "maybe"]).code, 2);

    let changes = tollgate(&server, &["audit", "--entry", "rule/api", "--json"]).done().json();
    assert_eq!(changes[0]["action"], "rule.create");
    let text = tollgate(&server, &["audit", "--since", "1h", "--limit", "3"]).done().out;
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.lines().last().unwrap().contains("setting"), "the newest is last: {text}");
    eventually("the refusal is in the log", || {
        let log = tollgate(&server, &["audit", "--decisions", "--user", "ann"]).done().out;
        log.contains("rejected") && log.contains("3/3")
    });
}

#[test]
fn tokens_are_made_used_and_ended() {
    let server = Server::start();
    let words = ["token", "create", "--name", "ci", "--role", "viewer", "--expires", "30d"];
    let made = tollgate(&server, &words).done();
    assert!(made.err.contains("shown this once"), "{}", made.err);
    let token = made.out.trim();
    assert!(token.starts_with("tgt_") && !token.contains(char::is_whitespace), "{token}");
    let url = url(&server);
    let viewer = |args: &[&str]| run(&url, Some(token), args);
    viewer(&["rules", "list"]).done();
    let refused = viewer(&["lists", "deny", "user_id:x"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("(status 403)"), "{}", refused.err);

    let tokens = tollgate(&server, &["token", "list", "--json"]).done().json();
    let ci = tokens.as_array().unwrap().iter().find(|one| one["name"] == "ci").unwrap();
    let id = ci["token_id"].as_str().unwrap();
    let rotated = tollgate(&server, &["token", "rotate", id]).done().out;
    assert_eq!(viewer(&["rules", "list"]).code, 1, "the old secret has ended");
    run(&url, Some(rotated.trim()), &["rules", "list"]).done();
    tollgate(&server, &["token", "revoke", id, "--yes"]).done();
    let ended = run(&url, Some(rotated.trim()), &["rules", "list"]);
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("hint: this server does not know the token"), "{}", ended.err);
    let without = run(&url, None, &["rules", "list"]);
    assert_eq!(without.code, 1);
    assert!(without.err.contains("hint: no token was given"), "{}", without.err);
    assert_eq!(run(&url, Some("a b"), &["rules", "list"]).code, 2);
    assert_eq!(run("ftp://x", Some(token), &["rules", "list"]).code, 2);
}

#[test]
fn the_schema_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").display().to_string();
    let migrate = || run("", None, &["config", "migrate", "--data-dir", &data]);
    let first = migrate().done().out;
    assert!(first.starts_with("the schema is up to date: version "), "{first}");
    assert_eq!(migrate().done().out, first);
    let none = run("", None, &["config", "migrate", "--data-dir", "null"]);
    assert_eq!(none.code, 2, "{}", none.err);
}

#[test]
fn rules_of_a_file_are_not_changed_over_the_network() {
    let server = ServerBuilder::default().rules(BASE).start();
    let base = write(server.dir(), "base.yaml", BASE);
    let ran = tollgate(&server, &["rules", "apply", "-f", &base, "--yes"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("(status 409)"), "{}", ran.err);
}

#[test]
fn a_rule_is_rolled_back_by_either_name_of_the_flag() {
    let server = Server::start();
    for limit in [1, 2, 3] {
        let rule = json!({"rule_id": "r", "identifier_type": "user_id", "limit": limit,
            "window": "1h", "algorithm": "FIXED_WINDOW"});
        server.admin().put("rules", &rule);
    }
    for (flag, version) in [("--version", "1"), ("--to", "2")] {
        tollgate(&server, &["rules", "rollback", "r", flag, version]).done();
        let rule = server.admin().get("rules/r");
        assert_eq!(rule["rule"]["limit"].to_string(), version, "{rule}");
        assert_eq!(rule["rule"]["algorithm"], "fixed_window");
    }
    tollgate(&server, &["rules", "rollback", "r", "--version", "99"]);
}

#[test]
fn top_says_that_it_needs_a_token_before_it_asks() {
    // Nothing listens there.
    let ran = run("http://127.0.0.1:9", None, &["top"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("this needs an admin token: set TOLLGATE_TOKEN"), "{}", ran.err);
}

#[test]
fn a_port_in_use_names_the_way_out() {
    let server = Server::start();
    let address = server.addr().to_string();
    let ran = run(
        "",
        None,
        &[
            "serve",
            "--http",
            &address,
            "--grpc",
            "127.0.0.1:0",
            "--data-dir",
            &server.dir().join("other").display().to_string(),
        ],
    );
    assert_ne!(ran.code, 0);
    let said = "another process listens there: stop it";
    assert!(ran.err.contains(said) && ran.err.contains("--http"), "{}", ran.err);
}

#[test]
fn keys_are_managed_from_a_terminal() {
    let server = Server::start();
    let flags = ["--name", "search", "--owner", "ann", "--tag", "team=s", "--model", "gpt-*"];
    let more = ["--limit", "2/1h", "--limit", "tokens:100/1d", "--budget", "5.00/USD/month"];
    let args = [&["keys", "create"][..], &flags, &more, &["--expires", "30d"]].concat();
    let secret = tollgate(&server, &args).done().out.trim().to_owned();
    assert!(secret.starts_with("tg_live_") && !secret.contains(char::is_whitespace), "{secret}");
    let listed = tollgate(&server, &["keys", "list", "--owner", "ann", "--json"]).done().json();
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(listed[0]["limits"][1], json!({"unit": "tokens", "limit": 100, "window": "1d"}));
    assert_eq!(listed[0]["budget"]["amount"], "5.00");
    assert!(tollgate(&server, &["keys", "get", &id]).done().out.contains("models: [gpt-*]"));
    let updated = ["keys", "update", &id, "--limit", "1/1h", "--json"];
    let updated = tollgate(&server, &updated).done().json();
    assert_eq!(updated["limits"].as_array().unwrap().len(), 1);
    assert_eq!((&updated["owner"], &updated["tags"]["team"]), (&json!("ann"), &json!("s")));
    let allow = |secret: &str| {
        let asked = json!({"apiKey": secret, "money": {"currency": "USD", "amount": "1"}});
        server.client().allow(&asked)["allowed"] == true
    };
    assert!(allow(&secret) && !allow(&secret));
    let rotated = tollgate(&server, &["keys", "rotate", &id, "--overlap", "1h"]).done();
    assert!(rotated.out.starts_with("tg_live_") && rotated.err.contains("stays valid until"));
    tollgate(&server, &["keys", "disable", &id]).done();
    assert_eq!(tollgate(&server, &["keys", "get", &id, "--json"]).json()["status"], "disabled");
    tollgate(&server, &["keys", "enable", &id]).done();
    tollgate(&server, &["keys", "delete", &id, "--yes"]).done();
    assert_eq!(tollgate(&server, &["keys", "get", &id]).code, 1);
    // The secret that a holder has already stays; another one is made.
    let known = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let text = format!("- {{name: old, sha256: {known}}}\n- {{name: new, owner: bob}}\n");
    let file = write(server.dir(), "keys.yaml", &text);
    let created = tollgate(&server, &["keys", "import", &file, "--json"]).done().json();
    assert_eq!((&created[0]["name"], &created[0]["secret"]), (&json!("old"), &Value::Null));
    assert!(created[1]["secret"].as_str().unwrap().starts_with("tg_live_"));
    assert!(server.client().allow(&json!({"apiKey": "test"}))["allowed"] == true);
    let wrong = write(server.dir(), "wrong.yaml", "- {name: a}\n- {name: b, models: x}\n");
    let refused = tollgate(&server, &["keys", "import", &wrong]);
    assert!(refused.code != 0 && refused.err.contains("keys[1].models"), "{}", refused.err);
    assert_eq!(tollgate(&server, &["keys", "create", "--name", "x", "--limit", "many"]).code, 2);
}
