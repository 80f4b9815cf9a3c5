//! Rules as a rule file.

use std::fmt::Write as _;

use hashbrown::{HashMap, HashSet};
use serde_json::Value;

use super::ImportOptions;
use super::file::{Descriptor, Domain, Limit, MONTH_SECONDS, SCOPE_PREFIX, Wanted};
use super::flatten::{Made, MadeKind, names_counter};
use crate::MAX_RULE_ID_BYTES;
use crate::terminal::{inline_yaml, is_obeyed, quoted_yaml as quoted};

/// Room at the end of an id for a number that makes it unique.
const ID_NUMBER_BYTES: usize = 12;

pub(super) fn print(domains: &[Domain], rules: &[Made<'_>], options: ImportOptions) -> String {
    let sources: Vec<&str> =
        domains.iter().flat_map(|domain| &domain.sources).map(|source| &**source).collect();
    let mut text = String::from("# Imported from envoyproxy/ratelimit: ");
    text.push_str(&on_one_line(&sources.join(", ")));
    text.push('\n');
    for note in domains.iter().flat_map(|domain| &domain.notes) {
        let _ = writeln!(text, "# {}", on_one_line(note));
    }
    text.push_str(
        "\n# Descriptors that no limit is for are not limited.\ndefault: false\n\nrules:",
    );
    if rules.is_empty() {
        text.push_str(" []\n");
        return text;
    }
    text.push('\n');
    let ids = ids(rules);
    let named = named(rules, &ids);
    for (rule, id) in rules.iter().zip(&ids) {
        print_rule(&mut text, rule, id, &named, options);
        print_envoy(&mut text, rule, options);
    }
    text
}

fn on_one_line(text: &str) -> String {
    text.chars().map(|letter| if is_obeyed(letter) { ' ' } else { letter }).collect()
}

/// The ids of the limits of a domain that have this name.
type Named<'a> = HashMap<(&'a str, &'a str), Vec<&'a str>>;

fn named<'a>(rules: &'a [Made<'_>], ids: &'a [String]) -> Named<'a> {
    let mut named = Named::new();
    for (rule, id) in rules.iter().zip(ids) {
        if let MadeKind::Limit(Limit { name: Some(name), .. }) = rule.kind {
            named.entry((rule.domain, name)).or_default().push(id);
        }
    }
    named
}

fn print_rule(
    text: &mut String,
    rule: &Made<'_>,
    id: &str,
    named: &Named<'_>,
    options: ImportOptions,
) {
    let domain = rule.domain;
    let _ = writeln!(text, "  - rule_id: {}", quoted(id));
    let _ = writeln!(text, "    scope: {}", quoted(&format!("{SCOPE_PREFIX}{domain}")));
    let _ = writeln!(text, "    priority: {}", rule.priority);
    let _ = writeln!(text, "    applies_to:\n      domains: [{}]", quoted(domain));
    let _ = writeln!(text, "      attributes:\n        descriptor: {}", quoted(&rule.keys));
    for (place, wanted) in (1..).zip(rule.wanted()) {
        let value = match wanted {
            Wanted::Exact(value) | Wanted::Pattern(value) => quoted(value),
            Wanted::Any => quoted("*"),
        };
        let _ = writeln!(text, "        entry.{place}: {value}");
    }
    let limit = match rule.kind {
        MadeKind::Limit(limit) => Some(limit),
        MadeKind::Nothing | MadeKind::Elsewhere(_) => None,
    };
    match limit.and_then(|limit| limit.quota) {
        Some(quota) => {
            print_key(text, rule);
            let _ = writeln!(text, "    limit: {quota}");
        }
        None => text.push_str("    limit: unlimited\n"),
    }
    match limit.map_or(1, |limit| limit.window_seconds) {
        MONTH_SECONDS if options.calendar_months => {
            text.push_str("    calendar: month\n    timezone: UTC\n");
        }
        window_seconds => {
            let _ = writeln!(text, "    window_seconds: {window_seconds}");
        }
    }
    text.push_str("    algorithm: fixed_window\n");
    if rule.is_log_only {
        text.push_str("    action: log_only\n");
    }
    if limit.is_some() && rule.path.last().is_some_and(|node| node.is_quota) {
        text.push_str("    quota_mode: true\n");
    }
    let replaces = match rule.kind {
        MadeKind::Limit(limit) | MadeKind::Elsewhere(limit) if !rule.is_log_only => {
            &*limit.replaces
        }
        _ => &[],
    };
    let replaced = replaces.iter().filter_map(|name| named.get(&(domain, name.as_str())));
    let replaced: Vec<String> =
        replaced.flatten().map(|id| quoted(&format!("rule:{id}"))).collect();
    if !replaced.is_empty() {
        let _ = writeln!(text, "    overrides: [{}]", replaced.join(", "));
    }
}

/// How the rule answers Envoy, where it limits.
fn print_envoy(text: &mut String, rule: &Made<'_>, options: ImportOptions) {
    let MadeKind::Limit(Limit { quota: Some(_), name, .. }) = rule.kind else { return };
    let Some(node) = rule.path.last() else { return };
    text.push_str("    envoy:\n");
    if let Some(name) = name {
        let _ = writeln!(text, "      name: {}", quoted(name));
    }
    if !options.all_or_nothing {
        text.push_str("      charge_above_limit: true\n");
    }
    if !options.refuse_check_at_limit {
        text.push_str("      allow_check_at_limit: true\n");
    }
    let parts: Vec<String> = rule.path.iter().map(|node| quoted(&node.composite_key())).collect();
    let _ = writeln!(text, "      stats_key: [{}]", parts.join(", "));
    let has_value = |one: &Descriptor| {
        names_counter(one) && (node.has_detailed_metric || one.has_value_in_metric)
    };
    let places = (1..).zip(&rule.path).filter(|(_, one)| has_value(one));
    let places: Vec<String> = places.map(|(place, _)| place.to_string()).collect();
    if !places.is_empty() {
        let _ = writeln!(text, "      stats_values: [{}]", places.join(", "));
    }
    if !node.metadata.is_empty() {
        let metadata = inline_yaml(&Value::Object(node.metadata.clone()));
        let _ = writeln!(text, "      metadata: {metadata}");
    }
}

/// The entries that name the counter: those whose value is not fixed.
fn print_key(text: &mut String, rule: &Made<'_>) {
    let places = (1..).zip(&rule.path).filter(|(_, node)| names_counter(node));
    let places: Vec<String> = places.map(|(place, _)| format!("entry.{place}")).collect();
    if places.is_empty() {
        text.push_str("    identifier_type: global\n");
    } else {
        let _ = writeln!(text, "    key_by: [{}]", places.join(", "));
    }
}

/// An id for each rule that says where it comes from, and that no other has.
fn ids(rules: &[Made<'_>]) -> Vec<String> {
    let mut taken = HashSet::new();
    let mut ids = Vec::with_capacity(rules.len());
    for rule in rules {
        let full = describe(rule);
        let short = cut(&full, MAX_RULE_ID_BYTES - ID_NUMBER_BYTES);
        let mut id = if full.len() > MAX_RULE_ID_BYTES { short.to_owned() } else { full.clone() };
        let mut number = 2_usize;
        while !taken.insert(id.clone()) {
            id = format!("{short}~{number}");
            number += 1;
        }
        ids.push(id);
    }
    ids
}

/// The beginning of a text, so many bytes at most.
fn cut(text: &str, most: usize) -> &str {
    let ends = (0..=most.min(text.len())).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// `domain/key=value/key`, and what kind of rule it is if it is no limit.
fn describe(rule: &Made<'_>) -> String {
    let mut text = rule.domain.to_owned();
    let keys = rule.keys.split('/').skip(rule.path.len());
    for node in &rule.path {
        let _ = write!(text, "/{}", on_one_line(&node.key));
        match &node.value {
            Wanted::Exact(value) | Wanted::Pattern(value) => {
                let _ = write!(text, "={value}");
            }
            Wanted::Any => {}
        }
    }
    for key in keys {
        let _ = write!(text, "/{key}");
    }
    text.push_str(match (rule.kind, rule.is_log_only) {
        (MadeKind::Limit(_), _) => "",
        (_, false) => ":nothing",
        (_, true) => ":nothing-reported",
    });
    text
}
