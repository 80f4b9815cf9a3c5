//! The one place where a rejection becomes an HTTP response: our own JSON, `problem+json`, or a gRPC status.
//! `dialect.rs` has those of model APIs.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Serialize;

use crate::dialect::Dialect;
use crate::headers::whole_seconds;
use crate::rejection::{RefusedBy, Rejection};

/// `application/json`
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The most headers a usual response has.
const HEADERS: usize = 12;

/// The format of a response to a rejected request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Our own JSON.
    Json,
    /// `application/problem+json`, where rules refused.
    Problem,
    /// A gRPC status in the headers.
    Grpc,
    /// Errors of a model API.
    Model(Dialect),
}

impl Format {
    /// The format that a client reads, by the headers of its request.
    pub fn of(request: &HeaderMap) -> Self {
        let is_grpc = |kind: &HeaderValue| kind.as_bytes().starts_with(b"application/grpc");
        if request.get(CONTENT_TYPE).is_some_and(is_grpc) {
            Self::Grpc
        } else {
            Self::accepted(request)
        }
    }

    /// The same for a client of HTTP alone.
    pub fn accepted(request: &HeaderMap) -> Self {
        let texts = request.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut texts = texts;
        if texts.any(|value| value.contains("application/problem+json")) {
            Self::Problem
        } else {
            Self::Json
        }
    }
}

impl Rejection {
    /// The response to a client that reads this format.
    pub fn into_response(self, format: Format) -> Response<Bytes> {
        match (format, &self.refused_by) {
            (Format::Model(dialect), _) => dialect.rejected(self),
            (Format::Grpc, _) => grpc(self),
            (Format::Problem, Some(refused_by)) => {
                let body = problem_body(&self, refused_by);
                with_headers(json(self.status, PROBLEM, &body), self)
            }
            (_, Some(refused_by)) => {
                let body = RefusalBody { error: RefusalDetail::new(&self, refused_by) };
                let response = json(self.status, JSON, &body);
                with_headers(response, self)
            }
            (_, None) => {
                let error = serde_json::json!({"code": self.code, "message": self.message});
                let body = serde_json::json!({"error": error});
                with_headers(json(self.status, JSON, &body), self)
            }
        }
    }
}

/// The body of a refusal.
#[derive(Debug, Serialize)]
struct RefusalBody<'a> {
    error: RefusalDetail<'a>,
}

/// Which limit refused, and until when.
#[derive(Debug, Serialize)]
struct RefusalDetail<'a> {
    code: &'a str,
    message: &'a str,
    /// Whole seconds, rounded up.
    retry_after: Option<u64>,
    rule_id: Option<&'a str>,
    scope: Option<&'a str>,
}

impl<'a> RefusalDetail<'a> {
    fn new(rejection: &'a Rejection, refused_by: &'a RefusedBy) -> Self {
        Self {
            code: &rejection.code,
            message: &rejection.message,
            retry_after: retry_seconds(rejection),
            rule_id: refused_by.rule_id.as_deref(),
            scope: refused_by.scope.as_deref(),
        }
    }
}

fn problem_body(rejection: &Rejection, refused_by: &RefusedBy) -> serde_json::Value {
    let is_listed = rejection.status == StatusCode::FORBIDDEN;
    serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": if is_listed { "Refused" } else { "Quota exceeded" },
        "status": rejection.status.as_u16(),
        "detail": rejection.message,
        "code": rejection.code,
        "retry_after": retry_seconds(rejection),
        "violated-policies": refused_by.violated,
    })
}

/// Whole seconds until the request may pass, rounded up, at least 1.
fn retry_seconds(rejection: &Rejection) -> Option<u64> {
    rejection.retry_after.map(|after| whole_seconds(after).max(1))
}

/// Adds the rejection's headers. `Retry-After` of a refusal is among them, if that family is on.
fn with_headers(mut response: Response<Bytes>, rejection: Rejection) -> Response<Bytes> {
    let headers = response.headers_mut();
    if rejection.refused_by.is_none()
        && let Some(seconds) = retry_seconds(&rejection)
    {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    rejection.headers.put_into(headers);
    response
}

/// What gRPC clients read instead of an HTTP status and a body.
fn grpc(rejection: Rejection) -> Response<Bytes> {
    let status = match rejection.status {
        StatusCode::BAD_REQUEST => 3,
        StatusCode::FORBIDDEN => 7,
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::NOT_FOUND => 12,
        StatusCode::UNAUTHORIZED => 16,
        _ => 14,
    };
    let message = percent_encoded(&rejection.message);
    let mut response = with_headers(Response::new(Bytes::new()), rejection);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(status));
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert("grpc-message", message);
    }
    response
}

/// A message as gRPC wants it in a header.
fn percent_encoded(message: &str) -> String {
    use std::fmt::Write as _;

    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

/// An error in our own JSON.
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
