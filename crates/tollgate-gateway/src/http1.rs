//! One HTTP/1.1 connection to a target, which is polled by the request that uses it.
//!
//! The library means a connection to run on a task of its own. Then every exchange is handed to that task and back,
//! which costs more than the exchange itself. Here the request that is on a connection polls it, and a connection
//! without a request is looked at when it is taken, and now and then. Only what must go on without anybody waiting for
//! it, such as the rest of an upload whose answer is already here, gets a task.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;

use crate::body::{BodyProgress, BodyState, RequestBody};
use crate::idle::IdleTimer;

/// A connection's own work: it ends with the connection.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What became of a request: the head of its answer, or why there is none.
pub(crate) type Sent = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;

/// Wakes the task that polls a connection.
///
/// To take a piece of an answer wakes the connection that it came over, and so the task that takes it, which is
/// about to continue anyway: it would begin once more from the top, for nothing.
struct MutableWaker {
    task: Mutex<Waker>,
    state: AtomicU8,
}

/// States of a bell: it rings, it is muted, and it would have rung.
const OPEN: u8 = 0;
const MUTED: u8 = 1;
const RUNG: u8 = 2;

impl Wake for MutableWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let noted = self.state.compare_exchange(MUTED, RUNG, Ordering::AcqRel, Ordering::Acquire);
        if noted == Err(OPEN) {
            self.task.lock().wake_by_ref();
        }
    }
}

/// A connection that takes one request at a time.
pub(crate) struct Http1 {
    sender: SendRequest<RequestBody>,
    /// None when it has ended, or has a task of its own.
    driver: Option<Driver>,
    bell: Arc<MutableWaker>,
    /// The bell as its driver knows it.
    waker: Waker,
    /// Kept from request to request: to arm one for each costs more than to let one run.
    timer: IdleTimer,
}

impl Http1 {
    pub(crate) fn new(
        sender: SendRequest<RequestBody>,
        driver: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let task = Mutex::new(Waker::noop().clone());
        let bell = Arc::new(MutableWaker { task, state: AtomicU8::new(OPEN) });
        let waker = Waker::from(Arc::clone(&bell));
        let (driver, timer) = (Some(Box::pin(driver) as Driver), IdleTimer::new(Duration::ZERO));
        Self { sender, driver, bell, waker, timer }
    }

    /// Sends a request and waits for the head of its answer. None if that does not come in time.
    ///
    /// The time for an answer begins when the upstream has the request: as long as a body is on its way, or the client
    /// is waited for, which has its own bound, it has not begun.
    pub(crate) fn send<'c>(
        &'c mut self,
        request: Request<RequestBody>,
        timeout: Duration,
        progress: Option<&'c BodyProgress>,
    ) -> impl Future<Output = Option<Sent>> + Send + 'c {
        let sent = self.sender.try_send_request(request);
        self.timer.restart(timeout);
        self.until_head(sent, timeout, progress)
    }

    async fn until_head(
        &mut self,
        sent: impl Future<Output = Sent>,
        timeout: Duration,
        progress: Option<&BodyProgress>,
    ) -> Option<Sent> {
        let Self { driver, bell, waker, timer, .. } = self;
        let mut sent = pin!(sent);
        let mut pieces_seen = 0;
        let answer = poll_fn(|context| {
            // Only the driver can bring the answer, so it alone need know whom to wake.
            let polled = if drive(driver, bell, waker, context) && driver.is_some() {
                sent.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            } else {
                sent.as_mut().poll(context)
            };
            if let Poll::Ready(answer) = polled {
                return Poll::Ready(Some(answer));
            }
            loop {
                ready!(timer.poll_expired(context));
                let pieces = progress.map_or(0, BodyProgress::pieces);
                let is_waiting = progress.is_some_and(|it| it.state() == BodyState::Waiting);
                if pieces == pieces_seen && !is_waiting {
                    return Poll::Ready(None);
                }
                pieces_seen = pieces;
                timer.restart(timeout);
            }
        });
        let answer = answer.await;
        timer.progressed();
        answer
    }

    /// Moves it on behalf of this task. False if it moves by itself, or is over.
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) -> bool {
        drive(&mut self.driver, &self.bell, &self.waker, context)
    }

    /// Takes what has arrived, without being woken by that. A caller that gets something calls again for more. A
    /// caller that gets nothing, and `true` for a wake that was muted, must poll the connection once more before it
    /// waits.
    pub(crate) fn take<T>(&self, take: impl FnOnce() -> T) -> (T, bool) {
        if self.driver.is_none() {
            return (take(), false);
        }
        self.bell.state.store(MUTED, Ordering::Release);
        let taken = take();
        (taken, self.bell.state.swap(OPEN, Ordering::AcqRel) == RUNG)
    }

    /// From now on it moves by itself.
    pub(crate) fn let_go(&mut self) {
        if let Some(driver) = self.driver.take() {
            tokio::spawn(driver);
        }
    }

    /// Whether the last exchange is over and the connection stands.
    pub(crate) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sees what has happened to it while nobody used it. Afterwards it wakes nobody.
    pub(crate) fn look(&mut self) {
        self.drive(&mut Context::from_waker(Waker::noop()));
    }

    /// Waits until the last exchange is over. False if the connection is, too.
    pub(crate) async fn ready(&mut self) -> bool {
        self.let_go();
        self.sender.ready().await.is_ok()
    }
}

fn drive(
    driver: &mut Option<Driver>,
    bell: &MutableWaker,
    waker: &Waker,
    context: &mut Context<'_>,
) -> bool {
    let Some(it) = driver else { return false };
    bell.task.lock().clone_from(context.waker());
    if it.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
        *driver = None;
    }
    true
}
