//! Reservations and slots: held by estimate, settled to the actual cost once, whichever node is asked or dies.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_client::{Actual, Check, Client as Tollgate, ClientError};
use tollgate_e2e::server::binary;
use tollgate_e2e::{ADMIN_TOKEN, Client, Fleet, Server, ServerBuilder, eventually};
use tollgate_testkit::{Cluster, Redis};

/// Three scopes and three units, whose counters are in several slots of a cluster. Windows do not end
/// while a test runs.
pub(crate) const RULES: &str = "
default: false
rules:
  - {rule_id: tokens, scope: tokens, identifier_type: tenant_id, unit: tokens, limit: 100000, window: 30d, algorithm: fixed_window}
  - {rule_id: log, scope: log, identifier_type: composite, key_by: [model_id], unit: tokens, limit: 100000, window: 30d, algorithm: sliding_window_log}
  - {rule_id: calls, scope: calls, identifier_type: user_id, limit: 1000000, window: 30d, algorithm: fixed_window}
  - {rule_id: slots, scope: slots, identifier_type: tenant_id, unit: concurrency, limit: 20000, slot_ttl: 1h}
";

/// Who reserve at the same time.
const CALLERS: u64 = 200;

/// Numbers that look random and are the same in every run.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % below
    }
}

fn asked(tokens: u64) -> Value {
    json!({"tenantId": "acme", "userId": "ann", "modelId": "gpt4", "tokens": tokens, "ttlMs": 600_000})
}

/// How much of every rule is used, by the rule's name.
pub(crate) fn used(server: &Server, rule: &str) -> u64 {
    let body = json!({"tenantId": "acme", "userId": "ann", "modelId": "gpt4"});
    let answer = server.client().post("/rate-limit/peek", &body).json();
    let scopes = answer["scopes"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let scope = scopes.iter().find(|scope| scope["ruleId"] == rule);
    scope.and_then(|scope| scope["current"].as_u64()).unwrap_or_else(|| panic!("{answer}"))
}

pub(crate) fn reserve(client: &mut Client, tokens: u64) -> Value {
    let response = client.post("/rate-limit/reserve", &asked(tokens));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

pub(crate) fn id_of(answer: &Value) -> String {
    answer["reservationId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// 200 callers reserve at the same time, and then settle at the same time, on another node if there is
/// one.
fn never_above_the_limit_and_exact_after(fleet: &Fleet) {
    let _alone = tollgate_e2e::alone();
    let addrs: Vec<SocketAddr> = fleet.nodes().iter().map(Server::addr).collect();
    let addr = |caller: u64, turn: u64| addrs[((caller + turn) % addrs.len() as u64) as usize];
    let estimate = |caller: u64| 300 + Draw(caller).next(900);
    let truth = |caller: u64| match caller % 5 {
        0 => estimate(caller),
        1 => estimate(caller) + Draw(caller + 7_000).next(500),
        2 => 0,
        _ => Draw(caller + 9_000).next(estimate(caller)),
    };
    let reserved: Vec<(u64, Option<String>)> = thread::scope(|scope| {
        let tasks: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let addr = addr(caller, 0);
                scope.spawn(move || {
                    let mut client = Client::connect(addr).expect("a connection");
                    let answer = reserve(&mut client, estimate(caller));
                    assert_eq!(answer["degraded"], false, "{answer}");
                    (caller, (answer["allowed"] == true).then(|| id_of(&answer)))
                })
            })
            .collect();
        tasks.into_iter().map(|task| task.join().expect("a caller")).collect()
    });
    let admitted: Vec<(u64, String)> =
        reserved.into_iter().filter_map(|(caller, id)| Some((caller, id?))).collect();
    let sum: u64 = admitted.iter().map(|(caller, _)| estimate(*caller)).sum();
    assert!(sum <= 100_000, "{sum} of 100000 were admitted");
    assert!((admitted.len() as u64) < CALLERS, "the limit was reached");
    let nodes = fleet.nodes();
    for (rule, expected) in [
        ("tokens", sum),
        ("log", sum),
        ("calls", admitted.len() as u64),
        ("slots", admitted.len() as u64),
    ] {
        assert_eq!(used(&nodes[0], rule), expected, "{rule}: what was admitted, and no more");
    }
    thread::scope(|scope| {
        for (caller, id) in &admitted {
            let addr = addr(*caller, 1);
            scope.spawn(move || {
                let mut client = Client::connect(addr).expect("a connection");
                let body = json!({"reservationId": id, "tokens": truth(*caller)});
                let response = client.post("/rate-limit/settle", &body);
                assert_eq!(response.status, 200, "{}", response.text());
                let (estimate, truth) = (estimate(*caller), truth(*caller));
                let expected = json!({
                    "settled": true,
                    "refundedTokens": estimate.saturating_sub(truth),
                    "extraTokens": truth.saturating_sub(estimate),
                    "refundedCost": 0,
                    "extraCost": 0,
                });
                assert_eq!(response.json(), expected);
            });
        }
    });
    let sum: u64 = admitted.iter().map(|(caller, _)| truth(*caller)).sum();
    let calls = admitted.len() as u64;
    for (rule, expected) in [("tokens", sum), ("log", sum), ("calls", calls), ("slots", 0)] {
        assert_eq!(used(&nodes[0], rule), expected, "{rule}: the truth, exactly");
    }
}

#[test]
fn in_memory_it_is_never_above_the_limit_and_exact_after() {
    never_above_the_limit_and_exact_after(&Fleet::start(1, RULES, &[]));
}

#[test]
fn in_redis_it_is_never_above_the_limit_and_exact_after() {
    let redis = Redis::start();
    never_above_the_limit_and_exact_after(&Fleet::patient(2, RULES, &["--redis", &redis.url()]));
}

#[test]
fn in_a_cluster_it_is_never_above_the_limit_and_exact_after() {
    let cluster = Cluster::start(3, 0);
    let urls = cluster.urls();
    let mut args = vec!["--redis-cluster"];
    for url in &urls {
        args.extend(["--redis", url]);
    }
    never_above_the_limit_and_exact_after(&Fleet::patient(2, RULES, &args));
}

fn end(client: &mut Client, what: &str, body: &Value) -> (u16, Value) {
    let response = client.post(&format!("/rate-limit/{what}"), body);
    (response.status, response.json())
}

#[test]
fn it_ends_once_and_one_way_on_any_node() {
    let redis = Redis::start();
    let mut fleet = Fleet::patient(2, RULES, &["--redis", &redis.url()]);
    let (mut first, mut second) = (fleet.nodes()[0].client(), fleet.nodes()[1].client());
    let settled = id_of(&reserve(&mut first, 1_000));
    let released = id_of(&reserve(&mut first, 500));
    let open = id_of(&reserve(&mut first, 70));
    fleet.nodes_mut()[0].signal("KILL");
    let truth = json!({"reservationId": settled, "tokens": 400});
    let (status, answer) = end(&mut second, "settle", &truth);
    assert_eq!((status, &answer["refundedTokens"]), (200, &json!(600)));
    // Again, with another truth: the first one counts.
    let again = end(&mut second, "settle", &json!({"reservationId": settled, "tokens": 9}));
    assert_eq!(again, (200, answer));
    let (status, answer) = end(&mut second, "release", &json!({"reservationId": settled}));
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("RESERVATION_SETTLED")));
    for _ in 0..2 {
        let (status, answer) = end(&mut second, "release", &json!({"reservationId": released}));
        let expected = json!({"released": true, "refundedTokens": 500, "refundedCost": 0});
        assert_eq!((status, answer), (200, expected));
    }
    let (status, answer) = end(&mut second, "settle", &json!({"reservationId": released}));
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("RESERVATION_RELEASED")));
    let (status, answer) = end(&mut second, "renew", &json!({"reservationId": released}));
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("RESERVATION_RELEASED")));
    let (status, answer) =
        end(&mut second, "renew", &json!({"reservationId": open, "ttlMs": 900_000}));
    assert_eq!((status, &answer["renewed"]), (200, &json!(true)));
    let node = &fleet.nodes()[1];
    assert_eq!((used(node, "tokens"), used(node, "log")), (470, 470));
    // Of the released one the call is given back, too.
    assert_eq!((used(node, "calls"), used(node, "slots")), (2, 1));

    let unknown = "0123456789abcdef0123456789abcdef";
    for what in ["settle", "release", "renew"] {
        let (status, answer) = end(&mut second, what, &json!({"reservationId": unknown}));
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("RESERVATION_NOT_FOUND")));
        for wrong in ["", "zz", &unknown[1..]] {
            let (status, answer) = end(&mut second, what, &json!({"reservationId": wrong}));
            assert_eq!((status, &answer["error"]["field"]), (400, &json!("reservationId")));
        }
    }
    let wrong = json!({"tenantId": "acme", "ttlMs": 0});
    let (status, answer) = end(&mut second, "reserve", &wrong);
    assert_eq!((status, &answer["error"]["field"]), (400, &json!("ttlMs")));
    let (status, answer) = end(&mut second, "allow", &json!({"tenantId": "acme", "ttlMs": 5}));
    assert_eq!((status, &answer["error"]["field"]), (400, &json!("ttlMs")));
}

/// What is never settled stays as estimated, in memory and in Redis; what is renewed goes on.
#[test]
fn what_expires_stays_as_estimated() {
    let redis = Redis::start();
    for args in [vec![], vec!["--redis".to_owned(), redis.url()]] {
        let builder = ServerBuilder::default().rules(RULES).args(&args);
        let server = builder.env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start();
        let mut client = server.client();
        let short = |tokens: u64| {
            let mut body = asked(tokens);
            body["ttlMs"] = json!(300);
            body
        };
        let expired = id_of(&end(&mut client, "reserve", &short(100)).1);
        let renewed = id_of(&end(&mut client, "reserve", &short(30)).1);
        let longer = json!({"reservationId": renewed, "ttlMs": 600_000});
        // On a busy machine it may have expired by now; then it is made anew.
        let (mut status, _) = end(&mut client, "renew", &longer);
        let mut lost = 0;
        let mut held = renewed;
        while status == 404 && lost < 20 {
            lost += 1;
            held = id_of(&end(&mut client, "reserve", &short(30)).1);
            let longer = json!({"reservationId": held, "ttlMs": 600_000});
            (status, _) = end(&mut client, "renew", &longer);
        }
        assert_eq!(status, 200);
        // A settlement before it expires would end it, so the test only watches for its end.
        let key = format!("tg:{{{expired}}}:reservation");
        eventually("it expires", || {
            if !args.is_empty() {
                return redis.cli(&["EXISTS", &key]).trim() == "0";
            }
            end(&mut client, "renew", &json!({"reservationId": "0".repeat(32)}));
            let metrics = client.get("/metrics").text();
            let line = format!("reservations_total{{state=\"expired\"}} {}", lost + 1);
            metrics.contains(&line)
        });
        let (status, _) = end(&mut client, "settle", &json!({"reservationId": expired}));
        assert_eq!(status, 404);
        let (status, _) = end(&mut client, "settle", &json!({"reservationId": held, "tokens": 10}));
        assert_eq!(status, 200, "what was renewed did not");
        assert_eq!(used(&server, "tokens"), 100 + 30 * lost + 10, "{args:?}");
    }
}

/// A request id makes a reservation once, on all nodes.
#[test]
fn a_repeated_reserve_is_the_same_reservation() {
    let redis = Redis::start();
    let fleet = Fleet::patient(2, RULES, &["--redis", &redis.url()]);
    let mut body = asked(250);
    body["requestId"] = json!("once");
    let first = fleet.ask(0, "/rate-limit/reserve", &body).json();
    for node in [0, 1, 1] {
        let again = fleet.ask(node, "/rate-limit/reserve", &body).json();
        for field in ["reservationId", "expiresAt", "allowed"] {
            assert_eq!(again[field], first[field], "{field} on node {node}");
        }
    }
    assert_eq!(used(&fleet.nodes()[0], "tokens"), 250);
    body.as_object_mut().expect("a body").remove("ttlMs");
    assert_eq!(fleet.ask(0, "/rate-limit/allow", &body).status, 409, "that is another request");
    let settled = json!({"reservationId": id_of(&first), "tokens": 1});
    assert_eq!(fleet.ask(1, "/rate-limit/settle", &settled).status, 200);
    assert_eq!(used(&fleet.nodes()[0], "tokens"), 1);
}

/// While Redis stands still nothing can be settled; afterwards it can, once.
#[test]
fn a_store_that_is_away_is_asked_again_later() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let builder = ServerBuilder::default().rules(RULES).arg("--redis").arg(&redis.url());
    let server = builder.env("TOLLGATE_REDIS_TIMEOUT_MS", "300").start();
    let mut client = server.client();
    let id = id_of(&reserve(&mut client, 1_000));
    redis.pause();
    let truth = json!({"reservationId": id, "tokens": 250});
    let (status, answer) = end(&mut client, "settle", &truth);
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("STORE_UNAVAILABLE")));
    redis.resume();
    eventually("Redis is back", || end(&mut client, "settle", &truth).0 == 200);
    assert_eq!(end(&mut client, "settle", &truth).1["refundedTokens"], 750);
    eventually("it is decided there again", || {
        let answer = client.post("/rate-limit/peek", &asked_plainly()).json();
        answer["degraded"] == false
    });
    assert_eq!(used(&server, "tokens"), 250);
}

fn asked_plainly() -> Value {
    json!({"tenantId": "acme", "userId": "ann", "modelId": "gpt4"})
}

/// The slot of an allowed request is renewed and given back by the id that allow answers.
#[test]
fn slots_of_allowed_requests_are_given_back() {
    let rules = "
default: false
rules:
  - {rule_id: one, identifier_type: user_id, unit: concurrency, limit: 1, slot_ttl: 1h}
";
    let redis = Redis::start();
    for args in [vec![], vec!["--redis".to_owned(), redis.url()]] {
        let builder = ServerBuilder::default().rules(rules).args(&args);
        let server = builder.env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start();
        let mut client = server.client();
        let body = json!({"userId": "ann"});
        for _ in 0..3 {
            let id = id_of(&client.allow(&body));
            assert_eq!(client.allow(&body)["allowed"], false);
            let (status, answer) = end(&mut client, "renew", &json!({"reservationId": id}));
            assert_eq!((status, &answer["renewed"]), (200, &json!(true)), "{answer}");
            let (status, answer) =
                end(&mut client, "settle", &json!({"reservationId": id, "tokens": 5}));
            assert_eq!((status, &answer["error"]["code"]), (409, &json!("ONLY_SLOTS")));
            for _ in 0..2 {
                let (status, answer) = end(&mut client, "release", &json!({"reservationId": id}));
                assert_eq!((status, &answer["released"]), (200, &json!(true)), "twice is harmless");
            }
        }
        let batch = json!({"requests": [body, body]});
        let answer = client.post("/rate-limit/allow/batch", &batch).json();
        assert_eq!(answer["decisions"][1]["allowed"], false, "{answer}");
        let id = id_of(&answer["decisions"][0]);
        assert_eq!(end(&mut client, "release", &json!({"reservationId": id})).0, 200);
        // One of a reservation ends with it, long before its slot_ttl.
        let short = json!({"userId": "ann", "ttlMs": 300});
        assert_eq!(client.post("/rate-limit/reserve", &short).json()["allowed"], true);
        eventually("its slot has ended with it", || client.allow(&body)["allowed"] == true);
    }
}

/// What is full is refused and not charged, and goes on when something has ended.
#[test]
fn reservations_in_memory_are_bounded() {
    let server =
        ServerBuilder::default().rules(RULES).env("TOLLGATE_MAX_RESERVATIONS", "2").start();
    let mut client = server.client();
    let first = id_of(&reserve(&mut client, 10));
    reserve(&mut client, 20);
    let (status, answer) = end(&mut client, "reserve", &asked(40));
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("RESERVATIONS_FULL")));
    assert_eq!((used(&server, "tokens"), used(&server, "calls")), (30, 2), "nothing was charged");
    assert_eq!(end(&mut client, "settle", &json!({"reservationId": first, "tokens": 11})).0, 200);
    reserve(&mut client, 40);
    assert_eq!(used(&server, "tokens"), 71);
    let metrics = client.get("/metrics").text();
    for line in [
        "rate_limiter_reservations_total{state=\"reserved\"} 3",
        "rate_limiter_reservations_total{state=\"settled\"} 1",
        "rate_limiter_reserved_tokens_total{} 70",
        "rate_limiter_extra_tokens_total{} 1",
        "rate_limiter_refunded_tokens_total{} 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

/// An API key is not stored in Redis, neither in keys nor in records.
#[test]
fn api_keys_are_not_revealed() {
    let rules = "
default: false
rules:
  - {rule_id: per-key, identifier_type: api_key, unit: tokens, limit: 1000, window: 30d, algorithm: fixed_window}
";
    let redis = Redis::start();
    let fleet = Fleet::patient(2, rules, &["--redis", &redis.url()]);
    let key = "sk-live-do-not-tell";
    let body = json!({"apiKey": key, "tokens": 100});
    let id = id_of(&fleet.ask(0, "/rate-limit/reserve", &body).json());
    let keys = redis.cli(&["--scan"]);
    assert!(keys.contains(&format!("{{{id}}}:reservation")), "{keys}");
    for name in keys.lines() {
        let value = redis.cli(&["GET", name]);
        assert!(!name.contains(key) && !value.contains(key), "{name} reveals it: {value}");
    }
    let settled = json!({"reservationId": id, "tokens": 40});
    assert_eq!(fleet.ask(1, "/rate-limit/settle", &settled).status, 200);
    let answer = fleet.ask(1, "/rate-limit/peek", &json!({"apiKey": key})).json();
    assert_eq!(answer["scopes"][0]["current"], 40, "another node finds the counter");
}

#[tokio::test]
async fn over_grpc_it_is_the_same() {
    let server = Server::with_rules(RULES);
    for tollgate in [
        Tollgate::grpc(&format!("http://{}", server.grpc_addr())).expect("a client"),
        Tollgate::http(&format!("http://{}", server.addr())).expect("a client"),
    ] {
        let check = Check::new().tenant_id("acme").user_id("ann").model_id("gpt4").tokens(1_000);
        let ttl = Some(Duration::from_secs(600));
        let reserved = tollgate.reserve(&check, ttl).await.expect("an answer");
        assert!(reserved.decision.allowed && reserved.expires_at.is_some(), "{reserved:?}");
        let id = reserved.decision.reservation_id.expect("a reservation");
        let renewed = tollgate.renew(&id, Some(Duration::from_secs(1_200))).await.expect("held");
        assert!(renewed.renewed && renewed.expires_at > reserved.expires_at);
        let actual = Actual::tokens(1_250);
        let settled = tollgate.settle(&id, actual.clone()).await.expect("it settles");
        assert_eq!((settled.refunded_tokens, settled.extra_tokens), (0, 250));
        assert_eq!(tollgate.settle(&id, actual).await.expect("again"), settled);
        let rejected = |result: Result<_, ClientError>| match result {
            Err(ClientError::Rejected { code, .. }) => code,
            other => panic!("{other:?}"),
        };
        let code = rejected(tollgate.release(&id).await);
        assert!(["RESERVATION_SETTLED", "RESERVATION_ENDED"].contains(&code.as_str()), "{code}");
        let unknown = tollgate.release("00000000000000000000000000000001").await;
        assert_eq!(rejected(unknown), "RESERVATION_NOT_FOUND");
        let reserved = tollgate.reserve(&check, None).await.expect("an answer");
        let id = reserved.decision.reservation_id.expect("a reservation");
        assert_eq!(tollgate.release(&id).await.expect("released").refunded_tokens, 1_000);
    }
    assert_eq!((used(&server, "tokens"), used(&server, "calls")), (2_500, 2));
    assert_eq!(used(&server, "slots"), 0);
}

/// A command with its output as JSON, and its exit code.
fn tollgate(server: &Server, args: &[&str]) -> (i32, Value) {
    let url = format!("http://{}", server.addr());
    let mut command = std::process::Command::new(binary());
    command.args(args).env("TOLLGATE_URL", url).env("TOLLGATE_TOKEN", ADMIN_TOKEN);
    let output = command.output().expect("it runs");
    let printed = serde_json::from_slice(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("an exit code"), printed.unwrap_or(Value::String(said)))
}

#[test]
fn on_the_command_line_it_is_the_same_and_slots_are_listed() {
    let rules = "
default: false
rules:
  - {rule_id: tokens, scope: tokens, identifier_type: user_id, unit: tokens, limit: 1000, window: 30d, algorithm: fixed_window}
  - {rule_id: gpu, scope: gpu, identifier_type: user_id, unit: concurrency, limit: 2, slot_ttl: 1h}
  - {rule_id: keys, scope: keys, identifier_type: api_key, unit: concurrency, limit: 3, slot_ttl: 1h}
";
    let redis = Redis::start();
    for args in [vec![], vec!["--redis".to_owned(), redis.url()]] {
        let builder = ServerBuilder::default().rules(rules).args(&args);
        let server = builder.env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start();
        assert_eq!(tollgate(&server, &["slots", "list", "--json"]).1["items"], json!([]));
        let reserve = ["reserve", "--user", "ann", "--tokens", "600", "--ttl-ms", "600000"];
        let (code, answer) = tollgate(&server, &reserve);
        assert_eq!((code, &answer["allowed"]), (0, &json!(true)), "{answer}");
        let id = id_of(&answer);
        let (code, refused) = tollgate(&server, &reserve);
        assert_eq!((code, &refused["allowed"]), (1, &json!(false)), "{refused}");
        let by_key = server.client().allow(&json!({"apiKey": "sk-do-not-tell"}));
        assert_eq!(by_key["allowed"], true);

        let (code, listed) = tollgate(&server, &["slots", "list", "--json"]);
        assert_eq!(code, 0, "{listed}");
        assert!(!listed.to_string().contains("sk-do-not-tell"), "{listed}");
        assert!(
            !listed.to_string().contains(&id),
            "a caller with the id could release it: {listed}"
        );
        assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
        let (_, listed) = tollgate(&server, &["slots", "list", "--rule", "gpu", "--json"]);
        let gpu = &listed["items"][0];
        assert_eq!((&gpu["rule_id"], &gpu["key"]), (&json!("gpu"), &json!(["ann"])), "{listed}");
        assert_eq!((&gpu["held"], &gpu["limit"]), (&json!(1), &json!(2)));
        assert!(id.starts_with(gpu["slots"][0]["id"].as_str().expect("an id")), "{listed}");

        let (code, renewed) = tollgate(&server, &["renew", &id, "--ttl-ms", "700000"]);
        assert_eq!((code, &renewed["renewed"]), (0, &json!(true)), "{renewed}");
        let (code, settled) = tollgate(&server, &["settle", &id, "--tokens", "650"]);
        assert_eq!((code, &settled["extraTokens"]), (0, &json!(50)), "{settled}");
        let (code, late) = tollgate(&server, &["release", &id]);
        assert_eq!(code, 1, "{late}");
        assert!(late.as_str().is_some_and(|said| said.contains("was settled before")), "{late}");
        let (_, listed) = tollgate(&server, &["slots", "list", "--rule", "gpu", "--json"]);
        assert_eq!(listed["items"], json!([]), "its slot was given back");
        assert_eq!(tollgate(&server, &["settle", "nonsense"]).0, 2, "wrong usage");
    }
}

/// Clients without a tenant and one tenant leave room for the next tenant.
#[test]
fn reservations_of_two_parties_leave_room_for_a_third() {
    let server = ServerBuilder::default()
        .rules("default: false\nrules: [{rule_id: all, limit: 1000, window: 365d, algorithm: fixed_window}]")
        .env("TOLLGATE_MAX_RESERVATIONS", "100")
        .start();
    let mut client = server.client();
    let mut fill = |name: &str, names: usize| {
        let body = |n: usize| json!({(name): format!("loud{}", n % names), "ttlMs": 600_000});
        let reserve = |n: &usize| client.post("/rate-limit/reserve", &body(*n)).status == 200;
        (0..200).filter(reserve).count()
    };
    assert_eq!(fill("userId", 200), 75);
    assert!(fill("tenantId", 1) > 0);
    let good = json!({"tenantId": "good", "ttlMs": 600_000});
    assert_eq!(client.post("/rate-limit/reserve", &good).status, 200);
}

/// A tenant has a share of the reservations, and so has everybody else.
#[test]
fn one_tenant_does_not_take_all_reservations() {
    let server = ServerBuilder::default()
        .rules("default: false\nrules: [{rule_id: all, limit: 1000, window: 365d, algorithm: fixed_window}]")
        .env("TOLLGATE_MAX_RESERVATIONS", "80")
        .start();
    let mut client = server.client();
    let mut reserve = |body: &Value| client.post("/rate-limit/reserve", body);
    let mut ids = Vec::new();
    let full = loop {
        let answer = reserve(&json!({"tenantId": "loud", "ttlMs": 600_000}));
        if answer.status != 200 {
            break answer;
        }
        ids.push(answer.json()["reservationId"].as_str().unwrap().to_owned());
        assert!(ids.len() <= 80);
    };
    assert_eq!((full.status, &full.json()["error"]["code"]), (503, &json!("RESERVATIONS_FULL")));
    assert_eq!(ids.len(), 27, "a third");
    assert_eq!(reserve(&json!({"tenantId": "quiet"})).status, 200);
    assert_eq!(reserve(&json!({"userId": "ann"})).status, 200);
    // What ends makes room.
    for id in &ids[..4] {
        let released = server.client().post("/rate-limit/release", &json!({"reservationId": id}));
        assert_eq!(released.status, 200, "{}", released.text());
    }
    assert_eq!(reserve(&json!({"tenantId": "loud"})).status, 200);
}

/// Slots of allowed requests are records as reservations are, and have the same shares.
#[test]
fn slots_of_one_tenant_do_not_take_all_reservations() {
    let rules = "default: false\nrules: [{rule_id: s, identifier_type: user_id, unit: concurrency, limit: 5, slot_ttl: 1h}]";
    let server =
        ServerBuilder::default().rules(rules).env("TOLLGATE_MAX_RESERVATIONS", "80").start();
    let mut client = server.client();
    let mut allow = |tenant: &str, user: usize| {
        let body = json!({"tenantId": tenant, "userId": user.to_string()});
        client.post("/rate-limit/allow", &body)
    };
    let mut ids = Vec::new();
    let full = (0..=80).find_map(|user| {
        let answer = allow("loud", user);
        if answer.status == 200 {
            ids.push(answer.json()["reservationId"].as_str().expect("a slot").to_owned());
        }
        (answer.status != 200).then_some(answer)
    });
    let full = full.expect("a bound");
    assert_eq!((full.status, &full.json()["error"]["code"]), (503, &json!("RESERVATIONS_FULL")));
    assert_eq!(ids.len(), 27, "a third");
    assert_eq!(allow("quiet", 1_000).status, 200);
    // The refused one has no slot, and what ends makes room.
    for id in &ids[..4] {
        let released = server.client().post("/rate-limit/release", &json!({"reservationId": id}));
        assert_eq!(released.status, 200, "{}", released.text());
    }
    assert_eq!(allow("loud", 2_000).status, 200);
}

/// With Redis, slots have the same shares, and what another node ends makes room.
#[test]
fn slots_of_one_tenant_do_not_take_all_reservations_on_redis() {
    let redis = Redis::start();
    let rules = "default: false\nrules:
- {rule_id: s, identifier_type: user_id, unit: concurrency, limit: 5, slot_ttl: 1h}
- {rule_id: b, identifier_type: tenant_id, limit: 1000, window: 1d, algorithm: token_bucket}";
    let start = || {
        let builder = ServerBuilder::default().rules(rules).arg("--redis").arg(&redis.url());
        builder
            .env("TOLLGATE_MAX_RESERVATIONS", "80")
            .env("TOLLGATE_REDIS_TIMEOUT_MS", "5000")
            .start()
    };
    let (opens, ends) = (start(), start());
    let body = |tenant: &str, user: usize| json!({"tenantId": tenant, "userId": user.to_string()});
    let allow =
        |tenant: &str, user: usize| opens.client().post("/rate-limit/allow", &body(tenant, user));
    let mut ids = Vec::new();
    for user in 0..20 {
        let answer = allow("loud", user);
        assert_eq!(answer.status, 200, "{}", answer.text());
        ids.push(answer.json()["reservationId"].as_str().expect("a slot").to_owned());
    }
    // The rest of the share in one call: the requests beyond it fail, and are not charged.
    let requests: Vec<Value> = (20..60).map(|user| body("loud", user)).collect();
    let batch =
        opens.client().post("/rate-limit/allow/batch", &json!({ "requests": requests })).json();
    let answers = batch["decisions"].as_array().unwrap_or_else(|| panic!("{batch}"));
    let held = |answer: &&Value| answer["reservationId"].is_string();
    assert_eq!((answers.len(), answers.iter().filter(held).count()), (40, 7), "{batch}");
    assert_eq!(answers[39]["error"]["code"], json!("RESERVATIONS_FULL"), "{batch}");
    let full = allow("loud", 100);
    assert_eq!((full.status, &full.json()["error"]["code"]), (503, &json!("RESERVATIONS_FULL")));
    let peeked = opens.client().post("/rate-limit/peek", &body("loud", 100)).json();
    let charged = |scope: &Value| (scope["ruleId"].clone(), scope["current"].clone());
    let scopes: Vec<_> = peeked["scopes"].as_array().unwrap().iter().map(charged).collect();
    assert!(scopes.contains(&(json!("b"), json!(27))), "a third is charged: {scopes:?}");
    assert!(scopes.contains(&(json!("s"), json!(0))), "{scopes:?}");
    assert_eq!(allow("quiet", 1_000).status, 200);
    for id in &ids[..4] {
        let released = ends.client().post("/rate-limit/release", &json!({"reservationId": id}));
        assert_eq!(released.status, 200, "{}", released.text());
    }
    // A call that finds no room looks up 16 of the 27.
    assert!((0..2).any(|_| allow("loud", 2_000).status == 200));
}

/// A request that finds no room for the record of its slot is refused before it is charged.
#[test]
fn a_slot_without_room_for_its_record_charges_nothing() {
    let rules = "default: false\nrules:
- {rule_id: s, identifier_type: user_id, unit: concurrency, limit: 100, slot_ttl: 1h}
- {rule_id: b, identifier_type: user_id, limit: 1000, window: 1d, algorithm: token_bucket}
- {rule_id: f, identifier_type: user_id, limit: 1000, window: 365d, algorithm: fixed_window}";
    let server =
        ServerBuilder::default().rules(rules).env("TOLLGATE_MAX_RESERVATIONS", "8").start();
    let body = json!({"userId": "ann"});
    let statuses: Vec<u16> =
        (0..50).map(|_| server.client().post("/rate-limit/allow", &body).status).collect();
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert!(admitted < 50 && statuses.iter().all(|status| [200, 503].contains(status)));
    let peeked = server.client().post("/rate-limit/peek", &body).json();
    for scope in peeked["scopes"].as_array().unwrap() {
        assert_eq!(scope["current"], json!(admitted), "{scope}");
    }
}

/// Any node may end a reservation: the one that opened it must not count it until it would have expired.
#[test]
fn what_another_node_ends_makes_room() {
    let redis = Redis::start();
    let rules = "default: false\nrules: [{rule_id: all, limit: 100000, window: 365d, algorithm: fixed_window}]";
    let start = || {
        let builder = ServerBuilder::default().rules(rules).arg("--redis").arg(&redis.url());
        builder
            .env("TOLLGATE_MAX_RESERVATIONS", "80")
            .env("TOLLGATE_REDIS_TIMEOUT_MS", "5000")
            .start()
    };
    let (opens, ends) = (start(), start());
    for number in 0..200 {
        let body = json!({"tenantId": "acme", "ttlMs": 86_400_000});
        let reserved = opens.client().post("/rate-limit/reserve", &body);
        assert_eq!(reserved.status, 200, "{number}: {}", reserved.text());
        let settle = json!({"reservationId": reserved.json()["reservationId"], "cost": 1});
        let settled = ends.client().post("/rate-limit/settle", &settle);
        assert_eq!(settled.status, 200, "{number}: {}", settled.text());
    }
}

#[test]
fn a_repeated_reservation_is_answered_when_the_share_is_full() {
    let server = ServerBuilder::default()
        .rules("default: false\nrules: [{rule_id: all, limit: 1000, window: 365d, algorithm: fixed_window}]")
        .env("TOLLGATE_MAX_RESERVATIONS", "40")
        .start();
    let reserve = |body: &Value| server.client().post("/rate-limit/reserve", body);
    let mut last = json!(null);
    for number in 0..40 {
        let body = json!({"tenantId": "acme", "ttlMs": 600_000, "requestId": format!("r{number}")});
        let answer = reserve(&body);
        if answer.status != 200 {
            break;
        }
        last = json!({"body": body, "answer": answer.json()});
    }
    let full = reserve(&json!({"tenantId": "acme", "requestId": "another"}));
    assert_eq!(full.status, 503, "{}", full.text());
    let again = reserve(&last["body"]);
    assert_eq!((again.status, &again.json()), (200, &last["answer"]));
    let wrong = reserve(&json!({"tenantId": "acme", "cost": -1}));
    assert_eq!(wrong.status, 400, "{}", wrong.text());
}
