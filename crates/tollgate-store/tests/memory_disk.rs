//! Disks that fail: the store warns, goes on deciding, and catches up when the disk is back.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails, in its helpers too"
)]

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_core::{Algorithm, SECOND};
use tollgate_store::MemoryStore;

mod support;
use support::{HOUR, Meter, START, Warnings, limit, open, options};

fn meter() -> Meter {
    Meter::new("m", limit(Algorithm::SlidingWindowLog, 1_000, HOUR))
}

fn newest_journal(dir: &Path) -> PathBuf {
    let journals = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_journal = |path: &PathBuf| path.to_str().unwrap().contains("journal-");
    journals.filter(is_journal).max().unwrap()
}

#[test]
fn a_directory_that_cannot_be_is_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "not a directory").unwrap();
    for path in [file.clone(), file.join("below"), PathBuf::from("/dev/null/x")] {
        let warnings = Warnings::default();
        warnings.during(|| {
            let store = open(&path, START);
            assert_eq!(warnings.count(), 1, "{}", path.display());
            assert!(meter().charge(&store, 1, START).examination.admits());
            store.flush(START);
            assert_eq!(meter().used(&store, START), 1);
        });
    }
}

#[test]
fn a_directory_that_vanishes_and_comes_back() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let meter = meter();
    let warnings = Warnings::default();
    let store = open(&dir, START);
    meter.charge(&store, 1, START);
    store.flush(START);
    fs::remove_dir_all(&dir).unwrap();
    warnings.during(|| {
        for second in 1..=10 {
            let now = START + second * SECOND;
            assert!(meter.charge(&store, 1, now).examination.admits());
            store.flush(now);
        }
    });
    assert!((1..=3).contains(&warnings.count()), "once in a while: {}", warnings.count());
    fs::create_dir(&dir).unwrap();
    let now = START + 20 * SECOND;
    store.flush(now);
    meter.charge(&store, 1, now);
    store.flush(now);
    assert!(MemoryStore::open(&options(&dir), now).usage().counters == 0, "it is in use");
    drop(store);
    assert_eq!(meter.used(&open(&dir, now), now), 12, "the secret came back too");
}

#[test]
fn a_journal_that_is_deleted_is_replaced_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let meter = meter();
    let store = open(dir.path(), START);
    meter.charge(&store, 1, START);
    store.flush(START);
    fs::remove_file(newest_journal(dir.path())).unwrap();
    meter.charge(&store, 1, START + 1);
    store.flush(START + 1);
    drop(store);
    assert_eq!(meter.used(&open(dir.path(), START + 2), START + 2), 2);
}

/// `/dev/full` refuses every byte, as a full disk does.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_survived() {
    for blocked in ["base.new", "journal"] {
        let dir = tempfile::tempdir().unwrap();
        let meter = meter();
        let store = MemoryStore::open_folding(&options(dir.path()), 0, START);
        let block = if blocked == "base.new" {
            dir.path().join("base.new")
        } else {
            let journal = newest_journal(dir.path());
            let digits = journal.file_stem().unwrap().to_str().unwrap();
            let generation = u64::from_str_radix(digits.split_once('-').unwrap().1, 16);
            dir.path().join(format!("journal-{:016x}.counters", generation.unwrap() + 1))
        };
        std::os::unix::fs::symlink("/dev/full", &block).unwrap();
        let warnings = Warnings::default();
        warnings.during(|| {
            for second in 0..100 {
                let now = START + second * SECOND;
                assert!(meter.charge(&store, 1, now).examination.admits());
                store.flush(now);
            }
        });
        assert!((1..=2).contains(&warnings.count()), "{blocked}: {}", warnings.count());
        fs::remove_file(&block).unwrap();
        let now = START + 100 * SECOND;
        warnings.during(|| store.flush(now));
        assert!(warnings.count() <= 2, "{blocked}: it is well again");
        drop(store);
        assert_eq!(meter.used(&open(dir.path(), now), now), 100, "{blocked}");
    }
}

/// While nothing can be written, what would have been written must not pile up.
#[test]
fn a_lasting_failure_does_not_fill_the_memory() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let store = open(&dir, START);
    fs::remove_dir_all(&dir).unwrap();
    let counters: Vec<Meter> = [Algorithm::SlidingWindowLog, Algorithm::TokenBucket]
        .into_iter()
        .map(|algorithm| Meter::new(algorithm.name(), limit(algorithm, 10, HOUR)))
        .collect();
    let empty = store.usage().bytes;
    for round in 0..20_000 {
        for meter in &counters {
            let receipt = meter.charge(&store, 1, START).receipt;
            meter.give_back(&store, receipt, START);
        }
        if round % 1_000 == 0 {
            store.flush(START);
            assert_eq!(store.pending_changes(), 0, "round {round}");
        }
    }
    assert!(store.pending_changes() > 0, "it counts something");
    assert!(store.usage().bytes <= empty + 10_000);
}
