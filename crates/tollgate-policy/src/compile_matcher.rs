//! What a rule applies to, what names its counter, what requests cost.

use tollgate_core::Limit;

use crate::check::{MAX_NAME_BYTES, MAX_VALUE_BYTES, choice, plain};
use crate::matcher::{Cost, Matcher, Wanted};
use crate::model::{IdentifierType, KeyPart, Unit};
use crate::node::Spot;
use crate::pattern::Pattern;
use crate::problem::Report;
use crate::raw::{At, RawApplies, RawRule};
use crate::{Known, RuleLimit};

/// The most endpoint patterns, and the most entries of `costs`, a rule may have.
pub const MAX_PATTERNS: usize = 64;
/// The most values that one list of `applies_to` may have.
pub const MAX_VALUES: usize = 10_000;
/// The most attributes that may name a counter.
pub const MAX_KEY_PARTS: usize = 8;

pub(crate) fn compile_applies(raw: &RawApplies, report: &mut Report) -> Matcher {
    let mut matcher = Matcher::default();
    for (known, list) in &raw.lists {
        let field = known.rule_path();
        let most = if *known == Known::Endpoint { MAX_PATTERNS } else { MAX_VALUES };
        if list.value.len() > most {
            report.add(list.at, Some(field), format!("must not have more than {most} entries"));
            continue;
        }
        let values = list.value.iter();
        match *known {
            Known::Endpoint => {
                matcher.endpoints = values.filter_map(|v| pattern(v, field, report)).collect();
            }
            Known::Method => {
                let values = values.filter(|value| method_is_good(value, field, report));
                matcher.methods = values.map(|value| value.value.as_str().into()).collect();
            }
            known => {
                let good = values.filter(|value| value_is_good(value, field, report));
                let mut good: Vec<Box<str>> = good.map(|v| v.value.as_str().into()).collect();
                good.sort_unstable();
                good.dedup();
                if !good.is_empty() {
                    matcher.known.push((known, good));
                }
            }
        }
    }
    for (name, values) in &raw.attributes {
        let field = format!("applies_to.attributes.{name}");
        if let Some(known) = Known::from_name(name) {
            let place = known.applies_to().map_or("the allow and deny lists", |list| list.path);
            let message = format!("is a built-in attribute; use {place} instead");
            report.add(values.at, Some(&field), message);
            continue;
        }
        if values.value.is_empty() || values.value.len() > MAX_VALUES {
            report.add(values.at, Some(&field), format!("must have 1 to {MAX_VALUES} values"));
            continue;
        }
        let good =
            values.value.iter().filter(|value| plain(value, &field, MAX_VALUE_BYTES, report));
        let wanted = good.map(|value| Wanted::parse(&value.value)).collect();
        matcher.named.push((name.as_str().into(), wanted));
    }
    matcher
}

fn pattern(value: &At<String>, field: &str, report: &mut Report) -> Option<Pattern> {
    match Pattern::parse(&value.value) {
        Ok(pattern) => Some(pattern),
        Err(message) => {
            let short: String = value.value.chars().take(64).collect();
            report.add(value.at, Some(field), format!("pattern {short:?} {message}"));
            None
        }
    }
}

fn method_is_good(value: &At<String>, field: &str, report: &mut Report) -> bool {
    let good = !value.value.is_empty()
        && value.value.len() <= 32
        && value.value.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    if !good {
        report.add(value.at, Some(field), "must be an HTTP method such as GET");
    }
    good
}

fn value_is_good(value: &At<String>, field: &str, report: &mut Report) -> bool {
    if value.value == "*" {
        let message = "must not be *; leave the field out to apply to everything";
        report.add(value.at, Some(field), message);
        return false;
    }
    plain(value, field, MAX_VALUE_BYTES, report)
}

/// Whose counter it is and what names it.
pub(crate) fn compile_key(raw: &RawRule, report: &mut Report) -> (IdentifierType, Vec<KeyPart>) {
    let given = raw.identifier_type.as_ref();
    let default =
        if raw.key_by.is_some() { IdentifierType::Composite } else { IdentifierType::Global };
    let identifier =
        choice(given, "identifier_type", IdentifierType::ALL, IdentifierType::name, report)
            .unwrap_or(default);
    let key = match identifier {
        IdentifierType::ApiKey => vec![KeyPart::Known(Known::ApiKey)],
        IdentifierType::UserId => vec![KeyPart::Known(Known::UserId)],
        IdentifierType::TenantId => vec![KeyPart::Known(Known::TenantId)],
        IdentifierType::Ip => vec![KeyPart::Known(Known::Ip)],
        IdentifierType::Client => vec![KeyPart::Client],
        IdentifierType::Global => Vec::new(),
        IdentifierType::Composite => return (identifier, composite_key(raw, report)),
    };
    if let Some(key_by) = &raw.key_by {
        let message = "goes with identifier_type composite only; leave one of the two out";
        report.add(key_by.at, Some("key_by"), message);
    }
    (identifier, key)
}

fn composite_key(raw: &RawRule, report: &mut Report) -> Vec<KeyPart> {
    let Some(key_by) = raw.key_by.as_ref().filter(|key_by| !key_by.value.is_empty()) else {
        let at = raw.key_by.as_ref().map(|key_by| key_by.at);
        let at = at.or(raw.identifier_type.as_ref().map(|given| given.at)).unwrap_or(raw.at);
        let message = "is missing; name the attributes that make up the key, such as [user_id]";
        report.add(at, Some("key_by"), message);
        return Vec::new();
    };
    if key_by.value.len() > MAX_KEY_PARTS {
        let message = format!("must not have more than {MAX_KEY_PARTS} attributes");
        report.add(key_by.at, Some("key_by"), message);
    }
    let mut key = Vec::new();
    for name in &key_by.value {
        if !plain(name, "key_by", MAX_NAME_BYTES, report) {
            continue;
        }
        let part = match Known::from_name(&name.value) {
            Some(known) => KeyPart::Known(known),
            None if name.value == "client" => KeyPart::Client,
            None => KeyPart::Named(name.value.clone()),
        };
        if key.contains(&part) {
            report.add(name.at, Some("key_by"), format!("names {} twice", name.value));
        }
        key.push(part);
    }
    key
}

pub(crate) fn compile_costs(
    raw: &RawRule,
    unit: Unit,
    limits: &[RuleLimit],
    report: &mut Report,
) -> Vec<Cost> {
    let Some(first) = raw.costs.first() else { return Vec::new() };
    if !matches!(unit, Unit::Requests | Unit::Cost) {
        report.add(first.at, Some("costs"), "goes with unit requests or cost only; leave it out");
    }
    if raw.costs.len() > MAX_PATTERNS {
        let message = format!("must not have more than {MAX_PATTERNS} entries");
        report.add(first.at, Some("costs"), message);
        return Vec::new();
    }
    let most = highest_payable(limits);
    let mut costs = Vec::new();
    for (index, entry) in raw.costs.iter().enumerate() {
        let path = |name: &str| format!("costs[{index}].{name}");
        if entry.endpoint.is_none() && entry.method.is_none() {
            report.add(entry.at, Some(&path("endpoint")), "is missing; give endpoint or method");
        }
        let endpoint = entry.endpoint.as_ref().map(|v| pattern(v, &path("endpoint"), report));
        let method = entry.method.as_ref().filter(|v| method_is_good(v, &path("method"), report));
        let given = entry.cost.as_ref();
        let cost = cost_of(given, entry.at, most, &path("cost"), report);
        if let (Some(cost), None | Some(Some(_))) = (cost, &endpoint) {
            let method = method.map(|method| method.value.as_str().into());
            costs.push(Cost { endpoint: endpoint.flatten(), method, charge: cost });
        }
    }
    costs
}

fn cost_of(
    given: Option<&At<i128>>,
    entry: Spot,
    most: u64,
    field: &str,
    report: &mut Report,
) -> Option<u64> {
    let Some(At { at, value }) = given else {
        report.add(entry, Some(field), "is missing; say what such a request costs");
        return None;
    };
    let message = match u64::try_from(*value) {
        Ok(cost) if cost <= most => return Some(cost),
        Ok(_) => format!("is above {most}, the most that the rule's limits can ever pay"),
        Err(_) if *value < 0 => "must not be negative; 0 is free".into(),
        Err(_) => format!("must not be above {}", crate::MAX_QUOTA),
    };
    report.add(*at, Some(field), message);
    None
}

/// The highest cost that some tier could pay in every limit. Suspended limits do not count: they
/// refuse whatever the cost.
fn highest_payable(limits: &[RuleLimit]) -> u64 {
    let of = |limit: &RuleLimit| {
        let quotas = limit.base.iter().chain(limit.tiers.iter().map(|(_, quota)| quota));
        let capacity = |quota: &crate::Quota| quota.limit().map_or(u64::MAX, Limit::capacity);
        let most = quotas.map(capacity).max().unwrap_or(u64::MAX);
        // Tiers that have no quota are not limited at all.
        if limit.base.is_none() || most == 0 { u64::MAX } else { most }
    };
    limits.iter().map(of).min().unwrap_or(u64::MAX).min(crate::MAX_QUOTA)
}
