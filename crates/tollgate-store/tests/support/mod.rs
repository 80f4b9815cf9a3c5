//! Counters of every kind, and what can be observed of them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{
    Algorithm, Ask, Limit, LimitSpec, Nanos, Outcome, Receipt, SECOND, SlotId, Window,
};
use tollgate_store::memory::MemoryOptions;
use tollgate_store::{Charge, Counter, GiveBack, Home, MemoryStore, Mode, Outcomes, Request, Role};
use xxhash_rust::xxh3::xxh3_128;

pub const START: Nanos = 1_789_000_000 * SECOND + 123_456_789;
pub const HOUR: Nanos = 3600 * SECOND;

pub fn limit(algorithm: Algorithm, quota: u64, window: Nanos) -> Limit {
    let burst = (algorithm.is_bucket() && quota > 0).then_some(quota);
    let spec =
        LimitSpec { algorithm, quota, window: Window::Every(window), burst, slot_ttl: window };
    Limit::new(spec).unwrap()
}

pub fn salt(name: &str) -> u128 {
    xxh3_128(name.as_bytes())
}

/// One counter.
#[derive(Debug, Clone)]
pub struct Meter {
    pub name: String,
    pub limit: Limit,
}

impl Meter {
    pub fn new(name: impl Into<String>, limit: Limit) -> Self {
        Self { name: name.into(), limit }
    }

    pub fn with<T>(&self, act: impl FnOnce(Counter<'_>) -> T) -> T {
        let key = [self.name.as_str()];
        act(Counter {
            rule_id: "rule",
            tag: "tag",
            salt: salt("rule"),
            key: &key,
            home: Home::default(),
        })
    }

    pub fn decide(&self, store: &MemoryStore, ask: Ask, mode: Mode, now: Nanos) -> Outcome {
        self.with(|counter| {
            let charge = Charge { counter, limit: &self.limit, ask, role: Role::Must };
            store.decide_single(&charge, mode, now)
        })
    }

    pub fn charge(&self, store: &MemoryStore, cost: u64, now: Nanos) -> Outcome {
        self.decide(store, Ask::cost(cost), Mode::Charge, now)
    }

    pub fn give_back(&self, store: &MemoryStore, receipt: Receipt, now: Nanos) {
        self.with(|counter| {
            store.give_back_now(&GiveBack { counter, limit: &self.limit, receipt }, now);
        });
    }

    pub fn used(&self, store: &MemoryStore, now: Nanos) -> u64 {
        self.decide(store, Ask::cost(1), Mode::Peek, now).status.used
    }

    /// All that can be seen of a counter from `now` on, without changing it.
    pub fn seen(&self, store: &MemoryStore, now: Nanos) -> Vec<Outcome> {
        let window = self.limit.window_nanos();
        let mut seen = Vec::new();
        for ahead in [0, 1, window / 7, window / 3, window - 1, window, window * 3 / 2] {
            for cost in [1, 2, self.limit.capacity() / 2, self.limit.capacity()] {
                let ask = Ask { slot: SlotId(u128::MAX), ..Ask::cost(cost) };
                seen.push(self.decide(store, ask, Mode::Peek, now + ahead));
            }
        }
        // Whether these slots are held: their holders are admitted though all others are refused.
        for slot in 0..8 {
            seen.push(self.decide(store, Ask::slot(SlotId(slot)), Mode::Peek, now));
        }
        seen
    }
}

/// Counters of every algorithm, and of every way they are kept.
pub fn one_of_each_kind(window: Nanos) -> Vec<Meter> {
    let mut meters: Vec<Meter> = Algorithm::ALL
        .iter()
        .map(|algorithm| Meter::new(algorithm.name(), limit(*algorithm, 100, window)))
        .collect();
    // Too large to pack: counts above 2^32, and fractions finer than 2^-32.
    for algorithm in [Algorithm::SlidingWindowCounter, Algorithm::FixedWindow] {
        meters.push(Meter::new(format!("large {algorithm}"), limit(algorithm, 1 << 40, window)));
    }
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let fine = limit(algorithm, 5_000_000_029, window);
        meters.push(Meter::new(format!("fine {algorithm}"), fine));
    }
    meters.push(Meter::new("awkward", limit(Algorithm::TokenBucket, 7, window)));
    meters
}

pub fn options(dir: &Path) -> MemoryOptions {
    MemoryOptions { max_counters: 50_000, data_dir: Some(dir.to_owned()) }
}

pub fn open(dir: &Path, now: Nanos) -> MemoryStore {
    MemoryStore::open(&options(dir), now)
}

pub fn decide_all(store: &MemoryStore, charges: &[Charge<'_>], mode: Mode, now: Nanos) -> Outcomes {
    let mut outcomes = Outcomes::new();
    store.decide_now(&Request { charges, mode }, now, &mut outcomes);
    outcomes
}

/// Numbers that look random and are the same in every run.
#[derive(Debug, Clone)]
pub struct Draw(pub u64);

impl Draw {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// Does something at random to a counter: charges mostly, some debts, give-backs and slots.
pub fn stir(store: &MemoryStore, meter: &Meter, draw: &mut Draw, now: Nanos) {
    let capacity = meter.limit.capacity();
    let most = match draw.below(3) {
        0 => 3,
        1 => capacity / 8,
        _ => capacity / 3,
    };
    let mut ask = Ask { slot: SlotId(draw.below(8).into()), ..Ask::cost(1 + draw.below(most)) };
    if draw.below(3) == 0 {
        ask = ask.refundable();
    }
    match draw.below(8) {
        0 => drop(meter.decide(store, ask, Mode::Owe, now)),
        1 => {
            let first = meter.decide(store, ask, Mode::Charge, now);
            meter.decide(store, Ask { slot: SlotId(6), ..Ask::cost(1) }, Mode::Charge, now);
            meter.give_back(store, first.receipt, now);
        }
        _ => drop(meter.decide(store, ask, Mode::Charge, now)),
    }
}

/// Counts warnings while it is the default subscriber of a thread.
#[derive(Clone, Default)]
pub struct Warnings(Arc<AtomicU64>);

impl Warnings {
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn during<T>(&self, act: impl FnOnce() -> T) -> T {
        tracing::subscriber::with_default(self.clone(), act)
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
