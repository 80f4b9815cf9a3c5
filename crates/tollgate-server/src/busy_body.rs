//! The body of an answer, as its connection watches it until the client has read it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::activity::{Activity, BusyUntilDropped, Unread};
use crate::buffered::{Held, holding};

/// On HTTP/2 no more is handed over at once, so that a client that reads slowly is seen to read.
const MAX_PIECE_BYTES: usize = 16 << 10;

pin_project_lite::pin_project! {
    /// A body that may keep its connection busy until it ends or is dropped, and counts among what is buffered until
    /// its bytes are sent.
    pub(crate) struct BusyBody<B> {
        #[pin]
        body: B,
        busy: Option<BusyUntilDropped>,
        held: Option<Arc<Held>>,
        reading: Option<Reading>,
    }
}

/// What the client has to read of a body on HTTP/2, where a body is asked for its next piece when the client has room
/// for it. (On HTTP/1 the socket shows whether it reads.)
struct Reading {
    activity: Arc<Activity>,
    /// Counted while the body has something, or may have, and is not asked for it.
    unread: Option<Unread>,
    /// What did not fit into the last piece.
    rest: Bytes,
}

impl Reading {
    /// The next piece, which counts as unread until it is sent.
    fn next_piece(&mut self) -> Bytes {
        let length = self.rest.len().min(MAX_PIECE_BYTES);
        let piece = self.rest.split_to(length);
        let unread = Unread::new(&self.activity, length);
        holding(piece, unread)
    }

    fn poll_frame<E>(
        &mut self,
        poll: impl FnOnce() -> Poll<Option<Result<Frame<Bytes>, E>>>,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        if self.rest.is_empty() {
            match poll() {
                // It waits for what it is made of, and not for the client.
                Poll::Pending => {
                    self.unread = None;
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                ended @ Poll::Ready(_) => return ended,
            }
        }
        let piece = self.next_piece();
        if self.unread.is_none() {
            self.unread = Some(Unread::new(&self.activity, 0));
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl<B> BusyBody<B> {
    /// Of an answer on a connection of this activity.
    pub(crate) fn new(body: B, activity: &Arc<Activity>, is_http2: bool) -> Self {
        let reading = is_http2.then(|| Reading {
            activity: Arc::clone(activity),
            unread: Some(Unread::new(activity, 0)),
            rest: Bytes::new(),
        });
        Self { body, busy: None, held: None, reading }
    }

    /// Keeps the connection busy.
    pub(crate) fn keeping_busy(self, activity: Arc<Activity>) -> Self {
        Self { busy: Some(BusyUntilDropped::new(activity)), ..self }
    }

    /// Counts with its bytes.
    pub(crate) fn holding(self, held: Option<Arc<Held>>) -> Self {
        Self { held, ..self }
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for BusyBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let polled = match this.reading {
            Some(reading) => reading.poll_frame(|| this.body.poll_frame(context)),
            None => this.body.poll_frame(context),
        };
        let Some(held) = this.held else { return polled };
        polled.map_ok(|frame| frame.map_data(|data| holding(data, Arc::clone(held))))
    }

    fn is_end_stream(&self) -> bool {
        self.reading.as_ref().is_none_or(|it| it.rest.is_empty()) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.reading.as_ref().map_or(0, |it| it.rest.len() as u64);
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test]
    async fn a_large_body_is_handed_over_in_pieces() {
        let whole: Bytes = (0..=u8::MAX).cycle().take(3 * MAX_PIECE_BYTES + 1).collect();
        for is_http2 in [false, true] {
            let activity = Arc::new(Activity::default());
            let mut body = BusyBody::new(Full::new(whole.clone()), &activity, is_http2);
            let (mut read, mut pieces) = (Vec::new(), 0);
            while let Some(frame) = body.frame().await {
                let left = (whole.len() - read.len()) as u64;
                let data = frame.unwrap().into_data().unwrap();
                read.extend_from_slice(&data);
                pieces += 1;
                let expected = left - data.len() as u64;
                assert_eq!(http_body::Body::size_hint(&body).exact(), Some(expected));
                assert_eq!(http_body::Body::is_end_stream(&body), expected == 0);
            }
            assert_eq!((read, pieces), (whole.to_vec(), if is_http2 { 4 } else { 1 }));
        }
    }
}
