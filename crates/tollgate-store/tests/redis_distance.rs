//! A Redis that is far: strict decisions take one round trip however many are under way, and leases
//! are fetched within the time that the distance needs. Round trips are counted, not timed.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use std::time::Duration;

use redis_support::{Probe, options};
use tollgate_core::{Receipt, SECOND};
use tollgate_store::redis::{RedisOptions, RedisStore};
use tollgate_store::{Failure, LeaseAsk, SharedStore};
use tollgate_testkit::{FaultProxy, Redis};

/// How many decisions are under way at once.
const CONNECTIONS: u64 = 32;

/// Until the counter says so much, asked on a connection of its own.
async fn until_charged(direct: &RedisStore, probe: &Probe, charged: u64) {
    for _ in 0..1_000 {
        if probe.used(direct).await >= charged {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} of {charged} were charged", probe.used(direct).await);
}

/// No answer passes, and yet every decision reaches the server, one after another: none waits for the
/// round trip of another before its own.
#[tokio::test]
async fn strict_decisions_take_one_round_trip_each_under_concurrency() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    proxy.delay(Duration::from_millis(5));
    let far = RedisOptions { timeout: Duration::from_secs(30), ..options(&[proxy.url("redis")]) };
    let far = RedisStore::connect(far).await.unwrap();
    let direct = RedisStore::connect(options(&[server.url()])).await.unwrap();
    let probe = Probe::new("one round trip", 1_000);
    // The script is known to the server from here on.
    probe.pay(&far).await.unwrap();
    proxy.hold_replies();
    let mut decisions = Vec::new();
    for number in 1..=CONNECTIONS {
        let far = far.clone();
        decisions
            .push(tokio::spawn(async move { Probe::new("one round trip", 1_000).pay(&far).await }));
        until_charged(&direct, &probe, 1 + number).await;
    }
    assert!(decisions.iter().all(|decision| !decision.is_finished()), "no answer has passed");
    proxy.release_replies();
    for decision in decisions {
        assert!(decision.await.unwrap().unwrap().examination.admits());
    }
    assert_eq!(probe.used(&direct).await, 1 + CONNECTIONS);
}

/// Decisions that come together still go together: calls are counted.
#[tokio::test]
async fn a_far_server_gets_many_decisions_in_few_calls() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    proxy.delay(Duration::from_millis(5));
    let far = RedisOptions { timeout: Duration::from_secs(30), ..options(&[proxy.url("redis")]) };
    let far = RedisStore::connect(far).await.unwrap();
    let probe = Probe::new("together", 1_000);
    probe.pay(&far).await.unwrap();
    let calls = |store: &RedisStore| store.metrics().batches().count();
    let before = calls(&far);
    let decisions: Vec<_> = (0..200)
        .map(|_| {
            let far = far.clone();
            tokio::spawn(async move { Probe::new("together", 1_000).pay(&far).await })
        })
        .collect();
    for decision in decisions {
        assert!(decision.await.unwrap().unwrap().examination.admits());
    }
    let calls = calls(&far) - before;
    assert!(calls <= 40, "{calls} calls for 200 decisions that came together");
    assert_eq!(probe.used(&far).await, 201);
}

/// The default timeout is 20 ms, and the server is 60 ms away. A fetch that nobody waits for gets the
/// time that the distance needs; one that a request waits for does not.
#[tokio::test]
async fn a_fetch_in_the_background_has_the_time_that_the_distance_needs() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    let direct = RedisStore::connect(options(&[server.url()])).await.unwrap();
    let probe = Probe::new("background", 1_000);
    // The script is known to the server from here on, as it is once any node was near.
    let ask = LeaseAsk {
        counter: probe.counter(&["k"]),
        limit: &probe.limit,
        node: "near",
        want: 1,
        least: 0,
        returned: 0,
        receipt: Receipt::Nothing,
        return_id: 1,
        remember: SECOND,
        closes: &[],
        held: 0,
        pool: 100,
        ttl: 10 * SECOND,
    };
    assert_eq!(direct.lease(&ask).await.unwrap().granted, 1);
    proxy.delay(Duration::from_millis(30));
    let far = RedisOptions { urls: vec![proxy.url("redis")], ..RedisOptions::default() };
    let far = RedisStore::connect(far).await.unwrap();
    let ask = LeaseAsk { node: "far", want: 10, ..ask };
    assert_eq!(far.lease(&ask).await.unwrap().granted, 10);
    let waited_for = LeaseAsk { least: 1, ..ask };
    assert_eq!(far.lease(&waited_for).await.unwrap_err().failure, Failure::Timeout);
}
