//! Eight nodes with leases on one real server: what they admit stays within the bounds that
//! `docs/consistency.md` derives.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

mod leased_support;
mod redis_support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leased_support::{COSTS, counter, leased, limit};
use redis_support::{now, options};
use tollgate_core::{Algorithm, Ask, Limit, Nanos, SECOND};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::redis::{RedisOptions, RedisStore};
use tollgate_store::{Charge, Mode, Outcomes, Request, Role, Store};
use tollgate_testkit::{FaultProxy, Redis};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;
const NODES: usize = 8;
const TASKS: usize = 16;
const PPM: u32 = 100_000;

type Node = Arc<Leased<RedisStore>>;

async fn nodes(url: &str) -> Vec<Node> {
    nodes_at(url, NODES).await
}

async fn nodes_at(url: &str, count: usize) -> Vec<Node> {
    let mut nodes = Vec::new();
    for number in 0..count {
        let redis = RedisStore::connect(options(&[url.to_owned()])).await.expect("sound options");
        redis.ping().await.expect("it answers");
        let options = LeaseOptions::new(format!("node {number}"));
        nodes.push(Arc::new(Leased::new(redis, options)));
    }
    nodes
}

/// One charge: when it was decided, and whether it passed.
async fn charge(
    store: &impl Store,
    rule: &str,
    limit: &Limit,
    cost: u64,
    mode: Mode,
) -> (Nanos, bool, u64) {
    let key = counter(rule, &["k"], leased(PPM));
    let charges = [Charge { counter: key, limit, ask: Ask::cost(cost), role: Role::Must }];
    let mut outcomes = Outcomes::new();
    let decided = store.decide(&[Request { charges: &charges, mode }], now(), &mut outcomes).await;
    let at = decided.expect("the store answers").of(0);
    (at, outcomes[0].examination.admits(), outcomes[0].status.used)
}

/// All tasks of all nodes ask until `until`, or until they have been refused so often in a row. What
/// was admitted, and when, in order.
async fn hammer(
    nodes: &[Node],
    rule: &'static str,
    limit: &Limit,
    until: Nanos,
    refusals: u32,
) -> Vec<(Nanos, u64)> {
    let mut tasks = Vec::new();
    for task in 0..nodes.len() * TASKS {
        let (store, limit) = (Arc::clone(&nodes[task % nodes.len()]), limit.clone());
        tasks.push(tokio::spawn(async move {
            let (mut admitted, mut refused, mut turn) = (Vec::new(), 0, task as u64);
            while now() < until && refused < refusals {
                turn += 1;
                let cost = if turn.is_multiple_of(5) { 3 } else { 1 };
                let (at, passes, _) = charge(&*store, rule, &limit, cost, Mode::Charge).await;
                if passes {
                    admitted.push((at, cost));
                    refused = 0;
                } else {
                    refused += 1;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            admitted
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("a task that ends"));
    }
    all.sort_unstable();
    all
}

fn sum(admitted: &[(Nanos, u64)]) -> u64 {
    admitted.iter().map(|(_, cost)| cost).sum()
}

/// Within one window nothing comes back: all of the quota is admitted, but for what nobody could
/// spend, and all that was not spent goes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_window_is_used_up_and_accounted_for() {
    let server = Redis::start();
    let nodes = nodes(&server.url()).await;
    for algorithm in COSTS {
        let (quota, rule) = (4_000, algorithm.name());
        let pool = quota * u64::from(PPM) / 1_000_000;
        let limit = limit(algorithm, quota, LONG);
        let admitted = sum(&hammer(&nodes, rule, &limit, Nanos::MAX, 3).await);
        assert!((quota - pool..=quota).contains(&admitted), "{algorithm}: {admitted} of {quota}");
        for node in &nodes {
            node.return_all(now()).await;
        }
        let (_, _, used) = charge(&*nodes[0], rule, &limit, 1, Mode::Peek).await;
        assert_eq!(used, admitted, "{algorithm}: the counter says what was admitted");
        let local: u64 = nodes.iter().map(|node| node.usage().local).sum();
        println!("{algorithm}: {admitted} of {quota}; {local} decided locally so far");
    }
    let lost: u64 = nodes.iter().map(|n| n.figures().lost.load(Ordering::Relaxed)).sum();
    assert_eq!(lost, 0, "nothing is lost while the store answers");
}

/// Over several windows: never more than the quota and the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_windows_stay_within_quota_and_pool() {
    let server = Redis::start();
    let nodes = nodes(&server.url()).await;
    for algorithm in COSTS {
        let (quota, window, rule) = (600, SECOND / 2, algorithm.name());
        let pool = quota * u64::from(PPM) / 1_000_000;
        let limit = limit(algorithm, quota, window);
        let sweeper = {
            let nodes = nodes.clone();
            tokio::spawn(async move {
                loop {
                    for node in &nodes {
                        node.sweep(now()).await;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            })
        };
        let admitted = hammer(&nodes, rule, &limit, now() + 5 * window, u32::MAX).await;
        sweeper.abort();
        let most = match algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => {
                busiest_window(&admitted, window)
            }
            Algorithm::SlidingWindowLog => busiest_interval(&admitted, window),
            _ => most_beyond_the_pace(&admitted, quota, window),
        };
        println!("{algorithm}: at most {most} of {quota}, pool {pool}, {} in all", sum(&admitted));
        assert!(most <= quota + pool, "{algorithm}: {most} of {quota} with a pool of {pool}");
        for node in &nodes {
            let over = node.figures().over_admission_ratio();
            assert!(over <= f64::from(PPM) / 1e6, "{algorithm}: measured {over}");
        }
    }
}

/// The most that was admitted in one aligned window.
fn busiest_window(admitted: &[(Nanos, u64)], window: Nanos) -> u64 {
    admitted.chunk_by(|a, b| a.0 / window == b.0 / window).map(sum).max().unwrap_or(0)
}

/// The most that was admitted in any interval of this length.
fn busiest_interval(admitted: &[(Nanos, u64)], window: Nanos) -> u64 {
    let (mut first, mut held, mut most) = (0, 0, 0);
    for (at, cost) in admitted {
        held += cost;
        while admitted[first].0 + window <= *at {
            held -= admitted[first].1;
            first += 1;
        }
        most = most.max(held);
    }
    most
}

/// The most that was admitted in any interval beyond what the pace pays for in its length.
fn most_beyond_the_pace(admitted: &[(Nanos, u64)], quota: u64, window: Nanos) -> u64 {
    // The level of a bucket that leaks at the pace, in parts of 1 / window.
    let (mut level, mut most, mut before) = (0_u128, 0, 0);
    for (at, cost) in admitted {
        let leaked = u128::from(at - before) * u128::from(quota);
        level = level.saturating_sub(leaked) + u128::from(*cost) * u128::from(window);
        (before, most) = (*at, most.max(level));
    }
    (most / u128::from(window)) as u64
}

/// What a crashed node held is lost for its window, and no more than that: the others go on, with
/// the whole pool once the record of it has expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crash_costs_no_more_than_the_pool() {
    let server = Redis::start();
    let (quota, rule) = (2_000, "crash");
    let pool = quota * u64::from(PPM) / 1_000_000;
    for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket] {
        assert!(server.call(&["FLUSHALL"]).is_ok());
        let mut nodes = nodes(&server.url()).await;
        let limit = limit(algorithm, quota, LONG);
        let doomed = nodes.pop().expect("eight of them");
        let (mut admitted, mut held) = (0, 0);
        while held == 0 {
            for _ in 0..50 {
                admitted += u64::from(charge(&*doomed, rule, &limit, 1, Mode::Charge).await.1);
            }
            let (_, _, used) = charge(&*nodes[0], rule, &limit, 1, Mode::Peek).await;
            held = used - admitted;
        }
        drop(doomed);
        assert!(held <= pool, "{algorithm}: {held} of a pool of {pool}");
        admitted += sum(&hammer(&nodes, rule, &limit, Nanos::MAX, 3).await);
        for node in &nodes {
            node.return_all(now()).await;
        }
        let (_, _, used) = charge(&*nodes[0], rule, &limit, 1, Mode::Peek).await;
        // A fetch that was under way when the node crashed may have been granted after `held` was read.
        assert!(used >= admitted, "{algorithm}: {admitted} admitted, {used} charged");
        assert!(
            used <= admitted + pool,
            "{algorithm}: {admitted} admitted, {used} charged, {held} held"
        );
        assert!(admitted >= quota - 2 * pool && admitted <= quota, "{algorithm}: {admitted}");
    }
}

/// Answers get lost, connections break: what was admitted was charged, always.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lost_answers_mint_nothing() {
    let server = Redis::start();
    let proxy = FaultProxy::start(server.addr());
    // More than is asked for, so that there is traffic until the end.
    let quota = 12_000;
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowLog, Algorithm::TokenBucket] {
        let mut nodes = Vec::new();
        for number in 0..3 {
            let timeout = Duration::from_millis(20);
            let options = RedisOptions { timeout, ..options(&[proxy.url("redis")]) };
            let redis = RedisStore::connect(options).await.expect("sound options");
            // Many small chunks, so that many answers can be lost.
            let options = LeaseOptions {
                horizon: SECOND / 100,
                ..LeaseOptions::new(format!("node {number}"))
            };
            nodes.push(Arc::new(Leased::new(redis, options)));
        }
        let limit = limit(algorithm, quota, LONG);
        let mut tasks = Vec::new();
        for task in 0..24 {
            let (store, limit) = (Arc::clone(&nodes[task % 3]), limit.clone());
            tasks.push(tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..400 {
                    let key = counter(algorithm.name(), &["k"], leased(PPM));
                    let outcome = leased_support::charge(&*store, key, &limit, 1, now()).await;
                    admitted += u64::from(outcome.is_ok_and(|o| o.examination.admits()));
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                admitted
            }));
        }
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(60)).await;
            proxy.swallow_replies(8);
            tokio::time::sleep(Duration::from_millis(60)).await;
            proxy.cut();
            tokio::time::sleep(Duration::from_millis(60)).await;
            proxy.heal();
        }
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.expect("a task that ends");
        }
        for node in &nodes {
            node.return_all(now()).await;
        }
        let mut direct = nodes_at(&server.url(), 1).await;
        let judge = direct.pop().expect("one");
        let (_, _, used) = charge(&*judge, algorithm.name(), &limit, 1, Mode::Peek).await;
        let failed: u64 = nodes.iter().map(|n| n.figures().failed.load(Ordering::Relaxed)).sum();
        println!("{algorithm}: {admitted} admitted, {used} charged, {failed} fetches failed");
        assert!(proxy.swallowed() > 0 && failed > 0, "{algorithm}: something went wrong indeed");
        assert!(admitted <= used && used <= quota, "{algorithm}: {admitted} of {used} charged");
    }
}
