//! What a connection is doing, and when it has done nothing for too long.
//!
//! A timer per request would cost more than most decisions, so there is one watcher per connection
//! that looks in now and then. Two looks on the same state mark a stretch of quiet; a connection is
//! cut between one and one and a half times its limit.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// How every HTTP/2 connection begins.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2";

/// Shared by a connection, its requests and its watcher. Counters only; nothing is ordered by them.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Counts changes of state.
    changes: AtomicU32,
    /// Requests being answered.
    busy: AtomicU32,
    /// Part of a request's head has arrived.
    in_head: AtomicBool,
    is_http2: AtomicBool,
    /// What is written waits for the client to read.
    is_blocked: AtomicBool,
}

impl Activity {
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn received(&self, bytes: &[u8]) {
        if self.busy.load(Ordering::Relaxed) > 0 {
            return;
        }
        let is_first = self.changes.load(Ordering::Relaxed) == 0;
        if is_first && HTTP2_PREFACE.iter().zip(bytes).all(|(one, other)| one == other) {
            self.is_http2.store(true, Ordering::Relaxed);
        }
        // On HTTP/2 only requests are a sign of life. Pings are not: a client that reads nothing could
        // hold its answers in memory with them.
        let is_head = !self.is_http2.load(Ordering::Relaxed);
        // A byte now and then must not keep a head alive: only its first one counts.
        if is_head && !self.in_head.swap(true, Ordering::Relaxed) {
            self.changed();
        }
    }

    fn written(&self, is_pending: bool) {
        if is_pending {
            self.is_blocked.store(true, Ordering::Relaxed);
        } else if self.is_blocked.load(Ordering::Relaxed) {
            self.is_blocked.store(false, Ordering::Relaxed);
            self.changed();
        }
    }

    /// A request is answered for as long as the guard lives.
    pub(crate) fn request(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.in_head.store(false, Ordering::Relaxed);
        Busy(self)
    }
}

/// A request under way.
pub(crate) struct Busy<'a>(&'a Activity);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.changed();
    }
}

/// Marks a response whose body goes on for as long as somebody listens: its connection is not quiet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endless;

/// Keeps a connection busy until it is dropped.
struct BusyUntilDropped(Arc<Activity>);

impl Drop for BusyUntilDropped {
    fn drop(&mut self) {
        drop(Busy(&self.0));
    }
}

pin_project_lite::pin_project! {
    /// A body that may keep its connection busy until it ends or is dropped.
    pub(crate) struct BusyBody<B> {
        #[pin]
        body: B,
        busy: Option<BusyUntilDropped>,
    }
}

impl<B> BusyBody<B> {
    /// Keeps the connection of this activity, if any, busy.
    pub(crate) fn new(body: B, activity: Option<Arc<Activity>>) -> Self {
        let busy = activity.map(|activity| {
            activity.busy.fetch_add(1, Ordering::Relaxed);
            BusyUntilDropped(activity)
        });
        Self { body, busy }
    }
}

impl<B: http_body::Body> http_body::Body for BusyBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        self.project().body.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Ends a connection that has been quiet for too long, and every one when they are all cut. (To look for
/// that where the connection is served would be done with every request.)
pub(crate) async fn watch(
    activity: Weak<Activity>,
    connection: AbortHandle,
    mut cut: watch::Receiver<bool>,
    head_limit: Duration,
    idle_limit: Duration,
) {
    // One that is not to be cut goes on, also when nobody is left who could.
    let mut cut = pin!(async move {
        if cut.wait_for(|cut| *cut).await.is_err() {
            std::future::pending::<()>().await;
        }
    });
    let tick = head_limit.min(idle_limit) / 2;
    let mut known = None;
    let mut quiet = Duration::ZERO;
    loop {
        tokio::select! {
            biased;
            () = &mut cut => return connection.abort(),
            () = tokio::time::sleep(tick) => {}
        }
        let Some(activity) = activity.upgrade() else { return };
        let changes = activity.changes.load(Ordering::Relaxed);
        // An answer that nobody reads holds what it came from, however busy it is.
        let is_blocked = activity.is_blocked.load(Ordering::Relaxed);
        let is_busy = activity.busy.load(Ordering::Relaxed) > 0 && !is_blocked;
        if is_busy || known != Some(changes) {
            known = Some(changes);
            quiet = Duration::ZERO;
            continue;
        }
        quiet += tick;
        let in_head = !is_blocked && activity.in_head.load(Ordering::Relaxed);
        if quiet >= if in_head { head_limit } else { idle_limit } {
            tracing::debug!(in_head, "a quiet connection was cut");
            connection.abort();
            return;
        }
    }
}

/// A stream that tells its activity what it receives.
pub(crate) struct WatchedStream<T> {
    stream: T,
    activity: Arc<Activity>,
}

impl<T> WatchedStream<T> {
    pub(crate) const fn new(stream: T, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WatchedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(new) = buffer.filled().get(before..).filter(|new| !new.is_empty()) {
            self.activity.received(new);
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WatchedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.activity.written(polled.is_pending());
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.activity.written(polled.is_pending());
        polled
    }
}
