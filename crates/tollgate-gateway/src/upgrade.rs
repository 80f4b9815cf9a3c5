//! Connections that change their protocol, such as WebSocket: bytes are passed on as they come.

use std::any::Any;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tollgate_tower::Held;

use crate::body::GatewayBody;
use crate::forward::Answered;
use crate::headers::{clean_response, has_token};
use crate::respond::Fault;

/// What is gathered in each direction before it must be taken.
const TUNNEL_BUFFER_BYTES: usize = 16 * 1024;

/// A client that wants to change the protocol of its connection.
pub(crate) struct Upgrade {
    protocol: HeaderValue,
    client: OnUpgrade,
    permit: Option<Arc<dyn Any + Send + Sync>>,
}

impl Upgrade {
    /// What a request wants to change to. A change to HTTP/2 is not one that concerns an upstream.
    pub(crate) fn wanted(
        request: &mut Request<Incoming>,
        permit: Option<&Arc<dyn Any + Send + Sync>>,
    ) -> Option<Self> {
        let headers = request.headers();
        let protocol = headers.get(UPGRADE)?;
        let is_wanted = request.version() == Version::HTTP_11
            && has_token(headers, &CONNECTION, "upgrade")
            && !has_token(headers, &UPGRADE, "h2c");
        if !is_wanted {
            return None;
        }
        let protocol = protocol.clone();
        Some(Self { protocol, client: hyper::upgrade::on(request), permit: permit.cloned() })
    }

    pub(crate) fn protocol(&self) -> HeaderValue {
        self.protocol.clone()
    }
}

/// Answers that the protocol changes, and lets bytes pass from then on.
pub(crate) fn answer(
    answered: Answered,
    upgrade: Option<Upgrade>,
    held: Option<Held>,
    idle: Duration,
) -> Result<Response<GatewayBody>, Fault> {
    // Nobody asked for it.
    let Some(upgrade) = upgrade else { return Err(Fault::BadUpstream) };
    let Answered { mut response, lease } = answered;
    let upstream = hyper::upgrade::on(&mut response);
    let (mut parts, _) = response.into_parts();
    let protocol = parts.headers.get(UPGRADE).cloned().unwrap_or(upgrade.protocol);
    clean_response(&mut parts.headers);
    let headers: &mut HeaderMap = &mut parts.headers;
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
    parts.extensions = http::Extensions::default();
    tokio::spawn(async move {
        if let Err(error) = tunnel(upgrade.client, upstream, idle).await {
            tracing::debug!(%error, "an upgraded connection ended");
        }
        drop((lease, held, upgrade.permit));
    });
    Ok(Response::from_parts(parts, GatewayBody::full(Bytes::new())))
}

async fn tunnel(client: OnUpgrade, upstream: OnUpgrade, idle: Duration) -> io::Result<()> {
    let both = async { tokio::try_join!(client, upstream) };
    let both = tokio::time::timeout(idle, both).await.map_err(|_| idle_error())?;
    let (client, upstream) = both.map_err(io::Error::other)?;
    let bytes = AtomicU64::new(0);
    let mut client = Counted { inner: TokioIo::new(client), bytes: &bytes };
    let mut upstream = Counted { inner: TokioIo::new(upstream), bytes: &bytes };
    let copied = tokio::io::copy_bidirectional_with_sizes(
        &mut client,
        &mut upstream,
        TUNNEL_BUFFER_BYTES,
        TUNNEL_BUFFER_BYTES,
    );
    tokio::select! {
        copied = copied => copied.map(|_| ()),
        () = stands_still(&bytes, idle) => Err(idle_error()),
    }
}

fn idle_error() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "nothing was sent for too long")
}

/// Ready when nothing has been read for so long: between one and two times it.
async fn stands_still(bytes: &AtomicU64, idle: Duration) {
    let mut seen = bytes.load(Ordering::Relaxed);
    loop {
        tokio::time::sleep(idle).await;
        let now = bytes.load(Ordering::Relaxed);
        if now == seen {
            return;
        }
        seen = now;
    }
}

/// Counts what is read.
struct Counted<'c, S> {
    inner: S,
    bytes: &'c AtomicU64,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        let read = buffer.filled().len().saturating_sub(before);
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
