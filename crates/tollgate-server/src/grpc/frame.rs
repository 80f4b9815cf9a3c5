//! gRPC on HTTP/2: five bytes before every message, and a status behind the last one.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body::Frame;
use tonic::body::Body;
use tonic::{Code, Status};

use super::write::snake_case;
use crate::buffered::AnswerRoom;
use crate::http::respond::ApiError;
use tollgate_engine::EngineError;

/// What stands before a message: whether it is compressed, and its length.
pub(crate) const HEAD_BYTES: usize = 5;

/// The largest message that is read.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The length of the message behind this head.
pub(crate) fn length(head: [u8; HEAD_BYTES]) -> Result<usize, Status> {
    let [is_compressed, rest @ ..] = head;
    if is_compressed != 0 {
        let message = "messages must not be compressed; small as they are, it would not help";
        return Err(Status::unimplemented(message));
    }
    let length = u32::from_be_bytes(rest) as usize;
    if length > MAX_MESSAGE_BYTES {
        let message = format!("a message must not be larger than {MAX_MESSAGE_BYTES} bytes");
        return Err(Status::resource_exhausted(message));
    }
    Ok(length)
}

/// The one message of a call that has one.
pub(crate) fn only_message(bytes: &[u8]) -> Result<&[u8], Status> {
    let broken = || Status::invalid_argument("the call does not hold exactly one whole message");
    let (head, message) = bytes.split_first_chunk().ok_or_else(broken)?;
    if length(*head)? != message.len() {
        return Err(broken());
    }
    Ok(message)
}

/// Leaves room for the head of a message that follows; says where it begins.
pub(crate) fn open(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    start
}

/// Writes the head of the message that began there and ends here.
pub(crate) fn close(out: &mut [u8], start: usize) {
    let length = out.len().saturating_sub(start + HEAD_BYTES);
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    if let Some(place) = out.get_mut(start + 1..start + HEAD_BYTES) {
        place.copy_from_slice(&length);
    }
}

/// An answer with this body.
pub(crate) fn respond(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// Room for the answer to one request. To be taken before anything is charged: an answer that finds none is not sent.
pub(crate) fn room(peer: Option<IpAddr>) -> Result<AnswerRoom, Status> {
    AnswerRoom::reserve(peer, 1).ok_or_else(|| status(ApiError::Busy))
}

/// An answer of one message, head included.
pub(crate) fn answer(framed: impl Into<Bytes>) -> Response<Body> {
    respond(Body::new(Once { data: Some(framed.into()), is_done: false }))
}

/// The status at the end of an answer.
pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    if status.code() == Code::Ok || status.add_header(&mut trailers).is_err() {
        trailers.clear();
        trailers.insert(GRPC_STATUS, HeaderValue::from(status.code() as i32));
    }
    trailers
}

/// For callers that do not speak gRPC at all.
pub(crate) fn not_grpc() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

/// Whether a request says that it is gRPC.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    match kind.strip_prefix(b"application/grpc") {
        Some(rest) => matches!(rest.first(), None | Some(b'+' | b';')),
        None => false,
    }
}

/// One message, then the status.
struct Once {
    data: Option<Bytes>,
    is_done: bool,
}

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(data) = self.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if self.is_done {
            return Poll::Ready(None);
        }
        self.is_done = true;
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    /// A lower bound: of an exact one hyper would make a header.
    fn size_hint(&self) -> http_body::SizeHint {
        let mut hint = http_body::SizeHint::new();
        hint.set_lower(self.data.as_ref().map_or(0, |data| data.len() as u64));
        hint
    }

    fn is_end_stream(&self) -> bool {
        self.is_done
    }
}

/// The one place where errors become statuses.
pub(crate) fn status(error: ApiError) -> Status {
    let code = match &error {
        ApiError::Invalid { .. }
        | ApiError::Engine(
            EngineError::MissingKey { .. }
            | EngineError::NotReservable
            | EngineError::Unpriced { .. }
            | EngineError::UsageWithoutModel { .. }
            | EngineError::OtherCurrency { .. },
        ) => Code::InvalidArgument,
        ApiError::TooLarge { .. }
        | ApiError::Busy
        | ApiError::Engine(EngineError::ReservationsFull) => Code::ResourceExhausted,
        ApiError::Slow => Code::DeadlineExceeded,
        ApiError::NotFound | ApiError::MethodNotAllowed(_) => Code::Unimplemented,
        ApiError::Unauthorized | ApiError::InvalidKey | ApiError::NoCertificate => {
            Code::Unauthenticated
        }
        ApiError::ForeignOrigin | ApiError::ForeignHost => Code::PermissionDenied,
        ApiError::Engine(EngineError::Store(_)) => Code::Unavailable,
        ApiError::Engine(EngineError::RequestIdReused) => Code::AlreadyExists,
        ApiError::Engine(EngineError::RequestIdInUse | EngineError::RequestIdUnreadable) => {
            Code::Aborted
        }
        ApiError::Engine(EngineError::ReservationUnknown) => Code::NotFound,
        ApiError::Engine(
            EngineError::ReservationEnded(_)
            | EngineError::ReservationUnreadable
            | EngineError::OnlySlots
            | EngineError::ReservationUnpriced
            | EngineError::SlotNotHeld { .. },
        ) => Code::FailedPrecondition,
        ApiError::Internal => Code::Internal,
    };
    let detail = error.body().1.error;
    match detail.field.as_deref().filter(|field| *field != "body") {
        Some(field) => Status::new(code, format!("{}: {}", snake_case(field), detail.message)),
        None => Status::new(code, detail.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_whole_message_and_nothing_else() {
        let mut framed = Vec::new();
        let start = open(&mut framed);
        framed.extend_from_slice(b"hello");
        close(&mut framed, start);
        assert_eq!(framed, b"\0\0\0\0\x05hello");
        assert_eq!(only_message(&framed).unwrap(), b"hello");
        for length in 0..framed.len() {
            let error = only_message(&framed[..length]).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
        }
        framed.push(0);
        assert!(only_message(&framed).is_err());
        framed[0] = 1;
        assert_eq!(only_message(&framed).unwrap_err().code(), Code::Unimplemented);
        let huge = only_message(&[0, 0xff, 0, 0, 0]).unwrap_err();
        assert_eq!(huge.code(), Code::ResourceExhausted);
    }

    #[test]
    fn content_types() {
        let says = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            is_grpc(&headers)
        };
        assert!(says("application/grpc") && says("application/grpc+proto"));
        assert!(!says("application/grpc-web") && !says("application/json") && !says(""));
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn fields_are_named_as_protobuf_names_them() {
        let status = status(ApiError::invalid("userId", "is wrong"));
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "user_id: is wrong"));
    }
}
