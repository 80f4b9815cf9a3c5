//! Calls to an issuer of tokens: within a deadline, a size, and without following redirects.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::IdentityError;

/// A call that takes longer has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// An answer of an issuer, whole.
#[derive(Debug)]
pub struct IssuerAnswer {
    /// Its status. A redirect is not followed: the configured address is the one that is trusted.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// Calls issuers of tokens.
#[derive(Clone)]
pub struct IssuerClient(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl fmt::Debug for IssuerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerClient").finish_non_exhaustive()
    }
}

impl IssuerClient {
    /// A client that trusts the authorities of a file, or else those of the system. Without `is_https` there need be
    /// none.
    pub fn new(is_https: bool, ca_file: Option<&Path>) -> Result<Self, IdentityError> {
        let config = tls(is_https, ca_file)?;
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1();
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector.build())))
    }

    /// Sends a request and reads the answer, of at most `max_bytes`.
    pub async fn call(
        &self,
        request: Request<Full<Bytes>>,
        max_bytes: usize,
    ) -> Result<IssuerAnswer, IdentityError> {
        let call = async {
            let response = self.0.request(request).await;
            let response = response.map_err(|error| IdentityError::Fetch(with_causes(&error)))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, max_bytes).collect().await;
            let body = body.map_err(|error| IdentityError::Fetch(with_causes(&*error)))?.to_bytes();
            Ok(IssuerAnswer { status: head.status, headers: head.headers, body })
        };
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(answered) => answered,
            Err(_) => Err(IdentityError::Fetch("no answer in time".to_owned())),
        }
    }
}

/// The address of an issuer: with TLS, or on this host. Whether it has TLS comes with it.
pub fn issuer_uri(url: &str, allow_http: bool) -> Result<(Uri, bool), IdentityError> {
    let uri: Uri = url.parse().map_err(|_| IdentityError::Url("it cannot be read"))?;
    let Some(authority) = uri.authority() else {
        return Err(IdentityError::Url("it names no host"));
    };
    if authority.as_str().contains('@') {
        return Err(IdentityError::Url("it must not hold a password"));
    }
    let is_https = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(IdentityError::Url("it must begin with https://")),
    };
    if !is_https && !allow_http && !is_loopback(&uri) {
        return Err(IdentityError::Url("keys fetched without TLS can be anybody's; use https://"));
    }
    Ok((uri, is_https))
}

fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn tls(is_https: bool, ca_file: Option<&Path>) -> Result<ClientConfig, IdentityError> {
    let failed = |error: &dyn fmt::Display| IdentityError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?;
    let builder = match ca_file {
        Some(path) => {
            let pem = std::fs::read(path)
                .map_err(|error| IdentityError::Unreadable(path.to_owned(), error))?;
            builder.with_root_certificates(roots(&pem)?)
        }
        // Where there is no TLS there need be no authorities.
        None if !is_https => builder.with_root_certificates(RootCertStore::empty()),
        None => builder.with_native_roots().map_err(|error| failed(&error))?,
    };
    Ok(builder.with_no_client_auth())
}

fn roots(pem: &[u8]) -> Result<RootCertStore, IdentityError> {
    let failed = |error: &dyn fmt::Display| IdentityError::Tls(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| failed(&error))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    if roots.is_empty() {
        return Err(IdentityError::Tls("the file of authorities has none".to_owned()));
    }
    Ok(roots)
}

/// An error and what caused it, in one line.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
