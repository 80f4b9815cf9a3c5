//! Flags that say which server is asked, and with which certificates.

use std::path::PathBuf;

/// The server that is asked.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Reach {
    /// The server, by http:// or https:// (default: `$TOLLGATE_URL`, else `http://127.0.0.1:8080`).
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The bearer token (default: `$TOLLGATE_TOKEN`, which other users of this machine cannot see).
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// TLS, for servers at https://.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TlsArgs {
    #[command(flatten)]
    pub(crate) certificates: CertificateArgs,
    /// Do not verify the server's certificate: anybody may be at the other end and read the token. For
    /// trials only.
    #[arg(long, conflicts_with = "ca")]
    pub(crate) insecure: bool,
}

/// Certificates, for servers at https://.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct CertificateArgs {
    /// Trust the authorities of this PEM file instead of the system's (default: `$TOLLGATE_CA`).
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// The certificate to show to a server that asks for one, a PEM file (default: `$TOLLGATE_CERT`).
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// Its key, a PEM file (default: `$TOLLGATE_KEY`).
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}
