//! The body of an answer: the inner service's, or a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use crate::held::Held;

pin_project_lite::pin_project! {
    /// The inner service's body, or a refusal's. What the request held is given back when it ends.
    pub struct LimitedBody<B> {
        #[pin]
        kind: Kind<B>,
        held: Option<Held>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindProjection]
    enum Kind<B> {
        Own { #[pin] body: Full<Bytes> },
        Inner { #[pin] body: B },
    }
}

impl<B> LimitedBody<B> {
    pub(crate) fn own(bytes: Bytes) -> Self {
        Self { kind: Kind::Own { body: Full::new(bytes) }, held: None }
    }

    /// A service's body, and what its request holds until it ends.
    pub const fn inner(body: B, held: Option<Held>) -> Self {
        Self { kind: Kind::Inner { body }, held }
    }
}

impl<B: Default> Default for LimitedBody<B> {
    fn default() -> Self {
        Self::inner(B::default(), None)
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let polled = match this.kind.project() {
            KindProjection::Own { body } => {
                body.poll_frame(context).map_err(|never| match never {})
            }
            KindProjection::Inner { body } => body.poll_frame(context),
        };
        if matches!(polled, Poll::Ready(None)) {
            drop(this.held.take());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Own { body } => body.is_end_stream(),
            Kind::Inner { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Own { body } => body.size_hint(),
            Kind::Inner { body } => body.size_hint(),
        }
    }
}
