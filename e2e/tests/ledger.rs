//! The ledger of usage: every settled request once, whatever is killed or unavailable meanwhile.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tollgate_e2e::{
    ADMIN_TOKEN, Admin, Client, EventStream, Model, Server, ServerBuilder, alone, eventually,
    eventually_within, server::binary,
};
use tollgate_testkit::{Postgres, Redis};

const RULES: &str = r#"default: false
rules:
  - {rule_id: money, identifier_type: global, unit: money, currency: USD, limit: "9000", window: 365d, algorithm: fixed_window, on_store_failure: closed}
  - {rule_id: few, identifier_type: user_id, unit: tokens, limit: 100, window: 365d, algorithm: fixed_window, applies_to: {users: [poor]}}
"#;

const PRICES: &str = "prices: [{model: m, currency: USD, per_request: '0.000000007', per_million: {input: '10', \
                      output: '20', cached_read: '1'}}]\n";

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// How long all nodes may take until what was settled is in the ledger.
const WRITTEN_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);

fn nanos(decimal: &Value) -> u64 {
    let text = decimal.as_str().unwrap_or_else(|| panic!("{decimal}"));
    let (units, rest) = text.split_once('.').unwrap_or((text, ""));
    format!("{units}{rest:0<9}").parse().unwrap()
}

fn report(admin: &mut Admin, query: &str) -> Vec<Value> {
    admin.get(&format!("usage/report{query}"))["items"].as_array().unwrap().clone()
}

/// Requests and money of the whole ledger.
fn sums(admin: &mut Admin) -> (u64, u64) {
    let rows = report(admin, "");
    let requests = rows.iter().map(|row| row["requests"].as_u64().unwrap()).sum();
    let money = rows.iter().filter(|row| !row["money"].is_null()).map(|row| nanos(&row["money"]));
    (requests, money.sum())
}

fn reserve(client: &mut Client, user: &str, tenant: &str) -> String {
    let body = json!({"userId": user, "tenantId": tenant, "modelId": "m", "ttlMs": 600_000,
                      "usage": {"input": 100, "output": 50}});
    let made = client.post("/rate-limit/reserve", &body).json();
    made["reservationId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

fn settle(client: &mut Client, id: &str, input: u64, output: u64) -> u16 {
    let usage = json!({"input": input, "output": output, "cachedRead": input / 2});
    client.post("/rate-limit/settle", &json!({"reservationId": id, "usage": usage})).status
}

/// What that costs.
const fn price(input: u64, output: u64) -> u64 {
    let cached = input / 2;
    (input - cached) * 10_000 + cached * 1_000 + output * 20_000 + 7
}

fn start(args: &[&str]) -> Server {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let builder = ServerBuilder::default().rules(RULES).config(PRICES).args(&args);
    builder.env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start()
}

#[test]
fn usage_is_reported_by_day_tenant_key_user_and_model() {
    let server = start(&[]);
    let mut client = server.client();
    for (user, tenant, input) in
        [("ann", "acme", 80), ("ann", "acme", 20), ("bob", "=umbrella", 10)]
    {
        let id = reserve(&mut client, user, tenant);
        assert_eq!(settle(&mut client, &id, input, 5), 200);
        assert_eq!(settle(&mut client, &id, input, 5), 200, "repeated, it is the same");
    }
    // What was released was not used; what was refused is counted apart.
    let id = reserve(&mut client, "ann", "acme");
    client.post("/rate-limit/release", &json!({"reservationId": id}));
    let body =
        json!({"userId": "poor", "tenantId": "acme", "modelId": "m", "usage": {"input": 500}});
    for _ in 0..3 {
        assert_eq!(client.post("/rate-limit/reserve", &body).json()["allowed"], false);
    }
    // An API key is named by its hash.
    let body = json!({"apiKey": "sk-secret", "modelId": "unknown", "money": {"currency": "USD", "amount": "0.5"}});
    let id = client.post("/rate-limit/reserve", &body).json()["reservationId"].clone();
    client.post("/rate-limit/settle", &json!({"reservationId": id}));

    let mut admin = server.admin();
    eventually("all of it is in the ledger", || {
        let rows = report(&mut admin, "");
        let refusals: u64 = rows.iter().map(|row| row["refusals"].as_u64().unwrap()).sum();
        let (requests, money) = sums(&mut admin);
        (requests, refusals) == (4, 3)
            && money == price(80, 5) + price(20, 5) + price(10, 5) + 500_000_000
    });
    let users = report(&mut admin, "?group_by=user,tenant");
    let ann = users.iter().find(|row| row["user_id"] == "ann").unwrap();
    assert_eq!(ann["tenant_id"], "acme");
    assert_eq!((&ann["requests"], &ann["tokens"]), (&json!(2), &json!(110)));
    assert_eq!((&ann["input_tokens"], &ann["cached_read_tokens"]), (&json!(100), &json!(50)));
    assert_eq!(nanos(&ann["money"]), price(80, 5) + price(20, 5));
    let poor = users.iter().find(|row| row["user_id"] == "poor").unwrap();
    assert_eq!((&poor["refusals"], &poor["money"]), (&json!(3), &Value::Null));
    let keys = report(&mut admin, "?group_by=key&model_id=unknown");
    let key = keys[0]["api_key_id"].as_str().unwrap();
    assert!(key.len() == 24 && !key.contains("secret"), "{key}");
    let today = report(&mut admin, "?group_by=day");
    assert_eq!(today[0]["day"].as_str().unwrap().len(), 10);
    assert!(report(&mut admin, "?from=2001-01-01&until=2001-02-01").is_empty());
    for wrong in ["group_by=moon", "from=never", "format=pdf", "limit=0", "x=1"] {
        let answer = admin.call("GET", &format!("usage/report?{wrong}"), &[], None);
        assert_eq!(answer.status, 400, "{wrong}");
    }
    files_are_safe(&server);
    tenants_see_their_own(&server);
    the_command_line_shows_it(&server);
}

fn files_are_safe(server: &Server) {
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let get = |query: &str| {
        let path = format!("{}usage/report?{query}", tollgate_e2e::ADMIN);
        let mut client = Client::connect(server.admin_addr()).unwrap();
        client.request("GET", &path, &[("authorization", &bearer)], b"")
    };
    let csv = get("group_by=tenant&format=csv");
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    let text = csv.text();
    assert!(text.starts_with("tenant_id,requests,refusals,tokens,"), "{text}");
    assert!(text.contains("\r\n'=umbrella,1,0,15,"), "{text}");
    let focus = get("format=focus").text();
    assert!(focus.starts_with("BilledCost,BillingCurrency,"), "{focus}");
    assert!(focus.contains("AI and Machine Learning,m,'=umbrella,"), "{focus}");
    assert_eq!(get("format=csv&group_by=user&limit=1").status, 400, "a file is never cut");
}

fn tenants_see_their_own(server: &Server) {
    let (_, token) = server.admin().token("tenant_admin", Some("acme"));
    let mut acme = Admin::with_token(server.admin_addr(), &token);
    let rows = report(&mut acme, "?group_by=tenant");
    assert!(!rows.is_empty() && rows.iter().all(|row| row["tenant_id"] == "acme"), "{rows:?}");
    let other = acme.call("GET", "usage/report?tenant_id=%3Dumbrella", &[], None);
    assert_eq!(other.status, 400);
}

fn the_command_line_shows_it(server: &Server) {
    let spend = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("spend").args(args).env("TOLLGATE_TOKEN", ADMIN_TOKEN);
        command.env("TOLLGATE_URL", format!("http://{}", server.admin_addr()));
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let table = spend(&["--by", "user,model"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("USER") && lines[0].contains("MODEL"), "{table}");
    let ann = lines.iter().find(|line| line.starts_with("ann")).unwrap();
    assert!(ann.contains(" USD") && ann.contains("110"), "{table}");
    let json: Value = serde_json::from_str(&spend(&["--by", "user", "--json"])).unwrap();
    assert_eq!(json["group_by"], json!(["user"]));
}

/// A gateway in front of a model. No rule applies: what is used is reported all the same.
#[test]
fn a_key_without_limits_is_in_the_ledger_of_the_gateway() {
    let model = Model::start();
    let config = format!(
        "gateway:
  pools: {{gpu: {{targets: [{{url: '{}'}}]}}}}
  routes: [{{name: ai, kind: openai, pool: gpu}}]
{PRICES}",
        model.url()
    );
    let builder = ServerBuilder::default().gateway().rules("default: false\nrules: []\n");
    let server = builder.config(&config).start();
    let mut admin = server.admin();
    let made = admin.put("keys", &json!({"name": "team", "owner": "ann", "tenant_id": "acme"}));
    let bearer = format!("Bearer {}", made["secret"].as_str().unwrap());
    let usage = json!({"prompt_tokens": 90, "completion_tokens": 50, "total_tokens": 140,
        "prompt_tokens_details": {"cached_tokens": 60}});
    for (is_stream, stand_in) in [
        (false, json!({"tokens": 5, "usage": usage})),
        (true, json!({"tokens": 5, "usage": usage})),
        (false, json!({"status": 429})),
    ] {
        let body = json!({"model": "m", "max_tokens": 20, "stream": is_stream,
            "messages": [{"role": "user", "content": "abcd"}], "metadata": {"stand_in": stand_in}});
        let path = "/v1/chat/completions";
        let mut answer =
            EventStream::post(server.gateway_addr(), path, &[("authorization", &bearer)], &body)
                .unwrap();
        let _ = answer.rest();
    }
    let money = 2 * (30 * 10_000 + 60 * 1_000 + 50 * 20_000 + 7);
    eventually("it is in the ledger", || sums(&mut admin).1 == money);
    let rows = report(&mut admin, "?group_by=key,tenant,model");
    let own = rows.iter().find(|row| row["api_key_id"] == made["id"]).unwrap();
    assert_eq!((&own["tenant_id"], &own["model_id"]), (&json!("acme"), &json!("m")));
    assert_eq!((&own["tokens"], &own["cached_read_tokens"]), (&json!(280), &json!(120)));
}

/// Settles `count` reservations on one node of several at a time, of which one is killed on the way. Those that were not
/// answered are settled again on another.
#[test]
fn a_killed_node_loses_and_doubles_no_settled_usage() {
    let _alone = alone();
    let (redis, postgres) = (Redis::start(), Postgres::start());
    let (url, database) = (redis.url(), postgres.database());
    let control = start(&["--redis", &url, "--postgres", &database]);
    let stays = start(&["--role", "data", "--redis", &url]);
    let dies = start(&["--role", "data", "--redis", &url]);
    let (settled, money) = (AtomicU64::new(0), AtomicU64::new(0));
    let unanswered = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (settled, money, unanswered) = (&settled, &money, &unanswered);
            let (dies, stays) = (&dies, &stays);
            scope.spawn(move || {
                let mut own = stays.client();
                let mut other = dies.client();
                let mut is_dead = false;
                for number in 0..60 {
                    let id = reserve(&mut own, &format!("user-{thread}"), "acme");
                    let (input, output) = (thread * 60 + number, number % 7);
                    money.fetch_add(price(input, output), Ordering::Relaxed);
                    let is_settled = !is_dead && {
                        let usage =
                            json!({"input": input, "output": output, "cachedRead": input / 2});
                        let body = json!({"reservationId": id, "usage": usage}).to_string();
                        let asked =
                            other.try_request("POST", "/rate-limit/settle", &JSON, body.as_bytes());
                        asked.is_ok_and(|answer| answer.status == 200)
                    };
                    if !is_settled {
                        is_dead = true;
                        unanswered.lock().unwrap().push((id, input, output));
                    }
                    if settled.fetch_add(1, Ordering::Relaxed) == 200 {
                        dies.signal("KILL");
                    }
                }
            });
        }
    });
    let mut client = stays.client();
    let unanswered = unanswered.into_inner().unwrap();
    assert!(!unanswered.is_empty(), "the node was killed on the way");
    for (id, input, output) in unanswered {
        assert_eq!(settle(&mut client, &id, input, output), 200);
    }
    let all = (8 * 60, money.into_inner());
    let mut admin = control.admin();
    eventually_within(WRITTEN_WITHIN, "the ledger has all of it", || sums(&mut admin).0 >= all.0);
    assert_eq!(sums(&mut admin), all);
    let peeked = client.post("/rate-limit/peek", &json!({"modelId": "m"})).json();
    let counter = peeked["scopes"].as_array().unwrap().iter().find(|it| it["ruleId"] == "money");
    assert_eq!(counter.unwrap()["current"], all.1, "ledger = counter");
}

/// Requests do not wait for the database, and nothing of what they used is lost.
#[test]
fn usage_waits_for_a_database_that_is_unavailable() {
    let _alone = alone();
    let (redis, postgres) = (Redis::start(), Postgres::start());
    let (url, database) = (redis.url(), postgres.database());
    let mut control = start(&["--redis", &url, "--postgres", &database]);
    let data = start(&["--role", "data", "--redis", &url]);
    let mut client = data.client();
    let mut all = 0;
    let mut settle_some = |client: &mut Client| {
        for input in 0..20 {
            let id = reserve(client, "ann", "acme");
            let started = std::time::Instant::now();
            assert_eq!(settle(client, &id, input, 3), 200);
            assert!(started.elapsed() < std::time::Duration::from_secs(3), "nobody waits for SQL");
            all += price(input, 3);
        }
        all
    };
    postgres.stop();
    settle_some(&mut client);
    settle_some(&mut control.client());
    // The node that was to write it is killed as well.
    control.signal("KILL");
    control.wait();
    settle_some(&mut client);
    postgres.start_again();
    control.start_again();
    let expected = settle_some(&mut client);
    let mut admin = control.admin();
    eventually_within(WRITTEN_WITHIN, "the ledger has all of it", || {
        sums(&mut admin) == (80, expected)
    });
}

/// A node of its own writes to its own database.
#[test]
fn a_restart_keeps_the_ledger_of_a_single_node() {
    let mut server = start(&[]);
    let mut client = server.client();
    let mut expected = 0;
    for input in 0..10 {
        let id = reserve(&mut client, "ann", "acme");
        assert_eq!(settle(&mut client, &id, input, 1), 200);
        expected += price(input, 1);
    }
    // What was settled last is written before the end.
    server.restart();
    assert_eq!(sums(&mut server.admin()), (10, expected));
}
