//! Certificates made for one run: an authority, a server on this machine, and a client.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

/// Files with an authority's certificate, and with certificates and keys that it issued. They go when
/// this does.
pub struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// Makes them, in a folder of their own.
    pub fn new() -> Self {
        let certificates = Self { dir: tempfile::tempdir().expect("a temporary directory") };
        let key = KeyPair::generate().expect("a key");
        let mut params = named("Tollgate test authority", Vec::new());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = params.self_signed(&key).expect("a self-signed certificate");
        write(&certificates.ca_file(), &authority.pem());
        let issuer = Issuer::new(params, key);

        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        certificates.issue(&issuer, "server", named("localhost", names));
        certificates.issue(&issuer, "client", named("client", Vec::new()));
        certificates
    }

    fn issue(&self, issuer: &Issuer<KeyPair>, stem: &str, mut params: CertificateParams) {
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, issuer).expect("a signed certificate");
        write(&self.file(&format!("{stem}.crt")), &certificate.pem());
        write(&self.file(&format!("{stem}.key")), &key.serialize_pem());
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The authority's certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.file("ca.crt")
    }

    /// The server's certificate, for `localhost` and `127.0.0.1`.
    pub fn server_cert_file(&self) -> PathBuf {
        self.file("server.crt")
    }

    /// The server's key.
    pub fn server_key_file(&self) -> PathBuf {
        self.file("server.key")
    }

    /// The client's certificate.
    pub fn client_cert_file(&self) -> PathBuf {
        self.file("client.crt")
    }

    /// The client's key.
    pub fn client_key_file(&self) -> PathBuf {
        self.file("client.key")
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

fn named(name: &str, subjects: Vec<String>) -> CertificateParams {
    let mut params = CertificateParams::new(subjects).expect("names of certificates");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn write(path: &Path, pem: &str) {
    fs::write(path, pem).expect("a file in a temporary directory");
}
