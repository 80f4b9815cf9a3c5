//! What a connection is doing, and when it has done nothing for too long.
//!
//! A timer per request would cost more than most decisions, so each connection notes when its state
//! last changed, and one watcher per connection sleeps until that instant and its limit have passed. It
//! never sleeps longer than the shorter limit, so a state that began meanwhile is not cut late.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

const MICROS_PER_SECOND: u64 = 1_000_000;

/// How every HTTP/2 connection begins.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2";

/// Shared by a connection, its requests and its watcher. Counters only; nothing is ordered by them.
#[derive(Debug)]
pub(crate) struct Activity {
    began: Instant,
    /// When the state last changed, in microseconds since `began`.
    changed_at: AtomicU64,
    /// Whether any byte has arrived.
    has_received: AtomicBool,
    /// Requests being answered.
    busy: AtomicU32,
    /// Part of a request's head has arrived.
    in_head: AtomicBool,
    is_http2: AtomicBool,
    /// What is written waits for the client to read.
    is_blocked: AtomicBool,
    /// Bodies and pieces of them that wait for the client to read, by the flow control of HTTP/2.
    unread: AtomicU32,
}

/// A client that reads more slowly is closed after the idle limit: what it reads counts as time in which it did not
/// wait. A rate and no deadline, since long answers are legitimate.
const MIN_READ_BYTES_PER_SECOND: u64 = 1 << 10;

impl Default for Activity {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            changed_at: AtomicU64::default(),
            has_received: AtomicBool::default(),
            busy: AtomicU32::default(),
            in_head: AtomicBool::default(),
            is_http2: AtomicBool::default(),
            is_blocked: AtomicBool::default(),
            unread: AtomicU32::default(),
        }
    }
}

/// What a watcher does next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Cut { in_head: bool },
    LookAfter(Duration),
}

impl Activity {
    /// Notes that the state changes now. To be called before the change itself: a state must not be seen
    /// with the instant of the one before.
    fn changed(&self) {
        // A client that does not read is not excused by what else it does.
        if !self.waits_for_reader() {
            self.changed_at.store(self.elapsed_micros(), Ordering::Relaxed);
        }
    }

    fn waits_for_reader(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed) || self.unread.load(Ordering::Relaxed) > 0
    }

    /// So many bytes have been read: time in which the client did not wait.
    fn has_read(&self, bytes: usize) {
        let micros = bytes as u64 * MICROS_PER_SECOND / MIN_READ_BYTES_PER_SECOND;
        let changed_at = self.changed_at.load(Ordering::Relaxed).saturating_add(micros);
        self.changed_at.store(changed_at.min(self.elapsed_micros()), Ordering::Relaxed);
    }

    fn elapsed_micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn next(&self, head_limit: Duration, idle_limit: Duration) -> Next {
        let soonest = head_limit.min(idle_limit);
        // An answer that nobody reads holds what it came from, however busy it is.
        let waits_for_reader = self.waits_for_reader();
        if self.busy.load(Ordering::Relaxed) > 0 && !waits_for_reader {
            return Next::LookAfter(soonest);
        }
        let in_head = !waits_for_reader && self.in_head.load(Ordering::Relaxed);
        let limit = if in_head { head_limit } else { idle_limit };
        let changed_at = Duration::from_micros(self.changed_at.load(Ordering::Relaxed));
        let left = (changed_at + limit).saturating_sub(self.began.elapsed());
        if left.is_zero() { Next::Cut { in_head } } else { Next::LookAfter(left.min(soonest)) }
    }

    fn received(&self, bytes: &[u8]) {
        if self.busy.load(Ordering::Relaxed) > 0 {
            return;
        }
        let is_first = !self.has_received.load(Ordering::Relaxed);
        if is_first {
            self.has_received.store(true, Ordering::Relaxed);
        }
        if is_first && HTTP2_PREFACE.iter().zip(bytes).all(|(one, other)| one == other) {
            self.is_http2.store(true, Ordering::Relaxed);
        }
        // On HTTP/2 only requests are a sign of life. Pings are not: a client that reads nothing could
        // hold its answers in memory with them.
        let is_head = !self.is_http2.load(Ordering::Relaxed);
        // A byte now and then must not keep a head alive: only its first one counts.
        if is_head && !self.in_head.load(Ordering::Relaxed) {
            self.changed();
            self.in_head.store(true, Ordering::Relaxed);
        }
    }

    fn written(&self, polled: &Poll<io::Result<usize>>) {
        let is_blocked = self.is_blocked.load(Ordering::Relaxed);
        match polled {
            Poll::Pending if !is_blocked => {
                self.changed();
                self.is_blocked.store(true, Ordering::Relaxed);
            }
            // Pieces that wait count when they have been read, and nothing else does: answers to pings are no reading.
            Poll::Ready(Ok(bytes)) if is_blocked && self.unread.load(Ordering::Relaxed) == 0 => {
                self.has_read(*bytes);
            }
            _ => {}
        }
    }

    /// All that was to be written has been.
    fn flushed(&self) {
        if self.is_blocked.swap(false, Ordering::Relaxed) {
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
        self.0.changed();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Marks a response whose body goes on for as long as somebody listens: its connection is not quiet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endless;

/// Keeps a connection busy until it is dropped.
pub(crate) struct BusyUntilDropped(Arc<Activity>);

impl BusyUntilDropped {
    pub(crate) fn new(activity: Arc<Activity>) -> Self {
        activity.busy.fetch_add(1, Ordering::Relaxed);
        Self(activity)
    }
}

impl Drop for BusyUntilDropped {
    fn drop(&mut self) {
        drop(Busy(&self.0));
    }
}

/// Something of an answer that the client has not read. Read when dropped.
pub(crate) struct Unread {
    activity: Arc<Activity>,
    bytes: usize,
}

impl Unread {
    pub(crate) fn new(activity: &Arc<Activity>, bytes: usize) -> Self {
        activity.changed();
        activity.unread.fetch_add(1, Ordering::Relaxed);
        Self { activity: Arc::clone(activity), bytes }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if self.activity.unread.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.activity.changed();
        } else if self.bytes > 0 {
            self.activity.has_read(self.bytes);
        }
    }
}

/// Ends when the stream of a connection is dropped.
pub(crate) type StreamEnd = oneshot::Receiver<Infallible>;

/// Ends a connection that has been quiet for too long, and every one when they are all cut. (To look for
/// that where the connection is served would be done with every request.) It ends with the stream: what it
/// holds of the connection's task must not outlive it.
pub(crate) async fn watch(
    (activity, mut stream_end): (Weak<Activity>, StreamEnd),
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
    loop {
        let Some(next) = activity.upgrade().map(|it| it.next(head_limit, idle_limit)) else {
            return;
        };
        let pause = match next {
            Next::LookAfter(pause) => pause,
            Next::Cut { in_head } => {
                tracing::debug!(in_head, "a quiet connection was cut");
                return connection.abort();
            }
        };
        tokio::select! {
            biased;
            () = &mut cut => return connection.abort(),
            _ = &mut stream_end => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// A stream that reports to its activity what it receives.
pub(crate) struct WatchedStream<T> {
    stream: T,
    activity: Arc<Activity>,
    /// Dropped with the stream, and never used otherwise.
    _end: oneshot::Sender<Infallible>,
}

impl<T> WatchedStream<T> {
    /// The stream, and its end.
    pub(crate) fn new(stream: T, activity: Arc<Activity>) -> (Self, StreamEnd) {
        let (end, stream_end) = oneshot::channel();
        (Self { stream, activity, _end: end }, stream_end)
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
        self.activity.written(&polled);
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if polled.is_ready() {
            self.activity.flushed();
        }
        polled
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
        self.activity.written(&polled);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Duration = Duration::from_secs(10);
    const IDLE: Duration = Duration::from_secs(60);

    /// When a connection is cut, since its beginning, that receives a byte and is asked for an answer at
    /// these seconds. An answer takes a second.
    async fn cut_after(byte_at: &[u64], request_at: &[u64]) -> Duration {
        let activity = Arc::new(Activity::default());
        let began = activity.began;
        let connection = tokio::spawn(std::future::pending::<()>());
        let (_keep, cut) = watch::channel(false);
        let (_stream, stream_end) = WatchedStream::new(tokio::io::empty(), Arc::clone(&activity));
        let watched = (Arc::downgrade(&activity), stream_end);
        tokio::spawn(watch(watched, connection.abort_handle(), cut, HEAD, IDLE));
        let events = async {
            let bytes = byte_at.iter().map(|&second| (second, false));
            let requests = request_at.iter().map(|&second| (second, true));
            let mut all: Vec<_> = bytes.chain(requests).collect();
            all.sort_unstable();
            for (second, is_request) in all {
                tokio::time::sleep_until(began + Duration::from_secs(second)).await;
                if is_request {
                    let _busy = activity.request();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                } else {
                    activity.received(b"G");
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = events => {}
            _ = connection => {}
        }
        began.elapsed()
    }

    /// Otherwise each closed connection would hold its task for as long as its head may take.
    #[tokio::test(start_paused = true)]
    async fn a_watcher_ends_with_its_stream() {
        let activity = Arc::new(Activity::default());
        let began = activity.began;
        let connection = tokio::spawn(std::future::pending::<()>());
        let (_keep, cut) = watch::channel(false);
        let (stream, stream_end) = WatchedStream::new(tokio::io::empty(), Arc::clone(&activity));
        let watched = (Arc::downgrade(&activity), stream_end);
        let watcher = tokio::spawn(watch(watched, connection.abort_handle(), cut, HEAD, IDLE));
        tokio::task::yield_now().await;
        drop((stream, activity));
        watcher.await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    fn is_at(cut: Duration, seconds: u64) -> bool {
        let due = Duration::from_secs(seconds);
        // The timer's grain.
        cut >= due && cut <= due + Duration::from_millis(5)
    }

    /// A byte now and then must not keep an answer in memory; a slow reader may take its time.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_drips_is_cut_and_a_slow_one_is_not() {
        for (bytes_per_second, is_cut) in [(0, true), (100, true), (1_000, true), (1_024, false)] {
            let activity = Activity::default();
            activity.written(&Poll::Pending);
            let mut first_cut = None;
            for second in 1..=4_000 {
                tokio::time::advance(Duration::from_secs(1)).await;
                // Neither further requests nor their first bytes prolong it.
                drop(activity.request());
                activity.received(b"G");
                if bytes_per_second > 0 {
                    activity.written(&Poll::Ready(Ok(bytes_per_second)));
                    activity.written(&Poll::Pending);
                }
                if matches!(activity.next(HEAD, IDLE), Next::Cut { .. }) {
                    first_cut = first_cut.or(Some(second));
                }
            }
            assert_eq!(first_cut.is_some(), is_cut, "{bytes_per_second}: {first_cut:?}");
            assert!(bytes_per_second > 0 || first_cut == Some(60), "{first_cut:?}");
            activity.flushed();
            assert_ne!(activity.next(HEAD, IDLE), Next::Cut { in_head: false });
        }
    }

    /// On HTTP/2 the client's windows say what it reads, and the socket is never full.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_drips_by_flow_control_is_cut_and_a_slow_one_is_not() {
        const SECONDS: u64 = 16;
        for (bytes_per_second, is_cut) in [(0, true), (100, true), (1_000, true), (1_024, false)] {
            let activity = Arc::new(Activity::default());
            let _stream = BusyUntilDropped::new(Arc::clone(&activity));
            assert!(matches!(activity.next(HEAD, IDLE), Next::LookAfter(_)));
            let body = Unread::new(&activity, 0);
            let mut was_cut = false;
            for _ in 0..1_000 {
                let piece = Unread::new(&activity, bytes_per_second * SECONDS as usize);
                tokio::time::advance(Duration::from_secs(SECONDS)).await;
                drop(activity.request());
                activity.written(&Poll::Ready(Ok(1 << 20)));
                was_cut |= matches!(activity.next(HEAD, IDLE), Next::Cut { .. });
                drop(piece);
            }
            assert_eq!(was_cut, is_cut, "{bytes_per_second}");
            drop(body);
            assert!(matches!(activity.next(HEAD, IDLE), Next::LookAfter(_)), "all is read");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_connections_are_cut_at_their_limit_and_not_later() {
        // Nothing at all.
        let cut = cut_after(&[], &[]).await;
        assert!(is_at(cut, 60), "{cut:?}");
        // A head that does not end, whenever it begins; further bytes do not prolong it.
        for second in [0, 3, 7, 14, 51] {
            let cut = cut_after(&[second, second + 4, second + 8], &[]).await;
            assert!(is_at(cut, second + 10), "{second}: {cut:?}");
        }
        // A request, answered a second later, and then nothing.
        let cut = cut_after(&[20], &[23]).await;
        assert!(is_at(cut, 84), "{cut:?}");
    }
}
