//! What a memory store writes is what it reads back.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails, in its helpers too"
)]

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_core::{Algorithm, Ask, Nanos, Outcome, SECOND, SlotId};
use tollgate_store::{MemoryStore, Mode, Store};

mod support;
use support::{Draw, HOUR, Meter, START, Warnings, limit, one_of_each_kind, open, options, stir};

fn seen(store: &MemoryStore, meters: &[Meter], now: Nanos) -> Vec<Vec<Outcome>> {
    meters.iter().map(|meter| meter.seen(store, now)).collect()
}

fn assert_seen(store: &MemoryStore, meters: &[Meter], now: Nanos, expected: &[Vec<Outcome>]) {
    for (meter, expected) in meters.iter().zip(expected) {
        assert_eq!(&meter.seen(store, now), expected, "{}", meter.name);
    }
}

fn stir_all(store: &MemoryStore, meters: &[Meter], draw: &mut Draw, now: Nanos) {
    for meter in meters {
        for step in 0..draw.below(4) {
            stir(store, meter, draw, now + step * 1_000);
        }
    }
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    to
}

fn files(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
    let mut found: Vec<PathBuf> = all.filter(named).collect();
    found.sort();
    found
}

#[test]
fn a_restart_restores_every_kind_of_counter() {
    for seed in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let meters = one_of_each_kind(HOUR);
        let mut draw = Draw(seed);
        let mut now = START;
        let mut expected = Vec::new();
        for life in 0..6 {
            let store = open(dir.path(), now);
            if life > 0 {
                assert_seen(&store, &meters, now, &expected);
            }
            for _ in 0..draw.below(5) {
                stir_all(&store, &meters, &mut draw, now);
                now += SECOND;
                store.flush(now);
            }
            stir_all(&store, &meters, &mut draw, now);
            now += draw.below(600) * SECOND;
            store.flush(now);
            expected = seen(&store, &meters, now);
        }
    }
}

#[test]
fn held_slots_are_still_held_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let meter = Meter::new("slots", limit(Algorithm::Concurrency, 2, HOUR));
    let ask = |name| Ask::slot(SlotId(name));
    let store = open(dir.path(), START);
    for name in [1, u128::MAX] {
        assert!(meter.decide(&store, ask(name), Mode::Charge, START).examination.admits());
    }
    store.flush(START);
    drop(store);
    let store = open(dir.path(), START + 1);
    assert!(!meter.decide(&store, ask(3), Mode::Charge, START + 1).examination.admits());
    assert!(meter.decide(&store, ask(u128::MAX), Mode::Charge, START + 1).examination.admits());
    assert!(!meter.decide(&store, ask(3), Mode::Peek, START + HOUR - 1).examination.admits());
    assert!(meter.decide(&store, ask(3), Mode::Peek, START + HOUR).examination.admits());
}

#[cfg(unix)]
#[test]
fn nobody_else_reads_journals_and_snapshots() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let meters = one_of_each_kind(HOUR);
    let mut draw = Draw(3);
    let store = MemoryStore::open_folding(&options(dir.path()), 3_000, START);
    for round in 1..40 {
        stir_all(&store, &meters, &mut draw, START + round * SECOND);
        store.flush(START + round * SECOND);
    }
    let names = ["base-", "journal-", "counters.lock"];
    let written = names.map(|name| files(dir.path(), name)).concat();
    assert!(written.len() > 2, "{written:?}");
    for file in written {
        let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.display());
    }
}

#[test]
fn journals_are_folded_into_new_generations() {
    let dir = tempfile::tempdir().unwrap();
    let meters = one_of_each_kind(HOUR);
    let mut draw = Draw(7);
    let mut now = START;
    let mut store = MemoryStore::open_folding(&options(dir.path()), 3_000, now);
    let mut newest = PathBuf::new();
    let mut generations = 0;
    for round in 0..200 {
        stir_all(&store, &meters, &mut draw, now);
        now += SECOND;
        store.flush(now);
        let bases = files(dir.path(), "base-");
        assert!(bases.len() <= 1, "older bases are removed: {bases:?}");
        if let Some(base) = bases.last().filter(|base| **base > newest) {
            newest.clone_from(base);
            generations += 1;
        }
        assert!(files(dir.path(), "journal-").len() <= 18, "journals are folded");
        if round % 9 == 0 {
            let expected = seen(&store, &meters, now);
            drop(store);
            store = MemoryStore::open_folding(&options(dir.path()), 3_000, now);
            assert_seen(&store, &meters, now, &expected);
        }
    }
    assert!(generations > 10, "only {generations} generations");
}

#[test]
fn restarts_alone_do_not_pile_up_journals() {
    let dir = tempfile::tempdir().unwrap();
    let meter = Meter::new("m", limit(Algorithm::FixedWindow, 1_000, HOUR));
    for life in 0..100 {
        let store = open(dir.path(), START);
        assert_eq!(meter.used(&store, START), life);
        meter.charge(&store, 1, START);
        store.flush(START);
    }
    assert!(files(dir.path(), "journal-").len() < 20);
}

#[test]
fn a_log_that_grows_over_many_flushes_is_restored_whole() {
    let dir = tempfile::tempdir().unwrap();
    let meter = [Meter::new("log", limit(Algorithm::SlidingWindowLog, 100_000, 60 * SECOND))];
    let mut now = START;
    for fold in [u64::MAX, 5_000] {
        let store = MemoryStore::open_folding(&options(dir.path()), fold, now);
        for flush in 0..600 {
            for _ in 0..10 {
                now += 13_000_000;
                meter[0].charge(&store, 1 + now % 3, now);
            }
            // The last entry grows after it was flushed.
            if flush % 5 == 0 {
                meter[0].charge(&store, 1, now);
            }
            store.flush(now);
        }
        let expected = seen(&store, &meter, now);
        drop(store);
        let copied = copy(dir.path());
        let store = open(copied.path(), now);
        assert_seen(&store, &meter, now, &expected);
        let bytes = store.usage().bytes;
        assert!(bytes < 140_000, "what left the window is not kept: {bytes} bytes");
    }
}

#[test]
fn removed_counters_stay_removed() {
    for fold in [u64::MAX, 0] {
        let dir = tempfile::tempdir().unwrap();
        let meters = one_of_each_kind(HOUR);
        let store = MemoryStore::open_folding(&options(dir.path()), fold, START);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let reset = |meter: &Meter| {
            meter.with(|counter| runtime.block_on(store.reset(&[counter], START)).unwrap());
        };
        for meter in &meters {
            meter.charge(&store, 2, START);
        }
        store.flush(START);
        for (number, meter) in meters.iter().enumerate() {
            reset(meter);
            // Some are charged again before the flush: the removal must not come after that.
            if number % 2 == 0 {
                meter.charge(&store, 1, START);
            }
        }
        store.flush(START);
        let copied = copy(dir.path());
        let store = open(copied.path(), START);
        for (number, meter) in meters.iter().enumerate() {
            let expected = u64::from(number % 2 == 0);
            assert_eq!(meter.used(&store, START), expected, "{}", meter.name);
        }
    }
}

#[test]
fn what_was_given_back_in_full_stays_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let meters = one_of_each_kind(HOUR);
    let store = open(dir.path(), START);
    let receipts: Vec<_> =
        meters.iter().map(|meter| meter.charge(&store, 2, START).receipt).collect();
    store.flush(START);
    for (meter, receipt) in meters.iter().zip(receipts) {
        meter.give_back(&store, receipt, START);
    }
    store.flush(START);
    drop(store);
    let store = open(dir.path(), START);
    for meter in &meters {
        assert_eq!(meter.used(&store, START), 0, "{}", meter.name);
    }
    assert_eq!(store.usage().counters, 0);
}

/// Charges that can be refunded are refunded after a restart as before it, from the journal and from a base.
#[test]
fn refundable_charges_survive_a_restart() {
    for fold in [u64::MAX, 0] {
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
            let dir = tempfile::tempdir().unwrap();
            let meter = Meter::new(algorithm.name(), limit(algorithm, 100, HOUR));
            let store = MemoryStore::open_folding(&options(dir.path()), fold, START);
            let mut receipts = Vec::new();
            for number in 0..4 {
                let at = START + number;
                let ask = Ask::cost(5).refundable();
                receipts.push(meter.decide(&store, ask, Mode::Charge, at).receipt);
                meter.charge(&store, 1, at);
                store.flush(at);
            }
            let now = START + 4;
            meter.give_back(&store, receipts[1], now);
            store.flush(now);
            drop(store);
            let store = MemoryStore::open_folding(&options(dir.path()), fold, now);
            assert_eq!(meter.used(&store, now), 19, "{algorithm}");
            for (index, left) in [(2, 14), (0, 9), (3, 4)] {
                meter.give_back(&store, receipts[index], now);
                assert_eq!(meter.used(&store, now), left, "{algorithm}");
            }
            store.flush(now);
            drop(store);
            let store = MemoryStore::open_folding(&options(dir.path()), fold, now);
            assert_eq!(meter.used(&store, now), 4, "{algorithm}");
        }
    }
}

#[test]
fn expired_counters_are_not_restored() {
    for fold in [u64::MAX, 0] {
        let dir = tempfile::tempdir().unwrap();
        let meters = one_of_each_kind(SECOND);
        let store = MemoryStore::open_folding(&options(dir.path()), fold, START);
        for meter in &meters {
            meter.charge(&store, 2, START);
        }
        store.flush(START);
        drop(store);
        let store = open(dir.path(), START + 3 * SECOND);
        assert_eq!(store.usage().counters, 0);
        for meter in &meters {
            assert_eq!(meter.used(&store, START + 3 * SECOND), 0, "{}", meter.name);
        }
    }
}

#[test]
fn a_directory_in_use_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let meter = Meter::new("m", limit(Algorithm::TokenBucket, 10, HOUR));
    let first = open(dir.path(), START);
    meter.charge(&first, 3, START);
    first.flush(START);
    let warnings = Warnings::default();
    let second = warnings.during(|| open(dir.path(), START));
    assert_eq!(warnings.count(), 1);
    assert_eq!(meter.used(&second, START), 0, "it does not read what another is writing");
    meter.charge(&second, 9, START);
    second.flush(START);
    drop((first, second));
    let third = open(dir.path(), START);
    assert_eq!(meter.used(&third, START), 3);
}

#[test]
fn a_killed_process_comes_back_as_of_its_last_flush() {
    for seed in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let meters = one_of_each_kind(HOUR);
        let mut draw = Draw(seed);
        let mut now = START;
        let fold = if seed % 2 == 0 { u64::MAX } else { 2_000 };
        let store = MemoryStore::open_folding(&options(dir.path()), fold, now);
        for _ in 0..=draw.below(12) {
            stir_all(&store, &meters, &mut draw, now);
            now += SECOND;
            store.flush(now);
        }
        now += SECOND;
        let expected = seen(&store, &meters, now);
        // Never flushed.
        stir_all(&store, &meters, &mut draw, now);
        // The killed process's lock goes with it; the copy has a lock of its own.
        let copied = copy(dir.path());
        let restored = open(copied.path(), now);
        assert_seen(&restored, &meters, now, &expected);
        // And once more: what was restored is not lost by not being changed.
        restored.flush(now);
        drop(restored);
        assert_seen(&open(copied.path(), now), &meters, now, &expected);
    }
}

#[test]
fn many_counters_survive_in_a_store_of_another_size() {
    let dir = tempfile::tempdir().unwrap();
    let meters: Vec<Meter> = (0..20_000)
        .map(|n| Meter::new(format!("{n}"), limit(Algorithm::TokenBucket, 1_000, HOUR)))
        .collect();
    let store = open(dir.path(), START);
    for (cost, meter) in (1..).zip(&meters) {
        meter.charge(&store, 1 + cost % 900, START);
    }
    store.flush(START);
    drop(store);
    let mut larger = options(dir.path());
    larger.max_counters = 1_000_000;
    let store = MemoryStore::open(&larger, START);
    for (cost, meter) in (1..).zip(&meters) {
        assert_eq!(meter.used(&store, START), 1 + cost % 900);
    }
}
