//! From entries to the rule set that nodes enforce, and back to the entry that a problem is in.
//!
//! A set travels as a rule file in JSON: whatever reads rule files reads it, with the same checks.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tollgate_policy::{Problem, Problems, RuleSet};

use crate::draft::instant;
use crate::error::FieldProblem;
use crate::{ControlError, Entry, Kind, tier_names};

/// How problems name the document.
const SOURCE: &str = "rules";

/// The entries of a set, by kind and id.
pub type Entries = BTreeMap<(Kind, String), Arc<Entry>>;

/// The document of these entries.
pub fn document(entries: &Entries) -> Value {
    let of = |kind: Kind| {
        let range = entries.range((kind, String::new())..);
        range.map(|(_, entry)| &**entry).take_while(move |entry| entry.kind == kind)
    };
    let mut document = Map::new();
    let mut add = |name: &str, list: Vec<Value>| {
        // A list of tiers that is there and empty would mean that no tier has a right name.
        if !list.is_empty() {
            document.insert(name.to_owned(), Value::Array(list));
        }
    };
    add("rules", of(Kind::Rule).map(|entry| entry.body.clone()).collect());
    add("allow_list", of(Kind::Allow).map(listed).collect());
    add("deny_list", of(Kind::Deny).map(listed).collect());
    let mut tiers: Vec<Value> = of(Kind::Tier).map(tier).collect();
    if !tiers.is_empty() {
        tiers.extend(unknown_tiers(entries));
    }
    add("tiers", tiers);
    add("grants", of(Kind::Grant).map(grant).collect());
    for entry in of(Kind::Setting) {
        if entry.id != ENFORCEMENT {
            document.insert(entry.id.clone(), entry.body.clone());
        }
    }
    Value::Object(document)
}

/// The tiers that rules name and that have no entry, as a rule file lists them.
fn unknown_tiers(entries: &Entries) -> impl Iterator<Item = Value> {
    tier_names::unknown(entries).into_iter().map(|name| json!({ "name": name }))
}

/// The set as an operator can apply it again: without what has expired, and without tenants' own rules,
/// which are theirs.
pub fn export(entries: &Entries, now: crate::Millis) -> Value {
    let is_over = |entry: &Entry| {
        let ends = entry.body.get("expires_at").and_then(Value::as_str).and_then(instant);
        ends.is_some_and(|ends| ends <= now)
    };
    let kept = entries.iter().filter(|(_, entry)| entry.tenant.is_none() && !is_over(entry));
    let kept: Entries = kept.map(|(place, entry)| (place.clone(), Arc::clone(entry))).collect();
    let mut document = document(&kept);
    if let Some(document) = document.as_object_mut() {
        let of = |kind: Kind| kept.values().filter(move |entry| entry.kind == kind);
        let mut tiers: Vec<Value> = of(Kind::Tier).map(|entry| entry.body.clone()).collect();
        if !tiers.is_empty() {
            tiers.extend(unknown_tiers(&kept));
            document.insert("tiers".to_owned(), Value::Array(tiers));
        }
        for entry in of(Kind::Setting) {
            document.insert(entry.id.clone(), entry.body.clone());
        }
    }
    document
}

/// The setting that is not part of a rule file.
pub const ENFORCEMENT: &str = "enforcement";

/// Every setting.
pub const SETTINGS: [&str; 3] = ["default", "no_match", ENFORCEMENT];

/// Compiles a document.
pub fn compile(document: &str) -> Result<RuleSet, Problems> {
    RuleSet::from_yaml(document, SOURCE)
}

/// What is wrong with a document, said of the entry that was written. Problems of other entries (which
/// this one causes) are named by their rule.
pub(crate) fn problems(Problems(found): Problems, written: &[(Kind, String)]) -> ControlError {
    let is_written = |kind: Kind, id: &str| written.iter().any(|(k, i)| *k == kind && i == id);
    let field = |problem: &Problem| -> Option<String> {
        let field = problem.field.clone();
        match &problem.rule {
            Some(rule) if !is_written(Kind::Rule, rule) => {
                Some(format!("rules/{rule}.{}", field.unwrap_or_default()))
            }
            _ => field.map(|field| api_name(&field)),
        }
    };
    let each = found
        .iter()
        .map(|problem| FieldProblem { field: field(problem), message: problem.message.clone() });
    ControlError::Invalid(each.collect())
}

/// What the API calls a field that rule files call otherwise: `deny_list[3].value` is `identifier`.
fn api_name(field: &str) -> String {
    let lists = ["allow_list[", "deny_list[", "grants[", "tiers[", "client_tiers["];
    if !lists.iter().any(|list| field.starts_with(list)) {
        return field.to_owned();
    }
    match field.rsplit_once("].").map_or(field, |(_, name)| name) {
        "type" => "identifier_type".to_owned(),
        "value" => "identifier".to_owned(),
        name => name.to_owned(),
    }
}

/// What rule files call the fields of a line of a list.
fn listed(entry: &Entry) -> Value {
    let field = |name: &str| entry.body.get(name).cloned();
    let mut line = Map::new();
    for (name, value) in [
        ("type", field("identifier_type")),
        ("value", field("identifier")),
        ("reason", field("reason")),
        ("expires_at", field("expires_at")),
    ] {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            line.insert(name.to_owned(), value);
        }
    }
    Value::Object(line)
}

fn grant(entry: &Entry) -> Value {
    let Value::Object(mut line) = listed(entry) else { return Value::Null };
    for name in ["rule_id", "extra"] {
        if let Some(value) = entry.body.get(name) {
            line.insert(name.to_owned(), value.clone());
        }
    }
    Value::Object(line)
}

fn tier(entry: &Entry) -> Value {
    let is_default = entry.body.get("is_default").and_then(Value::as_bool).unwrap_or(false);
    if is_default {
        json!({ "name": entry.id, "is_default": true })
    } else {
        json!({ "name": entry.id })
    }
}
