//! From decisions to responses for Envoy.

use std::fmt::Write as _;

use http::HeaderMap;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tollgate_core::{Algorithm, Nanos, Receipt};
use tollgate_engine::{Decision, Scope, Together};
use tollgate_proto::envoy::config::core::v3::HeaderValue;
use tollgate_proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use tollgate_store::Role;
use tollgate_tower::headers::{HeaderFamilies, describe, seconds_up};

/// The field of the dynamic metadata that holds the metadata of rules, as envoyproxy/ratelimit sends it.
const RULE_METADATA: &str = "metadata";

/// The end of a `RateLimit` header whose limit is reset already.
const AT_ONCE: &str = ";t=0";

/// The answer to a request whose descriptors were decided together.
pub(crate) fn response(together: &Together<'_>, families: HeaderFamilies) -> RateLimitResponse {
    let deciding = deciding(together);
    let decision = deciding.and_then(|place| together.parts.get(place));
    RateLimitResponse {
        overall_code: code(together.is_over) as i32,
        statuses: together.parts.iter().map(status).collect(),
        response_headers_to_add: decision
            .map(|decision| headers(together, decision, families))
            .unwrap_or_default(),
        dynamic_metadata: metadata(together, deciding),
        ..RateLimitResponse::default()
    }
}

const fn code(is_over: bool) -> Code {
    if is_over { Code::OverLimit } else { Code::Ok }
}

/// The limit that a status describes: the deciding one, else one that is only reported.
pub(crate) fn reported<'a, 'r>(decision: &'a Decision<'r>) -> Option<&'a Scope<'r>> {
    decision.deciding().or_else(|| decision.observed().next())
}

/// Whether a descriptor is over its own limits. The request may pass all the same: where another member of
/// the quota group has room, and where enforcement is off or in shadow.
fn is_over(decision: &Decision<'_>) -> bool {
    let mut group = decision.scopes().filter(|scope| scope.role == Role::AnyOf).peekable();
    let is_group_over = group.peek().is_some() && group.all(Scope::refuses);
    let mut alone = decision.scopes().filter(|scope| scope.role == Role::Must);
    !decision.is_allowed() || is_group_over || alone.any(Scope::refuses)
}

fn status(decision: &Decision<'_>) -> DescriptorStatus {
    let is_over = is_over(decision);
    let code = code(is_over) as i32;
    let Some(scope) = reported(decision) else {
        // Nothing limits it.
        let limit_remaining = if is_over { 0 } else { u32::MAX };
        return DescriptorStatus { code, limit_remaining, ..DescriptorStatus::default() };
    };
    let status = &scope.outcome.status;
    let remaining = if is_over { 0 } else { status.remaining };
    DescriptorStatus {
        code,
        current_limit: Some(RateLimit {
            name: name(scope).to_owned(),
            requests_per_unit: u32::try_from(scope.quota).unwrap_or(u32::MAX),
            unit: unit(scope.limit.window_seconds) as i32,
        }),
        limit_remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(duration(until_reset(scope, decision.now, is_over))),
        quota: None,
    }
}

/// What Envoy calls the limit: imported ones have the name of their file, if any.
fn name<'a>(scope: &'a Scope<'_>) -> &'a str {
    match &scope.rule.envoy {
        Some(envoy) => envoy.name.as_deref().unwrap_or_default(),
        None => &scope.rule.id,
    }
}

/// The algorithms that count by aligned windows.
const ALIGNED: [&str; 2] = [Algorithm::FixedWindow.name(), Algorithm::SlidingWindowCounter.name()];

/// Whole seconds until the limit is reset, rounded up. Never 0 on a refusal, which clients would take for
/// "at once". A counter that nothing was counted in has the rest of its window, as in envoyproxy/ratelimit: a limit of 0, a
/// cost above the limit, a call that only checks.
fn until_reset(scope: &Scope<'_>, now: Nanos, is_over: bool) -> u64 {
    let reset_at = scope.outcome.status.reset_at;
    let is_aligned = ALIGNED.iter().any(|algorithm| scope.limit.tag.starts_with(algorithm));
    let reset_at =
        if reset_at <= now && (is_over || is_aligned) { scope.window_end(now) } else { reset_at };
    seconds_up(reset_at.saturating_sub(now)).max(u64::from(is_over))
}

fn duration(seconds: u64) -> prost_types::Duration {
    prost_types::Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

/// The unit of a window that is one.
const fn unit(window_seconds: u64) -> Unit {
    match window_seconds {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        86_400 => Unit::Day,
        604_800 => Unit::Week,
        2_592_000 => Unit::Month,
        31_536_000 => Unit::Year,
        _ => Unit::Unknown,
    }
}

/// Which part speaks for all: if the request is refused, the one with the longest wait among those
/// that refuse it; else the one with the least share remaining.
fn deciding(together: &Together<'_>) -> Option<usize> {
    let parts = together.parts.iter().enumerate();
    if together.is_over {
        let refusing = parts.filter(|(_, decision)| !decision.is_allowed());
        // Never is longer than any wait.
        let wait = |decision: &Decision<'_>| decision.retry_after().unwrap_or(Nanos::MAX);
        return refusing.max_by_key(|(_, decision)| wait(decision)).map(|(place, _)| place);
    }
    let limited = parts.filter_map(|(place, decision)| Some((place, decision.deciding()?)));
    let share = |scope: &Scope<'_>| {
        u128::from(scope.outcome.status.remaining) * u128::from(u32::MAX)
            / u128::from(scope.capacity.max(1))
    };
    limited.min_by_key(|(_, scope)| share(scope)).map(|(place, _)| place)
}

/// The headers that Envoy adds to its answer. The `x-ratelimit` ones are those that Envoy itself would
/// make of the statuses. For imported rules they are left to Envoy (`enable_x_ratelimit_headers`), as
/// envoyproxy/ratelimit does: both would send them twice.
fn headers(
    together: &Together<'_>,
    decision: &Decision<'_>,
    families: HeaderFamilies,
) -> Vec<HeaderValue> {
    let mut added = Vec::with_capacity(6);
    let mut add = |key: &str, value: String| {
        added.push(HeaderValue { key: key.to_owned(), value, ..HeaderValue::default() });
    };
    let is_ours = |scope: &&Scope<'_>| families.x_ratelimit && scope.rule.envoy.is_none();
    if let Some(scope) = decision.deciding().filter(is_ours) {
        let status = &scope.outcome.status;
        let mut limit = scope.quota.to_string();
        for scope in together.parts.iter().filter_map(Decision::deciding) {
            let window_seconds = scope.limit.window_seconds;
            let _ = write!(limit, ", {};w={window_seconds};name=\"", scope.quota);
            let is_plain =
                |letter: &char| matches!(letter, ' '..='~') && !matches!(letter, '"' | '\\');
            limit.extend(
                scope.rule.id.chars().map(|letter| if is_plain(&letter) { letter } else { '_' }),
            );
            limit.push('"');
        }
        let is_over = is_over(decision);
        let remaining = if is_over { 0 } else { status.remaining };
        add("x-ratelimit-limit", limit);
        add("x-ratelimit-remaining", remaining.to_string());
        add("x-ratelimit-reset", until_reset(scope, decision.now, is_over).to_string());
    }
    let mut others = HeaderMap::new();
    describe(&mut others, decision, HeaderFamilies { x_ratelimit: false, ..families });
    for (name, value) in &others {
        let Ok(value) = value.to_str() else { continue };
        let start = match decision.deciding() {
            // It names no time.
            Some(scope) if scope.quota == 0 => Some(value),
            _ => value.strip_suffix(AT_ONCE),
        };
        match (start, decision.deciding()) {
            (Some(start), Some(scope)) if name == "ratelimit" => {
                let seconds = until_reset(scope, decision.now, is_over(decision));
                add(name.as_str(), format!("{start};t={seconds}"));
            }
            _ => add(name.as_str(), value.to_owned()),
        }
    }
    added
}

/// What later filters and access logs may want to know.
fn metadata(together: &Together<'_>, deciding: Option<usize>) -> Option<Struct> {
    let mut fields = Struct::default().fields;
    let mut put = |name: &str, kind: Kind| {
        fields.insert(name.to_owned(), Value { kind: Some(kind) });
    };
    if let Some(place) = deciding
        && let Some(decision) = together.parts.get(place)
    {
        // Descriptors are few.
        let number = f64::from(u32::try_from(place).unwrap_or(u32::MAX));
        put("descriptor", Kind::NumberValue(number));
        put("reason", Kind::StringValue(decision.reason_code().to_owned()));
        if let Some(scope) = decision.deciding() {
            put("ruleId", Kind::StringValue(scope.rule.id.clone()));
            put("scope", Kind::StringValue(scope.rule.scope.clone()));
        }
    }
    let paid =
        |scope: &&Scope<'_>| scope.role == Role::AnyOf && scope.outcome.receipt != Receipt::Nothing;
    let parts = || together.parts.iter();
    let paid = parts().flat_map(|decision| decision.scopes().filter(paid));
    if let Some(list) = rule_ids(paid) {
        put("quotaPaidBy", list);
    }
    if let Some(list) = rule_ids(parts().flat_map(Decision::would_deny)) {
        put("wouldDeny", list);
    }
    if let Some(reason) = parts().find_map(Decision::degraded_reason) {
        put("degraded", Kind::StringValue(reason));
    }
    if let Some(own) = rule_metadata(together) {
        put(RULE_METADATA, Kind::StructValue(own));
    }
    (!fields.is_empty()).then_some(Struct { fields })
}

/// The metadata of the rules whose descriptors are within their limits, merged.
fn rule_metadata(together: &Together<'_>) -> Option<Struct> {
    let within = together.parts.iter().filter(|decision| !is_over(decision)).filter_map(reported);
    let mut merged = Struct::default();
    for envoy in within.filter_map(|scope| scope.rule.envoy.as_ref()) {
        merge(&mut merged, &envoy.metadata);
    }
    (!merged.fields.is_empty()).then_some(merged)
}

/// Adds fields that are not there yet. Structs under the same name are merged; of other values the first
/// counts.
fn merge(into: &mut Struct, fields: &serde_json::Map<String, serde_json::Value>) {
    for (name, value) in fields {
        match into.fields.get_mut(name).map(|known| &mut known.kind) {
            Some(Some(Kind::StructValue(known))) => {
                if let serde_json::Value::Object(fields) = value {
                    merge(known, fields);
                }
            }
            Some(_) => {}
            None => {
                into.fields.insert(name.clone(), Value { kind: Some(to_kind(value)) });
            }
        }
    }
}

/// A value of a rule's metadata. How deep it nests is bounded where rules are read.
fn to_kind(value: &serde_json::Value) -> Kind {
    let wrapped = |value: &serde_json::Value| Value { kind: Some(to_kind(value)) };
    match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(flag) => Kind::BoolValue(*flag),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Array(items) => {
            Kind::ListValue(ListValue { values: items.iter().map(wrapped).collect() })
        }
        serde_json::Value::Object(fields) => Kind::StructValue(Struct {
            fields: fields.iter().map(|(name, value)| (name.clone(), wrapped(value))).collect(),
        }),
    }
}

/// The ids of the rules of these limits, each once; none if there are no limits.
fn rule_ids<'a, 'r: 'a>(scopes: impl Iterator<Item = &'a Scope<'r>>) -> Option<Kind> {
    let mut ids: Vec<&str> = scopes.map(|scope| scope.rule.id.as_str()).collect();
    ids.dedup();
    let value = |id: &str| Value { kind: Some(Kind::StringValue(id.to_owned())) };
    let values: Vec<Value> = ids.into_iter().map(value).collect();
    (!values.is_empty()).then_some(Kind::ListValue(ListValue { values }))
}
