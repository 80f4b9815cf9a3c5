//! The one place where errors become HTTP responses; refusals do in [`tollgate_tower::render`].

use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;
use tollgate_engine::{Ending, EngineError};

use super::wire::{ErrorBody, ErrorDetail};

const FOREIGN_ORIGIN: &str =
    "the Origin of this request is neither this host nor listed in cors_origins";

const FOREIGN_HOST: &str = "the Host of this request is not a known name of this server: use its address, or list \
     the name in allowed_hosts";

const BUSY: &str = "too many large bodies and answers wait for their clients (limits.max_buffered_bytes); try again in a moment";

/// A call that could not be answered.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// The body or a parameter is wrong.
    Invalid { message: String, field: Option<String> },
    /// The body is larger than is taken.
    TooLarge { most: usize },
    /// The body did not arrive in time.
    Slow,
    /// Too many bodies and answers wait in memory.
    Busy,
    /// No such path.
    NotFound,
    /// The path takes other methods.
    MethodNotAllowed(&'static str),
    /// A token is missing or wrong.
    Unauthorized,
    /// No virtual key, or one that is not valid.
    InvalidKey,
    /// A certificate is missing.
    NoCertificate,
    /// A page of another site sent the call.
    ForeignOrigin,
    /// A name that may have been pointed here was called.
    ForeignHost,
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
            Self::Busy => {
                (StatusCode::SERVICE_UNAVAILABLE, "TOO_MANY_BYTES", BUSY.to_owned(), None)
            }
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "there is no such path; GET /openapi.json lists the paths".to_owned(),
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
            Self::InvalidKey => (
                StatusCode::UNAUTHORIZED,
                "INVALID_API_KEY",
                "a valid virtual key is needed: Authorization: Bearer tg_live_…".to_owned(),
                None,
            ),
            Self::NoCertificate => (
                StatusCode::UNAUTHORIZED,
                "UNAUTHORIZED",
                "a client certificate is needed".to_owned(),
                None,
            ),
            Self::ForeignOrigin => (
                StatusCode::FORBIDDEN,
                "FOREIGN_ORIGIN",
                FOREIGN_ORIGIN.to_owned(),
                Some("Origin".to_owned()),
            ),
            Self::ForeignHost => (
                StatusCode::FORBIDDEN,
                "FOREIGN_HOST",
                FOREIGN_HOST.to_owned(),
                Some("Host".to_owned()),
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "INTERNAL",
                "something went wrong here; the log may say what".to_owned(),
                None,
            ),
            Self::Engine(error) => engine_parts(&error),
        }
    }

    pub(crate) fn body(self) -> (StatusCode, ErrorBody) {
        let (status, code, message, field) = self.parts();
        (status, ErrorBody { error: ErrorDetail { code, message, field } })
    }

    pub(crate) fn respond(self) -> Response<Body> {
        let extra = match &self {
            Self::MethodNotAllowed(allowed) => Some((http::header::ALLOW, *allowed)),
            Self::Unauthorized | Self::InvalidKey => {
                Some((http::header::WWW_AUTHENTICATE, "Bearer"))
            }
            Self::Busy
            | Self::Engine(
                EngineError::Store(_) | EngineError::RequestIdInUse | EngineError::ReservationsFull,
            ) => Some((http::header::RETRY_AFTER, "1")),
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

/// Status, code, message and field of what the engine refuses to do.
fn engine_parts(error: &EngineError) -> (StatusCode, &'static str, String, Option<String>) {
    match error {
        EngineError::RequestIdReused => (
            StatusCode::CONFLICT,
            "REQUEST_ID_REUSED",
            error.to_string(),
            Some("requestId".to_owned()),
        ),
        EngineError::RequestIdInUse | EngineError::RequestIdUnreadable => (
            StatusCode::CONFLICT,
            "REQUEST_ID_IN_USE",
            error.to_string(),
            Some("requestId".to_owned()),
        ),
        EngineError::ReservationUnknown => (
            StatusCode::NOT_FOUND,
            "RESERVATION_NOT_FOUND",
            error.to_string(),
            Some("reservationId".to_owned()),
        ),
        EngineError::ReservationEnded(ending) => (
            StatusCode::CONFLICT,
            match ending {
                Ending::Settled => "RESERVATION_SETTLED",
                Ending::Released => "RESERVATION_RELEASED",
            },
            error.to_string(),
            Some("reservationId".to_owned()),
        ),
        EngineError::ReservationUnreadable => (
            StatusCode::CONFLICT,
            "RESERVATION_UNREADABLE",
            error.to_string(),
            Some("reservationId".to_owned()),
        ),
        EngineError::OnlySlots => (
            StatusCode::CONFLICT,
            "ONLY_SLOTS",
            error.to_string(),
            Some("reservationId".to_owned()),
        ),
        EngineError::ReservationsFull => {
            (StatusCode::SERVICE_UNAVAILABLE, "RESERVATIONS_FULL", error.to_string(), None)
        }
        EngineError::SlotNotHeld { rule_id } => (
            StatusCode::CONFLICT,
            "SLOT_NOT_HELD",
            format!(
                "rule {rule_id:?} has unit concurrency, and the answer to this call has no id by which its slot \
                 could be released: use POST /rate-limit/reserve or Reserve of tollgate.v1, or a rule of another unit"
            ),
            None,
        ),
        EngineError::Unpriced { .. } | EngineError::UsageWithoutModel { .. } => (
            StatusCode::BAD_REQUEST,
            "UNPRICED_MODEL",
            error.to_string(),
            Some("modelId".to_owned()),
        ),
        EngineError::OtherCurrency { .. } => {
            (StatusCode::BAD_REQUEST, "OTHER_CURRENCY", error.to_string(), Some("money".to_owned()))
        }
        EngineError::ReservationUnpriced => (
            StatusCode::CONFLICT,
            "RESERVATION_UNPRICED",
            error.to_string(),
            Some("money".to_owned()),
        ),
        EngineError::MissingKey { .. } | EngineError::NotReservable => {
            (StatusCode::BAD_REQUEST, "INVALID_REQUEST", error.to_string(), None)
        }
        EngineError::Store(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE", error.to_string(), None)
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

pub(crate) use tollgate_tower::render::JSON;

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
