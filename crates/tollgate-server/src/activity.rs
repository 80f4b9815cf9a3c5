//! What a connection is doing, and when it has done nothing for too long.
//!
//! A timer per request would cost more than most decisions, so there is one watcher per connection
//! that looks in now and then. Two looks on the same state mark a stretch of quiet; a connection is
//! cut between one and one and a half times its limit.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
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

/// A body that keeps its connection busy until it ends or is dropped.
pub(crate) struct BusyBody {
    body: axum::body::Body,
    activity: Arc<Activity>,
}

impl BusyBody {
    pub(crate) fn new(body: axum::body::Body, activity: Arc<Activity>) -> Self {
        activity.busy.fetch_add(1, Ordering::Relaxed);
        Self { body, activity }
    }
}

impl Drop for BusyBody {
    fn drop(&mut self) {
        drop(Busy(&self.activity));
    }
}

impl http_body::Body for BusyBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}

/// Ends a connection that has been quiet for too long.
pub(crate) async fn watch(
    activity: Weak<Activity>,
    connection: AbortHandle,
    head_limit: Duration,
    idle_limit: Duration,
) {
    let tick = head_limit.min(idle_limit) / 2;
    let mut known = None;
    let mut quiet = Duration::ZERO;
    loop {
        tokio::time::sleep(tick).await;
        let Some(activity) = activity.upgrade() else { return };
        let changes = activity.changes.load(Ordering::Relaxed);
        if activity.busy.load(Ordering::Relaxed) > 0 || known != Some(changes) {
            known = Some(changes);
            quiet = Duration::ZERO;
            continue;
        }
        quiet += tick;
        let in_head = activity.in_head.load(Ordering::Relaxed);
        if quiet >= if in_head { head_limit } else { idle_limit } {
            tracing::debug!(in_head, "a quiet connection was cut");
            connection.abort();
            return;
        }
    }
}

/// A stream that tells its activity what it receives.
pub(crate) struct WatchedStream {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl WatchedStream {
    pub(crate) const fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }
}

impl AsyncRead for WatchedStream {
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

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
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
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
}
