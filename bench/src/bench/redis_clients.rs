//! Which client to talk to a Redis cluster with: scripted calls in a second, and what they cost the
//! process that makes them.
//!
//! A real cluster of three masters is started beside the benchmark. The clients take turns; each has all
//! tasks share its connections, one per master, as a server would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fred::interfaces::{ClientLike, LuaInterface};
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use tollgate_bench::process::running_nanos;
use tollgate_bench::record::{compare, grouped};
use tollgate_testkit::{Cluster, SLOTS};

const MASTERS: usize = 3;

const KEYS: u64 = 10_000;

/// As the product's: one key, a few numbers, a read and a write with an expiry.
const SCRIPT: &str = r"
local now, interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
if arrival - now > interval * (burst - 1) then
  return {0, arrival - now}
end
arrival = arrival + interval
redis.call('SET', KEYS[1], string.format('%.0f', arrival), 'PX', math.ceil((arrival - now) / 1000) + 1000)
return {1, arrival - now}
";

/// Microseconds between requests, and how many may come at once.
const LIMIT: [u64; 2] = [100, 100];

/// What a call answers: whether it is admitted, and the load.
type Answer = (i64, i64);

/// A client under test; clones share its connections.
#[derive(Clone)]
enum Client {
    Cluster(ClusterConnection),
    Routed([MultiplexedConnection; MASTERS]),
    Fred(fred::clients::Client),
}

impl Client {
    const NAMES: [&str; 3] =
        ["redis, ClusterConnection", "redis, own routing over MultiplexedConnection", "fred"];

    async fn all(cluster: &Cluster) -> [Self; 3] {
        let urls = cluster.urls();
        let client = redis::cluster::ClusterClient::new(urls.clone()).unwrap();
        let mut routed = Vec::new();
        for url in &urls {
            let client = redis::Client::open(url.as_str()).unwrap();
            routed.push(client.get_multiplexed_async_connection().await.unwrap());
        }
        let config = fred::types::config::Config::from_url_clustered(
            &urls[0].replace("redis:", "redis-cluster:"),
        );
        let fred = fred::types::Builder::from_config(config.unwrap()).build().unwrap();
        fred.init().await.unwrap();
        [
            Self::Cluster(client.get_async_connection().await.unwrap()),
            Self::Routed(routed.try_into().unwrap_or_else(|_| panic!("a connection per master"))),
            Self::Fred(fred),
        ]
    }

    async fn call(&mut self, script: &str, key: &str, now: u64) -> Answer {
        let [interval, burst] = LIMIT;
        match self {
            Self::Cluster(connection) => {
                command(script, key, now).query_async(connection).await.unwrap()
            }
            Self::Routed(connections) => {
                let connection = &mut connections[master_of(key)];
                command(script, key, now).query_async(connection).await.unwrap()
            }
            Self::Fred(client) => {
                let numbers = [now, interval, burst].map(|number| number as i64).to_vec();
                client.evalsha(script, vec![key], numbers).await.unwrap()
            }
        }
    }
}

fn command(script: &str, key: &str, now: u64) -> redis::Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script).arg(1).arg(key).arg(now).arg(&LIMIT);
    command
}

/// The masters of a new cluster have equal shares of the slots, in ascending order.
fn master_of(key: &str) -> usize {
    let slot = crc16::State::<crc16::XMODEM>::calculate(key.as_bytes()) % SLOTS;
    ((usize::from(slot) + 1) * MASTERS - 1) / usize::from(SLOTS)
}

/// Calls in a second, and seconds of processor time that a million of them took.
#[derive(Clone, Copy)]
struct Figures {
    calls_per_second: f64,
    cpu_per_million: f64,
}

async fn measure(client: &Client, script: &str, tasks: u64, time: Duration) -> Figures {
    let keys: Arc<Vec<String>> = Arc::new((0..KEYS).map(|n| format!("limit:key:{n}")).collect());
    let calls = Arc::new(AtomicU64::new(0));
    let cpu = running_nanos(std::process::id());
    let begin = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (mut client, keys, calls) = (client.clone(), keys.clone(), calls.clone());
            let script = script.to_owned();
            tokio::spawn(async move {
                // Each task walks through all keys in steps of its own, which have no factor in common with
                // their number.
                let mut at = task * 7_919;
                let mut made = 0;
                loop {
                    let passed = begin.elapsed();
                    if passed > time {
                        break;
                    }
                    at = (at + 10 * task + 1) % KEYS;
                    let now = 1_000_000_000 + passed.as_micros() as u64;
                    client.call(&script, &keys[at as usize], now).await;
                    made += 1;
                }
                calls.fetch_add(made, Ordering::Relaxed);
            })
        })
        .collect();
    for task in running {
        task.await.unwrap();
    }
    let seconds = begin.elapsed().as_secs_f64();
    let calls = calls.load(Ordering::Relaxed) as f64;
    let cpu = (running_nanos(std::process::id()) - cpu) as f64 / 1e9;
    Figures { calls_per_second: calls / seconds, cpu_per_million: cpu / calls * 1e6 }
}

fn median(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = figures.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn compare_clients(quick: bool, rounds: usize, cluster: &Cluster) {
    let time = if quick { Duration::from_millis(300) } else { Duration::from_secs(3) };
    let script = cluster.nodes().iter().map(|node| node.cli(&["SCRIPT", "LOAD", SCRIPT])).last();
    let script = script.expect("a node");
    let clients = Client::all(cluster).await;
    for tasks in [64, 256] {
        let mut figures = [const { Vec::new() }; 3];
        // The first round warms up.
        for round in 0..=rounds {
            for (client, figures) in clients.iter().zip(&mut figures) {
                let measured = measure(client, &script, tasks, time).await;
                if round > 0 {
                    figures.push(measured);
                }
            }
        }
        let calls = figures.each_ref().map(|all| median(all, |one| one.calls_per_second));
        let cpu = figures.each_ref().map(|all| median(all, |one| one.cpu_per_million));
        for (index, name) in Client::NAMES.iter().enumerate() {
            let figure = format!(
                "{}/s ({:.2}x); {:.1} s of CPU for a million calls ({:.2}x)",
                grouped(calls[index]),
                calls[index] / calls[0],
                cpu[index],
                cpu[index] / cpu[0],
            );
            compare("", &format!("scripted calls, {tasks} tasks: {name}"), &figure);
        }
    }
}

pub fn run(quick: bool, rounds: usize, threads: usize) {
    println!(
        "\nRedis clients: EVALSHA on a cluster of {MASTERS} masters, {KEYS} keys, {threads} threads"
    );
    let cluster = Cluster::start(MASTERS, 0);
    let mut runtime = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(threads).enable_all().build().unwrap();
    runtime.block_on(compare_clients(quick, rounds, &cluster));
}
