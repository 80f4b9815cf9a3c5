//! A flood of unique keys against a bounded store: memory stays, and counters in use stay exact.

use tollgate_bench::limiters::{SOME_DAY, charge};
use tollgate_bench::process::resident_bytes;
use tollgate_bench::record::{grouped, record};
use tollgate_bench::work::{key, text};
use tollgate_core::{Algorithm, Limit, LimitSpec, SECOND, Window};
use tollgate_store::{MemoryStore, Mode};

const HOT: u64 = 1_000;

/// What every hot counter has used before the flood.
const USED_BEFORE: u64 = 300;

/// A hot counter is used once for so many keys of the flood.
const BETWEEN_USES: u64 = 100_000;

/// Memory may grow by so much of itself once the store is full.
const TOLERATED_GROWTH: f64 = 1.05;

pub fn run(quick: bool) {
    let (max_counters, flood) = if quick { (100_000, 2_000_000) } else { (1_000_000, 50_000_000) };
    println!("\nFlood: {flood} unique keys, at most {max_counters} counters, {HOT} hot ones");
    let spec = LimitSpec {
        algorithm: Algorithm::FixedWindow,
        quota: 1_000,
        window: Window::Every(24 * 3_600 * SECOND),
        burst: None,
        slot_ttl: 0,
    };
    let limit = Limit::new(spec).unwrap();
    let store = MemoryStore::new(max_counters);
    let use_once = |number: u64, now| {
        let key = key(number);
        store.decide_single(&charge(&limit, &[text(&key)]), Mode::Charge, now).examination.admits()
    };
    let report = |done: u64| {
        let resident = resident_bytes("self");
        let usage = store.usage();
        println!(
            "  {:>11} keys: {:>5} MB resident, {:>9} counters, {:>11} evicted",
            grouped(done as f64),
            resident / 1_000_000,
            usage.counters,
            usage.evicted
        );
        resident as f64
    };
    report(0);
    for hot in 0..HOT {
        for _ in 0..USED_BEFORE {
            assert!(use_once(hot, SOME_DAY));
        }
    }
    let mut resident = Vec::new();
    for number in 1..=flood {
        // A tenth of a microsecond for each key: the flood stays within one window.
        let now = SOME_DAY + number * 100;
        use_once(HOT + number, now);
        if number % BETWEEN_USES == 0 {
            for hot in 0..HOT {
                use_once(hot, now);
            }
        }
        if number % (flood / 5) == 0 {
            resident.push(report(number));
        }
    }
    let expected = USED_BEFORE + flood / BETWEEN_USES;
    let now = SOME_DAY + flood * 100;
    let is_exact = |hot: &u64| {
        let key = key(*hot);
        let outcome = store.decide_single(&charge(&limit, &[text(&key)]), Mode::Peek, now);
        outcome.status.used == expected
    };
    let exact = (0..HOT).filter(is_exact).count() as u64;
    let growth = resident.last().unwrap() / resident.first().unwrap();
    let millions = flood / 1_000_000;
    let work = format!("flood of {millions}M unique keys: hot counters exact");
    record("7", &work, &format!("{exact} of {HOT}"), "all", Some(exact == HOT));
    let work = format!("flood of {millions}M unique keys: memory, after the first fifth → all");
    let figure = format!("{growth:.2}x ({:.0} MB)", resident.last().unwrap() / 1e6);
    let holds = growth <= TOLERATED_GROWTH;
    record("7", &work, &figure, &format!("<= {TOLERATED_GROWTH}x"), Some(holds));
    if exact != HOT || !holds {
        std::process::exit(1);
    }
}
