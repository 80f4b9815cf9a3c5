//! Accepts the server's own certificate from clients.
//!
//! `tollgate health` runs next to the server and reads its configuration, so it shows the certificate of
//! the server. That one is often no valid client certificate: it is for servers only, or issued by another
//! authority than those of clients. A client that can sign with its key is on the server's side, or can
//! impersonate the server already, so accepting it gives nothing to anybody else.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// The largest certificate file that is read again for a comparison.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Verifies as `inner` does, and accepts the server's own certificate, too.
#[derive(Debug)]
pub(crate) struct OrOwnCertificate {
    inner: Arc<dyn ClientCertVerifier>,
    own: CertificateDer<'static>,
    cert_file: PathBuf,
}

impl OrOwnCertificate {
    pub(crate) fn new(
        inner: Arc<dyn ClientCertVerifier>,
        own: CertificateDer<'static>,
        cert_file: &Path,
    ) -> Self {
        Self { inner, own, cert_file: cert_file.to_owned() }
    }

    /// Whether this is the certificate in use, or the one that replaced it on disk since.
    fn is_own(&self, shown: &CertificateDer<'_>) -> bool {
        shown == &self.own || self.on_disk().is_some_and(|renewed| *shown == renewed)
    }

    fn on_disk(&self) -> Option<CertificateDer<'static>> {
        let size = std::fs::metadata(&self.cert_file).ok()?.len();
        if size > MAX_FILE_BYTES {
            return None;
        }
        CertificateDer::from_pem_file(&self.cert_file).ok()
    }
}

impl ClientCertVerifier for OrOwnCertificate {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now);
        // The handshake proves afterwards that the client has the key.
        verified.or_else(|error| {
            if self.is_own(end_entity) { Ok(ClientCertVerified::assertion()) } else { Err(error) }
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
