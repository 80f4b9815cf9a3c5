//! Limits that a part of a call brings along instead of those of its rules: overrides of Envoy's descriptors.

use std::fmt::Write as _;
use std::sync::LazyLock;

use smallvec::SmallVec;
use tollgate_core::{Algorithm, Limit, LimitSpec, Nanos, Refundable, SECOND, Window};
use tollgate_policy::{Applied, EnvoyOptions, Known, Rule, RuleLimit, RuleSet, Unit};
use tollgate_store::Role;

use crate::decision::Decision;
use crate::limit_checks::{LimitCheck, LimitChecks, max_delay};
use crate::request::Request;

/// A limit that a part brings along, instead of those of its rules.
#[derive(Debug, Clone)]
pub struct LimitOverride {
    limit: Limit,
    window_seconds: u64,
}

/// The windows that an override may have, in seconds: a second to a year.
pub const OVERRIDE_WINDOWS: [u64; 7] = [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000];

impl LimitOverride {
    /// So much per window, which must be one of [`OVERRIDE_WINDOWS`].
    pub fn new(quota: u64, window_seconds: u64) -> Option<Self> {
        let limit = Limit::new(LimitSpec {
            algorithm: Algorithm::FixedWindow,
            quota,
            window: Window::Every(window_seconds.checked_mul(SECOND)?),
            burst: None,
            slot_ttl: 0,
        });
        let is_known = OVERRIDE_WINDOWS.contains(&window_seconds);
        limit.ok().filter(|_| is_known).map(|limit| Self { limit, window_seconds })
    }
}

/// The rules whose counters overrides are counted on, for each window one per way to answer.
static OVERRIDE_RULES: LazyLock<RuleSet> = LazyLock::new(|| {
    let mut text = "default: false\nrules:\n".to_owned();
    for (seconds, answer) in OVERRIDE_WINDOWS.into_iter().flat_map(|it| ANSWERS.map(|a| (it, a))) {
        let id = rule_id(seconds, answer);
        let envoy = answer.map_or_else(String::new, |(charge, allow)| {
            format!(", envoy: {{charge_above_limit: {charge}, allow_check_at_limit: {allow}}}")
        });
        // Writing to memory does not fail.
        let _ = writeln!(
            text,
            "- {{rule_id: {id}, key_by: [domain, descriptor], limit: 1, window_seconds: {seconds}, \
             algorithm: fixed_window{envoy}}}"
        );
    }
    // A unit test holds that these compile.
    RuleSet::from_yaml(&text, "overrides").unwrap_or_else(|_| RuleSet::builtin())
});

/// Whether imported rules charge above their limit, and allow checks at it; none for rules that were
/// written for Tollgate.
type Answer = Option<(bool, bool)>;

const ANSWERS: [Answer; 5] =
    [None, Some((false, false)), Some((false, true)), Some((true, false)), Some((true, true))];

fn answer_of(options: Option<&EnvoyOptions>) -> Answer {
    options.map(|envoy| (envoy.charge_above_limit, envoy.allow_check_at_limit))
}

fn rule_id(seconds: u64, answer: Answer) -> String {
    match answer {
        None => format!("descriptor-override-{seconds}"),
        Some((charge, allow)) => {
            let (charge, allow) = (u8::from(charge), u8::from(allow));
            format!("descriptor-override-{seconds}-envoy-{charge}{allow}")
        }
    }
}

/// Puts the limit that a part brings along in the place of its rule's, on the same counter, if both have
/// the same window. False if they have not.
pub(crate) fn share_counter<'r>(with: &'r LimitOverride, checks: &mut LimitChecks<'r>) -> bool {
    let Some((_, own)) = override_rule(with, None) else { return false };
    // The tag says algorithm and window.
    let is_same =
        |line: &LimitCheck<'_>| line.rule.unit == Unit::Requests && line.limit.tag == own.tag;
    let Some(place) = checks.iter().position(is_same) else { return false };
    let mut line = checks.swap_remove(place);
    checks.clear();
    (line.quota, line.role) = (&with.limit, Role::Must);
    checks.push(line);
    true
}

/// The rule whose counters overrides with this window are counted on, and its limit.
fn override_rule(
    with: &LimitOverride,
    answer: Answer,
) -> Option<(&'static Rule, &'static RuleLimit)> {
    let rule = OVERRIDE_RULES.rule(&rule_id(with.window_seconds, answer))?;
    Some((rule, rule.limits.first()?))
}

/// Counts a part on the limit that it brings along instead of those of its rules. Among imported rules
/// (`options`) it answers as they do.
pub(crate) fn put_override<'r>(
    with: &'r LimitOverride,
    options: Option<&EnvoyOptions>,
    request: &Request<'r>,
    cost: u64,
    decision: &mut Decision<'r>,
    checks: &mut LimitChecks<'r>,
) {
    let Some((rule, limit)) = override_rule(with, answer_of(options)) else { return };
    checks.clear();
    decision.resolution = tollgate_policy::Resolution::default();
    let mut key = SmallVec::new();
    key.push(request.attributes.get(Known::Domain).unwrap_or_default());
    key.extend(request.attributes.extras().iter().flat_map(|(name, value)| [*name, *value]));
    decision.resolution.enforced.push(Applied { rule, key, listed_cost: None });
    let role = Role::Must;
    let (quota, max_delay) = (&with.limit, max_delay(rule));
    checks.push(LimitCheck {
        applied: 0,
        rule,
        limit,
        quota,
        role,
        cost,
        max_delay,
        max_slot_ttl: Nanos::MAX,
        refundable: Refundable::No,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_override_has_a_rule_that_answers_as_the_domain_does() {
        for seconds in OVERRIDE_WINDOWS {
            let with = LimitOverride::new(5, seconds).unwrap();
            for answer in ANSWERS {
                let (rule, limit) = override_rule(&with, answer).unwrap();
                assert_eq!(limit.window_seconds, seconds);
                assert_eq!(answer_of(rule.envoy.as_deref()), answer);
            }
        }
        assert!(LimitOverride::new(5, 2).is_none());
    }
}
