//! Bodies on their way through: pieces are passed on as they come, when they are asked for.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tollgate_tower::Held;

use crate::ai::Meter;
use crate::connections::Lease;
use crate::decode::{DecodeError, Decoder};
use crate::headers::clean_request_trailers;
use crate::idle::IdleTimer;
use crate::options::Timeouts;
use crate::pace::ClientPace;

/// Why a body ends before its end. The other side sees its connection or stream cut.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client sends nothing any more, or too slowly.
    #[error("the client sent too little for too long")]
    ClientIdle,
    /// The client's body cannot be read.
    #[error("the client's body cannot be read: {0}")]
    Client(#[source] hyper::Error),
    /// The upstream sends nothing any more.
    #[error("the upstream sent nothing for too long")]
    UpstreamIdle,
    /// The upstream's body cannot be read.
    #[error("the upstream's body cannot be read: {0}")]
    Upstream(#[source] hyper::Error),
    /// The upstream compressed its body, and it cannot be decoded.
    #[error("the upstream's body cannot be decoded: {0}")]
    Undecodable(String),
}

/// What a request's body is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BodyState {
    /// The upstream has not asked for more.
    NotAsked,
    /// The client has not sent what was asked for.
    Waiting,
    /// All of it has been passed on.
    Done,
    /// The client was too slow.
    TimedOut,
    /// The client is gone, or sends what is no body.
    Broken,
}

/// How far a request's body has been sent, for the task that waits for the answer.
#[derive(Debug, Default)]
pub(crate) struct BodyProgress {
    pieces: AtomicU64,
    state: AtomicU8,
    /// Whether the upstream has begun to answer.
    is_answered: AtomicBool,
}

impl BodyProgress {
    /// Grows with every piece.
    pub(crate) fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> BodyState {
        match self.state.load(Ordering::Relaxed) {
            1 => BodyState::Waiting,
            2 => BodyState::Done,
            3 => BodyState::TimedOut,
            4 => BodyState::Broken,
            _ => BodyState::NotAsked,
        }
    }

    /// The upstream has begun to answer.
    pub(crate) fn answered(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
    }

    fn set(&self, state: BodyState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }
}

/// The body of a request to an upstream.
#[derive(Debug)]
pub struct RequestBody(RequestKind);

#[derive(Debug)]
enum RequestKind {
    Empty,
    Full(Option<Bytes>),
    Client { incoming: Incoming, pace: ClientPace, progress: Arc<BodyProgress> },
}

impl RequestBody {
    /// No body.
    pub const fn empty() -> Self {
        Self(RequestKind::Empty)
    }

    /// A client's, which must not pause for too long, nor be too slow.
    pub(crate) fn from_client(incoming: Incoming, timeouts: &Timeouts) -> Self {
        if incoming.is_end_stream() {
            return Self::empty();
        }
        let pace = ClientPace::new(timeouts.request_idle, timeouts.min_request_rate);
        Self(RequestKind::Client { incoming, pace, progress: Arc::default() })
    }

    pub(crate) fn progress(&self) -> Option<Arc<BodyProgress>> {
        match &self.0 {
            RequestKind::Client { progress, .. } => Some(Arc::clone(progress)),
            _ => None,
        }
    }

    /// The same once more, where it is at hand.
    pub(crate) fn duplicate(&self) -> Option<Self> {
        match &self.0 {
            RequestKind::Empty => Some(Self::empty()),
            RequestKind::Full(bytes) => Some(Self(RequestKind::Full(bytes.clone()))),
            RequestKind::Client { .. } => None,
        }
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::empty() } else { Self(RequestKind::Full(Some(bytes))) }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            RequestKind::Empty => Poll::Ready(None),
            RequestKind::Full(bytes) => Poll::Ready(bytes.take().map(|it| Ok(Frame::data(it)))),
            RequestKind::Client { incoming, pace, progress } => {
                match Pin::new(&mut *incoming).poll_frame(context) {
                    Poll::Ready(Some(Ok(frame))) => {
                        pace.progressed(frame.data_ref().map_or(0, Bytes::len));
                        progress.pieces.fetch_add(1, Ordering::Relaxed);
                        let is_last = incoming.is_end_stream();
                        progress.set(if is_last { BodyState::Done } else { BodyState::NotAsked });
                        Poll::Ready(Some(Ok(clean_trailers(frame))))
                    }
                    Poll::Ready(Some(Err(error))) => {
                        progress.set(BodyState::Broken);
                        Poll::Ready(Some(Err(BodyError::Client(error))))
                    }
                    Poll::Ready(None) => {
                        progress.set(BodyState::Done);
                        Poll::Ready(None)
                    }
                    Poll::Pending => {
                        progress.set(BodyState::Waiting);
                        let is_answered = progress.is_answered.load(Ordering::Relaxed);
                        std::task::ready!(pace.poll_expired(context, is_answered));
                        progress.set(BodyState::TimedOut);
                        Poll::Ready(Some(Err(BodyError::ClientIdle)))
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            RequestKind::Empty => true,
            RequestKind::Full(bytes) => bytes.is_none(),
            RequestKind::Client { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            RequestKind::Empty => SizeHint::with_exact(0),
            RequestKind::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            RequestKind::Client { incoming, .. } => incoming.size_hint(),
        }
    }
}

/// A piece as it came, trailers without what a client must not say.
fn clean_trailers(frame: Frame<Bytes>) -> Frame<Bytes> {
    if frame.is_data() {
        return frame;
    }
    match frame.into_trailers() {
        Ok(mut trailers) => {
            clean_request_trailers(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

/// The body of an answer. What the request holds is held until this ends or is dropped.
pub struct GatewayBody {
    pub(crate) kind: AnswerKind,
    pub(crate) held: Option<Held>,
    /// Measures it, where it is a model's.
    pub(crate) meter: Option<Box<Meter>>,
    /// Decodes it, until the last of it has been decoded.
    pub(crate) decoder: Option<Box<Decoder>>,
    /// Why it breaks off, until the error is passed to the client's side.
    pub(crate) broken: Option<BodyError>,
    /// Whether the client has left, and this is read on for its usage.
    pub(crate) is_left: bool,
}

pub(crate) enum AnswerKind {
    Full(Option<Bytes>),
    Upstream { incoming: Incoming, idle: IdleTimer, lease: Option<Lease> },
}

impl std::fmt::Debug for GatewayBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewayBody").field("held", &self.held).finish_non_exhaustive()
    }
}

impl GatewayBody {
    const fn new(kind: AnswerKind) -> Self {
        Self { kind, held: None, meter: None, decoder: None, broken: None, is_left: false }
    }

    /// A body of our own.
    pub fn full(bytes: Bytes) -> Self {
        let bytes = if bytes.is_empty() { None } else { Some(bytes) };
        Self::new(AnswerKind::Full(bytes))
    }

    /// An upstream's.
    pub(crate) fn upstream(incoming: Incoming, idle: Duration, lease: Lease) -> Self {
        let mut kind =
            AnswerKind::Upstream { incoming, idle: IdleTimer::new(idle), lease: Some(lease) };
        kind.finish_at_end();
        Self::new(kind)
    }

    /// Holds this until the end, if there is something still to come.
    pub(crate) fn hold(&mut self, held: Option<Held>) {
        if !self.is_end_stream() {
            self.held = held;
        }
    }

    /// Shows it to this meter. One without anything to come is measured at once.
    pub(crate) fn measure(&mut self, meter: Box<Meter>) {
        if self.is_end_stream() {
            meter.ends();
        } else {
            self.meter = Some(meter);
        }
    }

    /// Decodes it with this.
    pub(crate) fn decode(&mut self, decoder: Box<Decoder>) {
        if !self.is_end_stream() {
            self.decoder = Some(decoder);
        }
    }

    /// The upstream broke off: what was counted is settled.
    fn breaks(&mut self) {
        if let Some(mut meter) = self.meter.take() {
            meter.breaks();
        }
    }

    /// Ends the body early. Closing the connection signals that to the upstream.
    fn stop(&mut self) {
        self.meter = None;
        self.held = None;
        self.decoder = None;
        self.kind = AnswerKind::Full(None);
    }

    /// What the client gets of a piece; None where that is nothing, and there is more to come.
    fn metered(&mut self, frame: Frame<Bytes>, is_last: bool) -> Option<Frame<Bytes>> {
        let Some(meter) = &mut self.meter else { return Some(frame) };
        let piece = match frame.into_data() {
            Ok(piece) => piece,
            Err(frame) => return Some(frame),
        };
        let mut out = meter.pass(piece);
        if meter.is_stopped {
            self.stop();
        } else if is_last && let Some(meter) = self.meter.take() {
            let rest = meter.ends();
            if !rest.is_empty() {
                out = [out, rest].concat().into();
            }
        }
        (is_last || !out.is_empty()).then(|| Frame::data(out))
    }
}

impl AnswerKind {
    /// The connection is free as soon as the last piece is here, not only when it has been sent on.
    fn finish_at_end(&mut self) -> bool {
        let Self::Upstream { incoming, lease, .. } = self else { return false };
        let ends = incoming.is_end_stream();
        if ends && let Some(lease) = lease.take() {
            lease.finish();
        }
        ends
    }
}

/// The next piece. The connection that it comes over may have to be moved for it.
fn poll_upstream(
    incoming: &mut Incoming,
    lease: Option<&mut Lease>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
    let Some(lease) = lease else { return Pin::new(incoming).poll_frame(context) };
    // Most often it is here already. A task that polls the connection itself need not be woken.
    let mut unwoken = Context::from_waker(Waker::noop());
    let (polled, _) = lease.take(|| Pin::new(&mut *incoming).poll_frame(&mut unwoken));
    if polled.is_ready() {
        return polled;
    }
    lease.drive(context);
    let (polled, has_rung) = lease.take(|| Pin::new(incoming).poll_frame(context));
    if polled.is_pending() && has_rung {
        context.waker().wake_by_ref();
    }
    polled
}

impl Body for GatewayBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Some(error) = this.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            if let Some(meter) = &mut this.meter
                && let Some(last) = std::task::ready!(meter.poll_more(context))
            {
                this.stop();
                return Poll::Ready(Some(Ok(Frame::data(last))));
            }
            match this.poll_decoded(context) {
                Poll::Ready(Some(Ok((frame, is_last)))) => {
                    if let Some(frame) = this.metered(frame, is_last) {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                Poll::Ready(None) => {
                    let rest = this.meter.take().map(Meter::ends).unwrap_or_default();
                    this.kind = AnswerKind::Full(None);
                    let rest = (!rest.is_empty()).then(|| Ok(Frame::data(rest)));
                    return Poll::Ready(rest);
                }
                Poll::Ready(Some(Err(error))) => {
                    this.breaks();
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        if self.decoder.is_some() {
            return false;
        }
        match &self.kind {
            AnswerKind::Full(bytes) => bytes.is_none(),
            AnswerKind::Upstream { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.decoder.is_some() || self.meter.as_ref().is_some_and(|meter| meter.may_change()) {
            return SizeHint::default();
        }
        match &self.kind {
            AnswerKind::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            AnswerKind::Upstream { incoming, .. } => incoming.size_hint(),
        }
    }
}

/// A piece, and whether it is the last.
type Piece = Result<(Frame<Bytes>, bool), BodyError>;

impl GatewayBody {
    /// The next piece, decoded where that is needed, and whether it is the last.
    fn poll_decoded(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        loop {
            let Some(decoder) = &mut self.decoder else { return self.poll_piece(context) };
            match decoder.next() {
                Ok(Some(part)) => return Poll::Ready(Some(Ok((Frame::data(part), false)))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(self.undecodable(error)))),
            }
            let is_over = matches!(&self.kind, AnswerKind::Upstream { incoming, .. } if incoming.is_end_stream());
            let piece = if is_over { None } else { std::task::ready!(self.poll_piece(context)) };
            let Some(piece) = piece else {
                let last = self.decoder.take().map_or(Ok(Bytes::new()), |mut it| it.finish());
                let last = last.map(|last| (Frame::data(last), true));
                return Poll::Ready(Some(last.map_err(|error| self.undecodable(error))));
            };
            let (frame, is_last) = match piece {
                Ok(piece) => piece,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            match (frame.into_data(), &mut self.decoder) {
                (Ok(data), Some(decoder)) => decoder.feed(data),
                (Ok(data), None) => return Poll::Ready(Some(Ok((Frame::data(data), is_last)))),
                // Trailers are no part of what was compressed.
                (Err(_), _) => {}
            }
        }
    }

    fn undecodable(&mut self, error: DecodeError) -> BodyError {
        self.breaks();
        self.stop();
        BodyError::Undecodable(error.to_string())
    }

    /// The next piece as it comes, and whether it is the last.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        let this = self;
        let (incoming, idle, lease) = match &mut this.kind {
            AnswerKind::Full(bytes) => {
                this.held = None;
                return Poll::Ready(bytes.take().map(|bytes| Ok((Frame::data(bytes), true))));
            }
            AnswerKind::Upstream { incoming, idle, lease } => (incoming, idle, lease),
        };
        match poll_upstream(incoming, lease.as_mut(), context) {
            Poll::Ready(Some(Ok(frame))) => {
                idle.progressed();
                let is_last = this.kind.finish_at_end();
                if is_last {
                    this.held = None;
                }
                Poll::Ready(Some(Ok((frame, is_last))))
            }
            Poll::Ready(None) => {
                if let Some(lease) = lease.take() {
                    lease.finish();
                }
                this.held = None;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(lease) = lease.take() {
                    lease.target().failed("it broke off in the middle of an answer");
                }
                this.held = None;
                this.breaks();
                // What came before the break may have come with it, and be still in a buffer: that is sent first.
                this.broken = Some(BodyError::Upstream(error));
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => {
                std::task::ready!(idle.poll_expired(context));
                if let Some(lease) = lease.take() {
                    lease.target().failed("it stopped in the middle of an answer");
                }
                this.held = None;
                Poll::Ready(Some(Err(BodyError::UpstreamIdle)))
            }
        }
    }
}
