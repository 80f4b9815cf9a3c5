//! The whole installation: any node answers for all nodes that share a Redis or a PostgreSQL.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_e2e::{
    Admin, Fleet, PATIENCE, Server, ServerBuilder, alone, eventually, eventually_within,
};
use tollgate_testkit::{Postgres, Redis};

/// How soon a node that was killed must be shown as gone.
const GONE_WITHIN: Duration = Duration::from_secs(7);
/// Figures of the last hours are stored every half a minute.
const HOURS_WITHIN: Duration = Duration::from_secs(60);

const NODES: usize = 3;
const CLIENTS: usize = 4;
const REQUESTS: usize = 400;
const USERS: usize = 60;
const LIMIT: u64 = 20;

fn node(args: &[&str]) -> Server {
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    ServerBuilder::default().args(&args).env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start()
}

fn rule() -> Value {
    json!({"rule_id": "per-user", "identifier_type": "user_id", "limit": LIMIT, "window": "365d",
           "algorithm": "fixed_window", "scope": "USER"})
}

/// Few users make most of the requests, and each its own number of them.
fn user(client: usize, request: usize) -> String {
    let draw = (client * REQUESTS + request) as u64;
    let mixed = (draw.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 10_000;
    let share = (mixed * mixed) as usize * USERS / 100_000_000;
    format!("user-{share}")
}

fn sum(list: &Value) -> u64 {
    list.as_array().unwrap_or_else(|| panic!("{list}")).iter().filter_map(Value::as_u64).sum()
}

/// The sum of a result over a node's label sets.
fn metric(node: &Server, result: &str) -> u64 {
    let text = node.client().get("/metrics").text();
    let wanted = format!("rate_limiter_requests_total{{result=\"{result}\"");
    let value = |line: &str| line.rsplit(' ').next().and_then(|number| number.parse::<u64>().ok());
    text.lines().filter(|line| line.starts_with(&wanted)).filter_map(value).sum()
}

fn names(nodes: &Value) -> Vec<String> {
    let items = nodes["items"].as_array().unwrap();
    items.iter().map(|item| item["node"].as_str().unwrap().to_owned()).collect()
}

fn is_near(value: u64, truth: u64) -> bool {
    value.abs_diff(truth) * 100 <= truth
}

#[test]
fn three_nodes_under_load_are_one_installation() {
    let _alone = alone();
    let (redis, postgres) = (Redis::start(), Postgres::start());
    let database = postgres.database();
    let args = ["--redis", &redis.url(), "--postgres", &database];
    let mut fleet = Fleet::of((0..NODES).map(|_| node(&args)).collect());
    let mut admin = fleet.nodes()[0].admin();
    admin.put("rules", &rule());
    for node in fleet.nodes() {
        eventually("the rule is in force", || {
            let peeked = node.client().post("/rate-limit/peek", &json!({"userId": "nobody"}));
            peeked.json()["effectiveLimit"] == LIMIT
        });
    }
    let answers = fleet.flood(CLIENTS, REQUESTS, |client, request| {
        json!({"userId": user(client, request), "tenantId": if client % 2 == 0 { "even" } else { "odd" }})
    });
    assert!(answers.iter().all(|answer| !answer.is_degraded()), "Redis is there");
    let mut sent: HashMap<String, u64> = HashMap::new();
    for (client, request) in
        (0..NODES * CLIENTS).flat_map(|client| (0..REQUESTS).map(move |request| (client, request)))
    {
        *sent.entry(user(client, request)).or_default() += 1;
    }
    let truth = |result: &str| fleet.nodes().iter().map(|node| metric(node, result)).sum::<u64>();
    let (allowed, denied) = (truth("allowed"), truth("denied"));
    assert_eq!(allowed + denied, (NODES * CLIENTS * REQUESTS) as u64);

    // Whichever node is asked.
    for server in fleet.nodes() {
        let mut admin = server.admin();
        eventually("the overview equals the sum of the nodes' metrics", || {
            let overview = admin.get("overview");
            let decisions = &overview["decisions"];
            overview["live_nodes"] == NODES as u64
                && is_near(decisions["allowed"].as_u64().unwrap(), allowed)
                && is_near(decisions["denied"].as_u64().unwrap(), denied)
        });
        eventually("so does the history", || {
            let all = &admin.get("history?minutes=60")["all"];
            let (has_allowed, has_denied) = (sum(&all["allowed"]), sum(&all["denied"]));
            println!(
                "history: {has_allowed} of {allowed} allowed, {has_denied} of {denied} denied"
            );
            is_near(has_allowed, allowed) && is_near(has_denied, denied)
        });
        top_keys_are_the_true_ones(&mut admin, &sent);
    }
    a_node_can_be_chosen(&mut admin, fleet.nodes(), denied);
    tenants_see_their_own(&mut admin, &fleet);

    let name = fleet.nodes()[2].admin().get("node")["node"].as_str().unwrap().to_owned();
    fleet.nodes()[2].signal("KILL");
    eventually_within(GONE_WITHIN, "the node is shown as gone", || {
        let nodes = admin.get("nodes");
        let items = nodes["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["node"] == name.as_str()).unwrap();
        item["is_live"] == false && item["gone_since"].is_string() && items.len() == NODES
    });
    assert_eq!(admin.get("overview")["gone_nodes"], 1);
    // What it counted is not forgotten with it.
    let all = admin.get("history?minutes=60")["all"].clone();
    assert!(is_near(sum(&all["denied"]), denied), "{} of {denied}", sum(&all["denied"]));
    fleet.nodes_mut()[2].wait();
    // One that ends as it is asked to is listed at once, and says so.
    let name = fleet.nodes()[1].admin().get("node")["node"].as_str().unwrap().to_owned();
    fleet.nodes()[1].signal("TERM");
    fleet.nodes_mut()[1].wait();
    eventually("the node is shown as stopped", || {
        let nodes = admin.get("nodes");
        let items = nodes["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["node"] == name.as_str()).unwrap();
        item["is_live"] == false && item["is_stopped"] == true
    });
}

fn top_keys_are_the_true_ones(admin: &mut Admin, sent: &HashMap<String, u64>) {
    let mut refused: Vec<(u64, &String)> =
        sent.iter().map(|(user, count)| (count.saturating_sub(LIMIT), user)).collect();
    refused.sort_by_key(|(count, user)| (std::cmp::Reverse(*count), *user));
    let total: u64 = refused.iter().map(|(count, _)| count).sum();
    let mut found = Value::Null;
    eventually_within(HOURS_WITHIN, "all nodes have stored their keys", || {
        found = admin.get("top?window=hours&rule_id=per-user&limit=10");
        found["rules"][0]["refused"] == total
    });
    assert_eq!(found["nodes"], NODES as u64, "{found}");
    let top = found["rules"][0]["top_refused"].as_array().unwrap();
    assert_eq!(top.len(), 10);
    let tenth = refused[9].0;
    for key in top {
        let user = key["attributes"]["user_id"].as_str().unwrap();
        let count = sent[user].saturating_sub(LIMIT);
        assert!(count >= tenth, "{user} with {count} is not among the ten with {tenth}");
        let (least, most) = (key["at_least"].as_u64().unwrap(), key["count"].as_u64().unwrap());
        assert!(least <= count && count <= most, "{key}: {count}");
    }
}

fn a_node_can_be_chosen(admin: &mut Admin, nodes: &[Server], denied: u64) {
    let mut of_each = 0;
    for name in names(&admin.get("nodes")) {
        let all = admin.get(&format!("history?minutes=60&node={name}"))["all"].clone();
        of_each += sum(&all["denied"]);
        let overview = admin.get(&format!("overview?node={name}"));
        assert_eq!(overview["live_nodes"], 1, "{overview}");
        assert_eq!(admin.get(&format!("top?node={name}"))["nodes"], 1);
    }
    assert!(is_near(of_each, denied), "{of_each} of {denied}");
    for path in ["history?node=nobody", "top?node=nobody", "overview?node=nobody"] {
        assert_eq!(admin.call("GET", path, &[], None).status, 400, "{path}");
    }
    let item = admin.get("nodes")["items"][0].clone();
    for field in ["host", "version", "role"] {
        assert!(!item[field].as_str().unwrap().is_empty(), "{item}");
    }
    assert!(item["p99_ms"].is_number() && item["cpu"].is_number(), "{item}");
    assert_eq!(admin.get("nodes")["items"].as_array().unwrap().len(), nodes.len());
}

/// A tenant's admin sees the traffic of its tenant on all nodes, and nothing else.
fn tenants_see_their_own(admin: &mut Admin, fleet: &Fleet) {
    let (_, secret) = admin.token("tenant_admin", Some("even"));
    let mut tenant = Admin::with_token(fleet.nodes()[1].admin_addr(), &secret);
    let history = tenant.get("history?minutes=60&name=odd");
    assert!(history.get("all").is_none(), "{history}");
    let values = history["values"].as_array().unwrap();
    assert_eq!((values.len(), &values[0]["name"]), (1, &json!("even")));
    let total = sum(&values[0]["allowed"]) + sum(&values[0]["refused"]);
    assert!(is_near(total, (NODES * CLIENTS * REQUESTS / 2) as u64), "{total}");
    for path in ["nodes", "overview", "top"] {
        assert_eq!(tenant.call("GET", path, &[], None).status, 403, "{path}");
    }
}

/// Without Redis, the database that nodes share carries their figures.
#[test]
fn nodes_that_share_a_postgres_alone_are_one_installation() {
    let postgres = Postgres::start();
    let database = postgres.database();
    let nodes: Vec<Server> = (0..2).map(|_| node(&["--postgres", &database])).collect();
    for (server, times) in nodes.iter().zip([5, 7]) {
        let mut client = server.client();
        for _ in 0..times {
            client.allow(&json!({"userId": "ann", "tenantId": "acme"}));
        }
    }
    for server in &nodes {
        let mut admin = server.admin();
        eventually("both nodes are counted", || {
            let overview = admin.get("overview");
            overview["live_nodes"] == 2 && overview["decisions"]["allowed"] == 12
        });
        eventually("so are their tenants", || {
            admin.get("top")["tenants"][0] == json!({"key": "acme", "count": 12, "at_least": 12})
        });
    }
}

/// What an old, a newer or a hostile program leaves in Redis must not break the answers.
#[test]
fn figures_that_cannot_be_read_are_left_out() {
    let redis = Redis::start();
    let server = node(&["--redis", &redis.url()]);
    server.client().allow(&json!({"userId": "ann", "tenantId": "acme"}));
    let long = "x".repeat(1 << 20);
    let nested = "[".repeat(100_000);
    let huge = format!(
        "1:{{\"since\":1,\"sampled\":1,\"rules\":{{}},\"tenants\":{{\"total\":{0},\"floor\":{0},\"distinct\":1,\
         \"keys\":[[\"evil\",{0},{0}]]}},\"models\":{{\"total\":0,\"floor\":0,\"distinct\":0,\"keys\":[]}},\
         \"rules_left_out\":0}}",
        u64::MAX
    );
    for (name, figures) in [
        ("newer", "2:{}"),
        ("empty", ""),
        ("long", long.as_str()),
        ("nested", nested.as_str()),
        ("huge", huge.as_str()),
        ("not a name\n", "1:{}"),
    ] {
        let key = format!("tg:{{config}}:figures:{name}");
        redis.call(&["ZADD", "tg:{config}:figures", "99999999999999", name]).unwrap();
        let state = if name == "huge" { "1:7" } else { figures };
        redis.call(&["HSET", &key, "state", state]).unwrap();
        for field in ["top-minutes", "top-hours", "s0", "s1", "m0", "m1"] {
            redis.call(&["HSET", &key, field, figures]).unwrap();
        }
    }
    let mut admin = server.admin();
    eventually("this node's own figures are there", || {
        let history = admin.get("history?minutes=5");
        sum(&history["all"]["allowed"]) == 1
    });
    let top = admin.get("top");
    assert_eq!((&top["nodes"], &top["nodes_unread"]), (&json!(1), &json!(5)), "{top}");
    let acme = top["tenants"].as_array().unwrap().iter().find(|one| one["key"] == "acme");
    assert_eq!(acme.unwrap()["at_least"], 1, "{top}");
    assert_eq!(admin.get("overview")["live_nodes"], 1);
    assert_eq!(admin.get("nodes")["items"].as_array().unwrap().len(), 1);

    // Without Redis a node answers for itself, and says that it does.
    redis.kill();
    eventually_within(PATIENCE, "the answer says that others are missing", || {
        let overview = admin.get("overview");
        overview["problem"].is_string() && overview["decisions"]["allowed"] == 1
    });
}
