//! Several requests decided as one.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::sync::Arc;

use tollgate_engine::{
    Engine, Hits, LimitOverride, MAX_COST, ManualClock, MissingKey, OVERRIDE_WINDOWS, Part,
    Receipts, Request,
};
use tollgate_policy::{Known, RequestPath, RuleSet};
use tollgate_store::{MemoryStore, Mode};

const RULES: &str = "
default: false
no_match: deny
rules:
- {rule_id: user, scope: user, applies_to: {domains: [d]}, identifier_type: user_id, limit: 5, window: 1d, algorithm: fixed_window}
- {rule_id: tenant, scope: tenant, applies_to: {domains: [d]}, identifier_type: tenant_id, limit: 3, window: 1d, algorithm: fixed_window}
- {rule_id: tokens, scope: tokens, applies_to: {domains: [d]}, key_by: [model_id], unit: tokens, limit: 10, window: 1d, algorithm: fixed_window}
- {rule_id: bucket, scope: bucket, applies_to: {domains: [d]}, key_by: [api_key], limit: 4, window: 1d, algorithm: token_bucket}
- {rule_id: one, scope: one, applies_to: {domains: [q], attributes: {descriptor: one}}, quota_mode: true, limit: 2, window: 1d, algorithm: fixed_window}
- {rule_id: two, scope: two, applies_to: {domains: [q], attributes: {descriptor: two}}, quota_mode: true, limit: 4, window: 1d, algorithm: fixed_window}
- {rule_id: folder, scope: folder, applies_to: {domains: [p], endpoints: ['/a/*/c']}, quota_mode: true, limit: 1, window: 1d, algorithm: fixed_window}
- {rule_id: name, scope: name, applies_to: {domains: [p], endpoints: ['/a/{x}']}, quota_mode: true, limit: 9, window: 1d, algorithm: fixed_window}
- {rule_id: general, scope: r, applies_to: {domains: [r], attributes: {descriptor: general}}, limit: 0, window: 1d, algorithm: fixed_window}
- {rule_id: special, scope: r, applies_to: {domains: [r], attributes: {descriptor: special}}, overrides: ['rule:general'], limit: 9, window: 1d, algorithm: fixed_window}
- {rule_id: budget, scope: i, applies_to: {domains: [i], attributes: {descriptor: budget}}, limit: 10, window: 1d, algorithm: fixed_window, envoy: {charge_above_limit: true, allow_check_at_limit: true}}
- {rule_id: other, scope: i, applies_to: {domains: [i], attributes: {descriptor: other}}, limit: 2, window: 1d, algorithm: fixed_window, envoy: {charge_above_limit: true}}
deny_list: ['user_id:mallory']
";

fn bed() -> Engine<MemoryStore> {
    let set = RuleSet::from_yaml(RULES, "t").unwrap();
    // As in the service: descriptors bring what they know.
    Engine::new(MemoryStore::new(1_000), Arc::new(ManualClock::new(1_000_000)), set)
        .with_missing_key(MissingKey::Allow)
}

type Own = Part<'static>;

fn part(domain: &'static str, attributes: &[(&'static str, &'static str)], hits: Hits) -> Own {
    let mut request = Request::default();
    request.attributes.set(Known::Domain, domain);
    for (name, value) in attributes {
        request.attributes.push_extra(name, value);
    }
    Part { request, hits, has_own_hits: false, limit_override: None }
}

/// Per part: allowed, used and remaining of the deciding limit.
async fn ask(engine: &Engine<MemoryStore>, parts: &[Own]) -> (bool, Vec<(bool, u64, u64)>) {
    let rules = Box::leak(Box::new(engine.rules()));
    let together = engine.decide_together(rules, parts).await.unwrap();
    let figures = together.parts.iter().map(|decision| {
        let status = decision.deciding().map(|scope| scope.outcome.status).unwrap_or_default();
        (decision.is_allowed(), status.used, status.remaining)
    });
    (together.is_over, figures.collect())
}

#[tokio::test]
async fn all_parts_are_charged_or_none() {
    let engine = bed();
    let both = [
        part("d", &[("user_id", "ann")], Hits::Charge(1)),
        part("d", &[("tenant_id", "acme")], Hits::Charge(1)),
    ];
    for used in 1..=3 {
        let expected = vec![(true, used, 5 - used), (true, used, 3 - used)];
        assert_eq!(ask(&engine, &both).await, (false, expected));
    }
    // The tenant has no room: the user is not charged, and its own status is fine.
    assert_eq!(ask(&engine, &both).await, (true, vec![(true, 3, 2), (false, 3, 0)]));
    let alone = [part("d", &[("user_id", "ann")], Hits::Charge(2))];
    assert_eq!(ask(&engine, &alone).await, (false, vec![(true, 5, 0)]));
}

#[tokio::test]
async fn tokens_are_owed_above_the_limit_even_beside_a_refusal() {
    let engine = bed();
    let tokens = |hits| part("d", &[("model_id", "m")], Hits::Charge(hits));
    assert_eq!(ask(&engine, &[tokens(9)]).await, (false, vec![(true, 9, 1)]));
    assert_eq!(ask(&engine, &[tokens(5)]).await, (true, vec![(false, 14, 0)]));
    let refused = [part("d", &[("user_id", "mallory")], Hits::Charge(1)), tokens(6)];
    assert_eq!(ask(&engine, &refused).await, (true, vec![(false, 0, 0), (false, 20, 0)]));
}

#[tokio::test]
async fn a_debt_is_paid_off_within_a_bound_and_debts_add_up() {
    const DAY: u64 = 86_400 * 1_000_000_000;
    for algorithm in ["token_bucket", "leaky_bucket", "gcra"] {
        let rules = format!(
            "rules:
- {{rule_id: t, scope: t, key_by: [model_id], unit: tokens, limit: 100, window: 1d, algorithm: {algorithm}}}
- {{rule_id: r, scope: r, applies_to: {{domains: [i]}}, key_by: [api_key], limit: 100, window: 1d, algorithm: {algorithm}, envoy: {{charge_above_limit: true}}}}
"
        );
        let set = RuleSet::from_yaml(&rules, "t").unwrap();
        let clock = Arc::new(ManualClock::new(1_000_000));
        let engine = Engine::new(MemoryStore::new(1_000), Arc::<ManualClock>::clone(&clock), set)
            .with_missing_key(MissingKey::Allow);
        for name in ["model_id", "api_key"] {
            let of = |key, hits| {
                [Part { has_own_hits: hits != Hits::Check, ..part("i", &[(name, key)], hits) }]
            };
            let owes = async |key, hits: Vec<u64>, days: u64| {
                for hits in hits {
                    assert!(
                        ask(&engine, &of(key, Hits::Charge(hits))).await.0,
                        "{algorithm} {hits}"
                    );
                }
                clock.advance((days - 1) * DAY);
                assert!(ask(&engine, &of(key, Hits::Check)).await.0, "{algorithm} {name} {key}");
                clock.advance(2 * DAY);
                assert!(!ask(&engine, &of(key, Hits::Check)).await.0, "{algorithm} {name} {key}");
            };
            owes("true", vec![2_000], 19).await;
            owes("wrong", vec![MAX_COST], 29).await;
            owes("both", vec![2_000, MAX_COST, 2_000], 69).await;
        }
    }
}

#[tokio::test]
async fn own_hits_on_imported_rules_are_owed_with_all_imported_rules_of_the_call() {
    let engine = bed();
    let own = |hits| Part { has_own_hits: true, ..part("i", &[("descriptor", "budget")], hits) };
    let other = |hits| part("i", &[("descriptor", "other")], Hits::Charge(hits));
    let tenant = part("d", &[("tenant_id", "acme")], Hits::Charge(4));
    // A rule of our own is charged all or nothing, whatever comes with it.
    let call = [own(Hits::Charge(12)), other(3), tenant];
    let expected = vec![(false, 12, 0), (false, 3, 0), (false, 0, 3)];
    assert_eq!(ask(&engine, &call).await, (true, expected));
    assert_eq!(ask(&engine, &[own(Hits::Check)]).await, (true, vec![(false, 12, 0)]));
    // Without hits of its own nothing is owed.
    let plain = [part("i", &[("descriptor", "other")], Hits::Charge(1))];
    assert_eq!(ask(&engine, &plain).await, (true, vec![(false, 3, 0)]));
}

#[tokio::test]
async fn a_check_passes_at_exactly_the_limit_where_the_rule_says_so() {
    let engine = bed();
    let budget = |hits| [part("i", &[("descriptor", "budget")], hits)];
    let other = |hits| [part("i", &[("descriptor", "other")], hits)];
    ask(&engine, &budget(Hits::Charge(10))).await;
    ask(&engine, &other(Hits::Charge(2))).await;
    assert_eq!(ask(&engine, &budget(Hits::Check)).await, (false, vec![(true, 10, 0)]));
    assert_eq!(ask(&engine, &other(Hits::Check)).await, (true, vec![(false, 2, 0)]));
}

#[tokio::test]
async fn an_override_of_the_same_window_counts_with_its_rule() {
    let engine = bed();
    let day: &'static LimitOverride = Box::leak(Box::new(LimitOverride::new(3, 86_400).unwrap()));
    let with = |hits| {
        let mut part = part("d", &[("user_id", "ann")], Hits::Charge(hits));
        part.limit_override = Some(day);
        [part]
    };
    let without = [part("d", &[("user_id", "ann")], Hits::Charge(2))];
    assert_eq!(ask(&engine, &without).await, (false, vec![(true, 2, 3)]));
    assert_eq!(ask(&engine, &with(1)).await, (false, vec![(true, 3, 0)]));
    assert_eq!(ask(&engine, &with(1)).await, (true, vec![(false, 3, 0)]));
    assert_eq!(ask(&engine, &without).await, (false, vec![(true, 5, 0)]));
}

#[tokio::test]
async fn a_check_charges_nothing_and_keeps_others_from_being_charged() {
    let engine = bed();
    let check = part("d", &[("tenant_id", "acme")], Hits::Check);
    let charge = part("d", &[("tenant_id", "acme")], Hits::Charge(3));
    let user = part("d", &[("user_id", "ann")], Hits::Charge(1));
    assert_eq!(ask(&engine, std::slice::from_ref(&check)).await, (false, vec![(true, 0, 3)]));
    assert_eq!(ask(&engine, &[charge]).await, (false, vec![(true, 3, 0)]));
    let with = [user.clone(), check];
    assert_eq!(ask(&engine, &with).await, (true, vec![(true, 0, 5), (false, 3, 0)]));
}

#[tokio::test]
async fn hits_are_given_back_but_never_more_than_were_counted() {
    let engine = bed();
    for (key, value, limit) in [("user_id", "ann", 5), ("api_key", "k", 4)] {
        let of = |hits| [part("d", &[(key, value)], hits)];
        ask(&engine, &of(Hits::Charge(4))).await;
        ask(&engine, &of(Hits::GiveBack(3))).await;
        assert_eq!(ask(&engine, &of(Hits::Check)).await.1, [(true, 1, limit - 1)], "{key}");
        ask(&engine, &of(Hits::GiveBack(1_000))).await;
        assert_eq!(ask(&engine, &of(Hits::Check)).await.1, [(true, 0, limit)], "{key}");
    }
}

#[tokio::test]
async fn a_quota_group_refuses_when_all_of_it_is_spent() {
    let engine = bed();
    let both = [
        part("q", &[("descriptor", "one")], Hits::Charge(1)),
        part("q", &[("descriptor", "two")], Hits::Charge(1)),
    ];
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.push(ask(&engine, &both).await.0);
    }
    assert_eq!(seen, [false, false, false, false, true, true]);
}

#[tokio::test]
async fn a_rule_replaces_one_of_another_part() {
    let engine = bed();
    let general = part("r", &[("descriptor", "general")], Hits::Charge(1));
    let special = part("r", &[("descriptor", "special")], Hits::Charge(1));
    assert!(ask(&engine, std::slice::from_ref(&general)).await.0);
    assert_eq!(ask(&engine, &[general, special]).await, (false, vec![(true, 0, 0), (true, 1, 8)]));
}

#[tokio::test]
async fn an_override_counts_by_itself_where_the_domain_is_known() {
    let engine = bed();
    let over: &'static LimitOverride = Box::leak(Box::new(LimitOverride::new(2, 60).unwrap()));
    let with = |domain, value| {
        let mut part = part(domain, &[("entry.1", value)], Hits::Charge(1));
        part.limit_override = Some(over);
        [part]
    };
    for (value, expected) in [("a", false), ("a", false), ("a", true), ("b", false)] {
        assert_eq!(ask(&engine, &with("d", value)).await.0, expected, "{value}");
    }
    assert_eq!(ask(&engine, &with("unknown", "a")).await, (false, vec![(true, 0, 0)]));
    assert!(OVERRIDE_WINDOWS.iter().all(|window| LimitOverride::new(1, *window).is_some()));
    assert!(LimitOverride::new(1, 5).is_none());
}

#[tokio::test]
async fn no_match_is_never_refused_and_the_deny_list_always_is() {
    let engine = bed();
    let unknown = part("nobody", &[("x", "y")], Hits::Charge(1));
    assert_eq!(ask(&engine, &[unknown]).await, (false, vec![(true, 0, 0)]));
    let denied = part("nobody", &[("user_id", "mallory")], Hits::Charge(1));
    assert!(ask(&engine, &[denied]).await.0);
}

#[tokio::test]
async fn what_a_decision_charged_can_be_given_back_after_it_is_gone() {
    let engine = bed();
    let receipts = {
        let rules = engine.rules();
        let mut request = Request::default();
        request.attributes.set(Known::Domain, "d");
        request.attributes.set(Known::UserId, "ann");
        request.amounts.cost = Some(5);
        let decision = engine.decide(&rules, &request, Mode::Charge).await.unwrap();
        engine.receipts(&request, &decision)
    };
    assert!(!receipts.is_empty());
    assert!(receipts.clone().slots().is_empty() && receipts.slot().is_none());
    engine.give_back(&receipts).await.unwrap();
    engine.give_back(&Receipts::default()).await.unwrap();
    let check = [part("d", &[("user_id", "ann")], Hits::Check)];
    assert_eq!(ask(&engine, &check).await.1, [(true, 0, 5)]);
}

/// The path's other reading meets a rule of the same group that has room: it must not pay for what the first lacks.
#[tokio::test]
async fn an_encoded_slash_adds_no_member_to_a_quota_group() {
    let engine = bed();
    let asked = |path: &'static str| {
        let path: &'static RequestPath<'static> =
            Box::leak(Box::new(RequestPath::parse(path).unwrap()));
        let mut part = part("p", &[], Hits::Charge(1));
        part.request.attributes.set_path(path);
        [part]
    };
    assert!(!ask(&engine, &asked("/a/b/c")).await.0);
    assert!(ask(&engine, &asked("/a/b/c")).await.0, "the only member is exhausted");
    assert!(ask(&engine, &asked("/a/b%2Fc")).await.0, "the spelling adds no member");
    assert!(!ask(&engine, &asked("/a/b")).await.0, "the other rule had room");
}
