//! The durable queue of the gateway: no accepted request is lost, whichever process is killed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::Value;
use tollgate_e2e::{Client, Server, ServerBuilder, Upstream, eventually};
use tollgate_testkit::Redis;

/// One request an hour for each key, which is used up before a test begins: all others are queued.
const SLOW: &str = "
default: false
rules:
  - {rule_id: slow, applies_to: {endpoints: ['/jobs/{job}']}, key_by: [job], limit: 1, window: 1h,
     algorithm: token_bucket, action: queue}
";

/// What is queued drains at this rate.
const FAST: &str = "
default: false
rules:
  - {rule_id: fast, applies_to: {endpoints: ['/jobs/{job}']}, key_by: [job], limit: 100, window: 1s,
     algorithm: token_bucket, burst: 20, action: queue}
";

const CONFIG: &str = "queue: {lease_seconds: 1, max_attempts: 20}";

fn post(server: &Server, path: &str, body: &[u8]) -> tollgate_e2e::Response {
    let mut client = Client::connect(server.gateway_addr()).expect("a connection");
    client.request("POST", path, &[("content-type", "text/plain")], body)
}

fn ticket(server: &Server, url: &str) -> Value {
    Client::connect(server.gateway_addr()).expect("a connection").get(url).json()
}

fn gateway(upstream: &Upstream) -> ServerBuilder {
    ServerBuilder::default()
        .gateway()
        .rules(SLOW)
        .config(CONFIG)
        .arg("--upstream")
        .arg(&upstream.url())
}

/// Only a dead letter can be sent again; a request in another state is refused by a code of its own.
#[test]
fn a_ticket_in_another_state_is_refused_by_its_own_code() {
    let upstream = Upstream::start();
    let server = gateway(&upstream).start();
    post(&server, "/jobs/1", b"first");
    let queued = post(&server, "/jobs/1", b"second");
    assert_eq!(queued.status, 202, "{}", queued.text());
    let id = queued.json()["ticket"].as_str().expect("a ticket").to_owned();
    let mut admin = server.admin();
    let refused = admin.call("POST", &format!("queue/{id}/retry"), &[], None);
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert_eq!(refused.json()["code"], "TICKET_STATE");
    assert_eq!(admin.delete(&format!("queue/{id}")).0, 200, "it can be removed");
}

#[test]
fn a_thousand_requests_survive_five_kills_embedded() {
    let upstream = Upstream::start();
    killed_five_times(gateway(&upstream).start(), &upstream);
}

#[test]
fn a_thousand_requests_survive_five_kills_on_redis() {
    let redis = Redis::start();
    let upstream = Upstream::start();
    killed_five_times(gateway(&upstream).arg("--redis").arg(&redis.url()).start(), &upstream);
}

const KEYS: usize = 5;
const REQUESTS: usize = 1_000;

/// How often it is looked whether the queue is empty: a rule that has changed is noticed within half a minute.
const MAX_LOOKS: usize = 600;
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(100);

/// 1,000 requests are queued for five keys, and then sent on, while the server is killed five times.
fn killed_five_times(mut server: Server, upstream: &Upstream) {
    for key in 0..KEYS {
        assert_eq!(post(&server, &format!("/jobs/{key}"), b"first").status, 200);
    }
    // Stopped gently, it remembers that.
    server.restart();
    let mut tickets: Vec<(String, String)> = Vec::with_capacity(REQUESTS);
    for number in 0..REQUESTS {
        if number % 300 == 150 {
            server.crash_and_restart();
        }
        let (key, name) = (number % KEYS, format!("{number}"));
        let answer = post(&server, &format!("/jobs/{key}"), name.as_bytes());
        assert_eq!(answer.status, 202, "{name}: {}", answer.text());
        assert_eq!(answer.header("x-ratelimit-limit"), Some("1"), "{name}");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"), "{name}");
        let url = answer.header("location").expect("a ticket").to_owned();
        tickets.push((name, url));
    }
    let (name, url) = tickets.last().expect("the last");
    assert_eq!(ticket(&server, url)["state"], "queued", "{name}");
    assert_eq!(upstream.arrived().len(), KEYS, "nothing is sent before its time");
    server.write_rules(FAST);
    let arrive = |count: usize| {
        let has_arrived = (0..MAX_LOOKS).any(|_| {
            std::thread::sleep(LOOK_INTERVAL);
            upstream.arrived().len() >= count
        });
        assert!(has_arrived, "{} of {count} have arrived", upstream.arrived().len());
    };
    for part in 1..=2 {
        arrive(KEYS + part * REQUESTS / 3);
        server.crash_and_restart();
    }
    arrive(KEYS + REQUESTS);
    for (name, url) in &tickets {
        eventually(&format!("{name} is done"), || ticket(&server, url)["state"] == "done");
        let done = ticket(&server, url);
        assert_eq!(done["response"]["status"], 200, "{done}");
    }
    check_arrivals(upstream, &tickets);
}

/// Each arrived at least once; of a key, in the order in which they were accepted.
fn check_arrivals(upstream: &Upstream, tickets: &[(String, String)]) {
    let mut first: HashMap<String, usize> = HashMap::new();
    let mut twice = 0;
    for (place, request) in upstream.arrived().iter().enumerate().skip(KEYS) {
        assert!(request.header("idempotency-key").is_some());
        let ticket = request.header("x-tollgate-ticket").expect("all of them were queued");
        let name = String::from_utf8_lossy(&request.body).into_owned();
        let number: usize = name.parse().expect("a number");
        assert!(tickets[number].1.ends_with(ticket), "{name} has its own ticket");
        match first.entry(name) {
            Entry::Occupied(_) => twice += 1,
            Entry::Vacant(entry) => {
                entry.insert(place);
            }
        }
    }
    println!("{} queued, {twice} sent twice", tickets.len());
    for key in 0..KEYS {
        let places: Vec<usize> = tickets
            .iter()
            .skip(key)
            .step_by(KEYS)
            .map(|(name, _)| *first.get(name).unwrap_or_else(|| panic!("{name} never arrived")))
            .collect();
        assert!(places.is_sorted(), "key {key}: {places:?}");
    }
}

/// The doors close first, the queue after them.
#[test]
fn a_request_that_ends_while_the_server_stops_is_kept() {
    let upstream = Upstream::start();
    let mut server = gateway(&upstream).start();
    assert_eq!(post(&server, "/jobs/1", b"first").status, 200);
    let connect = || Client::connect(server.gateway_addr()).expect("a connection");
    let (mut busy, mut idle) = (connect(), connect());
    assert_eq!(idle.get("/other").status, 200);
    busy.write(b"POST /jobs/1 HTTP/1.1\r\nhost: t\r\ncontent-length: 6\r\n\r\nsec")
        .expect("a half");
    // Another connection is answered after the half was sent.
    assert_eq!(connect().get("/other").status, 200);
    server.signal("TERM");
    assert!(idle.is_closed_by_server(), "it stops");
    busy.write(b"ond").expect("the rest can be sent");
    let answer = busy.read_response().expect("an answer");
    assert_eq!(answer.status, 202, "{}", answer.text());
    let url = answer.header("location").expect("a ticket").to_owned();
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    server.start_again();
    assert_eq!(ticket(&server, &url)["state"], "queued");
    assert!(upstream.arrived().iter().all(|request| request.body != b"second"));
}

#[test]
fn operators_see_retry_and_drop() {
    let upstream = Upstream::start();
    upstream.answer_with(503);
    let config = "queue: {lease_seconds: 1, max_attempts: 1, max_depth_per_key: 3}";
    let rules = "default: false
rules: [{rule_id: jobs, applies_to: {endpoints: [/jobs]}, limit: 1, window: 1s, algorithm: token_bucket, action: queue}]";
    let server = ServerBuilder::default()
        .gateway()
        .rules(rules)
        .config(config)
        .arg("--upstream")
        .arg(&upstream.url())
        .start();
    assert_eq!(post(&server, "/jobs", b"0").status, 503, "the service's own answer");
    let queued = post(&server, "/jobs", b"1");
    assert_eq!(queued.status, 202, "{}", queued.text());
    let url = queued.header("location").expect("a ticket").to_owned();
    eventually("it becomes a dead letter", || ticket(&server, &url)["state"] == "failed");
    let run = |args: &[&str]| {
        let output = std::process::Command::new(tollgate_e2e::server::binary())
            .args(args)
            .env("TOLLGATE_URL", format!("http://{}", server.addr()))
            .env("TOLLGATE_TOKEN", tollgate_e2e::ADMIN_TOKEN)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let id = url.rsplit('/').next().expect("an id");
    let (code, listed, error) = run(&["queue", "list", "--state", "dead"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(listed.contains(id) && listed.contains("POST /jobs"), "{listed}");
    upstream.answer_with(200);
    assert_eq!(run(&["queue", "retry", id]).0, Some(0));
    eventually("it is sent", || ticket(&server, &url)["state"] == "done");
    assert_eq!(run(&["queue", "drop", id]).0, Some(0));
    assert_eq!(ticket(&server, &url)["error"]["code"], "NOT_FOUND");
    assert_eq!(run(&["queue", "drop", id]).0, Some(1), "it is gone");
    // A queue has an end.
    upstream.answer_with(503);
    let statuses: Vec<u16> = (0..8).map(|_| post(&server, "/jobs", b"x").status).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
}
