//! Reservations: settled to the truth, once, and conserved, whatever the order.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of a test")]

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tollgate_core::SECOND;
use tollgate_engine::{
    Actual, Amounts, ENDED_RETENTION, Ending, Engine, EngineError, MAX_COST, ManualClock, Receipts,
    Refunds, Request, Settled, new_reservation_id,
};
use tollgate_policy::{Known, RuleSet, Unit};
use tollgate_store::{MemoryStore, Mode};

/// The start of a day, so that no window ends while a test runs.
const START: u64 = 1_794_700_800 * SECOND;

const TTL: u64 = 60 * SECOND;

struct Bed {
    engine: Engine<MemoryStore>,
    clock: Arc<ManualClock>,
}

fn bed(rules: &str) -> Bed {
    bed_of(rules, MemoryStore::new(10_000))
}

fn bed_of(rules: &str, store: MemoryStore) -> Bed {
    let set = RuleSet::from_yaml(&format!("default: false\nrules:\n{rules}"), "t").unwrap();
    let clock = Arc::new(ManualClock::new(START));
    let engine = Engine::new(store, Arc::<ManualClock>::clone(&clock), set);
    Bed { engine, clock }
}

fn request<'a>(tokens: u64, cost: Option<u64>) -> Request<'a> {
    let refunds = Refunds::Always;
    let mut request = Request {
        amounts: Amounts { cost, ..Amounts::tokens(tokens) },
        refunds,
        ..Request::default()
    };
    request.attributes.set(Known::UserId, "ann");
    request
}

impl Bed {
    /// The id of the reservation, if it passes.
    async fn reserve(&self, tokens: u64, cost: Option<u64>) -> Option<u128> {
        let rules = self.engine.rules();
        let request = Request { reserve: Some(TTL), ..request(tokens, cost) };
        let held = self.engine.decide_once(&rules, &request, |decision| decision.reservation);
        held.await.unwrap().map(|held| held.id)
    }

    async fn charge(&self, tokens: u64, cost: Option<u64>) -> Receipts {
        let (rules, request) = (self.engine.rules(), request(tokens, cost));
        let decision = self.engine.decide(&rules, &request, Mode::Charge).await.unwrap();
        assert!(decision.is_allowed(), "{}", decision.explain());
        self.engine.receipts(&request, &decision)
    }

    /// How much of every rule is used.
    async fn used(&self) -> HashMap<String, u64> {
        let (rules, request) = (self.engine.rules(), request(0, Some(0)));
        let decision = self.engine.decide(&rules, &request, Mode::Peek).await.unwrap();
        let used =
            |scope: &tollgate_engine::Scope<'_>| (scope.rule.id.clone(), scope.outcome.status.used);
        decision.scopes().map(used).collect()
    }

    async fn settle(&self, id: u128, tokens: u64) -> Result<Settled, EngineError> {
        let actual = Actual::from(Amounts::tokens(tokens));
        self.engine.settle_reservation(id, actual).await
    }
}

/// One rule of every unit, and tokens by several algorithms.
const RULES: &str = "
  - {rule_id: fixed, scope: a, identifier_type: user_id, unit: tokens, limit: 10000, window: 1d, algorithm: fixed_window}
  - {rule_id: log, scope: b, identifier_type: user_id, unit: tokens, limit: 10000, window: 1d, algorithm: sliding_window_log}
  - {rule_id: counter, scope: c, identifier_type: user_id, unit: tokens, limit: 10000, window: 1d, algorithm: sliding_window_counter}
  - {rule_id: bucket, scope: d, identifier_type: user_id, unit: tokens, limit: 10000, window: 1d, algorithm: token_bucket}
  - {rule_id: month, scope: e, identifier_type: user_id, unit: tokens, limit: 10000, calendar: month, timezone: Europe/Berlin, anchor_day: 3, algorithm: fixed_window}
  - {rule_id: cost, scope: f, identifier_type: user_id, unit: cost, limit: 1000, window: 1d, algorithm: fixed_window}
  - {rule_id: calls, scope: g, identifier_type: user_id, limit: 1000, window: 1d, algorithm: fixed_window}
  - {rule_id: slots, scope: h, identifier_type: user_id, unit: concurrency, limit: 5, slot_ttl: 30s}
";

const TOKENS: [&str; 5] = ["fixed", "log", "counter", "bucket", "month"];

#[tokio::test]
async fn every_unit_is_settled_by_its_own_truth() {
    for (tokens, cost, expected) in [
        (Some(300), Some(2), (700, 0, 5, 0)),
        (Some(1_500), Some(9), (0, 500, 0, 2)),
        (None, None, (0, 0, 0, 0)),
        (Some(1_000), None, (0, 0, 0, 0)),
        (Some(0), Some(0), (1_000, 0, 7, 0)),
        (Some(50_000), Some(5_000), (0, 49_000, 0, 4_993)),
    ] {
        let bed = bed(RULES);
        let receipts = bed.charge(1_000, Some(7)).await;
        let id = new_reservation_id();
        for _ in 0..3 {
            let settled = bed
                .engine
                .settle(id, &receipts, Actual::from(Amounts { tokens, cost, ..Amounts::NONE }))
                .await
                .unwrap();
            let Settled { refunded, extra } = settled;
            let of = |amounts: Amounts| (amounts.tokens.unwrap_or(0), amounts.cost.unwrap_or(0));
            let (refunded, extra) = (of(refunded), of(extra));
            let actual = (refunded.0, extra.0, refunded.1, extra.1);
            assert_eq!(actual, expected);
            let used = bed.used().await;
            for rule in TOKENS {
                assert_eq!(used[rule], tokens.unwrap_or(1_000), "{rule}");
            }
            assert_eq!(used["cost"], cost.unwrap_or(7));
            assert_eq!((used["calls"], used["slots"]), (7, 0), "calls stay, slots are given back");
        }
        let counts = bed.engine.reservations().counts();
        assert_eq!((counts.settled, counts.refunded_tokens), (1, expected.0), "counted once");
    }
}

/// A wrong number does not lock a bucket for centuries. Debts add up, so no part of a true one is free.
#[tokio::test]
async fn a_settlement_owes_what_a_bucket_pays_off_within_a_bound() {
    for (algorithm, window, most) in [
        ("token_bucket", "1d", 30 * 100),
        ("leaky_bucket", "1h", 30 * 24 * 100),
        ("token_bucket", "90d", 10 * 100),
        ("fixed_window", "1d", MAX_COST),
    ] {
        let bed = bed(&format!(
            "  - {{rule_id: r, identifier_type: user_id, unit: tokens, limit: 100, window: {window}, algorithm: {algorithm}}}"
        ));
        let ids = [bed.reserve(10, None).await.unwrap(), bed.reserve(10, None).await.unwrap()];
        bed.settle(ids[0], MAX_COST).await.unwrap();
        let owed = most.min(MAX_COST - 10);
        assert_eq!(bed.used().await["r"], 20 + owed, "{algorithm}");
        bed.settle(ids[1], 500).await.unwrap();
        assert_eq!(bed.used().await["r"], 510 + owed, "{algorithm}");
    }
}

#[tokio::test]
async fn a_release_gives_all_of_it_back_once() {
    let bed = bed(RULES);
    let kept = bed.charge(100, Some(1)).await;
    assert_eq!((kept.tokens(), kept.cost()), (100, 1));
    let receipts = bed.charge(1_000, Some(7)).await;
    let id = new_reservation_id();
    for _ in 0..3 {
        let released = bed.engine.release(id, &receipts).await.unwrap();
        assert_eq!(
            (released.refunded.of(Unit::Tokens), released.refunded.of(Unit::Cost)),
            (1_000, 7)
        );
        let used = bed.used().await;
        for rule in TOKENS {
            assert_eq!(used[rule], 100, "{rule}");
        }
        assert_eq!((used["cost"], used["calls"], used["slots"]), (1, 1, 1));
    }
}

#[tokio::test]
async fn a_reservation_ends_one_way_and_is_forgotten_later() {
    let bed = bed(RULES);
    let settled = bed.reserve(1_000, None).await.unwrap();
    let released = bed.reserve(500, None).await.unwrap();
    let first = bed.settle(settled, 400).await.unwrap();
    assert_eq!(first.refunded.of(Unit::Tokens), 600);
    assert_eq!(bed.settle(settled, 999).await, Ok(first), "the first answer");
    let was_settled = Err(EngineError::ReservationEnded(Ending::Settled));
    assert_eq!(bed.engine.release_reservation(settled).await, was_settled);
    let gone = bed.engine.release_reservation(released).await.unwrap();
    assert_eq!(gone.refunded.tokens, Some(500));
    assert_eq!(bed.engine.release_reservation(released).await, Ok(gone));
    let was_released = EngineError::ReservationEnded(Ending::Released);
    assert_eq!(bed.settle(released, 1).await, Err(was_released.clone()));
    assert_eq!(bed.engine.renew_reservation(released, None).await.unwrap_err(), was_released);
    assert_eq!(bed.used().await["fixed"], 400);
    bed.clock.advance(ENDED_RETENTION);
    assert_eq!(bed.settle(settled, 1).await, Err(EngineError::ReservationUnknown));
    assert_eq!(bed.used().await["fixed"], 400, "and nothing is changed");
}

#[tokio::test]
async fn it_expires_unless_renewed_and_so_do_its_slots() {
    let bed = bed(RULES);
    let expired = bed.reserve(1_000, None).await.unwrap();
    let renewed = bed.reserve(10, None).await.unwrap();
    bed.clock.advance(20 * SECOND);
    let renewal = bed.engine.renew_reservation(renewed, None).await.unwrap();
    assert!(renewal.is_held);
    assert_eq!(renewal.expires_at, START + 20 * SECOND + TTL);
    bed.clock.advance(20 * SECOND);
    assert_eq!(bed.used().await["slots"], 1, "a slot lives for 30 s");
    bed.clock.advance(20 * SECOND);
    assert_eq!(bed.settle(expired, 1).await, Err(EngineError::ReservationUnknown));
    assert_eq!(bed.used().await["fixed"], 1_010, "as estimated");
    let late = bed.engine.renew_reservation(renewed, Some(SECOND)).await.unwrap();
    assert!(!late.is_held, "its slot was renewed 40 s ago");
    assert_eq!(late.expires_at, START + 20 * SECOND + TTL, "never sooner than before");
    bed.settle(renewed, 3).await.unwrap();
    assert_eq!(bed.used().await["fixed"], 1_003);
    assert_eq!(bed.engine.store().usage().expired_reservations, 1);
}

/// The record of an admitted request lives as long as the longest of its slots.
#[tokio::test]
async fn slots_of_different_lifetimes_are_released_together() {
    let bed = bed(
        "
  - {rule_id: short, scope: a, identifier_type: user_id, unit: concurrency, limit: 3, slot_ttl: 1s}
  - {rule_id: long, scope: b, identifier_type: user_id, unit: concurrency, limit: 3, slot_ttl: 5m}",
    );
    let mut ids = Vec::new();
    for _ in 0..2 {
        let (rules, request) = (bed.engine.rules(), request(0, None));
        let request = Request { refunds: Refunds::Never, ..request };
        let held = bed.engine.decide_once(&rules, &request, |decision| decision.slot);
        ids.push(held.await.unwrap().unwrap().0);
    }
    bed.clock.advance(2 * SECOND);
    let used = bed.used().await;
    assert_eq!((used["short"], used["long"]), (0, 2));
    bed.engine.release_reservation(ids[0]).await.unwrap();
    assert_eq!(bed.used().await["long"], 1);
    bed.clock.advance(290 * SECOND);
    let renewed = bed.engine.renew_reservation(ids[1], None).await.unwrap();
    assert!(!renewed.is_held, "the short slot is gone");
    bed.clock.advance(290 * SECOND);
    assert_eq!(bed.used().await["long"], 1, "the long one was renewed");
    bed.engine.release_reservation(ids[1]).await.unwrap();
    assert_eq!(bed.used().await["long"], 0);
}

/// Nobody could release a slot that is counted longer than its record is kept.
#[tokio::test]
async fn a_slot_ends_with_its_record_also_where_it_is_renewed_for_less() {
    let bed = bed(
        "
  - {rule_id: slots, scope: a, identifier_type: user_id, unit: concurrency, limit: 3, slot_ttl: 5m}",
    );
    let (rules, request) = (bed.engine.rules(), request(0, None));
    let request = Request { refunds: Refunds::Never, ..request };
    let held = bed.engine.decide_once(&rules, &request, |decision| decision.slot);
    let id = held.await.unwrap().unwrap().0;
    bed.clock.advance(290 * SECOND);
    let renewed = bed.engine.renew_reservation(id, Some(20 * SECOND)).await.unwrap();
    assert_eq!((renewed.is_held, renewed.expires_at), (true, START + 310 * SECOND));
    bed.clock.advance(19 * SECOND);
    assert_eq!(bed.used().await["slots"], 1);
    bed.clock.advance(SECOND);
    assert_eq!(bed.used().await["slots"], 0);
    let unknown = bed.engine.release_reservation(id).await;
    assert_eq!(unknown, Err(EngineError::ReservationUnknown));
}

/// What was used beyond the estimate is charged now, so it is charged by the limit that is in force now.
#[tokio::test]
async fn extra_cost_is_charged_by_the_limit_in_force() {
    for (algorithm, before, after) in [
        ("token_bucket", 1_000, 100),
        ("token_bucket", 100, 1_000),
        ("gcra", 1_000, 300),
        ("fixed_window", 1_000, 100),
    ] {
        let rules = |limit: u64| {
            format!(
                "default: false\nrules:\n  - {{rule_id: r, identifier_type: user_id, unit: tokens, limit: {limit}, \
                 window: 10d, algorithm: {algorithm}}}"
            )
        };
        let bed = bed("");
        bed.engine.swap_rules(RuleSet::from_yaml(&rules(before), "t").unwrap());
        let id = bed.reserve(0, None).await.unwrap();
        bed.engine.swap_rules(RuleSet::from_yaml(&rules(after), "t").unwrap());
        for _ in 0..2 {
            bed.settle(id, 50).await.unwrap();
            assert_eq!(bed.used().await["r"], 50, "{algorithm} {before} -> {after}");
        }
    }
}

#[tokio::test]
async fn what_is_full_charges_nothing() {
    let bed = bed_of(RULES, MemoryStore::new(10_000).with_max_reservations(1));
    let first = bed.reserve(1_000, None).await.unwrap();
    let rules = bed.engine.rules();
    let asked = Request { reserve: Some(TTL), ..request(10, None) };
    let full = bed.engine.decide_once(&rules, &asked, |_| ()).await;
    assert_eq!(full, Err(EngineError::ReservationsFull));
    let used = bed.used().await;
    assert_eq!((used["fixed"], used["calls"], used["slots"]), (1_000, 1, 1));
    // The slot of a request that is only allowed needs room, too, unless its caller keeps the receipts.
    let plain = Request { refunds: Refunds::Never, ..request(1, None) };
    let allowed = bed.engine.decide_once(&rules, &plain, |_| ()).await;
    assert_eq!(allowed, Err(EngineError::ReservationsFull));
    bed.settle(first, 1).await.unwrap();
    assert!(bed.reserve(10, None).await.is_some(), "what has ended makes room");
}

#[tokio::test]
async fn a_refusal_holds_nothing() {
    let bed = bed(RULES);
    assert!(bed.reserve(9_000, None).await.is_some());
    assert_eq!(bed.reserve(2_000, None).await, None);
    assert_eq!(bed.engine.store().usage().reservations, 1);
    assert_eq!(bed.engine.reservations().counts().reserved, 1);
}

/// What may happen in a history.
#[derive(Debug, Clone)]
enum Step {
    Reserve(u64),
    /// Which of those made, and the truth.
    Settle(usize, u64),
    Release(usize),
    Renew(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_000_u64).prop_map(Step::Reserve),
        4 => (0..20_usize, 0..4_000_u64).prop_map(|(which, truth)| Step::Settle(which, truth)),
        2 => (0..20_usize).prop_map(Step::Release),
        1 => (0..20_usize).prop_map(Step::Renew),
        2 => (1..40_u64).prop_map(Step::Pass),
    ]
}

/// How a reservation is known to a slow oracle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Open { until: u64 },
    Settled { truth: u64, known_until: u64 },
    Released { known_until: u64 },
    Expired,
}

#[derive(Debug)]
struct Reserved {
    id: u128,
    estimate: u64,
    known: Course,
}

impl Reserved {
    fn counts(&self) -> u64 {
        match self.known {
            Course::Open { .. } | Course::Expired => self.estimate,
            Course::Settled { truth, .. } => truth,
            Course::Released { .. } => 0,
        }
    }

    fn pass(&mut self, now: u64) {
        if matches!(self.known, Course::Open { until } if until <= now) {
            self.known = Course::Expired;
        }
    }

    /// What a call that ends it is to return: nothing if it is open, else how it ended or that it
    /// is unknown.
    fn ended(&self, now: u64) -> Result<Option<Ending>, EngineError> {
        match self.known {
            Course::Open { .. } => Ok(None),
            Course::Settled { known_until, .. } if now < known_until => Ok(Some(Ending::Settled)),
            Course::Released { known_until } if now < known_until => Ok(Some(Ending::Released)),
            _ => Err(EngineError::ReservationUnknown),
        }
    }
}

const ORACLE_RULES: &str = "
  - {rule_id: fixed, scope: a, identifier_type: user_id, unit: tokens, limit: 10000, window: 1d, algorithm: fixed_window}
  - {rule_id: log, scope: b, identifier_type: user_id, unit: tokens, limit: 10000, window: 1d, algorithm: sliding_window_log}
  - {rule_id: counter, scope: c, identifier_type: user_id, unit: tokens, limit: 10000, window: 1d, algorithm: sliding_window_counter}
";

async fn play(steps: Vec<Step>) {
    let bed = bed(ORACLE_RULES);
    let mut made: Vec<Reserved> = Vec::new();
    let mut now = START;
    for step in steps {
        for one in &mut made {
            one.pass(now);
        }
        let counted: u64 = made.iter().map(Reserved::counts).sum();
        let chosen = |which: usize| (!made.is_empty()).then(|| which % made.len());
        match step {
            Step::Reserve(estimate) => {
                let id = bed.reserve(estimate, None).await;
                let fits = estimate == 0 && counted <= 10_000 || counted + estimate <= 10_000;
                assert_eq!(id.is_some(), fits, "{estimate} on top of {counted}");
                if let Some(id) = id {
                    let known = Course::Open { until: now + TTL };
                    made.push(Reserved { id, estimate, known });
                }
            }
            Step::Settle(which, truth) => {
                let Some(which) = chosen(which) else { continue };
                let one = &mut made[which];
                let got = bed.settle(one.id, truth).await;
                match one.ended(now) {
                    Ok(None) => {
                        let known_until = now + ENDED_RETENTION;
                        one.known = Course::Settled { truth, known_until };
                        assert_eq!(
                            got.map(|it| it.extra.of(Unit::Tokens)),
                            Ok(truth.saturating_sub(one.estimate))
                        );
                    }
                    Ok(Some(Ending::Settled)) => assert!(got.is_ok(), "{got:?}"),
                    Ok(Some(other)) => assert_eq!(got, Err(EngineError::ReservationEnded(other))),
                    Err(error) => assert_eq!(got, Err(error)),
                }
            }
            Step::Release(which) => {
                let Some(which) = chosen(which) else { continue };
                let one = &mut made[which];
                let got = bed.engine.release_reservation(one.id).await;
                match one.ended(now) {
                    Ok(None) => {
                        one.known = Course::Released { known_until: now + ENDED_RETENTION };
                        assert_eq!(got.map(|it| it.refunded.of(Unit::Tokens)), Ok(one.estimate));
                    }
                    Ok(Some(Ending::Released)) => assert!(got.is_ok(), "{got:?}"),
                    Ok(Some(other)) => assert_eq!(got, Err(EngineError::ReservationEnded(other))),
                    Err(error) => assert_eq!(got, Err(error)),
                }
            }
            Step::Renew(which) => {
                let Some(which) = chosen(which) else { continue };
                let one = &mut made[which];
                let got = bed.engine.renew_reservation(one.id, None).await;
                assert_eq!(got.is_ok(), one.ended(now) == Ok(None));
                if got.is_ok() {
                    one.known = Course::Open { until: now + TTL };
                }
            }
            Step::Pass(seconds) => {
                now += seconds * SECOND;
                bed.clock.advance(seconds * SECOND);
            }
        }
        let counted: u64 = made.iter().map(Reserved::counts).sum();
        for (rule, used) in bed.used().await {
            assert_eq!(used, counted, "{rule}");
        }
    }
    conserved(&bed, &made);
}

/// reserved + extra = settled + refunded + expired or open.
fn conserved(bed: &Bed, made: &[Reserved]) {
    let counts = bed.engine.reservations().counts();
    let of = |wanted: fn(&Course) -> bool| -> u64 {
        made.iter().filter(|one| wanted(&one.known)).map(Reserved::counts).sum()
    };
    let settled = of(|known| matches!(known, Course::Settled { .. }));
    let left = of(|known| matches!(known, Course::Open { .. } | Course::Expired));
    assert_eq!(
        counts.reserved_tokens + counts.extra_tokens,
        settled + counts.refunded_tokens + left
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_history_is_conserved(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(play(steps));
    }
}

/// Three reservations released in any order leave nothing of any bucket.
#[tokio::test]
async fn reservations_are_released_in_every_order() {
    for algorithm in ["token_bucket", "leaky_bucket", "gcra"] {
        let rule = format!(
            "  - {{rule_id: b, identifier_type: user_id, unit: tokens, limit: 100, burst: 100, \
             window: 1d, algorithm: {algorithm}}}\n"
        );
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let bed = bed(&rule);
            let mut ids = Vec::new();
            for _ in 0..3 {
                ids.push(bed.reserve(5, None).await.unwrap());
                bed.clock.advance(1_000);
            }
            for index in order {
                bed.engine.release_reservation(ids[index]).await.unwrap();
            }
            assert_eq!(bed.used().await["b"], 0, "{algorithm} {order:?}");
            assert_eq!(bed.engine.store().usage().counters, 0, "{algorithm}: nothing is kept");
        }
    }
}

/// What a settlement reports as refunded is what the bucket gets back, whatever was charged in between.
#[tokio::test]
async fn a_settlement_refunds_what_it_reports() {
    let bed = bed(
        "  - {rule_id: b, identifier_type: user_id, unit: tokens, limit: 1000000, window: 1d, \
         algorithm: token_bucket}\n",
    );
    let mut ids = Vec::new();
    for _ in 0..16 {
        ids.push(bed.reserve(4_100, None).await.unwrap());
        bed.clock.advance(1_000);
    }
    let mut refunded = 0;
    for step in [5, 3, 10, 8] {
        for index in (0..4).map(|number| (number * 4 + step) % 16) {
            refunded += bed.settle(ids[index], 100).await.unwrap().refunded.tokens.unwrap_or(0);
        }
    }
    assert_eq!(refunded, 64_000);
    assert_eq!(bed.used().await["b"], 1_600);
}

/// A charge that is no longer there is not refunded, and not reported as refunded: that of a bucket with too many open charges,
/// of a window that is over, and of a counter that was reset. What is reported and what stays charged make up the reserved.
#[tokio::test]
async fn a_settlement_reports_no_refund_of_what_is_gone() {
    let bed = bed(
        "  - {rule_id: b, identifier_type: user_id, unit: tokens, limit: 1000000, window: 1d, \
         algorithm: token_bucket}\n",
    );
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(bed.reserve(1_000, None).await.unwrap());
        bed.clock.advance(1_000);
    }
    for (place, id) in ids.iter().enumerate() {
        let is_final = place < 36;
        let settled = if place % 2 == 0 {
            bed.settle(*id, 0).await.unwrap()
        } else {
            bed.engine.release_reservation(*id).await.unwrap()
        };
        assert_eq!(settled.refunded.of(Unit::Tokens), if is_final { 0 } else { 1_000 }, "{place}");
    }
    assert_eq!(bed.settle(ids[0], 0).await.unwrap().refunded.tokens, None, "again");
    let counts = bed.engine.reservations().counts();
    assert_eq!((counts.reserved_tokens, counts.refunded_tokens), (100_000, 64_000));
    assert_eq!(bed.used().await["b"], counts.reserved_tokens - counts.refunded_tokens);
    let bed = self::bed(
        "  - {rule_id: w, identifier_type: user_id, unit: tokens, limit: 1000, window: 10s, \
         algorithm: fixed_window}\n",
    );
    let id = bed.reserve(600, None).await.unwrap();
    bed.clock.advance(11 * SECOND);
    let settled = bed.settle(id, 100).await.unwrap();
    assert_eq!(settled.refunded.of(Unit::Tokens), 0, "its window is over");
}

/// Any number of reservations of one client, settled or left to expire, take bounded memory; a settlement that is repeated
/// refunds nothing twice.
#[tokio::test]
async fn many_reservations_of_one_client_stay_bounded() {
    let store = MemoryStore::new(10_000).with_max_reservations(100_000);
    let bed = bed_of(
        "  - {rule_id: b, identifier_type: user_id, unit: tokens, limit: 1000000, window: 1d, \
         algorithm: token_bucket}\n",
        store,
    );
    for round in 0..2_000_u64 {
        let id = bed.reserve(10, None).await.unwrap();
        if round % 2 == 0 {
            for _ in 0..3 {
                bed.settle(id, 4).await.unwrap();
            }
        }
        bed.clock.advance(1_000);
    }
    // The figures are those of 1,000 settled and 1,000 expired reservations.
    assert_eq!(bed.used().await["b"], 1_000 * 4 + 1_000 * 10);
    let usage = bed.engine.store().usage();
    assert_eq!(usage.counters, 1);
    assert!(usage.finalized_charges <= 1_000, "those that were left: {usage:?}");
    let expected = MemoryStore::new(10_000).usage().bytes + 16_384;
    assert!(usage.bytes <= expected, "{usage:?}");
}
