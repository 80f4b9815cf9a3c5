//! Decisions as clients of the Anthropic API read them.

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;
use tollgate_core::Nanos;
use tollgate_engine::Decision;
use tollgate_policy::Unit;

use crate::dialect::{Names, advise_retry, tightest};
use crate::headers::{is_ever_reset, seconds_up};
use crate::openai::INSUFFICIENT_QUOTA;
use crate::rejection::Rejection;
use crate::render::{JSON, json as json_response};

const REQUESTS: Names = [
    HeaderName::from_static("anthropic-ratelimit-requests-limit"),
    HeaderName::from_static("anthropic-ratelimit-requests-remaining"),
    HeaderName::from_static("anthropic-ratelimit-requests-reset"),
];
/// Input and output together.
const TOKENS: Names = [
    HeaderName::from_static("anthropic-ratelimit-tokens-limit"),
    HeaderName::from_static("anthropic-ratelimit-tokens-remaining"),
    HeaderName::from_static("anthropic-ratelimit-tokens-reset"),
];
const INPUT: Names = [
    HeaderName::from_static("anthropic-ratelimit-input-tokens-limit"),
    HeaderName::from_static("anthropic-ratelimit-input-tokens-remaining"),
    HeaderName::from_static("anthropic-ratelimit-input-tokens-reset"),
];
const OUTPUT: Names = [
    HeaderName::from_static("anthropic-ratelimit-output-tokens-limit"),
    HeaderName::from_static("anthropic-ratelimit-output-tokens-remaining"),
    HeaderName::from_static("anthropic-ratelimit-output-tokens-reset"),
];
const UNITS: [(Unit, Names); 4] = [
    (Unit::Requests, REQUESTS),
    (Unit::Tokens, TOKENS),
    (Unit::InputTokens, INPUT),
    (Unit::OutputTokens, OUTPUT),
];

/// What is left of requests and of each kind of tokens, each by the limit of which the least share is left.
pub(crate) fn each_unit(decision: &Decision<'_>, mut put: impl FnMut(HeaderName, HeaderValue)) {
    for (unit, names) in UNITS {
        let (Some(scope), [limit, remaining, reset]) = (tightest(decision, unit), names) else {
            continue;
        };
        let status = &scope.outcome.status;
        put(limit, HeaderValue::from(scope.quota));
        put(remaining, HeaderValue::from(status.remaining));
        if let Some(at) = rfc3339(status.reset_at)
            && is_ever_reset(scope)
        {
            put(reset, at);
        }
    }
}

/// An instant in RFC 3339, rounded up to the second.
fn rfc3339(at: Nanos) -> Option<HeaderValue> {
    let seconds = i64::try_from(seconds_up(at)).ok()?;
    let at = jiff::Timestamp::from_second(seconds).ok()?;
    HeaderValue::try_from(at.to_string()).ok()
}

/// A rejection as an error of this API.
pub(crate) fn rejected(rejection: Rejection) -> Response<Bytes> {
    let Rejection { status, code, message, retry_after, headers, refused_by, .. } = rejection;
    let is_refused = refused_by.is_some();
    // Clients retry by themselves; a budget is not renewed while they do.
    let is_over_budget = status == StatusCode::TOO_MANY_REQUESTS
        && refused_by.is_some_and(|by| by.unit == Some(Unit::Money));
    let retry_after = retry_after.filter(|_| !is_over_budget);
    let status = if is_refused && code == "NO_MATCH" { StatusCode::FORBIDDEN } else { status };
    let message =
        if is_refused { format!("Rate limit reached: {message}.") } else { message.into_owned() };
    let kind = kind_of(status);
    // The API has no type for an exhausted budget. Clients leave fields that they do not know.
    let error = if is_over_budget {
        json!({"type": kind, "code": INSUFFICIENT_QUOTA, "message": message})
    } else {
        json!({"type": kind, "message": message})
    };
    let mut response = json_response(status, JSON, &json!({"type": "error", "error": error}));
    let all = response.headers_mut();
    headers.put_into(all);
    advise_retry(all, status, is_refused, retry_after);
    response
}

/// The type that this API gives errors of a status.
fn kind_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn our_own_errors_get_the_shape_of_this_api() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (408, "invalid_request_error"),
            (413, "request_too_large"),
            (415, "invalid_request_error"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (502, "api_error"),
            (503, "overloaded_error"),
            (504, "timeout_error"),
            (529, "overloaded_error"),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let shaped = rejected(Rejection::new(status, "ANY", "why").param("model"));
            assert_eq!(shaped.status(), status);
            let body: serde_json::Value = serde_json::from_slice(shaped.body()).unwrap();
            assert_eq!(body, json!({"type": "error", "error": {"type": kind, "message": "why"}}));
        }
        let busy = Rejection::new(StatusCode::TOO_MANY_REQUESTS, "MODEL_BUSY", "busy");
        let shaped = rejected(busy.retry_after(Duration::from_millis(1_200)));
        assert_eq!(shaped.headers()["retry-after"], "2");
        assert_eq!(shaped.headers()["retry-after-ms"], "1200");
    }

    #[test]
    fn an_exhausted_budget_is_not_worth_a_retry() {
        let over = Rejection {
            refused_by: Some(crate::RefusedBy {
                unit: Some(Unit::Money),
                ..crate::RefusedBy::default()
            }),
            ..Rejection::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMIT_EXCEEDED", "over")
                .retry_after(Duration::from_secs(9))
        };
        let shaped = rejected(over);
        assert_eq!(shaped.headers()["x-should-retry"], "false");
        assert!(shaped.headers().get("retry-after").is_none());
        let body: serde_json::Value = serde_json::from_slice(shaped.body()).unwrap();
        let kind = (&body["error"]["type"], &body["error"]["code"]);
        assert_eq!(kind, (&json!("rate_limit_error"), &json!("insufficient_quota")));
    }

    #[test]
    fn instants_are_rounded_up_to_the_second() {
        let at = |nanos: Nanos| rfc3339(nanos).unwrap();
        assert_eq!(at(1_700_000_000_000_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(at(1_700_000_000_000_000_001), "2023-11-14T22:13:21Z");
        assert_eq!(rfc3339(Nanos::MAX).unwrap(), "2554-07-21T23:34:34Z");
    }
}
