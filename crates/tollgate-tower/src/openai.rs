//! Decisions as clients of the OpenAI API read them.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tollgate_core::Nanos;
use tollgate_engine::{Decision, Reason, Scope};
use tollgate_policy::Unit;

use crate::decide::{Line, Refused};
use crate::headers::{HeaderFamilies, describe as describe_families};
use crate::refusal::{JSON, json as response};

/// The three headers of one unit: limit, remaining, reset.
type Names = [HeaderName; 3];

const REQUESTS: Names = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: Names = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The header that says that a retry is of no use.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Adds what is left of requests and of tokens, each by the limit of which the least share is left.
pub fn describe(headers: &mut HeaderMap, decision: &Decision<'_>) {
    for (unit, names) in [(Unit::Requests, &REQUESTS), (Unit::Tokens, &TOKENS)] {
        let of_unit = decision.scopes().filter(|scope| scope.rule.unit == unit);
        let tightest =
            of_unit.reduce(|one, other| if is_tighter(other, one) { other } else { one });
        let (Some(scope), [limit, remaining, reset]) = (tightest, names) else { continue };
        let status = &scope.outcome.status;
        headers.insert(limit, HeaderValue::from(scope.quota));
        headers.insert(remaining, HeaderValue::from(status.remaining));
        let until = Duration::from_nanos(status.reset_at.saturating_sub(decision.now));
        if let Ok(until) = HeaderValue::try_from(duration(until)) {
            headers.insert(reset, until);
        }
    }
}

fn is_tighter(one: &Scope<'_>, other: &Scope<'_>) -> bool {
    let share = |one: &Scope<'_>, of: &Scope<'_>| {
        u128::from(one.outcome.status.remaining) * u128::from(of.capacity.max(1))
    };
    share(one, other) < share(other, one)
}

/// A length of time as this API writes it: `6m0s`, `1.2s`, `20ms`. Rounded up to the millisecond.
pub fn duration(length: Duration) -> String {
    let millis = length.as_nanos().div_ceil(1_000_000);
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let (seconds, millis) = (millis / 1_000, millis % 1_000);
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(text, "{minutes}m");
    }
    let _ = write!(text, "{seconds}");
    if millis > 0 {
        let _ = write!(text, ".{millis:03}");
        text.truncate(text.trim_end_matches('0').len());
    }
    text.push('s');
    text
}

/// A refusal: 429, 403 for the deny list, 503 where the store is away.
pub fn refusal(decision: &Decision<'_>, line: Option<Line>, on: HeaderFamilies) -> Response<Bytes> {
    let (status, code) = match decision.reason {
        Reason::DenyListed => (StatusCode::FORBIDDEN, "deny_listed"),
        Reason::StoreUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
        Reason::NoMatch => (StatusCode::FORBIDDEN, "no_match"),
        Reason::MissingKey => (StatusCode::BAD_REQUEST, "missing_key"),
        _ => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded"),
    };
    let unit = decision.deciding().map(|scope| scope.rule.unit);
    let kind = match (status, unit) {
        (StatusCode::TOO_MANY_REQUESTS, Some(Unit::Tokens)) => "tokens",
        (StatusCode::TOO_MANY_REQUESTS, _) => "requests",
        (status, _) => kind_of(status),
    };
    let message = format!("Rate limit reached: {}.", decision.explain());
    let mut response = error(status, kind, Some(code), &message, None);
    let headers = response.headers_mut();
    describe_families(headers, decision, on);
    describe(headers, decision);
    match decision.retry_after() {
        Some(after) => retry_after(headers, after),
        // What can never pass, or is not let in, is not worth another try.
        None if status != StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        None => retry_after(headers, tollgate_core::SECOND),
    }
    if let Some(scope) = decision.deciding() {
        let rule_id = scope.rule.id.clone();
        response.extensions_mut().insert(Refused { rule_id, line });
    }
    response
}

fn retry_after(headers: &mut HeaderMap, after: Nanos) {
    headers.insert(RETRY_AFTER, HeaderValue::from(crate::headers::seconds_up(after).max(1)));
    headers.insert(RETRY_AFTER_MS, HeaderValue::from(after.div_ceil(1_000_000).max(1)));
}

/// Says when to try again.
pub fn try_again(response: &mut Response<Bytes>, after: Duration) {
    let nanos = Nanos::try_from(after.as_nanos()).unwrap_or(Nanos::MAX);
    retry_after(response.headers_mut(), nanos);
}

/// An error in this API's shape.
pub fn error(
    status: StatusCode,
    kind: &str,
    code: Option<&str>,
    message: &str,
    param: Option<&str>,
) -> Response<Bytes> {
    let body = json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
    response(status, JSON, &body)
}

/// What this API calls errors of a status.
pub fn kind_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "requests",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

/// An answer of our own, whose error is in our shape, in this API's.
#[must_use]
pub fn reshape(answer: Response<Bytes>) -> Response<Bytes> {
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let said = |name: &str| body.get("error").and_then(|error| error.get(name));
    // It has this shape already.
    if said("type").is_some() {
        return answer;
    }
    let status = answer.status();
    let detail = body.get("detail").and_then(Value::as_str);
    let message = said("message").and_then(Value::as_str).or(detail);
    let code = said("code").or_else(|| body.get("code")).and_then(Value::as_str);
    let code = code.map(str::to_ascii_lowercase);
    let message = message.or(status.canonical_reason()).unwrap_or("refused");
    let mut shaped = error(status, kind_of(status), code.as_deref(), message, None);
    for (name, value) in answer.headers() {
        if !shaped.headers().contains_key(name) {
            shaped.headers_mut().append(name.clone(), value.clone());
        }
    }
    *shaped.extensions_mut() = answer.extensions().clone();
    shaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_clients_read_them() {
        for (millis, text) in [
            (0, "0ms"),
            (20, "20ms"),
            (1_000, "1s"),
            (1_200, "1.2s"),
            (8_640, "8.64s"),
            (360_000, "6m0s"),
            (61_001, "1m1.001s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(duration(Duration::from_nanos(1)), "1ms", "rounded up");
    }

    #[test]
    fn our_own_errors_get_the_shape_of_this_api() {
        let ours = crate::refusal::problem(StatusCode::UNAUTHORIZED, "UNKNOWN_API_KEY", "who?");
        let shaped = reshape(ours);
        assert_eq!(shaped.status(), StatusCode::UNAUTHORIZED);
        let body: Value = serde_json::from_slice(shaped.body()).unwrap();
        let expected = json!({"error": {"message": "who?", "type": "authentication_error",
            "param": null, "code": "unknown_api_key"}});
        assert_eq!(body, expected);
        assert_eq!(reshape(shaped.clone()).body(), shaped.body(), "once is enough");
    }
}
