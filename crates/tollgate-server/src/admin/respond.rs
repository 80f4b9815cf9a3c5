//! The one place where admin answers and errors become HTTP.

use axum::body::Body;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderName, Response, StatusCode};
use serde::Serialize;
use serde_json::Value;
use tollgate_control::{ControlError, FieldProblem, RepositoryError};
use tollgate_engine::EngineError;
use utoipa::ToSchema;

use super::tenant_changes::MAX_TENANT_CHANGES;
use crate::http::respond::{ApiError, json};

/// How long to wait for a database that is away.
const DATABASE_RETRY_SECONDS: &str = "2";

/// What is wrong, as RFC 9457 has it. `error` says the same as the errors of decision calls do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProblemBody {
    /// `about:blank`: the status says what kind of problem it is.
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Everything that is wrong, where it is more than one thing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<ProblemField>,
    error: ProblemError,
}

/// One thing that is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProblemField {
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    message: String,
}

/// The same as in decision calls.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProblemError {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

/// Why an admin call failed.
#[derive(Debug)]
pub(crate) enum AdminError {
    Control(ControlError),
    /// No token, or none that holds.
    Unauthorized,
    /// The token may not do this.
    Forbidden(String),
    /// Too many wrong tokens.
    Damped {
        seconds: u64,
    },
    /// Too many changes of a tenant's admins.
    TooManyChanges {
        seconds: u64,
    },
    /// Too many searches of tenants' admins.
    TooManySearches,
    NotFound,
    /// The queue has no such request.
    NoTicket,
    /// The queue cannot be read or written.
    QueueUnavailable,
    MethodNotAllowed(String),
    /// The state of this node does not allow it.
    Conflict(Obstacle, String),
    /// Too many at once.
    Busy,
    Api(ApiError),
}

/// What about the state of a node is in the way of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The rules come from a file.
    RulesFromFile,
    /// There is no queue.
    NoQueue,
    /// The request with this ticket is in a state that does not allow the change.
    TicketState,
    /// The log does not change its level.
    LogLevelFixed,
}

impl Obstacle {
    const fn code(self) -> &'static str {
        match self {
            Self::RulesFromFile => "RULES_FROM_FILE",
            Self::NoQueue => "NO_QUEUE",
            Self::TicketState => "TICKET_STATE",
            Self::LogLevelFixed => "LOG_LEVEL_FIXED",
        }
    }
}

impl From<ControlError> for AdminError {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

impl From<RepositoryError> for AdminError {
    fn from(error: RepositoryError) -> Self {
        Self::Control(error.into())
    }
}

impl From<ApiError> for AdminError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

impl From<EngineError> for AdminError {
    fn from(error: EngineError) -> Self {
        Self::Api(error.into())
    }
}

/// Whether the database failed, and not the call.
const fn is_unusable(error: &RepositoryError) -> bool {
    match error {
        RepositoryError::Unavailable(_)
        | RepositoryError::Stale
        | RepositoryError::ReadOnly(_)
        | RepositoryError::DiskFull(_)
        | RepositoryError::Corrupt(_)
        | RepositoryError::NewerSchema { .. } => true,
        RepositoryError::Conflict { .. } | RepositoryError::Invalid(_) => false,
    }
}

/// What a caller reads of it. The driver's words may name hosts and users; they are for the log.
fn unusable_text(error: &RepositoryError) -> &'static str {
    tracing::warn!(%error, "an admin call failed");
    match error {
        RepositoryError::ReadOnly(_) => "the database is read-only; decisions go on",
        RepositoryError::DiskFull(_) => "the disk of the database is full; decisions go on",
        RepositoryError::Corrupt(_) | RepositoryError::NewerSchema { .. } => {
            "the database cannot be used; decisions go on, and the log of this node has the cause"
        }
        _ => "the database is not available; decisions go on",
    }
}

impl AdminError {
    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::Control(ControlError::invalid(field, message))
    }

    fn parts(self) -> (StatusCode, &'static str, Vec<FieldProblem>) {
        let one = |message: String| vec![FieldProblem { field: None, message }];
        match self {
            Self::Control(ControlError::Invalid(problems)) => {
                (StatusCode::BAD_REQUEST, "INVALID_REQUEST", problems)
            }
            Self::Control(ControlError::Repository(RepositoryError::Invalid(problem))) => {
                (StatusCode::BAD_REQUEST, "INVALID_REQUEST", one(problem))
            }
            Self::Control(error @ ControlError::NotFound(..)) => {
                (StatusCode::NOT_FOUND, "NOT_FOUND", one(error.to_string()))
            }
            Self::Control(error @ ControlError::Removed(_)) => {
                (StatusCode::GONE, "VERSION_REMOVED", one(error.to_string()))
            }
            Self::Control(error @ ControlError::Conflict(_)) => {
                (StatusCode::CONFLICT, "CONFLICT", one(error.to_string()))
            }
            Self::Control(error @ ControlError::PreconditionFailed { .. }) => {
                (StatusCode::PRECONDITION_FAILED, "PRECONDITION_FAILED", one(error.to_string()))
            }
            Self::Control(ControlError::Repository(error)) if is_unusable(&error) => {
                let message = unusable_text(&error).to_owned();
                (StatusCode::SERVICE_UNAVAILABLE, "DATABASE_UNAVAILABLE", one(message))
            }
            Self::Control(error) => {
                tracing::error!(%error, "an admin call failed");
                let message = "something went wrong here; the log says what".to_owned();
                (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", one(message))
            }
            Self::Unauthorized => {
                let message = "an admin token is needed: Authorization: Bearer <token>";
                (StatusCode::UNAUTHORIZED, "UNAUTHORIZED", one(message.to_owned()))
            }
            Self::Forbidden(message) => (StatusCode::FORBIDDEN, "FORBIDDEN", one(message)),
            Self::Damped { seconds } => {
                let message = format!("too many wrong tokens: wait {seconds} s");
                (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_ATTEMPTS", one(message))
            }
            Self::TooManyChanges { seconds } => {
                let message = format!(
                    "a tenant makes {MAX_TENANT_CHANGES} changes a minute: wait {seconds} s"
                );
                (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_CHANGES", one(message))
            }
            Self::TooManySearches => {
                let message = "a tenant searches decisions once at a time, and few tenants at the same time: \
                               try again, or narrow the time range";
                (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_SEARCHES", one(message.to_owned()))
            }
            Self::NotFound => {
                let message = "there is no such admin call; GET /openapi.json lists them";
                (StatusCode::NOT_FOUND, "NOT_FOUND", one(message.to_owned()))
            }
            Self::NoTicket => {
                let message = "the queue has no request with this ticket";
                (StatusCode::NOT_FOUND, "NOT_FOUND", one(message.to_owned()))
            }
            Self::QueueUnavailable => {
                let message = "the queue is not available; GET node and the log have the cause";
                (StatusCode::SERVICE_UNAVAILABLE, "QUEUE_UNAVAILABLE", one(message.to_owned()))
            }
            Self::MethodNotAllowed(allowed) => {
                let message = format!("this path takes {allowed}");
                (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", one(message))
            }
            Self::Conflict(obstacle, message) => {
                (StatusCode::CONFLICT, obstacle.code(), one(message))
            }
            Self::Busy => {
                let message = "too many at once; try again later".to_owned();
                (StatusCode::SERVICE_UNAVAILABLE, "BUSY", one(message))
            }
            Self::Api(error) => {
                let (status, body) = error.body();
                let detail = body.error;
                let problem = FieldProblem { field: detail.field, message: detail.message };
                (status, detail.code, vec![problem])
            }
        }
    }

    pub(crate) fn respond(self) -> Response<Body> {
        let text = |text: String| HeaderValue::try_from(text).ok();
        let extra: Option<(HeaderName, Option<HeaderValue>)> = match &self {
            Self::Unauthorized => {
                Some((WWW_AUTHENTICATE, Some(HeaderValue::from_static("Bearer"))))
            }
            Self::Damped { seconds } | Self::TooManyChanges { seconds } => {
                Some((RETRY_AFTER, text(seconds.to_string())))
            }
            Self::TooManySearches => Some((RETRY_AFTER, Some(HeaderValue::from_static("1")))),
            Self::MethodNotAllowed(allowed) => Some((ALLOW, text(allowed.clone()))),
            Self::Control(ControlError::Repository(error)) if is_unusable(error) => {
                Some((RETRY_AFTER, Some(HeaderValue::from_static(DATABASE_RETRY_SECONDS))))
            }
            Self::QueueUnavailable | Self::Busy => {
                Some((RETRY_AFTER, Some(HeaderValue::from_static(DATABASE_RETRY_SECONDS))))
            }
            Self::Control(ControlError::PreconditionFailed { have }) if have != "none" => {
                Some((ETAG, text(have.clone())))
            }
            Self::Api(ApiError::TooLarge { .. } | ApiError::Slow) => {
                Some((http::header::CONNECTION, Some(HeaderValue::from_static("close"))))
            }
            _ => None,
        };
        let (status, code, problems) = self.parts();
        let first = problems.first().cloned();
        let field = first.as_ref().and_then(|first| first.field.clone());
        let message = first.map(|first| first.message).unwrap_or_default();
        let detail = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let errors = problems.into_iter();
        let errors = errors.map(|one| ProblemField { field: one.field, message: one.message });
        let body = ProblemBody {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail,
            code,
            field: field.clone(),
            errors: errors.collect(),
            error: ProblemError { code, message, field },
        };
        let mut response = json(status, &body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((name, Some(value))) = extra {
            headers.insert(name, value);
        }
        response
    }
}

/// An answer to an admin call.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
    /// The version of what is answered.
    pub(crate) tag: Option<i64>,
    /// Where what was made is.
    pub(crate) location: Option<String>,
}

impl Answer {
    pub(crate) const fn ok(body: Value) -> Self {
        Self { status: StatusCode::OK, body, tag: None, location: None }
    }

    pub(crate) fn tagged(self, tag: i64) -> Self {
        Self { tag: Some(tag), ..self }
    }

    pub(crate) fn respond(self) -> Response<Body> {
        let mut response = json(self.status, &self.body);
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(tag) = self.tag.and_then(|tag| HeaderValue::try_from(format!("\"{tag}\"")).ok())
        {
            headers.insert(ETAG, tag);
        }
        if let Some(place) = self.location.and_then(|place| HeaderValue::try_from(place).ok()) {
            headers.insert(LOCATION, place);
        }
        response
    }
}
