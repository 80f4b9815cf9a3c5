//! Real servers that go away: cut off by the network, or stopped in their tracks. Every decision is
//! answered, and what is admitted meanwhile is bounded and reported.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

mod leased_support;
mod redis_support;

use std::time::Duration;

use leased_support::{COSTS, counter, failing, limit};
use redis_support::{now, options};
use tollgate_core::{Algorithm, Ask, Limit, Nanos, Outcome, SECOND};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{
    Charge, Consistency, Decided, Fallback, Home, Mode, OnFailure, Outcomes, Request, Role, Store,
};
use tollgate_testkit::{Cluster, FaultProxy, PATIENCE, Redis};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;

type Node = Resilient<Leased<RedisStore>>;

async fn node(url: &str, name: &str, timeout: Duration) -> Node {
    let options = RedisOptions { timeout, ..options(&[url.to_owned()]) };
    let redis = RedisStore::connect(options).await.expect("sound options");
    let leased = Leased::new(redis, LeaseOptions::new(name.to_owned()));
    Resilient::new(leased, ResilientOptions::new(name.to_owned()))
}

async fn nodes(url: &str, count: usize, timeout: Duration) -> Vec<Node> {
    let mut nodes = Vec::new();
    for number in 0..count {
        nodes.push(node(url, &format!("node {number}"), timeout).await);
    }
    for _ in 0..2 {
        for node in &nodes {
            wait_for(async || node.heartbeat(now()).await.is_ok()).await;
        }
    }
    for node in &nodes {
        assert_eq!(node.membership().nodes as usize, count);
    }
    nodes
}

/// Waits until something holds; panics if it never does.
async fn wait_for(condition: impl AsyncFn() -> bool) {
    let deadline = now() + PATIENCE.as_nanos() as u64;
    while !condition().await {
        assert!(now() < deadline, "it never happened");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn decide(
    store: &impl Store,
    rule: &str,
    home: Home,
    limit: &Limit,
    mode: Mode,
) -> (Decided, Outcome) {
    let key = counter(rule, &["k"], home);
    let charges = [Charge { counter: key, limit, ask: Ask::cost(1), role: Role::Must }];
    let mut outcomes = Outcomes::new();
    let decided = store.decide(&[Request { charges: &charges, mode }], now(), &mut outcomes).await;
    (decided.expect("it always answers"), outcomes[0])
}

/// Three nodes lose their server and admit what is left between them; when it is available again,
/// they report what they admitted.
async fn outage(home: Home, algorithm: Algorithm, url: &str, lose: impl Fn(), find: impl Fn()) {
    let (quota, rule) = (100, algorithm.name());
    let limit = limit(algorithm, quota, LONG);
    let nodes = nodes(url, 3, Duration::from_millis(100)).await;
    let mut admitted = 0;
    for number in 0..30 {
        let (decided, outcome) = decide(&nodes[number % 3], rule, home, &limit, Mode::Charge).await;
        assert!(outcome.examination.admits() && decided.degraded.is_none(), "{algorithm}");
        admitted += 1;
    }
    for node in &nodes {
        node.inner().return_all(now()).await;
    }
    // All of them know how it stands.
    for node in &nodes {
        decide(node, rule, home, &limit, Mode::Peek).await;
    }
    lose();
    let mut local = 0;
    for node in &nodes {
        for _ in 0..60 {
            let (decided, outcome) = decide(node, rule, home, &limit, Mode::Charge).await;
            let degraded = decided.degraded.expect("the store is away");
            assert_eq!(degraded.fallback, Fallback::Local { nodes: 3 }, "{algorithm}");
            local += u64::from(outcome.examination.admits());
        }
        assert!(node.degraded_since().is_some(), "{algorithm}");
        assert!(!node.heal(now()).await, "{algorithm}");
    }
    admitted += local;
    assert!(admitted <= quota && admitted >= quota - 3, "{algorithm}: {admitted} of {quota}");
    find();
    for node in &nodes {
        wait_for(async || node.heal(now()).await).await;
        assert_eq!(node.waiting_reports(), 0, "{algorithm}");
        assert_eq!(node.degraded_since(), None, "{algorithm}");
    }
    wait_for(async || {
        for node in &nodes {
            node.heal(now()).await;
        }
        !nodes.iter().any(Node::is_handing_over)
    })
    .await;
    let (decided, outcome) = decide(&nodes[0], rule, home, &limit, Mode::Peek).await;
    assert!(decided.degraded.is_none(), "{algorithm}");
    // A charge whose answer was lost may be counted, and then counted again as a local one.
    let used = outcome.status.used;
    assert!(used >= admitted, "{algorithm}: {used} of {admitted} were reported");
    assert!(used <= admitted + 3 * 10, "{algorithm}: {used} of {admitted} were reported");
    let reported: u64 = nodes
        .iter()
        .map(|node| node.figures().reported.load(std::sync::atomic::Ordering::Relaxed))
        .sum();
    assert!(reported >= local, "{algorithm}: {reported} of {local}");
    for node in &nodes {
        node.goodbye().await.expect("it answers");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cut_off_by_the_network() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    for algorithm in COSTS {
        let home = failing(OnFailure::Local);
        outage(home, algorithm, &proxy.url("redis"), || proxy.cut(), || proxy.heal()).await;
        assert!(server.call(&["FLUSHALL"]).is_ok());
    }
}

/// A server that comes and goes: the limit is handed out once, also in the moment between its return
/// and the next healing, and with many at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_outage_after_another() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    for algorithm in COSTS {
        let (home, rule) = (failing(OnFailure::Local), algorithm.name());
        let limit = limit(algorithm, 100, LONG);
        let node = &nodes(&proxy.url("redis"), 1, Duration::from_millis(100)).await[0];
        let many = async |count: usize| {
            let each = (0..count).map(|_| decide(node, rule, home, &limit, Mode::Charge));
            let decided = futures_util::future::join_all(each).await;
            decided.iter().filter(|(_, outcome)| outcome.examination.admits()).count()
        };
        let mut admitted = many(2).await;
        for outage in 0..4 {
            proxy.cut();
            wait_for(async || {
                let (decided, _) = decide(node, rule, home, &limit, Mode::Peek).await;
                decided.degraded.is_some()
            })
            .await;
            admitted += many(if outage == 3 { 150 } else { 20 }).await;
            proxy.heal();
            wait_for(async || {
                let (decided, _) = decide(node, rule, home, &limit, Mode::Peek).await;
                decided.degraded.is_none()
            })
            .await;
            assert_eq!(node.waiting_reports(), 0, "{algorithm}: reported before it was asked");
            admitted += many(5).await;
            if outage % 2 == 0 {
                wait_for(async || node.heal(now()).await).await;
            }
        }
        assert!((80..=100).contains(&admitted), "{algorithm}: {admitted} of 100");
        node.goodbye().await.expect("it answers");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_stopped_in_its_tracks() {
    let server = Redis::start();
    for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket] {
        let home = failing(OnFailure::Local);
        outage(home, algorithm, &server.url(), || server.pause(), || server.resume()).await;
        assert!(server.call(&["FLUSHALL"]).is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leases_in_between_change_nothing() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    let consistency = Consistency::Leased { max_overshoot_ppm: 200_000 };
    let home = Home { consistency, ..failing(OnFailure::Local) };
    let (lose, find) = (|| proxy.cut(), || proxy.heal());
    outage(home, Algorithm::FixedWindow, &proxy.url("redis"), lose, find).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn open_passes_and_closed_refuses() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    let limit = limit(Algorithm::FixedWindow, 5, LONG);
    let node = node(&proxy.url("redis"), "a", Duration::from_millis(100)).await;
    wait_for(async || node.heartbeat(now()).await.is_ok()).await;
    proxy.half_open();
    for policy in [OnFailure::Open, OnFailure::Closed] {
        for _ in 0..20 {
            let (decided, outcome) =
                decide(&node, "policy", failing(policy), &limit, Mode::Charge).await;
            let fallback = decided.degraded.expect("the store is away").fallback;
            let is_open = policy == OnFailure::Open;
            assert_eq!(fallback == Fallback::Open, is_open);
            assert_eq!(outcome.examination.admits(), is_open, "more than the limit, too");
        }
    }
    assert_eq!(node.figures().total(Fallback::Open), 20);
    assert_eq!(node.figures().total(Fallback::Closed), 20);
    proxy.heal();
    wait_for(async || node.heal(now()).await).await;
    let (decided, outcome) =
        decide(&node, "policy", failing(OnFailure::Open), &limit, Mode::Peek).await;
    assert_eq!((decided.degraded, outcome.status.used), (None, 0), "nothing was counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_start_without_the_server() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    proxy.cut();
    let limit = limit(Algorithm::FixedWindow, 5, LONG);
    let home = failing(OnFailure::Local);
    let node = node(&proxy.url("redis"), "a", Duration::from_millis(100)).await;
    assert!(node.heartbeat(now()).await.is_err());
    let mut admitted = 0;
    for _ in 0..20 {
        let (decided, outcome) = decide(&node, "start", home, &limit, Mode::Charge).await;
        assert!(decided.degraded.is_some());
        admitted += u64::from(outcome.examination.admits());
    }
    assert_eq!(admitted, 5);
    proxy.heal();
    wait_for(async || node.heal(now()).await).await;
    let (decided, outcome) = decide(&node, "start", home, &limit, Mode::Peek).await;
    assert_eq!((decided.degraded, outcome.status.used), (None, 5));
}

/// One master of a cluster stops: its counters are decided here, and reported when it continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_part_of_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let options = RedisOptions {
        kind: RedisKind::Cluster,
        timeout: Duration::from_millis(100),
        ..options(&cluster.urls())
    };
    let redis = RedisStore::connect(options).await.expect("sound options");
    let leased = Leased::new(redis, LeaseOptions::new("a".to_owned()));
    let node = Resilient::new(leased, ResilientOptions::new("a".to_owned()));
    wait_for(async || node.heartbeat(now()).await.is_ok()).await;
    let limit = limit(Algorithm::FixedWindow, 10, LONG);
    let names: Vec<String> = (0..24).map(|number| format!("key {number}")).collect();
    let each = async |mode| {
        let (mut admitted, mut degraded) = (Vec::new(), 0);
        for name in &names {
            let key = [name.as_str()];
            let counter = counter("cluster", &key, failing(OnFailure::Local));
            let charges = [Charge { counter, limit: &limit, ask: Ask::cost(1), role: Role::Must }];
            let mut outcomes = Outcomes::new();
            let requests = [Request { charges: &charges, mode }];
            let decided = node.decide(&requests, now(), &mut outcomes).await;
            degraded += usize::from(decided.expect("it always answers").degraded.is_some());
            admitted.push((outcomes[0].examination.admits(), outcomes[0].status.used));
        }
        (admitted, degraded)
    };
    for _ in 0..3 {
        let (admitted, degraded) = each(Mode::Charge).await;
        assert!(degraded == 0 && admitted.iter().all(|(admits, _)| *admits));
    }
    let stopped = &cluster.nodes()[cluster.masters()[0]];
    stopped.pause();
    let (admitted, degraded) = each(Mode::Charge).await;
    assert!(admitted.iter().all(|(admits, used)| *admits && *used == 4), "{admitted:?}");
    assert!(degraded > 0, "some counters were on that one");
    assert!(!node.heal(now()).await);
    stopped.resume();
    wait_for(async || node.heal(now()).await).await;
    let (seen, degraded) = each(Mode::Peek).await;
    assert_eq!(degraded, 0);
    for (_, used) in seen {
        // 5: a charge whose answer was lost, and was reported as well.
        assert!((4..=5).contains(&used), "{used}");
    }
}
