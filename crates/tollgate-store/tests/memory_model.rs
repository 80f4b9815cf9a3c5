//! The memory store against a slow one: a map of states and the algorithms themselves.
//!
//! What the model of all stores (`tests/model`) does not play: debts beyond reason, several slots of one counter in a
//! request, and fractions of a nanosecond under a changed quota.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails, in its helpers too"
)]

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate_core::{
    Algorithm, Ask, Examination, Limit, Nanos, Outcome, Receipt, SECOND, SlotId, State, Status,
};
use tollgate_store::{Charge, Counter, GiveBack, Home, MemoryStore, Mode, Role, Store, passes};

mod support;
use support::{START, decide_all, limit, salt};

const CASES: u32 = 2_000;

/// A counter has two limits it may be asked under: a quota may change under the same name.
fn universe() -> Vec<[Limit; 2]> {
    let mut all = Vec::new();
    for algorithm in Algorithm::ALL {
        all.push([limit(algorithm, 5, SECOND), limit(algorithm, 10, SECOND)]);
        all.push([limit(algorithm, 7, 40_000_000), limit(algorithm, 3, 40_000_000)]);
    }
    for algorithm in [Algorithm::SlidingWindowCounter, Algorithm::FixedWindow] {
        all.push([limit(algorithm, 1 << 40, SECOND), limit(algorithm, 1 << 34, SECOND)]);
    }
    let bucket = Algorithm::TokenBucket;
    all.push([limit(bucket, 5_000_000_029, SECOND), limit(bucket, 999_983, SECOND)]);
    all
}

#[derive(Debug, Clone)]
struct AskOf {
    counter: usize,
    variant: usize,
    cost: (u8, u64),
    role: Role,
    slot: u128,
    max_delay: Option<Nanos>,
}

#[derive(Debug, Clone)]
enum Op {
    Decide(Mode, Vec<AskOf>),
    GiveBack(usize),
    Reset(usize),
    Release(usize, u128),
    Renew(usize, u128),
    Advance(Nanos),
    Tidy,
}

fn ask_of() -> impl Strategy<Value = AskOf> {
    let role = prop_oneof![6 => Just(Role::Must), 1 => Just(Role::AnyOf), 1 => Just(Role::Watch)];
    let variant = prop_oneof![9 => Just(0usize), 1 => Just(1usize)];
    let delay = prop_oneof![8 => Just(None), 1 => (0..SECOND).prop_map(Some)];
    let slot = prop_oneof![Just(0u128), 0..12u128, any::<u128>()];
    (0..17usize, variant, (0..8u8, any::<u64>()), role, slot, delay).prop_map(
        |(counter, variant, cost, role, slot, max_delay)| AskOf {
            counter,
            variant,
            cost,
            role,
            slot,
            max_delay,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![8 => Just(Mode::Charge), 1 => Just(Mode::Peek), 1 => Just(Mode::Owe)];
    let step = prop_oneof![
        Just(1u64),
        Just(5_714_286),
        Just(40_000_000),
        0..50_000_000u64,
        0..SECOND,
        Just(2 * SECOND)
    ];
    prop_oneof![
        12 => (mode, prop::collection::vec(ask_of(), 1..=5)).prop_map(|(m, a)| Op::Decide(m, a)),
        3 => any::<usize>().prop_map(Op::GiveBack),
        1 => (0..17usize).prop_map(Op::Reset),
        1 => (0..17usize, 0..12u128).prop_map(|(c, s)| Op::Release(c, s)),
        1 => (0..17usize, 0..12u128).prop_map(|(c, s)| Op::Renew(c, s)),
        4 => step.prop_map(Op::Advance),
        1 => Just(Op::Tidy),
    ]
}

fn cost(limit: &Limit, (kind, raw): (u8, u64)) -> u64 {
    let capacity = limit.capacity();
    match kind {
        0..=2 => 1,
        3 => raw % 3,
        4 => raw % (capacity + 2),
        5 => capacity,
        6 => capacity / 2,
        // Debts beyond reason too.
        _ => {
            if raw.is_multiple_of(16) {
                u64::MAX - raw % 3
            } else {
                raw % 4
            }
        }
    }
}

/// The slow store.
#[derive(Default)]
struct Model {
    states: HashMap<usize, State>,
}

impl Model {
    /// The state as this limit reads it.
    fn state(&self, counter: usize, limit: &Limit) -> State {
        match self.states.get(&counter) {
            Some(State::Small(small)) => State::Small(limit.adopt(*small)),
            Some(state) => state.clone(),
            None => limit.fresh(),
        }
    }

    fn examine(
        &self,
        asked: &[(usize, &Limit, Ask, Role)],
        before: &[Outcome],
        mode: Mode,
        now: Nanos,
    ) -> Examination {
        let (counter, limit, ask, _) = asked[before.len()];
        let mut state = self.state(counter, limit);
        let mut ask = ask;
        let mut slots = vec![ask.slot];
        for ((other, _, theirs, role), outcome) in asked.iter().zip(before) {
            let goes_with =
                mode == Mode::Owe || *role == Role::Must || outcome.examination.admits();
            if *other != counter || !goes_with {
                continue;
            }
            if limit.algorithm() == Algorithm::Concurrency {
                limit.charge(&mut state, theirs, now);
                slots.push(theirs.slot);
            } else {
                ask.cost = ask.cost.saturating_add(theirs.cost);
            }
        }
        slots.sort_unstable();
        slots.dedup();
        if slots.len() > 1 && slots.len() as u64 > limit.quota() {
            return Examination::Refuse { retry_at: None };
        }
        limit.examine(&state, &ask, now)
    }

    fn decide(
        &mut self,
        asked: &[(usize, &Limit, Ask, Role)],
        charges: &[Charge<'_>],
        mode: Mode,
        now: Nanos,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for _ in asked {
            let examination = self.examine(asked, &outcomes, mode, now);
            let status = Status::default();
            outcomes.push(Outcome { examination, status, receipt: Receipt::Nothing });
        }
        let charged = match mode {
            Mode::Charge | Mode::Hold => passes(charges, &outcomes),
            Mode::Peek => false,
            Mode::Owe => true,
        };
        for ((counter, limit, ask, _), outcome) in asked.iter().zip(&mut outcomes) {
            let mut state = self.state(*counter, limit);
            if charged && (mode == Mode::Owe || outcome.examination.admits()) {
                outcome.receipt = limit.charge(&mut state, ask, now);
                self.states.insert(*counter, state.clone());
            }
            // Charges that the request made to the same counter before are part of the figures.
            outcome.status = limit.status(&state, now);
        }
        outcomes
    }
}

/// Both stores, side by side.
struct World {
    limits: Vec<[Limit; 2]>,
    names: Vec<String>,
    store: MemoryStore,
    model: Model,
    now: Nanos,
    /// Counter, limit and receipt of what was charged, and whether its counter was reset since.
    receipts: Vec<(usize, usize, Receipt, bool)>,
}

/// Futures of the memory store are ready at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("the memory store does not wait"),
    }
}

impl World {
    fn new() -> Self {
        let limits = universe();
        Self {
            names: (0..limits.len()).map(|number| format!("counter {number}")).collect(),
            limits,
            store: MemoryStore::new(20_000),
            model: Model::default(),
            now: START,
            receipts: Vec::new(),
        }
    }

    fn play(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Decide(mode, asks) => self.decide(*mode, asks)?,
            Op::GiveBack(pick) if !self.receipts.is_empty() => {
                let (counter, variant, receipt, is_void) =
                    self.receipts.swap_remove(pick % self.receipts.len());
                let limit = &self.limits[counter][variant];
                let key = [self.names[counter].as_str()];
                let returned = GiveBack { counter: named(&key), limit, receipt };
                self.store.give_back_now(&returned, self.now);
                if !is_void {
                    let before = self.model.state(counter, limit);
                    let mut state = before.clone();
                    limit.give_back(&mut state, &receipt, self.now);
                    if state != before {
                        self.model.states.insert(counter, state);
                    }
                }
            }
            Op::GiveBack(_) => {}
            Op::Reset(counter) => {
                let key = [self.names[*counter].as_str()];
                ready(self.store.reset(&[named(&key)], self.now)).unwrap();
                self.model.states.remove(counter);
                // What was charged before is gone: it gives back nothing. Slots are known by name.
                for (charged, _, receipt, is_void) in &mut self.receipts {
                    *is_void |= charged == counter && !matches!(receipt, Receipt::Slot(_));
                }
                // Charges that follow a reset more closely may count as made before it.
                self.now += SECOND / 1_000;
            }
            Op::Release(counter, slot) => {
                let key = [self.names[*counter].as_str()];
                let slot = SlotId(*slot);
                let released = ready(self.store.release(&named(&key), slot, self.now)).unwrap();
                let expected = match self.model.states.get_mut(counter) {
                    Some(State::Slots(slots)) => {
                        slots.prune(self.now);
                        slots.release(slot)
                    }
                    _ => false,
                };
                prop_assert_eq!(released, expected);
            }
            Op::Renew(counter, slot) => {
                let key = [self.names[*counter].as_str()];
                let (slot, limit) = (SlotId(*slot), &self.limits[*counter][0]);
                let renewed = ready(self.store.renew(&named(&key), limit, slot, self.now)).unwrap();
                let expected = match self.model.states.get_mut(counter) {
                    Some(State::Slots(slots)) => slots.renew(slot, limit.slot_ttl(), self.now),
                    _ => false,
                };
                prop_assert_eq!(renewed, expected);
            }
            Op::Advance(by) => self.now += by,
            Op::Tidy => self.store.tidy(0, 1, self.now),
        }
        Ok(())
    }

    fn decide(&mut self, mode: Mode, asks: &[AskOf]) -> Result<(), TestCaseError> {
        let asked: Vec<(usize, &Limit, Ask, Role)> = asks
            .iter()
            .map(|ask| {
                let limit = &self.limits[ask.counter][ask.variant];
                let cost = cost(limit, ask.cost);
                let of =
                    Ask { cost, max_delay: ask.max_delay, slot: SlotId(ask.slot), ..Ask::cost(0) };
                let of = if ask.slot % 2 == 0 { of.refundable() } else { of };
                (ask.counter, limit, of, ask.role)
            })
            .collect();
        let keys: Vec<[&str; 1]> =
            asked.iter().map(|(counter, ..)| [self.names[*counter].as_str()]).collect();
        let charges: Vec<Charge<'_>> = (asked.iter().zip(&keys))
            .map(|((_, limit, ask, role), key)| Charge {
                counter: named(key),
                limit,
                ask: *ask,
                role: *role,
            })
            .collect();
        let outcomes = decide_all(&self.store, &charges, mode, self.now);
        let expected = self.model.decide(&asked, &charges, mode, self.now);
        prop_assert_eq!(outcomes.as_slice(), expected.as_slice(), "{:?} of {:?}", mode, asked);
        for (ask, outcome) in asks.iter().zip(&outcomes) {
            if outcome.receipt != Receipt::Nothing {
                self.receipts.push((ask.counter, ask.variant, outcome.receipt, false));
            }
        }
        Ok(())
    }
}

fn named<'a>(key: &'a [&'a str]) -> Counter<'a> {
    Counter { rule_id: "rule", tag: "tag", salt: salt("rule"), key, home: Home::default() }
}

fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let beside = FileFailurePersistence::WithSource("proptest-regressions");
    ProptestConfig {
        cases: default.cases.max(CASES),
        failure_persistence: Some(Box::new(beside)),
        ..default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_outcome_is_the_models(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        for op in &ops {
            world.play(op)?;
        }
        prop_assert_eq!(world.store.usage().evicted, 0);
    }
}
