//! Where the console is served and where not, how a browser signs in, and the calls it needs. Its pages are tested in a
//! browser, in `console/e2e`.

use serde_json::{Value, json};
use tollgate_e2e::{ADMIN, ADMIN_TOKEN, Admin, Client, Server, ServerBuilder, eventually};
use tollgate_testkit::Redis;

const SESSION: &str = "/admin/api/v1/session";
const CONSOLE: (&str, &str) = ("x-tollgate-console", "1");

/// The cookie of a signed-in browser.
fn sign_in(client: &mut Client, token: &str) -> String {
    let body = json!({ "token": token }).to_string();
    let answer = client.request("POST", SESSION, &[CONSOLE], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let cookie = answer.header("set-cookie").unwrap();
    for part in ["; Path=/admin", "; HttpOnly", "; SameSite=Strict"] {
        assert!(cookie.contains(part), "{part}");
    }
    assert!(!cookie.contains("Secure"), "there is no TLS here");
    cookie.split(';').next().unwrap().to_owned()
}

#[test]
fn it_is_where_the_admin_api_is() {
    let server = ServerBuilder::default().arg("--admin-http").arg("127.0.0.1:0").start();
    let mut apart = Client::connect(server.admin_addr()).unwrap();
    let mut beside = server.client();
    for page in ["/", "/rules", "/rules/a/b", "/audit"] {
        let answer = apart.get(page);
        // Without a console that was built, a page says how to build one.
        let is_built = answer.status == 200;
        assert!(is_built || answer.text().contains("make console"), "{page}: {}", answer.text());
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cache-control"), Some("no-cache"));
        assert_eq!(beside.get(page).header("content-security-policy"), None, "{page}");
        assert_eq!(beside.get(page).status, 404, "{page}");
    }
    for other in ["/rate-limit/allow", "/admin", "/nothing", "/api/v1/x", "/assets/none.js", "//"] {
        let answer = apart.get(other);
        assert_eq!(answer.status, 404, "{other}");
        assert_eq!(answer.header("content-security-policy"), None, "{other}");
    }
}

#[test]
fn a_cookie_signs_in_and_other_sites_cannot_use_it() {
    let mut server = Server::start();
    let mut admin = server.admin();
    let (id, token) = admin.token("operator", None);
    let mut client = Client::connect(server.admin_addr()).unwrap();
    let body = json!({ "token": token }).to_string();
    let evil = [CONSOLE, ("origin", "http://evil.example")];
    for headers in [&[][..], &evil] {
        assert_eq!(client.request("POST", SESSION, headers, body.as_bytes()).status, 403);
        assert_eq!(client.request("DELETE", SESSION, headers, b"").status, 403);
    }
    for wrong in [r#"{"token": "wrong"}"#, r#"{"token": ""}"#, r#"{"other": 1}"#, "[]"] {
        let status = client.request("POST", SESSION, &[CONSOLE], wrong.as_bytes()).status;
        assert!(matches!(status, 400 | 401), "{wrong}: {status}");
    }
    assert_eq!(client.get(SESSION).status, 401);
    let cookie = sign_in(&mut client, &token);
    let with = ("cookie", cookie.as_str());
    let who = client.request("GET", SESSION, &[with], b"");
    assert_eq!((who.status, &who.json()["role"]), (200, &json!("operator")));
    assert!(!who.text().contains(&token), "a page cannot read the token back");

    let rules = format!("{ADMIN}rules");
    let rule = json!({"rule_id": "x", "identifier_type": "user_id", "limit": 1, "window": "1m"});
    let rule = rule.to_string();
    let mut change = |headers: &[(&str, &str)]| {
        let headers: Vec<_> = std::iter::once(with).chain(headers.iter().copied()).collect();
        client.request("POST", &rules, &headers, rule.as_bytes()).status
    };
    let own = format!("http://{}", server.admin_addr());
    assert_eq!(change(&[]), 403, "no header");
    assert_eq!(change(&evil), 403, "another site");
    assert_eq!(change(&[CONSOLE, ("origin", "null")]), 403);
    assert_eq!(change(&[CONSOLE, ("origin", &own)]), 201);
    assert_eq!(change(&[CONSOLE]), 200, "a program without an origin");
    assert_eq!(change(&[CONSOLE, ("authorization", "Bearer x")]), 401, "the header decides");

    server.restart();
    let mut client = Client::connect(server.admin_addr()).unwrap();
    // Another port is another cookie: the browser's own is sent under the name of this one.
    let port = server.admin_addr().port();
    let value = cookie.split_once('=').unwrap().1;
    let cookie = format!("tollgate_session_{port}={value}");
    let with = ("cookie", cookie.as_str());
    assert_eq!(client.request("GET", SESSION, &[with], b"").status, 200, "it outlives a restart");
    assert_eq!(
        client.request("GET", SESSION, &[("cookie", "tollgate_session_1=x")], b"").status,
        401
    );
    let out = client.request("DELETE", SESSION, &[with, CONSOLE], b"");
    assert_eq!((out.status, out.header("set-cookie").unwrap().contains("Max-Age=0")), (204, true));
    let mut admin = Admin::with_token(server.admin_addr(), ADMIN_TOKEN);
    assert_eq!(admin.delete(&format!("tokens/{id}")).0, 200);
    assert_eq!(client.request("GET", SESSION, &[with], b"").status, 401, "revoked is over");
}

#[test]
fn guessing_by_signing_in_is_slow_too() {
    let server = Server::start();
    let mut client = Client::connect(server.admin_addr()).unwrap();
    let statuses: Vec<u16> = (0..14)
        .map(|number| {
            let body = json!({ "token": format!("tgt_{number:064}") }).to_string();
            client.request("POST", SESSION, &[CONSOLE], body.as_bytes()).status
        })
        .collect();
    assert_eq!(statuses[..10], [401; 10]);
    assert_eq!(statuses[10..], [429; 4]);
}

#[test]
fn a_made_up_request_is_decided_as_any_other() {
    let server = ServerBuilder::default().arg("--admin-http").arg("127.0.0.1:0").start();
    let mut admin = server.admin();
    let rule = json!({"rule_id": "two", "identifier_type": "user_id", "limit": 2, "window": "365d",
                      "algorithm": "fixed_window"});
    admin.put("rules", &rule);
    let ann = json!({"userId": "ann"});
    let looked = admin.put("peek", &ann);
    assert_eq!(looked["decision"]["scopes"][0]["current"], 0, "looking charges nothing");
    let first = admin.put("decide", &ann);
    assert_eq!((&first["status"], &first["decision"]["allowed"]), (&json!(200), &json!(true)));
    assert_eq!(first["headers"]["x-ratelimit-remaining"], "1");
    assert_eq!(server.client().allow(&ann)["allowed"], true, "the same counter");
    let refused = admin.put("decide", &ann);
    assert_eq!(refused["status"], 429);
    assert_eq!(refused["decision"]["reason"], "HIT_TWO_LIMIT");
    assert!(refused["headers"]["retry-after"].is_string(), "{refused}");
    let (status, problem) = admin.post("decide", &json!({"userId": 5}));
    assert_eq!(status, 400, "{problem}");
    let slots = json!({"rule_id": "slots", "identifier_type": "user_id", "unit": "concurrency",
                       "limit": 1, "algorithm": "concurrency"});
    admin.put("rules", &slots);
    for _ in 0..2 {
        let tried = admin.put("decide", &json!({"userId": "bob"}));
        assert_eq!(tried["status"], 200, "a slot that is only tried is given back: {tried}");
    }
}

#[test]
fn a_live_stream_reports_every_second() {
    let server = Server::start();
    server.client().allow(&json!({"userId": "ann"}));
    let mut client = Client::connect(server.admin_addr()).unwrap();
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let wrong =
        client.request("GET", &format!("{ADMIN}events?live=2"), &[("authorization", &bearer)], b"");
    assert_eq!(wrong.status, 400);
    let url = format!("http://{}{ADMIN}events?live=true", server.admin_addr());
    let output = std::process::Command::new("curl")
        .args(["-sN", "--max-time", "4", "-H", &format!("Authorization: {bearer}"), &url])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("event: rules\n"), "{text}");
    let pulses: Vec<Value> = text
        .split("event: pulse\ndata: ")
        .skip(1)
        .map(|rest| serde_json::from_str(rest.lines().next().unwrap()).unwrap())
        .collect();
    let last = pulses.last().expect("a pulse");
    assert_eq!(last["decisions"]["allowed"], 1, "{last}");
    assert_eq!((&last["enforcement"], &last["stores_lost"]), (&json!("on"), &json!([])));
}

#[test]
fn every_node_is_on_the_roll() {
    let alone = Server::start();
    let nodes = alone.admin().get("nodes");
    assert_eq!(
        (&nodes["items"][0]["node"], nodes["items"].as_array().unwrap().len()),
        (&nodes["node"], 1)
    );

    let redis = Redis::start();
    let start = |role: &str| {
        let args = ["--role", role, "--redis", &redis.url()].map(str::to_owned);
        ServerBuilder::default().args(&args).env("TOLLGATE_REDIS_TIMEOUT_MS", "1000").start()
    };
    let control = start("all");
    let node = start("data");
    let mut admin = control.admin();
    let rule = json!({"rule_id": "r", "identifier_type": "user_id", "limit": 1, "window": "1h"});
    let revision = admin.put("rules", &rule)["revision"].clone();
    eventually("both have the rule set, and say so", || {
        let nodes = admin.get("nodes");
        let items = nodes["items"].as_array().unwrap();
        let has = |item: &Value| {
            item["rules"]["revision"] == revision && item["stores"][0]["is_lost"] == false
        };
        items.len() == 2 && items.iter().all(has)
    });
    let nodes = admin.get("nodes");
    let mut roles: Vec<&str> = nodes["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["role"].as_str().unwrap())
        .collect();
    roles.sort_unstable();
    assert_eq!(roles, ["all", "data"]);
    drop(node);
    eventually("who is gone is missed, and stays listed", || {
        let nodes = admin.get("nodes");
        let items = nodes["items"].as_array().unwrap();
        let live: Vec<&Value> = items.iter().filter(|item| item["is_live"] == true).collect();
        items.len() == 2 && live.len() == 1 && live[0]["role"] == "all"
    });
}
