//! Listeners and their connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tollgate_store::Store;

use crate::activity::{self, Activity, BusyBody, Endless, WatchedStream};
use crate::config::Config;
use crate::http::Api;

/// Connections waiting to be accepted.
const BACKLOG: i32 = 1024;

/// Concurrent requests of one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;

/// How long a listener rests when the system gives it no connection (out of file handles, say).
const REST: Duration = Duration::from_millis(50);

/// Of so many failures to accept a connection one is logged: about one in ten seconds.
const FAILURES_PER_WARNING: u64 = 200;

/// What a connection gets that is one too many.
const TOO_MANY: &str =
    r#"{"error":{"code":"TOO_MANY_CONNECTIONS","message":"try again in a moment"}}"#;

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

/// Accepts connections until told to stop, then lets those under way finish.
pub(crate) async fn accept<S: Store + 'static>(
    listener: std::net::TcpListener,
    api: Arc<Api<S>>,
    config: Arc<Config>,
    slots: Arc<Semaphore>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let builder = connection_builder(&config);
    let graceful = GracefulShutdown::new();
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
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            tokio::spawn(turn_away(stream));
            continue;
        };
        // Without it small answers may wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        let activity = Arc::new(Activity::default());
        let watched = Arc::downgrade(&activity);
        let io = TokioIo::new(WatchedStream::new(stream, Arc::clone(&activity)));
        let api = Arc::clone(&api);
        let service = service_fn(move |request| {
            let (api, activity) = (Arc::clone(&api), Arc::clone(&activity));
            async move {
                let _busy = activity.request();
                let mut answer = api.answer(request, Some(peer.ip())).await;
                if let Ok(response) = &mut answer
                    && response.extensions().get::<Endless>().is_some()
                {
                    let body = std::mem::take(response.body_mut());
                    let body = BusyBody::new(body, Arc::clone(&activity));
                    *response.body_mut() = axum::body::Body::new(body);
                }
                answer
            }
        });
        let connection = builder.serve_connection(io, service).into_owned();
        let connection = graceful.watch(connection);
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(slot);
        });
        let limits = &config.limits;
        let (head, idle) = (limits.header_timeout, limits.idle_timeout);
        tokio::spawn(activity::watch(watched, task.abort_handle(), head, idle));
    }
    drop(listener);
    let drained = tokio::time::timeout(config.limits.drain_timeout, graceful.shutdown());
    if drained.await.is_err() {
        tracing::warn!("some connections did not finish in time and were cut");
    }
    Ok(())
}

fn connection_builder(config: &Config) -> auto::Builder<TokioExecutor> {
    let limits = &config.limits;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        // The watcher of the connection does this, without a timer for every request.
        .header_read_timeout(None)
        .max_buf_size(limits.max_header_bytes.max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(limits.max_header_bytes as u32)
        .keep_alive_interval(limits.idle_timeout)
        .keep_alive_timeout(limits.header_timeout);
    builder
}

async fn turn_away(mut stream: TcpStream) {
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{TOO_MANY}",
        TOO_MANY.len()
    );
    let answer = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), answer).await;
}
