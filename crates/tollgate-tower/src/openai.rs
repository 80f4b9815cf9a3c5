//! Decisions as clients of the OpenAI API read them.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;
use tollgate_engine::Decision;
use tollgate_policy::Unit;

use crate::dialect::{Names, advise_retry, tightest};
use crate::headers::is_ever_reset;
use crate::rejection::Rejection;
use crate::render::{JSON, json as json_response};

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

/// The code and the type of a refusal by a budget that is exhausted.
pub(crate) const INSUFFICIENT_QUOTA: &str = "insufficient_quota";

/// What is left of requests and of tokens, each by the limit of which the least share is left.
pub(crate) fn each_unit(decision: &Decision<'_>, mut put: impl FnMut(HeaderName, HeaderValue)) {
    for (unit, names) in [(Unit::Requests, REQUESTS), (Unit::Tokens, TOKENS)] {
        let (Some(scope), [limit, remaining, reset]) = (tightest(decision, unit), names) else {
            continue;
        };
        let status = &scope.outcome.status;
        put(limit, HeaderValue::from(scope.quota));
        put(remaining, HeaderValue::from(status.remaining));
        let until = Duration::from_nanos(status.reset_at.saturating_sub(decision.now));
        if let Ok(until) = HeaderValue::try_from(duration(until))
            && is_ever_reset(scope)
        {
            put(reset, until);
        }
    }
}

/// A length of time as this API writes it: `6m0s`, `1.2s`, `20ms`. Rounded up to the millisecond.
fn duration(length: Duration) -> String {
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

/// A rejection as an error of this API.
pub(crate) fn rejected(rejection: Rejection) -> Response<Bytes> {
    let Rejection { status, code, message, retry_after, headers, param, refused_by } = rejection;
    let is_refused = refused_by.is_some();
    let (status, code) = match &*code {
        "NO_MATCH" if is_refused => (StatusCode::FORBIDDEN, "no_match".to_owned()),
        "COST_EXCEEDS_LIMIT" if is_refused => (status, "rate_limit_exceeded".to_owned()),
        code => (status, code.to_ascii_lowercase()),
    };
    let unit = refused_by.and_then(|refused_by| refused_by.unit);
    let is_over_budget = status == StatusCode::TOO_MANY_REQUESTS && unit == Some(Unit::Money);
    let code = if is_over_budget { INSUFFICIENT_QUOTA.to_owned() } else { code };
    let kind = match (status, unit) {
        _ if is_over_budget => INSUFFICIENT_QUOTA,
        (StatusCode::TOO_MANY_REQUESTS, Some(unit)) if unit.counts_usage() => "tokens",
        (status, _) => kind_of(status),
    };
    let message =
        if is_refused { format!("Rate limit reached: {message}.") } else { message.into_owned() };
    let body = json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
    let mut response = json_response(status, JSON, &body);
    let all = response.headers_mut();
    headers.put_into(all);
    // Clients retry by themselves; a budget is not renewed while they do.
    let retry_after = retry_after.filter(|_| !is_over_budget);
    advise_retry(all, status, is_refused, retry_after);
    response
}

/// The type that this API gives errors of a status.
fn kind_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "requests",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use http::header::RETRY_AFTER;

    use super::*;
    use crate::dialect::SHOULD_RETRY;

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
    fn an_exhausted_budget_is_not_worth_a_retry() {
        let refused = |unit| Rejection {
            refused_by: Some(crate::RefusedBy { unit: Some(unit), ..crate::RefusedBy::default() }),
            ..Rejection::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMIT_EXCEEDED", "over")
                .retry_after(Duration::from_secs(9))
        };
        let shaped = rejected(refused(Unit::Money));
        let body: serde_json::Value = serde_json::from_slice(shaped.body()).unwrap();
        assert_eq!(body["error"]["code"], "insufficient_quota");
        assert_eq!(body["error"]["type"], "insufficient_quota");
        assert_eq!(shaped.headers()[SHOULD_RETRY], "false");
        assert!(!shaped.headers().contains_key(RETRY_AFTER));
        let shaped = rejected(refused(Unit::OutputTokens));
        let body: serde_json::Value = serde_json::from_slice(shaped.body()).unwrap();
        assert_eq!(body["error"]["type"], "tokens");
        assert_eq!(shaped.headers()[RETRY_AFTER], "9");
    }

    #[test]
    fn our_own_errors_get_the_shape_of_this_api() {
        let ours = Rejection::new(StatusCode::UNAUTHORIZED, "UNKNOWN_API_KEY", "who?");
        let shaped = rejected(ours);
        assert_eq!(shaped.status(), StatusCode::UNAUTHORIZED);
        let body: serde_json::Value = serde_json::from_slice(shaped.body()).unwrap();
        let expected = json!({"error": {"message": "who?", "type": "authentication_error",
            "param": null, "code": "unknown_api_key"}});
        assert_eq!(body, expected);
        assert!(!shaped.headers().contains_key("x-should-retry"));
    }
}
