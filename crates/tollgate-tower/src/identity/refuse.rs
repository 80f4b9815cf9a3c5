//! Answers to callers whose credentials are wrong. None repeats what was sent.

#[cfg(feature = "jwt")]
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderValue, WWW_AUTHENTICATE};

use super::address::MalformedHop;
use crate::rejection::Rejection;

/// Boxed, because a rejection is much larger than what is usually returned next to it.
pub(super) type Refused = Box<Rejection>;

#[cfg(feature = "jwt")]
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

/// A virtual key that is not known, or is disabled or expired. Which of them is not said: a guess learns nothing.
pub(super) fn invalid_api_key() -> Refused {
    let message = "this API key is not valid: it is unknown, disabled or expired";
    unauthorized("INVALID_API_KEY", message, "ApiKey")
}

/// Credentials that contradict or cannot be read.
pub(super) fn bad_credentials(message: &str) -> Refused {
    Box::new(Rejection::new(StatusCode::BAD_REQUEST, "INVALID_CREDENTIALS", message.to_owned()))
}

/// A request whose address cannot be known.
pub(super) fn malformed_hop(error: MalformedHop) -> Refused {
    let status = StatusCode::BAD_REQUEST;
    Box::new(Rejection::new(status, "MALFORMED_FORWARDED_ADDRESS", error.to_string()))
}

/// An API key that is longer than any.
pub(super) fn api_key_too_long(message: &str) -> Refused {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    Box::new(Rejection::new(status, "API_KEY_TOO_LONG", message.to_owned()))
}

#[cfg(feature = "jwt")]
/// The keys that would verify a token are not here yet, so it is neither right nor wrong.
pub(super) fn keys_unavailable() -> Refused {
    let message = "the keys that verify tokens are not available";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let rejection = Rejection::new(status, "KEYS_UNAVAILABLE", message);
    Box::new(rejection.retry_after(Duration::from_secs(1)))
}

fn unauthorized(code: &'static str, message: &str, challenge: &str) -> Refused {
    let rejection = Rejection::new(StatusCode::UNAUTHORIZED, code, message.to_owned());
    Box::new(match HeaderValue::try_from(challenge) {
        Ok(challenge) => rejection.header(WWW_AUTHENTICATE, challenge),
        Err(_) => rejection,
    })
}
