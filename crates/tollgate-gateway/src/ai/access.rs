//! Access to a route of models: which callers and calls are served, and which credentials stay here.

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use tollgate_tower::{EdgeRequest, Rejection};

use super::protocol::Protocol;
use crate::headers::remove;

/// Removes what must not reach an upstream of models: the client's own key, and what could make it serve another model.
pub(crate) fn clean_headers(headers: &mut HeaderMap, asked: &EdgeRequest) {
    drop_model_headers(headers);
    keep_own_key(headers, asked);
}

/// A key that is registered here is of no use to an upstream, and none of its business, whatever header it came in.
fn keep_own_key(headers: &mut HeaderMap, asked: &EdgeRequest) {
    let identity = &asked.identity;
    let Some(key) = identity.key_secret.as_ref().or(identity.api_key.as_ref()) else { return };
    let is_it = |value: &HeaderValue| {
        let mut words = value.as_bytes().split(u8::is_ascii_whitespace);
        words.any(|word| word == key.as_bytes())
    };
    let carriers = headers.iter().filter(|(_, value)| is_it(value)).map(|(name, _)| name.clone());
    for name in carriers.collect::<Vec<HeaderName>>() {
        headers.remove(name);
    }
}

/// Headers by which some upstreams choose another model or another server than the body names, or try again unseen; those
/// with "model" in their name are removed in any case.
const MODEL_HEADERS: [&str; 23] = [
    // Azure, Amazon
    "x-amzn-sagemaker-target-variant",
    "x-amzn-sagemaker-inference-component",
    "x-amzn-sagemaker-target-container-hostname",
    // Portkey, Helicone, LiteLLM
    "x-portkey-config",
    "x-portkey-provider",
    "x-portkey-virtual-key",
    "x-portkey-custom-host",
    "x-portkey-azure-deployment-id",
    "x-portkey-azure-resource-name",
    "helicone-fallbacks",
    "helicone-target-url",
    "helicone-openai-api-base",
    "x-litellm-tags",
    // By these, an upstream gives up early and tries again unseen.
    "x-litellm-num-retries",
    "x-litellm-timeout",
    "x-litellm-stream-timeout",
    "x-portkey-request-timeout",
    // Inference gateways in Kubernetes
    "x-gateway-destination-endpoint",
    // By these, frameworks behind a proxy replace the path or the method of a request.
    "x-original-url",
    "x-rewrite-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

/// Removes the headers that could make an upstream serve another model than the one that was decided on.
fn drop_model_headers(headers: &mut HeaderMap) {
    remove(headers, |name| {
        // Programs that get headers as variables cannot tell `_` from `-`.
        let name = name.as_str().replace('_', "-");
        let is_listed = MODEL_HEADERS.contains(&name.as_str());
        is_listed || name.contains("model") || name.starts_with("helicone-retry")
    });
}

/// Removes the query of a call, or keeps the part that cannot change what is called.
pub(crate) fn restrict_query(
    protocol: Protocol,
    parts: &mut Parts,
    is_list: bool,
) -> Result<(), Box<Rejection>> {
    let uri = &parts.uri;
    let kept = protocol.check_query(uri.query(), is_list).map_err(|message| {
        Box::new(Rejection::new(StatusCode::BAD_REQUEST, "UNKNOWN_QUERY", message))
    })?;
    if kept.is_none() && uri.path_and_query().is_some_and(|it| it.as_str().contains('?')) {
        parts.uri = with_path(uri, uri.path(), None);
    }
    Ok(())
}

/// A URI with this path and query. What is no path leaves it as it was.
pub(super) fn with_path(uri: &Uri, path: &str, query: Option<&str>) -> Uri {
    let text = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    let mut changed = uri.clone().into_parts();
    changed.path_and_query = text.parse().ok().or(changed.path_and_query);
    Uri::from_parts(changed).unwrap_or_else(|_| uri.clone())
}

/// What is none of the calls that are known here.
pub(crate) fn unknown_call(protocol: Protocol, parts: &Parts, asked: &EdgeRequest) -> Rejection {
    let path: String = asked.endpoint.as_deref().unwrap_or("/").chars().take(100).collect();
    let (method, served) = (&parts.method, protocol.paths().described);
    let message = format!("{method} {path} is not served here: only {served} are");
    Rejection::new(StatusCode::NOT_FOUND, "UNKNOWN_URL", message)
}

/// To a caller of whom nothing is known.
pub(crate) fn no_key(protocol: Protocol) -> Rejection {
    let (status, message) = (StatusCode::UNAUTHORIZED, protocol.key_hint());
    let rejection = Rejection::new(status, "MISSING_API_KEY", message);
    rejection.header(http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
}
