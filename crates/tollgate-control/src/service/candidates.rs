//! Steps of a rollout: each is a new version of its rule, so that it is checked, audited and in force on all nodes alike.

use serde_json::{Map, Value, json};

use super::entries::is_own;
use super::{Changed, Control, Current, Put};
use crate::{Actor, ControlError, Kind};

const WINDOWS: [&str; 4] = ["window_seconds", "window_ms", "window", "calendar"];
const CALENDAR: [&str; 2] = ["timezone", "anchor_day"];
/// What a rule with `limits` does not state itself.
const SINGLE: [&str; 9] = [
    "limit",
    "window_seconds",
    "window_ms",
    "window",
    "calendar",
    "timezone",
    "anchor_day",
    "burst",
    "tier_limits",
];

/// What becomes of a rule's candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CandidateStep {
    /// Its limits become the rule's, and so do its counters.
    Promote,
    /// It enforces for nobody, and is still tried.
    Halt,
    /// It enforces for this share of the keys, in per cent.
    Advance(f64),
}

impl CandidateStep {
    const fn action(self) -> &'static str {
        match self {
            Self::Promote => "rule.candidate.promote",
            Self::Halt => "rule.candidate.halt",
            Self::Advance(_) => "rule.candidate.advance",
        }
    }
}

impl Control {
    /// Takes a step of a rollout.
    pub async fn change_candidate(
        &self,
        actor: &Actor,
        id: &str,
        step: CandidateStep,
        how: &Put,
    ) -> Result<Changed, ControlError> {
        let plan = |current: &Current| {
            let old = current.entry(Kind::Rule, id).map(|old| &**old);
            let Some(old) = old.filter(|old| is_own(old, how.tenant.as_deref())) else {
                return Err(ControlError::NotFound("rule", id.to_owned()));
            };
            how.precondition.check(Some(old.version))?;
            let mut body = old.body.clone();
            let none =
                || ControlError::Conflict(format!("rule {id:?} has no candidate: add one first"));
            let rule = body.as_object_mut().ok_or_else(none)?;
            let Some(Value::Object(candidate)) = rule.get("candidate").cloned() else {
                return Err(none());
            };
            match step {
                CandidateStep::Promote => promote(rule, candidate),
                CandidateStep::Halt => roll_out(rule, 0.0),
                CandidateStep::Advance(percent) => roll_out(rule, percent),
            }
            let place = (Kind::Rule, id.to_owned());
            Ok(vec![self.write(step.action(), place, Some(old), Some(body), old.tenant.clone())])
        };
        self.change(actor, how.is_dry, plan).await
    }
}

/// Puts the share of keys that a candidate enforces for in the place of whatever its rollout says. Its salt stays, so that
/// the same keys come first.
fn roll_out(rule: &mut Map<String, Value>, percent: f64) {
    let Some(Value::Object(candidate)) = rule.get_mut("candidate") else { return };
    let salt = candidate.get("rollout").and_then(|rollout| rollout.get("salt")).cloned();
    let mut rollout = Map::new();
    rollout.insert("percent".to_owned(), json!(percent));
    if let Some(salt) = salt.filter(|salt| !salt.is_null()) {
        rollout.insert("salt".to_owned(), salt);
    }
    candidate.insert("rollout".to_owned(), Value::Object(rollout));
}

/// Makes the limits of a candidate those of its rule, which continues its counters. What the candidate does not state stays,
/// as `as_promoted` in the policy crate has it.
fn promote(rule: &mut Map<String, Value>, candidate: Map<String, Value>) {
    rule.remove("candidate");
    let states = |name: &&str| candidate.get(*name).is_some_and(|value| !value.is_null());
    if states(&"limits") {
        for name in SINGLE {
            rule.remove(name);
        }
    } else if rule.remove("limits").is_none_or(|limits| limits.is_null()) {
        if WINDOWS.iter().any(&states) {
            WINDOWS.iter().chain(&CALENDAR).for_each(|name| drop(rule.remove(*name)));
        }
        if states(&"algorithm") {
            rule.remove("burst");
        }
    }
    for (name, value) in candidate {
        if name != "rollout" && !value.is_null() {
            rule.insert(name, value);
        }
    }
    let generation = rule.get("generation").and_then(Value::as_u64).unwrap_or(0);
    rule.insert("generation".to_owned(), json!(generation.saturating_add(1)));
}

#[cfg(test)]
mod tests {
    use tollgate_policy::{Quota, RuleLimit, RuleSet};

    use super::*;

    fn limits(rule: &Value, is_candidate: bool) -> Vec<(String, u128, Option<u64>, Vec<u64>)> {
        let text = json!({"rules": [rule], "tiers": ["pro"]}).to_string();
        let set = RuleSet::from_yaml(&text, "t").unwrap_or_else(|error| panic!("{error}: {text}"));
        let quota = |quota: &Quota| quota.limit().map_or(u64::MAX, tollgate_core::Limit::capacity);
        let shown = |limit: &RuleLimit| {
            let tiers = limit.tiers.iter().map(|(_, one)| quota(one)).collect();
            (limit.tag.clone(), limit.salt, limit.base.as_ref().map(quota), tiers)
        };
        let rule = set.rule("r").unwrap();
        rule.limits.iter().filter(|it| it.is_candidate == is_candidate).map(shown).collect()
    }

    /// A promoted candidate has the limits and the counters that it was tried with.
    #[test]
    fn a_promoted_rule_continues_the_counters_of_its_candidate() {
        for (rule, candidate) in [
            (json!({"limit": 10, "window": "60s"}), json!({"limit": 5})),
            (json!({"limit": 10, "window": "60s", "burst": 20}), json!({"limit": 5})),
            (
                json!({"limit": 10, "window": "60s", "burst": 20}),
                json!({"limit": 5, "algorithm": "fixed_window"}),
            ),
            (json!({"limit": 10, "window": "60s"}), json!({"limit": 5, "window_seconds": 10})),
            (
                json!({"limit": 10, "calendar": "day", "timezone": "Europe/Berlin"}),
                json!({"limit": 5}),
            ),
            (
                json!({"limit": 10, "calendar": "month", "timezone": "Europe/Berlin", "anchor_day": 5}),
                json!({"limit": 5, "window": "1h", "algorithm": "sliding_window_log"}),
            ),
            (json!({"limit": 10, "window": "60s"}), json!({"limit": 5, "calendar": "day"})),
            (
                json!({"limit": 10, "window": "60s", "tier_limits": {"pro": 100}}),
                json!({"limit": 5}),
            ),
            (
                json!({"limit": 10, "window": "60s", "tier_limits": {"pro": 100}}),
                json!({"tier_limits": {"pro": 50}}),
            ),
            (
                json!({"limit": 10, "window": "60s", "algorithm": "fixed_window"}),
                json!({"limits": [{"limit": 1, "window": "1s"}, {"limit": 5, "window": "60s"}]}),
            ),
            (
                json!({"limits": [{"limit": 1, "window": "1s"}, {"limit": 5, "window": "60s"}]}),
                json!({"limit": 5, "window": "60s", "rollout": {"percent": 25}}),
            ),
            (json!({"limit": 10, "window": "60s", "generation": 6}), json!({"limit": 5})),
        ] {
            let mut rule = rule;
            rule["rule_id"] = json!("r");
            rule["identifier_type"] = json!("user_id");
            rule["candidate"] = candidate.clone();
            let tried = limits(&rule, true);
            assert!(!tried.is_empty());
            let fields = rule.as_object_mut().unwrap();
            promote(fields, candidate.as_object().unwrap().clone());
            assert_eq!(limits(&rule, false), tried, "{rule}");
            assert_eq!(limits(&rule, true), []);
        }
    }

    #[test]
    fn a_step_replaces_the_rollout_and_keeps_its_salt() {
        let mut rule =
            json!({"candidate": {"limit": 5, "rollout": {"tenants": ["a"], "salt": "s"}}});
        roll_out(rule.as_object_mut().unwrap(), 12.5);
        let expected = json!({"limit": 5, "rollout": {"percent": 12.5, "salt": "s"}});
        assert_eq!(rule["candidate"], expected);
    }
}
