//! Answers to callers whose credentials are wrong. None repeats what was sent.

use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};

use super::address::MalformedHop;
use crate::refusal::problem;

/// Boxed, because a response is much larger than what is usually returned beside it.
pub(super) type Refused = Box<Response<Bytes>>;

/// A token that does not hold. `message` has no quotes.
pub(super) fn invalid_token(message: &str) -> Refused {
    let challenge = format!("Bearer error=\"invalid_token\", error_description=\"{message}\"");
    unauthorized("INVALID_TOKEN", message, &challenge)
}

/// No token where one is required.
pub(super) fn token_required() -> Refused {
    unauthorized("TOKEN_REQUIRED", "a bearer token is required", "Bearer")
}

/// An API key that nobody has registered.
pub(super) fn unknown_api_key() -> Refused {
    unauthorized("UNKNOWN_API_KEY", "this API key is not known", "ApiKey")
}

/// Credentials that contradict or cannot be read.
pub(super) fn bad_credentials(message: &str) -> Refused {
    Box::new(problem(StatusCode::BAD_REQUEST, "INVALID_CREDENTIALS", message))
}

/// A request whose address cannot be known.
pub(super) fn malformed_hop(error: MalformedHop) -> Refused {
    Box::new(problem(StatusCode::BAD_REQUEST, "MALFORMED_FORWARDED_ADDRESS", &error.to_string()))
}

/// An API key that is longer than any.
pub(super) fn api_key_too_long(message: &str) -> Refused {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    Box::new(problem(status, "API_KEY_TOO_LONG", message))
}

/// The keys that would verify a token are not here yet, so it is neither right nor wrong.
pub(super) fn keys_unavailable() -> Refused {
    let message = "the keys that verify tokens are not available";
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, "KEYS_UNAVAILABLE", message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    Box::new(response)
}

fn unauthorized(code: &str, message: &str, challenge: &str) -> Refused {
    let mut response = problem(StatusCode::UNAUTHORIZED, code, message);
    if let Ok(challenge) = HeaderValue::try_from(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    Box::new(response)
}
