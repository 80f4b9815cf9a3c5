//! From decisions to what Envoy is told.

use std::fmt::Write as _;

use http::HeaderMap;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tollgate_core::{Nanos, Receipt, SECOND};
use tollgate_engine::{Decision, Scope, Together};
use tollgate_proto::envoy::config::core::v3::HeaderValue;
use tollgate_proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use tollgate_store::Role;
use tollgate_tower::headers::{HeaderFamilies, describe, seconds_up};

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

/// The limit that a part is told of: the deciding one, else one that is only reported.
fn told<'a, 'r>(decision: &'a Decision<'r>) -> Option<&'a Scope<'r>> {
    decision.deciding().or_else(|| decision.observed().next())
}

fn status(decision: &Decision<'_>) -> DescriptorStatus {
    let code = code(!decision.is_allowed()) as i32;
    let Some(scope) = told(decision) else {
        // Nothing limits it.
        let limit_remaining = if decision.is_allowed() { u32::MAX } else { 0 };
        return DescriptorStatus { code, limit_remaining, ..DescriptorStatus::default() };
    };
    let status = &scope.outcome.status;
    DescriptorStatus {
        code,
        current_limit: Some(RateLimit {
            name: scope.rule.id.clone(),
            requests_per_unit: u32::try_from(scope.quota).unwrap_or(u32::MAX),
            unit: unit(scope.limit.window_seconds) as i32,
        }),
        limit_remaining: u32::try_from(status.remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(duration(status.reset_at.saturating_sub(decision.now))),
        quota: None,
    }
}

fn duration(nanos: Nanos) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(nanos / SECOND).unwrap_or(i64::MAX),
        nanos: i32::try_from(nanos % SECOND).unwrap_or(0),
    }
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
/// make of the statuses.
fn headers(
    together: &Together<'_>,
    decision: &Decision<'_>,
    families: HeaderFamilies,
) -> Vec<HeaderValue> {
    let mut added = Vec::with_capacity(6);
    let mut add = |key: &str, value: String| {
        added.push(HeaderValue { key: key.to_owned(), value, ..HeaderValue::default() });
    };
    if let Some(scope) = decision.deciding().filter(|_| families.x_ratelimit) {
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
        let until_reset = seconds_up(status.reset_at.saturating_sub(decision.now));
        add("x-ratelimit-limit", limit);
        add("x-ratelimit-remaining", status.remaining.to_string());
        add("x-ratelimit-reset", until_reset.to_string());
    }
    let mut others = HeaderMap::new();
    describe(&mut others, decision, HeaderFamilies { x_ratelimit: false, ..families });
    for (name, value) in &others {
        if let Ok(value) = value.to_str() {
            add(name.as_str(), value.to_owned());
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
    (!fields.is_empty()).then_some(Struct { fields })
}

/// The ids of the rules of these limits, each once; none if there are no limits.
fn rule_ids<'a, 'r: 'a>(scopes: impl Iterator<Item = &'a Scope<'r>>) -> Option<Kind> {
    let mut ids: Vec<&str> = scopes.map(|scope| scope.rule.id.as_str()).collect();
    ids.dedup();
    let value = |id: &str| Value { kind: Some(Kind::StringValue(id.to_owned())) };
    let values: Vec<Value> = ids.into_iter().map(value).collect();
    (!values.is_empty()).then_some(Kind::ListValue(ListValue { values }))
}
