//! The one place where a refusal becomes an HTTP response.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;
use tollgate_engine::{Decision, Reason};

use crate::headers::{HeaderFamilies, describe, seconds_up};

/// `application/json`
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The most headers a usual answer has.
const HEADERS: usize = 12;

/// A refusal's body.
#[derive(Debug, Serialize)]
struct RefusalBody<'a> {
    error: RefusalDetail<'a>,
}

/// Which limit refused, and until when.
#[derive(Debug, Serialize)]
struct RefusalDetail<'a> {
    code: &'a str,
    message: String,
    /// Whole seconds, rounded up.
    retry_after: Option<u64>,
    rule_id: Option<&'a str>,
    scope: Option<&'a str>,
}

/// A refusal at the edge: 429, or 403 for the deny list, as the client likes to read it.
pub fn refusal(
    decision: &Decision<'_>,
    accepted: &HeaderMap,
    on: HeaderFamilies,
) -> Response<Bytes> {
    let listed = decision.reason == Reason::DenyListed;
    let status = match decision.reason {
        Reason::DenyListed => StatusCode::FORBIDDEN,
        Reason::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Reason::MissingKey => StatusCode::BAD_REQUEST,
        _ => StatusCode::TOO_MANY_REQUESTS,
    };
    let code = match decision.reason {
        Reason::DenyListed
        | Reason::CostExceedsLimit
        | Reason::NoMatch
        | Reason::MissingKey
        | Reason::StoreUnavailable => decision.reason_code(),
        _ => "RATE_LIMIT_EXCEEDED",
    };
    let scope = decision.deciding();
    let retry_after = decision.retry_after().map(|after| seconds_up(after).max(1));
    let rule_id = scope.map(|scope| scope.rule.id.as_str());
    let mut response = if accepts_problem(accepted) {
        let violated: Vec<&str> = decision
            .scopes()
            .filter(|scope| scope.refuses())
            .map(|scope| scope.rule.id.as_str())
            .collect();
        let body = serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": if listed { "Refused" } else { "Quota exceeded" },
            "status": status.as_u16(),
            "detail": decision.explain(),
            "code": code,
            "retry_after": retry_after,
            "violated-policies": violated,
        });
        json(status, PROBLEM, &body)
    } else {
        let scope = scope.map(|scope| scope.rule.scope.as_str());
        let message = decision.explain();
        let error = RefusalDetail { code, message, retry_after, rule_id, scope };
        json(status, JSON, &RefusalBody { error })
    };
    describe(response.headers_mut(), decision, on);
    response
}

/// Something else than a limit stands in the way: the body of section 5.
pub fn problem(status: StatusCode, code: &str, message: &str) -> Response<Bytes> {
    let error = serde_json::json!({"error": {"code": code, "message": message}});
    json(status, JSON, &error)
}

pub(crate) fn json(
    status: StatusCode,
    kind: HeaderValue,
    body: &impl Serialize,
) -> Response<Bytes> {
    // Nothing that is answered here can fail to serialise: maps have string keys, no writer.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Bytes::from(bytes));
    *response.status_mut() = status;
    // Room for what describes a decision, so that the map is not grown while it is filled.
    *response.headers_mut() = HeaderMap::with_capacity(HEADERS);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

pub(crate) fn accepts_problem(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("application/problem+json"))
}

/// What gRPC clients read instead of an HTTP status and a body: a gRPC status in the headers. Answers to
/// other clients stay as they are.
#[must_use]
pub fn for_client(mut response: Response<Bytes>, asked: &HeaderMap) -> Response<Bytes> {
    let is_grpc = asked
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if !is_grpc {
        return response;
    }
    let status = match response.status() {
        StatusCode::BAD_REQUEST => 3,
        StatusCode::FORBIDDEN => 7,
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::NOT_FOUND => 12,
        StatusCode::UNAUTHORIZED => 16,
        _ => 14,
    };
    let message = grpc_message(response.body());
    *response.status_mut() = StatusCode::OK;
    *response.body_mut() = Bytes::new();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(status));
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert("grpc-message", message);
    }
    response
}

/// The message of an error's body, percent-encoded as gRPC wants it.
fn grpc_message(body: &Bytes) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let said = body.pointer("/error/message").or_else(|| body.get("detail"));
    let mut text = String::new();
    for byte in said.and_then(serde_json::Value::as_str).unwrap_or_default().bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => {
                use std::fmt::Write as _;
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}
