//! A flood of keys: memory stays bounded, and counters that matter are kept.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails, in its helpers too"
)]

use tollgate_core::{Algorithm, Ask, Limit, Nanos, SECOND, SlotId, State};
use tollgate_store::{MemoryStore, Mode};

mod support;
use support::{HOUR, Meter, START, limit};

const MAX_COUNTERS: usize = 20_000;
const FLOOD: u64 = 1_000_000;
const DAY: Nanos = 24 * HOUR;

/// A counter near its limit, and what it should be.
struct Hot {
    meter: Meter,
    state: State,
}

impl Hot {
    fn new(name: String, limit: Limit) -> Self {
        Self { state: limit.fresh(), meter: Meter::new(name, limit) }
    }

    fn touch(&mut self, store: &MemoryStore, cost: u64, slot: u64, now: Nanos) {
        let ask = Ask { slot: SlotId(slot.into()), ..Ask::cost(cost) };
        let outcome = self.meter.decide(store, ask, Mode::Charge, now);
        let expected = self.meter.limit.decide(&mut self.state, &ask, now);
        assert_eq!(outcome, expected, "{}", self.meter.name);
    }
}

/// Counters of every algorithm at nine tenths of a minute's or a day's limit.
fn hot_counters(store: &MemoryStore) -> Vec<Hot> {
    let mut all = Vec::new();
    for algorithm in Algorithm::ALL {
        for window in [60 * SECOND, DAY] {
            for number in 0..8 {
                let name = format!("hot {algorithm} {window} {number}");
                let mut hot = Hot::new(name, limit(algorithm, 100, window));
                if algorithm == Algorithm::Concurrency {
                    (0..90).for_each(|slot| hot.touch(store, 1, slot, START));
                } else {
                    hot.touch(store, 90, 0, START);
                }
                all.push(hot);
            }
        }
    }
    all
}

fn flood(algorithm: Algorithm, quota: u64, window: Nanos) {
    let store = MemoryStore::new(MAX_COUNTERS);
    let mut hot = hot_counters(&store);
    let weight = if matches!(algorithm, Algorithm::SlidingWindowLog | Algorithm::Concurrency) {
        MAX_COUNTERS / 4
    } else {
        MAX_COUNTERS
    };
    let mut flooding = Meter::new("", limit(algorithm, quota, window));
    let mut most_bytes = 0;
    for number in 0..FLOOD {
        let now = START + number * 1_000;
        flooding.name = format!("flood {number}");
        let ask = Ask { slot: SlotId(1), ..Ask::cost(1) };
        assert!(flooding.decide(&store, ask, Mode::Charge, now).examination.admits());
        if number % 20_000 == 0 {
            for (index, hot) in hot.iter_mut().enumerate() {
                hot.touch(&store, 1 + number % 2, number + 100, now + index as u64);
            }
            let usage = store.usage();
            assert!(usage.counters <= (weight + 250) as u64, "{algorithm}: {usage:?}");
            most_bytes = most_bytes.max(usage.bytes);
        }
    }
    let usage = store.usage();
    let budget = 2 * MAX_COUNTERS as u64 * 40 + 200_000;
    assert!(most_bytes <= budget, "{algorithm}: {most_bytes} bytes");
    assert!(usage.evicted >= FLOOD - 2 * MAX_COUNTERS as u64, "{algorithm}: {usage:?}");
    assert!(usage.evicted <= FLOOD, "{algorithm}: {usage:?}");
}

macro_rules! floods {
    ($($name:ident: $algorithm:ident, $quota:expr, $window:expr;)*) => {
        $(
            #[test]
            fn $name() {
                flood(Algorithm::$algorithm, $quota, $window);
            }
        )*
    };
}

floods! {
    a_flood_of_fixed_windows_of_a_day: FixedWindow, 1_000, DAY;
    a_flood_of_fixed_windows_that_one_request_fills: FixedWindow, 1, DAY;
    a_flood_of_sliding_logs: SlidingWindowLog, 100, DAY;
    a_flood_of_sliding_counters: SlidingWindowCounter, 100, 60 * SECOND;
    a_flood_of_token_buckets: TokenBucket, 10, DAY;
    a_flood_of_leaky_buckets: LeakyBucket, 10, DAY;
    a_flood_of_gcra: Gcra, 1, DAY;
    a_flood_of_slots: Concurrency, 5, DAY;
}

/// One log of many entries outweighs its shard's share; as long as other shards leave room, its
/// neighbours are not evicted.
#[test]
fn a_long_log_does_not_drive_out_its_neighbours() {
    let store = MemoryStore::new(MAX_COUNTERS);
    let small: Vec<Meter> = (0..500)
        .map(|number| Meter::new(format!("{number}"), limit(Algorithm::SlidingWindowLog, 100, DAY)))
        .collect();
    for meter in &small {
        meter.charge(&store, 5, START);
    }
    let long = Meter::new("long", limit(Algorithm::SlidingWindowLog, 10_000, DAY));
    for number in 0..10_000 {
        long.charge(&store, 1, START + number);
    }
    assert_eq!(store.usage().evicted, 0);
    assert!(small.iter().all(|meter| meter.used(&store, START + 10_000) == 5));
    assert_eq!(long.used(&store, START + 10_000), 10_000);
}

/// Counters that come and go take each other's places: nothing in use is ever evicted for them.
#[test]
fn expired_counters_make_room() {
    for algorithm in Algorithm::ALL {
        let store = MemoryStore::new(10_000);
        let is_large = matches!(algorithm, Algorithm::SlidingWindowLog | Algorithm::Concurrency);
        // So many in a second: the packed ones fill the table as far as their spread over shards
        // allows, and a sliding counter lives for two windows.
        let at_once = match algorithm {
            _ if is_large => 400,
            Algorithm::SlidingWindowCounter => 3_000,
            _ => 6_000,
        };
        let mut meter = Meter::new("", limit(algorithm, 10, SECOND));
        for number in 0..FLOOD {
            let now = START + number * (SECOND / at_once);
            meter.name = format!("{number}");
            meter.charge(&store, 10, now);
        }
        let usage = store.usage();
        assert_eq!(usage.evicted, 0, "{algorithm}");
        assert!(usage.counters <= 10_000, "{algorithm}: {usage:?}");
    }
}

#[test]
fn tidying_gives_memory_back() {
    let store = MemoryStore::new(1_000_000);
    let empty = store.usage().bytes;
    let keeper = Meter::new("keeper", limit(Algorithm::TokenBucket, 10, DAY));
    keeper.charge(&store, 7, START);
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::new("", limit(algorithm, 10, SECOND));
        for number in 0..30_000 {
            meter.name = format!("{algorithm} {number}");
            meter.charge(&store, 3, START);
        }
    }
    let full = store.usage();
    assert_eq!((full.counters, full.evicted), (7 * 30_000 + 1, 0));
    let now = START + 3 * SECOND;
    for part in 0..16 {
        store.tidy(part, 16, now);
    }
    let tidied = store.usage();
    assert_eq!((tidied.counters, tidied.evicted), (1, 0));
    assert!(tidied.bytes - empty < (full.bytes - empty) / 10, "{full:?}, then {tidied:?}");
    assert_eq!(keeper.used(&store, START), 7);
}
