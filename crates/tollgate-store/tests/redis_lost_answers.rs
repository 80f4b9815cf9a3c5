//! Decisions that run on a real server, and whose answers come too late or not at all: what was decided
//! without the store is not counted on it as well.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod leased_support;
mod redis_support;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leased_support::{COSTS, charge, counter, failing, limit};
use redis_support::{now, options};
use tollgate_core::{Algorithm, Ask, Limit, Nanos, SECOND};
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{Charge, Counter, Mode, OnFailure, Outcomes, Request, Role, Store};
use tollgate_testkit::{Cluster, FaultProxy, PATIENCE, Redis};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;

type Node = Resilient<RedisStore>;

async fn wait_for(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = now() + PATIENCE.as_nanos() as u64;
    while !condition().await {
        assert!(now() < deadline, "it never happened: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn node(url: String, timeout: Duration) -> Arc<Node> {
    let options = RedisOptions { timeout, ..options(&[url]) };
    let redis = RedisStore::connect(options).await.unwrap();
    Arc::new(Resilient::new(redis, ResilientOptions::new("a".to_owned())))
}

fn key<'a>(key: &'a [&'a str]) -> Counter<'a> {
    counter("rule", key, failing(OnFailure::Local))
}

/// What the server has counted, asked past the proxy.
async fn used(direct: &RedisStore, counter: Counter<'_>, limit: &Limit) -> u64 {
    let charges = [Charge { counter, limit, ask: Ask::cost(1), role: Role::Must }];
    let mut outcomes = Outcomes::new();
    let request = Request { charges: &charges, mode: Mode::Peek };
    direct.decide(&[request], now(), &mut outcomes).await.unwrap();
    outcomes[0].status.used
}

/// Requests that are decided at the same time, and how much of their costs was admitted. Their answers
/// from the server come after the timeout.
async fn in_time_of_trouble(node: &Arc<Node>, limit: &Limit, count: u64) -> u64 {
    let tasks: Vec<_> = (1..=count)
        .map(|cost| {
            let (node, limit) = (Arc::clone(node), limit.clone());
            tokio::spawn(async move {
                let outcome = charge(&*node, key(&["k"]), &limit, cost, now()).await.unwrap();
                if outcome.examination.admits() { cost } else { 0 }
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    admitted
}

/// The answers are delayed past the timeout: the calls ran, and nobody heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_whose_answer_is_late_is_counted_once() {
    const TIMEOUT: Duration = Duration::from_millis(800);
    let server = Redis::start();
    let direct = RedisStore::connect(options(&[server.url()])).await.unwrap();
    for algorithm in COSTS {
        server.call(&["FLUSHALL"]).unwrap().ok().unwrap();
        let proxy = FaultProxy::start(server.addr());
        let node = node(proxy.url("redis"), TIMEOUT).await;
        let limit = limit(algorithm, 100_000, LONG);
        let first = charge(&*node, key(&["k"]), &limit, 7, now()).await.unwrap();
        assert!(first.examination.admits());
        // It takes so long to get there that its answer is back only after the timeout.
        proxy.delay(TIMEOUT * 3 / 4);
        let mut admitted = 7 + in_time_of_trouble(&node, &limit, 20).await;
        assert!(node.degraded_since().is_some(), "{algorithm}: the answers were late");
        proxy.heal();
        wait_for("healed", async || node.heal(now()).await).await;
        admitted += in_time_of_trouble(&node, &limit, 5).await;
        assert_eq!(admitted, 7 + 210 + 15, "{algorithm}");
        let metrics = node.inner().metrics();
        wait_for("undone", async || {
            let counted = used(&direct, key(&["k"]), &limit).await;
            counted == admitted || metrics.lost_answers_forgotten() > 0
        })
        .await;
        let counted = used(&direct, key(&["k"]), &limit).await;
        // A machine that stands still for a second leaves some that cannot be undone: they are counted.
        assert!(
            counted == admitted || metrics.lost_answers_forgotten() > 0 && counted > admitted,
            "{algorithm}: {counted} counted, {admitted} admitted"
        );
    }
}

/// The answer is lost together with its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_whose_answer_is_lost_is_counted_once() {
    let server = Redis::start();
    let direct = RedisStore::connect(options(&[server.url()])).await.unwrap();
    let proxy = FaultProxy::start(server.addr());
    let node = node(proxy.url("redis"), Duration::from_secs(1)).await;
    let limit = limit(Algorithm::SlidingWindowLog, 100_000, LONG);
    let mut admitted = 0;
    for round in 1..=4 {
        // That of the decision, and those of the connections that are tried next.
        proxy.swallow_replies(4);
        let lost = charge(&*node, key(&["k"]), &limit, round, now()).await.unwrap();
        admitted += if lost.examination.admits() { round } else { 0 };
        proxy.heal();
        wait_for("healed", async || node.heal(now()).await).await;
    }
    assert_eq!(admitted, 10);
    let metrics = node.inner().metrics();
    wait_for("counted once", async || {
        let counted = used(&direct, key(&["k"]), &limit).await;
        counted == admitted || metrics.lost_answers_forgotten() > 0 && counted > admitted
    })
    .await;
}

/// A request that is given up after its answer was delivered, and before it looked at it.
#[tokio::test]
async fn an_answer_that_nobody_sees_is_refunded() {
    let server = Redis::start();
    let cluster = Cluster::start(3, 0);
    let one = RedisStore::connect(options(&[server.url()])).await.unwrap();
    let many = RedisOptions { kind: RedisKind::Cluster, ..options(&cluster.urls()) };
    let many = RedisStore::connect(many).await.unwrap();
    let limit = limit(Algorithm::TokenBucket, 100_000, LONG);
    // One slot; several requests of one call; several slots, which the cluster holds one by one.
    for (store, keys, calls) in [(&one, 1, 1_u64), (&one, 1, 3), (&many, 1, 1), (&many, 4, 1)] {
        let keys: Vec<[String; 1]> =
            (0..keys).map(|key| [format!("{keys} {calls} {key}")]).collect();
        let keys: Vec<[&str; 1]> = keys.iter().map(|key| [key[0].as_str()]).collect();
        let charges: Vec<Charge<'_>> = keys
            .iter()
            .map(|parts| Charge {
                counter: key(parts),
                limit: &limit,
                ask: Ask::cost(1),
                role: Role::Must,
            })
            .collect();
        let requests = vec![Request { charges: &charges, mode: Mode::Charge }; calls as usize];
        let mut outcomes = Outcomes::new();
        let mut decides = Box::pin(store.decide(&requests, now(), &mut outcomes));
        assert!(poll_fn(|cx| Poll::Ready(decides.as_mut().poll(cx).is_pending())).await);
        let all_used = async |expected| {
            for counter in &keys {
                if used(store, key(counter), &limit).await != expected {
                    return false;
                }
            }
            true
        };
        wait_for("charged", async || all_used(calls).await).await;
        drop(decides);
        wait_for("refunded", async || all_used(0).await).await;
    }
}

/// A caller that stops waiting is not charged, whether or not the call had run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_given_up_is_refunded() {
    let server = Redis::start();
    let store = RedisStore::connect(options(&[server.url()])).await.unwrap();
    let limit = Arc::new(limit(Algorithm::FixedWindow, 100_000, LONG));
    let mut kept = 0;
    for round in 0..200_u32 {
        let (asking, of) = (store.clone(), Arc::clone(&limit));
        let task = tokio::spawn(async move { charge(&asking, key(&["k"]), &of, 1, now()).await });
        for _ in 0..round % 20 {
            tokio::task::yield_now().await;
        }
        task.abort();
        kept += u64::from(task.await.is_ok());
    }
    wait_for("refunded", async || used(&store, key(&["k"]), &limit).await == kept).await;
}
