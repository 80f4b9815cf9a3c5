//! Sends requests that were kept for later. They are neither identified nor decided about here: who
//! calls has done both.

use bytes::Bytes;
use http::header::{HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use tollgate_queue::{Forward, ForwardError, StoredRequest, StoredResponse, TICKET_HEADER};
use tollgate_tower::{Decide, Sent};

use crate::body::{GatewayBody, RequestBody};
use crate::postpone::pairs;
use crate::respond::Fault;
use crate::worker::Worker;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

impl<D: Decide> Forward for Worker<D> {
    async fn forward(
        &self,
        request: &StoredRequest,
        ticket: &str,
        sent: &Sent,
    ) -> Result<StoredResponse, ForwardError> {
        let Some(outgoing) = restored(request, ticket) else {
            return Err(failed(false, "the request cannot be sent as it was kept"));
        };
        let response = self.resend(&request.route, outgoing, sent).await.map_err(|fault| {
            let retryable =
                matches!(fault, Fault::NoUpstream | Fault::UpstreamTimeout | Fault::BadUpstream);
            failed(retryable, fault.message())
        })?;
        if may_go_better(response.status()) {
            let message = format!("the upstream answered {}", response.status().as_u16());
            return Err(failed(true, &message));
        }
        read(response, self.gateway().options.max_stored_body_bytes).await
    }
}

fn failed(retryable: bool, message: &str) -> ForwardError {
    ForwardError { retryable, message: message.to_owned() }
}

/// Whether the upstream says that it is the time that is wrong, and not the request.
fn may_go_better(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn restored(stored: &StoredRequest, ticket: &str) -> Option<Request<RequestBody>> {
    let mut headers = HeaderMap::with_capacity(stored.headers.len() + 3);
    for (name, value) in &stored.headers {
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).ok()?,
            HeaderValue::from_bytes(value).ok()?,
        );
    }
    if !stored.host.is_empty() {
        headers.insert(HOST, HeaderValue::from_str(&stored.host).ok()?);
    }
    let ticket = HeaderValue::from_str(ticket).ok()?;
    // A client's own key says what the request is; without one the ticket does.
    headers.entry(IDEMPOTENCY_KEY).or_insert_with(|| ticket.clone());
    headers.insert(TICKET_HEADER, ticket);
    let body = RequestBody::from(Bytes::copy_from_slice(&stored.body));
    let mut request = Request::new(body);
    *request.method_mut() = stored.method.parse().ok()?;
    *request.uri_mut() = stored.uri.parse::<Uri>().ok()?;
    *request.headers_mut() = headers;
    Some(request)
}

/// Reads an answer as far as it is kept.
async fn read(
    response: Response<GatewayBody>,
    max_bytes: usize,
) -> Result<StoredResponse, ForwardError> {
    let (parts, mut incoming) = response.into_parts();
    let mut body = Vec::new();
    let mut is_truncated = false;
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|error| failed(true, &error.to_string()))?;
        let Ok(piece) = frame.into_data() else { continue };
        let room = max_bytes - body.len();
        body.extend(piece.iter().take(room));
        if piece.len() > room {
            is_truncated = true;
            break;
        }
    }
    let headers = pairs(&parts.headers);
    Ok(StoredResponse { status: parts.status.as_u16(), headers, is_truncated, body })
}
