//! From the `identity` section to what knows callers, kept up to date.

use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::watch;
use tollgate_tower::Identifier;
use tollgate_tower::identity::{
    AddressSource, Algorithm, ApiKeys, ClaimNames, IdentityOptions, JwtOptions, KeySource,
    RefreshOptions, UnknownApiKey,
};

use crate::config::{AddressHeader, IdentityConfig, JwtConfig};

/// The largest file of registered keys.
const MAX_KEYS_BYTES: u64 = 256 << 20;

/// Why callers cannot be identified as the configuration says.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct IdentityConfigError {
    key: &'static str,
    problem: String,
}

fn wrong(key: &'static str, problem: impl std::fmt::Display) -> IdentityConfigError {
    IdentityConfigError { key, problem: format!("{problem}") }
}

/// Identifies callers, and can reload its files.
pub(crate) struct Callers {
    pub(crate) identifier: Arc<Identifier>,
    config: IdentityConfig,
}

impl Callers {
    pub(crate) fn new(config: &IdentityConfig) -> Result<Self, IdentityConfigError> {
        let identifier = Identifier::new(options(config)?);
        let identifier = identifier.map_err(|error| wrong("identity", error))?;
        Ok(Self { identifier: Arc::new(identifier), config: config.clone() })
    }

    /// Reads the registered keys anew. If they are wrong, those before stay in force.
    pub(crate) fn reload(&self) {
        match api_keys(self.config.api_keys_file.as_deref()) {
            Ok(keys) => {
                let count = keys.len();
                self.identifier.set_api_keys(keys);
                tracing::info!(count, "registered API keys were read anew");
            }
            Err(error) => tracing::warn!(%error, "the API keys in force stay: new ones are wrong"),
        }
    }

    /// Keeps the keys that verify tokens up to date.
    pub(crate) async fn keep_up_to_date(&self, mut stop: watch::Receiver<bool>) {
        let stopped = async move {
            let _ = stop.wait_for(|stop| *stop).await;
        };
        self.identifier.refresh_loop(stopped).await;
    }
}

/// The networks of proxies that are trusted, as far as they can be read.
pub(crate) fn trusted_proxies(config: &IdentityConfig) -> Vec<IpNet> {
    config.trusted_proxies.iter().filter_map(|text| network(text)).collect()
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<std::net::IpAddr>().map(IpNet::from).ok())
}

fn options(config: &IdentityConfig) -> Result<IdentityOptions, IdentityConfigError> {
    let header = http::HeaderName::from_bytes(config.api_key_header.as_bytes());
    let network = |text: &String| {
        network(text).ok_or_else(|| {
            let message = format!("{text:?} is no address and no network such as 10.0.0.0/8");
            wrong("identity.trusted_proxies", message)
        })
    };
    Ok(IdentityOptions {
        api_key_header: Some(header.map_err(|error| wrong("identity.api_key_header", error))?),
        api_keys: api_keys(config.api_keys_file.as_deref())?,
        trust_api_key_header: config.trust_api_key_header,
        api_key_as_bearer: config.api_key_as_bearer,
        // A file that was emptied by mistake makes nobody anonymous.
        unknown_api_key: config.api_keys_file.as_ref().map(|_| UnknownApiKey::Refuse),
        jwt: jwt(&config.jwt)?,
        trusted_proxies: config.trusted_proxies.iter().map(network).collect::<Result<_, _>>()?,
        address_source: match config.address_header {
            AddressHeader::XForwardedFor => AddressSource::XForwardedFor,
            AddressHeader::Forwarded => AddressSource::Forwarded,
            AddressHeader::None => AddressSource::None,
        },
        ipv6_prefix: config.ipv6_prefix,
        ..IdentityOptions::default()
    })
}

/// The registered keys.
pub(crate) fn read_api_keys(config: &IdentityConfig) -> Result<ApiKeys, IdentityConfigError> {
    api_keys(config.api_keys_file.as_deref())
}

fn api_keys(file: Option<&Path>) -> Result<ApiKeys, IdentityConfigError> {
    let Some(file) = file else { return Ok(ApiKeys::default()) };
    let wrong_file =
        |problem: String| wrong("identity.api_keys_file", format!("{}: {problem}", file.display()));
    let read = || -> std::io::Result<String> {
        use std::io::Read as _;
        let mut text = String::new();
        std::fs::File::open(file)?.take(MAX_KEYS_BYTES).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|error| wrong_file(error.to_string()))?;
    ApiKeys::parse(&text).map_err(|error| wrong_file(error.to_string()))
}

fn jwt(config: &JwtConfig) -> Result<Option<JwtOptions>, IdentityConfigError> {
    let key = "identity.jwt";
    let sources = [
        config.key_file.clone().map(KeySource::PemFile),
        config.secret_file.clone().map(KeySource::SecretFile),
        config.jwks_file.clone().map(KeySource::JwksFile),
        config.jwks_url.clone().map(KeySource::JwksUrl),
    ];
    let mut sources = sources.into_iter().flatten();
    let (source, another) = (sources.next(), sources.next());
    if config.algorithms.is_empty() {
        return match source {
            None if config.required => {
                Err(wrong("identity.jwt.required", "needs algorithms and a key"))
            }
            None => Ok(None),
            Some(_) => Err(wrong(
                "identity.jwt.algorithms",
                "must name the algorithms that tokens may use, such as [RS256]",
            )),
        };
    }
    if another.is_some() {
        return Err(wrong(key, "has more than one of key_file, secret_file, jwks_file, jwks_url"));
    }
    let Some(source) = source else {
        return Err(wrong(key, "needs one of key_file, secret_file, jwks_file, jwks_url"));
    };
    let algorithm = |name: &String| {
        name.parse::<Algorithm>().map_err(|_| {
            let message = format!("{name:?} is none of HS256, RS256, PS256, ES256, EdDSA, …");
            wrong("identity.jwt.algorithms", message)
        })
    };
    let algorithms = config.algorithms.iter().map(algorithm).collect::<Result<_, _>>()?;
    let [user_id, tenant_id, tier] = config.claims.clone();
    Ok(Some(JwtOptions {
        required: config.required,
        leeway: config.leeway,
        audiences: config.audiences.clone(),
        issuers: config.issuers.clone(),
        claims: ClaimNames { user_id, tenant_id, tier, ..ClaimNames::default() },
        refresh: RefreshOptions { interval: config.jwks_refresh, ..RefreshOptions::default() },
        ..JwtOptions::new(algorithms, source)
    }))
}
