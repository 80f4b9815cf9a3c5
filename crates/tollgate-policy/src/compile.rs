//! From the file as typed to a rule set's parts, checked.

use hashbrown::{HashMap, HashSet};

use crate::check::{
    MAX_DESCRIPTION_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES, choice, instant, plain, require,
};
use crate::compile_grants::compile_grants;
use crate::compile_rule::{Context, compile_rule};
use crate::lists::{List, ListEntry, ListKind, parse_network};
use crate::problem::Report;
use crate::raw::{At, RawDefault, RawEntry, RawQuota, RawRule, RuleFile};
use crate::set::Parts;
use crate::tiers::Tiers;
use crate::virtual_keys::KEY_RULE_PREFIX;
use crate::{NoMatch, Problems, Rule, read};

/// The most rules a file may have.
pub const MAX_RULES: usize = 100_000;
/// The id of the system default.
pub const DEFAULT_RULE_ID: &str = "default";
/// The scope of the system default.
pub const DEFAULT_SCOPE: &str = "DEFAULT";

pub(crate) fn compile(file: &RuleFile) -> Result<Parts, Problems> {
    let mut report = Report::new(&file.source);
    let parts = check(file, &mut report);
    finish(parts, report)
}

/// Reads and checks in one go, so that problems of both stages are reported together.
pub(crate) fn read_and_compile(text: &str, source: &str) -> Result<Parts, Problems> {
    let mut report = Report::new(source);
    let file = read::read_file(text, source, &mut report);
    match file {
        Some(file) => {
            let parts = check(&file, &mut report);
            finish(parts, report)
        }
        None => Err(Problems(report.finish())),
    }
}

/// The rules of a virtual key's limits, whose ids no rule file may use.
pub(crate) fn compile_key_rules(text: &str) -> Result<Vec<Rule>, Problems> {
    let mut report = Report::new("key");
    let file = read::read_file(text, "key", &mut report);
    let context = Context { tiers: None, scopes: HashSet::new(), ids: HashSet::new() };
    let raw = file.iter().flat_map(|file| &file.rules);
    let rules: Vec<Rule> =
        raw.filter_map(|raw| check_rule(raw, false, &context, &mut report)).collect();
    if report.is_empty() { Ok(rules) } else { Err(Problems(report.finish())) }
}

fn finish(parts: Parts, report: Report) -> Result<Parts, Problems> {
    if report.is_empty() { Ok(parts) } else { Err(Problems(report.finish())) }
}

fn check(file: &RuleFile, report: &mut Report) -> Parts {
    let (tiers, tier_names) = compile_tiers(file, report);
    let default = default_rule(&file.default);
    let scopes = file.rules.iter().filter_map(scope_of);
    let scopes = scopes.chain(default.as_ref().map(|_| DEFAULT_SCOPE)).collect();
    let ids = file.rules.iter().filter_map(|raw| raw.rule_id.as_ref());
    let ids = ids.map(|id| id.value.as_str()).collect();
    let context = Context { tiers: tier_names, scopes, ids };
    check_ids(file, default.is_some(), report);
    let (mut rules, mut inactive) = (Vec::new(), Vec::new());
    for raw in &file.rules {
        let is_active = raw.is_active.as_ref().is_none_or(|flag| flag.value);
        let list = if is_active { &mut rules } else { &mut inactive };
        list.extend(check_rule(raw, false, &context, report));
    }
    let mut default_rule = default.as_ref().and_then(|raw| check_rule(raw, true, &context, report));
    let ids = file.rules.iter().filter_map(|raw| raw.rule_id.as_ref());
    let ids = ids.map(|id| id.value.as_str()).chain(default.as_ref().map(|_| DEFAULT_RULE_ID));
    // Grants on inactive rules are checked and wait.
    let rules_and_default = rules.iter_mut().chain(&mut default_rule).chain(&mut inactive);
    let grants = compile_grants(&file.grants, &ids.collect(), rules_and_default, report);
    let no_match = file.no_match.as_ref();
    Parts {
        rules,
        default_rule,
        grants,
        deny: compile_list(&file.deny_list, report),
        allow: compile_list(&file.allow_list, report),
        tiers,
        no_match: choice(no_match, "no_match", NoMatch::ALL, NoMatch::name, report)
            .unwrap_or_default(),
        digest: file.digest,
    }
}

fn check_rule(
    raw: &RawRule,
    is_default: bool,
    context: &Context<'_>,
    report: &mut Report,
) -> Option<Rule> {
    if raw.is_broken {
        return None;
    }
    report.rule = Some(raw.label.clone());
    let rule = compile_rule(raw, is_default, context, report);
    report.rule = None;
    Some(rule)
}

fn scope_of(raw: &RawRule) -> Option<&str> {
    raw.scope.as_ref().or(raw.rule_id.as_ref()).map(|scope| scope.value.as_str())
}

fn check_ids(file: &RuleFile, has_default: bool, report: &mut Report) {
    if file.rules.len() > MAX_RULES {
        let message = format!("must not have more than {MAX_RULES} entries; split the file");
        let at = file.rules.first().map(|rule| rule.at).unwrap_or_default();
        report.add(at, Some("rules"), message);
    }
    let mut lines: HashMap<&str, u32> = HashMap::new();
    for raw in &file.rules {
        report.rule = Some(raw.label.clone());
        if let Some(id) = &raw.rule_id {
            if has_default && id.value == DEFAULT_RULE_ID {
                let message = "is the id of the system default; choose another, or change it under `default:`, or set `default: false`";
                report.add(id.at, Some("rule_id"), message);
            }
            if id.value.starts_with(KEY_RULE_PREFIX) {
                let message = "begins like the limits of virtual keys; choose another id";
                report.add(id.at, Some("rule_id"), message);
            }
            if let Some(line) = lines.insert(&id.value, id.at.line) {
                let message = format!("is used by the rule in line {line} too; ids are unique");
                report.add(id.at, Some("rule_id"), message);
            }
        }
        if let Some(scope) = &raw.scope
            && has_default
            && scope.value == DEFAULT_SCOPE
        {
            let message = "is the scope of the system default; choose another, or change it under `default:`, or set `default: false`";
            report.add(scope.at, Some("scope"), message);
        }
    }
    report.rule = None;
}

/// The system default with the parts that the file replaces.
fn default_rule(default: &RawDefault) -> Option<RawRule> {
    let mut raw = match default {
        RawDefault::Off => return None,
        RawDefault::Builtin => RawRule { label: DEFAULT_RULE_ID.into(), ..RawRule::default() },
        RawDefault::Changed(raw) => RawRule::clone(raw),
    };
    let at = raw.at;
    let text = |value: &str| At { at, value: value.to_owned() };
    raw.rule_id = Some(text(DEFAULT_RULE_ID));
    raw.scope = Some(text(DEFAULT_SCOPE));
    if raw.key_by.is_none() && raw.identifier_type.is_none() {
        let value = vec![text("user_id"), text("model_id")];
        raw.key_by = Some(At { at, value });
    }
    let limit = &mut raw.limit;
    if raw.limits.is_some() {
        return Some(raw);
    }
    if limit.limit.is_none() {
        limit.limit = Some(At { at, value: RawQuota::Number(100) });
    }
    if raw.unit.as_ref().is_some_and(|unit| unit.value == "concurrency") {
        return Some(raw);
    }
    let has_window = limit.window_seconds.is_some()
        || limit.window_ms.is_some()
        || limit.window.is_some()
        || limit.calendar.is_some();
    if !has_window {
        limit.window_seconds = Some(At { at, value: 3_600 });
    }
    if limit.algorithm.is_none() && limit.calendar.is_none() {
        limit.algorithm = Some(text("sliding_window_log"));
    }
    Some(raw)
}

fn compile_tiers<'f>(file: &'f RuleFile, report: &mut Report) -> (Tiers, Option<HashSet<&'f str>>) {
    let mut tiers = Tiers::default();
    let mut names = HashSet::new();
    for tier in file.tiers.iter().flatten() {
        let field = format!("{}.name", tier.path);
        let Some(name) = require(tier.name.as_ref(), tier.at, &field, report) else { continue };
        plain(name, &field, MAX_NAME_BYTES, report);
        if !names.insert(name.value.as_str()) {
            report.add(name.at, Some(&field), "is given twice; tier names are unique");
        }
        if tier.is_default && tiers.default.replace(name.value.clone()).is_some() {
            report.add(tier.at, Some(&field), "is the second default tier; there can be one");
        }
    }
    let names = file.tiers.is_some().then_some(names);
    for client in &file.client_tiers {
        let path = |name: &str| format!("{}.{name}", client.path);
        let kind = require(client.kind.as_ref(), client.at, &path("type"), report);
        let value = require(client.value.as_ref(), client.at, &path("value"), report);
        let tier = require(client.tier.as_ref(), client.at, &path("tier"), report);
        let kinds = [ListKind::ApiKey, ListKind::UserId, ListKind::TenantId];
        let kind = choice(kind, &path("type"), &kinds, ListKind::name, report);
        let (Some(kind), Some(value), Some(tier)) = (kind, value, tier) else { continue };
        plain(value, &path("value"), MAX_VALUE_BYTES, report);
        plain(tier, &path("tier"), MAX_NAME_BYTES, report);
        if names.as_ref().is_some_and(|names| !names.contains(tier.value.as_str())) {
            let message = "is not among tiers; add it there or correct the name";
            report.add(tier.at, Some(&path("tier")), message);
        }
        let map = match kind {
            ListKind::ApiKey => &mut tiers.by_key,
            ListKind::UserId => &mut tiers.by_user,
            _ => &mut tiers.by_tenant,
        };
        if map.insert(value.value.as_str().into(), tier.value.as_str().into()).is_some() {
            report.add(value.at, Some(&path("value")), "has a tier already; remove one of them");
        }
    }
    (tiers, names)
}

fn compile_list(raw: &[RawEntry], report: &mut Report) -> List {
    let mut list = List::default();
    for entry in raw {
        let path = |field: &str| format!("{}.{field}", entry.path);
        let kind = require(entry.kind.as_ref(), entry.at, &path("type"), report);
        let value = require(entry.value.as_ref(), entry.at, &path("value"), report);
        let kind = choice(kind, &path("type"), ListKind::ALL, ListKind::name, report);
        let expires_at = instant(entry.expires_at.as_ref(), &path("expires_at"), report);
        if let Some(reason) = &entry.reason {
            plain(reason, &path("reason"), MAX_DESCRIPTION_BYTES, report);
        }
        let (Some(kind), Some(value)) = (kind, value) else { continue };
        if !plain(value, &path("value"), MAX_VALUE_BYTES, report) {
            continue;
        }
        let network = (kind == ListKind::Ip).then(|| parse_network(&value.value));
        if network == Some(None) {
            let message = "must be an address or a network, such as 10.0.0.0/8 or 2001:db8::/32";
            report.add(value.at, Some(&path("value")), message);
            continue;
        }
        let reason = entry.reason.as_ref().map(|reason| reason.value.clone());
        let entry = ListEntry { kind, value: value.value.clone(), reason, expires_at };
        list.push(entry, network.flatten());
    }
    list
}
