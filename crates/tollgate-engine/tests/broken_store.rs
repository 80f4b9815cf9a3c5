//! An engine on a third-party store that breaks its contract: every way to a decision refuses.

use std::sync::Arc;

use tollgate_core::{Limit, Nanos, SECOND, Slot, SlotId};
use tollgate_engine::{Engine, EngineError, Hits, ManualClock, Part, Request};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::{
    Adjusted, Counter, Decided, Failure, GiveBack, MemoryStore, Mode, Outcomes, RecordAnswer,
    RecordAsk, Settlement, Store, StoreError,
};

const RULES: &str = "
default: false
rules:
- {rule_id: user, scope: user, identifier_type: user_id, limit: 100, window: 1d, algorithm: fixed_window}
- {rule_id: all, scope: all, identifier_type: global, limit: 100, window: 1d, algorithm: fixed_window}
- {rule_id: watched, scope: watched, identifier_type: global, limit: 100, window: 1d, algorithm: fixed_window, action: log_only}
";

/// How a store answers.
#[derive(Debug, Clone, Copy)]
enum Break {
    OneMissing,
    AllMissing,
    OneTooMany,
    /// It decided nothing, and says so of each request, with outcomes that admit.
    AllFailed,
}

/// A store that somebody else wrote, and got wrong.
struct Broken(MemoryStore, Break);

impl Store for Broken {
    async fn decide(
        &self,
        requests: &[tollgate_store::Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        let first = outcomes.len();
        let mut decided = self.0.decide(requests, now, outcomes).await?;
        match self.1 {
            Break::OneMissing => drop(outcomes.pop()),
            Break::AllMissing => outcomes.truncate(first),
            Break::OneTooMany => outcomes.extend(outcomes.last().copied()),
            Break::AllFailed => {
                decided.failed = Some(requests.iter().map(|_| Some(Failure::Timeout)).collect());
            }
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

fn request<'a>() -> Request<'a> {
    let mut request = Request::default();
    request.attributes.set(Known::UserId, "ann");
    request
}

/// The error of a decision; a decision must not have been made.
fn refused<T>(decided: Result<T, EngineError>, how: Break) {
    let expected = match how {
        Break::AllFailed => Failure::Timeout,
        _ => Failure::Contract,
    };
    assert_eq!(decided.err(), Some(EngineError::Store(expected.into())), "{how:?}");
}

#[tokio::test]
async fn no_way_to_a_decision_admits_over_a_broken_store() {
    for how in [Break::OneMissing, Break::AllMissing, Break::OneTooMany, Break::AllFailed] {
        let set = RuleSet::from_yaml(RULES, "t").unwrap();
        let store = Broken(MemoryStore::new(1_000), how);
        let engine = Engine::new(store, Arc::new(ManualClock::new(SECOND)), set);
        let rules = engine.rules();
        for mode in [Mode::Charge, Mode::Peek, Mode::Owe] {
            refused(engine.decide(&rules, &request(), mode).await, how);
        }
        refused(engine.decide_once(&rules, &request(), |_| ()).await, how);
        let with_id = Request { request_id: Some("id"), ..request() };
        refused(engine.decide_once(&rules, &with_id, |_| ()).await, how);
        let reserving = Request { reserve: Some(SECOND), ..request() };
        refused(engine.decide_once(&rules, &reserving, |_| ()).await, how);
        let mut shown = 0;
        let batch = [request(), request(), request()];
        let show = |decided: Result<&tollgate_engine::Decision<'_>, EngineError>| {
            shown += 1;
            refused(decided.map(|_| ()), how);
        };
        engine.decide_batch(&rules, &batch, show).await;
        assert_eq!(shown, batch.len(), "every request of a batch is answered");
        for hits in [Hits::Charge(1), Hits::Check] {
            let parts =
                [Part { request: request(), hits, has_own_hits: false, limit_override: None }];
            refused(engine.decide_together(&rules, &parts).await.map(|_| ()), how);
        }
    }
}
