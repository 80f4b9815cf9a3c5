//! TLS on listeners: certificates, and those of clients.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certificate_end::certificate_end;
use crate::config::{ClientCertificates, TlsConfig};
use crate::own_certificate::OrOwnCertificate;

/// What listeners are to speak within TLS.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds nothing of use.
    #[error("{file}: {problem}")]
    File {
        /// Which.
        file: String,
        /// Why.
        problem: String,
    },
    /// They do not belong together.
    #[error("the certificate and its key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
    /// The authorities of clients cannot be used.
    #[error("tls.client_ca_file cannot be used: {0}")]
    Authorities(String),
}

/// The certificates in force, which can be replaced while connections are accepted.
pub(crate) struct Tls {
    config: TlsConfig,
    current: ArcSwap<ServerConfig>,
    /// When the certificate in force ends, in milliseconds since 1970; 0 if it does not say so.
    ends_at: AtomicI64,
}

impl Tls {
    /// Reads the certificates; `None` where none are configured.
    pub(crate) fn load(config: &TlsConfig) -> Result<Option<Arc<Self>>, TlsError> {
        if config.cert_file.is_none() {
            return Ok(None);
        }
        let (server, ends_at) = read(config)?;
        let current = ArcSwap::from_pointee(server);
        Ok(Some(Arc::new(Self { config: config.clone(), current, ends_at: ends_at.into() })))
    }

    /// Reads the certificates anew. If they are wrong, the ones before stay in force.
    pub(crate) fn reload(&self) {
        match read(&self.config) {
            Ok((config, ends_at)) => {
                self.current.store(Arc::new(config));
                self.ends_at.store(ends_at, Ordering::Relaxed);
                tracing::info!("certificates were read anew");
            }
            Err(error) => {
                tracing::warn!(%error, "the certificates in force stay: new ones are wrong");
            }
        }
    }

    /// When the certificate in force ends, in milliseconds since 1970.
    pub(crate) fn ends_at(&self) -> Option<i64> {
        Some(self.ends_at.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Greets a client.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let acceptor = TlsAcceptor::from(self.current.load_full());
        Ok(Stream::Tls(Box::new(acceptor.accept(stream).await?)))
    }
}

/// The certificates, and when that of the server ends.
fn read(config: &TlsConfig) -> Result<(ServerConfig, i64), TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let (Some(cert_file), Some(key_file)) = (&config.cert_file, &config.key_file) else {
        let problem = "both cert_file and key_file are needed".to_owned();
        return Err(TlsError::File { file: "tls".to_owned(), problem });
    };
    let own = certificates(cert_file)?;
    let ends_at = own.first().and_then(certificate_end).unwrap_or(0);
    let builder = match (&config.client_ca_file, config.client_certificates) {
        (Some(file), mode) if mode != ClientCertificates::Off => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots.add(certificate)?;
            }
            let mut verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if mode == ClientCertificates::Optional {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier =
                verifier.build().map_err(|error| TlsError::Authorities(error.to_string()))?;
            let leaf = own.first().cloned().ok_or_else(|| wrong(cert_file, &"it is empty"))?;
            builder.with_client_cert_verifier(Arc::new(OrOwnCertificate::new(
                verifier, leaf, cert_file,
            )))
        }
        _ => builder.with_no_client_auth(),
    };
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| wrong(key_file, &error))?;
    let mut server = builder.with_single_cert(own, key)?;
    server.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok((server, ends_at))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let list: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(file).map_err(|error| wrong(file, &error))?.collect();
    let list = list.map_err(|error| wrong(file, &error))?;
    if list.is_empty() {
        return Err(wrong(file, &"there is no certificate in it"));
    }
    Ok(list)
}

fn wrong(file: &Path, problem: &impl ToString) -> TlsError {
    TlsError::File { file: file.display().to_string(), problem: problem.to_string() }
}

/// A connection with or without TLS.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub(crate) const fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// The certificate that the client has shown, verified.
    pub(crate) fn client_certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.get_ref().1.peer_certificates()?.first(),
        }
    }
}

macro_rules! either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Self::Plain($stream) => $call,
            Self::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_shutdown(context))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write_vectored(context, slices))
    }
}
