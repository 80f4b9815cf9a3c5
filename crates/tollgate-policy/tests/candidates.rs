//! Candidates of rules: for whom they enforce, and what is refused.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test")]

use tollgate_policy::{Candidate, RuleSet};

const SECOND: u64 = 1_000_000_000;

fn compile(fields: &str) -> Result<RuleSet, String> {
    let text = format!("rules:\n  - {{rule_id: r, limit: 10, window: 60s, {fields}}}\n");
    RuleSet::from_yaml(&text, "t").map_err(|problems| format!("{problems}"))
}

fn candidate(rollout: &str) -> Candidate {
    let fields = format!("identifier_type: user_id, candidate: {{limit: 5, rollout: {rollout}}}");
    let set = compile(&fields).unwrap_or_else(|problems| panic!("{problems}"));
    (**set.rule("r").unwrap().candidate.as_ref().unwrap()).clone()
}

fn enforced(candidate: &Candidate, now: u64) -> Vec<bool> {
    (0..10_000).map(|user| candidate.enforces(&[&format!("user-{user}")], None, now)).collect()
}

#[test]
fn a_quarter_of_the_keys_is_a_quarter_with_every_salt() {
    let mut before: Option<Vec<bool>> = None;
    for salt in 0..20 {
        let one = enforced(&candidate(&format!("{{percent: 25, salt: s{salt}}}")), 0);
        let count = one.iter().filter(|is_enforced| **is_enforced).count();
        assert!((2_300..=2_700).contains(&count), "salt {salt}: {count} of 10,000");
        // Another node, or the same one after a restart, chooses the same keys.
        assert_eq!(enforced(&candidate(&format!("{{percent: 25, salt: s{salt}}}")), 0), one);
        // A wider share has all keys of a narrower one.
        let wider = enforced(&candidate(&format!("{{percent: 60, salt: s{salt}}}")), 0);
        assert!(one.iter().zip(&wider).all(|(one, wider)| !one || *wider));
        if let Some(before) = before.replace(one.clone()) {
            let both = before.iter().zip(&one).filter(|(one, other)| **one && **other).count();
            assert!((400..=850).contains(&both), "salts choose apart: {both}");
        }
    }
}

#[test]
fn the_ends_of_the_scale_are_nobody_and_everybody() {
    assert!(enforced(&candidate("{percent: 0}"), 0).iter().all(|is_enforced| !is_enforced));
    assert!(enforced(&candidate("{percent: 100}"), 0).iter().all(|is_enforced| *is_enforced));
    assert!(enforced(&candidate("{}"), 0).iter().all(|is_enforced| !is_enforced));
    let few = enforced(&candidate("{percent: 0.5}"), 0).iter().filter(|it| **it).count();
    assert!((20..=85).contains(&few), "{few}");
}

#[test]
fn parts_of_a_key_cannot_pass_for_each_other() {
    let candidate = candidate("{percent: 50, salt: x}");
    let differs = (0..64).any(|number| {
        let (one, other) = (format!("a{number}"), format!("b{number}"));
        let joined = format!("{one}{other}");
        candidate.enforces(&[&one, &other], None, 0) != candidate.enforces(&[&joined, ""], None, 0)
    });
    assert!(differs);
}

#[test]
fn tenants_and_schedules_choose() {
    let tenants = candidate("{tenants: [acme, eu]}");
    assert!(tenants.enforces(&["u"], Some("acme"), 0));
    assert!(!tenants.enforces(&["u"], Some("acm"), 0));
    assert!(!tenants.enforces(&["u"], None, 0));
    let steps = candidate(
        "{schedule: [{percent: 5, from: '2026-01-01T00:00:00Z'}, {percent: 100, from: '2026-02-01T00:00:00Z'}]}",
    );
    let january = 1_767_225_600 * SECOND;
    let count = |now| enforced(&steps, now).iter().filter(|is_enforced| **is_enforced).count();
    assert_eq!(count(january - 1), 0);
    assert!((400..=600).contains(&count(january)), "{}", count(january));
    assert_eq!(count(january + 31 * 86_400 * SECOND), 10_000);
}

#[test]
fn a_candidate_has_counters_of_its_own_and_the_rest_of_its_rule() {
    let set = compile("algorithm: fixed_window, generation: 3, candidate: {limit: 5}").unwrap();
    let limits = &set.rule("r").unwrap().limits;
    let tags: Vec<(&str, bool)> =
        limits.iter().map(|limit| (limit.tag.as_str(), limit.is_candidate)).collect();
    assert_eq!(tags, [("fixed_window+60s~3", false), ("fixed_window+60s~4", true)]);
    assert_ne!(limits[0].salt, limits[1].salt);
    // Promoted, it continues these counters.
    let promoted = RuleSet::from_yaml(
        "rules:\n  - {rule_id: r, limit: 5, window: 60s, algorithm: fixed_window, generation: 4}\n",
        "t",
    )
    .unwrap();
    assert_eq!(promoted.rule("r").unwrap().limits[0].salt, limits[1].salt);
    // Rules without one keep the names that they had.
    let plain = compile("algorithm: fixed_window").unwrap();
    assert_eq!(plain.rule("r").unwrap().limits[0].tag, "fixed_window+60s");
}

#[test]
fn what_cannot_be_tried_is_refused_with_its_field() {
    let keyed = "identifier_type: user_id, ";
    for (fields, part) in [
        ("candidate: {limit: 5, rollout: {percent: 25}}".to_owned(), "without a key"),
        (
            "candidate: {limit: 5, rollout: {schedule: [{percent: 5, from: '2026-01-01T00:00:00Z'}]}}"
                .to_owned(),
            "without a key",
        ),
        (format!("{keyed}candidate: {{limit: 5, rollout: {{percent: 101}}}}"), "from 0 to 100"),
        (format!("{keyed}candidate: {{limit: 5, rollout: {{percent: -1}}}}"), "from 0 to 100"),
        (format!("{keyed}candidate: {{limit: 5, rollout: {{percent: nan}}}}"), "from 0 to 100"),
        (
            format!("{keyed}candidate: {{limit: 5, rollout: {{percent: 5, tenants: [a]}}}}"),
            "only one of",
        ),
        (format!("{keyed}candidate: {{limit: 5, rollout: {{tenants: []}}}}"), "1 to 1000"),
        (format!("{keyed}candidate: {{limit: 5, rollout: {{schedule: []}}}}"), "1 to 32"),
        (
            format!("{keyed}candidate: {{limit: 5, rollout: {{schedule: [{{percent: 5}}]}}}}"),
            "from: is missing",
        ),
        (format!("{keyed}candidate: {{limit: -5}}"), "must not be negative"),
        (format!("{keyed}candidate: {{limitt: 5}}"), "did you mean limit"),
        (format!("{keyed}candidate: 5"), "must be a map"),
        (format!("{keyed}action: log_only, candidate: {{limit: 5}}"), "only logged"),
        (format!("{keyed}quota_mode: true, candidate: {{limit: 5}}"), "quota group"),
        (format!("{keyed}generation: -1"), "from 0 to"),
    ] {
        let problems = compile(&fields).expect_err(&fields);
        assert!(problems.contains(part), "{fields}: {problems}");
    }
    // 0 and 100 are no shares.
    for percent in [0, 100] {
        compile(&format!("candidate: {{limit: 5, rollout: {{percent: {percent}}}}}")).unwrap();
    }
    compile("candidate: {limit: 5, rollout: {tenants: [acme]}}").unwrap();
}
