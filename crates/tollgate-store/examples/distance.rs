//! How long callers wait for a Redis that is far: `make distance`.
//!
//! A real Redis behind a proxy that delays every byte. Requests of leased limits are sent on a fixed
//! schedule, whether earlier ones were answered or not; strict ones by 32 connections that each wait
//! for their answer. Prints a Markdown table.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a tool for people: a panic is how it fails, and figures are rounded anyway"
)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tollgate_core::{Algorithm, Ask, Limit, LimitSpec, Nanos, SECOND, Window};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::redis::{RedisOptions, RedisStore};
use tollgate_store::{
    Charge, Consistency, Counter, Home, Mode, Outcomes, Request, Role, Store, passes,
};
use tollgate_testkit::{FaultProxy, Redis};

const ROUND_TRIPS_MS: [u64; 4] = [20, 40, 80, 150];
const STRICT_CONNECTIONS: usize = 32;
/// Who waits longer than this counts as having waited.
const WAITED: Duration = Duration::from_millis(5);
const WARM_UP: Duration = Duration::from_secs(2);
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

fn main() {
    let seconds = std::env::args().nth(1).map_or(8, |text| text.parse().unwrap());
    let measured = Duration::from_secs(seconds);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let redis = Redis::start();
        println!(
            "| round trip | limit | load | requests | waited > 5 ms | p50 | p90 | p99 | max |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for round_trip in ROUND_TRIPS_MS {
            let proxy = FaultProxy::start(redis.addr());
            proxy.delay(Duration::from_micros(round_trip * 500));
            for (nodes, per_second) in [(1, 200), (1, 20), (4, 200), (4, 20)] {
                let took = leased(&proxy, round_trip, nodes, per_second, measured).await;
                let load = match nodes {
                    1 => format!("1 node, {per_second}/s"),
                    _ => format!("{nodes} nodes, {per_second}/s each"),
                };
                report(round_trip, "leased", &load, took);
            }
            let took = strict(&proxy, round_trip, measured).await;
            report(round_trip, "strict", &format!("{STRICT_CONNECTIONS} connections"), took);
        }
    });
}

/// A store as docs/multi-region.md says to configure one: a timeout of three round trips.
async fn connect(proxy: &FaultProxy, round_trip: u64) -> RedisStore {
    let timeout = Duration::from_millis(round_trip * 3);
    let urls = vec![proxy.url("redis")];
    let store = RedisStore::connect(RedisOptions { urls, timeout, ..RedisOptions::default() });
    let store = store.await.unwrap();
    store.ping().await.unwrap();
    store
}

/// A million an hour, of which one per cent may be on lease.
fn limit() -> Limit {
    let (quota, window) = (1_000_000, Window::Every(3600 * SECOND));
    let algorithm = Algorithm::TokenBucket;
    Limit::new(LimitSpec { algorithm, quota, window, burst: Some(quota), slot_ttl: SECOND })
        .unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a tool for people, which has no other clock")]
fn now() -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}

/// Makes one decision, and says how long it took.
async fn decide(store: &impl Store, rule: &str, limit: &Limit, home: Home) -> Duration {
    let key = ["caller"];
    let counter = Counter { rule_id: rule, tag: "t", salt: salt(rule), key: &key, home };
    let charges = [Charge { counter, limit, ask: Ask::cost(1), role: Role::Must }];
    let mut outcomes = Outcomes::new();
    let began = Instant::now();
    let requests = [Request { charges: &charges, mode: Mode::Charge }];
    store.decide(&requests, now(), &mut outcomes).await.unwrap();
    let took = began.elapsed();
    assert!(passes(&charges, &outcomes), "the limit is wide enough");
    took
}

/// Different rules have different counters.
fn salt(rule: &str) -> u128 {
    rule.bytes().fold(1, |salt: u128, byte| salt.wrapping_mul(257).wrapping_add(byte.into()))
}

async fn leased(
    proxy: &FaultProxy,
    round_trip: u64,
    nodes: u32,
    per_second: u32,
    measured: Duration,
) -> Vec<Duration> {
    let consistency = Consistency::Leased { max_overshoot_ppm: 10_000 };
    let home = Home { partition: Some(0), consistency, ..Home::default() };
    let rule: Arc<str> = format!("leased-{round_trip}-{nodes}-{per_second}").into();
    let mut callers = Vec::new();
    for number in 0..nodes {
        let options = LeaseOptions::new(format!("node-{number}"));
        let store = Arc::new(Leased::new(connect(proxy, round_trip).await, options));
        let rule = Arc::clone(&rule);
        callers.push(tokio::spawn(async move {
            let sweeper = tokio::spawn(sweep(Arc::clone(&store)));
            let took = call(&store, &rule, home, per_second, measured).await;
            sweeper.abort();
            store.return_all(now()).await;
            took
        }));
    }
    let mut all = Vec::new();
    for caller in callers {
        all.extend(caller.await.unwrap());
    }
    all
}

/// As the server does.
async fn sweep(store: Arc<Leased<RedisStore>>) {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        interval.tick().await;
        store.sweep(now()).await;
    }
}

/// Asks at even intervals, and drops what was asked while warming up.
async fn call(
    store: &Arc<Leased<RedisStore>>,
    rule: &Arc<str>,
    home: Home,
    per_second: u32,
    measured: Duration,
) -> Vec<Duration> {
    let began = Instant::now();
    let gap = Duration::from_secs(1) / per_second;
    let mut requests = Vec::new();
    for number in 0.. {
        let at = gap * number;
        if at >= WARM_UP + measured {
            break;
        }
        tokio::time::sleep_until(began + at).await;
        let (store, rule) = (Arc::clone(store), Arc::clone(rule));
        let request = tokio::spawn(async move { decide(&*store, &rule, &limit(), home).await });
        requests.push((at >= WARM_UP, request));
    }
    let mut took = Vec::new();
    for (is_measured, request) in requests {
        let elapsed = request.await.unwrap();
        if is_measured {
            took.push(elapsed);
        }
    }
    took
}

async fn strict(proxy: &FaultProxy, round_trip: u64, measured: Duration) -> Vec<Duration> {
    let store = connect(proxy, round_trip).await;
    let home = Home { partition: Some(0), ..Home::default() };
    let began = Instant::now();
    let mut connections = Vec::new();
    for _ in 0..STRICT_CONNECTIONS {
        let store = store.clone();
        connections.push(tokio::spawn(async move {
            let (mut took, limit) = (Vec::new(), limit());
            while began.elapsed() < WARM_UP + measured {
                let is_measured = began.elapsed() >= WARM_UP;
                let elapsed = decide(&store, "strict", &limit, home).await;
                if is_measured {
                    took.push(elapsed);
                }
            }
            took
        }));
    }
    let mut all = Vec::new();
    for connection in connections {
        all.extend(connection.await.unwrap());
    }
    all
}

fn report(round_trip: u64, limit: &str, load: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |percent: usize| {
        let place = took.len() * percent / 100;
        format!("{:.2} ms", took[place.min(took.len() - 1)].as_secs_f64() * 1e3)
    };
    let waited = took.iter().filter(|took| **took > WAITED).count();
    let share = waited as f64 * 100.0 / took.len() as f64;
    let (count, p50, p90, p99, max) = (took.len(), at(50), at(90), at(99), at(100));
    println!(
        "| {round_trip} ms | {limit} | {load} | {count} | {share:.1} % | {p50} | {p90} | {p99} | {max} |"
    );
}
