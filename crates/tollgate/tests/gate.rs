//! The gate against an oracle, from many threads, and within its bounds.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Client, Error, Gate, MissingKey, Quota, Rule, TestClock, Unsettled, Usage};

/// Rules of three kinds, in windows that the test steps through.
fn gate(clock: &TestClock) -> Gate {
    Gate::builder()
        .rule(Rule::per("user_id").quota(Quota::per_minute(USER).fixed_window()))
        .rule(
            Rule::per("tenant_id")
                .quota(Quota::per_minute(TENANT).fixed_window())
                .tier("pro", Quota::per_minute(PRO).fixed_window()),
        )
        .rule(Rule::per("user_id").tokens(Quota::per_minute(TOKENS).fixed_window()))
        .missing_key(MissingKey::Reject)
        .clock(clock.clone())
        .build()
        .unwrap()
}

const USER: u64 = 5;
const TENANT: u64 = 8;
const PRO: u64 = 12;
const TOKENS: u64 = 100;

#[derive(Debug, Clone)]
enum Step {
    Check { user: usize, tenant: Option<usize>, is_pro: bool, cost: u64, tokens: u64 },
    Reserve { user: usize, tokens: u64, actual: Option<u64> },
    Minute,
}

fn step() -> impl Strategy<Value = Step> {
    let check =
        (0..2usize, proptest::option::weighted(0.9, 0..2usize), any::<bool>(), 0..4u64, 0..60u64);
    prop_oneof![
        8 => check.prop_map(|(user, tenant, is_pro, cost, tokens)| {
            Step::Check { user, tenant, is_pro, cost, tokens }
        }),
        3 => (0..2usize, 0..90u64, proptest::option::of(0..150u64))
            .prop_map(|(user, tokens, actual)| Step::Reserve { user, tokens, actual }),
        1 => Just(Step::Minute),
    ]
}

const USERS: [&str; 2] = ["ann", "bob"];
const TENANTS: [&str; 2] = ["acme", "umbrella"];

/// What was used in this minute, by counter.
#[derive(Default)]
struct Oracle(HashMap<(&'static str, usize), u64>);

impl Oracle {
    /// All are charged, or none is.
    fn charge(&mut self, charges: &[(&'static str, usize, u64, u64)]) -> bool {
        let fits = charges.iter().all(|(unit, who, cost, limit)| {
            self.0.get(&(unit, *who)).copied().unwrap_or(0) + cost <= *limit
        });
        if fits {
            for (unit, who, cost, _) in charges {
                *self.0.entry((unit, *who)).or_default() += cost;
            }
        }
        fits
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_history_is_decided_as_by_the_oracle(steps in proptest::collection::vec(step(), 1..60)) {
        let clock = TestClock::new();
        let (gate, mut oracle) = (gate(&clock), Oracle::default());
        for step in steps {
            match step {
                Step::Check { user, tenant, is_pro, cost, tokens } => {
                    let mut client = Client::user(USERS[user]).cost(cost).tokens(tokens);
                    if let Some(tenant) = tenant {
                        client = client.tenant(TENANTS[tenant]);
                    }
                    client = client.tier(if is_pro { "pro" } else { "free" });
                    let verdict = gate.check_now(&client).unwrap();
                    let tenant_limit = if is_pro { PRO } else { TENANT };
                    let expected = tenant.is_some_and(|tenant| oracle.charge(&[
                        ("requests", user, cost, USER),
                        ("tenant", tenant, cost, tenant_limit),
                        ("tokens", user, tokens, TOKENS),
                    ]));
                    prop_assert_eq!(verdict.is_allowed(), expected, "{:?}", verdict);
                    prop_assert_eq!(tenant.is_none(), verdict.reason() == "MISSING_KEY");
                }
                Step::Reserve { user, tokens, actual } => {
                    let client = Client::user(USERS[user]).tenant(TENANTS[0]).tokens(tokens).cost(0);
                    let held = gate.reserve_now(&client);
                    let charges = [
                        ("requests", user, 0, USER),
                        ("tenant", 0, 0, TENANT),
                        ("tokens", user, tokens, TOKENS),
                    ];
                    prop_assert_eq!(held.is_ok(), oracle.charge(&charges));
                    match (held, actual) {
                        (Ok(hold), Some(actual)) => {
                            hold.settle_now(Usage::tokens(actual)).unwrap();
                            let used = oracle.0.entry(("tokens", user)).or_default();
                            *used = *used - tokens + actual;
                        }
                        // Dropped: the estimate stays.
                        (Ok(hold), None) => drop(hold),
                        (Err(error), _) => prop_assert!(error.denial().is_some()),
                    }
                }
                Step::Minute => {
                    clock.advance(Duration::from_secs(60));
                    oracle = Oracle::default();
                }
            }
        }
    }
}

#[test]
fn a_refused_request_charges_nothing() {
    let gate = gate(&TestClock::new());
    let client = Client::user("ann").tenant("acme");
    assert!(!gate.check_now(&client.clone().tokens(TOKENS + 1)).unwrap().is_allowed());
    assert!(gate.peek_now(&client.clone().cost(USER).tokens(TOKENS)).unwrap().is_allowed());
}

#[test]
fn many_threads_get_exactly_the_limit() {
    let gate = Gate::builder()
        .rule(Rule::per("user_id").quota(Quota::per_day(1_000)))
        .rule(Rule::global().quota(Quota::per_day(1_500)))
        .clock(TestClock::new())
        .build()
        .unwrap();
    let passed = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (gate, passed) = (gate.clone(), &passed);
            scope.spawn(move || {
                for _ in 0..1_000 {
                    let verdict = gate.check_now(&Client::user(USERS[thread % 2])).unwrap();
                    passed[thread % 2]
                        .fetch_add(u64::from(verdict.is_allowed()), Ordering::Relaxed);
                }
            });
        }
    });
    let [ann, bob] = passed.map(AtomicU64::into_inner);
    assert_eq!(ann + bob, 1_500);
    assert!(ann <= 1_000 && bob <= 1_000);
}

#[tokio::test]
async fn holds_end_once_and_as_the_policy_says() {
    for policy in [Unsettled::Keep, Unsettled::Release] {
        let gate = Gate::builder()
            .rule(Rule::per("user_id").tokens(Quota::per_day(100)))
            .rule(Rule::per("user_id").concurrent(1))
            .unsettled(policy)
            .clock(TestClock::new())
            .build()
            .unwrap();
        let client = Client::user("ann").tokens(40);
        let hold = gate.reserve(&client).await.unwrap();
        assert!(gate.reserve(&client).await.is_err(), "the slot is taken");
        drop(hold);
        let kept = if policy == Unsettled::Keep { 40 } else { 0 };
        let hold = gate.reserve(&client).await.expect("the slot is free again");
        hold.settle(Usage::tokens(10)).await.unwrap();
        let hold = gate.reserve(&client).await.unwrap();
        hold.release().await.unwrap();
        let verdict = gate.peek(&Client::user("ann").tokens(100 - kept - 10)).await.unwrap();
        assert!(verdict.is_allowed(), "{policy:?}");
        let verdict = gate.peek(&Client::user("ann").tokens(100 - kept - 9)).await.unwrap();
        assert!(!verdict.is_allowed(), "{policy:?}");
    }
}

#[test]
fn a_check_takes_no_slot_that_nobody_gives_back() {
    let gate = Gate::builder()
        .rule(Rule::per("user_id").concurrent(1).endpoint("/work"))
        .rule(Rule::per("user_id").quota(Quota::per_day(2)))
        .build()
        .unwrap();
    let client = Client::user("ann").endpoint("/work");
    for _ in 0..3 {
        let error = gate.check_now(&client).unwrap_err();
        assert!(matches!(&error, Error::SlotNotHeld { .. }), "{error:?}");
        assert!(error.to_string().contains("use reserve()"), "{error}");
    }
    assert!(gate.peek_now(&client).unwrap().is_allowed(), "a peek takes no slot");
    let hold = gate.reserve_now(&client).expect("neither a slot nor a request was charged");
    assert!(!gate.peek_now(&client).unwrap().is_allowed(), "the slot is held");
    drop(hold);
    let other = gate.check_now(&Client::user("ann").endpoint("/other")).unwrap();
    assert_eq!(other.remaining(), Some(0), "the rule does not apply there");
}

/// An estimate of nothing is an estimate too.
#[test]
fn what_is_settled_above_an_estimate_of_nothing_is_charged() {
    let quota = Quota::per_day(100);
    for quota in [quota, quota.fixed_window(), quota.sliding_window(), quota.leaky_bucket()] {
        let rule = Rule::per("user_id").tokens(quota);
        let gate = Gate::builder().rule(rule).clock(TestClock::new()).build().unwrap();
        let hold = gate.reserve_now(&Client::user("ann")).unwrap();
        hold.settle_now(Usage::tokens(70)).unwrap();
        assert_eq!(gate.peek_now(&Client::user("ann")).unwrap().remaining(), Some(30), "{quota:?}");
    }
}

#[test]
fn what_makes_no_sense_is_an_error() {
    let quota = Quota::per_day(1);
    let odd = Quota::per(Duration::from_micros(1), 1).unwrap();
    for (rule, expected) in [
        (Rule::per("user_id"), "has no quota"),
        (Rule::per("user_id").quota(quota).tokens(quota), "make a rule of each"),
        (Rule::per("user_id").quota(quota).concurrent(1), "make a rule of each"),
        (Rule::per("user_id").tier("pro", quota), "a tier follows the quota"),
        (Rule::per("user_id").quota(quota).tier("pro", Quota::per_hour(1)), "the window"),
        (Rule::per("user_id").quota(odd), "whole number of milliseconds"),
        (Rule::per("").quota(quota), "must not be empty"),
        (Rule::per("user_id").quota(quota).endpoint("no-slash"), "pattern"),
        (Rule::per("user_id").quota(Quota::per_day(u64::MAX)), "must not be above"),
    ] {
        let error = Gate::builder().rule(rule).build().unwrap_err();
        let Error::Rules(text) = error else { panic!("{error:?}") };
        assert!(text.contains(expected), "{text}");
    }
    let twice = Gate::builder()
        .rule(Rule::per("user_id").quota(quota))
        .rule(Rule::per("user_id").quota(Quota::per_day(2)));
    assert!(twice.build().unwrap_err().to_string().contains("two rules are named"));
}

#[test]
fn clients_are_bounded() {
    let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(9))).build().unwrap();
    let long = "x".repeat(257);
    let many = (0..33).fold(Client::new(), |client, _| client.attribute("a", "b"));
    for client in [
        Client::user(&long),
        Client::new().attribute("region", &long),
        Client::new().attribute(&long, "eu"),
        Client::new().cost(1 << 53),
        Client::new().tokens(1 << 53),
        Client::new().endpoint("/%zz"),
        many,
    ] {
        let error = gate.check_now(&client).unwrap_err();
        assert!(matches!(error, Error::Client { .. }), "{error:?}");
    }
    assert_eq!(gate.peek_now(&Client::new()).unwrap().remaining(), Some(9), "nothing was charged");
}

#[test]
fn rule_files_and_typed_rules_hold_together() {
    let yaml = "
rules: [{rule_id: per-ip, identifier_type: ip, limit: 1, window: 1d, algorithm: fixed_window}]
deny_list: ['user_id:mallory']
";
    let rule = Rule::per("user_id").quota(Quota::per_day(2));
    let gate = Gate::builder().rule(rule).rules_yaml(yaml).clock(TestClock::new()).build().unwrap();
    let ann = Client::user("ann").ip("192.0.2.1");
    assert!(gate.check_now(&ann).unwrap().is_allowed());
    assert_eq!(gate.check_now(&ann).unwrap().rule_id(), Some("per-ip"));
    let other = Client::user("ann").ip("192.0.2.2");
    assert!(gate.check_now(&other).unwrap().is_allowed(), "the refused one was charged nowhere");
    let verdict = gate.check_now(&Client::user("ann").ip("192.0.2.3")).unwrap();
    assert_eq!(verdict.rule_id(), Some("user_id-requests-1d"));
    let mallory = gate.check_now(&Client::user("mallory").ip("192.0.2.4")).unwrap();
    assert_eq!(mallory.reason(), "DENY_LISTED");
    let wrong = Gate::builder().rules_yaml("rules: [{rule_id: r, limt: 1}]").build().unwrap_err();
    assert!(wrong.to_string().contains("rule file 1:1:"), "{wrong}");
}

#[test]
fn no_hidden_rule_and_none_is_an_error() {
    let rule = Rule::per("ip").quota(Quota::per_day(1));
    let gate = Gate::builder().rule(rule).missing_key(MissingKey::Allow).build().unwrap();
    let client = Client::user("ann").model("small");
    for _ in 0..200 {
        assert!(gate.check_now(&client).unwrap().is_allowed(), "the service's default is 100");
    }
    assert!(Gate::builder().build().is_err());
    assert!(Gate::builder().rules_yaml("rules: []").build().is_err());
}

/// A global limit is everybody's: resetting one client does not lift it.
#[tokio::test]
async fn a_reset_leaves_the_counters_that_others_are_counted_in() {
    let gate = Gate::builder()
        .rule(Rule::per("user_id").quota(Quota::per_day(1)))
        .rule(Rule::per("model_id").quota(Quota::per_day(2)))
        .rule(Rule::global().quota(Quota::per_day(3)))
        .missing_key(MissingKey::Allow)
        .build()
        .unwrap();
    let is_allowed = async |client: &Client<'_>| gate.check(client).await.unwrap().is_allowed();
    let ann = Client::user("ann").model("m");
    assert!(is_allowed(&ann).await);
    assert!(!is_allowed(&ann).await);
    gate.reset(&ann).await.unwrap();
    assert!(is_allowed(&ann).await, "her own counter is reset");
    gate.reset(&ann).await.unwrap();
    assert!(!is_allowed(&ann).await, "two of two of the model are used");
    // A client that names no identity is all that it names.
    gate.reset(&Client::new().model("m")).await.unwrap();
    assert!(is_allowed(&ann).await, "the model was reset");
    gate.reset(&Client::user("bob")).await.unwrap();
    assert!(!is_allowed(&Client::user("bob")).await, "three of three are used by all");
    gate.reset(&Client::new()).await.unwrap();
    assert!(is_allowed(&Client::user("bob")).await, "an empty client is everybody");
}
