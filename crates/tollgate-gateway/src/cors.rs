//! Pages of other origins that call models: which of them may, and what they may read of the answers.
//!
//! Browsers ask before they send a key or JSON (a preflight), without the key. That is answered here: it reaches no
//! upstream, is charged to nobody, and needs no identity.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tollgate_tower::{Decide, Format, Rejection};

use crate::ai::Protocol;
use crate::body::GatewayBody;
use crate::gateway::ConnectionInfo;
use crate::hygiene;
use crate::respond::own;
use crate::routes::Asking;
use crate::worker::Worker;

/// What is done with models.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");

/// For how long a browser need not ask again, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The longest list of headers that is allowed to a page.
const MAX_LIST_BYTES: usize = 4 * 1_024;

/// What a page may read of an answer, besides what it always may.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
     x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, \
     anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining, \
     anthropic-ratelimit-requests-reset, anthropic-ratelimit-tokens-limit, \
     anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset, request-id, \
     x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, x-ratelimit-policy, \
     x-ratelimit-warning, ratelimit, ratelimit-policy, retry-after, retry-after-ms, \
     x-should-retry, x-request-id, x-tollgate-model",
);

const VARIES: HeaderValue = HeaderValue::from_static("origin");

impl<D: Decide> Worker<D> {
    /// Answers a request where pages of some origins may call models.
    pub(crate) async fn answer_with_cors(
        &self,
        request: Request<Incoming>,
        connection: &ConnectionInfo,
    ) -> Response<GatewayBody> {
        let (mut parts, body) = request.into_parts();
        let Some(protocol) = self.model_api(&mut parts) else {
            return self.serve(Request::from_parts(parts, body), connection).await;
        };
        let origins = &self.gateway.options.cors_origins;
        let asked = parts.headers.get(ORIGIN).cloned();
        let allowed = allowed_origin(&parts.headers, origins);
        if is_preflight(&parts) {
            return own(preflight(&parts.headers, allowed, protocol.format()));
        }
        let mut response = self.serve(Request::from_parts(parts, body), connection).await;
        let headers = response.headers_mut();
        if asked.is_some() {
            remove_foreign(headers);
        }
        headers.append(VARY, VARIES);
        if let Some(origin) = allowed {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
        response
    }

    /// The API of a request for models, or of one that asks whether such may be sent. What cannot be routed has none, and
    /// is refused by the usual way of a request.
    fn model_api(&self, parts: &mut Parts) -> Option<Protocol> {
        let gateway = &self.gateway;
        let method = requested_method(parts).unwrap_or_else(|| parts.method.clone());
        let domain = hygiene::check(parts, gateway.options.max_header_bytes).ok()?;
        let path = hygiene::path(parts).ok()?;
        let asking =
            Asking { domain: domain.as_deref(), path: &path, method: &method, model: None };
        gateway.routes.find(&asking)?.protocol
    }
}

/// The method that a preflight asks about.
fn requested_method(parts: &Parts) -> Option<Method> {
    if !is_preflight(parts) {
        return None;
    }
    let method = parts.headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
    Method::from_bytes(method.as_bytes()).ok()
}

fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key(ORIGIN)
        && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The origin of a request, if its pages may call models.
fn allowed_origin(headers: &HeaderMap, origins: &[String]) -> Option<HeaderValue> {
    let mut stated = headers.get_all(ORIGIN).iter();
    let (origin, None) = (stated.next()?, stated.next()) else { return None };
    let is_it = |listed: &String| listed == "*" || listed.as_bytes() == origin.as_bytes();
    origins.iter().any(is_it).then(|| origin.clone())
}

fn preflight(asked: &HeaderMap, allowed: Option<HeaderValue>, format: Format) -> Response<Bytes> {
    let Some(origin) = allowed else {
        let message = "pages of this origin may not call models: it is not in cors_origins";
        let rejection = Rejection::new(StatusCode::FORBIDDEN, "FOREIGN_ORIGIN", message);
        return rejection.header(VARY, VARIES).into_response(format);
    };
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // Clients send many headers of their own. None of them is a secret of the browser: cookies are not allowed.
    if let Some(list) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|list| is_list(list)) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, list.clone());
    }
    let varies = "origin, access-control-request-method, access-control-request-headers";
    headers.append(VARY, HeaderValue::from_static(varies));
    response
}

/// Whether these are names of headers, and not too many.
fn is_list(list: &HeaderValue) -> bool {
    let is_name = |name: &[u8]| HeaderName::from_bytes(name.trim_ascii()).is_ok();
    list.len() <= MAX_LIST_BYTES && list.as_bytes().split(|byte| *byte == b',').all(is_name)
}

/// Removes what an upstream says about pages: it does not know which of them are meant.
fn remove_foreign(headers: &mut HeaderMap) {
    let is_foreign = |name: &&HeaderName| name.as_str().starts_with("access-control-");
    let foreign: Vec<HeaderName> = headers.keys().filter(is_foreign).cloned().collect();
    for name in foreign {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(line) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn only_listed_origins_are_allowed() {
        let listed = ["https://app.example".to_owned()];
        let allowed = |lines: &[_], origins: &[String]| {
            allowed_origin(&headers(lines), origins).map(|it| it.to_str().unwrap().to_owned())
        };
        let own = ("origin", "https://app.example");
        assert_eq!(allowed(&[own], &listed).as_deref(), Some(own.1));
        assert_eq!(allowed(&[("origin", "https://app.example.evil")], &listed), None);
        assert_eq!(allowed(&[("origin", "null")], &listed), None);
        assert_eq!(allowed(&[own, own], &listed), None);
        assert_eq!(allowed(&[], &listed), None);
        assert_eq!(allowed(&[("origin", "null")], &["*".to_owned()]).as_deref(), Some("null"));
    }

    #[test]
    fn a_preflight_allows_what_clients_send() {
        let asked = headers(&[(
            "access-control-request-headers",
            "authorization,content-type, x-stainless-os",
        )]);
        let origin = Some(HeaderValue::from_static("https://app.example"));
        let response = preflight(&asked, origin.clone(), Format::Json);
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        let allowed = &response.headers()[ACCESS_CONTROL_ALLOW_HEADERS];
        assert_eq!(allowed, "authorization,content-type, x-stainless-os");
        let odd = headers(&[("access-control-request-headers", "a b, c")]);
        assert!(
            !preflight(&odd, origin, Format::Json)
                .headers()
                .contains_key(ACCESS_CONTROL_ALLOW_HEADERS)
        );
        let refused = preflight(&asked, None, Format::Json);
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert!(!refused.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
    }

    #[test]
    fn what_an_upstream_says_about_pages_is_removed() {
        let mut answer = headers(&[
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("content-type", "application/json"),
        ]);
        remove_foreign(&mut answer);
        assert_eq!(answer.len(), 1);
    }
}
