//! Nodes into raw structs. The field names known here are the ones in the schema.

use crate::candidate::read_candidate;
use crate::envoy::read_envoy;
use crate::fields::{Fields, as_bool, as_money_quota, as_quota, as_text, as_texts};
use crate::node::{self, Kind, Node};
use crate::problem::Report;
use crate::raw::{
    At, RawApplies, RawClientTier, RawCost, RawDefault, RawEntry, RawGrant, RawLimit, RawRule,
    RawTier, RuleFile,
};
use crate::schedule::read_windows;
use crate::{Known, Unit};

pub(crate) const FILE_FIELDS: &[&str] =
    &["rules", "allow_list", "deny_list", "tiers", "client_tiers", "grants", "default", "no_match"];

/// Fields of a rule that the default rule has too, beside those of a limit.
pub(crate) const DEFAULT_FIELDS: &[&str] = &[
    "name",
    "description",
    "identifier_type",
    "key_by",
    "limits",
    "unit",
    "currency",
    "budget_mode",
    "slot_ttl",
    "costs",
    "soft_limit",
    "action",
    "max_delay_ms",
    "quota_mode",
    "consistency",
    "max_overshoot",
    "store",
    "on_store_failure",
];

/// Fields of a rule that the default rule does not have.
pub(crate) const RULE_ONLY_FIELDS: &[&str] = &[
    "rule_id",
    "scope",
    "priority",
    "is_active",
    "applies_to",
    "overrides",
    "envoy",
    "starts_at",
    "ends_at",
    "candidate",
    "generation",
];

pub(crate) const LIMIT_FIELDS: &[&str] = &[
    "limit",
    "window_seconds",
    "window_ms",
    "window",
    "calendar",
    "timezone",
    "anchor_day",
    "algorithm",
    "burst",
    "tier_limits",
    "active_when",
];

pub(crate) const COST_FIELDS: &[&str] = &["endpoint", "method", "cost"];
pub(crate) const ENTRY_FIELDS: &[&str] = &["type", "value", "reason", "expires_at"];
pub(crate) const TIER_FIELDS: &[&str] = &["name", "description", "is_default"];
pub(crate) const CLIENT_TIER_FIELDS: &[&str] = &["type", "value", "tier"];
pub(crate) const GRANT_FIELDS: &[&str] =
    &["rule_id", "type", "value", "extra", "expires_at", "reason"];

/// Reads a file; `None` where it is not even a map.
pub(crate) fn read_file(text: &str, source: &str, report: &mut Report) -> Option<RuleFile> {
    let root = node::read(text, report)?;
    let mut file =
        RuleFile { source: source.to_owned(), digest: root.digest(), ..RuleFile::default() };
    if root.is_null() {
        return Some(file);
    }
    let fields = Fields::open(&root, "", FILE_FIELDS, report)?;
    for (index, item) in fields.list("rules", report).unwrap_or_default().iter().enumerate() {
        file.rules.extend(read_rule(item, index, report));
    }
    file.allow_list = read_entries(&fields, "allow_list", report);
    file.deny_list = read_entries(&fields, "deny_list", report);
    file.tiers = fields.list("tiers", report).map(|items| read_tiers(items, report));
    let items = fields.list("client_tiers", report).unwrap_or_default();
    file.client_tiers = read_client_tiers(items, report);
    file.grants = read_grants(fields.list("grants", report).unwrap_or_default(), report);
    if let Some(node) = fields.node("default") {
        file.default = read_default(node, report);
    }
    file.no_match = fields.text("no_match", report);
    Some(file)
}

fn read_rule(node: &Node, index: usize, report: &mut Report) -> Option<RawRule> {
    let number = format!("#{}", index + 1);
    let id = match &node.kind {
        Kind::Map(entries) => entries.iter().find(|entry| entry.key == "rule_id"),
        _ => None,
    };
    let id = id.and_then(|entry| as_text(&entry.value)).filter(|id| !id.value.is_empty());
    let label = id.map_or(number, |id| id.value.chars().take(128).collect());
    report.rule = Some(label.clone());
    let known = [RULE_ONLY_FIELDS, DEFAULT_FIELDS, LIMIT_FIELDS].concat();
    let rule = Fields::open(node, "", &known, report)
        .map(|fields| RawRule { label, ..read_rule_fields(&fields, report) });
    report.rule = None;
    rule
}

fn read_rule_fields(fields: &Fields<'_>, report: &mut Report) -> RawRule {
    let before = report.wrong_types;
    let unit = fields.node("unit").and_then(as_text);
    let is_money = unit.is_some_and(|unit| unit.value == Unit::Money.name());
    let mut rule = RawRule {
        at: fields.at,
        rule_id: fields.text("rule_id", report),
        name: fields.text("name", report),
        description: fields.text("description", report),
        scope: fields.text("scope", report),
        priority: fields.int("priority", report),
        is_active: fields.flag("is_active", report),
        identifier_type: fields.text("identifier_type", report),
        key_by: fields.texts("key_by", report),
        limit: read_limit(fields, String::new(), is_money, report),
        unit: fields.text("unit", report),
        currency: fields.text("currency", report),
        budget_mode: fields.text("budget_mode", report),
        slot_ttl: fields.text("slot_ttl", report),
        soft_limit: fields.share("soft_limit", report),
        action: fields.text("action", report),
        max_delay_ms: fields.int("max_delay_ms", report),
        overrides: fields.texts("overrides", report),
        quota_mode: fields.flag("quota_mode", report),
        envoy: read_envoy(fields, report),
        consistency: fields.text("consistency", report),
        max_overshoot: fields.share("max_overshoot", report),
        store: fields.text("store", report),
        on_store_failure: fields.text("on_store_failure", report),
        starts_at: fields.text("starts_at", report),
        ends_at: fields.text("ends_at", report),
        active_when: read_windows(fields, report),
        candidate: read_candidate(fields, is_money, report),
        generation: fields.int("generation", report),
        ..RawRule::default()
    };
    if let (Some(node), Some(items)) = (fields.node("limits"), fields.list("limits", report)) {
        let limits = items.iter().enumerate().filter_map(|(index, item)| {
            let name = format!("limits[{index}]");
            let inner = Fields::open(item, &name, LIMIT_FIELDS, report)?;
            Some(read_limit(&inner, format!("{name}."), is_money, report))
        });
        rule.limits = Some(At { at: node.at, value: limits.collect() });
    }
    for (index, item) in fields.list("costs", report).unwrap_or_default().iter().enumerate() {
        let name = format!("costs[{index}]");
        if let Some(cost) = Fields::open(item, &name, COST_FIELDS, report) {
            rule.costs.push(RawCost {
                at: cost.at,
                endpoint: cost.text("endpoint", report),
                method: cost.text("method", report),
                cost: cost.int("cost", report),
            });
        }
    }
    if let Some(node) = fields.node("applies_to") {
        rule.applies_to = read_applies(node, report);
    }
    rule.is_broken = report.wrong_types > before;
    rule
}

/// Reads a limit. Where the rule counts money, its amounts are decimal strings; here they become nanos.
pub(crate) fn read_limit(
    fields: &Fields<'_>,
    prefix: String,
    is_money: bool,
    report: &mut Report,
) -> RawLimit {
    let quota = |node: &Node, path: &str, report: &mut Report| {
        if is_money { as_money_quota(node, path, report) } else { as_quota(node, path, report) }
    };
    let tier_limits = fields.map("tier_limits", report).map(|map| {
        let value = map.value.iter().filter_map(|entry| {
            let path = format!("{prefix}tier_limits.{}", entry.key);
            Some((entry.key.clone(), quota(&entry.value, &path, report)?))
        });
        At { at: map.at, value: value.collect() }
    });
    RawLimit {
        at: fields.at,
        limit: fields.node("limit").and_then(|node| quota(node, &fields.path("limit"), report)),
        window_seconds: fields.int("window_seconds", report),
        window_ms: fields.int("window_ms", report),
        window: fields.text("window", report),
        calendar: fields.text("calendar", report),
        timezone: fields.text("timezone", report),
        anchor_day: fields.int("anchor_day", report),
        algorithm: fields.text("algorithm", report),
        burst: if is_money { fields.money("burst", report) } else { fields.int("burst", report) },
        tier_limits,
        active_when: if prefix.is_empty() { None } else { read_windows(fields, report) },
        prefix,
    }
}

fn read_applies(node: &Node, report: &mut Report) -> RawApplies {
    let lists = || Known::ALL.into_iter().filter_map(|known| Some((known, known.applies_to()?)));
    let names: Vec<&str> = lists().map(|(_, list)| list.list).chain(["attributes"]).collect();
    let Some(fields) = Fields::open(node, "applies_to", &names, report) else {
        return RawApplies::default();
    };
    let lists = lists()
        .filter_map(|(known, list)| Some((known, fields.texts(list.list, report)?)))
        .collect();
    let mut attributes = Vec::new();
    for entry in fields.map("attributes", report).map_or(&[][..], |map| map.value) {
        if let Some(texts) = as_texts(&entry.value) {
            attributes.push((entry.key.clone(), texts));
            continue;
        }
        let path = format!("applies_to.attributes.{}", entry.key);
        let message = format!("must be text or a list of texts, not {}", entry.value.describe());
        report.add_wrong_type(entry.value.at, Some(&path), message);
    }
    RawApplies { lists, attributes }
}

fn read_entries(fields: &Fields<'_>, list: &str, report: &mut Report) -> Vec<RawEntry> {
    let items = fields.list(list, report).unwrap_or_default();
    let read = |(index, item): (usize, &Node)| {
        let name = format!("{list}[{index}]");
        if let Some(short) = as_text(item) {
            // "ip:10.0.0.0/8"; only the first colon separates, as IPv6 has more.
            let Some((kind, value)) = short.value.split_once(':') else {
                let message = "must be type:value, such as \"ip:10.0.0.0/8\" or \"user_id:ann\"";
                report.add(item.at, Some(&name), message);
                return None;
            };
            let text = |text: &str| Some(At { at: item.at, value: text.to_owned() });
            let (kind, value) = (text(kind), text(value));
            let at = item.at;
            let path = name;
            return Some(RawEntry { path, at, kind, value, reason: None, expires_at: None });
        }
        let entry = Fields::open(item, &name, ENTRY_FIELDS, report)?;
        Some(RawEntry {
            path: name,
            at: entry.at,
            kind: entry.text("type", report),
            value: entry.text("value", report),
            reason: entry.text("reason", report),
            expires_at: entry.text("expires_at", report),
        })
    };
    items.iter().enumerate().filter_map(read).collect()
}

fn read_tiers(items: &[Node], report: &mut Report) -> Vec<RawTier> {
    let read = |(index, item): (usize, &Node)| {
        let path = format!("tiers[{index}]");
        if let Some(name) = as_text(item) {
            return Some(RawTier { path, at: item.at, name: Some(name), is_default: false });
        }
        let tier = Fields::open(item, &path, TIER_FIELDS, report)?;
        tier.text("description", report);
        Some(RawTier {
            path,
            at: tier.at,
            name: tier.text("name", report),
            is_default: tier.flag("is_default", report).is_some_and(|flag| flag.value),
        })
    };
    items.iter().enumerate().filter_map(read).collect()
}

fn read_client_tiers(items: &[Node], report: &mut Report) -> Vec<RawClientTier> {
    let read = |(index, item): (usize, &Node)| {
        let name = format!("client_tiers[{index}]");
        let fields = Fields::open(item, &name, CLIENT_TIER_FIELDS, report)?;
        Some(RawClientTier {
            path: name,
            at: fields.at,
            kind: fields.text("type", report),
            value: fields.text("value", report),
            tier: fields.text("tier", report),
        })
    };
    items.iter().enumerate().filter_map(read).collect()
}

fn read_grants(items: &[Node], report: &mut Report) -> Vec<RawGrant> {
    let read = |(index, item): (usize, &Node)| {
        let path = format!("grants[{index}]");
        let grant = Fields::open(item, &path, GRANT_FIELDS, report)?;
        Some(RawGrant {
            path,
            at: grant.at,
            rule_id: grant.text("rule_id", report),
            kind: grant.text("type", report),
            value: grant.text("value", report),
            extra: grant.int("extra", report),
            has_extra: grant.node("extra").is_some(),
            expires_at: grant.text("expires_at", report),
            reason: grant.text("reason", report),
        })
    };
    items.iter().enumerate().filter_map(read).collect()
}

fn read_default(node: &Node, report: &mut Report) -> RawDefault {
    match (as_bool(node), as_text(node)) {
        (Some(false), _) => return RawDefault::Off,
        (Some(true), _) => return RawDefault::Builtin,
        (None, Some(text)) if text.value == "none" => return RawDefault::Off,
        (None, Some(_)) => {
            report.add(node.at, Some("default"), "must be false, none or a map of limit fields");
            return RawDefault::Builtin;
        }
        (None, None) => {}
    }
    report.rule = Some("default".into());
    let known = [DEFAULT_FIELDS, LIMIT_FIELDS].concat();
    let fields = Fields::open(node, "", &known, report);
    let rule = fields.map(|fields| read_rule_fields(&fields, report));
    report.rule = None;
    match rule {
        Some(rule) => RawDefault::Changed(Box::new(RawRule { label: "default".into(), ..rule })),
        None => RawDefault::Builtin,
    }
}
