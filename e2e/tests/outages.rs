//! Redis slow, stopped, killed or cut off under load: every request is answered, by the policy of its
//! rules, within the bound; and everything is as before once Redis is back.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_e2e::{Answer, Fleet, ServerBuilder, eventually};
use tollgate_testkit::{FaultProxy, Redis};

const NODES: usize = 2;
const QUOTA: u64 = 100;

/// What is charged before the outage.
const BEFORE: u64 = 40;

const RULES: &str = "rules:
  - {rule_id: shared, identifier_type: user_id, limit: 100, window: 30d, algorithm: fixed_window, on_store_failure: local}
  - {rule_id: qos, identifier_type: composite, key_by: [client_type, user_id], limit: 1000000, window: 30d, algorithm: token_bucket, applies_to: {client_types: [INTERNAL, PARTNER, EXTERNAL]}, overrides: [shared]}
";

fn outage_seconds() -> u64 {
    std::env::var("TOLLGATE_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

struct Scene {
    redis: Redis,
    proxy: FaultProxy,
    fleet: Fleet,
}

impl Scene {
    fn new() -> Self {
        let redis = Redis::start();
        let proxy = FaultProxy::start(redis.addr());
        let fleet = Fleet::start(NODES, RULES, &["--redis", &proxy.url("redis")]);
        Self { redis, proxy, fleet }
    }

    fn wait_until_nodes_know_each_other(&self) {
        for node in self.fleet.nodes() {
            eventually("both nodes are known to be alive", || {
                let metrics = node.client().get("/metrics").text();
                metrics.contains("rate_limiter_nodes{store=\"default\"} 2")
            });
        }
    }

    fn peek(&self, node: usize, body: &Value) -> Value {
        self.fleet.ask(node, "/rate-limit/peek", body).json()
    }
}

/// Four kinds of callers take turns: one that has a quota, one that may always pass, two that may not
/// without the store.
fn request(_client: usize, request: usize) -> Value {
    match request % 4 {
        0 => json!({"userId": "ann"}),
        1 => json!({"userId": "bob", "clientType": "INTERNAL"}),
        2 => json!({"userId": "cid", "clientType": "EXTERNAL"}),
        _ => json!({"userId": "dee", "clientType": "PARTNER"}),
    }
}

fn outage(name: &str, begin: impl Fn(&Scene), end: impl Fn(&Scene)) {
    let scene = Scene::new();
    let ann = json!({"userId": "ann"});
    for request in 0..BEFORE {
        let node = usize::try_from(request).unwrap() % NODES;
        let answer = scene.fleet.ask(node, "/rate-limit/allow", &ann).json();
        assert_eq!(
            (&answer["allowed"], &answer["degraded"]),
            (&json!(true), &json!(false)),
            "{answer}"
        );
    }
    scene.wait_until_nodes_know_each_other();

    let load = scene.fleet.load(8, |client, number| {
        std::thread::sleep(Duration::from_millis(2));
        request(client, number)
    });
    begin(&scene);
    std::thread::sleep(Duration::from_secs(outage_seconds()));
    let during = load.stop();
    let degraded: Vec<&Answer> = during.iter().filter(|answer| answer.is_degraded()).collect();
    let worst = during.iter().map(|answer| answer.took).max().unwrap_or_default();
    let late = during.iter().filter(|answer| answer.took > Duration::from_millis(60)).count();
    println!(
        "{name}: {} answers, {} degraded, worst {worst:?}, {late} took longer than 60 ms",
        during.len(),
        degraded.len()
    );
    assert!(during.len() > 200, "requests go on: {}", during.len());
    assert!(degraded.len() * 10 > during.len() * 8, "{} of {}", degraded.len(), during.len());
    by_policy(&degraded);
    let admitted = |answers: &mut dyn Iterator<Item = &Answer>| {
        let allowed = answers.filter(|answer| answer.is_allowed() && of_rule(answer, "shared"));
        allowed.count() as u64
    };
    let during_outage = admitted(&mut degraded.iter().copied());
    let meanwhile = admitted(&mut during.iter().filter(|answer| !answer.is_degraded()));
    println!(
        "{name}: {BEFORE} admitted before, {meanwhile} meanwhile, {during_outage} degraded, of {QUOTA}"
    );
    assert!(during_outage > 0, "the fallback admits what is left");
    // What was admitted between the last word of Redis and its end, the other node may not know of.
    assert!(BEFORE + during_outage <= QUOTA, "usage before is carried into the fallback");

    end(&scene);
    let healed = Instant::now();
    for node in 0..NODES {
        eventually("decisions are made by Redis again", || {
            scene.fleet.ask(node, "/rate-limit/allow", &json!({"userId": "eve"})).json()["degraded"]
                == false
        });
    }
    println!("{name}: normal {:?} after the end", healed.elapsed());
    // What was admitted without Redis is reported back. A call that Redis executed although nobody
    // waited for its answer any more may have been counted beside.
    let counted = || scene.peek(0, &ann)["scopes"][0]["current"].as_u64().unwrap_or(0);
    eventually("what was admitted is reported back", || {
        counted() >= BEFORE + meanwhile + during_outage
    });
    std::thread::sleep(Duration::from_millis(600));
    let surplus = counted().saturating_sub(BEFORE + meanwhile + during_outage);
    println!("{name}: {surplus} counted above what was admitted");
    assert!(surplus <= 64, "at most what was on its way: {surplus}");
    // Each worker of a node has a connection of its own, and may have to notice for itself.
    eventually("who was refused without Redis is served again", || {
        let body = json!({"userId": "cid", "clientType": "EXTERNAL"});
        scene.fleet.ask(1, "/rate-limit/allow", &body).status == 200
    });
    for node in scene.fleet.nodes() {
        let log = node.log();
        let lines = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR"));
        assert!(lines.count() < 40, "a change is logged once, not per request:\n{log}");
    }
}

fn of_rule(answer: &Answer, rule: &str) -> bool {
    answer.body["scopes"][0]["ruleId"] == rule
}

fn by_policy(degraded: &[&Answer]) {
    let (mut open, mut closed) = (0, 0);
    for answer in degraded {
        if of_rule(answer, "shared") {
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            continue;
        }
        // Open ones pass, closed ones do not; which is which is seen by the status.
        match answer.status {
            200 => {
                assert!(answer.is_allowed(), "{:?}", answer.body);
                open += 1;
            }
            503 => {
                assert_eq!(answer.body["reason"], "STORE_UNAVAILABLE", "{:?}", answer.body);
                assert_eq!(answer.body["error"]["code"], "STORE_UNAVAILABLE", "{:?}", answer.body);
                closed += 1;
            }
            other => panic!("{other}: {:?}", answer.body),
        }
        assert!(answer.body["degradedReason"].is_string(), "{:?}", answer.body);
    }
    assert!(open > 0 && closed > open, "{open} passed open, {closed} closed");
}

#[test]
fn redis_stands_still() {
    let _alone = tollgate_e2e::alone();
    outage("SIGSTOP", |scene| scene.redis.pause(), |scene| scene.redis.resume());
}

#[test]
fn redis_is_slow() {
    let _alone = tollgate_e2e::alone();
    outage(
        "200 ms of delay",
        |scene| scene.proxy.delay(Duration::from_millis(200)),
        |scene| scene.proxy.delay(Duration::ZERO),
    );
}

#[test]
fn redis_is_cut_off() {
    let _alone = tollgate_e2e::alone();
    outage("cut", |scene| scene.proxy.cut(), |scene| scene.proxy.heal());
}

#[test]
fn redis_goes_silent() {
    let _alone = tollgate_e2e::alone();
    outage("half-open", |scene| scene.proxy.half_open(), |scene| scene.proxy.heal());
}

/// Killed, it forgets everything: a new start, and no request unanswered.
#[test]
fn redis_is_killed_and_comes_back_empty() {
    let _alone = tollgate_e2e::alone();
    let scene = Scene::new();
    scene.wait_until_nodes_know_each_other();
    for request in 0..10 {
        scene.fleet.ask(request % NODES, "/rate-limit/allow", &json!({"userId": "ann"}));
    }
    let load = scene.fleet.load(8, |client, number| {
        std::thread::sleep(Duration::from_millis(2));
        request(client, number)
    });
    scene.redis.kill();
    std::thread::sleep(Duration::from_secs(outage_seconds()));
    let during = load.stop();
    let degraded: Vec<&Answer> = during.iter().filter(|answer| answer.is_degraded()).collect();
    assert!(degraded.len() * 10 > during.len() * 8, "{} of {}", degraded.len(), during.len());
    by_policy(&degraded);
    let ann = |answer: &&Answer| answer.is_allowed() && of_rule(answer, "shared");
    let admitted = during.iter().filter(ann).count() as u64;
    assert!(admitted <= QUOTA - 10, "{admitted}");
    scene.redis.restart();
    for node in 0..NODES {
        eventually("decisions are made by Redis again", || {
            scene.fleet.ask(node, "/rate-limit/allow", &json!({"userId": "eve"})).json()["degraded"]
                == false
        });
    }
    let fallback =
        during.iter().filter(|answer| ann(answer) && answer.is_degraded()).count() as u64;
    eventually("what was admitted without it is reported back", || {
        scene.peek(1, &json!({"userId": "ann"}))["scopes"][0]["current"].as_u64() >= Some(fallback)
    });
}

/// A node starts without Redis, says so, and uses it when it comes.
#[test]
fn a_node_starts_without_redis() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    redis.kill();
    let server =
        ServerBuilder::default().rules(RULES).args(&["--redis".to_owned(), redis.url()]).start();
    let mut client = server.client();
    for count in 1..=3 {
        let answer = client.allow(&json!({"userId": "ann"}));
        assert_eq!(answer["degraded"], true, "{answer}");
        assert_eq!(answer["scopes"][0]["current"], count, "{answer}");
    }
    let refused =
        client.post("/rate-limit/allow", &json!({"userId": "c", "clientType": "PARTNER"}));
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(server.log().contains("redis"), "{}", server.log());
    redis.restart();
    eventually("it uses Redis", || client.allow(&json!({"userId": "eve"}))["degraded"] == false);
    eventually("what was admitted is reported", || {
        client.post("/rate-limit/peek", &json!({"userId": "ann"})).json()["scopes"][0]["current"]
            == 3
    });
}

/// Wrong settings of the store: a clear line in the log, the policy's answer, no crash.
#[test]
fn a_store_that_does_not_take_us() {
    let _alone = tollgate_e2e::alone();
    let guarded = Redis::builder().password("geheim-12345").start();
    let wrong = guarded.url().replace("geheim-12345", "falsch-98765");
    let cluster = tollgate_testkit::Cluster::start(3, 0);
    let single = Redis::start();
    let cases = [
        ("a wrong password", vec!["--redis".to_owned(), wrong], "password"),
        (
            "a cluster taken for one server",
            vec!["--redis".to_owned(), cluster.urls()[0].clone()],
            "cluster",
        ),
        (
            "one server taken for a cluster",
            vec!["--redis".to_owned(), single.url(), "--redis-cluster".to_owned()],
            "cluster",
        ),
    ];
    for (case, args, said) in cases {
        let server = ServerBuilder::default().rules(RULES).args(&args).start();
        let mut client = server.client();
        for user in 0..20 {
            let answer = client.allow(&json!({"userId": format!("user-{user}")}));
            assert_eq!(answer["degraded"], true, "{case}: {answer}");
        }
        let log = server.log();
        assert!(log.contains(said), "{case}:\n{log}");
        assert!(!log.contains("geheim") && !log.contains("falsch"), "{case}:\n{log}");
        let complaints = log.lines().filter(|line| line.contains(said)).count();
        assert!(complaints <= 6, "{case}: said {complaints} times:\n{log}");
    }
}

/// A key of ours that holds something else fails its own requests only, and heals when it is gone.
#[test]
fn a_foreign_value_under_our_key() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let server =
        ServerBuilder::default().rules(RULES).args(&["--redis".to_owned(), redis.url()]).start();
    let mut client = server.client();
    assert_eq!(client.allow(&json!({"userId": "ann"}))["degraded"], false);
    let key = redis.cli(&["--scan", "--pattern", "tg:*:shared:*ann*"]).trim().to_owned();
    redis.cli(&["DEL", &key]);
    redis.cli(&["LPUSH", &key, "not ours"]);
    let answer = client.allow(&json!({"userId": "ann"}));
    assert_eq!(answer["degraded"], true, "{answer}");
    assert_eq!(client.allow(&json!({"userId": "bob"}))["degraded"], false);
    assert_eq!(redis.cli(&["TYPE", &key]).trim(), "list", "it is left alone");
    redis.cli(&["DEL", &key]);
    eventually("it counts again", || client.allow(&json!({"userId": "ann"}))["degraded"] == false);
}

/// Outage after outage, with requests going on all the time: one limit, once.
#[test]
fn a_limit_is_handed_out_once_over_many_outages() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let fleet = Fleet::start(1, RULES, &["--redis", &proxy.url("redis")]);
    let ann = json!({"userId": "ann"});
    for _ in 0..2 {
        fleet.ask(0, "/rate-limit/allow", &ann);
    }
    let mut admitted = 2;
    for round in 0..4 {
        let load = fleet.load(4, |_, number| {
            std::thread::sleep(Duration::from_millis(2));
            // Others keep Redis in use, so that it is noticed at once when it is back.
            if number % 3 == 0 {
                json!({"userId": "ann"})
            } else {
                json!({"userId": "bob", "clientType": "INTERNAL"})
            }
        });
        std::thread::sleep(Duration::from_millis(200));
        match round % 2 {
            0 => redis.pause(),
            _ => proxy.cut(),
        }
        std::thread::sleep(Duration::from_millis(1_200));
        match round % 2 {
            0 => redis.resume(),
            _ => proxy.heal(),
        }
        eventually("Redis decides again", || {
            fleet.ask(0, "/rate-limit/allow", &json!({"userId": "eve"})).json()["degraded"] == false
        });
        std::thread::sleep(Duration::from_millis(700));
        let answers = load.stop();
        assert!(answers.iter().any(Answer::is_degraded), "there was an outage");
        let of_ann = |answer: &&Answer| answer.is_allowed() && of_rule(answer, "shared");
        admitted += answers.iter().filter(of_ann).count() as u64;
        println!("round {round}: {admitted} admitted in all, of {QUOTA}");
        assert!(admitted <= QUOTA, "round {round}: {admitted} of {QUOTA}");
    }
    let counted = || fleet.ask(0, "/rate-limit/peek", &ann).json()["scopes"][0]["current"].as_u64();
    eventually("all of it is counted", || counted() >= Some(admitted));
}
