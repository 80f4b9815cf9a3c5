//! What a rule set says and cannot mean; what rules do to each other; why a request meets them.

use tollgate_policy::{
    Attributes, Effect, FindingKind, ListMatch, RuleSet, RuleVerdict, TierSource,
};

#[expect(clippy::unwrap_used, reason = "a helper of a test")]
fn set(text: &str) -> RuleSet {
    RuleSet::from_yaml(text, "t").map_err(|problems| problems.to_string()).unwrap()
}

/// Kind, rule and field of every finding, and whether its message names the other rule.
fn findings(text: &str, kind: FindingKind) -> Vec<(String, &'static str, String)> {
    let found = set(text).review().into_iter().filter(|finding| finding.kind == kind);
    found.map(|finding| (finding.rule_id, finding.field, finding.message)).collect()
}

#[test]
fn circles_of_scopes_are_found_wherever_they_are() {
    let text = r"
rules:
  - {rule_id: a, scope: A, limit: 1, window: 1s, overrides: [B], applies_to: {users: [x]}}
  - {rule_id: b, scope: B, limit: 1, window: 1s, overrides: [C, D]}
  - {rule_id: c, scope: C, limit: 1, window: 1s, overrides: [A]}
  - {rule_id: d, scope: D, limit: 1, window: 1s}
  - {rule_id: e, scope: E, limit: 1, window: 1s, overrides: [A]}
  - {rule_id: l, scope: D, limit: 1, window: 1s, overrides: [E], action: log_only}
  - {rule_id: m, scope: E, limit: 1, window: 1s, overrides: [D], action: log_only}
  - {rule_id: n, scope: F, limit: 1, window: 1s, overrides: [G], action: log_only}
  - {rule_id: o, scope: G, limit: 1, window: 1s, overrides: [F]}
";
    let found = findings(text, FindingKind::OverrideCycle);
    let ids: Vec<&str> = found.iter().map(|(id, ..)| id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "c", "l", "m"], "{found:?}");
    assert!(found.iter().all(|(_, field, _)| *field == "overrides"));
    assert!(
        found[0].2.contains("rule \"b\"") && found[0].2.contains("\"A\", \"B\", \"C\""),
        "{found:?}"
    );
}

#[test]
fn a_long_chain_of_scopes_is_no_circle_and_needs_no_stack() {
    let mut rules: Vec<String> = (0..50_000)
        .map(|n| {
            format!("{{rule_id: r{n}, scope: s{n}, limit: 1, window: 1s, overrides: [s{}]}}", n + 1)
        })
        .collect();
    rules.push("{rule_id: last, scope: s50000, limit: 1, window: 1s}".into());
    let open = format!("rules: [{}]", rules.join(", "));
    assert_eq!(findings(&open, FindingKind::OverrideCycle).len(), 0);
    rules.pop();
    rules.push("{rule_id: last, scope: s50000, limit: 1, window: 1s, overrides: [s0]}".into());
    let closed = format!("rules: [{}]", rules.join(", "));
    assert_eq!(findings(&closed, FindingKind::OverrideCycle).len(), 50_001);
}

#[test]
fn rules_that_never_win() {
    let text = r#"
rules:
  - {rule_id: same-b, scope: S, limit: 1, window: 1s, applies_to: {methods: [get, POST], users: [u]}}
  - {rule_id: same-a, scope: S, limit: 1, window: 1s, applies_to: {users: [u], methods: [POST, GET]}}
  - {rule_id: other, scope: T, limit: 1, window: 1s, applies_to: {users: [u], methods: [POST, GET]}}
  - {rule_id: low, scope: U, limit: 1, window: 1s, identifier_type: user_id}
  - {rule_id: high, scope: U, limit: 1, window: 1s, identifier_type: client, priority: 1}
  - {rule_id: keyed-b, scope: V, limit: 1, window: 1s}
  - {rule_id: keyed-a, scope: V, limit: 1, window: 1s, identifier_type: user_id}
  - {rule_id: usual, scope: W, limit: 1, window: 1s}
  - {rule_id: sale, scope: W, limit: 1, window: 1s, priority: 1, ends_at: "2027-01-01T00:00:00Z"}
  - {rule_id: watch, scope: W, limit: 1, window: 1s, action: log_only}
"#;
    let found = findings(text, FindingKind::NeverApplies);
    let ids: Vec<&str> = found.iter().map(|(id, ..)| id.as_str()).collect();
    assert_eq!(ids, ["same-b", "low"], "{found:?}");
    assert!(found[0].2.contains("\"same-a\"") && found[0].2.contains("by its id"), "{found:?}");
    assert!(found[1].2.contains("priority 1 over 0"), "{found:?}");
}

#[test]
fn rules_that_are_always_replaced() {
    let text = r"
rules:
  - {rule_id: gone, scope: A, limit: 1, window: 1s, applies_to: {users: [u]}}
  - {rule_id: unkeyed, scope: B, limit: 1, window: 1s}
  - {rule_id: all, scope: X, limit: 1, window: 1s, overrides: [A]}
  - {rule_id: per-user, scope: Y, limit: 1, window: 1s, identifier_type: user_id, overrides: [B]}
  - {rule_id: log, scope: A, limit: 1, window: 1s, action: log_only}
";
    let found = findings(text, FindingKind::NeverApplies);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].0 == "gone" && found[0].1 == "scope" && found[0].2.contains("\"all\""));
    let rivalled = "
rules:
  - {rule_id: gone, scope: A, limit: 1, window: 1s}
  - {rule_id: all, scope: X, limit: 1, window: 1s, overrides: [A]}
  - {rule_id: some, scope: X, limit: 1, window: 1s, applies_to: {users: [u]}}
";
    assert_eq!(findings(rivalled, FindingKind::NeverApplies), []);
}

#[test]
fn rules_that_limit_nobody() {
    let idle = "{rule_id: idle, limit: unlimited, window: 1s, applies_to: {tenants: [t]}}";
    let tiered =
        "{rule_id: idle, window: 1s, tier_limits: {pro: 5}, applies_to: {user_tiers: [free]}}";
    for rule in [idle, tiered] {
        let found = findings(&format!("rules: [{rule}]"), FindingKind::NeverApplies);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].1, "limit");
        // Where it lets someone off, it does something.
        let beside = format!("rules: [{rule}, {{rule_id: o, scope: idle, limit: 1, window: 1s}}]");
        assert_eq!(findings(&beside, FindingKind::NeverApplies), []);
        let known_only = format!("no_match: deny\nrules: [{rule}]");
        assert_eq!(findings(&known_only, FindingKind::NeverApplies), []);
    }
    let lets_off_default =
        "rules: [{rule_id: a, limit: unlimited, window: 1s, identifier_type: user_id}]";
    assert_eq!(findings(lets_off_default, FindingKind::NeverApplies), []);
}

#[test]
fn effects_are_what_may_happen() {
    let text = r#"
rules:
  - {rule_id: any, scope: s, limit: 1, window: 1s}
  - {rule_id: gpt, scope: s, limit: 1, window: 1s, applies_to: {models: [gpt, llama]}}
  - {rule_id: llama, scope: s, limit: 1, window: 1s, priority: 1, applies_to: {models: [llama]}}
  - {rule_id: path, scope: s, limit: 1, window: 1s, applies_to: {endpoints: ["/a/*", "/b/{x}/c"]}}
  - {rule_id: deep, scope: s, limit: 1, window: 1s, applies_to: {endpoints: ["/*/*/c", "/z"]}}
  - {rule_id: far, scope: s, limit: 1, window: 1s, applies_to: {endpoints: ["/y"]}}
  - {rule_id: watch, scope: s, limit: 1, window: 1s, action: log_only}
  - {rule_id: over, scope: o, limit: 1, window: 1s, identifier_type: user_id, overrides: [s], applies_to: {models: [gpt]}}
"#;
    let set = set(text);
    let ids = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    let effect = |displaces: &[&str],
                  displaced_by: &[&str],
                  replaces: &[&str],
                  replaced_by: &[&str]| Effect {
        displaces: ids(displaces),
        displaced_by: ids(displaced_by),
        replaces: ids(replaces),
        replaced_by: ids(replaced_by),
    };
    assert_eq!(
        set.effect_of("any"),
        effect(&[], &["gpt", "llama", "path", "deep", "far"], &[], &["over"])
    );
    // Paths with literals beat a model; one without leaves it to the id.
    assert_eq!(
        set.effect_of("gpt"),
        effect(&["any"], &["llama", "path", "deep", "far"], &[], &["over"])
    );
    assert_eq!(
        set.effect_of("path"),
        effect(&["any", "gpt", "llama", "deep"], &["deep"], &[], &["over"])
    );
    assert_eq!(set.effect_of("watch"), Effect::default());
    assert_eq!(
        set.effect_of("over"),
        effect(&[], &[], &["any", "gpt", "path", "deep", "far", "default"], &[])
    );
    assert_eq!(set.effect_of("default").replaced_by, ["over"]);
    assert_eq!(set.effect_of("nobody"), Effect::default());
}

#[test]
fn explanations_say_why() {
    use RuleVerdict::{Applies, DefaultYields, LessSpecific, Misses, Replaced};
    let text = r#"
tiers: [{name: free, is_default: true}, pro]
client_tiers: [{type: user_id, value: ann, tier: pro}]
allow_list: ["user_id:friend"]
rules:
  - {rule_id: general, scope: s, limit: 1, window: 1s, identifier_type: client}
  - {rule_id: special, scope: s, limit: 1, window: 1s, identifier_type: client, applies_to: {endpoints: ["/p/{project}"]}}
  - {rule_id: other-path, scope: p, limit: 1, window: 1s, key_by: [x], applies_to: {endpoints: ["/q/{x}"]}}
  - {rule_id: free-only, scope: t, limit: 1, window: 1s, applies_to: {user_tiers: [free]}}
  - {rule_id: two-things, scope: t, limit: 1, window: 1s, applies_to: {user_tiers: [free], models: [m]}}
  - {rule_id: keyed, scope: k, limit: 1, window: 1s, key_by: [project]}
  - {rule_id: tenant, scope: k2, limit: 1, window: 1s, identifier_type: tenant_id}
  - {rule_id: gone, scope: g, limit: 1, window: 1s}
  - {rule_id: by, scope: b, limit: 1, window: 1s, overrides: [g]}
  - {rule_id: late, scope: l, limit: 1, window: 1s, starts_at: "2026-01-01T00:00:00Z"}
"#;
    let set = set(text);
    let mut request = Attributes::default();
    request.push_extra("user_id", "ann");
    request.push_extra("model_id", "gpt");
    request.push_extra("endpoint", "/p/7");
    let explanation = set.explain(&request, 0, 100);
    assert_eq!(
        explanation.tier,
        Some(("pro", TierSource::ClientTiers(tollgate_policy::ListKind::UserId)))
    );
    let verdicts: Vec<(&str, RuleVerdict<'_>)> =
        explanation.rules.iter().map(|one| (one.rule.id.as_str(), one.verdict)).collect();
    assert_eq!(
        verdicts,
        [
            ("by", Applies),
            ("special", Applies),
            ("general", LessSpecific { than: "special" }),
            ("gone", Replaced { by: "by" }),
            ("default", DefaultYields { to: "special" }),
            ("other-path", Misses { field: "applies_to.endpoints" }),
            ("free-only", Misses { field: "applies_to.user_tiers" }),
            ("keyed", Misses { field: "key_by" }),
            ("tenant", Misses { field: "key_by" }),
            ("late", Misses { field: "starts_at" }),
        ]
    );
    assert_eq!(explanation.rules[1].key, [("user_id", "ann")]);
    assert_eq!((explanation.left_out, explanation.listed), (0, None));
    let short = set.explain(&request, 0, 2);
    assert_eq!((short.rules.len(), short.left_out), (2, 8));
    request.push_extra("user_id", "friend");
    let explanation = set.explain(&request, 0, 100);
    assert_eq!(explanation.tier, Some(("free", TierSource::Default)));
    assert!(
        matches!(explanation.listed, Some(ListMatch::Allowed(entry)) if entry.value == "friend")
    );
}
