//! Access to a route of models: which callers and calls are served, and which credentials stay here.

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use tollgate_tower::{EdgeRequest, Rejection};

use super::protocol::Protocol;

/// A key that is registered here is of no use to an upstream, and none of its business, whatever header it came in.
pub(crate) fn keep_own_key(headers: &mut HeaderMap, asked: &EdgeRequest) {
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
const MODEL_HEADERS: [HeaderName; 23] = [
    // Azure, Amazon
    HeaderName::from_static("x-amzn-sagemaker-target-variant"),
    HeaderName::from_static("x-amzn-sagemaker-inference-component"),
    HeaderName::from_static("x-amzn-sagemaker-target-container-hostname"),
    // Portkey, Helicone, LiteLLM
    HeaderName::from_static("x-portkey-config"),
    HeaderName::from_static("x-portkey-provider"),
    HeaderName::from_static("x-portkey-virtual-key"),
    HeaderName::from_static("x-portkey-custom-host"),
    HeaderName::from_static("x-portkey-azure-deployment-id"),
    HeaderName::from_static("x-portkey-azure-resource-name"),
    HeaderName::from_static("helicone-fallbacks"),
    HeaderName::from_static("helicone-target-url"),
    HeaderName::from_static("helicone-openai-api-base"),
    HeaderName::from_static("x-litellm-tags"),
    // By these, an upstream gives up early and tries again unseen.
    HeaderName::from_static("x-litellm-num-retries"),
    HeaderName::from_static("x-litellm-timeout"),
    HeaderName::from_static("x-litellm-stream-timeout"),
    HeaderName::from_static("x-portkey-request-timeout"),
    // Inference gateways in Kubernetes
    HeaderName::from_static("x-gateway-destination-endpoint"),
    // By these, frameworks behind a proxy replace the path or the method of a request.
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
];

/// Removes the headers that could make an upstream serve another model than the one that was decided on.
pub(super) fn drop_model_headers(headers: &mut HeaderMap) {
    for name in &MODEL_HEADERS {
        headers.remove(name);
    }
    let names_model = |name: &&HeaderName| {
        let name = name.as_str();
        name.contains("model") || name.starts_with("helicone-retry")
    };
    let further: Vec<HeaderName> = headers.keys().filter(names_model).cloned().collect();
    for name in further {
        headers.remove(name);
    }
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
