//! A request for a model as its upstream gets it.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request};

use super::access::with_path;
use super::paths::CallPath;
use crate::body::RequestBody;

/// A request for a model, read whole.
pub(super) struct ModelRequest {
    pub(super) call: CallPath,
    /// The path, normalised.
    pub(super) path: String,
    pub(super) parts: Parts,
    pub(super) body: Bytes,
}

impl ModelRequest {
    /// The model that the path names, where it does.
    pub(super) fn path_model(&self) -> Option<&str> {
        self.call.model.clone().and_then(|range| self.path.get(range))
    }

    /// The same once more, for another model. The body is shared.
    pub(super) fn again(&self) -> Self {
        let Self { call, path, parts, body } = self;
        let (call, path, parts) = (call.clone(), path.clone(), parts.clone());
        Self { call, path, parts, body: body.clone() }
    }

    /// The request as the upstream gets it that knows the model as `name`, with this body if it must be another.
    pub(super) fn outgoing(
        self,
        name: Option<&str>,
        rewritten: Option<Vec<u8>>,
    ) -> Request<RequestBody> {
        let Self { call, path, mut parts, body } = self;
        if let Some(path) = name.and_then(|name| call.with_model(&path, name)) {
            parts.uri = with_path(&parts.uri, &path, parts.uri.query());
        }
        // One of the two is enough.
        let body = rewritten.map_or(body, Bytes::from);
        prepare(&mut parts.headers, body.len());
        Request::from_parts(parts, RequestBody::from(body))
    }
}

/// What a request's headers must state about a body that was read here, and about answers that are read here.
fn prepare(headers: &mut HeaderMap, length: usize) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.remove(CONTENT_ENCODING);
    // The body was read as JSON. An upstream that reads it as a form would see another request.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that is JSON and a form at once names two models: the upstream must read it as we did.
    #[test]
    fn an_upstream_reads_the_body_as_it_was_read_here() {
        for kinds in [
            &["application/x-www-form-urlencoded"][..],
            &["multipart/form-data; boundary=x"],
            &["application/json; charset=utf-7"],
            &["application/json", "application/x-www-form-urlencoded"],
            &[],
        ] {
            let mut headers = HeaderMap::new();
            for kind in kinds {
                headers.append(CONTENT_TYPE, HeaderValue::from_static(kind));
            }
            headers.append(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            prepare(&mut headers, 7);
            let sent: Vec<_> = headers.get_all(CONTENT_TYPE).iter().collect();
            assert_eq!(sent, ["application/json"], "{kinds:?}");
            assert!(headers.get(CONTENT_ENCODING).is_none());
        }
    }
}
