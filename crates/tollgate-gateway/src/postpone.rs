//! Requests that are kept for later.

use async_trait::async_trait;
use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderMap, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use tollgate_tower::{EdgeRequest, Postponed};

use crate::body::BodyError;
use crate::respond::Fault;
use tollgate_queue::{LONGEST_RECHECK, Queue, QueueError, StoredRequest, accepted};

/// Why a request cannot be kept. The client is refused then, as it would be without a queue.
#[derive(Debug, thiserror::Error)]
pub enum PostponeError {
    /// There is no room for it.
    #[error("no room: {0}")]
    Full(String),
    /// The queue cannot be reached.
    #[error("the queue is away: {0}")]
    Unavailable(String),
}

/// Keeps requests for later.
#[async_trait]
pub trait Postpone: Send + Sync + 'static {
    /// Whether there is room for a request whose body has at least so many bytes. The caller asks before the body is read.
    async fn has_room(
        &self,
        postponed: &Postponed,
        tenant: &str,
        bytes: usize,
    ) -> Result<(), PostponeError>;

    /// Stores a request; the answer gives the client the URL of its ticket.
    async fn postpone(
        &self,
        postponed: &Postponed,
        stored: StoredRequest,
    ) -> Result<Response<Bytes>, PostponeError>;
}

#[async_trait]
impl Postpone for Queue {
    async fn has_room(
        &self,
        postponed: &Postponed,
        tenant: &str,
        bytes: usize,
    ) -> Result<(), PostponeError> {
        self.store().room(&postponed.lane, tenant, bytes).await.map_err(PostponeError::from)
    }

    async fn postpone(
        &self,
        postponed: &Postponed,
        stored: StoredRequest,
    ) -> Result<Response<Bytes>, PostponeError> {
        let after = postponed.retry_after;
        // Rules may change, so what waits for long is looked at before.
        match self.push(&postponed.lane, &stored, after.min(LONGEST_RECHECK)).await {
            Ok(receipt) => {
                let seconds = after.as_secs() + u64::from(after.subsec_nanos() != 0);
                Ok(accepted(&receipt, "", seconds))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl From<QueueError> for PostponeError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Full(_)
            | QueueError::LaneFull(_)
            | QueueError::FullOfBytes { .. }
            | QueueError::TooLarge { .. } => Self::Full(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

/// A request as it is stored: clean, with the headers that describe its client to upstreams.
pub(crate) fn stored(
    parts: &Parts,
    body: &Bytes,
    asked: EdgeRequest,
    route: &str,
) -> StoredRequest {
    let path = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
    StoredRequest {
        method: parts.method.as_str().to_owned(),
        uri: path.to_owned(),
        host: host.unwrap_or_default().to_owned(),
        route: route.to_owned(),
        headers: pairs(&parts.headers),
        asked,
        body: body.to_vec(),
    }
}

/// Headers in order, but for the host.
pub(crate) fn pairs(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    headers
        .iter()
        .filter(|(name, _)| **name != HOST)
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect()
}

/// Reads a body to its end, if that is not too far. It calls `takes` with the memory that it is about to take up in
/// all; `takes` may refuse it.
pub(crate) async fn read_whole(
    mut body: impl Body<Data = Bytes, Error = BodyError> + Unpin,
    max_bytes: usize,
    mut takes: impl FnMut(usize) -> bool,
) -> Result<Bytes, Fault> {
    let hint = body.size_hint();
    if hint.lower() > max_bytes as u64 {
        return Err(Fault::BodyTooLarge);
    }
    let longest = hint.upper().and_then(|upper| usize::try_from(upper).ok());
    let longest = longest.map_or(max_bytes, |longest| longest.min(max_bytes));
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error {
            BodyError::ClientIdle => Fault::ClientTooSlow,
            _ => Fault::BadBody,
        })?;
        let Ok(piece) = frame.into_data() else { continue };
        let length = whole.len() + piece.len();
        if length > max_bytes {
            return Err(Fault::BodyTooLarge);
        }
        if length > whole.capacity() {
            let room = (2 * whole.capacity()).min(longest).max(length);
            if !takes(room) {
                return Err(Fault::TooManyBodies);
            }
            whole.reserve_exact(room - whole.len());
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.into())
}
