//! One new connection to a target.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::body::RequestBody;
use crate::http1::Http1;
use crate::options::Http2Mode;
use crate::target::Origin;
use crate::tls::TlsConnectors;

/// What one HTTP/2 stream may send before we have read it.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;

/// What all streams of an HTTP/2 connection together may.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// What is gathered of an HTTP/2 stream before the connection takes it.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// What is read from, or gathered for, an HTTP/1.1 connection at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("no connection: {0}")]
    Io(#[from] io::Error),
    #[error("no connection in time")]
    Timeout,
    #[error("the HTTP connection did not come about: {0}")]
    Http(#[from] hyper::Error),
    #[error("the target does not speak HTTP/2")]
    NoHttp2,
}

/// How often an HTTP/2 connection in use is asked whether it still stands.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How long it may take to say so.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that takes requests.
pub(crate) enum Link {
    Http1(Http1),
    Http2(http2::SendRequest<RequestBody>),
}

/// Connects to one target.
pub(crate) struct Connector {
    pub(crate) origin: Origin,
    server_name: Option<ServerName<'static>>,
    tls: Option<TlsConnectors>,
    pub(crate) http2: Http2Mode,
    max_header_bytes: usize,
}

impl Connector {
    pub(crate) fn new(
        origin: Origin,
        tls: Option<TlsConnectors>,
        http2: Http2Mode,
        max_header_bytes: usize,
    ) -> Result<Self, String> {
        let server_name = if origin.is_tls() {
            let name = ServerName::try_from(origin.host_name.clone())
                .map_err(|_| format!("{:?} cannot have a certificate", origin.host_name))?;
            Some(name)
        } else {
            None
        };
        Ok(Self { origin, server_name, tls, http2, max_header_bytes })
    }

    #[cfg(test)]
    pub(crate) fn plain(url: &str) -> Self {
        let origin = Origin::parse(url).unwrap();
        Self::new(origin, None, Http2Mode::Auto, 32 * 1024).unwrap()
    }

    /// Whether upgrades can go there at all.
    pub(crate) fn can_upgrade(&self) -> bool {
        self.http2 != Http2Mode::PriorKnowledge
    }

    /// Connects. The connection lives on the runtime that this is called on.
    pub(crate) async fn connect(&self, for_upgrade: bool) -> Result<Link, ConnectError> {
        let origin = &self.origin;
        let stream = match origin.host_name.parse::<IpAddr>() {
            Ok(address) => TcpStream::connect((address, origin.port)).await?,
            Err(_) => TcpStream::connect((origin.host_name.as_str(), origin.port)).await?,
        };
        // Without it small requests may wait for an acknowledgement.
        stream.set_nodelay(true)?;
        let (Some(tls), Some(name)) = (&self.tls, &self.server_name) else {
            let http2 = self.http2 == Http2Mode::PriorKnowledge && !for_upgrade;
            return self.shake_hands(stream, http2).await;
        };
        let tls = if for_upgrade { &tls.http1 } else { &tls.usual };
        let stream = tls.connect(name.clone(), stream).await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if self.http2 == Http2Mode::PriorKnowledge && !http2 && !for_upgrade {
            return Err(ConnectError::NoHttp2);
        }
        self.shake_hands(stream, http2).await
    }

    async fn shake_hands<S>(&self, stream: S, http2: bool) -> Result<Link, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        if http2 {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .max_send_buf_size(SEND_BUFFER_BYTES)
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .max_header_list_size(u32::try_from(self.max_header_bytes).unwrap_or(u32::MAX))
                .handshake(io)
                .await?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "an HTTP/2 connection to an upstream ended");
                }
            });
            return Ok(Link::Http2(sender));
        }
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(self.max_header_bytes.max(BUFFER_BYTES))
            .handshake(io)
            .await?;
        let driver = async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to an upstream ended");
            }
        };
        Ok(Link::Http1(Http1::new(sender, driver)))
    }
}
