//! What requests meet, as a table: `resolution.yaml`.

#![expect(clippy::unwrap_used, reason = "helpers of a test, outside its functions")]

use std::fmt::Write;

use serde::Deserialize;
use serde_json::{Map, Value};
use tollgate_policy::{Applied, Attributes, Known, ListMatch, RequestPath, RuleSet, RuleVerdict};

const NEW_YEAR_2026: u64 = 1_767_225_600;
const SECOND: u64 = 1_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    about: String,
    file: Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    request: Map<String, Value>,
    #[serde(default)]
    enforced: Vec<String>,
    #[serde(default)]
    observed: Vec<String>,
    listed: Option<String>,
    no_match: Option<String>,
    now: Option<u64>,
    /// Whether nothing that admits requests applies to a reading of the path.
    unmatched: Option<bool>,
}

fn show(applied: &Applied<'_, '_>, tier: Option<&str>) -> String {
    let quotas: Vec<String> = applied
        .rule
        .limits
        .iter()
        .map(|limit| match limit.for_tier(tier) {
            None => "-".to_owned(),
            Some(quota) => quota.limit().map_or("unlimited".into(), |l| l.quota().to_string()),
        })
        .collect();
    let mut shown = format!("{} limit={}", applied.rule.id, quotas.join(","));
    if !applied.key.is_empty() {
        write!(shown, " key={}", applied.key.join("|")).unwrap();
    }
    if let Some(cost) = applied.listed_cost {
        write!(shown, " cost={cost}").unwrap();
    }
    shown
}

/// What is explained to apply is what applies, in this order.
fn check_explained(set: &RuleSet, request: &Attributes<'_>, now: u64) -> Result<(), String> {
    let resolution = set.resolve(request, now);
    let resolved = resolution.enforced.iter().chain(&resolution.observed);
    let resolved: Vec<&str> = resolved.map(|applied| applied.rule.id.as_str()).collect();
    let explanation = set.explain(request, now, usize::MAX);
    let applying = explanation.rules.iter().filter(|one| one.verdict == RuleVerdict::Applies);
    let explained: Vec<&str> = applying.map(|one| one.rule.id.as_str()).collect();
    if explained == resolved { Ok(()) } else { Err(format!("{explained:?}, not {resolved:?}")) }
}

fn run(set: &RuleSet, case: &Case) -> Result<(), String> {
    let now = case.now.unwrap_or(NEW_YEAR_2026) * SECOND;
    let endpoint = case.request.get("endpoint").and_then(Value::as_str);
    let endpoint = endpoint.map(|path| RequestPath::parse(path).unwrap());
    let mut request = Attributes::default();
    for (name, value) in &case.request {
        request.push_extra(name, value.as_str().unwrap());
    }
    if let Some(path) = &endpoint {
        request.set_path(path);
    }
    let tier = set.tier_of(&request);
    if let Some(tier) = tier {
        request.set(Known::Tier, tier);
    }
    let listed = set.listed(&request, now).map(|listed| match listed {
        ListMatch::Denied(entry) => format!("denied {} {}", entry.kind.name(), entry.value),
        ListMatch::Allowed(entry) => format!("allowed {} {}", entry.kind.name(), entry.value),
    });
    let expect = |what: &str, found: &[String], wanted: &[String]| {
        if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?}, not {wanted:?}")) }
    };
    let list = |value: &Option<String>| value.iter().cloned().collect::<Vec<_>>();
    expect("listed", &list(&listed), &list(&case.listed))?;
    if let Some(no_match) = &case.no_match {
        expect("no_match", &[set.no_match().name().to_owned()], std::slice::from_ref(no_match))?;
    }
    let unmatched = set.resolve(&request, now).has_unmatched_reading();
    if let Some(expected) = case.unmatched {
        expect("unmatched", &[unmatched.to_string()], &[expected.to_string()])?;
    }
    check_explained(set, &request, now)?;
    for resolution in [set.resolve(&request, now), set.resolve_by_scan(&request, now)] {
        let enforced: Vec<String> = resolution.enforced.iter().map(|a| show(a, tier)).collect();
        let observed: Vec<String> = resolution.observed.iter().map(|a| show(a, tier)).collect();
        expect("enforced", &enforced, &case.enforced)?;
        expect("observed", &observed, &case.observed)?;
    }
    Ok(())
}

#[test]
fn table() {
    let groups: Vec<Group> = serde_saphyr::from_str(include_str!("resolution.yaml")).unwrap();
    let mut count = 0;
    let mut failures = Vec::new();
    for group in &groups {
        let text = serde_json::to_string(&group.file).unwrap();
        let set = match RuleSet::from_yaml(&text, "table") {
            Ok(set) => set,
            Err(problems) => {
                failures.push(format!("{}: {problems}", group.about));
                continue;
            }
        };
        for case in &group.cases {
            count += 1;
            if let Err(failure) = run(&set, case) {
                failures.push(format!("{} / {}: {failure}", group.about, case.name));
            }
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(count >= 48, "only {count} cases");
}
