//! More of a request that was let pass, and how long slots of reservations live.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of a test"
)]

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::SECOND;
use tollgate_engine::{
    Actual, Amounts, Decision, Engine, EngineError, ManualClock, Observer, Request, Settled,
};
use tollgate_policy::{Known, RuleSet, Unit};
use tollgate_store::{MemoryStore, Mode};

/// The start of a day, so that no window ends while a test runs.
const START: u64 = 1_794_700_800 * SECOND;

const RULES: &str = "
default: false
rules:
  - {rule_id: tokens, scope: a, identifier_type: user_id, unit: tokens, limit: 100, window: 1d, algorithm: fixed_window}
  - {rule_id: paced, scope: b, identifier_type: user_id, unit: tokens, limit: 60, window: 1m, algorithm: token_bucket, burst: 60, action: throttle, max_delay_ms: 60000}
  - {rule_id: cost, scope: c, identifier_type: user_id, unit: cost, limit: 1, window: 1d, algorithm: fixed_window}
  - {rule_id: calls, scope: d, identifier_type: user_id, limit: 1, window: 1d, algorithm: fixed_window}
  - {rule_id: slots, scope: e, identifier_type: user_id, unit: concurrency, limit: 1, slot_ttl: 60s}
";

/// An observer that must not be called.
struct Deaf;

impl Observer for Deaf {
    fn decided(&self, _: &Request<'_>, _: &Decision<'_>, _: &dyn Fn() -> u64) {
        panic!("the observer has seen this request already");
    }
}

struct Bed {
    engine: Engine<MemoryStore>,
    clock: Arc<ManualClock>,
}

fn bed(rules: &str) -> Bed {
    let set = RuleSet::from_yaml(rules, "t").unwrap();
    let clock = Arc::new(ManualClock::new(START));
    let engine = Engine::new(MemoryStore::new(10_000), Arc::<ManualClock>::clone(&clock), set);
    Bed { engine, clock }
}

fn request<'a>(tokens: u64) -> Request<'a> {
    let mut request = Request { amounts: Amounts::tokens(tokens), ..Request::default() };
    request.attributes.set(Known::UserId, "ann");
    request
}

fn more<'a>(tokens: u64) -> Request<'a> {
    Request { is_more: true, ..request(tokens) }
}

impl Bed {
    async fn used(&self) -> HashMap<String, u64> {
        let (rules, request) = (self.engine.rules(), request(0));
        let decision = self.engine.decide(&rules, &request, Mode::Peek).await.unwrap();
        let used =
            |scope: &tollgate_engine::Scope<'_>| (scope.rule.id.clone(), scope.outcome.status.used);
        decision.scopes().map(used).collect()
    }

    async fn slots(&self) -> u64 {
        self.used().await["slots"]
    }

    async fn reserve(&self, ttl: u64) -> u128 {
        let rules = self.engine.rules();
        let request = Request { reserve: Some(ttl), ..request(1) };
        let held = self.engine.decide_once(&rules, &request, |decision| decision.reservation);
        held.await.unwrap().unwrap().id
    }

    async fn allow(&self) -> u128 {
        let (rules, request) = (self.engine.rules(), request(1));
        let id = self.engine.decide_once(&rules, &request, |it| it.slot.map(|slot| slot.0));
        id.await.unwrap().unwrap()
    }
}

#[tokio::test]
async fn more_tokens_count_no_request_take_no_slot_and_do_not_wait() {
    let bed = bed(RULES);
    let rules = bed.engine.rules();
    let first = request(10);
    let decision = bed.engine.decide(&rules, &first, Mode::Charge).await.unwrap();
    assert!(decision.is_allowed(), "{}", decision.explain());
    // No further call, no cost and no slot is to be had: more tokens are.
    let again = bed.engine.decide(&rules, &request(1), Mode::Charge).await.unwrap();
    assert!(!again.is_allowed());
    for tokens in [20, 30] {
        let asked = more(tokens);
        let granted = bed.engine.decide(&rules, &asked, Mode::Charge).await.unwrap();
        assert!(granted.is_allowed() && granted.slot.is_none() && granted.wait == 0);
        assert_eq!(bed.engine.receipts(&asked, &granted).tokens(), tokens);
    }
    let used = bed.used().await;
    let counted = ["tokens", "paced", "cost", "calls", "slots"].map(|rule| used[rule]);
    assert_eq!(counted, [60, 60, 1, 1, 1]);
    // The pace would let a request wait, but what is under way is not held up: all or nothing.
    let refused = bed.engine.decide(&rules, &more(10), Mode::Charge).await.unwrap();
    assert!(!refused.is_allowed());
    assert_eq!(refused.deciding().unwrap().rule.id, "paced");
    assert_eq!(refused.retry_after(), Some(10 * SECOND));
    assert_eq!(bed.used().await["tokens"], 60, "refused by one, charged by none");
}

#[tokio::test]
async fn more_notifies_no_observer_and_passes_where_nothing_counts_it() {
    let Bed { engine, .. } = bed(RULES);
    let engine = engine.with_observer(Arc::new(Deaf));
    let rules = engine.rules();
    engine.decide(&rules, &more(10), Mode::Charge).await.unwrap();
    engine
        .decide_once(&rules, &more(1_000), |decision| assert!(!decision.is_allowed()))
        .await
        .unwrap();
    let unlimited = bed(
        "default: false\nrules: [{rule_id: r, identifier_type: user_id, limit: 1, window: 1d}]",
    );
    let rules = unlimited.engine.rules();
    for _ in 0..3 {
        let granted = unlimited.engine.decide(&rules, &more(10), Mode::Charge).await.unwrap();
        assert!(granted.is_allowed());
        assert!(unlimited.engine.receipts(&more(10), &granted).is_empty());
    }
}

#[tokio::test]
async fn a_slot_ends_with_its_reservation() {
    let rules = RULES.replace("limit: 1,", "limit: 100,");
    let bed = bed(&rules);
    bed.reserve(5 * SECOND).await;
    assert_eq!(bed.slots().await, 1);
    bed.clock.advance(5 * SECOND - 1);
    assert_eq!(bed.slots().await, 1);
    bed.clock.advance(1);
    assert_eq!(bed.slots().await, 0, "long before its slot_ttl");
    // Renewed, it goes on with it, and not beyond; a slot's own lifetime is not stretched.
    let id = bed.reserve(5 * SECOND).await;
    let renewed = bed.engine.renew_reservation(id, Some(20 * SECOND)).await.unwrap();
    assert!(renewed.is_held);
    bed.clock.advance(20 * SECOND - 1);
    assert_eq!(bed.slots().await, 1);
    bed.clock.advance(1);
    assert_eq!(bed.slots().await, 0);
    bed.reserve(3_600 * SECOND).await;
    bed.clock.advance(60 * SECOND);
    assert_eq!(bed.slots().await, 0);
    // One of an allowed request has its own.
    bed.allow().await;
    bed.clock.advance(60 * SECOND - 1);
    assert_eq!(bed.slots().await, 1);
}

#[tokio::test]
async fn what_holds_only_slots_is_not_settled_with_tokens() {
    let rules = RULES.replace("limit: 1,", "limit: 100,");
    let bed = bed(&rules);
    let settle = |id, tokens, cost| {
        let amounts = Amounts { tokens, cost, ..Amounts::NONE };
        bed.engine.settle_reservation(id, Actual::from(amounts))
    };
    for _ in 0..20 {
        let id = bed.allow().await;
        for _ in 0..2 {
            assert_eq!(settle(id, Some(5), None).await, Err(EngineError::OnlySlots));
            assert_eq!(settle(id, None, Some(5)).await, Err(EngineError::OnlySlots));
        }
        assert_eq!(bed.slots().await, 1, "nothing changed");
        assert_eq!(settle(id, None, None).await, Ok(Settled::default()), "its slot is given back");
        assert_eq!(bed.slots().await, 0);
        let id = bed.reserve(5 * SECOND).await;
        let settled = settle(id, Some(0), None).await.unwrap();
        assert_eq!(settled.refunded.of(Unit::Tokens), 1, "a reservation always is");
    }
    for id in [2, 3] {
        assert_eq!(settle(id, Some(5), None).await, Err(EngineError::ReservationUnknown));
    }
}
