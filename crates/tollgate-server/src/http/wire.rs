//! The bodies of the decision calls, as they are on the wire.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollgate_core::Nanos;
use tollgate_engine::{Decision, Scope, Settled};
use tollgate_policy::Unit;
use utoipa::ToSchema;

pub(crate) use super::allow_body::AllowBody;
use super::amounts_body::{AmountsBody, MoneyBody, MoneyFigures, OtherUnits, UsageBody};
use super::time::Rfc3339;

/// The small form.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CheckBody<'a> {
    /// The user.
    #[serde(borrow)]
    #[schema(value_type = String, max_length = 256, example = "user-1")]
    pub(crate) user_id: Cow<'a, str>,
    /// The model.
    #[serde(borrow)]
    #[schema(value_type = String, max_length = 256, example = "gpt4")]
    pub(crate) model_id: Cow<'a, str>,
}

/// Several requests, decided in order, each for itself.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchBody<'a> {
    /// At most 1,000.
    #[serde(borrow)]
    pub(crate) requests: Vec<AllowBody<'a>>,
}

/// Names and values in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Pairs<'a>(pub(crate) Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;

        #[derive(Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of names to strings")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Pairs::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Pairs::default();
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    pairs.0.push((name, value));
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_any(PairsVisitor)
    }
}

/// What was decided, and why.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DecisionBody<'a, 'r> {
    /// Whether the request may go on.
    allowed: bool,
    /// `WITHIN_LIMITS`, `HIT_<SCOPE>_LIMIT`, `COST_EXCEEDS_LIMIT`, `THROTTLED`, `DENY_LISTED`,
    /// `ALLOW_LISTED`, `NO_MATCH`, `ENFORCEMENT_OFF`, or, with status 503, `STORE_UNAVAILABLE`.
    #[schema(example = "HIT_DEFAULT_LIMIT")]
    reason: &'a str,
    /// The scope that refused.
    scope_hit: Option<&'a str>,
    /// The rule whose limit decided.
    rule_id: Option<&'a str>,
    /// The limit a caller should know as its own.
    effective_limit: Option<u64>,
    /// How many more of cost 1 the deciding limit would pass now.
    remaining: Option<u64>,
    /// When the deciding limit is reset.
    #[schema(value_type = Option<String>, format = DateTime)]
    reset_at: Option<Rfc3339>,
    /// When the same request would pass, absent other traffic; absent if never.
    retry_after_ms: Option<u64>,
    /// How long to wait before going on.
    wait_ms: u64,
    /// Soft limits that are reached.
    warnings: Vec<String>,
    /// True when a fallback answered.
    degraded: bool,
    /// Why it did, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded_reason: Option<String>,
    /// Rules that would have refused it, were they enforced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    would_deny: Vec<WouldDenyBody<'a>>,
    /// What a rule asks to be done with a refused request: `reject` or `queue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'a str>,
    /// Why, in a sentence; on refusals.
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<String>,
    /// Names the reservation, or the slot that a concurrency rule holds for this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation_id: Option<String>,
    /// When a reservation is settled at its estimate unless something else was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Rfc3339>,
    /// The version of the rule set that decided; one set decides a whole request.
    rules_version: u64,
    /// Beside status 503, so that the answer reads as an error too.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorDetail>,
    /// Every enforced limit, after the decision.
    #[schema(value_type = Vec<ScopeBody>)]
    scopes: Scopes<'a, 'r>,
}

/// A limit that would have refused.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WouldDenyBody<'a> {
    name: &'a str,
    rule_id: &'a str,
    reason: &'a str,
}

/// One limit.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScopeBody<'a> {
    /// The scope.
    name: &'a str,
    rule_id: &'a str,
    limit: u64,
    /// The most that can be used at once, where a bucket's burst is not its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    /// How much is used.
    current: u64,
    remaining: u64,
    #[schema(value_type = String, format = DateTime)]
    reset_at: Rfc3339,
    window_seconds: u64,
    /// The figures of a limit of unit money as decimals; the figures above are in 1e-9 of a unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    money: Option<MoneyFigures>,
}

/// The limits of a decision, written as a list without being collected first.
struct Scopes<'a, 'r>(&'a Decision<'r>);

impl fmt::Debug for Scopes<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scopes")
    }
}

impl Serialize for Scopes<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.scopes().map(scope_body))
    }
}

fn scope_body<'a>(scope: &'a Scope<'_>) -> ScopeBody<'a> {
    let status = &scope.outcome.status;
    ScopeBody {
        name: &scope.rule.scope,
        rule_id: &scope.rule.id,
        limit: scope.quota,
        burst: (scope.capacity != scope.quota).then_some(scope.capacity),
        current: status.used,
        remaining: status.remaining,
        reset_at: Rfc3339(status.reset_at),
        window_seconds: scope.limit.window_seconds,
        money: MoneyFigures::of(scope),
    }
}

/// Milliseconds, rounded up: at that time it passes, not just before.
pub(crate) const fn millis_up(nanos: Nanos) -> u64 {
    nanos.div_ceil(1_000_000)
}

// Decisions are written by `decision_json`; this form is the description, and what that is tested by.
#[cfg(test)]
impl<'a, 'r> DecisionBody<'a, 'r> {
    pub(crate) fn new(decision: &'a Decision<'r>) -> Self {
        let deciding = decision.deciding();
        let refused = !decision.is_allowed();
        let would_deny = decision.would_deny().map(|scope| WouldDenyBody {
            name: &scope.rule.scope,
            rule_id: &scope.rule.id,
            reason: &scope.rule.reason,
        });
        Self {
            allowed: !refused,
            reason: decision.reason_code(),
            scope_hit: deciding.filter(|_| refused).map(|scope| scope.rule.scope.as_str()),
            rule_id: deciding.map(|scope| scope.rule.id.as_str()),
            effective_limit: decision.effective_limit(),
            remaining: deciding.map(|scope| scope.outcome.status.remaining),
            reset_at: deciding.map(|scope| Rfc3339(scope.outcome.status.reset_at)),
            retry_after_ms: decision.retry_after().map(millis_up),
            wait_ms: millis_up(decision.wait),
            warnings: decision
                .warnings()
                .map(|warning| tollgate_tower::headers::warning_text(&warning))
                .collect(),
            degraded: decision.degraded.is_some(),
            degraded_reason: decision.degraded_reason(),
            would_deny: would_deny.collect(),
            action: match decision.verdict {
                tollgate_engine::Verdict::Denied => Some("reject"),
                tollgate_engine::Verdict::Queued => Some("queue"),
                _ => None,
            },
            explanation: refused.then(|| decision.explain()),
            reservation_id: decision.reservation_id().map(|id| format!("{id:032x}")),
            expires_at: decision.reservation.map(|held| Rfc3339(held.expires_at)),
            rules_version: decision.rules_version,
            error: (decision.reason == tollgate_engine::Reason::StoreUnavailable).then(|| {
                let message = decision.explain();
                ErrorDetail { code: "STORE_UNAVAILABLE", message, field: None }
            }),
            scopes: Scopes(decision),
        }
    }
}

/// The true cost of a reservation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SettleBody<'a> {
    /// What `reserve` answered.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 32, max_length = 32)]
    pub(crate) reservation_id: Cow<'a, str>,
    /// What it cost on rules of unit tokens; as estimated if absent.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub(crate) tokens: Option<u64>,
    /// What it cost on rules of unit cost; as estimated if absent.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub(crate) cost: Option<u64>,
    /// What it cost on rules of unit `input_tokens`; as estimated if absent.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    input_tokens: Option<u64>,
    /// What it cost on rules of unit `output_tokens`; as estimated if absent.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    output_tokens: Option<u64>,
    /// What it cost on rules of unit `cached_tokens`; as estimated if absent.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    cached_tokens: Option<u64>,
    /// What it cost on rules of unit money; if absent, the price of the usage, else as estimated.
    #[serde(default, borrow)]
    money: Option<MoneyBody<'a>>,
    /// What it used. Money is priced by it, at the price when it was reserved.
    #[serde(default)]
    usage: Option<UsageBody>,
}

impl<'a> SettleBody<'a> {
    pub(crate) fn amounts(&self) -> AmountsBody<'a> {
        AmountsBody {
            cost: self.cost,
            tokens: self.tokens,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cached_tokens: self.cached_tokens,
            money: self.money.clone(),
            usage: self.usage,
        }
    }
}

/// A reservation or a slot that is no longer needed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ReleaseBody<'a> {
    /// What `reserve` or `allow` answered.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 32, max_length = 32)]
    pub(crate) reservation_id: Cow<'a, str>,
}

/// A reservation or a slot that is still needed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RenewBody<'a> {
    /// What `reserve` or `allow` answered.
    #[serde(borrow)]
    #[schema(value_type = String, min_length = 32, max_length = 32)]
    pub(crate) reservation_id: Cow<'a, str>,
    /// How long from now on; its own lifetime again if absent.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86_400_000_i64)]
    pub(crate) ttl_ms: Option<u64>,
}

/// What settling did; the same however often it is asked for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SettledBody {
    settled: bool,
    /// Tokens that were reserved and not used.
    refunded_tokens: u64,
    /// Tokens that were used beyond what was reserved; they are charged, above the limit if need be.
    extra_tokens: u64,
    refunded_cost: u64,
    extra_cost: u64,
    /// What was given back in other units; those of 0 are absent.
    #[serde(skip_serializing_if = "OtherUnits::is_empty")]
    refunded: OtherUnits,
    /// What was used beyond what was reserved in other units.
    #[serde(skip_serializing_if = "OtherUnits::is_empty")]
    extra: OtherUnits,
}

impl SettledBody {
    pub(crate) fn new(settled: &Settled) -> Self {
        let Settled { refunded, extra } = settled;
        Self {
            settled: true,
            refunded_tokens: refunded.of(Unit::Tokens),
            extra_tokens: extra.of(Unit::Tokens),
            refunded_cost: refunded.of(Unit::Cost),
            extra_cost: extra.of(Unit::Cost),
            refunded: OtherUnits::new(refunded),
            extra: OtherUnits::new(extra),
        }
    }
}

/// What releasing did; the same however often it is asked for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReleasedBody {
    released: bool,
    refunded_tokens: u64,
    refunded_cost: u64,
    /// What was given back in other units; those of 0 are absent.
    #[serde(skip_serializing_if = "OtherUnits::is_empty")]
    refunded: OtherUnits,
}

impl ReleasedBody {
    pub(crate) fn new(released: &Settled) -> Self {
        let refunded = &released.refunded;
        Self {
            released: true,
            refunded_tokens: refunded.of(Unit::Tokens),
            refunded_cost: refunded.of(Unit::Cost),
            refunded: OtherUnits::new(refunded),
        }
    }
}

/// What renewing did.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RenewedBody {
    /// False if a slot of it had expired.
    pub(crate) renewed: bool,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) expires_at: Rfc3339,
}

/// The answer of the small form.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckedBody {
    allowed: bool,
    /// The deciding limit; absent if none applies.
    #[schema(example = 100)]
    limit: Option<u64>,
    /// How much of it is used.
    #[schema(example = 1)]
    count: u64,
    #[schema(example = 3600)]
    window_seconds: Option<u64>,
}

impl CheckedBody {
    pub(crate) fn new(decision: &Decision<'_>) -> Self {
        let deciding = decision.deciding();
        Self {
            allowed: decision.is_allowed(),
            limit: deciding.map(|scope| scope.quota),
            count: deciding.map_or(0, |scope| scope.outcome.status.used),
            window_seconds: deciding.map(|scope| scope.limit.window_seconds),
        }
    }
}

/// The answers of a batch, in order; an error stands where a request could not be decided.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "a shape for the API description; answers are written one by one")]
pub(crate) struct BatchAnswer<'a, 'r> {
    decisions: Vec<BatchItem<'a, 'r>>,
}

/// A decision, or why there is none.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "nobody makes one")]
#[expect(dead_code, reason = "a shape for the API description; answers are written one by one")]
pub(crate) enum BatchItem<'a, 'r> {
    Decision(DecisionBody<'a, 'r>),
    Error(ErrorBody),
}

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorDetail,
}

/// What is wrong, where, and what to do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorDetail {
    /// `INVALID_REQUEST`, `PAYLOAD_TOO_LARGE`, …
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// Which field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
}

/// A refusal at the edge.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RefusalBody<'a> {
    pub(crate) error: RefusalDetail<'a>,
}

/// Which limit refused, and until when.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RefusalDetail<'a> {
    #[schema(example = "RATE_LIMIT_EXCEEDED")]
    pub(crate) code: &'a str,
    pub(crate) message: String,
    /// Whole seconds, rounded up.
    pub(crate) retry_after: Option<u64>,
    pub(crate) rule_id: Option<&'a str>,
    pub(crate) scope: Option<&'a str>,
}

/// The limits of a client.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusBody {
    #[schema(example = "user-1")]
    pub(crate) client_id: String,
    pub(crate) limits: Vec<StatusLimit>,
}

/// One limit of a client.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusLimit {
    pub(crate) rule_id: String,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) reset_at: Rfc3339,
    pub(crate) window_seconds: u64,
}
