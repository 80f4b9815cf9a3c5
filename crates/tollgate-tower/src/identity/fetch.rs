//! Fetching a set of keys from its issuer, within bounds.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, HeaderMap};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::IdentityError;
use super::jwks::{Jwks, MAX_JWKS_BYTES};
use super::key_ring::RefreshOptions;

/// A fetch that takes longer has failed.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Fetches one set of keys.
pub(super) struct JwksFetcher {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    uri: Uri,
}

impl fmt::Debug for JwksFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksFetcher").field("host", &self.uri.host()).finish_non_exhaustive()
    }
}

impl JwksFetcher {
    pub(super) fn new(url: &str, options: &RefreshOptions) -> Result<Self, IdentityError> {
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
        if !is_https && !options.allow_http && !is_loopback(&uri) {
            return Err(IdentityError::Url(
                "keys fetched without TLS can be anybody's; use https://",
            ));
        }
        let config = tls(is_https, options.ca_file.as_deref())?;
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(connector.build());
        Ok(Self { client, uri })
    }

    /// The set, and for how long its issuer says it is good.
    pub(super) async fn fetch(&self) -> Result<(Jwks, Option<Duration>), IdentityError> {
        match tokio::time::timeout(FETCH_TIMEOUT, self.ask()).await {
            Ok(fetched) => fetched,
            Err(_) => Err(IdentityError::Fetch("no answer in time".to_owned())),
        }
    }

    async fn ask(&self) -> Result<(Jwks, Option<Duration>), IdentityError> {
        let failed = |error: &dyn fmt::Display| IdentityError::Fetch(error.to_string());
        let request = Request::get(self.uri.clone())
            .header(ACCEPT, "application/jwk-set+json, application/json")
            .body(Empty::new())
            .map_err(|error| failed(&error))?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| IdentityError::Fetch(with_causes(&error)))?;
        // A redirect is not followed: the configured address is the one that is trusted.
        if response.status() != StatusCode::OK {
            return Err(IdentityError::Fetch(format!("answered {}", response.status())));
        }
        let max_age = max_age(response.headers());
        let body = Limited::new(response.into_body(), MAX_JWKS_BYTES).collect().await;
        let bytes = body.map_err(|error| IdentityError::Fetch(with_causes(&*error)))?.to_bytes();
        Ok((Jwks::parse(&bytes)?, max_age))
    }
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

fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .filter_map(|directive| directive.trim().split_once('='))
        .find(|(name, _)| name.eq_ignore_ascii_case("max-age"))
        .and_then(|(_, seconds)| seconds.trim_matches('"').parse().ok())
        .map(Duration::from_secs)
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
