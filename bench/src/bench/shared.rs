//! T6, T7: decisions on a Redis that nodes share, beside what that Redis can do at all.
//!
//! The ceiling is redis-benchmark's own: a plain GCRA script over as many keys, called by EVALSHA over 50
//! connections, 16 calls deep. Ours goes through the store as the server uses it: two threads with a
//! runtime each, and as many decisions under way as a busy server has.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate_bench::record::{compare, grouped, record};
use tollgate_core::{Algorithm, Ask, Limit, LimitSpec, SECOND, Window};
use tollgate_engine::{Clock, SystemClock};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::redis::{RedisOptions, RedisStore};
use tollgate_store::{
    Charge, Consistency, Counter, Home, MemoryStore, Mode, Outcomes, Request, Role, Store, passes,
};
use tollgate_testkit::Redis;

/// A check as one would write it first: exact to the microsecond, by the server's clock.
const NAIVE: &str = r"
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local arrivals = {}
for i = 1, #KEYS do
  local arrival = math.max(tonumber(redis.call('GET', KEYS[i]) or '0'), now)
  if arrival - now > tolerance then return {0, arrival - now - tolerance} end
  arrivals[i] = arrival + interval
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], string.format('%.0f', arrivals[i]), 'PX', math.ceil((arrivals[i] - now) / 1000))
end
return {1, 0}
";

const THREADS: usize = 2;
const TASKS_PER_THREAD: usize = 64;
const USERS: u64 = 100_000;

/// Hot tenants of the leased scenario.
const TENANTS: u64 = 8;
const NODES: usize = 4;
const OVERSHOOT_PPM: u32 = 50_000;

pub fn run(quick: bool, rounds: usize) {
    let time = if quick { Duration::from_millis(500) } else { Duration::from_secs(3) };
    let calls = if quick { 20_000 } else { 200_000 };
    let rounds = if quick { 1 } else { rounds };
    let redis = Redis::start();
    let sha = redis.cli(&["SCRIPT", "LOAD", NAIVE]).trim().to_owned();
    for limits in [1, 3, 8] {
        let (mut ceilings, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            redis.cli(&["FLUSHALL"]);
            ceilings.push(ceiling(&redis, &sha, limits, calls));
            redis.cli(&["FLUSHALL"]);
            let store = Arc::new(connect(&redis));
            ours.push(decisions(&[store], &spread(limits), time).per_second);
        }
        let (ceiling, ours) = (median(ceilings), median(ours));
        let work = format!("Redis strict, {limits} GCRA limits");
        compare(
            "T6",
            &format!("redis-benchmark EVALSHA, {limits} GCRA keys, depth 16"),
            &rate(ceiling),
        );
        let ratio = ours / ceiling;
        let per_limit = grouped(ours * limits as f64);
        let figure = format!("{} ({per_limit} limits/s): {ratio:.2}x", rate(ours));
        match limits {
            3 => record(
                "T6",
                &work,
                &figure,
                ">= 1.0x the ceiling, >= 100,000 limits/s",
                Some(ratio >= 1.0 && ours * 3.0 >= 100_000.0),
            ),
            _ => compare("T6", &work, &figure),
        }
    }
    hot(&redis, time, rounds);
    let store = Arc::new(MemoryStore::new(1_000_000));
    let memory = decisions(&[store], &spread(3), time).per_second;
    compare("T6", "memory store, 3 GCRA limits, the same harness", &rate(memory));
}

/// T7: four nodes, few tenants, everyone at once.
fn hot(redis: &Redis, time: Duration, rounds: usize) {
    let (mut strict, mut leased, mut most) = (Vec::new(), Vec::new(), 0.0_f64);
    for _ in 0..rounds {
        redis.cli(&["FLUSHALL"]);
        let nodes: Vec<_> = (0..NODES).map(|_| Arc::new(connect(redis))).collect();
        strict.push(decisions(&nodes, &Work::hot(Consistency::Strict), time).per_second);
        redis.cli(&["FLUSHALL"]);
        let node = |number: usize| {
            let options = LeaseOptions::new(format!("node-{number}"));
            Arc::new(Leased::new(connect(redis), options))
        };
        let nodes: Vec<_> = (0..NODES).map(node).collect();
        let work = Work::hot(Consistency::Leased { max_overshoot_ppm: OVERSHOOT_PPM });
        let run = decisions(&nodes, &work, time);
        leased.push(run.per_second);
        most = most.max(run.overshoot);
    }
    let (strict, leased) = (median(strict), median(leased));
    compare("T7", &format!("strict, {NODES} nodes, {TENANTS} hot tenants, 1 limit"), &rate(strict));
    let ratio = leased / strict;
    let figure = format!("{}: {ratio:.1}x", rate(leased));
    let work = format!("leased, {NODES} nodes, {TENANTS} hot tenants, 1 limit");
    record("T7", &work, &figure, ">= 10x strict", Some(ratio >= 10.0));
    let declared = f64::from(OVERSHOOT_PPM) / 1e6;
    record(
        "T7",
        "largest overshoot of a window, of the limit",
        &format!("{:.2} %", most * 100.0),
        &format!("<= {:.0} %, as declared", declared * 100.0),
        Some(most <= declared),
    );
}

fn connect(redis: &Redis) -> RedisStore {
    // A busy machine must not be taken for an outage: what does not answer is not measured.
    let timeout = Duration::from_secs(5);
    let options = RedisOptions { urls: vec![redis.url()], timeout, ..RedisOptions::default() };
    RedisStore::new(&options).unwrap()
}

fn ceiling(redis: &Redis, sha: &str, keys: usize, calls: u64) -> f64 {
    let mut command = Command::new("redis-benchmark");
    command.args([
        "-p",
        &redis.port().to_string(),
        "-n",
        &calls.to_string(),
        "-c",
        "50",
        "-P",
        "16",
    ]);
    command.args(["-r", &USERS.to_string(), "--csv", "EVALSHA", sha, &keys.to_string()]);
    command.args((0..keys).map(|key| format!("ceiling:{key}:__rand_int__")));
    // 1,000 in a second, 1,000 at once.
    command.args(["1000", "999000"]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let figure =
        last.split("\",\"").nth(1).and_then(|figure| figure.trim_matches('"').parse().ok());
    figure.unwrap_or_else(|| panic!("redis-benchmark said {text:?}"))
}

/// What is asked of the store.
struct Work {
    limits: Vec<Limit>,
    home: Home,
    keys: Vec<String>,
    /// For fixed windows: what a window admits, so that the overshoot is measured.
    quota: Option<u64>,
}

fn gcra(quota: u64) -> Limit {
    let (window, burst) = (Window::Every(SECOND), Some(quota));
    let algorithm = Algorithm::Gcra;
    Limit::new(LimitSpec { algorithm, quota, window, burst, slot_ttl: SECOND }).unwrap()
}

/// As many limits of many users, each user's in one slot.
fn spread(limits: usize) -> Work {
    Work {
        limits: (0..limits).map(|_| gcra(1_000)).collect(),
        home: Home { partition: Some(0), ..Home::default() },
        keys: (0..USERS).map(|user| format!("user-{user:06}")).collect(),
        quota: None,
    }
}

impl Work {
    fn hot(consistency: Consistency) -> Self {
        let (algorithm, window) = (Algorithm::FixedWindow, Window::Every(SECOND));
        let quota = 100_000;
        let spec = LimitSpec { algorithm, quota, window, burst: None, slot_ttl: SECOND };
        Self {
            limits: vec![Limit::new(spec).unwrap()],
            home: Home { partition: Some(0), consistency, ..Home::default() },
            keys: (0..TENANTS).map(|tenant| format!("tenant-{tenant}")).collect(),
            quota: Some(quota),
        }
    }
}

struct Run {
    per_second: f64,
    /// The most that a window admitted beyond its quota, as a part of it.
    overshoot: f64,
}

/// Decisions in a second over all nodes.
fn decisions<S: Store + 'static>(nodes: &[Arc<S>], work: &Work, time: Duration) -> Run {
    let clock = SystemClock::new();
    let (made, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let windows: Vec<Vec<AtomicU64>> = work
        .keys
        .iter()
        .take(if work.quota.is_some() { work.keys.len() } else { 0 })
        .map(|_| (0..64).map(|_| AtomicU64::new(0)).collect())
        .collect();
    let first_window = clock.now() / SECOND;
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (clock, made, stop, windows) = (&clock, &made, &stop, &windows);
            scope.spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let local = tokio::task::LocalSet::new();
                let loops = (0..TASKS_PER_THREAD).map(|task| {
                    let store = &nodes[task % nodes.len()];
                    let seed = (thread * TASKS_PER_THREAD + task) as u64;
                    one_client(&**store, work, seed, (clock, stop), (windows, first_window))
                });
                let all = futures_util::future::join_all(loops);
                let sums: Vec<u64> = local.block_on(&runtime, async {
                    let stopper = async {
                        tokio::time::sleep(time).await;
                        stop.store(true, Ordering::Relaxed);
                    };
                    futures_util::future::join(all, stopper).await.0
                });
                made.fetch_add(sums.iter().sum(), Ordering::Relaxed);
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let most = windows.iter().flatten().map(|count| count.load(Ordering::Relaxed)).max();
    let overshoot = match (work.quota, most) {
        (Some(quota), Some(most)) => most.saturating_sub(quota) as f64 / quota as f64,
        _ => 0.0,
    };
    Run { per_second: made.load(Ordering::Relaxed) as f64 / seconds, overshoot }
}

async fn one_client<S: Store>(
    store: &S,
    work: &Work,
    seed: u64,
    (clock, stop): (&SystemClock, &AtomicBool),
    (windows, first_window): (&[Vec<AtomicU64>], u64),
) -> u64 {
    let (mut made, mut place) = (0, seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let names: Vec<String> = (0..work.limits.len()).map(|limit| format!("rule-{limit}")).collect();
    while !stop.load(Ordering::Relaxed) {
        place =
            place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (place >> 33) as usize % work.keys.len();
        let key = [work.keys[index].as_str()];
        let charges: Vec<Charge<'_>> = work
            .limits
            .iter()
            .zip(&names)
            .zip(1_u128..)
            .map(|((limit, rule_id), salt)| Charge {
                counter: Counter { rule_id, tag: "gcra", salt, key: &key, home: work.home },
                limit,
                ask: Ask::cost(1),
                role: Role::Must,
            })
            .collect();
        let request = Request { charges: &charges, mode: Mode::Charge };
        let mut outcomes = Outcomes::new();
        let decided = store.decide(&[request], clock.now(), &mut outcomes).await.unwrap();
        if let Some(counts) = windows.get(index)
            && passes(&charges, &outcomes)
        {
            let window = (decided.at / SECOND).saturating_sub(first_window) as usize;
            counts[window.min(63)].fetch_add(1, Ordering::Relaxed);
        }
        made += 1;
        // What is decided on the spot must let others have their turn.
        if made % 32 == 0 {
            tokio::task::yield_now().await;
        }
    }
    made
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn rate(per_second: f64) -> String {
    format!("{} decisions/s", grouped(per_second))
}
