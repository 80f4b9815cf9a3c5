//! Who calls, as far as it can be verified.
//!
//! An API key is an identity if it is registered, a bearer token if it verifies, an address if the peer has it or
//! trusted proxies vouch for it. What is wrong is refused; what is absent is not, unless it is required.
//!
//! ```no_run
//! # #[cfg(feature = "jwt")] mod example {
//! use std::sync::Arc;
//!
//! use tollgate_tower::identity::{
//!     Algorithm, ApiKeys, Identifier, IdentityOptions, JwtOptions, KeySource,
//! };
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let keys = KeySource::JwksUrl("https://issuer.example/jwks.json".to_owned());
//! let mut jwt = JwtOptions::new(vec![Algorithm::RS256, Algorithm::ES256], keys);
//! jwt.audiences = vec!["my-api".to_owned()];
//! jwt.issuers = vec!["https://issuer.example".to_owned()];
//! let options = IdentityOptions {
//!     api_keys: ApiKeys::parse(&std::fs::read_to_string("api-keys.txt")?)?,
//!     jwt: Some(jwt),
//!     trusted_proxies: vec!["10.0.0.0/8".parse()?],
//!     ..IdentityOptions::default()
//! };
//! let identifier = Arc::new(Identifier::new(options)?);
//! // Keeps the issuer's keys up to date for as long as the process runs.
//! let own = Arc::clone(&identifier);
//! tokio::spawn(async move { own.refresh_loop(std::future::pending()).await });
//! # Ok(())
//! # }
//! # }
//! ```

mod address;
mod api_keys;
#[cfg(feature = "jwt")]
mod claims;
mod credentials;
#[cfg(feature = "jwt")]
mod crypto;
#[cfg(feature = "jwt")]
mod fetch;
mod forwarded;
#[cfg(feature = "jwt")]
mod https;
#[cfg(feature = "jwt")]
mod id_token;
#[cfg(feature = "jwt")]
mod jwks;
#[cfg(feature = "jwt")]
mod jwt;
#[cfg(feature = "jwt")]
mod key_ring;
mod options;
mod refuse;
#[cfg(not(feature = "jwt"))]
#[path = "no_tokens.rs"]
mod tokens;
#[cfg(feature = "jwt")]
mod tokens;

use std::fmt;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use http::HeaderMap;
use tollgate_engine::{Clock, MAX_VALUE_BYTES, SystemClock};
use tollgate_policy::VirtualKey;

pub use address::{AddressSource, DEFAULT_IPV6_PREFIX, MAX_HOPS, MalformedHop, push_address};
pub use api_keys::{ApiKeys, ApiKeysError, KeyOwner, MAX_API_KEYS};
#[cfg(feature = "jwt")]
pub use claims::ClaimNames;
pub use credentials::{UnknownApiKey, VirtualKeySource};
#[cfg(feature = "jwt")]
pub use crypto::install_crypto;
pub use forwarded::is_well_formed_forwarded;
#[cfg(feature = "jwt")]
pub use https::{IssuerAnswer, IssuerClient, issuer_uri};
#[cfg(feature = "jwt")]
pub use id_token::{IdClaims, IdTokenChecks, IdTokenError, MAX_ID_TOKEN_BYTES};
#[cfg(feature = "jwt")]
pub use jsonwebtoken::Algorithm;
#[cfg(feature = "jwt")]
pub use jwks::{
    Jwks, JwksError, MAX_JWKS_BYTES, MAX_JWKS_KEYS, MAX_KEY_ID_BYTES, MIN_SECRET_BYTES,
};
#[cfg(feature = "jwt")]
pub use jwt::MAX_TOKEN_BYTES;
#[cfg(feature = "jwt")]
pub use key_ring::{KeySource, RefreshOptions};
pub use options::{IdentityError, IdentityOptions};
pub use tokens::JwtOptions;

use crate::rejection::Rejection;
use address::Addresses;
use credentials::{ApiKeyCheck, ShownKey, authorization};
use tokens::Tokens;

/// Who calls. Nothing in it is a client's own unverified claim.
#[derive(Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// The API key, if it is registered or the header is trusted; of a virtual key its id.
    pub api_key: Option<String>,
    /// The secret of a virtual key, so that it is not passed on to an upstream. It is never stored.
    #[serde(skip)]
    pub key_secret: Option<String>,
    /// The user.
    pub user_id: Option<String>,
    /// The tenant.
    pub tenant_id: Option<String>,
    /// The plan.
    pub tier: Option<String>,
    /// INTERNAL, PARTNER, EXTERNAL or the like.
    pub client_type: Option<String>,
    /// The client's address, or for IPv6 its network.
    pub ip: Option<String>,
    /// Further attributes, from claims and from the tags of a virtual key.
    pub extra: Vec<(String, String)>,
}

impl Identity {
    /// Drops the plan that a token states where the key belongs to this tenant and the token to another one, or to none:
    /// its plan is not one of the key's tenant, whose limits it would change.
    fn drop_foreign_tier(&mut self, tenant_of_key: Option<&str>) {
        if tenant_of_key.is_some() && self.tenant_id.as_deref() != tenant_of_key {
            self.tier = None;
        }
    }
}

// By hand, because the key is a secret and this goes into logs.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("api_key", &self.api_key.as_ref().map(|_| "…"))
            .field("key_secret", &self.key_secret.as_ref().map(|_| "…"))
            .field("user_id", &self.user_id)
            .field("tenant_id", &self.tenant_id)
            .field("tier", &self.tier)
            .field("client_type", &self.client_type)
            .field("ip", &self.ip)
            .field("extra", &self.extra)
            .finish()
    }
}

/// Finds out who calls. The default knows the peer's address and nothing else.
#[derive(Default)]
pub struct Identifier {
    addresses: Addresses,
    api_keys: ApiKeyCheck,
    tokens: Option<Tokens>,
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identifier")
            .field("addresses", &self.addresses)
            .field("api_keys", &self.api_keys)
            .field("jwt", &self.tokens)
            .finish()
    }
}

impl Identifier {
    /// Knows the peer's address and these API keys, in the header `x-api-key`.
    pub fn with_api_keys(keys: ApiKeys) -> Self {
        let header = Some(http::HeaderName::from_static("x-api-key"));
        let registered = arc_swap::ArcSwap::from_pointee(keys);
        let api_keys = ApiKeyCheck { header, registered, ..ApiKeyCheck::default() };
        Self { api_keys, ..Self::default() }
    }

    /// Identifies as these options say, by the system's clock.
    pub fn new(options: IdentityOptions) -> Result<Self, IdentityError> {
        Self::with_clock(options, Arc::new(SystemClock::new()))
    }

    /// Identifies as these options say, by this clock.
    pub fn with_clock(
        options: IdentityOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, IdentityError> {
        let addresses =
            Addresses::new(&options.trusted_proxies, options.address_source, options.ipv6_prefix)?;
        let tokens = match options.jwt {
            Some(jwt) => Some(Tokens::new(jwt, clock)?),
            None => None,
        };
        let api_keys = ApiKeyCheck {
            header: options.api_key_header,
            in_authorization: options.api_key_in_authorization,
            as_bearer: options.api_key_as_bearer,
            has_tokens: tokens.is_some(),
            is_trusted: options.trust_api_key_header,
            unknown: options.unknown_api_key,
            registered: arc_swap::ArcSwap::from_pointee(options.api_keys),
            virtual_keys: std::sync::OnceLock::new(),
        };
        Ok(Self { addresses, api_keys, tokens })
    }

    /// Who sends a request with these headers from this address. `Err` is the response to a caller whose
    /// credentials are wrong (absent ones are not), or whose address cannot be known.
    pub fn identify(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<Identity, Box<Rejection>> {
        let reads_authorization = self.tokens.is_some() || self.api_keys.reads_authorization();
        let authorization = if reads_authorization { authorization(headers)? } else { None };
        let api_key = self.api_keys.check(headers, authorization)?;
        // A bearer that is a key is no token.
        let is_bearer = |key: &ShownKey| {
            let bearer = authorization.and_then(|authorization| authorization.under("bearer"));
            bearer == Some(key.text().as_bytes())
        };
        let mut identity = match &self.tokens {
            None => Identity::default(),
            Some(_) if api_key.as_ref().is_some_and(is_bearer) => Identity::default(),
            Some(tokens) => {
                match authorization.and_then(|authorization| authorization.under("bearer")) {
                    Some(token) => tokens.verify(token)?,
                    None if tokens.is_required() => return Err(refuse::token_required()),
                    None => Identity::default(),
                }
            }
        };
        match api_key {
            Some(ShownKey::Registered(key, owner)) => {
                // What was registered with a key was decided here, and wins over what an issuer says.
                identity.drop_foreign_tier(owner.tenant_id.as_deref());
                identity.user_id = owner.user_id.or(identity.user_id);
                identity.tenant_id = owner.tenant_id.or(identity.tenant_id);
                identity.tier = owner.tier.or(identity.tier);
                identity.client_type = owner.client_type.or(identity.client_type);
                identity.api_key = Some(key);
            }
            Some(ShownKey::Virtual(secret, key)) => identify_virtual(&mut identity, secret, &key),
            None => {}
        }
        let address = self.client_ip(headers, peer).map_err(refuse::malformed_hop)?;
        identity.ip = address.map(|ip| self.addresses.name(ip));
        Ok(identity)
    }

    /// The client's address: the peer's, or what trusted proxies say.
    pub fn client_ip(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<Option<IpAddr>, MalformedHop> {
        peer.map(|peer| self.addresses.client(headers, peer)).transpose()
    }

    /// Whether this address is a trusted proxy's.
    pub fn peer_is_trusted(&self, peer: IpAddr) -> bool {
        self.addresses.trusts(peer)
    }

    /// The header in which trusted proxies name their client.
    pub const fn address_source(&self) -> AddressSource {
        self.addresses.source()
    }

    /// Whether there is anything that callers could show: keys that are registered or trusted, or tokens.
    pub fn knows_clients(&self) -> bool {
        let keys = &self.api_keys;
        self.tokens.is_some()
            || keys.is_trusted
            || keys.in_authorization
            || keys.as_bearer
            || keys.has_virtual_keys()
            || !keys.registered.load().is_empty()
    }

    /// Accepts the virtual keys that this returns, whenever it is asked. The first one stays.
    pub fn set_virtual_keys(&self, source: VirtualKeySource) {
        let _ = self.api_keys.virtual_keys.set(source);
    }

    /// The registered keys in force.
    pub fn api_keys(&self) -> Arc<ApiKeys> {
        self.api_keys.registered.load_full()
    }

    /// Puts other API keys in force, at once.
    pub fn set_api_keys(&self, keys: ApiKeys) {
        self.api_keys.registered.store(Arc::new(keys));
    }

    /// Keeps the keys that verify tokens up to date until `stop`. Ends at once where they cannot change.
    pub async fn refresh_loop(&self, stop: impl Future<Output = ()> + Send) {
        let Some(tokens) = &self.tokens else { return };
        let (mut stop, mut refresh) = (pin!(stop), pin!(tokens.refresh_loop()));
        poll_fn(|context| {
            if stop.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            refresh.as_mut().poll(context)
        })
        .await;
    }

    /// Whether the keys that verify tokens are there, or none are needed.
    pub fn is_ready(&self) -> bool {
        self.tokens.as_ref().is_none_or(Tokens::is_ready)
    }
}

/// A virtual key is its own identity and decides the tenant; its owner is the user unless a token has verified one.
fn identify_virtual(identity: &mut Identity, secret: String, key: &VirtualKey) {
    identity.drop_foreign_tier(key.tenant());
    identity.api_key = Some(key.id().to_owned());
    identity.key_secret = Some(secret);
    identity.user_id = identity.user_id.take().or_else(|| key.owner().map(str::to_owned));
    identity.tenant_id = key.tenant().map(str::to_owned).or_else(|| identity.tenant_id.take());
    for (name, value) in key.tags() {
        identity.extra.retain(|(known, _)| known != name);
        identity.extra.push((name.to_owned(), value.to_owned()));
    }
}
