//! Bodies of requests that are answered before anybody has read them.
//!
//! A connection of HTTP/1 with the rest of a body on it cannot be used for the next request. Closed without notice, it
//! fails the client's next request, and data on the way makes the system discard the answer. So a short rest is read
//! and dropped, and the connection stays; otherwise the answer announces that it is closed.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Response, Version};
use http_body::Body;
use http_body_util::BodyExt as _;

/// The longest rest of a body that is read and dropped.
const MAX_UNREAD_BYTES: u64 = 1 << 20;

/// How long it may take to arrive.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// This answer to a request whose body nobody has read.
pub(crate) async fn answer<B, R>(response: Response<R>, parts: &Parts, body: B) -> Response<R>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.is_end_stream() || Box::pin(is_dropped(&parts.headers, body)).await {
        return response;
    }
    closing(response, parts.version)
}

/// This answer to a request of which nobody can say where its body ends: the rest is not read.
pub(crate) fn unknown<B: Body, R>(response: Response<R>, parts: &Parts, body: &B) -> Response<R> {
    if body.is_end_stream() { response } else { closing(response, parts.version) }
}

/// This answer, after which the connection is closed.
pub fn closing<R>(mut response: Response<R>, version: Version) -> Response<R> {
    // HTTP/2 ends the stream of the request alone.
    if version <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads the rest of a body and drops it. False if it is too long or too slow, or is not sent yet: the client waits for
/// `100 Continue`.
pub async fn is_dropped<B>(headers: &HeaderMap, mut body: B) -> bool
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.is_end_stream() {
        return true;
    }
    if headers.contains_key(EXPECT) || body.size_hint().lower() > MAX_UNREAD_BYTES {
        return false;
    }
    let rest = async {
        let mut bytes = 0_u64;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            bytes = bytes.saturating_add(frame.data_ref().map_or(0, |data| data.len() as u64));
            if bytes > MAX_UNREAD_BYTES {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(UNREAD_TIMEOUT, rest).await.unwrap_or(false)
}
