//! T9: what a check costs when there are many counters.

use std::hint::black_box;
use std::time::Instant;

use tollgate_bench::limiters::{BURST, Tollgate};
use tollgate_bench::process::resident_bytes;
use tollgate_bench::record::record;
use tollgate_bench::work::{Key, key, median, sequence, text, uniform, zipf};

fn fill(limiter: &Tollgate, counters: usize) {
    for number in 0..counters as u64 {
        limiter.check(text(&key(number)));
    }
    let usage = limiter.store().usage();
    assert_eq!((usage.counters, usage.evicted), (counters as u64, 0), "all counters are kept");
}

fn time(limiter: &Tollgate, keys: &[Key]) -> f64 {
    let start = Instant::now();
    let admitted = keys.iter().filter(|key| limiter.check(text(key))).count();
    assert_eq!(black_box(admitted), keys.len());
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}

pub fn run(quick: bool, rounds: usize) {
    let (few, many, checks) =
        if quick { (100_000, 3_000_000, 1 << 18) } else { (1_000_000, 30_000_000, 1 << 21) };
    println!("\nT9: {few} → {many} counters, token bucket, 24-byte keys, 1 thread");
    let before = resident_bytes("self");
    let large = Tollgate::new(many * 2, BURST);
    fill(&large, many);
    let gigabytes = (resident_bytes("self") - before) as f64 / 1e9;
    let small = Tollgate::new(many * 2, BURST);
    fill(&small, few);
    let goal = if quick { "<= 0.15 GB" } else { "<= 1.5 GB" };
    let most = if quick { 0.15 } else { 1.5 };
    let work = format!("resident memory of {}M counters", many / 1_000_000);
    record("T9", &work, &format!("{gigabytes:.2} GB"), goal, Some(gigabytes <= most));
    type Picks = fn(usize, usize) -> Vec<u32>;
    for (name, picks) in [("zipf(1.0)", zipf as Picks), ("uniform", uniform as Picks)] {
        let sequences = [sequence(&picks(few, checks)), sequence(&picks(many, checks))];
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            times[0].push(time(&small, &sequences[0]));
            times[1].push(time(&large, &sequences[1]));
        }
        let [at_few, at_many] = times.map(median);
        let ratio = at_many / at_few;
        let work =
            format!("check, {:.1}M → {}M counters, {name}", few as f64 / 1e6, many / 1_000_000);
        let figure = format!("{ratio:.2}x ({at_few:.0} → {at_many:.0} ns)");
        record("T9", &work, &figure, "<= 2x", Some(ratio <= 2.0));
    }
}
