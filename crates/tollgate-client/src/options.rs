//! How a Tollgate is called, and the connections to it.

use std::fmt;
use std::time::Duration;

use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;

use crate::error::ClientError;
use crate::tls::{self, ClientIdentity, ServerTrust};

/// How long a call may take, unless it is said otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// How many refusals are remembered, unless it is said otherwise.
pub const DEFAULT_MAX_REFUSALS: usize = 10_000;

/// For how long a refusal is believed, unless it is said otherwise. Rules change and counters are reset.
pub const DEFAULT_MAX_REFUSAL_AGE: Duration = Duration::from_secs(60);

/// How a Tollgate is called.
#[derive(Clone)]
pub struct ClientOptions {
    /// The bearer token.
    pub token: Option<String>,
    /// How long a call may take, from the first byte to the last.
    pub timeout: Duration,
    /// Which servers are trusted, where the address is `https://`.
    pub trust: ServerTrust,
    /// The certificate for servers that ask for one.
    pub identity: Option<ClientIdentity>,
    /// How many refusals are remembered; 0 switches it off.
    pub max_refusals: usize,
    /// For how long a refusal is believed, at most until it says itself.
    pub max_refusal_age: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            token: None,
            timeout: DEFAULT_TIMEOUT,
            trust: ServerTrust::System,
            identity: None,
            max_refusals: DEFAULT_MAX_REFUSALS,
            max_refusal_age: DEFAULT_MAX_REFUSAL_AGE,
        }
    }
}

// By hand, because the token is a secret.
impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("timeout", &self.timeout)
            .field("trust", &self.trust)
            .field("identity", &self.identity)
            .field("max_refusals", &self.max_refusals)
            .field("max_refusal_age", &self.max_refusal_age)
            .finish()
    }
}

impl ClientOptions {
    /// The `Authorization` header, kept out of logs.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>, ClientError> {
        let Some(token) = &self.token else { return Ok(None) };
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| ClientError::Setup("the token is no header value".to_owned()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// The address of a Tollgate: scheme, host, and perhaps a path in front of the calls'.
pub(crate) fn base(url: &str) -> Result<Uri, ClientError> {
    let uri: Uri =
        url.trim_end_matches('/').parse().map_err(|_| ClientError::Url("cannot be read"))?;
    let Some(authority) = uri.authority() else { return Err(ClientError::Url("names no host")) };
    if authority.as_str().contains('@') {
        return Err(ClientError::Url("must not hold a password; use a token"));
    }
    if uri.query().is_some() {
        return Err(ClientError::Url("must not have a query"));
    }
    match uri.scheme_str() {
        Some("http" | "https") => Ok(uri),
        _ => Err(ClientError::Url("must begin with http:// or https://")),
    }
}

/// Connects, with TLS where the address says so.
pub(crate) fn connector(
    base: &Uri,
    options: &ClientOptions,
    is_grpc: bool,
) -> Result<HttpsConnector<HttpConnector>, ClientError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(options.timeout));
    let is_tls = base.scheme_str() == Some("https");
    let config = tls::config(is_tls, options)?;
    let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    Ok(if is_grpc {
        builder.enable_http2().wrap_connector(http)
    } else {
        builder.enable_http1().wrap_connector(http)
    })
}

/// Whole milliseconds, as calls tell lengths of time.
pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
