//! One rule, checked.

use hashbrown::HashSet;
use tollgate_core::{Nanos, SECOND};

use crate::Known;
use crate::candidate::{Live, compile_candidate, generation};
use crate::check::{
    MAX_DESCRIPTION_BYTES, MAX_NAME_BYTES, MAX_RULE_ID_BYTES, choice, currency, instant,
    parse_duration, plain, share_ppm, window_length,
};
use crate::compile_limit::{DEFAULT_SLOT_TTL, Shared, compile_limits};
use crate::compile_matcher::{compile_applies, compile_costs, compile_key};
use crate::envoy::compile_envoy;
use crate::matcher::Costs;
use crate::model::{
    Action, BudgetMode, Consistency, OnStoreFailure, Quota, Rule, RuleLimit, STANDARD_SCOPES, Unit,
};
use crate::places::KeyPlaces;
use crate::prices::Currency;
use crate::problem::Report;
use crate::raw::{At, RawRule};
use crate::schedule::compile_windows;

/// The longest that a throttled request may be made to wait.
pub const MAX_DELAY_MS: u64 = 3_600_000;
/// How much of a quota may be out on lease unless the rule says so, in millionths.
pub const DEFAULT_OVERSHOOT_PPM: u32 = 10_000;

/// What a rule is checked against.
pub(crate) struct Context<'f> {
    pub(crate) tiers: Option<HashSet<&'f str>>,
    /// The scopes that some rule has.
    pub(crate) scopes: HashSet<&'f str>,
    /// The ids of the rules.
    pub(crate) ids: HashSet<&'f str>,
}

/// What an entry of `overrides` begins with that names a rule instead of a scope.
pub(crate) const RULE_PREFIX: &str = "rule:";

/// Checks a rule. The result is whole only if nothing was reported.
pub(crate) fn compile_rule(
    raw: &RawRule,
    is_default: bool,
    context: &Context<'_>,
    report: &mut Report,
) -> Rule {
    let id = rule_id(raw, report);
    let scope = raw.scope.as_ref().map_or(id.clone(), |scope| scope.value.clone());
    if let Some(scope) = &raw.scope {
        plain(scope, "scope", MAX_NAME_BYTES, report);
    }
    let unit = choice(raw.unit.as_ref(), "unit", Unit::ALL, Unit::name, report).unwrap_or_default();
    let slot_ttl = slot_ttl(raw, unit, report);
    let currency = rule_currency(raw, unit, report);
    let tiers = context.tiers.as_ref();
    let generation = generation(raw, report);
    let shared = Shared { rule_id: &id, unit, currency, slot_ttl, tiers, generation };
    let mut limits = compile_limits(raw, &shared, report);
    let (identifier, key) = compile_key(raw, report);
    let action = choice(raw.action.as_ref(), "action", Action::ALL, Action::name, report)
        .unwrap_or_default();
    let starts_at = instant(raw.starts_at.as_ref(), "starts_at", report);
    let ends_at = instant(raw.ends_at.as_ref(), "ends_at", report);
    if let (Some(start), Some(end), Some(at)) = (starts_at, ends_at, &raw.ends_at)
        && start >= end
    {
        report.add(at.at, Some("ends_at"), "must be after starts_at");
    }
    let failure = raw.on_store_failure.as_ref();
    let failure =
        choice(failure, "on_store_failure", OnStoreFailure::ALL, OnStoreFailure::name, report);
    let budget_mode = budget_mode(raw, unit, action, report);
    let is_hard = budget_mode == BudgetMode::Hard;
    let costs = Costs::new(compile_costs(raw, unit, &limits, report));
    let shared = Shared { generation: generation.saturating_add(1), ..shared };
    let live = Live { unit, action, budget_mode, has_key: !key.is_empty(), shared };
    let candidate = compile_candidate(raw, &live, report).map(|(candidate, tried)| {
        limits.extend(tried);
        Box::new(candidate)
    });
    check_user_tiers(raw, context, report);
    Rule {
        reason: hit_reason(&scope),
        priority: priority(raw, report),
        max_delay: max_delay(raw, action, unit, &limits, report),
        soft_limit_ppm: share_ppm(raw.soft_limit.as_ref(), "soft_limit", report),
        quota_mode: raw.quota_mode.as_ref().is_some_and(|flag| flag.value),
        envoy: raw.envoy.as_ref().map(|envoy| Box::new(compile_envoy(envoy, report))),
        consistency: consistency(raw, report),
        on_store_failure: if is_hard { Some(OnStoreFailure::Closed) } else { failure },
        store: short_text(raw.store.as_ref(), "store", MAX_NAME_BYTES, report),
        name: short_text(raw.name.as_ref(), "name", MAX_DESCRIPTION_BYTES, report),
        description: description(raw, report),
        overrides: overrides(raw, &scope, context, report),
        standard_scope_rank: STANDARD_SCOPES
            .iter()
            .position(|standard| *standard == scope)
            .and_then(|place| u8::try_from(place).ok()),
        matcher: compile_applies(&raw.applies_to, report),
        costs,
        candidate,
        id,
        scope,
        unit,
        currency,
        budget_mode,
        action,
        limits,
        key_places: KeyPlaces::of(&key),
        key,
        identifier,
        starts_at,
        ends_at,
        active_when: compile_windows(raw.active_when.as_ref(), "", report),
        is_default,
        grants: None,
    }
}

fn rule_id(raw: &RawRule, report: &mut Report) -> String {
    let Some(id) = &raw.rule_id else {
        report.add(raw.at, Some("rule_id"), "is missing; give the rule a unique id");
        return String::new();
    };
    plain(id, "rule_id", MAX_RULE_ID_BYTES, report);
    id.value.clone()
}

/// `HIT_<SCOPE>_LIMIT`: the reason of refusals by rules of this scope.
pub fn hit_reason(scope: &str) -> String {
    let upper = scope.chars().flat_map(char::to_uppercase);
    let name: String = upper.map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    format!("HIT_{name}_LIMIT")
}

fn priority(raw: &RawRule, report: &mut Report) -> i64 {
    let Some(priority) = &raw.priority else { return 0 };
    i64::try_from(priority.value).unwrap_or_else(|_| {
        report.add(priority.at, Some("priority"), "must fit into 64 bits");
        0
    })
}

fn short_text(
    value: Option<&At<String>>,
    field: &str,
    most: usize,
    report: &mut Report,
) -> Option<String> {
    let value = value?;
    plain(value, field, most, report).then(|| value.value.clone())
}

/// Unlike names, descriptions may be empty and have line breaks.
fn description(raw: &RawRule, report: &mut Report) -> Option<String> {
    let value = raw.description.as_ref()?;
    if value.value.len() > MAX_DESCRIPTION_BYTES {
        let message = format!("must not be longer than {MAX_DESCRIPTION_BYTES} bytes");
        report.add(value.at, Some("description"), message);
    }
    Some(value.value.clone())
}

/// The currency of a rule that counts money.
fn rule_currency(raw: &RawRule, unit: Unit, report: &mut Report) -> Option<Currency> {
    match (&raw.currency, unit) {
        (Some(code), Unit::Money) => currency(code, "currency", report),
        (Some(code), _) => {
            report.add(code.at, Some("currency"), "goes with unit money only; leave it out");
            None
        }
        (None, Unit::Money) => {
            let at = raw.unit.as_ref().map_or(raw.at, |unit| unit.at);
            report.add(at, Some("currency"), "is missing; unit money needs one, such as USD");
            None
        }
        (None, _) => None,
    }
}

/// How firmly a budget holds, and what cannot be combined with that.
fn budget_mode(raw: &RawRule, unit: Unit, action: Action, report: &mut Report) -> BudgetMode {
    let Some(given) = &raw.budget_mode else { return BudgetMode::Soft };
    if unit != Unit::Money {
        report.add(given.at, Some("budget_mode"), "goes with unit money only; leave it out");
        return BudgetMode::Soft;
    }
    let mode = choice(Some(given), "budget_mode", BudgetMode::ALL, BudgetMode::name, report)
        .unwrap_or_default();
    if mode == BudgetMode::Soft {
        return mode;
    }
    let mut needs = |value: &Option<At<String>>, field: &str, only: &str| {
        if let Some(value) = value
            && value.value != only
        {
            let message = format!(
                "budget_mode hard needs {only}; write `{field}: {only}` or leave it out, or use `budget_mode: soft`"
            );
            report.add(value.at, Some(field), message);
        }
    };
    needs(&raw.consistency, "consistency", "strict");
    needs(&raw.on_store_failure, "on_store_failure", "closed");
    if action == Action::LogOnly {
        needs(&raw.action, "action", "reject");
    }
    if let Some(member) = raw.quota_mode.as_ref().filter(|flag| flag.value) {
        let message = "a hard budget refuses by itself; leave it out, or use `budget_mode: soft`";
        report.add(member.at, Some("quota_mode"), message);
    }
    mode
}

fn slot_ttl(raw: &RawRule, unit: Unit, report: &mut Report) -> Nanos {
    let Some(At { at, value }) = &raw.slot_ttl else { return DEFAULT_SLOT_TTL };
    if unit != Unit::Concurrency {
        report.add(*at, Some("slot_ttl"), "goes with unit concurrency only; leave it out");
        return DEFAULT_SLOT_TTL;
    }
    let length = match value.parse::<i64>() {
        Ok(seconds) => window_length(i128::from(seconds) * i128::from(SECOND)),
        Err(_) => parse_duration(value),
    };
    length.unwrap_or_else(|message| {
        report.add(*at, Some("slot_ttl"), message);
        DEFAULT_SLOT_TTL
    })
}

fn max_delay(
    raw: &RawRule,
    action: Action,
    unit: Unit,
    limits: &[RuleLimit],
    report: &mut Report,
) -> Option<Nanos> {
    if action != Action::Throttle {
        if let Some(given) = &raw.max_delay_ms {
            report.add(given.at, Some("max_delay_ms"), "is allowed only with action throttle");
        }
        return None;
    }
    let is_bucket = |limit: &RuleLimit| {
        let quotas = limit.base.iter().chain(limit.tiers.iter().map(|(_, quota)| quota));
        quotas.filter_map(Quota::limit).all(|limit| limit.algorithm().is_bucket())
    };
    let at = raw.action.as_ref().map_or(raw.at, |action| action.at);
    // Nobody knows when a slot will be free, but a gateway can wait for it.
    if unit != Unit::Concurrency && !limits.iter().all(is_bucket) {
        let message =
            "throttle needs algorithm token_bucket, leaky_bucket or gcra, or unit concurrency";
        report.add(at, Some("action"), message);
    }
    let Some(given) = &raw.max_delay_ms else {
        let message = "is missing; action throttle needs the maximum wait in milliseconds";
        report.add(at, Some("max_delay_ms"), message);
        return None;
    };
    if let Ok(millis @ 1..=MAX_DELAY_MS) = u64::try_from(given.value) {
        return Some(millis * (SECOND / 1_000));
    }
    let message = format!("must be from 1 to {MAX_DELAY_MS}");
    report.add(given.at, Some("max_delay_ms"), message);
    None
}

fn consistency(raw: &RawRule, report: &mut Report) -> Consistency {
    const NAMES: [&str; 3] = ["strict", "leased", "local"];
    let name = choice(raw.consistency.as_ref(), "consistency", &NAMES, |name| name, report);
    let overshoot = share_ppm(raw.max_overshoot.as_ref(), "max_overshoot", report);
    if let Some(given) = &raw.max_overshoot
        && name != Some("leased")
    {
        report.add(given.at, Some("max_overshoot"), "goes with consistency leased only");
    }
    match name {
        Some("leased") => {
            Consistency::Leased { max_overshoot_ppm: overshoot.unwrap_or(DEFAULT_OVERSHOOT_PPM) }
        }
        Some("local") => Consistency::Local,
        _ => Consistency::Strict,
    }
}

fn overrides(raw: &RawRule, own: &str, context: &Context<'_>, report: &mut Report) -> Vec<String> {
    let mut scopes = Vec::new();
    for scope in raw.overrides.iter().flat_map(|list| &list.value) {
        if let Some(id) = scope.value.strip_prefix(RULE_PREFIX) {
            let is_own = raw.rule_id.as_ref().is_some_and(|own| own.value == id);
            if is_own || !context.ids.contains(id) {
                let short: String = id.chars().take(64).collect();
                let message =
                    format!("there is no other rule {short:?}; correct the id or remove it");
                report.add(scope.at, Some("overrides"), message);
            } else {
                scopes.push(scope.value.clone());
            }
        } else if scope.value == own {
            let message = "names the rule's own scope; rules of one scope are alternatives anyway";
            report.add(scope.at, Some("overrides"), message);
        } else if !context.scopes.contains(scope.value.as_str()) {
            let short: String = scope.value.chars().take(64).collect();
            let message = format!("no rule has scope {short:?}; correct the name or remove it");
            report.add(scope.at, Some("overrides"), message);
        } else {
            scopes.push(scope.value.clone());
        }
    }
    scopes
}

fn check_user_tiers(raw: &RawRule, context: &Context<'_>, report: &mut Report) {
    let Some(tiers) = &context.tiers else { return };
    let lists = raw.applies_to.lists.iter().filter(|(known, _)| *known == Known::Tier);
    for tier in lists.flat_map(|(_, list)| &list.value) {
        if !tiers.contains(tier.value.as_str()) && tier.value != "*" {
            let short: String = tier.value.chars().take(64).collect();
            let message = format!("{short:?} is not among tiers; add it there or correct the name");
            report.add(tier.at, Some(Known::Tier.rule_path()), message);
        }
    }
}
