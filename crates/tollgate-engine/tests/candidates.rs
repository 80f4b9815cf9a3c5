//! Candidates: whichever limits enforce, both have counted all that passed, so that nobody gets a fresh counter.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of a test")]

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tollgate_core::{Ask, Limit, SECOND, State};
use tollgate_engine::{Amounts, Engine, ManualClock, Request};
use tollgate_policy::{AgreementCounts, Known, Quota, RuleSet};
use tollgate_store::{MemoryStore, Mode};

const START: u64 = 1_794_700_800 * SECOND;
const USERS: [&str; 4] = ["ann", "bob", "cem", "dua"];

fn rules(generation: u32, algorithm: &str, live: u64, candidate: Option<(u64, &str)>) -> RuleSet {
    let candidate = candidate.map_or_else(String::new, |(limit, rollout)| {
        format!("\n    candidate: {{limit: {limit}, rollout: {{salt: s, {rollout}}}}}")
    });
    let text = format!(
        "default: false\nrules:\n  - rule_id: r\n    identifier_type: user_id\n    \
         limit: {live}\n    window: 60s\n    algorithm: {algorithm}\n    \
         generation: {generation}{candidate}\n"
    );
    RuleSet::from_yaml(&text, "t").unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
}

fn engine(set: RuleSet) -> (Engine<MemoryStore>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START));
    (Engine::new(MemoryStore::new(10_000), Arc::<ManualClock>::clone(&clock), set), clock)
}

fn request(user: &str, cost: u64) -> Request<'_> {
    let mut request = Request {
        amounts: Amounts { cost: Some(cost), ..Amounts::default() },
        ..Request::default()
    };
    request.attributes.set(Known::UserId, user);
    request.attributes.set(Known::TenantId, if user < "c" { "early" } else { "late" });
    request
}

fn allows(engine: &Engine<MemoryStore>, user: &str, cost: u64) -> bool {
    let rules = engine.rules();
    let request = request(user, cost);
    let decided = engine.decide_now(&rules, &request, Mode::Charge).expect("a memory store");
    decided.unwrap().is_allowed()
}

/// The limit of the candidate, or the one in force.
fn limit(engine: &Engine<MemoryStore>, is_candidate: bool) -> Option<Limit> {
    let rules = engine.rules();
    let rule = rules.set.rule("r").unwrap();
    let found = rule.limits.iter().find(|limit| limit.is_candidate == is_candidate)?;
    let Some(Quota::Limited(limit)) = &found.base else { panic!("a limit") };
    Some(limit.clone())
}

fn is_enforced(engine: &Engine<MemoryStore>, user: &str, now: u64) -> bool {
    let rules = engine.rules();
    let rule = rules.set.rule("r").unwrap();
    let tenant = if user < "c" { "early" } else { "late" };
    rule.candidate.as_ref().is_some_and(|one| one.enforces(&[user], Some(tenant), now))
}

#[derive(Debug, Clone)]
enum Step {
    Ask { user: usize, cost: u64 },
    Wait(u64),
    Roll(u32),
    Tenants,
    Halt,
    Promote,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..USERS.len(), 1..4_u64).prop_map(|(user, cost)| Step::Ask { user, cost }),
        3 => (1..50_u64).prop_map(Step::Wait),
        1 => (0..=100_u32).prop_map(Step::Roll),
        1 => Just(Step::Tenants),
        1 => Just(Step::Halt),
        1 => Just(Step::Promote),
    ]
}

/// What counters hold that have counted all that passed: of the limits in force, and of the candidate.
#[derive(Default)]
struct Model {
    live: HashMap<usize, State>,
    candidate: HashMap<usize, State>,
}

fn count(limit: &Limit, state: &mut State, ask: &Ask, now: u64, is_enforcing: bool) {
    // A bucket takes no debts.
    let fits = limit.examine(state, ask, now).admits();
    if is_enforcing || fits || !limit.algorithm().is_bucket() {
        limit.charge(state, ask, now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Steps of a rollout at random times: every decision is that of a counter which has counted all that passed.
    #[test]
    fn halting_and_promoting_hand_nobody_a_fresh_counter(
        algorithm in prop::sample::select(vec![
            "fixed_window", "sliding_window_counter", "sliding_window_log", "token_bucket", "gcra",
        ]),
        live in 2..12_u64,
        other in 2..12_u64,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let (mut generation, mut live, mut other) = (0, live, other);
        let (engine, clock) = engine(rules(0, algorithm, live, Some((other, "percent: 0"))));
        let mut model = Model::default();
        let mut now = START;
        for step in steps {
            let swap = |rollout: &str, generation, live, other| {
                engine.swap_rules(rules(generation, algorithm, live, Some((other, rollout))));
            };
            match step {
                Step::Wait(seconds) => {
                    now += seconds * SECOND;
                    clock.advance(seconds * SECOND);
                }
                Step::Roll(percent) => swap(&format!("percent: {percent}"), generation, live, other),
                Step::Tenants => swap("tenants: [early]", generation, live, other),
                Step::Halt => swap("percent: 0", generation, live, other),
                Step::Promote => {
                    // What was the candidate's is now in force; another candidate begins.
                    generation += 1;
                    (live, other) = (other, live);
                    model.live = std::mem::take(&mut model.candidate);
                    swap("percent: 0", generation, live, other);
                }
                Step::Ask { user, cost } => {
                    let (ours, theirs) =
                        (limit(&engine, false).unwrap(), limit(&engine, true).unwrap());
                    let is_candidate = is_enforced(&engine, USERS[user], now);
                    let state = model.live.entry(user).or_insert_with(|| ours.fresh());
                    let tried = model.candidate.entry(user).or_insert_with(|| theirs.fresh());
                    let ask = Ask::cost(cost);
                    let expected = if is_candidate {
                        theirs.examine(tried, &ask, now).admits()
                    } else {
                        ours.examine(state, &ask, now).admits()
                    };
                    prop_assert_eq!(allows(&engine, USERS[user], cost), expected);
                    if expected {
                        count(&ours, state, &ask, now, !is_candidate);
                        count(&theirs, tried, &ask, now, is_candidate);
                    }
                }
            }
        }
    }
}

#[test]
fn only_the_enforcing_limits_refuse_and_the_others_are_reported() {
    let (engine, _) = engine(rules(0, "fixed_window", 5, Some((2, "tenants: [late]"))));
    // The rule's own limit enforces for the early tenant.
    for number in 1..=6 {
        let rules = engine.rules();
        let request = request("ann", 1);
        let decision = engine.decide_now(&rules, &request, Mode::Charge).unwrap().unwrap();
        assert_eq!(decision.is_allowed(), number <= 5);
        assert_eq!(decision.scopes().count(), 1, "the answer shows the limit that enforces");
        assert_eq!(decision.would_deny().count(), usize::from(number > 2));
        assert!(decision.would_deny().all(|scope| scope.limit.is_candidate));
    }
    // The candidate enforces for the late one.
    for number in 1..=3 {
        assert_eq!(allows(&engine, "cem", 1), number <= 2);
    }
    let rules_now = engine.rules();
    let candidate = rules_now.set.rule("r").unwrap().candidate.as_ref().unwrap();
    let expected = AgreementCounts {
        both_allow: 4,
        both_refuse: 1,
        only_live_refuses: 0,
        only_candidate_refuses: 4,
    };
    assert_eq!(candidate.agreement.counts(), expected);
    drop(rules_now);
    // Another step of the same rollout continues the figures; another candidate begins anew.
    engine.swap_rules(rules(0, "fixed_window", 5, Some((2, "percent: 100"))));
    let counts = |engine: &Engine<MemoryStore>| {
        let rules = engine.rules();
        rules.set.rule("r").unwrap().candidate.as_ref().unwrap().agreement.counts()
    };
    assert_eq!(counts(&engine), expected);
    assert!(!allows(&engine, "ann", 1), "what passed before counts for the candidate");
}

#[test]
fn a_refused_request_is_charged_to_neither() {
    let (engine, _) = engine(rules(0, "fixed_window", 2, Some((9, "percent: 0"))));
    for number in 1..=8 {
        assert_eq!(allows(&engine, "ann", 1), number <= 2);
    }
    engine.swap_rules(rules(1, "fixed_window", 9, None));
    for number in 3..=10 {
        assert_eq!(allows(&engine, "ann", 1), number <= 9, "promoted with what it counted");
    }
}
