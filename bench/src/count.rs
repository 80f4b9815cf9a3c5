//! `tollgate-count`: everything that is counted in bytes and allocations, not in time.

use std::alloc::{GlobalAlloc, Layout};
use std::process::Command as Process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;
use tollgate_bench::limiters::{
    BURST, Limitador, SOME_DAY, Tollgate, charge, governor_quota, limit,
};
use tollgate_bench::once::poll;
use tollgate_bench::process::{end_with_this, resident_bytes};
use tollgate_bench::record::{compare, record};
use tollgate_bench::rules;
use tollgate_bench::work::{key, text};
use tollgate_core::Algorithm;
use tollgate_engine::{Engine, SystemClock};
use tollgate_policy::RuleSet;
use tollgate_store::{MemoryStore, Mode};

/// The product's allocator, with a count of what passes through it.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on; counting touches no memory but its own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        BYTES.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        BYTES.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        BYTES.fetch_add((size as u64).wrapping_sub(layout.size() as u64), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { MiMalloc.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Parser)]
#[command(about = "Bytes per counter and allocations per decision")]
struct Args {
    /// Small figures in short time: does it run at all?
    #[arg(long, global = true, env = "BENCH_QUICK", value_parser = clap::builder::FalseyValueParser::new())]
    quick: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// T2: allocations of an allowed decision
    Allocations,
    /// T3: bytes per counter, of ours and of the peers
    Memory,
    /// One line of it, in a process of its own
    MemoryOf {
        /// An algorithm of ours, or the name of a peer
        who: String,
        /// How many counters
        counters: u64,
    },
}

fn main() {
    let Args { quick, command } = Args::parse();
    match command {
        Command::Allocations => allocations(quick),
        Command::Memory => memory(quick),
        Command::MemoryOf { who, counters } => memory_of(&who, counters),
    }
}

fn allocations(quick: bool) {
    let count = if quick { 100_000 } else { 1_000_000 };
    println!("\nT2: allocations of an allowed decision");
    let set = RuleSet::from_yaml(&rules::file(1_000), "bench").unwrap();
    let engine = Engine::new(MemoryStore::new(1_000_000), Arc::new(SystemClock::new()), set)
        .with_missing_key(tollgate_engine::MissingKey::Allow);
    let callers = rules::callers(10_000, count);
    let decide_all = || {
        let rules = engine.rules();
        for caller in &callers {
            let decision = poll(engine.decide(&rules, &caller.request(), Mode::Charge)).unwrap();
            assert!(decision.is_allowed() && decision.scopes().count() == 3);
        }
    };
    // The first time makes the counters.
    decide_all();
    let before = ALLOCATIONS.load(Relaxed);
    decide_all();
    let each = (ALLOCATIONS.load(Relaxed) - before) as f64 / count as f64;
    let work = "allocations of an allowed decision, 3 scopes from 1,000 rules";
    record("T2", work, &format!("{each}"), "0", Some(each == 0.0));

    let limiter = Tollgate::new(1_000_000, BURST);
    let key = key(1);
    limiter.check(text(&key));
    let before = ALLOCATIONS.load(Relaxed);
    (0..count).for_each(|_| assert!(limiter.check(text(&key))));
    let each = (ALLOCATIONS.load(Relaxed) - before) as f64 / count as f64;
    compare("T2", "allocations of a single check", &format!("{each}"));
}

fn memory(quick: bool) {
    let counters: u64 = if quick { 1_000_000 } else { 10_000_000 };
    println!("\nT3: bytes per counter at {counters} counters with 24-byte keys");
    let ours = Algorithm::ALL.into_iter().filter(|algorithm| {
        !matches!(algorithm, Algorithm::SlidingWindowLog | Algorithm::Concurrency)
    });
    for algorithm in ours {
        let [resident, allocated, worst] = measure(algorithm.name(), counters);
        let work = format!("bytes per counter, {}M counters, `{algorithm}`", counters / 1_000_000);
        let figure = format!("{resident:.1} resident ({allocated:.1} allocated)");
        record("T3", &work, &figure, "<= 40", Some(resident <= 40.0));
        println!("       at worst while growing over the last half: {worst:.1} resident");
    }
    // limitador needs ten times the memory and time, so it gets a tenth of the counters.
    for (peer, counters) in
        [("governor", counters), ("throttlecrab", counters), ("limitador", counters / 10)]
    {
        let [resident, allocated, _] = measure(peer, counters);
        let work = format!("bytes per counter, {}M counters, {peer}", counters as f64 / 1e6);
        let figure = format!("{resident:.1} resident ({allocated:.1} allocated)");
        compare("T3", &work, &figure);
    }
}

fn measure(who: &str, counters: u64) -> [f64; 3] {
    let this = std::env::current_exe().unwrap();
    let mut child = Process::new(this);
    end_with_this(&mut child);
    let output = child.args(["memory-of", who, &counters.to_string()]).output().unwrap();
    assert!(output.status.success(), "{who}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let figures: Vec<f64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    figures.try_into().unwrap()
}

/// Prints bytes per counter: resident, allocated, and the worst resident over the last half.
fn memory_of(who: &str, counters: u64) {
    let resident_before = resident_bytes("self");
    let allocated_before = BYTES.load(Relaxed);
    let mut worst = 0.0f64;
    let resident = || (resident_bytes("self") - resident_before) as f64;
    let mut add_all = |add: &mut dyn FnMut(u64, &str)| {
        for number in 0..counters {
            add(number, text(&key(number)));
            let done = number + 1;
            if done * 2 >= counters && done.is_multiple_of(counters / 40) {
                worst = worst.max(resident() / done as f64);
            }
        }
    };
    let figures = || {
        let allocated = (BYTES.load(Relaxed) - allocated_before) as f64;
        (resident() / counters as f64, allocated / counters as f64)
    };
    let (resident, allocated) = match who {
        "governor" => {
            let quota = governor_quota(BURST);
            let hasher = foldhash::fast::RandomState::default();
            let limiter = governor::RateLimiter::dashmap_with_hasher(quota, hasher);
            add_all(&mut |_, key| assert!(limiter.check_key(&key.to_owned()).is_ok()));
            figures()
        }
        "throttlecrab" => {
            let store = throttlecrab::PeriodicStore::builder()
                .capacity(counters as usize)
                .cleanup_interval(std::time::Duration::from_secs(3_600))
                .build();
            let mut limiter = throttlecrab::RateLimiter::new(store);
            add_all(&mut |_, key| {
                let now = std::time::SystemTime::now();
                assert!(limiter.rate_limit(key, BURST.into(), 1_000, 86_400, 1, now).unwrap().0);
            });
            figures()
        }
        "limitador" => {
            let limiter = Limitador::new(counters * 2, BURST);
            add_all(&mut |_, key| assert!(limiter.check(key)));
            figures()
        }
        algorithm => {
            let algorithm = Algorithm::from_name(algorithm).expect("an algorithm or a peer");
            let limit = limit(algorithm, BURST);
            let store = MemoryStore::new(counters as usize * 2);
            add_all(&mut |number, key| {
                let key = [key];
                let charge = charge(&limit, &key);
                let outcome = store.decide_single(&charge, Mode::Charge, SOME_DAY + number);
                assert!(outcome.examination.admits());
            });
            let usage = store.usage();
            assert_eq!((usage.counters, usage.evicted), (counters, 0), "all counters are kept");
            figures()
        }
    };
    println!("{resident} {allocated} {worst}");
}
