//! A third-party store that breaks its contract, by too few or too many outcomes, below every store of
//! ours: nothing passes, whatever rules say about failures.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

mod leased_support;

use leased_support::{Remote, START, World, counter, limit};
use tollgate_core::{Algorithm, Ask, Limit, Nanos, Outcome, SECOND, Slot, SlotId};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::placed::Placed;
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{
    Adjusted, Announcement, Charge, Consistency, Counter, Decided, Degraded, Failure, Fallback,
    GiveBack, Home, LeaseAsk, LeaseGrant, MemoryStore, Mode, OnFailure, Outcomes, RecordAnswer,
    RecordAsk, Request, Role, Roll, Settlement, SharedStore, Store, StoreError, passes, passes_as,
};

/// How a store breaks its contract.
#[derive(Debug, Clone, Copy)]
enum Break {
    /// Of every call, the last outcome is missing.
    OneMissing,
    AllMissing,
    OneTooMany,
}

const BREAKS: [Break; 3] = [Break::OneMissing, Break::AllMissing, Break::OneTooMany];

/// A store that answers with the wrong number of outcomes.
#[derive(Clone)]
struct Broken(Remote, Break);

impl Broken {
    fn new(how: Break) -> Self {
        Self(Remote(World::new()), how)
    }
}

impl Store for Broken {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        let first = outcomes.len();
        let decided = self.0.decide(requests, now, outcomes).await?;
        match self.1 {
            Break::OneMissing => drop(outcomes.pop()),
            Break::AllMissing => outcomes.truncate(first),
            Break::OneTooMany => outcomes.push(outcomes[first]),
        }
        Ok(decided)
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        self.0.give_back(returns, now).await
    }

    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        self.0.reset(counters, now).await
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.0.renew(counter, limit, slot, now).await
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.0.release(counter, slot, now).await
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        self.0.slots(counter, now).await
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        self.0.settle(settlement, now).await
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        self.0.record(id, ask, now).await
    }
}

impl SharedStore for Broken {
    async fn lease(&self, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, StoreError> {
        self.0.lease(ask).await
    }

    async fn announce(&self, announcement: &Announcement<'_>) -> Result<Roll, StoreError> {
        self.0.announce(announcement).await
    }

    fn clock(&self, now: Nanos) -> Nanos {
        self.0.clock(now)
    }
}

fn resilient<S: SharedStore>(store: S) -> Resilient<S> {
    Resilient::new(store, ResilientOptions::new("node".to_owned()))
}

fn leased(store: Broken) -> Leased<Broken> {
    Leased::new(store, LeaseOptions::new("node".to_owned()))
}

/// Whether a request over two counters passes; one of them may be leased, the other never is.
async fn passes_over(store: &impl Store, home: Home, mode: Mode) -> Result<bool, Failure> {
    let plenty = limit(Algorithm::FixedWindow, 1_000, 3600 * SECOND);
    let strict = Home { consistency: Consistency::Strict, ..home };
    let ask = Ask::cost(1);
    let charges = [("one", home), ("other", strict)].map(|(rule, home)| {
        let counter = counter(rule, &["k"], home);
        Charge { counter, limit: &plenty, ask, role: Role::Must }
    });
    let mut outcomes = Outcomes::new();
    let request = Request { charges: &charges, mode };
    let decided = store.decide(&[request], START, &mut outcomes).await;
    let decided = decided.map_err(|error| error.failure)?;
    if let Some(Degraded { failure: Failure::Contract, fallback }) = decided.degraded {
        assert_eq!(fallback, Fallback::Closed);
        assert!(!outcomes.iter().any(admits), "{outcomes:?}");
    }
    Ok(passes(&charges, &outcomes))
}

fn admits(outcome: &Outcome) -> bool {
    outcome.examination.admits()
}

fn homes() -> impl Iterator<Item = Home> {
    let policies = [OnFailure::Open, OnFailure::Local, OnFailure::Closed];
    policies.into_iter().flat_map(|on_failure| {
        let leased = Consistency::Leased { max_overshoot_ppm: 100_000 };
        [Consistency::Strict, leased].map(|consistency| Home {
            partition: Some(0),
            consistency,
            on_failure,
            ..Home::default()
        })
    })
}

#[test]
fn outcomes_that_are_not_one_for_every_charge_let_nothing_pass() {
    let plenty = limit(Algorithm::FixedWindow, 1_000, SECOND);
    let memory = MemoryStore::new(100);
    for role in [Role::Must, Role::AnyOf, Role::Watch] {
        let charges = ["a", "b"].map(|rule| {
            let counter = counter(rule, &["k"], Home::default());
            Charge { counter, limit: &plenty, ask: Ask::cost(1), role }
        });
        let mut whole = Outcomes::new();
        let request = Request { charges: &charges, mode: Mode::Peek };
        memory.decide_now(&request, START, &mut whole);
        assert!(passes(&charges, &whole));
        let mut longer = whole.clone();
        longer.push(whole[0]);
        for outcomes in [&whole[..1], &[], &longer] {
            for mode in [Mode::Charge, Mode::Peek, Mode::Hold] {
                assert!(!passes_as(mode, &charges, outcomes), "{role:?} {mode:?} {outcomes:?}");
            }
        }
    }
    assert!(passes(&[], &[]), "a request without charges meets no limit");
}

#[tokio::test]
async fn no_composition_lets_a_request_pass_over_a_broken_store() {
    for how in BREAKS {
        for home in homes() {
            for mode in [Mode::Charge, Mode::Hold] {
                let store = || Broken::new(how);
                let named = || vec!["shared".to_owned()];
                let memory = || MemoryStore::new(100);
                let placed = Placed::new(memory(), vec![resilient(store())], named());
                let deep = Placed::new(memory(), vec![resilient(leased(store()))], named());
                let passed = [
                    ("broken", passes_over(&store(), home, mode).await),
                    ("leased", passes_over(&leased(store()), home, mode).await),
                    ("resilient", passes_over(&resilient(store()), home, mode).await),
                    ("both", passes_over(&resilient(leased(store())), home, mode).await),
                    ("placed", passes_over(&placed, home, mode).await),
                    ("placed, both", passes_over(&deep, home, mode).await),
                ];
                for (name, passed) in passed {
                    let is_refused = matches!(passed, Ok(false) | Err(Failure::Contract));
                    assert!(is_refused, "{name}: {how:?} {home:?} {mode:?}: {passed:?}");
                }
            }
        }
    }
}

/// Some requests of a batch are leased, others are not: one broken answer must not be read as the answer
/// to another request.
#[tokio::test]
async fn no_request_of_a_batch_passes_over_a_broken_store() {
    let plenty = limit(Algorithm::FixedWindow, 1_000, 3600 * SECOND);
    for how in BREAKS {
        for home in homes().filter(|home| home.consistency == Consistency::Strict) {
            let charges = ["a", "b", "c"].map(|rule| {
                let counter = counter(rule, &["k"], home);
                [Charge { counter, limit: &plenty, ask: Ask::cost(1), role: Role::Must }]
            });
            let requests =
                charges.each_ref().map(|charges| Request { charges, mode: Mode::Charge });
            let mut outcomes = Outcomes::new();
            let store = resilient(leased(Broken::new(how)));
            store.decide(&requests, START, &mut outcomes).await.unwrap();
            assert_eq!(outcomes.len(), requests.len());
            assert!(!outcomes.iter().any(admits), "{how:?} {home:?} {outcomes:?}");
        }
    }
}

#[tokio::test]
async fn a_counter_of_a_store_that_does_not_exist_is_refused() {
    let plenty = limit(Algorithm::FixedWindow, 1_000, SECOND);
    let shared = resilient(Remote(World::new()));
    let store = Placed::new(MemoryStore::new(100), vec![shared], vec!["only".to_owned()]);
    let counter = counter("lost", &["k"], Home { store: 7, ..Home::default() });
    let charges = [Charge { counter, limit: &plenty, ask: Ask::cost(1), role: Role::Must }];
    let request = Request { charges: &charges, mode: Mode::Charge };
    let failed = store.decide(&[request], START, &mut Outcomes::new()).await;
    assert_eq!(failed.unwrap_err().failure, Failure::Contract);
}
