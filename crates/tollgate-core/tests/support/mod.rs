//! Limits, histories and instants for the property tests.
//!
//! A history is a list of [`Op`]s: raw numbers that [`World::play`] reads in the light of the limit,
//! so that costs and steps fall on the edges that matter to it (a token, a window, a capacity).

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)]

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::FileFailurePersistence;
use tollgate_core::{
    Algorithm, Ask, LATEST, Limit, LimitSpec, Nanos, Receipt, Refundable, SlotId, State, Status,
    Window,
};

/// The fewest cases of a property; `PROPTEST_CASES` may ask for more.
pub const CASES: u32 = 10_000;

pub fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let beside = FileFailurePersistence::WithSource("proptest-regressions");
    ProptestConfig {
        cases: default.cases.max(CASES),
        failure_persistence: Some(Box::new(beside)),
        ..default
    }
}

/// Quota, window and burst.
#[derive(Debug, Clone, Copy)]
pub struct Params {
    pub quota: u64,
    pub window: Nanos,
    pub burst: Option<u64>,
}

/// Ratios that do not divide, tokens shorter than a nanosecond, primes, and everyday limits.
const AWKWARD: &[(u64, Nanos)] = &[
    (7, 1_000_000_000),
    (3, 10),
    (1_000, 1),
    (1_000_000, 7),
    (5_000_000_007, 1_000_000_000),
    (999_983, 1_000_003),
    (1, 1),
    (2, 3),
    (100, 60_000_000_000),
    (10, 1_000_000_000),
    (1_000, 3_600_000_000_000),
    (1 << 40, 3),
    (1, 1 << 50),
];

/// Any number of at most `bits` bits, every length as likely.
pub fn any_length(bits: u32) -> impl Strategy<Value = u64> {
    (1..=bits, any::<u64>()).prop_map(move |(length, raw)| raw >> (64 - length))
}

pub fn params() -> impl Strategy<Value = Params> {
    let ratio = prop_oneof![
        4 => (1..=20u64, 1..=50u64),
        3 => select(AWKWARD),
        2 => (any_length(40), any_length(45)),
    ];
    let burst = prop_oneof![
        3 => Just(None),
        3 => (1..=8u64).prop_map(Some),
        1 => (1..=40u64).prop_map(Some),
    ];
    (ratio, burst).prop_map(|((quota, window), burst)| Params {
        quota: quota.max(1),
        window: window.max(1),
        burst,
    })
}

pub fn limit_of(algorithm: Algorithm, params: Params) -> Limit {
    let Params { quota, window, burst } = params;
    let burst = burst.filter(|_| algorithm.is_bucket());
    let spec =
        LimitSpec { algorithm, quota, window: Window::Every(window), burst, slot_ttl: window };
    Limit::new(spec).unwrap()
}

/// Raw numbers for one step of a history.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    pub kind: u8,
    pub step: (u8, u64),
    pub cost: (u8, u64),
    pub pick: u64,
}

pub fn op() -> impl Strategy<Value = Op> {
    (0..16u8, (0..12u8, any::<u64>()), (0..8u8, any::<u64>()), any::<u64>())
        .prop_map(|(kind, step, cost, pick)| Op { kind, step, cost, pick })
}

pub fn history(most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 0..most)
}

/// The epoch, near it, and today.
pub fn origin() -> impl Strategy<Value = Nanos> {
    prop_oneof![1 => Just(0), 3 => 0..1_000u64, 3 => 0..(1u64 << 61)]
}

/// The length of a step in time.
pub fn step_of(limit: &Limit, (kind, raw): (u8, u64)) -> Nanos {
    let window = limit.window_nanos();
    let quota = limit.quota().max(1);
    let token = window / quota;
    let burst = u128::from(limit.capacity()) * u128::from(window) / u128::from(quota);
    let burst = u64::try_from(burst).unwrap_or(u64::MAX / 2);
    match kind {
        0..=2 => 0,
        3 => 1,
        4 => raw % 5,
        5 => token,
        6 => token + 1,
        7 => raw % (window + 1),
        8 => raw % (burst + 2),
        9 => window,
        10 => window - 1,
        _ => window + raw % (2 * window),
    }
}

/// A cost, which may be above the capacity.
pub fn cost_of(limit: &Limit, (kind, raw): (u8, u64)) -> u64 {
    let capacity = limit.capacity();
    match kind {
        0..=1 => 1,
        2 => raw % 4,
        3 => capacity,
        4 => capacity.saturating_add(raw % 2),
        5 => capacity / 2 + raw % 2,
        _ => raw % (capacity + 1),
    }
}

/// One counter, its clock, and the receipts not yet given back.
#[derive(Debug, Clone)]
pub struct World {
    pub limit: Limit,
    pub state: State,
    pub now: Nanos,
    pub receipts: Vec<Receipt>,
    pub slots: u128,
}

impl World {
    pub fn new(limit: Limit, now: Nanos) -> Self {
        let state = limit.fresh();
        Self { limit, state, now, receipts: Vec::new(), slots: 1 << 64 }
    }

    /// A slot that was never named before.
    pub fn new_slot(&mut self) -> SlotId {
        self.slots += 1;
        SlotId(self.slots)
    }

    pub fn ask(&mut self, op: &Op) -> Ask {
        let refundable = match op.pick % 4 {
            0 => Refundable::No,
            1 => Refundable::Briefly,
            _ => Refundable::UntilClosed,
        };
        Ask { slot: self.new_slot(), refundable, ..Ask::cost(cost_of(&self.limit, op.cost)) }
    }

    /// Decisions mostly, some forced charges, give-backs and stretches of delay.
    pub fn play(&mut self, op: &Op) {
        self.now = (self.now + step_of(&self.limit, op.step)).min(LATEST);
        let mut ask = self.ask(op);
        match op.kind {
            0..=9 => {
                self.keep(|world| world.limit.decide(&mut world.state, &ask, world.now).receipt);
            }
            10 => {
                ask.max_delay = Some(op.pick % (3 * self.limit.window_nanos()));
                self.keep(|world| world.limit.decide(&mut world.state, &ask, world.now).receipt);
            }
            11 => self.keep(|world| world.limit.charge(&mut world.state, &ask, world.now)),
            _ => self.give_back_one(op.pick),
        }
    }

    fn keep(&mut self, charge: impl FnOnce(&mut Self) -> Receipt) {
        let receipt = charge(self);
        if receipt != Receipt::Nothing {
            self.receipts.push(receipt);
        }
    }

    pub fn give_back_one(&mut self, pick: u64) {
        if self.receipts.is_empty() {
            return;
        }
        let receipt = self.receipts.remove(pick as usize % self.receipts.len());
        self.limit.give_back(&mut self.state, &receipt, self.now);
    }

    pub fn play_all(&mut self, ops: &[Op]) {
        for op in ops {
            self.play(op);
        }
    }

    pub fn status(&self) -> Status {
        self.limit.status(&self.state, self.now)
    }
}

/// Instants from `now` on at which two counters might differ.
pub fn later_instants(limit: &Limit, now: Nanos, raw: u64) -> [Nanos; 8] {
    let window = limit.window_nanos();
    let token = window / limit.quota().max(1);
    [0, 1, token, token + 1, raw % (window + 1), window - 1, window, 2 * window]
        .map(|ahead| (now + ahead).min(LATEST))
}

/// The declared tests once for every algorithm.
#[macro_export]
macro_rules! for_every_algorithm {
    ($law:ident) => {
        $law!(fixed_window, FixedWindow);
        $law!(sliding_window_log, SlidingWindowLog);
        $law!(sliding_window_counter, SlidingWindowCounter);
        $law!(token_bucket, TokenBucket);
        $law!(leaky_bucket, LeakyBucket);
        $law!(gcra, Gcra);
        $law!(concurrency, Concurrency);
    };
}
