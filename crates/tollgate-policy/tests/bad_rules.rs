//! Rule files that must be refused, as a table: `bad_rules.yaml`.

use serde::Deserialize;
use tollgate_policy::{Problems, RuleFile, RuleSet};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    text: String,
    problems: Vec<String>,
}

#[test]
fn table() {
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("bad_rules.yaml")).unwrap();
    let mut failures = Vec::new();
    for case in &cases {
        let found = match RuleSet::from_yaml(&case.text, "rules.yaml") {
            Ok(_) => Vec::new(),
            Err(Problems(problems)) => problems.iter().map(ToString::to_string).collect(),
        };
        if found.is_empty() || found != case.problems {
            failures.push(format!("{}:\n  {}", case.name, found.join("\n  ")));
        }
    }
    assert!(failures.is_empty(), "{} failed; found:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn stages_agree_on_good_files() {
    let text = "rules: [{rule_id: a, limit: 1, window: 1s}]";
    let file = RuleFile::parse(text, "rules.yaml").unwrap();
    let set = RuleSet::compile(&file).unwrap();
    assert_eq!(set.digest(), RuleSet::from_yaml(text, "other.yaml").unwrap().digest());
    let reordered = "rules:\n- window: 1s # a comment\n  limit: 1\n  rule_id: a\n";
    assert_eq!(set.digest(), RuleSet::from_yaml(reordered, "x").unwrap().digest());
    let other = "rules: [{rule_id: a, limit: 2, window: 1s}]";
    assert_ne!(set.digest(), RuleSet::from_yaml(other, "x").unwrap().digest());
}
