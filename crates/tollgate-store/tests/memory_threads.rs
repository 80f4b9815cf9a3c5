//! Many threads on one memory store: exact, and never stuck.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails, in its helpers too"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tollgate_core::{Algorithm, Ask, Receipt, SlotId};
use tollgate_store::{Charge, Counter, Home, MemoryStore, Mode, Role, passes};

mod support;
use support::{Draw, HOUR, Meter, START, decide_all, limit, one_of_each_kind, open, salt, stir};

const THREADS: u64 = 64;

/// Long past any honest run; only a deadlock takes so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs `work` in so many threads and fails if one of them hangs.
fn in_threads(work: impl Fn(u64) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let (done, ended) = mpsc::channel();
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (work, done) = (Arc::clone(&work), done.clone());
            thread::spawn(move || {
                work(number);
                done.send(()).unwrap();
            })
        })
        .collect();
    drop(done);
    for _ in 0..THREADS {
        match ended.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("a thread hangs: a deadlock"),
            // One has panicked; joining it shows why.
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn threads_admit_exactly_the_quota_of_every_algorithm() {
    const EACH: u64 = 500;
    for algorithm in Algorithm::ALL {
        let quota = if algorithm == Algorithm::Concurrency { 300 } else { THREADS * EACH / 3 };
        let store = Arc::new(MemoryStore::new(10_000_000));
        let meter = Meter::new("one", limit(algorithm, quota, 100_000 * HOUR));
        let admitted = Arc::new(AtomicU64::new(0));
        let (mine, count) = (Arc::clone(&store), Arc::clone(&admitted));
        in_threads(move |thread| {
            for number in 0..EACH {
                let slot = SlotId(u128::from(thread * EACH + number));
                let ask = Ask { slot, ..Ask::cost(1) };
                // Every instant is another one, so that logs have many entries.
                let now = START + thread * EACH + number;
                let outcome = meter.decide(&mine, ask, Mode::Charge, now);
                count.fetch_add(u64::from(outcome.examination.admits()), Ordering::Relaxed);
            }
        });
        assert_eq!(admitted.load(Ordering::Relaxed), quota, "{algorithm}");
        assert_eq!(store.usage().evicted, 0, "{algorithm}");
    }
}

struct Shared {
    meter: Meter,
    charged: AtomicU64,
}

/// Random sets of one to eight counters over few shards, so that locks cross; some charges are given
/// back at once. In the end every counter has used exactly what its requests paid.
#[test]
fn threads_on_random_sets_account_exactly() {
    let store = Arc::new(MemoryStore::new(8 * 1024));
    let shared: Arc<Vec<Shared>> = Arc::new(
        (0..42u64)
            .map(|number| {
                let algorithm = Algorithm::ALL[number as usize % 7];
                let quota = [50, 500, 5_000, 50, 700, 300][number as usize / 7];
                let limit = limit(algorithm, quota, 100_000 * HOUR);
                let meter = Meter::new(format!("set {number}"), limit);
                Shared { meter, charged: AtomicU64::new(0) }
            })
            .collect(),
    );
    let (mine, all) = (Arc::clone(&store), Arc::clone(&shared));
    in_threads(move |thread| {
        let mut draw = Draw(thread);
        for number in 0..300 {
            if thread == 0 {
                mine.tidy(number as usize, 8, START);
                mine.usage();
            }
            one_request(&mine, &all, &mut draw, u128::from(thread * 1_000 + number + 1));
        }
    });
    for one in &*shared {
        let used = one.meter.used(&store, START);
        assert_eq!(used, one.charged.load(Ordering::Relaxed), "{:?}", one.meter);
        assert!(used <= one.meter.limit.quota(), "{:?}", one.meter);
    }
    assert!(shared.iter().any(|one| one.meter.used(&store, START) == one.meter.limit.quota()));
    assert_eq!(store.usage().evicted, 0);
}

fn one_request(store: &MemoryStore, shared: &[Shared], draw: &mut Draw, name: u128) {
    let mut chosen: Vec<&Shared> = Vec::new();
    for _ in 0..=draw.below(8) {
        let one = &shared[draw.below(shared.len() as u64) as usize];
        if !chosen.iter().any(|other| std::ptr::eq(*other, one)) {
            chosen.push(one);
        }
    }
    let keys: Vec<[&str; 1]> = chosen.iter().map(|one| [one.meter.name.as_str()]).collect();
    let charges: Vec<Charge<'_>> = (chosen.iter().zip(&keys))
        .map(|(one, key)| {
            let role = [Role::Must, Role::Must, Role::Must, Role::AnyOf, Role::Watch];
            Charge {
                counter: Counter {
                    rule_id: "rule",
                    tag: "tag",
                    salt: salt("rule"),
                    key,
                    home: Home::default(),
                },
                limit: &one.meter.limit,
                ask: Ask { slot: SlotId(name), ..Ask::cost(1 + draw.below(3)).refundable() },
                role: role[draw.below(5) as usize],
            }
        })
        .collect();
    let outcomes = decide_all(store, &charges, Mode::Charge, START);
    let passed = passes(&charges, &outcomes);
    let gives_back = draw.below(4) == 0;
    for ((one, charge), outcome) in chosen.iter().zip(&charges).zip(&outcomes) {
        let paid = outcome.receipt != Receipt::Nothing;
        assert_eq!(paid, passed && outcome.examination.admits());
        assert!(outcome.status.used <= one.meter.limit.quota(), "{:?}", one.meter);
        if paid && gives_back {
            one.meter.give_back(store, outcome.receipt, START);
        } else if paid {
            let slots = one.meter.limit.algorithm() == Algorithm::Concurrency;
            let cost = if slots { 1 } else { charge.ask.cost };
            one.charged.fetch_add(cost, Ordering::Relaxed);
        }
    }
}

/// Flushing and tidying go on beside deciding, and what is on disk in the end is all of it.
#[test]
fn flushing_beside_deciding_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = support::options(dir.path());
    let store = Arc::new(MemoryStore::open_folding(&options, 20_000, START));
    let meters = Arc::new(one_of_each_kind(HOUR));
    let (mine, all) = (Arc::clone(&store), Arc::clone(&meters));
    let stop = Arc::new(AtomicBool::new(false));
    in_threads(move |thread| {
        if thread == 0 {
            while !stop.load(Ordering::Relaxed) {
                mine.flush(START);
            }
            return;
        }
        let mut draw = Draw(thread);
        for _ in 0..200 {
            let meter = &all[draw.below(all.len() as u64) as usize];
            let now = START + draw.below(1_000);
            stir(&mine, meter, &mut draw, now);
        }
        if thread == 1 {
            stop.store(true, Ordering::Relaxed);
        }
    });
    store.flush(START);
    let later = START + 2_000;
    let before: Vec<_> = meters.iter().map(|meter| meter.seen(&store, later)).collect();
    drop(store);
    let store = open(dir.path(), later);
    for (meter, before) in meters.iter().zip(before) {
        assert_eq!(meter.seen(&store, later), before, "{}", meter.name);
    }
}
