//! Files of envoyproxy/ratelimit: what of them is read, and what is refused. What imported rules mean is in
//! `tollgate-server/tests/envoy_table.yaml`.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::fmt::Write as _;

use serde_json::{Value, json};
use tollgate_policy::{EnvoyOptions, ImportOptions, RuleSet, import_envoy};

fn imported(files: &[(&str, &str)], options: ImportOptions) -> RuleSet {
    let rules = import_envoy(files, options).unwrap();
    RuleSet::from_yaml(&rules, "imported").unwrap()
}

/// Of each rule that answers Envoy: its id and how.
fn answers(rules: &RuleSet) -> Vec<(&str, &EnvoyOptions)> {
    let rules = rules.rules().iter();
    rules.filter_map(|rule| Some((rule.id.as_str(), rule.envoy.as_deref()?))).collect()
}

/// The quotas by rule.
fn quotas(rules: &RuleSet) -> Vec<(&str, u64)> {
    let quota = |rule: &tollgate_policy::Rule| {
        let base = rule.limits.first().and_then(|limit| limit.base.clone());
        base.and_then(|quota| quota.limit().map(tollgate_core::Limit::quota))
    };
    let rules = rules.rules().iter();
    rules.filter_map(|rule| Some((rule.id.as_str(), quota(rule)?))).collect()
}

/// What a file that cannot be imported is refused with.
fn refusals(config: &str) -> Vec<String> {
    let problems = import_envoy(&[("c.yaml", config)], ImportOptions::default()).unwrap_err();
    problems.0.iter().map(ToString::to_string).collect()
}

#[test]
fn every_field_is_read() {
    let config = r#"
domain: shop
descriptors:
  - key: plan
    value: free*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - key: user
        value_to_metric: yes
        rate_limit: {name: per-user, unit: DAY, requests_per_unit: 0x10}
      - key: tool
        detailed_metric: true
        metadata: {route: {name: slow, weight: 0x10}, tags: [a, "1", 1.5, yes, "no", ~, 1_000, -010]}
        rate_limit: {unit: week, requests_per_unit: 1_000, replaces: [{name: per-user}]}
  - key: trial
    quota_mode: on
    shadow_mode: on
    rate_limit: {unit: year, requests_per_unit: 010}
  - key: free
    rate_limit: {unlimited: yes, unit: nonsense}
  - key: none
    rate_limit: {unit: second}
  - key: 5
    value: true
    rate_limit: {unit: minute, requests_per_unit: 7}
"#;
    let rules = imported(&[("shop.yaml", config)], ImportOptions::default());
    let expected = [
        ("shop/plan=free*/user", 16),
        ("shop/plan=free*/tool", 1_000),
        ("shop/trial", 8),
        ("shop/none", 0),
        ("shop/5=true", 7),
    ];
    assert_eq!(quotas(&rules), expected);
    let answers = answers(&rules);
    let user = answers[0].1;
    assert_eq!(user.name.as_deref(), Some("per-user"));
    assert!(user.charge_above_limit && user.allow_check_at_limit);
    assert_eq!(
        (&user.stats_key[..], &user.stats_values[..]),
        (&["plan_free*", "user"].map(String::from)[..], &[2][..])
    );
    let tool = answers[1].1;
    assert_eq!(tool.name, None);
    assert_eq!(tool.stats_values, [2], "the shared entry stays as it is written");
    let metadata = json!({"route": {"name": "slow", "weight": 16}, "tags": ["a", "1", 1.5, true, "no", null, 1000, -8]});
    assert_eq!(Value::Object(tool.metadata.clone()), metadata);
    let trial = rules.rule("shop/trial").unwrap();
    assert!(trial.is_log_only() && trial.quota_mode);
    let replaced = &rules.rule("shop/plan=free*/tool").unwrap().overrides;
    assert_eq!(*replaced, ["rule:shop/plan=free*/user"]);
}

#[test]
fn flags_change_how_rules_answer() {
    let config =
        "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}";
    for (all_or_nothing, refuse_check_at_limit) in [(true, false), (false, true)] {
        let options =
            ImportOptions { all_or_nothing, refuse_check_at_limit, ..ImportOptions::default() };
        let rules = imported(&[("d.yaml", config)], options);
        let answer = answers(&rules)[0].1;
        assert_eq!(answer.charge_above_limit, !all_or_nothing);
        assert_eq!(answer.allow_check_at_limit, !refuse_check_at_limit);
    }
}

#[test]
fn months_are_those_of_the_calendar_where_that_is_asked_for() {
    let limit =
        |key, unit| format!("- {{key: {key}, rate_limit: {{unit: {unit}, requests_per_unit: 1}}}}");
    let config =
        format!("domain: d\ndescriptors:\n{}\n{}\n", limit("m", "month"), limit("w", "week"));
    for calendar_months in [false, true] {
        let options = ImportOptions { calendar_months, ..ImportOptions::default() };
        let rules = import_envoy(&[("d.yaml", &config)], options).unwrap();
        assert_eq!(rules.contains("calendar: month\n    timezone: UTC\n"), calendar_months);
        assert_eq!(rules.contains("window_seconds: 2592000"), !calendar_months);
        assert!(rules.contains("window_seconds: 604800"));
        assert_eq!(quotas(&RuleSet::from_yaml(&rules, "d").unwrap()), [("d/m", 1), ("d/w", 1)]);
    }
}

#[test]
fn merge_keys_and_aliases_are_followed() {
    let config = "
domain: d
descriptors:
  - &base
    key: a
    value: x
    shadow_mode: true
    rate_limit: &limit {unit: day, requests_per_unit: 3}
  - <<: *base
    value: y
    rate_limit:
      <<: [{requests_per_unit: 4}, *limit]
  - key: b
    rate_limit: *limit
";
    let rules = imported(&[("d.yaml", config)], ImportOptions::default());
    let limits = rules.rules().iter().filter(|rule| rule.envoy.is_some());
    let kinds: Vec<_> = limits.map(|rule| (rule.id.as_str(), rule.is_log_only())).collect();
    assert_eq!(kinds, [("d/a=x", true), ("d/a=y", true), ("d/b", false)]);
    assert_eq!(quotas(&rules), [("d/a=x", 3), ("d/a=y", 4), ("d/b", 3)]);
}

#[test]
fn domains_are_merged_where_that_is_asked_for() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let one = format!("domain: d\ndescriptors:\n- key: a\n  {limit}\n");
    let two = format!("domain: d\ndescriptors:\n- key: b\n  {limit}\n");
    let files = [("one.yaml", one.as_str()), ("two.yaml", two.as_str())];
    let refused = import_envoy(&files, ImportOptions::default()).unwrap_err().to_string();
    let expected =
        "two.yaml:1:9: field domain: is the domain of one.yaml too; put them into one file";
    assert!(refused.starts_with(expected), "{refused}");
    let options = ImportOptions { merge_domains: true, ..ImportOptions::default() };
    assert_eq!(quotas(&imported(&files, options)), [("d/a", 1), ("d/b", 1)]);
    let again = [("one.yaml", one.as_str()), ("again.yaml", one.as_str())];
    let refused = import_envoy(&again, options).unwrap_err().to_string();
    let expected = "again.yaml:3:3: the descriptor \"a\" has the key and value of one.yaml:3 again";
    assert_eq!(refused, expected);
}

#[test]
fn fields_in_the_wrong_place_have_no_effect_and_are_noted() {
    let config = "
domain: d
descriptors:
  - key: a
    unlimited: true
    rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}
";
    let rules = import_envoy(&[("d.yaml", config)], ImportOptions::default()).unwrap();
    assert!(rules.contains("# d.yaml:5: unlimited has no effect here"), "{rules}");
    assert!(rules.contains("# d.yaml:6: shadow_mode has no effect here"), "{rules}");
    let rules = RuleSet::from_yaml(&rules, "imported").unwrap();
    assert!(!rules.rules()[0].is_log_only());
    assert_eq!(quotas(&rules), [("d/a", 1)]);
}

/// Files that are refused, and what with.
const REFUSED: &[(&str, &str)] = &[
    ("descriptors: []", "c.yaml:1:1: field domain: is missing"),
    ("domain: d\ndescriptors:\n- value: x", "c.yaml:3:3: field descriptors[0].key: is missing"),
    ("domain: d\ndescriptors:\n- {key: 'a*'}", "c.yaml:3:9: field descriptors[0].key: a wildcard"),
    (
        "domain: d\ndescriptors:\n- {key: a, colour: red}",
        "c.yaml:3:12: field descriptors[0].colour: is not a known field",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: fortnight, requests_per_unit: 1}",
        "c.yaml:4:22: field descriptors[0].rate_limit.unit: must be second",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {requests_per_unit: 1}",
        "c.yaml:4:15: field descriptors[0].rate_limit.unit: is missing",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unlimited: true, unit: day}",
        "c.yaml:4:39: field descriptors[0].rate_limit.unit: does not go with unlimited",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: -1}",
        "c.yaml:4:46: field descriptors[0].rate_limit.requests_per_unit: must be a whole number from 0",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n- key: a\n",
        "c.yaml:4:3: the descriptor \"a\" has the key and value of c.yaml:3 again",
    ),
    (
        "domain: d\ndescriptors:\n- key: a_b\n- {key: a, value: b}\n",
        "c.yaml:4:3: the descriptor \"a_b\" has the key and value of c.yaml:3 again",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - {key: b, value: c}\n  - {key: b, value: c}\n",
        "c.yaml:6:5: the descriptor \"b_c\" has the key and value of c.yaml:5 again",
    ),
    (
        "domain: d\ndescriptors:\n- {key: a, value: b, share_threshold: true}",
        "c.yaml:3:39: field descriptors[0].share_threshold: goes with a value that has a *",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {name: n, replaces: [{name: n}], unit: day}",
        "c.yaml:4:43: field descriptors[0].rate_limit.replaces[0].name: is this limit's own name",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 9, soft_requests_per_unit: 5}",
        "c.yaml:4:49: field descriptors[0].rate_limit.soft_requests_per_unit: is not a known field",
    ),
    ("", "c.yaml:1:1: must be a map"),
    ("domain: ''", "c.yaml:1:9: field domain: must not be empty"),
    ("domain: d\ndescriptors: [a]", "c.yaml:2:15: field descriptors[0]: must be a map, not a"),
    ("domain: d\ndescriptors: {key: a}", "c.yaml:2:14: field descriptors: must be a list"),
    ("domain: d\n0: x", "c.yaml:2:1: field 0: is not a known field"),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requestsperunit: 1}",
        "c.yaml:4:27: field descriptors[0].rate_limit.requestsperunit: is not a known field",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: '5'}",
        "c.yaml:4:46: field descriptors[0].rate_limit.requests_per_unit: must be a whole",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 1.5}",
        "c.yaml:4:46: field descriptors[0].rate_limit.requests_per_unit: must be a whole",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 4294967296}",
        "c.yaml:4:46: field descriptors[0].rate_limit.requests_per_unit: must be a whole",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: unknown, requests_per_unit: 1}",
        "c.yaml:4:22: field descriptors[0].rate_limit.unit: must be second",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, replaces: [{name: ''}]}",
        "c.yaml:4:38: field descriptors[0].rate_limit.replaces[0].name: is missing",
    ),
    (
        "domain: d\ndescriptors:\n- {key: a, shadow_mode: maybe}",
        "c.yaml:3:25: field descriptors[0].shadow_mode: must be true or false, not maybe",
    ),
    (
        "domain: d\ndescriptors:\n- {key: a, metadata: [b]}",
        "c.yaml:3:22: field descriptors[0].metadata: must be a map",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  <<: [b]",
        "c.yaml:4:8: field <<: merges something that is no map",
    ),
    (
        "domain: d\ndescriptors:\n- {key: version, value: 1.5}",
        "c.yaml:3:25: field descriptors[0].value: must be text; put 1.5 into quotes",
    ),
    (
        "domain: d\ndescriptors:\n- {key: number, value: 9223372036854775808}",
        "c.yaml:3:24: field descriptors[0].value: must be text; put 9223372036854775808 into quotes",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, descriptors: [{colour: red}]}",
        "c.yaml:4:42: field descriptors[0].rate_limit.descriptors[0].colour: is not a known field",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, descriptors: [red]}",
        "c.yaml:4:41: field descriptors[0].rate_limit.descriptors[0]: must be a map",
    ),
    (
        "domain: d\ndescriptors:\n- {key: a, unit: {name: {colour: red}}}",
        "c.yaml:3:26: field descriptors[0].unit.name.colour: is not a known field",
    ),
    (
        "domain: d\ndescriptors:\n- {key: a, key: b}",
        "c.yaml:3:12: field descriptors[0].key: is given twice",
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, replaces: {name: b}}",
        "c.yaml:4:37: field descriptors[0].rate_limit.replaces: must be a list",
    ),
    (
        "domain: d\ndescriptors:\n- {key: a, rate_limit: 5}",
        "c.yaml:3:24: field descriptors[0].rate_limit: must be a map",
    ),
    ("domain: d\ndescriptors:\n- {key: [a]}", "c.yaml:3:9: field descriptors[0].key: must be text"),
    (
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unlimited: 1}",
        "c.yaml:4:27: field descriptors[0].rate_limit.unlimited: must be true or false, not 1",
    ),
    ("domain: '*'", "c.yaml:1:9: field domain: * cannot be the domain of a rule"),
    ("[]", "c.yaml:1:1: must be a map"),
    ("domain: d\ndescriptors:\n- key: 'a\n", "c.yaml:4:1: cannot be read as YAML"),
    ("domain: d\n---\ndomain: e\n", "c.yaml:2:1: cannot be read as YAML"),
];

#[test]
fn what_cannot_be_imported_is_refused_with_its_place() {
    let mut wrong = Vec::new();
    for (config, expected) in REFUSED {
        let refused = refusals(config);
        if !refused.iter().any(|one| one.starts_with(expected)) {
            wrong.push((expected, refused));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let mut nine = String::new();
    for depth in 1..=9 {
        let blanks = "    ".repeat(depth - 1);
        let _ = write!(nine, "{blanks}descriptors:\n{blanks}  - key: k{depth}\n");
    }
    let blanks = "    ".repeat(9);
    let deep =
        format!("domain: d\n{nine}{blanks}rate_limit: {{unit: day, requests_per_unit: 1}}\n");
    assert!(refusals(&deep)[0].contains("more than 8 entries without a fixed value"));
}

/// A descriptor of so many entries with fixed values, with a limit at its end.
fn nested(depth: usize) -> String {
    let mut file = "domain: d\n".to_owned();
    for level in 1..=depth {
        let blanks = "    ".repeat(level - 1);
        let _ =
            write!(file, "{blanks}descriptors:\n{blanks}  - key: k{level}\n{blanks}    value: v\n");
    }
    let blanks = "    ".repeat(depth);
    file + &format!("{blanks}rate_limit: {{unit: day, requests_per_unit: 1}}\n")
}

#[test]
fn descriptors_nest_as_deep_as_a_request_can_have_entries() {
    let imported = import_envoy(&[("f", &nested(16))], ImportOptions::default());
    assert!(imported.is_ok(), "{imported:?}");
    for depth in [17, 30, 75] {
        let refused = refusals(&nested(depth));
        assert!(refused[0].contains("nested 16 deep at most"), "{depth}: {refused:?}");
    }
    let deep = format!("{}1{}", "[".repeat(20), "]".repeat(20));
    let file = format!(
        "domain: d\ndescriptors:\n- {{key: a, metadata: {{a: {deep}}}, rate_limit: {{unit: day, requests_per_unit: 1}}}}"
    );
    let refused = refusals(&file);
    assert!(refused[0].contains("more than 16 levels"), "{refused:?}");
}

/// Files with little in them, or with more than is needed, and the limits that they have.
const ACCEPTED: &[(&str, &[(&str, u64)])] = &[
    ("domain: d", &[]),
    ("---\ndomain: d\ndescriptors:\n", &[]),
    ("{\"domain\": \"d\", \"descriptors\": []}", &[]),
    ("domain: 7\ndescriptors: ~", &[]),
    (
        "domain: d\ndescriptors:\n- {key: a, value: ~, rate_limit: ~, descriptors: ~, metadata: ~}",
        &[],
    ),
    (
        "domain: d\ndescriptors:\n- key: a\n  value: ''\n  rate_limit: {unit: day, requests_per_unit: ~}",
        &[("d/a", 0)],
    ),
    (
        "domain: d\ndescriptors:\n- {key: version, value: '1.5', rate_limit: {unit: day, requests_per_unit: 0b11}}",
        &[("d/version=1.5", 3)],
    ),
    (
        "domain: d\ndescriptors:\n- {key: ip, value: 10.0.0.1, rate_limit: {unit: hour, requests_per_unit: +2}}",
        &[("d/ip=10.0.0.1", 2)],
    ),
    (
        "domain: d\ndescriptors:\n- {key: since, value: 2026-01-02, rate_limit: {unit: MONTH, requests_per_unit: 0o17}}",
        &[("d/since=2026-01-02", 15)],
    ),
    (
        "domain: d\ndescriptors:\n- {key: a, rate_limit: {unlimited: true, requests_per_unit: 5}}",
        &[],
    ),
];

#[test]
fn what_is_valid_there_is_valid_here() {
    for (config, expected) in ACCEPTED {
        let rules = imported(&[("c.yaml", config)], ImportOptions::default());
        assert_eq!(quotas(&rules), *expected, "{config}");
    }
}
