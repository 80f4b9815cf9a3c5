//! What an operator sees and does: the live feed, a client as it really calls, incidents, the first run.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_e2e::server::binary;
use tollgate_e2e::{ADMIN, ADMIN_TOKEN, Admin, Client, Server, ServerBuilder, eventually};
use tollgate_testkit::Redis;

/// How long a line of a stream or a process is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process whose lines are read, ended with the test.
struct Lines {
    child: Child,
    lines: Receiver<String>,
}

impl Lines {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, lines }
    }

    /// What follows this in the next line that has it.
    fn after(&self, mark: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect(mark);
            if let Some((_, rest)) = line.split_once(mark) {
                return rest.trim_end().to_owned();
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn feed(server: &Server, token: &str, query: &str) -> Lines {
    let url = format!("http://{}{ADMIN}decisions/feed?{query}", server.admin_addr());
    let bearer = format!("authorization: Bearer {token}");
    let lines =
        Lines::start(Command::new("curl").args(["-sN", "--max-time", "60", "-H", &bearer, &url]));
    assert_eq!(lines.after("event: "), "start");
    lines
}

/// The next decisions of a feed.
fn next(feed: &Lines) -> Value {
    assert_eq!(feed.after("event: "), "decisions");
    serde_json::from_str(&feed.after("data: ")).unwrap()
}

fn strict() -> Value {
    json!({"rule_id": "none-left", "identifier_type": "user_id", "limit": 1, "window": "1d",
        "applies_to": {"endpoints": ["/v1/*"]}})
}

fn refuse(server: &Server, user: &str, tenant: &str) {
    let request = json!({"userId": user, "tenantId": tenant, "endpoint": "/v1/chat",
        "method": "POST", "modelId": "m1"});
    let mut client = server.client();
    client.allow(&request);
    assert_eq!(client.allow(&request)["allowed"], false);
}

#[test]
fn refusals_arrive_live_and_tenants_see_their_own() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.put("rules", &strict());
    let (_, viewer) = admin.token("viewer", None);
    let (_, tenant) = admin.token("tenant_admin", Some("acme"));
    refuse(&server, "before", "acme");
    eventually("it is written", || !admin.get("decisions")["items"].as_array().unwrap().is_empty());
    let (all, own) = (feed(&server, &viewer, ""), feed(&server, &tenant, ""));
    let one = feed(&server, &viewer, "user_id=carl&result=denied");
    refuse(&server, "bob", "umbrella");
    let first = next(&all);
    assert_eq!(first["items"][0]["user_id"], "bob", "nothing from before: {first}");
    assert_eq!(first["skipped"], 0);
    refuse(&server, "carl", "acme");
    assert_eq!(next(&own)["items"][0]["user_id"], "carl");
    assert_eq!(next(&one)["items"][0]["user_id"], "carl");
    for wrong in ["from=15m", "until=15m", "nope=1"] {
        let status = admin.call("GET", &format!("decisions/feed?{wrong}"), &[], None).status;
        assert_eq!(status, 400, "{wrong}");
    }
}

#[test]
fn a_feed_that_cannot_keep_up_says_how_many_it_skipped() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.put("rules", &strict());
    let (_, viewer) = admin.token("viewer", None);
    let feed = feed(&server, &viewer, "result=denied");
    let requests: Vec<Value> = (0..200)
        .flat_map(|user| {
            let request = json!({"userId": format!("u{user}"), "endpoint": "/v1/chat"});
            [request.clone(), request]
        })
        .collect();
    server.client().post("/rate-limit/allow/batch", &json!({ "requests": requests }));
    let (mut shown, mut skipped) = (0, 0);
    while shown + skipped < 200 {
        let part = next(&feed);
        let rows = part["items"].as_array().unwrap().len();
        assert!(rows <= 50, "{rows}");
        shown += rows as u64;
        skipped += part["skipped"].as_u64().unwrap();
    }
    assert_eq!(shown + skipped, 200);
    assert!(skipped > 0);
}

#[test]
fn a_client_is_shown_with_the_limits_of_its_real_requests() {
    let server = Server::start();
    let mut admin = server.admin();
    admin.put("rules", &strict());
    admin.put(
        "rules",
        &json!({"rule_id": "of-tenant", "identifier_type": "tenant_id",
        "limit": 100, "window": "1d"}),
    );
    admin.put(
        "blacklist",
        &json!({"identifier_type": "user_id", "identifier": "mallory", "reason": "fraud"}),
    );
    refuse(&server, "ann", "acme");
    let bare = admin.get("usage/user_id/ann");
    let met = |answer: &Value| -> Vec<String> {
        let limits = answer["limits"].as_array().unwrap().iter();
        let mut ids: Vec<String> =
            limits.map(|one| one["rule_id"].as_str().unwrap().to_owned()).collect();
        ids.sort_unstable();
        ids
    };
    assert!(
        !met(&bare).contains(&"none-left".to_owned()),
        "the name alone has no endpoint: {bare}"
    );
    let mut page = Value::Null;
    eventually("the refusal is written", || {
        page = admin.get("clients/user_id/ann");
        page["refused_by"] == "none-left"
    });
    assert_eq!(met(&page), ["none-left", "of-tenant"], "{page}");
    let request = &page["requests"][0];
    assert_eq!((&request["endpoint"], &request["allowed"]), (&json!("/v1/chat"), &json!(false)));
    let limits = page["limits"].as_array().unwrap();
    let limit = limits.iter().find(|one| one["rule_id"] == "none-left").unwrap();
    assert_eq!((&limit["current"], &limit["unit"]), (&json!(1), &json!("requests")), "{limit}");
    assert_eq!((&limit["key"], &limit["request"]), (&json!({"user_id": "ann"}), &json!(0)));
    assert_eq!(admin.get("clients/user_id/mallory")["listed"]["reason"], "fraud");
    let (_, token) = admin.token("tenant_admin", Some("acme"));
    let mut tenant = Admin::with_token(server.admin_addr(), &token);
    let own = tenant.get("clients/user_id/ann");
    assert_eq!(met(&own), ["of-tenant"], "limits that others share are not for a tenant: {own}");
    assert_eq!((&own["tier"], &own["requests"][0]["allowed"]), (&Value::Null, &Value::Null));
    let (_, token) = admin.token("tenant_admin", Some("other"));
    let mut tenant = Admin::with_token(server.admin_addr(), &token);
    assert_eq!(tenant.get("clients/user_id/ann")["requests"], json!([]), "not of another tenant");
}

#[test]
fn keys_in_top_lists_have_their_attributes() {
    let server = Server::start();
    server.admin().put(
        "rules",
        &json!({"rule_id": "both", "identifier_type": "composite",
        "key_by": ["user_id", "model_id"], "limit": 1, "window": "1d"}),
    );
    let request = json!({"userId": "a, model_id=x", "modelId": "m"});
    for _ in 0..2 {
        server.client().allow(&request);
    }
    let mut key = Value::Null;
    eventually("it is seen", || {
        key = server.admin().get("top?rule_id=both")["rules"][0]["top_refused"][0].clone();
        !key.is_null()
    });
    assert_eq!(key["attributes"], json!({"user_id": "a, model_id=x", "model_id": "m"}), "{key}");
}

#[test]
fn a_lost_store_is_an_incident_with_a_beginning_and_an_end() {
    let redis = Redis::start();
    let server = ServerBuilder::default().arg("--redis").arg(&redis.url()).start();
    let mut admin = server.admin();
    admin.put(
        "rules",
        &json!({"rule_id": "per-user", "identifier_type": "user_id",
        "limit": 100, "window": "1d"}),
    );
    assert_eq!(admin.get("incidents")["items"], json!([]));
    redis.kill();
    let mut client = server.client();
    let mut incident = Value::Null;
    eventually("it is reported", || {
        client.allow(&json!({"userId": "ann"}));
        incident = store_incident(&mut admin);
        incident["kind"] == "store"
    });
    assert_eq!(incident["title"], "A shared store does not answer.");
    assert_eq!(incident["until"], Value::Null, "{incident}");
    assert!(incident["next_step"].as_str().unwrap().contains("Redis"), "{incident}");
    let metrics = server.client().get("/metrics").text();
    assert!(metrics.contains("rate_limiter_incident{kind=\"store\"} 1"), "{metrics}");
    redis.restart();
    eventually("it is over", || {
        client.allow(&json!({"userId": "ann"}));
        store_incident(&mut admin)["until"].is_string()
    });
}

fn store_incident(admin: &mut Admin) -> Value {
    let all = admin.get("incidents");
    let mut items = all["items"].as_array().unwrap().iter();
    items.find(|one| one["kind"] == "store").cloned().unwrap_or_default()
}

/// A terminal, as `script` of util-linux makes one, with the process in it.
fn at_a_terminal(dir: &std::path::Path) -> (Lines, String) {
    let binary = binary();
    let command = format!(
        "echo pid=$$; exec {} serve --http 127.0.0.1:0 --grpc 127.0.0.1:0 --data-dir {}",
        binary.display(),
        dir.display()
    );
    let mut script = Command::new("script");
    script.args(["-qec", &format!("sh -c '{command}'"), "/dev/null"]);
    let lines = Lines::start(&mut script);
    let pid = lines.after("pid=");
    (lines, pid)
}

#[test]
fn a_terminal_gets_a_link_that_signs_in_once() {
    let dir = tempfile::tempdir().unwrap();
    let (lines, pid) = at_a_terminal(dir.path());
    let address = lines.after("listening http=");
    let address: std::net::SocketAddr = address.split(' ').next().unwrap().parse().unwrap();
    let console = lines.after("Console ");
    assert_eq!(console.trim(), format!("http://{address}/"));
    let code = lines.after("/sign-in#");
    assert_eq!(code.len(), 64, "{code}");
    assert!(lines.after("Try it ").contains("/rate-limit/allow"));
    let sign_in = |body: &Value| {
        let headers = [("x-tollgate-console", "1")];
        let body = body.to_string();
        let mut client = Client::connect(address).unwrap();
        client.request("POST", "/admin/api/v1/session", &headers, body.as_bytes())
    };
    assert_eq!(sign_in(&json!({"code": "0".repeat(64)})).status, 401);
    assert_eq!(sign_in(&json!({"code": code, "token": code})).status, 400);
    let first = sign_in(&json!({"code": code}));
    assert_eq!(first.status, 200, "{}", first.text());
    assert_eq!(first.json()["role"], "admin");
    assert!(first.json()["expires_at"].is_string(), "a session that ends");
    assert!(first.header("set-cookie").is_some_and(|cookie| cookie.contains("HttpOnly")));
    assert_eq!(sign_in(&json!({"code": code})).status, 401, "only once");
    // A link with somebody's own token in it signs nobody in.
    let cookie = first.header("set-cookie").unwrap();
    let token = cookie.split(['=', ';']).nth(1).unwrap().replace("%5F", "_").replace("%2D", "-");
    assert_eq!(sign_in(&json!({"token": token})).status, 200);
    assert_eq!(sign_in(&json!({"code": token})).status, 401);
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
}

#[test]
fn a_demo_has_rules_and_traffic() {
    let mut command = Command::new(binary());
    command.args(["demo", "--http", "127.0.0.1:0", "--requests", "40", "--minutes", "1"]);
    command.env("TOLLGATE_ADMIN_TOKEN", ADMIN_TOKEN);
    let demo = Lines::start(command.stderr(Stdio::null()));
    let address = demo.after("listening http=");
    let address: std::net::SocketAddr = address.split(' ').next().unwrap().parse().unwrap();
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    eventually("the token that was given is that of the demo", || {
        let headers = [("authorization", bearer.as_str())];
        let path = "/admin/api/v1/rate-limits/rules";
        let asked = Client::connect(address).unwrap().try_request("GET", path, &headers, b"");
        asked.is_ok_and(|answer| answer.status == 200 && answer.text().contains("rule_id"))
    });
    eventually("clients are refused", || {
        let metrics = Client::connect(address).unwrap().get("/metrics").text();
        let refused = "rate_limiter_requests_total{result=\"denied\"";
        metrics.lines().any(|line| line.starts_with(refused) && !line.ends_with(" 0"))
    });
    let pid = demo.child.id().to_string();
    let folder = std::env::temp_dir().join(format!("tollgate-demo-{pid}"));
    assert!(folder.exists());
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    eventually("its data is removed", || !folder.exists());
    let outside = Command::new(binary()).args(["demo", "--http", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(outside.status.code(), Some(2), "on loopback only");
}
