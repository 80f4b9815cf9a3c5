//! An answer: what was decided, and why.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer};

use crate::date::rfc3339;
use crate::error::ClientError;

/// What was decided, and why. Top-level figures are those of the limit that decided.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// Whether the request may go on.
    pub allowed: bool,
    /// `WITHIN_LIMITS`, `HIT_<SCOPE>_LIMIT`, `COST_EXCEEDS_LIMIT`, `THROTTLED`, `DENY_LISTED`, and so on.
    pub reason: String,
    /// The scope that refused.
    #[serde(default)]
    pub scope_hit: Option<String>,
    /// The rule whose limit decided.
    #[serde(default)]
    pub rule_id: Option<String>,
    /// The limit a caller should know as its own.
    #[serde(default)]
    pub effective_limit: Option<u64>,
    /// How many more of cost 1 would pass now.
    #[serde(default)]
    pub remaining: Option<u64>,
    /// When the limit's counter is reset.
    #[serde(default, deserialize_with = "instant")]
    pub reset_at: Option<SystemTime>,
    /// After how long the same request would pass, absent other traffic. None if it never would.
    #[serde(default, rename = "retryAfterMs", deserialize_with = "maybe_millis")]
    pub retry_after: Option<Duration>,
    /// How long to wait before going on.
    #[serde(default, rename = "waitMs", deserialize_with = "millis")]
    pub wait: Duration,
    /// Soft limits that are reached.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Whether a fallback answered.
    #[serde(default)]
    pub degraded: bool,
    /// Why it did, and how.
    #[serde(default)]
    pub degraded_reason: Option<String>,
    /// Rules that would have refused it, were they enforced.
    #[serde(default)]
    pub would_deny: Vec<WouldDeny>,
    /// What the rule asks to be done with a refused request: `reject` or `queue`.
    #[serde(default)]
    pub action: Option<String>,
    /// Why, in a sentence; on refusals.
    #[serde(default)]
    pub explanation: Option<String>,
    /// Names the reservation, or the slot that a concurrency rule holds for this request.
    #[serde(default)]
    pub reservation_id: Option<String>,
    /// The version of the rule set that decided.
    #[serde(default)]
    pub rules_version: u64,
    /// Every enforced limit, after the decision.
    #[serde(default)]
    pub scopes: Vec<Scope>,
    /// Whether it was known here already, and nobody was asked.
    #[serde(skip)]
    pub is_cached: bool,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scope {
    /// The scope.
    pub name: String,
    /// The rule.
    pub rule_id: String,
    /// How much is allowed per window.
    pub limit: u64,
    /// The most that can be used at once, where that is not the limit.
    #[serde(default)]
    pub burst: Option<u64>,
    /// How much is used.
    pub current: u64,
    /// How many more of cost 1 would pass now.
    pub remaining: u64,
    /// When its counter is reset.
    #[serde(default, deserialize_with = "instant")]
    pub reset_at: Option<SystemTime>,
    /// How long a window is; 0 for slots.
    pub window_seconds: u64,
}

/// A limit that would have refused.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WouldDeny {
    /// The scope.
    pub name: String,
    /// The rule.
    pub rule_id: String,
    /// What the reason would have been.
    pub reason: String,
}

/// What is assumed where nobody answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// Requests go on.
    Open,
    /// Requests are refused.
    #[default]
    Closed,
}

impl Decision {
    /// What is assumed without an answer. A request that was called wrong is refused either way: a caller
    /// must not get past by sending nonsense.
    pub fn assumed(policy: OnFailure, error: &ClientError) -> Self {
        let allowed = policy == OnFailure::Open && error.is_outage();
        let reason = if allowed { "CLIENT_FAIL_OPEN" } else { "CLIENT_FAIL_CLOSED" };
        Self {
            allowed,
            reason: reason.to_owned(),
            degraded: true,
            degraded_reason: Some(error.to_string()),
            ..Self::default()
        }
    }

    /// The limit that decided, among [`scopes`](Self::scopes).
    pub fn deciding(&self) -> Option<&Scope> {
        let rule_id = self.rule_id.as_deref()?;
        let of_rule = || self.scopes.iter().filter(|scope| scope.rule_id == rule_id);
        let decides = |scope: &&Scope| {
            Some(scope.remaining) == self.remaining && scope.reset_at == self.reset_at
        };
        of_rule().find(decides).or_else(|| of_rule().next())
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.explanation {
            Some(explanation) => f.write_str(explanation),
            None => f.write_str(&self.reason),
        }
    }
}

fn millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

fn maybe_millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
}

pub(crate) fn instant<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SystemTime>, D::Error> {
    // A time that cannot be read is no reason to lose the decision.
    Ok(Option::<String>::deserialize(deserializer)?.as_deref().and_then(rfc3339))
}
