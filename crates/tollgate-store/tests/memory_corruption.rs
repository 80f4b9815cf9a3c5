//! Damaged files: opening never fails, and nothing is restored that was not written.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails, in its helpers too"
)]

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_core::{Algorithm, Nanos, Outcome, SECOND};
use tollgate_store::MemoryStore;

mod support;
use support::{Draw, HOUR, Meter, START, Warnings, limit, one_of_each_kind, open, options, stir};

const CORRUPTIONS: u64 = 600;

/// When everything is looked at.
const END: Nanos = START + 600 * SECOND;

/// A directory, and all that each counter ever was on disk.
struct Past {
    dir: tempfile::TempDir,
    meters: Vec<Meter>,
    written: Vec<Vec<Vec<Outcome>>>,
}

/// Several lives of a store: a base and several journals.
fn past(seed: u64) -> Past {
    let dir = tempfile::tempdir().unwrap();
    let mut meters = one_of_each_kind(HOUR);
    for number in 0..6 {
        let log = limit(Algorithm::SlidingWindowLog, 400, HOUR);
        meters.push(Meter::new(format!("log {number}"), log));
    }
    let fresh = MemoryStore::new(1_000);
    let mut written: Vec<_> = meters.iter().map(|meter| vec![meter.seen(&fresh, END)]).collect();
    let mut draw = Draw(seed);
    let mut now = START;
    for life in 0..4 {
        // Folded once, in the second life.
        let fold = if life == 1 { 4_000 } else { u64::MAX };
        let store = MemoryStore::open_folding(&options(dir.path()), fold, now);
        for _ in 0..6 {
            for meter in &meters {
                for _ in 0..draw.below(4) {
                    stir(&store, meter, &mut draw, now);
                    now += 1_000_000;
                }
            }
            now += SECOND;
            store.flush(now);
            for (meter, written) in meters.iter().zip(&mut written) {
                written.push(meter.seen(&store, END));
            }
        }
    }
    assert!(now < END);
    Past { dir, meters, written }
}

fn counter_files(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| {
        path.is_file() && path.extension().is_some_and(|extension| extension == "counters")
    };
    let mut files: Vec<PathBuf> = all.filter(is_ours).collect();
    files.sort();
    files
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    to
}

/// Where the frames of a file begin and end.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 40;
    while let Some(length) = bytes.get(at..at + 4) {
        let end = at + 12 + u32::from_le_bytes(length.try_into().unwrap()) as usize;
        if end > bytes.len() {
            break;
        }
        found.push((at, end));
        at = end;
    }
    found
}

/// Rearranges the frames of a file.
fn reframe(bytes: &[u8], order: impl Fn(&mut Vec<(usize, usize)>)) -> Vec<u8> {
    let mut all = frames(bytes);
    order(&mut all);
    let mut made = bytes[..40].to_vec();
    for (start, end) in all {
        made.extend_from_slice(&bytes[start..end]);
    }
    made
}

fn flip_bits(bytes: &mut [u8], draw: &mut Draw) {
    for _ in 0..=draw.below(3) {
        let at = draw.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << draw.below(8);
    }
}

/// Damages one directory in one way, and says how.
fn damage(dir: &Path, others: &Past, draw: &mut Draw) -> String {
    let files = counter_files(dir);
    let pick = |draw: &mut Draw| files[draw.below(files.len() as u64) as usize].clone();
    let (path, other) = (pick(draw), pick(draw));
    let mut bytes = fs::read(&path).unwrap();
    let length = bytes.len() as u64;
    // What was damaged before may leave nothing to rearrange.
    let kind = if frames(&bytes).is_empty() { 9 } else { draw.below(18) };
    match kind {
        0..=3 => {
            flip_bits(&mut bytes, draw);
            fs::write(&path, bytes).unwrap();
        }
        4 | 5 => fs::write(&path, &bytes[..draw.below(length) as usize]).unwrap(),
        6 => {
            let garbage = (0..draw.below(200)).map(|_| draw.next() as u8);
            bytes.extend(garbage.collect::<Vec<u8>>());
            fs::write(&path, bytes).unwrap();
        }
        7 => {
            fs::rename(&path, dir.join("aside")).unwrap();
            if path != other {
                fs::rename(&other, &path).unwrap();
            }
            fs::rename(dir.join("aside"), &other).unwrap();
        }
        8 => {
            let foreign = counter_files(others.dir.path());
            let theirs = &foreign[draw.below(foreign.len() as u64) as usize];
            fs::copy(theirs, &path).unwrap();
        }
        9 => fs::write(&path, b"").unwrap(),
        10 => fs::write(&path, &bytes[..40.min(bytes.len())]).unwrap(),
        11 => {
            let mixed = reframe(&bytes, |all| {
                let last = all.len().saturating_sub(1);
                all.swap(0, last);
            });
            fs::write(&path, mixed).unwrap();
        }
        12 => {
            let lost = draw.below(frames(&bytes).len() as u64) as usize;
            fs::write(&path, reframe(&bytes, |all| drop(all.drain(lost..=lost)))).unwrap();
        }
        13 => {
            let again = draw.below(frames(&bytes).len() as u64) as usize;
            fs::write(&path, reframe(&bytes, |all| all.insert(again, all[again]))).unwrap();
        }
        14 => {
            // An old file under a new name, and names that overflow.
            fs::copy(&path, dir.join("journal-00000000000000ff.counters")).unwrap();
            fs::copy(&path, dir.join("base-ffffffffffffffff.counters")).unwrap();
            fs::copy(&path, dir.join("journal-1.counters")).unwrap();
            fs::write(dir.join("base-zz.counters"), b"x").unwrap();
            fs::create_dir_all(dir.join("base-00000000000000fe.counters")).unwrap();
        }
        15 => fs::remove_file(&path).unwrap(),
        16 => {
            let secret = dir.join("counters.secret");
            let mut bytes = fs::read(&secret).unwrap();
            match draw.below(3) {
                0 => flip_bits(&mut bytes, draw),
                1 => bytes.truncate(draw.below(192) as usize),
                _ => bytes = fs::read(others.dir.path().join("counters.secret")).unwrap(),
            }
            fs::write(&secret, bytes).unwrap();
        }
        _ => {
            // A frame of one file in the place of another's.
            let theirs = fs::read(&other).unwrap();
            if let Some((start, end)) = frames(&theirs).pop() {
                bytes.extend_from_slice(&theirs[start..end]);
            }
            fs::write(&path, bytes).unwrap();
        }
    }
    format!("damage {kind} to {}", path.file_name().unwrap().display())
}

fn assert_only_what_was_written(store: &MemoryStore, past: &Past, how: &str) {
    for (meter, written) in past.meters.iter().zip(&past.written) {
        let seen = meter.seen(store, END);
        assert!(written.contains(&seen), "{how}: {} is {:?}", meter.name, seen[0]);
    }
}

#[test]
fn no_damage_restores_what_was_never_written() {
    let pasts = [past(1), past(2), past(3)];
    let mut draw = Draw(99);
    let mut wholly_fresh = 0;
    for round in 0..CORRUPTIONS {
        let past = &pasts[round as usize % 3];
        let copied = copy(past.dir.path());
        let mut how = String::new();
        for _ in 0..=draw.below(2) {
            let others = &pasts[(round as usize + 1) % 3];
            how = format!("{how}, {}", damage(copied.path(), others, &mut draw));
        }
        let store = open(copied.path(), END);
        assert_only_what_was_written(&store, past, &how);
        wholly_fresh += u64::from(store.usage().counters == 0);
        // The next life starts from what was left.
        let before: Vec<_> = past.meters.iter().map(|meter| meter.seen(&store, END)).collect();
        let more = Meter::new("more", limit(Algorithm::FixedWindow, 10, HOUR));
        more.charge(&store, 3, END);
        store.flush(END);
        drop(store);
        let store = open(copied.path(), END);
        for (meter, before) in past.meters.iter().zip(before) {
            assert_eq!(meter.seen(&store, END), before, "{how}, reopened: {}", meter.name);
        }
        assert_eq!(more.used(&store, END), 3, "{how}");
    }
    assert!(wholly_fresh < CORRUPTIONS / 4, "damage costs what it hit, not everything");
}

#[test]
fn undamaged_files_restore_the_last_flush() {
    for seed in 1..4 {
        let past = past(seed);
        let store = open(copy(past.dir.path()).path(), END);
        for (meter, written) in past.meters.iter().zip(&past.written) {
            assert_eq!(Some(&meter.seen(&store, END)), written.last(), "{}", meter.name);
        }
    }
}

#[test]
fn a_torn_tail_costs_only_the_tail_and_a_refused_file_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let meter = Meter::new("m", limit(Algorithm::FixedWindow, 100, HOUR));
    let store = open(dir.path(), START);
    for _ in 0..3 {
        meter.charge(&store, 1, START);
        store.flush(START);
    }
    drop(store);
    let journal = counter_files(dir.path()).pop().unwrap();
    let bytes = fs::read(&journal).unwrap();
    fs::write(&journal, &bytes[..bytes.len() - 1]).unwrap();
    let warnings = Warnings::default();
    let store = warnings.during(|| open(dir.path(), START));
    assert_eq!((meter.used(&store, START), warnings.count()), (2, 1));
    drop(store);
    fs::write(&journal, b"TOLLGAT9 is not a version of ours, so it is left alone").unwrap();
    let store = warnings.during(|| open(dir.path(), START));
    assert_eq!((meter.used(&store, START), warnings.count()), (0, 2));
    assert!(journal.with_extension("counters.refused").exists());
}

/// Older files under newer names are not laid over what came after them.
#[test]
fn a_copy_of_an_old_file_does_not_turn_back_time() {
    let past = past(4);
    for file in counter_files(past.dir.path()) {
        for kind in ["base", "journal"] {
            let copied = copy(past.dir.path());
            let newer = copied.path().join(format!("{kind}-00000000000000ff.counters"));
            fs::copy(&file, newer).unwrap();
            let store = open(copied.path(), END);
            for (meter, written) in past.meters.iter().zip(&past.written) {
                assert_eq!(Some(&meter.seen(&store, END)), written.last(), "{}", meter.name);
            }
        }
    }
}

/// A base that ends too early is refused, even where its frames are whole.
#[test]
fn a_base_without_its_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let meter = Meter::new("m", limit(Algorithm::FixedWindow, 100, HOUR));
    let store = MemoryStore::open_folding(&options(dir.path()), 0, START);
    meter.charge(&store, 5, START);
    store.flush(START);
    drop(store);
    let base = counter_files(dir.path())
        .into_iter()
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("base-"));
    let base = base.unwrap();
    let bytes = fs::read(&base).unwrap();
    fs::write(&base, reframe(&bytes, |all| all.truncate(all.len() - 1))).unwrap();
    let warnings = Warnings::default();
    let store = warnings.during(|| open(dir.path(), START));
    assert_eq!((meter.used(&store, START), warnings.count()), (0, 1));
    assert!(base.with_extension("counters.refused").exists());
}

/// The tail of a log is worth nothing without what came before it.
#[test]
fn a_log_is_never_restored_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let meter = Meter::new("log", limit(Algorithm::SlidingWindowLog, 1_000, HOUR));
    let store = MemoryStore::open_folding(&options(dir.path()), 0, START);
    for step in 0..40 {
        meter.charge(&store, 1, START + step);
        store.flush(START + step);
    }
    assert!(counter_files(dir.path()).len() == 2, "a base and its journal");
    let used = meter.used(&store, END);
    drop(store);
    for lost in counter_files(dir.path()) {
        let copied = copy(dir.path());
        fs::remove_file(copied.path().join(lost.file_name().unwrap())).unwrap();
        let left = meter.used(&open(copied.path(), END), END);
        let is_base = lost.file_name().unwrap().to_str().unwrap().starts_with("base-");
        if is_base {
            assert!(left == used || left == 0, "{left} of {used}");
        } else {
            assert!(left > 0 && left < used, "{left} of {used}: as of the base");
        }
    }
}
