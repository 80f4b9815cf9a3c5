//! Floods a node for a while, embedded and then with a Redis, and prints what it takes of disk, Redis and memory:
//! `make flood`, or `cargo run --release -p tollgate-e2e --example flood -- SECONDS`.

use std::time::Duration;

use tollgate_e2e::flood::{Extent, Flooded, Report};
use tollgate_testkit::Redis;

const DEFAULT_SECONDS: u64 = 60;

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS));
    println!("| node | calls in {} s: accepted, refused |", time.as_secs());
    println!("|---|---|");
    let nodes = [("embedded", None), ("with Redis", Some(Redis::start()))];
    let reports = nodes.map(|(name, redis)| {
        let report = Flooded::start(redis, &[]).run(Extent::For(time));
        let calls = report.calls.iter();
        let calls = calls.map(|(kind, done, refused)| format!("{kind}: {done}, {refused}"));
        println!("| {name} | {} |", calls.collect::<Vec<_>>().join("; "));
        (name, report)
    });
    println!("\n| node | what | before | largest | after |\n|---|---|---|---|---|");
    for (name, Report { usage, .. }) in &reports {
        let line = |what: &str, figures: [u64; 3]| {
            let [before, most, after] = figures.map(megabytes);
            println!("| {name} | {what} | {before} | {most} | {after} |");
        };
        line("data directory", usage.map(|at| at.disk));
        line("resident memory", usage.map(|at| at.memory));
        if *name != "embedded" {
            line("memory of Redis", usage.map(|at| at.redis));
        }
    }
}

fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}
