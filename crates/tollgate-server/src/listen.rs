//! Listeners and their connections.

use std::future::Future;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use sha2::{Digest as _, Sha256};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tollgate_gateway::FramingWatch;

use crate::activity::{self, Activity, WatchedStream};
use crate::addresses::{AddressLimit, ConnectionPermit};
use crate::buffered::{BUFFERED, Counted, UNCOUNTED_BYTES};
use crate::busy_body::BusyBody;
use crate::config::Limits;
use crate::http::respond::ApiError;
use crate::tls::{Stream, Tls};

/// Connections waiting to be accepted.
const BACKLOG: i32 = 1024;

/// Concurrent requests of one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;

/// HTTP/2 streams that a client may open and cancel before they are answered; one more ends its
/// connection.
const MAX_RESET_STREAMS: usize = 32;

/// How long a listener rests when the system gives it no connection (out of file handles, say).
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// After connections are cut, so long until what they held is on its way back.
const AFTER_CUT: Duration = Duration::from_millis(50);

/// The longest that the end waits for requests to be settled.
const SETTLING: Duration = Duration::from_secs(2);

/// Of so many failures to accept a connection one is logged: about one in ten seconds.
const FAILURES_PER_WARNING: u64 = 200;

/// What a connection gets that is one too many.
const TOO_MANY: &str =
    r#"{"error":{"code":"TOO_MANY_CONNECTIONS","message":"try again in a moment"}}"#;

/// Who is connected, and how.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) is_tls: bool,
    /// The SHA-256 of the certificate that the client has shown, if it is one of ours.
    pub(crate) client_certificate: Option<[u8; 32]>,
    /// Whether what was sent can be read in two ways, where that is watched.
    pub(crate) framing: Option<Arc<FramingWatch>>,
    /// Its place among the connections, where it may outlive its HTTP.
    pub(crate) permit: Option<Arc<ConnectionPermit>>,
}

/// Answers the requests of a listener.
pub(crate) trait Answer: Send + Sync + 'static {
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Whether connections may become something else than HTTP.
    const UPGRADES: bool = false;

    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: Connection,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Whether the body of this answer keeps its connection busy until it ends.
    fn is_endless(response: &Response<Self::Body>) -> bool;
}

/// What all connections of a listener share.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) limits: Limits,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) addresses: Arc<AddressLimit>,
    pub(crate) tls: Option<Arc<Tls>>,
    /// Whether HTTP/1 is not spoken.
    pub(crate) http2_only: bool,
}

/// One socket per worker on the same port; the kernel spreads connections among them.
pub(crate) fn bind(addr: SocketAddr, workers: usize) -> io::Result<Vec<std::net::TcpListener>> {
    // Sharing a port is for our own workers. Whether somebody else has it is asked without it.
    let first = socket(addr, false)?;
    let addr = first.local_addr()?;
    drop(first);
    (0..workers.max(1)).map(|_| socket(addr, true)).collect()
}

fn socket(addr: SocketAddr, shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    #[cfg(unix)]
    socket.set_reuse_port(shared)?;
    #[cfg(not(unix))]
    let _ = shared;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts connections until `stop` is set, then lets those under way finish.
pub(crate) async fn accept<A: Answer>(
    listener: std::net::TcpListener,
    answers: Arc<A>,
    door: Door,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let local = listener.local_addr()?;
    let builder = Arc::new(connection_builder(&door));
    let graceful =
        Arc::new(Ending { graceful: GracefulShutdown::new(), cut: watch::Sender::new(false) });
    let mut failures = 0_u64;
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if failures.is_multiple_of(FAILURES_PER_WARNING) {
                    tracing::warn!(%error, failures, "connections cannot be accepted");
                }
                failures += 1;
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let of_address = door.addresses.acquire(peer.ip());
        let of_all = Arc::clone(&door.slots).try_acquire_owned();
        let (Some(of_address), Ok(of_all)) = (of_address, of_all) else {
            turn_away(stream, door.tls.is_some() || door.http2_only);
            continue;
        };
        let slot = ConnectionPermit::new(of_all, of_address);
        // Without it small answers may wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &door.tls else {
            let to = (peer, local);
            serve(Stream::Plain(stream), to, &answers, &door, &builder, &graceful, slot);
            continue;
        };
        let (tls, answers, door) = (Arc::clone(tls), Arc::clone(&answers), door.clone());
        let (builder, watching) = (Arc::clone(&builder), Arc::downgrade(&graceful));
        tokio::spawn(async move {
            let greeted = tokio::time::timeout(door.limits.header_timeout, tls.accept(stream));
            match (greeted.await, watching.upgrade()) {
                (Ok(Ok(stream)), Some(graceful)) => {
                    serve(stream, (peer, local), &answers, &door, &builder, &graceful, slot);
                }
                (Ok(Err(error)), _) => tracing::debug!(%error, "no TLS with a client"),
                _ => tracing::debug!("a client did not greet in time"),
            }
        });
    }
    drop(listener);
    // Greetings under way hold no share of it for longer than it takes to begin serving.
    let Ending { graceful, cut } = loop_until_sole(graceful).await;
    let drained = tokio::time::timeout(door.limits.drain_timeout, graceful.shutdown());
    if drained.await.is_err() {
        tracing::warn!("some connections did not finish in time and were cut");
        // They end while there still is a runtime, so that what they hold is given back and settled.
        tollgate_tower::set_stopping();
        cut.send_replace(true);
        tokio::time::sleep(AFTER_CUT).await;
    }
    let settled = async {
        while tollgate_tower::unfinished() > 0 {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
        }
    };
    if tokio::time::timeout(SETTLING, settled).await.is_err() {
        tracing::warn!("some requests were not settled in time: their estimates stay charged");
    }
    Ok(())
}

/// How connections end.
struct Ending {
    /// Those that finish.
    graceful: GracefulShutdown,
    /// Those that do not.
    cut: watch::Sender<bool>,
}

async fn loop_until_sole(mut shared: Arc<Ending>) -> Ending {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(sole) => return sole,
            Err(still) => shared = still,
        }
        tokio::task::yield_now().await;
    }
}

/// Answers the requests of one connection, on a task of its own.
fn serve<A: Answer>(
    stream: Stream,
    (peer, local): (SocketAddr, SocketAddr),
    answers: &Arc<A>,
    door: &Door,
    builder: &auto::Builder<TokioExecutor>,
    Ending { graceful, cut }: &Ending,
    slot: ConnectionPermit,
) {
    let digest = |certificate: &rustls::pki_types::CertificateDer<'_>| -> [u8; 32] {
        Sha256::digest(certificate).into()
    };
    let mut connection = Connection {
        peer,
        local,
        is_tls: stream.is_tls(),
        client_certificate: stream.client_certificate().map(digest),
        framing: None,
        permit: None,
    };
    let slot = Arc::new(slot);
    let activity = Arc::new(Activity::default());
    let watched = Arc::downgrade(&activity);
    let (stream, stream_end) = WatchedStream::new(stream, Arc::clone(&activity));
    let task = if A::UPGRADES {
        let (stream, framing) = tollgate_gateway::WatchedStream::new(stream);
        connection.framing = Some(framing);
        connection.permit = Some(Arc::clone(&slot));
        let service = service_fn(answering(Arc::clone(answers), activity, connection));
        let io = TokioIo::new(stream);
        let connection = builder.serve_connection_with_upgrades(io, service).into_owned();
        spawn(graceful.watch(connection), slot)
    } else {
        let service = service_fn(answering(Arc::clone(answers), activity, connection));
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        spawn(graceful.watch(connection), slot)
    };
    let (head, idle) = (door.limits.header_timeout, door.limits.idle_timeout);
    tokio::spawn(activity::watch((watched, stream_end), task, cut.subscribe(), head, idle));
}

/// What is answered, or what is said instead where that finds no room.
type AnswerBody<A> = Either<BusyBody<<A as Answer>::Body>, axum::body::Body>;

type Answered<A> = Result<Response<AnswerBody<A>>, std::convert::Infallible>;

/// Answers requests, each of which keeps its connection busy.
fn answering<A: Answer>(
    answers: Arc<A>,
    activity: Arc<Activity>,
    connection: Connection,
) -> impl Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Answered<A>> + Send>> {
    move |request| {
        let (answers, activity) = (Arc::clone(&answers), Arc::clone(&activity));
        let connection = connection.clone();
        Box::pin(async move {
            let _busy = activity.request();
            let is_http2 = request.version() == http::Version::HTTP_2;
            let changes_nothing = request.method().is_safe();
            let peer = connection.peer.ip();
            let mut response = answers.answer(request, connection).await;
            if A::is_endless(&response) {
                return Ok(response.map(|body| {
                    let body = BusyBody::new(body, &activity, is_http2);
                    Either::Left(body.keeping_busy(Arc::clone(&activity)))
                }));
            }
            let bytes = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
            let held = match response.extensions_mut().remove::<Counted>() {
                Some(Counted(held)) => held,
                None if bytes <= UNCOUNTED_BYTES => None,
                None if changes_nothing => {
                    let Some(held) = BUFFERED.hold(Some(peer), bytes) else {
                        return Ok(ApiError::Busy.respond().map(Either::Right));
                    };
                    Some(Arc::new(held))
                }
                // An error would hide that it was done.
                None => Some(Arc::new(BUFFERED.hold_anyway(peer, bytes))),
            };
            Ok(response
                .map(|body| Either::Left(BusyBody::new(body, &activity, is_http2).holding(held))))
        })
    }
}

fn spawn<E: std::fmt::Display + Send>(
    connection: impl Future<Output = Result<(), E>> + Send + 'static,
    slot: Arc<ConnectionPermit>,
) -> tokio::task::AbortHandle {
    let task = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended early");
        }
        drop(slot);
    });
    task.abort_handle()
}

fn connection_builder(door: &Door) -> auto::Builder<TokioExecutor> {
    let limits = &door.limits;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if door.http2_only {
        builder = builder.http2_only();
    }
    builder
        .http1()
        // The watcher of the connection does this, without a timer for every request.
        .header_read_timeout(None)
        .max_buf_size(limits.max_header_bytes.max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_RESET_STREAMS)
        .max_header_list_size(limits.max_header_bytes as u32)
        .keep_alive_interval(limits.idle_timeout)
        .keep_alive_timeout(limits.header_timeout);
    builder
}

/// Says that there are too many, to clients that would understand it. A new connection has room for so few bytes; one
/// that has not is closed without them, so that nobody is waited for.
fn turn_away(stream: TcpStream, is_silent: bool) {
    if is_silent {
        return;
    }
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{TOO_MANY}",
        TOO_MANY.len()
    );
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write(answer.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
}
