//! Calls to a server, over HTTP/1.1, with TLS where its URL says https.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::Request;
use http::header::{CONNECTION, CONTENT_TYPE, IF_MATCH};
use tollgate_client::{ClientError, ClientIdentity, ClientOptions, HttpCaller, ServerTrust};

use crate::args::{CertificateArgs, TlsArgs};
use crate::failure::Failure;
use crate::output;
use crate::ready::variable;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// What is asked.
pub(crate) struct Call<'c> {
    pub(crate) method: &'static str,
    /// With its query.
    pub(crate) path: &'c str,
    /// JSON.
    pub(crate) body: Option<&'c str>,
    /// The only revision or version that may be changed.
    pub(crate) if_match: Option<i64>,
    /// How long the answer may take.
    pub(crate) timeout: Duration,
}

/// An answer: its status and its body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Certificates, as files.
#[derive(Debug, Clone, Default)]
pub(crate) struct TlsFiles {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    /// Any server is accepted, and the user is warned.
    is_insecure: bool,
    /// The server is on this machine and is sent no secret, so any certificate will do.
    is_own_server: bool,
}

impl TlsFiles {
    /// What flags and variables say.
    pub(crate) fn new(args: &TlsArgs) -> Self {
        let files = Self::of(&args.certificates);
        let ca = files.ca.filter(|_| !args.insecure);
        Self { ca, is_insecure: args.insecure, ..files }
    }

    /// The same where every server is verified.
    pub(crate) fn of(args: &CertificateArgs) -> Self {
        let file = |given: &Option<PathBuf>, name| {
            given.clone().or_else(|| variable(name).map(PathBuf::from))
        };
        Self {
            ca: file(&args.ca, "TOLLGATE_CA"),
            cert: file(&args.cert, "TOLLGATE_CERT"),
            key: file(&args.key, "TOLLGATE_KEY"),
            ..Self::default()
        }
    }

    /// The same for a server on this machine: it shows the certificate of the server itself if there is
    /// no other. The server's certificate is not verified, because it need not name the loopback address.
    pub(crate) fn for_own_server(mut self, own: Option<(PathBuf, PathBuf)>) -> Self {
        self.is_own_server = true;
        if let (None, Some((cert, key))) = (&self.cert, own) {
            (self.cert, self.key) = (Some(cert), Some(key));
        }
        self
    }

    fn trust(&self) -> Result<ServerTrust, Failure> {
        Ok(match &self.ca {
            _ if self.is_own_server => ServerTrust::Anyone,
            Some(file) => ServerTrust::Authorities(read(file)?),
            None if self.is_insecure => ServerTrust::Anyone,
            None => ServerTrust::System,
        })
    }

    /// The certificate to show.
    pub(crate) fn identity(&self) -> Result<Option<ClientIdentity>, Failure> {
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                Ok(Some(ClientIdentity { cert_pem: read(cert)?, key_pem: read(key)? }))
            }
            (None, None) => Ok(None),
            _ => {
                Err(Failure::usage(anyhow!("a certificate and its key go together: --cert, --key")))
            }
        }
    }

    /// The authorities to trust instead of the system's, in PEM.
    pub(crate) fn ca_pem(&self) -> Result<Option<Vec<u8>>, Failure> {
        self.ca.as_deref().map(read).transpose()
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(file).with_context(|| file.display().to_string()).map_err(Failure::Usage)
}

/// Calls one server.
pub(crate) struct Caller {
    pub(crate) url: String,
    token: Option<String>,
    tls: TlsFiles,
    /// Made by the first call.
    inner: OnceCell<HttpCaller>,
}

impl Caller {
    pub(crate) const fn new(url: String, token: Option<String>, tls: TlsFiles) -> Self {
        Self { url, token, tls, inner: OnceCell::new() }
    }

    pub(crate) const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks the server, on a connection of its own.
    pub(crate) fn ask(&self, call: &Call<'_>) -> Result<Answer, Failure> {
        let inner = if let Some(inner) = self.inner.get() {
            inner
        } else {
            let made = self.connect()?;
            self.inner.get_or_init(|| made)
        };
        let request = request(call)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answered = runtime.block_on(async {
            tokio::time::timeout(call.timeout, inner.call(request, MAX_ANSWER_BYTES)).await
        });
        match answered {
            Ok(Ok(response)) => {
                let status = response.status().as_u16();
                Ok(Answer { status, body: response.into_body().into() })
            }
            Ok(Err(ClientError::Unreachable(cause))) => Err(Failure::Failed(anyhow!(
                "cannot reach {}: {cause}\nhint: {}",
                self.url,
                hint(&self.url, &cause)
            ))),
            Ok(Err(error)) => Err(Failure::Failed(anyhow!("asking {}: {error}", self.url))),
            Err(_) => Err(Failure::Failed(anyhow!(
                "asking {}: no whole answer came within {} s",
                self.url,
                call.timeout.as_secs()
            ))),
        }
    }

    fn connect(&self) -> Result<HttpCaller, Failure> {
        let is_header = |token: &String| token.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.token.as_ref().is_none_or(is_header) {
            return Err(Failure::usage(anyhow!("a token has no spaces and only ASCII characters")));
        }
        if self.tls.is_insecure {
            output::warn(
                "the server's certificate is not verified (--insecure): anybody may be at the \
                 other end, and read the token",
            )?;
        }
        let options = ClientOptions {
            token: self.token.clone(),
            timeout: CONNECT_TIMEOUT,
            trust: self.tls.trust()?,
            identity: self.tls.identity()?,
            ..ClientOptions::default()
        };
        HttpCaller::new(&self.url, &options).map_err(|error| match error {
            ClientError::Url(_) => Failure::usage(anyhow!(
                "{:?} is no URL such as http://127.0.0.1:8080: {error}",
                self.url
            )),
            error => Failure::usage(error),
        })
    }
}

fn request(call: &Call<'_>) -> Result<Request<bytes::Bytes>, Failure> {
    let mut request =
        Request::builder().method(call.method).uri(call.path).header(CONNECTION, "close");
    if call.body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    if let Some(version) = call.if_match {
        request = request.header(IF_MATCH, format!("\"{version}\""));
    }
    let body = bytes::Bytes::from(call.body.unwrap_or_default().to_owned());
    Ok(request.body(body).with_context(|| format!("the path {:?}", call.path))?)
}

/// What servers answer to a client certificate that they do not trust.
const UNTRUSTED_ALERTS: [&str; 7] = [
    "fatal alert: UnknownCA",
    "fatal alert: DecryptError",
    "fatal alert: BadCertificate",
    "fatal alert: UnsupportedCertificate",
    "fatal alert: CertificateRevoked",
    "fatal alert: CertificateExpired",
    "fatal alert: CertificateUnknown",
];

/// What to do about a connection that was not made, or broke.
pub(crate) fn hint(url: &str, cause: &str) -> &'static str {
    if cause.contains("invalid peer certificate") {
        "the server's certificate is not trusted: give the authority that signed it as --ca FILE, \
         and check that the URL has a name of the certificate"
    } else if cause.contains("CertificateRequired") {
        "the server asks for a client certificate: give one as --cert FILE --key FILE"
    } else if UNTRUSTED_ALERTS.iter().any(|alert| cause.contains(alert)) {
        "the server does not trust the client certificate: give one as --cert FILE --key FILE that \
         an authority in its tls.client_ca_file has signed, and check that it has not expired"
    } else if url.starts_with("https:") && cause.contains("InvalidContentType") {
        "that port does not speak TLS: ask it by http://"
    } else if url.starts_with("http:") && !cause.contains("refused") {
        "if that port speaks TLS, ask it by https://"
    } else {
        "is that where it listens? `tollgate serve` starts a server"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_the_next_step() {
        let of = |url: &str, cause: &str| hint(url, cause).to_owned();
        assert!(of("https://a", "invalid peer certificate: UnknownIssuer").contains("--ca"));
        assert!(of("https://a", "received fatal alert: CertificateRequired").contains("asks for"));
        for alert in UNTRUSTED_ALERTS {
            assert!(of("https://a", &format!("received {alert}")).contains("does not trust"));
        }
        assert!(
            of("https://a", "received corrupt message of type InvalidContentType")
                .contains("http://")
        );
        assert!(of("http://a", "invalid HTTP version parsed").contains("https://"));
        assert!(of("http://a", "Connection refused (os error 111)").contains("tollgate serve"));
    }

    #[test]
    fn a_certificate_without_its_key_is_wrong_usage() {
        let files = TlsFiles { cert: Some("c.pem".into()), ..TlsFiles::default() };
        assert!(matches!(files.identity(), Err(Failure::Usage(_))));
    }
}
