//! Where the server is, and connections to it.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::Uri;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::plan::{Plan, PlanError};

/// A server.
#[derive(Clone)]
pub(crate) struct Endpoint {
    addresses: Vec<SocketAddr>,
    /// As given, for the Host header.
    pub(crate) authority: String,
    /// What comes before the call's own path.
    pub(crate) base: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    failure: LastFailure,
}

/// Why a connection last failed, over all threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastFailure(Arc<Mutex<Option<String>>>);

impl LastFailure {
    pub(crate) fn note(&self, cause: &dyn std::fmt::Display) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause.to_string());
    }

    pub(crate) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Endpoint {
    /// Takes the plan's URL apart and looks its host up.
    pub(crate) fn new(plan: &Plan) -> Result<Self, PlanError> {
        let uri: Uri = plan.url.parse().map_err(|_| PlanError::Url("cannot be read"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(PlanError::Url("must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or(PlanError::Url("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(PlanError::Url("must not hold a password; give a token or a header"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let found = (host, port).to_socket_addrs();
        let addresses: Vec<SocketAddr> =
            found.map_err(|_| PlanError::Url("names a host without an address"))?.collect();
        let tls = if is_tls {
            let name = ServerName::try_from(host.to_owned());
            let name = name.map_err(|_| PlanError::Url("names no host that TLS knows"))?;
            Some((connector(plan)?, name))
        } else {
            None
        };
        let base = uri.path().trim_end_matches('/').to_owned();
        let failure = LastFailure::default();
        Ok(Self { addresses, authority: authority.as_str().to_owned(), base, tls, failure })
    }

    /// Why a connection last failed.
    pub(crate) const fn failure(&self) -> &LastFailure {
        &self.failure
    }

    pub(crate) const fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Connects to the first address that answers.
    pub(crate) async fn connect(&self, traffic: &Rc<Traffic>) -> io::Result<Stream> {
        let made = self.connect_to_any(traffic).await;
        made.inspect_err(|error| self.failure.note(error))
    }

    async fn connect_to_any(&self, traffic: &Rc<Traffic>) -> io::Result<Stream> {
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in &self.addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return self.secure(stream, traffic).await,
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn secure(&self, stream: TcpStream, traffic: &Rc<Traffic>) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        let stream = Counted { stream, traffic: Rc::clone(traffic) };
        Ok(match &self.tls {
            None => Stream::Plain(stream),
            Some((connector, name)) => {
                Stream::Tls(Box::new(connector.connect(name.clone(), stream).await?))
            }
        })
    }
}

fn connector(plan: &Plan) -> Result<TlsConnector, PlanError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| PlanError::Tls(format!("TLS cannot be set up: {error}")))?;
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &plan.ca_pem {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate
                .map_err(|error| PlanError::Tls(format!("the authority is not PEM: {error}")))?;
            roots.add(certificate).map_err(|error| {
                PlanError::Tls(format!("the authority cannot be used: {error}"))
            })?;
        }
    } else {
        // Some of a system's certificates may be odd; the others still count.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        return Err(PlanError::Tls("there is no authority to trust; give one".to_owned()));
    }
    let builder = builder.with_root_certificates(roots);
    let mut config = match &plan.identity_pem {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let wrong = |error: &dyn std::fmt::Display| {
                PlanError::Tls(format!("the client's certificate cannot be used: {error}"))
            };
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
            let chain = chain.map_err(|error| wrong(&error))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong(&error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| wrong(&error))?
        }
    };
    let protocol: &[u8] = if plan.target.is_grpc() { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Bytes on the wire, of one thread.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent_bytes: Cell<u64>,
    pub(crate) received_bytes: Cell<u64>,
}

/// A connection, with or without TLS.
pub(crate) enum Stream {
    Plain(Counted),
    Tls(Box<TlsStream<Counted>>),
}

/// A socket whose bytes are counted.
pub(crate) struct Counted {
    stream: TcpStream,
    traffic: Rc<Traffic>,
}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        let received = &this.traffic.received_bytes;
        received.set(received.get() + (buffer.filled().len() - before) as u64);
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.count(polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.count(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

impl Counted {
    fn count(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &polled {
            let sent = &self.traffic.sent_bytes;
            sent.set(sent.get() + *count as u64);
        }
        polled
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
