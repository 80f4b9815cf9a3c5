//! T1: a single-limit check, token bucket, string keys, beside the peers.

use tollgate_bench::limiters::{BURST, Governor, Limitador, Limiter, Throttlecrab, Tollgate};
use tollgate_bench::record::{compare, record};
use tollgate_bench::work::{key, median, on_threads, text, zipf};

const FAST: &str = "governor, foldhash";

struct Case {
    name: &'static str,
    threads: usize,
    keys: usize,
    picks: Vec<u32>,
    /// How many times faster than governor with its fast hasher it must be.
    goal: f64,
}

fn cases(quick: bool) -> Vec<Case> {
    let (keys, checks) = if quick { (100_000, 1 << 18) } else { (1_000_000, 1 << 22) };
    // Few enough to stay within the burst over all rounds and threads.
    let hot = vec![0; 1 << 20];
    let mixed = zipf(keys, checks);
    let names = [
        ("one hot key, 1 thread", "one hot key, 2 threads"),
        if quick {
            ("100k keys zipf(1.0), 1 thread", "100k keys zipf(1.0), 2 threads")
        } else {
            ("1M keys zipf(1.0), 1 thread", "1M keys zipf(1.0), 2 threads")
        },
    ];
    let case = |name, threads, keys, picks: &Vec<u32>, goal| Case {
        name,
        threads,
        keys,
        picks: picks.clone(),
        goal,
    };
    vec![
        case(names[0].0, 1, 1, &hot, 1.0),
        case(names[0].1, 2, 1, &hot, 1.0),
        case(names[1].0, 1, keys, &mixed, 2.0),
        case(names[1].1, 2, keys, &mixed, 2.0),
    ]
}

fn limiters(keys: usize, only: &str) -> Vec<Box<dyn Limiter>> {
    let mut all: Vec<Box<dyn Limiter>> = vec![
        Box::new(Governor::<std::collections::hash_map::RandomState>::new("governor", BURST)),
        Box::new(Governor::<foldhash::fast::RandomState>::new(FAST, BURST)),
        Box::new(Throttlecrab::new(keys * 2, BURST)),
        Box::new(Limitador::new(keys as u64 * 2, BURST)),
        Box::new(Tollgate::new(keys.max(5_000_000) * 2, BURST)),
    ];
    all.retain(|limiter| limiter.name().contains(only));
    all
}

/// Nanoseconds per check and thread, and the share admitted.
fn time(limiter: &dyn Limiter, case: &Case, keys: &[String]) -> (f64, f64) {
    let checks = case.picks.len() / limiter.patience();
    let (nanos, admitted) = on_threads(case.threads, |thread| {
        // Each thread begins at another place in the sequence, and wraps around at its end.
        let (tail, head) = case.picks.split_at(thread * case.picks.len() / case.threads);
        let (head, tail) =
            (&head[..checks.min(head.len())], &tail[..checks.saturating_sub(head.len())]);
        let alone = case.threads == 1;
        limiter.check_all(keys, head, alone) + limiter.check_all(keys, tail, alone)
    });
    (nanos / checks as f64, admitted as f64 / (checks * case.threads) as f64)
}

pub fn run(quick: bool, rounds: usize, only: &str) {
    let rounds = if quick { rounds.min(3) } else { rounds };
    println!("\nT1: single-limit checks, ns per check and thread, median of {rounds} rounds");
    println!(
        "all: 24-byte string keys, 1,000 a day with a burst of {BURST}, a clock read per check"
    );
    for case in cases(quick) {
        let keys: Vec<String> =
            (0..case.keys as u64).map(|number| text(&key(number)).to_owned()).collect();
        let limiters = limiters(case.keys, only);
        let every: Vec<u32> = (0..case.keys as u32).collect();
        for limiter in &limiters {
            limiter.check_all(&keys, &every, true);
        }
        let mut times = vec![Vec::new(); limiters.len()];
        let mut shares = vec![1.0f64; limiters.len()];
        for _ in 0..rounds {
            for (place, limiter) in limiters.iter().enumerate() {
                let (nanos, share) = time(limiter.as_ref(), &case, &keys);
                times[place].push(nanos);
                shares[place] = shares[place].min(share);
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        let ours = limiters.iter().position(|limiter| limiter.name() == "tollgate");
        let Some(ours) = ours else { continue };
        for ((limiter, nanos), share) in limiters.iter().zip(&medians).zip(&shares) {
            let (our_nanos, share) = (medians[ours], share.min(shares[ours]) * 100.0);
            let factor = nanos / our_nanos;
            let work = format!("{}: tollgate against {}", case.name, limiter.name());
            let figure = format!(
                "{our_nanos:.0} ns against {nanos:.0} ns, {factor:.2}x as fast; {share:.0} % admitted"
            );
            if limiter.name() == FAST {
                let goal = if case.goal > 1.0 { ">= 2x" } else { "faster" };
                record("T1", &work, &figure, goal, Some(factor >= case.goal && factor > 1.0));
            } else if limiter.name() != "tollgate" {
                compare("T1", &work, &figure);
            }
        }
    }
}
