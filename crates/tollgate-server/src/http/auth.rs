//! `GET /rate-limit/auth`: the answer is the status, for proxies that ask before they forward.
//!
//! Attributes come from `X-Tollgate-…` headers, which the proxy must set itself: it has to overwrite
//! or drop those of its clients. Path and method are taken from the headers that nginx, Traefik and
//! Caddy use for them.

use std::borrow::Cow;

use axum::body::Body;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use tollgate_engine::Decision;
use tollgate_policy::Known;
use tollgate_store::Store;
use tollgate_tower::headers::describe;
use tollgate_tower::{Dialect, Format, Rejection};

use super::Api;
use super::read::Prepared;
use super::respond::ApiError;
use super::wire::AllowBody;
use crate::callers::CallerId;
use crate::telemetry::latency::{Operation, Timed};

const STATUS: HeaderName = HeaderName::from_static("x-tollgate-status");
const REASON: HeaderName = HeaderName::from_static("x-tollgate-reason");

/// Prefix of free attributes.
const ATTRIBUTE_PREFIX: &str = "x-tollgate-attribute-";

impl<S: Store + 'static> Api<S> {
    pub(crate) async fn auth(
        &self,
        head: &http::request::Parts,
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let _timed = Timed::new(Operation::Auth);
        let refuse_status = refuse_status(head.uri.query().unwrap_or_default())?;
        let rules = self.engine.rules();
        let body = attributes(&head.headers)?;
        let prepared = Prepared::new(&body)?;
        let request = self.resolved(prepared.request(&body, caller), &rules);
        let show = |decision: &Decision<'_>| {
            let mut response = if decision.is_allowed() {
                let mut response = Response::new(Body::empty());
                describe(response.headers_mut(), decision, self.config.headers);
                response
            } else {
                let on = self.config.headers;
                let rejection = Rejection::of(decision, None, Dialect::Plain, on);
                rejection.into_response(Format::accepted(&head.headers)).map(Body::from)
            };
            let status = response.status().as_u16();
            response.headers_mut().insert(STATUS, HeaderValue::from(status));
            if let Ok(reason) = HeaderValue::from_str(decision.reason_code()) {
                response.headers_mut().insert(REASON, reason);
            }
            if !decision.is_allowed()
                && let Some(other) = refuse_status
            {
                *response.status_mut() = other;
            }
            response
        };
        Ok(self.engine.decide_once(&rules, &request, show).await?)
    }
}

/// `?refuse_status=403`: nginx knows no other refusal.
fn refuse_status(query: &str) -> Result<Option<StatusCode>, ApiError> {
    let mut found = None;
    for (name, value) in super::status::pairs(query) {
        if name != "refuse_status" {
            let message = format!("{name:?} is not a parameter of this call");
            return Err(ApiError::invalid(&name, message));
        }
        let status = value.parse::<u16>().ok().and_then(|code| StatusCode::from_u16(code).ok());
        match status.filter(StatusCode::is_client_error) {
            Some(_) if found.is_some() => {
                return Err(ApiError::invalid("refuse_status", "is there more than once"));
            }
            Some(status) => found = Some(status),
            None => return Err(ApiError::invalid("refuse_status", "must be from 400 to 499")),
        }
    }
    Ok(found)
}

fn attributes(headers: &HeaderMap) -> Result<AllowBody<'_>, ApiError> {
    let text = |name: &str| -> Result<Option<Cow<'_, str>>, ApiError> {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        // Of two, one may be the client's own, and nobody can say which.
        if values.next().is_some() {
            return Err(ApiError::invalid(name, "is there more than once"));
        }
        let value =
            value.to_str().map_err(|_| ApiError::invalid(name, "must be printable ASCII"))?.trim();
        Ok((!value.is_empty()).then_some(Cow::Borrowed(value)))
    };
    let number = |name: &str| -> Result<Option<u64>, ApiError> {
        let Some(value) = text(name)? else { return Ok(None) };
        let wrong = |_| ApiError::invalid(name, "must be a whole number, 0 or more");
        value.parse().map(Some).map_err(wrong)
    };
    let mut body = AllowBody::default();
    body.amounts.cost = number("x-tollgate-cost")?;
    body.amounts.tokens = number("x-tollgate-tokens")?;
    for known in Known::ALL {
        let others = match known {
            Known::Endpoint => ["x-original-uri", "x-forwarded-uri"].as_slice(),
            Known::Method => &["x-original-method", "x-forwarded-method"],
            _ => &[],
        };
        // All are read: one that is there twice is refused although another comes before it.
        for name in [known.header()].iter().chain(others) {
            if let Some(value) = text(name)?
                && body.get(known).is_none()
            {
                body.set(known, Some(value));
            }
        }
    }
    for name in headers.keys() {
        if let Some(attribute) = name.as_str().strip_prefix(ATTRIBUTE_PREFIX)
            && let Some(value) = text(name.as_str())?
        {
            let attribute = attribute.replace('-', "_");
            if body.attributes.0.iter().any(|(given, _)| *given == attribute) {
                return Err(ApiError::invalid(name.as_str(), "is there more than once"));
            }
            body.attributes.0.push((Cow::Owned(attribute), value));
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy that adds its header next to its client's must not have the client's read.
    #[test]
    fn headers_that_are_there_twice_are_refused() {
        for name in [
            "x-tollgate-user-id",
            "x-tollgate-ip",
            "x-tollgate-cost",
            "x-original-uri",
            "x-forwarded-method",
            "x-tollgate-attribute-region",
        ] {
            let mut headers = HeaderMap::new();
            headers.append(name, HeaderValue::from_static("1"));
            assert!(attributes(&headers).is_ok(), "{name}");
            headers.append(name, HeaderValue::from_static("1"));
            assert!(attributes(&headers).is_err(), "{name}");
        }
        let mut headers = HeaderMap::new();
        headers.append("x-tollgate-endpoint", HeaderValue::from_static("/a"));
        headers.append("x-original-uri", HeaderValue::from_static("/b"));
        assert_eq!(attributes(&headers).unwrap().get(Known::Endpoint), Some("/a"));
        headers.append("x-original-uri", HeaderValue::from_static("/b"));
        assert!(attributes(&headers).is_err(), "although another comes first");
        let mut headers = HeaderMap::new();
        headers.append("x-tollgate-attribute-a-b", HeaderValue::from_static("1"));
        headers.append("x-tollgate-attribute-a_b", HeaderValue::from_static("2"));
        assert!(attributes(&headers).is_err());
        assert!(refuse_status("refuse_status=403").is_ok());
        assert!(refuse_status("refuse_status=403&refuse_status=429").is_err());
    }
}
