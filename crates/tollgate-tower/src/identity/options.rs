//! How callers are identified, as an operator says it.

use std::path::PathBuf;

use http::HeaderName;
use ipnet::IpNet;

use super::address::{AddressSource, DEFAULT_IPV6_PREFIX};
use super::api_keys::ApiKeys;
use super::credentials::UnknownApiKey;
#[cfg(feature = "jwt")]
use super::jwks::JwksError;
use super::tokens::JwtOptions;

/// How callers are identified. The default knows the peer's address and nothing else.
#[derive(Debug, Clone)]
pub struct IdentityOptions {
    /// The header with the API key. None: no header is.
    pub api_key_header: Option<HeaderName>,
    /// Whether `Authorization: ApiKey <key>` is taken, too.
    pub api_key_in_authorization: bool,
    /// Whether `Authorization: Bearer <key>` is taken, too. A bearer that is no registered key is left to
    /// [`Self::jwt`], where tokens are looked at.
    pub api_key_as_bearer: bool,
    /// The registered keys.
    pub api_keys: ApiKeys,
    /// Whether any key is an identity: somebody in front of us has checked it.
    pub trust_api_key_header: bool,
    /// What becomes of a key that is not registered. None: refused if any is registered, else ignored.
    pub unknown_api_key: Option<UnknownApiKey>,
    /// How bearer tokens are verified. None: they are not looked at.
    pub jwt: Option<JwtOptions>,
    /// Who may say whom a request comes from.
    pub trusted_proxies: Vec<IpNet>,
    /// Where they say it.
    pub address_source: AddressSource,
    /// How much of an IPv6 address is one client, in bits.
    pub ipv6_prefix: u8,
}

impl Default for IdentityOptions {
    fn default() -> Self {
        Self {
            api_key_header: Some(HeaderName::from_static("x-api-key")),
            api_key_in_authorization: false,
            api_key_as_bearer: false,
            api_keys: ApiKeys::default(),
            trust_api_key_header: false,
            unknown_api_key: None,
            jwt: None,
            trusted_proxies: Vec::new(),
            address_source: AddressSource::default(),
            ipv6_prefix: DEFAULT_IPV6_PREFIX,
        }
    }
}

/// Why callers cannot be identified this way.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Tokens of any algorithm would be forgeable.
    #[error("name the algorithms that tokens may use")]
    NoAlgorithms,
    /// A public key must never serve as a secret.
    #[error("algorithms with a secret (HS…) and with public keys do not go together")]
    MixedAlgorithms,
    /// Every token would be refused.
    #[error("the key is for none of the algorithms")]
    UnfitKey,
    /// Secrets are not fetched.
    #[error("secrets are not fetched from a URL: use a file, or algorithms with public keys")]
    SecretFromUrl,
    /// Keys that are none.
    #[cfg(feature = "jwt")]
    #[error(transparent)]
    Keys(#[from] JwksError),
    /// A file that cannot be read.
    #[error("{} cannot be read: {}", .0.display(), .1)]
    Unreadable(PathBuf, std::io::Error),
    /// Not a URL to fetch keys from.
    #[error("the URL of the keys: {0}")]
    Url(&'static str),
    /// Keys that could not be fetched.
    #[error("the keys could not be fetched: {0}")]
    Fetch(String),
    /// TLS that cannot be set up.
    #[error("TLS for fetching keys: {0}")]
    Tls(String),
    /// More bits than an address has.
    #[error("an IPv6 prefix has at most 128 bits, not {0}")]
    Ipv6Prefix(u8),
    /// An attribute that has a place of its own, comes twice, or has no proper name.
    #[error("{0:?} is no name for a further attribute")]
    AttributeName(String),
    /// More attributes than a request carries.
    #[error("at most 32 further attributes are taken from claims")]
    TooManyAttributes,
}
