//! TLS of a client: which server it trusts, and which certificate it shows.

use std::fmt;
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::error::ClientError;
use crate::options::ClientOptions;

/// Which servers a client trusts.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum ServerTrust {
    /// Those with a certificate for their host name by one of the system's authorities.
    #[default]
    System,
    /// The same, by one of these authorities, in PEM.
    Authorities(Vec<u8>),
    /// Everyone. The connection is encrypted, and anybody may be at the other end.
    Anyone,
}

impl fmt::Debug for ServerTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Authorities(_) => "Authorities",
            Self::Anyone => "Anyone",
        })
    }
}

/// The certificate that a client shows, and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The certificate, and those of authorities between it and the root.
    pub cert_pem: Vec<u8>,
    /// Its key.
    pub key_pem: Vec<u8>,
}

// By hand, because the key is a secret.
impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity").finish_non_exhaustive()
    }
}

fn failed(error: &dyn fmt::Display) -> ClientError {
    ClientError::Setup(format!("TLS: {error}"))
}

/// The configuration of TLS; `is_tls` is false where the address is plain HTTP.
pub(crate) fn config(is_tls: bool, options: &ClientOptions) -> Result<ClientConfig, ClientError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?;
    let builder = match &options.trust {
        ServerTrust::Authorities(pem) => builder.with_root_certificates(authorities(pem)?),
        ServerTrust::Anyone => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        }
        // Where there is no TLS there need be no authorities.
        ServerTrust::System if !is_tls => builder.with_root_certificates(RootCertStore::empty()),
        ServerTrust::System => builder.with_native_roots().map_err(|error| failed(&error))?,
    };
    match &options.identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let chain = certificates(&identity.cert_pem)?;
            let key = PrivateKeyDer::from_pem_slice(&identity.key_pem)
                .map_err(|error| failed(&format!("the client's key: {error}")))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| failed(&format!("the client's certificate: {error}")))
        }
    }
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, ClientError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let list = read.map_err(|error| failed(&error))?;
    if list.is_empty() {
        return Err(failed(&"there is no certificate in the PEM"));
    }
    Ok(list)
}

/// Accepts any certificate. That the server has its key is checked all the same.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
