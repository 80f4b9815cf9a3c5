//! TLS towards targets.

use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::options::{Http2Mode, TlsOptions};

/// How a pool's targets are spoken to over TLS.
#[derive(Clone)]
pub(crate) struct TlsConnectors {
    /// For requests.
    pub(crate) usual: TlsConnector,
    /// For upgrades, which only HTTP/1.1 has.
    pub(crate) http1: TlsConnector,
}

impl TlsConnectors {
    pub(crate) fn new(options: &TlsOptions, http2: Http2Mode) -> Result<Self, String> {
        let config = client_config(options)?;
        let usual: &[&[u8]] = match http2 {
            Http2Mode::Auto => &[b"h2", b"http/1.1"],
            Http2Mode::PriorKnowledge => &[b"h2"],
            Http2Mode::Never => &[b"http/1.1"],
        };
        Ok(Self {
            usual: connector(config.clone(), usual),
            http1: connector(config, &[b"http/1.1"]),
        })
    }
}

fn connector(mut config: ClientConfig, protocols: &[&[u8]]) -> TlsConnector {
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

fn client_config(options: &TlsOptions) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let builder = if let Some(pem) = &options.ca_pem {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(pem, "the trusted authorities")? {
            roots
                .add(certificate)
                .map_err(|error| format!("a trusted authority cannot be used: {error}"))?;
        }
        builder.with_root_certificates(roots)
    } else {
        builder
            .with_native_roots()
            .map_err(|error| format!("the system's trusted authorities cannot be read: {error}"))?
    };
    match (&options.client_certificate_pem, &options.client_key_pem) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate, "the client certificate")?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| format!("the client key is not PEM: {error}"))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| format!("the client certificate cannot be used: {error}"))
        }
        _ => Err("a client certificate and its key go together".to_owned()),
    }
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{what}: not PEM: {error}"))?;
    if certificates.is_empty() {
        return Err(format!("{what}: there is no certificate in it"));
    }
    Ok(certificates)
}
