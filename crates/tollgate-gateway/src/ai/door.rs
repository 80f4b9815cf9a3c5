//! Who and what is let in at a route of models, and what stays here.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use tollgate_tower::Asked;
use tollgate_tower::openai::{error, kind_of};

/// A key that is registered here is of no use to an upstream, and none of its business, whatever header it came in.
pub(crate) fn keep_own_key(headers: &mut HeaderMap, asked: &Asked) {
    let Some(key) = &asked.identity.api_key else { return };
    let is_it = |value: &HeaderValue| {
        let mut words = value.as_bytes().split(u8::is_ascii_whitespace);
        words.any(|word| word == key.as_bytes())
    };
    let tell_it = headers.iter().filter(|(_, value)| is_it(value)).map(|(name, _)| name.clone());
    for name in tell_it.collect::<Vec<HeaderName>>() {
        headers.remove(name);
    }
}

/// Whether it is asked which models there are, or about one of them.
pub(super) fn is_list(parts: &Parts, asked: &Asked) -> bool {
    let path = asked.endpoint.as_deref().unwrap_or("/").trim_end_matches('/');
    let is_name = |name: &str| {
        // What another server may read as a way out of here is no name.
        let mut bytes = name.bytes();
        bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-._~:/@+".contains(&byte))
            && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
    };
    let named = || path.rsplit_once("/models/").is_some_and(|(_, name)| is_name(name));
    parts.method == Method::GET && (path.ends_with("/models") || named())
}

/// What is none of the calls that are known here.
pub(crate) fn unknown_call(parts: &Parts, asked: &Asked) -> Response<Bytes> {
    let path: String = asked.endpoint.as_deref().unwrap_or("/").chars().take(100).collect();
    let message = format!(
        "{} {path} is not served here: only chat/completions, completions, embeddings, responses \
         and models are",
        parts.method
    );
    let (status, kind) = (StatusCode::NOT_FOUND, "invalid_request_error");
    error(status, kind, Some("unknown_url"), &message, None)
}

/// To a caller of whom nothing is known.
pub(crate) fn no_key() -> Response<Bytes> {
    let status = StatusCode::UNAUTHORIZED;
    let message = "You didn't provide an API key: send yours as `Authorization: Bearer …`.";
    let mut response = error(status, kind_of(status), Some("missing_api_key"), message, None);
    let bearer = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(http::header::WWW_AUTHENTICATE, bearer);
    response
}
