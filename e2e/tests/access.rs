//! Who may do what: every route, every role, no token, a revoked one, an expired one, another tenant's.

use serde_json::{Value, json};
use tollgate_e2e::{ADMIN, Admin, Client, Server, ServerBuilder, eventually};

/// Who gets through to a call; the others get 403.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "a row of a table")]
struct May {
    viewer: bool,
    operator: bool,
    admin: bool,
    tenant: bool,
}

const VIEW: May = May { viewer: true, operator: true, admin: true, tenant: false };
const VIEW_OWN: May = May { tenant: true, ..VIEW };
const OPERATE: May = May { viewer: false, ..VIEW };
const OPERATE_OWN: May = May { tenant: true, ..OPERATE };
const ADMINISTER: May = May { operator: false, ..OPERATE };

/// Every call with who may make it. Written out apart from the server's own table.
fn table() -> Vec<(&'static str, &'static str, May)> {
    vec![
        ("GET", "rules", VIEW_OWN),
        ("POST", "rules", OPERATE_OWN),
        ("POST", "rules/explain", VIEW),
        ("GET", "rules/{rule_id}", VIEW_OWN),
        ("PUT", "rules/{rule_id}", OPERATE_OWN),
        ("DELETE", "rules/{rule_id}", OPERATE_OWN),
        ("GET", "rules/{rule_id}/versions", VIEW_OWN),
        ("GET", "rules/{rule_id}/versions/{version}", VIEW_OWN),
        ("POST", "rules/{rule_id}/rollback", OPERATE_OWN),
        ("GET", "rules/{rule_id}/candidate", VIEW),
        ("POST", "rules/{rule_id}/candidate/promote", OPERATE),
        ("POST", "rules/{rule_id}/candidate/halt", OPERATE),
        ("POST", "rules/{rule_id}/candidate/advance", OPERATE),
        ("POST", "apply", OPERATE),
        ("GET", "document", VIEW),
        ("GET", "whitelist", VIEW),
        ("POST", "whitelist", OPERATE),
        ("GET", "whitelist/{id}", VIEW),
        ("DELETE", "whitelist/{id}", OPERATE),
        ("GET", "blacklist", VIEW),
        ("POST", "blacklist", OPERATE),
        ("GET", "blacklist/{id}", VIEW),
        ("DELETE", "blacklist/{id}", OPERATE),
        ("GET", "tiers", VIEW),
        ("POST", "tiers", OPERATE),
        ("GET", "tiers/{name}", VIEW),
        ("PUT", "tiers/{name}", OPERATE),
        ("DELETE", "tiers/{name}", OPERATE),
        ("GET", "client-tiers", VIEW),
        ("POST", "client-tiers", OPERATE),
        ("GET", "client-tiers/{id}", VIEW),
        ("DELETE", "client-tiers/{id}", OPERATE),
        ("GET", "grants", VIEW),
        ("POST", "grants", OPERATE),
        ("GET", "grants/{grant_id}", VIEW),
        ("DELETE", "grants/{grant_id}", OPERATE),
        ("GET", "settings", VIEW),
        ("PUT", "settings/{name}", OPERATE),
        ("DELETE", "settings/{name}", OPERATE),
        ("GET", "audit", VIEW_OWN),
        ("GET", "audit/export", VIEW),
        ("GET", "audit/key", VIEW),
        ("GET", "decisions", VIEW_OWN),
        ("GET", "decisions/feed", VIEW_OWN),
        ("GET", "clients/{identifier_type}/{identifier}", VIEW_OWN),
        ("GET", "usage/report", VIEW_OWN),
        ("GET", "usage/{identifier_type}/{identifier}", VIEW_OWN),
        ("POST", "usage/{identifier_type}/{identifier}/reset", OPERATE_OWN),
        ("POST", "decide", OPERATE),
        ("POST", "peek", VIEW),
        ("GET", "slots", VIEW),
        ("GET", "queue", OPERATE),
        ("POST", "queue/{ticket}/retry", OPERATE),
        ("DELETE", "queue/{ticket}", OPERATE),
        ("GET", "overview", VIEW),
        ("GET", "top", VIEW),
        ("GET", "history", VIEW_OWN),
        ("GET", "node", VIEW),
        ("GET", "nodes", VIEW),
        ("GET", "incidents", VIEW),
        ("PUT", "node/log-level", OPERATE),
        ("GET", "events", VIEW),
        ("GET", "whoami", VIEW_OWN),
        ("GET", "keys", VIEW_OWN),
        ("POST", "keys", OPERATE_OWN),
        ("GET", "keys/{id}", VIEW_OWN),
        ("PUT", "keys/{id}", OPERATE_OWN),
        ("DELETE", "keys/{id}", OPERATE_OWN),
        ("POST", "keys/{id}/rotate", OPERATE_OWN),
        ("POST", "keys/{id}/disable", OPERATE_OWN),
        ("POST", "keys/{id}/enable", OPERATE_OWN),
        ("GET", "tokens", ADMINISTER),
        ("POST", "tokens", ADMINISTER),
        ("GET", "tokens/{token_id}", ADMINISTER),
        ("POST", "tokens/{token_id}/rotate", ADMINISTER),
        ("DELETE", "tokens/{token_id}", ADMINISTER),
    ]
}

/// A path with something in its places.
fn filled(path: &str) -> String {
    path.replace("{rule_id}", "nope")
        .replace("{version}", "1")
        .replace("{identifier_type}", "tenant_id")
        .replace("{identifier}", "acme")
        .replace("{token_id}", "token_nope")
        .replace("{grant_id}", "grant_nope")
        .replace("settings/{name}", "settings/no_match")
        .replace("{name}", "nope")
        .replace("{id}", "user_id%3Anope")
}

fn status(addr: std::net::SocketAddr, token: Option<&str>, method: &str, path: &str) -> u16 {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> =
        bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
    let mut client = Client::connect(addr).unwrap();
    // A body that no call takes: what gets through changes nothing.
    client.request(method, &format!("{ADMIN}{path}"), &headers, b"[]").status
}

#[test]
fn every_route_for_every_role() {
    let server = ServerBuilder::default().env("TOLLGATE_ADMIN_WRONG_TOKENS", "10000").start();
    let addr = server.admin_addr();
    let mut admin = server.admin();
    let (_, viewer) = admin.token("viewer", None);
    let (_, operator) = admin.token("operator", None);
    let (_, other_admin) = admin.token("admin", None);
    let (_, tenant) = admin.token("tenant_admin", Some("acme"));
    let (revoked_id, revoked) = admin.token("admin", None);
    assert_eq!(admin.delete(&format!("tokens/{revoked_id}")).0, 200);
    let (rotated_id, old) = admin.token("admin", None);
    let rotated = admin.put(&format!("tokens/{rotated_id}/rotate"), &json!({}));
    let new = rotated["token"].as_str().unwrap().to_owned();
    let described = server.client().get("/openapi.json").json();

    let mut seen = Vec::new();
    for (method, path, may) in table() {
        let url = filled(path);
        let roles = [
            ("viewer", &viewer, may.viewer),
            ("operator", &operator, may.operator),
            ("admin", &other_admin, may.admin),
            ("rotated admin", &new, may.admin),
            ("tenant", &tenant, may.tenant),
        ];
        for (role, token, may) in roles {
            // Streams do not end; whether one begins is tested apart.
            if ["events", "decisions/feed"].contains(&path) && may {
                continue;
            }
            let got = status(addr, Some(token), method, &url);
            assert_eq!(got != 403, may, "{role} {method} {path}: {got}");
            assert_ne!(got, 401, "{role} {method} {path}");
            assert!(got < 500, "{role} {method} {path}: {got}");
        }
        let operation = &described["paths"][format!("{ADMIN}{path}")][method.to_lowercase()];
        assert!(operation.is_object(), "{method} {path} is not described");
        seen.push(format!("{method} {path}"));
        for (what, token) in [("none", None), ("revoked", Some(&revoked)), ("old", Some(&old))] {
            let got = status(addr, token.map(String::as_str), method, &url);
            assert_eq!(got, 401, "{what} {method} {path}");
        }
    }
    let paths = described["paths"].as_object().unwrap();
    for (path, item) in paths.iter().filter(|(path, _)| path.starts_with(ADMIN)) {
        for method in item.as_object().unwrap().keys() {
            let call = format!("{} {}", method.to_uppercase(), path.trim_start_matches(ADMIN));
            assert!(seen.contains(&call), "{call} is not in the table");
        }
    }
    // Nothing says what there is to those without a token.
    for path in ["nothing", "rules/../x", "", "rules/a/b/c/d"] {
        assert_eq!(status(addr, None, "GET", path), 401, "{path}");
        assert_eq!(status(addr, Some(&viewer), "GET", path), 404, "{path}");
    }
    assert_eq!(status(addr, Some(&viewer), "PATCH", "rules"), 405);
}

#[test]
fn tenant_admins_tighten_and_nothing_else() {
    let server = Server::start();
    let mut admin = server.admin();
    let (_, token) = admin.token("tenant_admin", Some("acme"));
    let (_, other) = admin.token("tenant_admin", Some("umbrella"));
    let mut acme = Admin::with_token(server.admin_addr(), &token);
    let mut umbrella = Admin::with_token(server.admin_addr(), &other);
    let plain = |id: &str, limit: u64| {
        json!({"rule_id": id, "identifier_type": "user_id", "limit": limit, "window": "365d",
               "algorithm": "fixed_window"})
    };
    admin.put("rules", &plain("installation", 10));
    let made = acme.put("rules", &plain("acme.users", 3));
    assert_eq!(made["rule"]["scope"], "tenant:acme:acme.users");
    assert_eq!(made["rule"]["applies_to"]["tenants"], json!(["acme"]));
    let mut client = server.client();
    let mut admitted =
        |body: &Value| (0..20).filter(|_| client.allow(body)["allowed"] == true).count();
    assert_eq!(admitted(&json!({"userId": "ann", "tenantId": "acme"})), 3, "tightened");
    assert_eq!(admitted(&json!({"userId": "bob", "tenantId": "umbrella"})), 10, "for others not");
    // A large limit of their own does not loosen.
    acme.put("rules", &plain("acme.users", 1_000_000));
    assert_eq!(admitted(&json!({"userId": "eve", "tenantId": "acme"})), 10);
    // Nor does it make the system default yield.
    admin.delete("rules/installation");
    assert_eq!(admitted(&json!({"userId": "zoe", "tenantId": "acme", "modelId": "m"})), 20);
    let answer =
        client_answer(&server, &json!({"userId": "zoe", "tenantId": "acme", "modelId": "m"}));
    let scopes: Vec<&str> =
        answer["scopes"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert!(scopes.contains(&"DEFAULT"), "{scopes:?}");

    let forbidden = [
        ("scope", json!("S")),
        ("overrides", json!(["DEFAULT"])),
        ("on_store_failure", json!("open")),
        ("consistency", json!("local")),
        ("quota_mode", json!(true)),
        ("envoy", json!({"allow_check_at_limit": true})),
        ("store", json!("x")),
        ("applies_to", json!({"tenants": ["umbrella"]})),
    ];
    for (field, value) in forbidden {
        let mut body = plain("acme.x", 1);
        body[field] = value;
        let (status, problem) = acme.post("rules", &body);
        assert_eq!(status, 400, "{field}");
        assert!(problem["field"].as_str().unwrap().starts_with(field), "{problem}");
    }
    // What is another's is not there.
    for (method, path) in [
        ("GET", "rules/acme.users"),
        ("DELETE", "rules/acme.users"),
        ("GET", "rules/acme.users/versions"),
        ("GET", "rules/acme.users/versions/1"),
    ] {
        assert_eq!(umbrella.call(method, path, &[], None).status, 404, "{method} {path}");
    }
    let stolen = umbrella.call("PUT", "rules/acme.users", &[], Some(&plain("acme.users", 1)));
    assert!(matches!(stolen.status, 400 | 404), "{}", stolen.text());
    let back =
        umbrella.call("POST", "rules/acme.users/rollback", &[], Some(&json!({"version": 1})));
    assert_eq!(back.status, 404);
    assert_eq!(umbrella.get("rules")["items"], json!([]));
    assert_eq!(
        umbrella.get("audit")["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["tenant_id"] != "umbrella")
            .count(),
        0
    );
    let rules = acme.get("rules?tenant_id=acme");
    assert_eq!(rules["items"].as_array().unwrap().len(), 1);
    for path in ["rules", "audit", "audit?kind=decisions", "decisions", "decisions/feed"] {
        let path =
            format!("{path}{}tenant_id=umbrella", if path.contains('?') { '&' } else { '?' });
        let foreign = acme.call("GET", &path, &[], None);
        assert_eq!(foreign.status, 400, "{path}: {}", foreign.text());
        assert!(foreign.text().contains("\"field\":\"tenant_id\""), "{path}: {}", foreign.text());
    }
    let usage = acme.call("GET", "usage/tenant_id/umbrella", &[], None);
    assert_eq!(usage.status, 400, "{}", usage.text());
    acme.put("rules/acme.users/rollback", &json!({"version": 1}));
    // An operator does not take it over by chance.
    let changed = plain("acme.users", 5);
    assert_eq!(admin.post("rules", &changed).0, 409);
    let squat = acme.post("rules", &plain("per-user", 1));
    assert_eq!((squat.0, &squat.1["field"]), (400, &json!("rule_id")), "ids of others stay free");
    assert_eq!(acme.delete("rules/acme.users").0, 200);
}

fn client_answer(server: &Server, body: &Value) -> Value {
    server.client().allow(body)
}

/// Ids of one tenant are none of another whose name begins like its own, and nobody learns which there are.
#[test]
fn no_tenant_takes_ids_of_another() {
    let server = Server::start();
    let mut admin = server.admin();
    let (_, short) = admin.token("tenant_admin", Some("acme"));
    let (_, long) = admin.token("tenant_admin", Some("acme.eu"));
    let mut short = Admin::with_token(server.admin_addr(), &short);
    let mut long = Admin::with_token(server.admin_addr(), &long);
    let rule =
        |id: &str| json!({"rule_id": id, "identifier_type": "user_id", "limit": 1, "window": "1h"});
    long.put("rules", &rule("acme.eu.users"));
    let taken = short.post("rules", &rule("acme.eu.users"));
    let free = short.post("rules", &rule("acme.eu.others"));
    assert_eq!((taken.0, free.0), (400, 400));
    assert_eq!(taken.1, free.1, "the same answer, whether it is there or not");
    let taken = short.call("PUT", "rules/acme.eu.users", &[], Some(&rule("acme.eu.users")));
    let free = short.call("PUT", "rules/acme.eu.others", &[], Some(&rule("acme.eu.others")));
    assert_eq!((taken.status, taken.json()), (free.status, free.json()));
    short.put("rules", &rule("acme.users"));
    assert_eq!(long.get("rules")["items"].as_array().unwrap().len(), 1);
    // Nor does it write without end.
    let mut refused = None;
    for _ in 0..200 {
        let answer = short.call("PUT", "rules/acme.users", &[], Some(&rule("acme.users")));
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
    }
    assert!(refused.expect("a bound").header("retry-after").is_some());
    long.put("rules", &rule("acme.eu.more"));
    admin.put("rules", &rule("installation"));
}

#[test]
fn guessing_is_slow() {
    let server = Server::start();
    let addr = server.admin_addr();
    let mut statuses = Vec::new();
    for number in 0..14 {
        let guess = format!("tgt_{number:064}");
        statuses.push(status(addr, Some(&guess), "GET", "rules"));
    }
    assert_eq!(statuses[..10], [401; 10]);
    assert_eq!(statuses[10..], [429; 4]);
    let mut client = Client::connect(addr).unwrap();
    let bearer = format!("Bearer {}", tollgate_e2e::ADMIN_TOKEN);
    let path = format!("{ADMIN}whoami");
    let wrong = client.request("GET", &path, &[("authorization", "Bearer x")], b"");
    assert_eq!(wrong.status, 429);
    let wait: u64 = wrong.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=61).contains(&wait));
    // Each right one gets through, however many wrong ones come from the same address.
    for number in 0..30 {
        for guess in 0..15 {
            let guess = format!("Bearer tgt_{:064}", 1_000 + 100 * number + guess);
            let wrong = client.request("GET", &path, &[("authorization", &guess)], b"");
            assert!(matches!(wrong.status, 401 | 429), "{number}");
        }
        let right = client.request("GET", &path, &[("authorization", &bearer)], b"");
        assert_eq!(right.status, 200, "{number}");
    }
    // One that was created meanwhile, too.
    let made = server.admin().put("tokens", &json!({"name": "new", "role": "viewer"}));
    assert_eq!(status(addr, made["token"].as_str(), "GET", "rules"), 200);
    assert_eq!(server.client().allow(&json!({"userId": "a"}))["allowed"], true, "decisions go on");
}

#[test]
fn admin_on_its_own_listener() {
    let server = ServerBuilder::default().arg("--admin-http").arg("127.0.0.1:0").start();
    assert_ne!(server.addr(), server.admin_addr());
    let token = Some(tollgate_e2e::ADMIN_TOKEN);
    assert_eq!(status(server.admin_addr(), token, "GET", "rules"), 200);
    assert_eq!(status(server.addr(), token, "GET", "rules"), 404);
    let mut client = Client::connect(server.admin_addr()).unwrap();
    assert_eq!(client.post("/rate-limit/allow", &json!({})).status, 404);
    assert_eq!(client.get("/healthz").status, 200);
    assert_eq!(server.client().allow(&json!({"userId": "a"}))["allowed"], true);
}

#[test]
fn the_first_token_is_made_and_shown_once() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = std::process::Command::new(tollgate_e2e::server::binary());
        let data = dir.path().join("data");
        command
            .args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--data-dir"])
            .arg(data);
        command.env_remove("TOLLGATE_ADMIN_TOKEN");
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let read = |child: &mut std::process::Child| {
        let out = child.stdout.take().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(out));
        let first = lines.next().unwrap().unwrap();
        let addr = first.strip_prefix("listening http=").unwrap();
        let addr = addr.split_whitespace().next().unwrap().parse().unwrap();
        (addr, lines)
    };
    let mut child = start();
    let (addr, mut lines) = read(&mut child);
    let second = lines.next().unwrap().unwrap();
    let token = second.rsplit(' ').next().unwrap().to_owned();
    assert_eq!(token.len(), 4 + 64, "{second}");
    assert_eq!(status(addr, Some(&token), "GET", "tokens"), 200);
    let end = |mut child: std::process::Child| {
        let pid = child.id().to_string();
        std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        let output = child.stderr.take().unwrap();
        assert!(child.wait().unwrap().success());
        let mut log = String::new();
        std::io::Read::read_to_string(&mut { output }, &mut log).unwrap();
        log
    };
    let log = end(child);
    assert!(!log.contains(&token), "a secret is not for the log");
    let mut child = start();
    let (addr, mut lines) = read(&mut child);
    assert_eq!(status(addr, Some(&token), "GET", "tokens"), 200, "it is kept");
    end(child);
    assert!(lines.next().is_none(), "shown once");
    let database = std::fs::read(dir.path().join("data/control.db")).unwrap();
    let found = database.windows(token.len()).any(|window| window == token.as_bytes());
    assert!(!found, "only its hash is kept");
}

#[test]
fn tokens_end() {
    let server = Server::start();
    let mut admin = server.admin();
    let until = std::time::SystemTime::now() + std::time::Duration::from_secs(2);
    let until = until.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let until = format!("{}Z", rfc3339(until));
    let body = json!({"name": "short", "role": "viewer", "expires_at": until});
    let made = admin.put("tokens", &body);
    let token = made["token"].as_str().unwrap().to_owned();
    assert_eq!(status(server.admin_addr(), Some(&token), "GET", "rules"), 200);
    eventually("it ends", || status(server.admin_addr(), Some(&token), "GET", "rules") != 200);
    let list = admin.get("tokens");
    assert!(!list.to_string().contains(&token));
    assert!(!list.to_string().contains("digest"));
    let (status, problem) = admin.delete("tokens/token_first");
    assert_eq!(status, 409, "the last admin: {problem}");
}

/// Seconds since 1970 in RFC 3339, without a zone.
fn rfc3339(seconds: u64) -> String {
    let output = std::process::Command::new("date")
        .args(["-u", "-d", &format!("@{seconds}"), "+%Y-%m-%dT%H:%M:%S"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// `no_match: deny` lets in whom the installation's rules name, and nobody a tenant's own do.
#[test]
fn a_tenants_rule_opens_no_door() {
    let server = Server::start();
    let mut admin = server.admin();
    for (name, value) in [("default", json!(false)), ("no_match", json!("deny"))] {
        let put =
            admin.call("PUT", &format!("settings/{name}"), &[], Some(&json!({"value": value})));
        assert_eq!(put.status, 200, "{}", put.text());
    }
    let (_, token) = admin.token("tenant_admin", Some("acme"));
    let mut acme = Admin::with_token(server.admin_addr(), &token);
    let request = json!({"userId": "ann", "tenantId": "acme"});
    assert_eq!(client_answer(&server, &request)["reason"], "NO_MATCH");
    for action in ["reject", "log_only"] {
        acme.put(
            "rules",
            &json!({"rule_id": "acme.mine", "identifier_type": "user_id",
            "limit": 1_000_000, "window": "1h", "action": action}),
        );
        let answer = client_answer(&server, &request);
        assert_eq!((&answer["allowed"], &answer["reason"]), (&json!(false), &json!("NO_MATCH")));
    }
    admin.put(
        "rules",
        &json!({"rule_id": "door", "identifier_type": "user_id", "limit": 5,
        "window": "1h"}),
    );
    assert_eq!(client_answer(&server, &request)["allowed"], true);
    // What others do to a client is not for a tenant admin to see.
    let listed = json!({"identifier": "eve", "identifier_type": "user_id"});
    admin.put("blacklist", &listed);
    let usage = acme.get("usage/user_id/eve");
    assert_eq!((&usage["reason"], &usage["allowed"]), (&Value::Null, &Value::Null));
}

/// The way back for an operator who has lost every admin token.
#[test]
fn a_lost_admin_token_is_replaced_by_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let start = |token: &str| {
        let builder = ServerBuilder::default().no_data_dir().arg("--data-dir").arg(&data);
        builder.env("TOLLGATE_ADMIN_TOKEN", token).start()
    };
    let (lost, new) = ("a-token-that-was-lost-0123456789", "a-token-to-replace-it-0123456789");
    let first = start(lost);
    assert_eq!(status(first.admin_addr(), Some(lost), "GET", "tokens"), 200);
    drop(first);
    let second = start(new);
    assert_eq!(status(second.admin_addr(), Some(new), "GET", "tokens"), 200);
    assert_eq!(status(second.admin_addr(), Some(lost), "GET", "tokens"), 401, "the old one ends");
    let audit = Admin::with_token(second.admin_addr(), new).get("audit?limit=10");
    let actions: Vec<&str> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["action"].as_str())
        .collect();
    assert!(actions.contains(&"token.rotate"), "{audit}");
}

/// A secret that was rotated away does not come back with a restart.
#[test]
fn a_rotated_first_token_stays_so() {
    let mut server = Server::start();
    let mut admin = server.admin();
    let rotated = admin.put("tokens/token_first/rotate", &json!({}));
    let new = rotated["token"].as_str().unwrap().to_owned();
    server.restart();
    let addr = server.admin_addr();
    assert_eq!(status(addr, Some(tollgate_e2e::ADMIN_TOKEN), "GET", "whoami"), 401);
    assert_eq!(status(addr, Some(&new), "GET", "whoami"), 200);
    let mut admin = Admin::with_token(addr, &new);
    let stale = admin.call("POST", "tokens/token_first/rotate", &[("if-match", "\"1\"")], None);
    assert_eq!(stale.status, 412);
}

/// A database of a later version is not touched, and the log says why.
#[test]
fn a_newer_schema_is_left_alone() {
    let postgres = tollgate_testkit::Postgres::start();
    let database = postgres.database();
    let start =
        || ServerBuilder::default().args(&["--postgres", &database].map(str::to_owned)).start();
    // On a busy machine a node serves before its database has answered.
    let first = start();
    eventually("the schema is there", || {
        first.admin().call("GET", "whoami", &[], None).status == 200
    });
    drop(first);
    let name = database.rsplit('/').next().unwrap();
    postgres
        .query(name, "INSERT INTO schema_version SELECT MAX(version) + 1, 1 FROM schema_version");
    let server = start();
    eventually("the log says it", || server.log().contains("this Tollgate knows up to"));
    assert_eq!(server.admin().call("GET", "whoami", &[], None).status, 503);
    assert_eq!(server.client().allow(&json!({"userId": "a", "modelId": "m"}))["allowed"], true);
}
