//! Tiers that rules name without there being an entry for them.
//!
//! A rule may come before its tiers. If each of the tiers needed all others to be there first, none could be created.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::document::Entries;
use crate::error::FieldProblem;
use crate::{Entry, Kind};

/// The tiers that a rule names, with the field that does.
fn named(rule: &Value) -> Vec<(String, &str)> {
    let mut names = Vec::new();
    let limits = rule.get("limits").and_then(Value::as_array).into_iter().flatten();
    let limits = limits.enumerate().map(|(index, limit)| (format!("limits[{index}]."), limit));
    for (prefix, limit) in limits.chain([(String::new(), rule)]) {
        let tiers = limit.get("tier_limits").and_then(Value::as_object).into_iter().flatten();
        names.extend(tiers.map(|(tier, _)| (format!("{prefix}tier_limits.{tier}"), tier.as_str())));
    }
    let tiers = match rule.pointer("/applies_to/user_tiers") {
        Some(Value::Array(tiers)) => tiers.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(tier)) => vec![tier.as_str()],
        _ => Vec::new(),
    };
    let tiers = tiers.into_iter().filter(|tier| *tier != "*");
    names.extend(tiers.map(|tier| ("applies_to.user_tiers".to_owned(), tier)));
    names
}

fn is_known(entries: &Entries, tier: &str) -> bool {
    entries.contains_key(&(Kind::Tier, tier.to_owned()))
}

/// The rules, and the default one.
fn rules(entries: &Entries) -> impl Iterator<Item = &Entry> {
    let is_rule = |entry: &&Entry| match entry.kind {
        Kind::Rule => true,
        kind => kind == Kind::Setting && entry.id == "default",
    };
    entries.values().map(|entry| &**entry).filter(is_rule)
}

/// The tiers that rules name and that have no entry.
pub(crate) fn unknown(entries: &Entries) -> BTreeSet<&str> {
    let names = rules(entries).flat_map(|rule| named(&rule.body)).map(|(_, tier)| tier);
    names.filter(|tier| !is_known(entries, tier)).collect()
}

/// Problems of a change: rules that it writes name tiers that are not there, where there are others, or it deletes tiers
/// that rules name. What was so before is not its fault.
pub(crate) fn problems(
    before: &Entries,
    after: &Entries,
    written: &[(Kind, String)],
) -> Vec<FieldProblem> {
    if !after.keys().any(|(kind, _)| *kind == Kind::Tier) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for rule in rules(after) {
        let is_written = written.iter().any(|(kind, id)| *kind == rule.kind && *id == rule.id);
        for (field, tier) in named(&rule.body) {
            if is_known(after, tier) || !(is_written || is_known(before, tier)) {
                continue;
            }
            let field = if is_written { field } else { format!("rules/{}.{field}", rule.id) };
            let short: String = tier.chars().take(64).collect();
            let message = format!("{short:?} is not among tiers; add it there or correct the name");
            problems.push(FieldProblem { field: Some(field), message });
        }
    }
    problems
}
