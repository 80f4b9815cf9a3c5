//! The one place where an error becomes an answer. No answer reveals the addresses of upstreams.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, HeaderValue};
use http::{Response, StatusCode};
use tollgate_policy::PathError;
use tollgate_tower::{Format, Rejection};

use crate::body::GatewayBody;

/// After how long to try again where nothing better is known.
const UNKNOWN_RETRY: Duration = Duration::from_secs(1);

/// Why a request is not answered by an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Where the request ends can be read in two ways.
    AmbiguousFraming,
    /// No host, two, or something that is none.
    BadHost,
    /// A path that servers may read differently.
    BadPath(PathError),
    /// The target of the request is not one that a gateway serves.
    BadTarget,
    /// `CONNECT`.
    Connect,
    /// `CONNECT` with a protocol, in HTTP/2.
    ExtendedConnect,
    HeadersTooLarge,
    /// An `Expect` that is not `100-continue`.
    UnknownExpectation,
    NoRoute,
    /// The request has come through this gateway before.
    Loop,
    /// The model is named twice, or not in text.
    BadModel,
    /// Too many requests wait for their turn already.
    TooManyWaiting(Duration),
    /// To be kept for later, but too large for it.
    BodyTooLarge,
    /// As much is held of other requests' bodies as may be.
    TooManyBodies,
    /// The client did not send its body in time.
    ClientTooSlow,
    /// The client's body makes no sense, or broke off.
    BadBody,
    /// No target can be reached.
    NoUpstream,
    /// A target was reached and did not answer in time.
    UpstreamTimeout,
    /// It answered something that is no answer, or hung up.
    BadUpstream,
    /// It compressed its answer, unasked, in a way that cannot be read here.
    UpstreamEncoding,
}

impl Fault {
    /// Whether it is the upstream's, and not the client's or ours.
    pub(crate) const fn is_of_upstream(&self) -> bool {
        matches!(
            self,
            Self::NoUpstream | Self::BadUpstream | Self::UpstreamTimeout | Self::UpstreamEncoding
        )
    }

    fn describe(self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as Status;
        match self {
            Self::AmbiguousFraming => (
                Status::BAD_REQUEST,
                "AMBIGUOUS_FRAMING",
                "the request states the length of its body in several ways, or in an unknown way",
            ),
            Self::BadHost => (
                Status::BAD_REQUEST,
                "INVALID_HOST",
                "the request must name exactly one valid host",
            ),
            Self::BadPath(PathError::TooLong) => {
                (Status::URI_TOO_LONG, "INVALID_PATH", "the path is too long")
            }
            Self::BadPath(PathError::Control) => {
                (Status::BAD_REQUEST, "INVALID_PATH", "the path holds a control character")
            }
            Self::BadPath(PathError::BadEscape) => (
                Status::BAD_REQUEST,
                "INVALID_PATH",
                "the path holds a % that is not followed by two hexadecimal digits",
            ),
            Self::BadPath(PathError::TooManyEncodedSlashes) => (
                Status::BAD_REQUEST,
                "INVALID_PATH",
                "the path holds more than 5 encoded slashes (%2F)",
            ),
            Self::BadTarget | Self::BadPath(PathError::NotAPath) => {
                (Status::BAD_REQUEST, "INVALID_PATH", "the request must name a path")
            }
            Self::Connect => {
                (Status::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", "CONNECT is not supported")
            }
            Self::ExtendedConnect => {
                (Status::NOT_IMPLEMENTED, "NOT_IMPLEMENTED", "extended CONNECT is not supported")
            }
            Self::HeadersTooLarge => (
                Status::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "HEADERS_TOO_LARGE",
                "the request's headers are too large",
            ),
            Self::UnknownExpectation => (
                Status::EXPECTATION_FAILED,
                "EXPECTATION_FAILED",
                "the only supported expectation is 100-continue",
            ),
            Self::NoRoute => (Status::NOT_FOUND, "NO_ROUTE", "no route matches this host and path"),
            Self::Loop => (
                Status::LOOP_DETECTED,
                "LOOP_DETECTED",
                "this request has come through this gateway before",
            ),
            Self::BadModel => {
                (Status::BAD_REQUEST, "INVALID_REQUEST", "the model must be named once, in text")
            }
            Self::TooManyWaiting(_) => (
                Status::TOO_MANY_REQUESTS,
                "TOO_MANY_WAITING",
                "too many requests wait for their turn; try again later",
            ),
            Self::BodyTooLarge => (
                Status::PAYLOAD_TOO_LARGE,
                "BODY_TOO_LARGE",
                "the request would be kept for later, and its body is too large for that",
            ),
            Self::TooManyBodies => (
                Status::SERVICE_UNAVAILABLE,
                "TOO_MANY_BODIES",
                "the bodies of other requests take up all the memory there is for them; try again in a moment",
            ),
            Self::ClientTooSlow => (
                Status::REQUEST_TIMEOUT,
                "REQUEST_TIMEOUT",
                "the request's body did not arrive in time",
            ),
            Self::BadBody => {
                (Status::BAD_REQUEST, "INVALID_BODY", "the request's body cannot be read")
            }
            Self::NoUpstream => (
                Status::SERVICE_UNAVAILABLE,
                "NO_UPSTREAM",
                "the service behind this address cannot be reached",
            ),
            Self::UpstreamTimeout => (
                Status::GATEWAY_TIMEOUT,
                "UPSTREAM_TIMEOUT",
                "the service behind this address did not answer in time",
            ),
            Self::BadUpstream => (
                Status::BAD_GATEWAY,
                "BAD_UPSTREAM",
                "the service behind this address did not answer properly",
            ),
            Self::UpstreamEncoding => (
                Status::BAD_GATEWAY,
                "UNSUPPORTED_ENCODING",
                "the service behind this address compressed its answer, although it was asked not to, in a way that is not known here (gzip and deflate are)",
            ),
        }
    }

    /// What went wrong, in words for clients.
    pub(crate) fn message(self) -> &'static str {
        self.describe().2
    }

    /// The fault as a rejection.
    pub(crate) fn rejection(self) -> Rejection {
        let (status, code, message) = self.describe();
        let rejection = Rejection::new(status, code, message);
        match self {
            // Whatever follows on this connection may be part of what was meant as a body.
            Self::AmbiguousFraming | Self::BadBody | Self::ClientTooSlow => {
                rejection.header(CONNECTION, HeaderValue::from_static("close"))
            }
            Self::Connect => {
                let allowed = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
                rejection.header(ALLOW, HeaderValue::from_static(allowed))
            }
            Self::TooManyWaiting(wait) => rejection.retry_after(wait),
            Self::NoUpstream | Self::TooManyBodies => rejection.retry_after(UNKNOWN_RETRY),
            _ => rejection,
        }
    }
}

/// The answer to a request that is rejected.
pub(crate) fn rejected(rejection: Rejection, format: Format) -> Response<GatewayBody> {
    own(rejection.into_response(format))
}

/// An answer that is ours from beginning to end.
pub(crate) fn own(response: Response<Bytes>) -> Response<GatewayBody> {
    response.map(GatewayBody::full)
}
