//! Everything goes wrong at once: what is counted is what was used, no slot is lost, nothing is charged twice.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tollgate_e2e::{EventStream, Model, Server, ServerBuilder, eventually};
use tollgate_testkit::{Cluster, Redis};

use super::{PATH, WHOLE_ANSWERS, chat, earn_allowance, used, with};

/// What a request of these tests is charged before it is sent: nine for its prompt, twenty for its answer.
const ESTIMATE: u64 = 29;

/// Tokens of each of the answers by which clients may leave others.
const EARNING: u64 = 8_000;

/// Clients at the same time.
const CLIENTS: u64 = 32;

/// How many requests there are: fewer than `make soak` sends.
fn requests() -> u64 {
    let said = std::env::var("TOLLGATE_CHAOS_REQUESTS").ok().and_then(|count| count.parse().ok());
    said.unwrap_or(1_000)
}

const RULES: &str = "
default: false
rules:
  - {rule_id: tokens, identifier_type: global, unit: tokens, limit: 1000000000, window: 365d, algorithm: fixed_window, on_store_failure: closed}
  - {rule_id: requests, identifier_type: global, limit: 1000000000, window: 365d, algorithm: fixed_window, on_store_failure: closed}
  - {rule_id: slots, identifier_type: global, unit: concurrency, algorithm: concurrency, limit: 1000, slot_ttl: 2s, on_store_failure: closed}
";

fn start(model: &Model, store: &[String]) -> Server {
    let url = model.url();
    let config = format!(
        "gateway:
  pools: {{gpu: {{targets: [{{url: '{url}'}}]}}}}
  routes: [{{name: ai, kind: openai, pool: gpu}}]"
    );
    let builder = ServerBuilder::default().gateway().rules(RULES).config(&config);
    // A busy machine is no outage.
    builder.args(store).env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start()
}

/// What a request meets, by its number: a sixth of each.
fn fate(number: u64) -> (Value, Fate) {
    let is_stream = !number.is_multiple_of(3);
    let tokens = number % 17 + 1;
    let (stand_in, fate) = match number % 6 {
        0 | 1 => (json!({"tokens": tokens}), Fate::Whole),
        2 => (json!({"tokens": tokens, "silent": true}), Fate::Whole),
        3 => (json!({"status": 429}), Fate::Refused),
        4 => (json!({"tokens": 20, "cut_after": tokens}), Fate::Cut),
        _ => (json!({"tokens": 20, "hang_after": tokens}), Fate::Leaves(tokens)),
    };
    let body = with(chat(&stand_in), "stream", json!(is_stream || number % 6 > 3));
    (body, fate)
}

#[derive(Clone, Copy)]
enum Fate {
    /// It is answered, to the end.
    Whole,
    /// The upstream refuses it.
    Refused,
    /// The upstream breaks off.
    Cut,
    /// The client leaves after so many tokens.
    Leaves(u64),
}

/// Sends one request, and lets it meet its fate.
fn meet(server: &Server, number: u64) -> std::io::Result<()> {
    let (body, fate) = fate(number);
    let mut answer = EventStream::post(server.gateway_addr(), PATH, &[], &body)?;
    match fate {
        Fate::Whole => {
            let (text, error) = answer.rest();
            assert_eq!(answer.status, 200, "{text}");
            error.map_or(Ok(()), Err)
        }
        Fate::Refused => {
            assert_eq!(answer.status, 429);
            Ok(())
        }
        Fate::Cut => {
            let (text, error) = answer.rest();
            assert!(error.is_some(), "it looks whole: {text}");
            Ok(())
        }
        Fate::Leaves(tokens) => {
            for _ in 0..tokens {
                answer.event()?;
            }
            Ok(())
        }
    }
}

/// Sends all requests; gives how many saw an error that was not theirs after they had begun.
fn run(server: &Server, numbers: std::ops::Range<u64>) -> u64 {
    let (next, failed) = (AtomicU64::new(numbers.start), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        return;
                    }
                    // Who finds nobody there was charged nothing.
                    let refused = std::io::ErrorKind::ConnectionRefused;
                    if meet(server, number).is_err_and(|error| error.kind() != refused) {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    failed.load(Ordering::Relaxed)
}

fn conserved(model: &Model, server: &Server, count: u64) {
    earn_allowance(server, EARNING);
    assert_eq!(run(server, 0..count), 0, "{}", server.log());
    eventually("what is counted is what was used", || {
        used(server, "tokens") == model.ledger().tokens
    });
    eventually("no slot is held", || used(server, "slots") == 0 && model.active() == 0);
    assert_eq!(used(server, "requests"), count + WHOLE_ANSWERS);
    println!("{count} requests: {:?}, counted {}", model.ledger(), used(server, "tokens"));
}

#[test]
fn in_memory_what_is_counted_is_what_was_used() {
    let _alone = tollgate_e2e::alone();
    let model = Model::start();
    model.forget_arrivals();
    let server = start(&model, &[]);
    conserved(&model, &server, requests());
}

#[test]
fn in_redis_and_a_cluster_too() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    let cluster = Cluster::start(3, 0);
    let mut of_cluster = vec!["--redis-cluster".to_owned()];
    for url in cluster.urls() {
        of_cluster.extend(["--redis".to_owned(), url]);
    }
    for store in [vec!["--redis".to_owned(), redis.url()], of_cluster] {
        let model = Model::start();
        model.forget_arrivals();
        let server = start(&model, &store);
        conserved(&model, &server, requests() / 2);
    }
}

#[test]
fn a_gateway_that_is_killed_leaves_estimates_and_no_slots() {
    let _alone = tollgate_e2e::alone();
    let model = Model::start();
    model.forget_arrivals();
    let redis = Redis::start();
    let store = ["--redis".to_owned(), redis.url()];
    let mut server = start(&model, &store);
    earn_allowance(&server, EARNING);
    let (count, mut failed) = (requests() / 2, 0);
    for round in 0..2 {
        let numbers = round * count / 2..(round + 1) * count / 2;
        failed += std::thread::scope(|scope| {
            let begun = model.ledger().requests;
            let clients = scope.spawn(|| run(&server, numbers));
            eventually("requests are under way", || model.ledger().requests >= begun + count / 8);
            server.signal("KILL");
            clients.join().expect("all were sent")
        });
        server.wait();
        server.start_again();
        earn_allowance(&server, EARNING);
    }
    // Those that the kill met paid their estimate, what they used, or nothing, if it came before the charge.
    let (truth, counted) = (model.ledger().tokens, used(&server, "tokens"));
    println!("{failed} of {count} met a kill: used {truth}, counted {counted}");
    assert!(failed > 0, "no kill met anybody");
    // What those made that paid nothing is not known to be paid; what the others made is.
    assert!(counted <= truth + failed * ESTIMATE, "charged twice: {counted} for {truth}");
    assert!(counted + failed * ESTIMATE >= truth, "lost: {counted} for {truth}");
    assert!(used(&server, "requests") <= count + 3 * WHOLE_ANSWERS);
    eventually("slots of the dead come back by their lifetime", || used(&server, "slots") == 0);
    // And it serves as before.
    let before = (model.ledger().tokens, used(&server, "tokens"));
    assert_eq!(run(&server, 0..100), 0);
    eventually("what is counted is what was used", || {
        used(&server, "tokens") - before.1 == model.ledger().tokens - before.0
    });
}

/// A limit of tokens holds however many ask at once: reservations never go beyond it, and what is counted in the end is
/// what was used.
#[test]
fn two_hundred_at_once_do_not_get_past_a_limit() {
    let _alone = tollgate_e2e::alone();
    let model = Model::start();
    let url = model.url();
    let rules = "
default: false
rules:
  - {rule_id: tokens, identifier_type: global, unit: tokens, limit: 2900, window: 365d, algorithm: fixed_window}
";
    let config = format!(
        "gateway: {{pools: {{gpu: {{targets: [{{url: '{url}'}}]}}}}, routes: [{{name: ai, kind: openai, pool: gpu}}]}}"
    );
    let server = ServerBuilder::default().gateway().rules(rules).config(&config).start();
    let (passed, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| {
                let body = with(chat(&json!({"tokens": 5, "gated": true})), "stream", json!(true));
                let mut answer =
                    EventStream::post(server.gateway_addr(), PATH, &[], &body).expect("an answer");
                if answer.status == 200 {
                    passed.fetch_add(1, Ordering::Relaxed);
                    answer.rest();
                } else {
                    assert_eq!(answer.status, 429);
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // All reservations are made while nothing is settled.
        eventually("a hundred are under way, and the others refused", || {
            model.active() == 100 && refused.load(Ordering::Relaxed) == 100
        });
        assert_eq!(used(&server, "tokens"), 2_900);
        model.go_on(5);
    });
    assert_eq!(passed.load(Ordering::Relaxed), 100);
    eventually("it is settled", || used(&server, "tokens") == model.ledger().tokens);
    assert_eq!(model.ledger().tokens, 100 * 14);
}

/// The resident memory of a process, in bytes.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

#[test]
fn a_thousand_streams_in_flat_memory() {
    const STREAMS: usize = 1_000;
    let _alone = tollgate_e2e::alone();
    let model = Model::start();
    model.forget_arrivals();
    let server = start(&model, &[]);
    let base = memory(server.pid());
    let body = with(chat(&json!({"tokens": 60, "gated": true})), "stream", json!(true));
    let body = with(body, "max_tokens", json!(60));
    model.go_on(1);
    let mut streams: Vec<EventStream> = (0..STREAMS)
        .map(|_| EventStream::post(server.gateway_addr(), PATH, &[], &body).expect("an answer"))
        .collect();
    let mut round = |model: &Model| {
        for stream in &mut streams {
            stream.event().expect("an event");
        }
        model.go_on(1);
    };
    for _ in 0..10 {
        round(&model);
    }
    let early = memory(server.pid());
    for _ in 0..45 {
        round(&model);
    }
    let late = memory(server.pid());
    println!(
        "{STREAMS} streams: {} KiB before, {} after 10 tokens each, {} after 55: {} KiB a stream",
        base / 1024,
        early / 1024,
        late / 1024,
        (late - base) / 1024 / STREAMS as u64
    );
    assert!(late < early + early / 10, "it grows: {early} to {late}");
    drop(streams);
    eventually("all are settled", || used(&server, "slots") == 0);
}
