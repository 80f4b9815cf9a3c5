//! The one place where errors and refusals become HTTP responses.

use axum::body::Body;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;
use tollgate_engine::{Decision, EngineError, Reason};

use super::headers::describe;
use super::time::seconds_up;
use super::wire::{ErrorBody, ErrorDetail, RefusalBody, RefusalDetail};
use crate::config::HeaderFamilies;

/// A call that could not be answered.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// The body or a parameter is wrong.
    Invalid { message: String, field: Option<String> },
    /// The body is larger than is taken.
    TooLarge { most: usize },
    /// The body did not arrive in time.
    Slow,
    /// No such path.
    NotFound,
    /// The path takes other methods.
    MethodNotAllowed(&'static str),
    /// A token is missing or wrong.
    Unauthorized,
    /// The engine could not decide.
    Engine(EngineError),
    /// Something went wrong that should not have.
    Internal,
}

impl ApiError {
    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), field: Some(field.to_owned()) }
    }

    fn parts(self) -> (StatusCode, &'static str, String, Option<String>) {
        match self {
            Self::Invalid { message, field } => {
                (StatusCode::BAD_REQUEST, "INVALID_REQUEST", message, field)
            }
            Self::TooLarge { most } => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "PAYLOAD_TOO_LARGE",
                format!("the body is larger than {most} bytes"),
                Some("body".to_owned()),
            ),
            Self::Slow => (
                StatusCode::REQUEST_TIMEOUT,
                "BODY_TIMEOUT",
                "the body did not arrive in time".to_owned(),
                Some("body".to_owned()),
            ),
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "there is nothing here; GET /openapi.json lists the calls".to_owned(),
                None,
            ),
            Self::MethodNotAllowed(allowed) => (
                StatusCode::METHOD_NOT_ALLOWED,
                "METHOD_NOT_ALLOWED",
                format!("this path takes {allowed}"),
                None,
            ),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "UNAUTHORIZED",
                "a bearer token is needed: Authorization: Bearer <token>".to_owned(),
                None,
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "INTERNAL",
                "something went wrong here; the log may say what".to_owned(),
                None,
            ),
            Self::Engine(error @ EngineError::RequestIdReused) => (
                StatusCode::CONFLICT,
                "REQUEST_ID_REUSED",
                error.to_string(),
                Some("requestId".to_owned()),
            ),
            Self::Engine(
                error @ (EngineError::RequestIdInUse | EngineError::RequestIdUnreadable),
            ) => (
                StatusCode::CONFLICT,
                "REQUEST_ID_IN_USE",
                error.to_string(),
                Some("requestId".to_owned()),
            ),
            Self::Engine(error @ EngineError::Store(_)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE", error.to_string(), None)
            }
        }
    }

    pub(crate) fn body(self) -> (StatusCode, ErrorBody) {
        let (status, code, message, field) = self.parts();
        (status, ErrorBody { error: ErrorDetail { code, message, field } })
    }

    pub(crate) fn respond(self) -> Response<Body> {
        let extra = match &self {
            Self::MethodNotAllowed(allowed) => Some((http::header::ALLOW, *allowed)),
            Self::Unauthorized => Some((http::header::WWW_AUTHENTICATE, "Bearer")),
            Self::Engine(EngineError::Store(_) | EngineError::RequestIdInUse) => {
                Some((http::header::RETRY_AFTER, "1"))
            }
            // The rest of an unread body is not waited for.
            Self::TooLarge { .. } | Self::Slow => Some((http::header::CONNECTION, "close")),
            _ => None,
        };
        let (status, body) = self.body();
        let mut response = json(status, &body);
        if let Some((name, value)) = extra {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The most headers a usual answer has.
const HEADERS: usize = 12;

/// A JSON response.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    let mut bytes = Vec::with_capacity(1024);
    if serde_json::to_writer(&mut bytes, body).is_err() {
        // Nothing that is answered here can fail to serialise: maps have string keys, no writer.
        bytes.clear();
    }
    raw(status, JSON, bytes)
}

/// A response with these bytes.
pub(crate) fn raw(
    status: StatusCode,
    content_type: HeaderValue,
    bytes: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(Body::from(bytes.into()));
    *response.status_mut() = status;
    // Room for what describes a decision, so that the map is not grown while it is filled.
    *response.headers_mut() = HeaderMap::with_capacity(HEADERS);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A refusal at the edge: 429, or 403 for the deny list, as the client likes to read it.
pub(crate) fn refusal(
    decision: &Decision<'_>,
    accepted: &HeaderMap,
    on: HeaderFamilies,
) -> Response<Body> {
    let listed = decision.reason == Reason::DenyListed;
    let status = match decision.reason {
        Reason::DenyListed => StatusCode::FORBIDDEN,
        Reason::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::TOO_MANY_REQUESTS,
    };
    let code = match decision.reason {
        Reason::DenyListed
        | Reason::CostExceedsLimit
        | Reason::NoMatch
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
        let mut response = json(status, &body);
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM);
        response
    } else {
        let scope = scope.map(|scope| scope.rule.scope.as_str());
        let message = decision.explain();
        let error = RefusalDetail { code, message, retry_after, rule_id, scope };
        json(status, &RefusalBody { error })
    };
    describe(response.headers_mut(), decision, on);
    response
}

fn accepts_problem(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("application/problem+json"))
}
