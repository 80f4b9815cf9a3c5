//! What a tenant's own admins may do with rules: tighten, for their tenant, and nothing else.
//!
//! Their rules are scopes of their own, so that they come on top of what the installation enforces:
//! they replace nothing, displace nothing, and do not make the system default yield.

use serde_json::{Map, Value};
use tollgate_core::Algorithm;
use tollgate_policy::{Quota, Rule, RuleLimit};

use crate::ControlError;

/// What the scopes of tenants' own rules begin with; no other rule may use it.
pub const TENANT_SCOPE: &str = "tenant:";

/// Fields that could loosen, or touch what belongs to the installation.
const FORBIDDEN: [&str; 10] = [
    "scope",
    "overrides",
    "on_store_failure",
    "consistency",
    "max_overshoot",
    "store",
    "quota_mode",
    "envoy",
    "candidate",
    "generation",
];

/// Rules that a tenant's admins may have, those that are switched off included.
pub(crate) const MAX_TENANT_RULES: usize = 50;

/// Limits of all of those that are in force. Each request of the tenant may meet all of them, and all tenants wait for
/// the store that checks them.
const MAX_TENANT_LIMITS_IN_ALL: usize = 20;

/// Entries of all logs of a tenant's own rules, for one client: the sum of their limits.
const MAX_TENANT_LOG_ENTRIES: u64 = 10_000;

/// The longest window of a log of a tenant's own rule: a log keeps every request that long.
const MAX_TENANT_LOG_SECONDS: u64 = 24 * 60 * 60;

/// Limits of one of those.
pub(crate) const MAX_TENANT_LIMITS: usize = 4;

/// Bytes of one of those, as JSON.
const MAX_TENANT_RULE_BYTES: usize = 16 << 10;

/// How long one of those makes requests wait: places to wait are shared.
const MAX_TENANT_DELAY_MS: u64 = 10_000;

/// What the ids of a tenant's own rules begin with, so that nobody can take an id that others want.
pub(crate) fn tenant_prefix(tenant: &str) -> String {
    format!("{tenant}.")
}

/// The scope of a tenant's own rule.
pub fn tenant_scope(tenant: &str, rule_id: &str) -> String {
    format!("{TENANT_SCOPE}{tenant}:{rule_id}")
}

/// Whether an id is one of this tenant's: its name, a dot, and a name without one. So no id of the tenant `acme` can be
/// one of `acme.eu`.
fn is_id_of(tenant: &str, rule_id: &str) -> bool {
    rule_id
        .strip_prefix(&tenant_prefix(tenant))
        .is_some_and(|name| !name.is_empty() && !name.contains('.'))
}

/// What a tenant's own rule must not ask of what all tenants share.
fn check_shared(rule: &Map<String, Value>) -> Result<(), ControlError> {
    let bytes = serde_json::to_string(rule).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_TENANT_RULE_BYTES {
        let message = format!("a tenant's own rule has at most {MAX_TENANT_RULE_BYTES} bytes");
        return Err(ControlError::invalid("rule", message));
    }
    if rule.get("action").and_then(Value::as_str) == Some("queue") {
        let message = "queue is not for a tenant's own rules: all tenants share the queue";
        return Err(ControlError::invalid("action", message));
    }
    let delay = rule.get("max_delay_ms").and_then(Value::as_u64);
    if delay.is_some_and(|delay| delay > MAX_TENANT_DELAY_MS) {
        let message = format!("a tenant's own rule has at most {MAX_TENANT_DELAY_MS}");
        return Err(ControlError::invalid("max_delay_ms", message));
    }
    Ok(())
}

/// What the rules of a tenant take of a store that all tenants share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StoreUse {
    limits: usize,
    log_entries: u64,
    log_seconds: u64,
}

impl StoreUse {
    /// What these rules take together.
    pub(crate) fn of<'r>(rules: impl Iterator<Item = &'r Rule>) -> Self {
        let mut sum = Self::default();
        for limit in rules.flat_map(|rule| &rule.limits) {
            sum.limits += 1;
            let entries = log_entries(limit);
            if entries > 0 {
                sum.log_entries = sum.log_entries.saturating_add(entries);
                sum.log_seconds = sum.log_seconds.max(limit.window_seconds);
            }
        }
        sum
    }

    /// Whether a tenant may have this. What was there before may stay, but not grow.
    pub(crate) fn check(&self, before: &Self) -> Result<(), ControlError> {
        if self.limits > MAX_TENANT_LIMITS_IN_ALL.max(before.limits) {
            let message = format!(
                "the rules of a tenant have at most {MAX_TENANT_LIMITS_IN_ALL} limits in all, \
                 these would have {}",
                self.limits
            );
            return Err(ControlError::invalid("limits", message));
        }
        if self.log_entries > MAX_TENANT_LOG_ENTRIES.max(before.log_entries) {
            let message = format!(
                "the sliding_window_log limits of a tenant's rules are together at most \
                 {MAX_TENANT_LOG_ENTRIES}, these would be {}: use sliding_window_counter",
                self.log_entries
            );
            return Err(ControlError::invalid("limit", message));
        }
        if self.log_seconds > MAX_TENANT_LOG_SECONDS.max(before.log_seconds) {
            let message = format!(
                "a sliding_window_log of a tenant's own rule has a window of at most \
                 {MAX_TENANT_LOG_SECONDS} seconds: use sliding_window_counter"
            );
            return Err(ControlError::invalid("window", message));
        }
        Ok(())
    }
}

/// The most entries that a limit keeps for one client; 0 where it keeps no log.
fn log_entries(limit: &RuleLimit) -> u64 {
    let quotas = limit.base.iter().chain(limit.tiers.iter().map(|(_, quota)| quota));
    let logs = quotas.filter_map(Quota::limit);
    let logs = logs.filter(|limit| limit.algorithm() == Algorithm::SlidingWindowLog);
    logs.map(tollgate_core::Limit::capacity).max().unwrap_or(0)
}

/// A rule as its tenant's admin sent it, made safe; or why it cannot be. One that the tenant has already keeps its id.
pub(crate) fn confine(
    rule: &mut Map<String, Value>,
    tenant: &str,
    is_known: bool,
) -> Result<(), ControlError> {
    check_shared(rule)?;
    let rule_id = rule.get("rule_id").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !is_known && !is_id_of(tenant, &rule_id) {
        let prefix = tenant_prefix(tenant);
        let message =
            format!("must be {prefix:?} and a name without a dot: ids are shared by all tenants");
        return Err(ControlError::invalid("rule_id", message));
    }
    if rule.get("limits").and_then(Value::as_array).is_some_and(|it| it.len() > MAX_TENANT_LIMITS) {
        let message = format!("a tenant's own rule has at most {MAX_TENANT_LIMITS}");
        return Err(ControlError::invalid("limits", message));
    }
    let own = tenant_scope(tenant, &rule_id);
    for field in FORBIDDEN {
        // What a tenant admin got from us can be sent back as it is.
        let is_ours = field == "scope" && rule.get(field).and_then(Value::as_str) == Some(&own);
        if rule.contains_key(field) && !is_ours {
            return Err(ControlError::invalid(
                field,
                "is not for a tenant's own rules: leave it out",
            ));
        }
    }
    let applies = rule.entry("applies_to").or_insert_with(|| Value::Object(Map::new()));
    if applies.is_null() {
        *applies = Value::Object(Map::new());
    }
    let Some(applies) = applies.as_object_mut() else {
        return Err(ControlError::invalid("applies_to", "must be a map"));
    };
    let only_own = Value::Array(vec![Value::String(tenant.to_owned())]);
    match applies.get("tenants") {
        None | Some(Value::Null) => {}
        Some(Value::Array(none)) if none.is_empty() => {}
        Some(tenants) if *tenants == only_own || *tenants == Value::String(tenant.to_owned()) => {}
        Some(_) => {
            let message = format!("can only be {tenant:?}, your own: leave it out");
            return Err(ControlError::invalid("applies_to.tenants", message));
        }
    }
    applies.insert("tenants".to_owned(), only_own);
    rule.insert("scope".to_owned(), Value::String(own));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn confined(rule: Value) -> Result<Value, String> {
        let Value::Object(mut rule) = rule else { unreachable!() };
        match confine(&mut rule, "acme", false) {
            Ok(()) => Ok(Value::Object(rule)),
            Err(ControlError::Invalid(problems)) => Err(problems[0].field.clone().unwrap()),
            Err(other) => Err(other.to_string()),
        }
    }

    #[test]
    fn a_rule_is_bound_to_its_tenant_and_scope() {
        let rule =
            confined(json!({"rule_id": "acme.a", "limit": 5, "applies_to": {"models": ["m"]}}));
        let expected = json!({"rule_id": "acme.a", "limit": 5, "scope": "tenant:acme:acme.a",
            "applies_to": {"models": ["m"], "tenants": ["acme"]}});
        assert_eq!(rule.as_ref(), Ok(&expected));
        assert_eq!(confined(rule.unwrap()), Ok(expected), "what was got can be sent back");
    }

    /// Queue, waiting room and database are those of all tenants.
    #[test]
    fn what_all_share_is_not_taken() {
        let rule = json!({"rule_id": "acme.a", "action": "queue"});
        assert_eq!(confined(rule), Err("action".to_owned()));
        let rule = json!({"rule_id": "acme.a", "action": "throttle", "max_delay_ms": 10_001});
        assert_eq!(confined(rule), Err("max_delay_ms".to_owned()));
        let rule = json!({"rule_id": "acme.a", "action": "throttle", "max_delay_ms": 10_000});
        assert!(confined(rule).is_ok());
        let rule = json!({"rule_id": "acme.a", "description": "x".repeat(20_000)});
        assert_eq!(confined(rule), Err("rule".to_owned()));
    }

    fn use_of(yaml: &str) -> StoreUse {
        let rules = tollgate_policy::RuleSet::from_yaml(yaml, "test").unwrap();
        StoreUse::of(rules.rules().iter().filter(|rule| !rule.is_default))
    }

    #[test]
    fn limits_and_logs_of_all_rules_are_bounded() {
        let none = StoreUse::default();
        let field = |error: ControlError| match error {
            ControlError::Invalid(problems) => problems[0].field.clone().unwrap(),
            other => other.to_string(),
        };
        let check = |used: StoreUse, before: StoreUse| used.check(&before).map_err(field);
        let counters = |count: usize| {
            let rule =
                |n| format!("{{rule_id: r{n}, limit: 1000000, window: 1h, algorithm: gcra}}");
            let rules: Vec<String> = (0..count).map(rule).collect();
            use_of(&format!("rules: [{}]", rules.join(", ")))
        };
        assert_eq!(check(counters(20), none), Ok(()));
        assert_eq!(check(counters(21), none), Err("limits".to_owned()));
        assert_eq!(check(counters(21), counters(22)), Ok(()), "there were more before");
        assert_eq!(check(counters(22), counters(21)), Err("limits".to_owned()));
        let log = |limit: &str, window: &str| {
            use_of(&format!(
                "rules: [{{rule_id: a, limit: 4000, window: 1m, algorithm: sliding_window_log}}, \
                 {{rule_id: b, limit: {limit}, window: {window}, algorithm: sliding_window_log}}]"
            ))
        };
        assert_eq!(check(log("6000", "1d"), none), Ok(()));
        assert_eq!(check(log("6001", "1d"), none), Err("limit".to_owned()));
        let tiers = "5, tier_limits: {gold: 6001}";
        assert_eq!(check(log(tiers, "1d"), none), Err("limit".to_owned()), "of any tier");
        assert_eq!(check(log("6000", "2d"), none), Err("window".to_owned()));
    }

    #[test]
    fn what_could_loosen_is_refused() {
        for field in FORBIDDEN {
            let rule = json!({"rule_id": "acme.a", field: "x"});
            assert_eq!(confined(rule), Err(field.to_owned()));
        }
        for tenants in [json!(["other"]), json!(["acme", "other"]), json!("other"), json!(5)] {
            let rule = json!({"rule_id": "acme.a", "applies_to": {"tenants": tenants}});
            assert_eq!(confined(rule), Err("applies_to.tenants".to_owned()));
        }
        assert_eq!(confined(json!({"rule_id": "per-user"})), Err("rule_id".to_owned()));
        for id in ["acme.eu.per-user", "acme.", "acme", "acmex.a", "acme..a"] {
            assert_eq!(confined(json!({"rule_id": id})), Err("rule_id".to_owned()), "{id}");
        }
        let many = json!({"rule_id": "acme.a", "limits": [1, 2, 3, 4, 5]});
        assert_eq!(confined(many), Err("limits".to_owned()));
        let rule = json!({"rule_id": "acme.a", "applies_to": 7});
        assert_eq!(confined(rule), Err("applies_to".to_owned()));
    }
}
