//! What a request shows: an `Authorization` header and an API key.

use std::fmt;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use tollgate_core::Nanos;
use tollgate_policy::{SECRET_PREFIX, VirtualKey, VirtualKeys};

use super::MAX_VALUE_BYTES;
use super::api_keys::{ApiKeys, KeyOwner};
use super::refuse::{Refused, api_key_too_long, bad_credentials, invalid_api_key, unknown_api_key};

/// What becomes of an API key that is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownApiKey {
    /// It is as if it were not there.
    Ignore,
    /// It is refused with 401.
    Refuse,
}

/// Returns the virtual keys in force, and the time.
pub type VirtualKeySource = Arc<dyn Fn() -> (Arc<VirtualKeys>, Nanos) + Send + Sync>;

/// A key that a request shows and that means something here.
pub(super) enum ShownKey {
    /// A registered or trusted one, in the clear, and whom it stands for.
    Registered(String, KeyOwner),
    /// The secret of a virtual one, and the key.
    Virtual(String, Arc<VirtualKey>),
}

impl ShownKey {
    /// The key in the clear.
    pub(super) fn text(&self) -> &str {
        let (Self::Registered(text, _) | Self::Virtual(text, _)) = self;
        text
    }
}

/// Virtual keys as a request meets them.
struct InForce {
    keys: Arc<VirtualKeys>,
    now: Nanos,
}

impl InForce {
    /// The virtual key of this secret, disabled and expired ones included.
    fn find(&self, secret: &[u8]) -> Option<&Arc<VirtualKey>> {
        if self.keys.is_empty() {
            return None;
        }
        self.keys.find(&Sha256::digest(secret).into(), self.now)
    }
}

/// Whether this can only be the secret of a virtual key.
fn is_secret(key: &[u8]) -> bool {
    key.starts_with(SECRET_PREFIX.as_bytes())
}

/// An `Authorization` header.
#[derive(Clone, Copy)]
pub(super) struct Authorization<'a> {
    scheme: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Authorization<'a> {
    /// What follows the scheme, if it is this one.
    pub(super) fn under(self, scheme: &str) -> Option<&'a [u8]> {
        self.scheme.eq_ignore_ascii_case(scheme.as_bytes()).then_some(self.rest)
    }
}

/// The one `Authorization` header. Of two, nobody could say which one others would have believed.
pub(super) fn authorization(headers: &HeaderMap) -> Result<Option<Authorization<'_>>, Refused> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad_credentials("there is more than one Authorization header"));
    }
    let mut parts = value.as_bytes().trim_ascii().splitn(2, u8::is_ascii_whitespace);
    let scheme = parts.next().unwrap_or_default();
    let rest = parts.next().unwrap_or_default().trim_ascii();
    Ok(Some(Authorization { scheme, rest }))
}

/// Which API keys are identities.
#[expect(clippy::struct_excessive_bools, reason = "each is a setting by itself")]
pub(super) struct ApiKeyCheck {
    pub(super) header: Option<HeaderName>,
    pub(super) in_authorization: bool,
    pub(super) as_bearer: bool,
    /// Whether a bearer that is no key may be a token.
    pub(super) has_tokens: bool,
    pub(super) is_trusted: bool,
    pub(super) unknown: Option<UnknownApiKey>,
    pub(super) registered: ArcSwap<ApiKeys>,
    pub(super) virtual_keys: OnceLock<VirtualKeySource>,
}

impl Default for ApiKeyCheck {
    fn default() -> Self {
        Self {
            header: None,
            in_authorization: false,
            as_bearer: false,
            has_tokens: false,
            is_trusted: false,
            unknown: None,
            registered: ArcSwap::from_pointee(ApiKeys::default()),
            virtual_keys: OnceLock::new(),
        }
    }
}

impl fmt::Debug for ApiKeyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKeyCheck")
            .field("header", &self.header)
            .field("registered", &self.registered.load().len())
            .finish_non_exhaustive()
    }
}

impl ApiKeyCheck {
    pub(super) fn reads_authorization(&self) -> bool {
        self.in_authorization || self.as_bearer || self.virtual_keys.get().is_some()
    }

    /// Whether there are virtual keys.
    pub(super) fn has_virtual_keys(&self) -> bool {
        self.in_force().is_some_and(|virtual_keys| !virtual_keys.keys.is_empty())
    }

    fn in_force(&self) -> Option<InForce> {
        let (keys, now) = self.virtual_keys.get()?();
        Some(InForce { keys, now })
    }

    /// The key and whom it stands for. None: there is none, or it says nothing.
    pub(super) fn check(
        &self,
        headers: &HeaderMap,
        authorization: Option<Authorization<'_>>,
    ) -> Result<Option<ShownKey>, Refused> {
        let registered = self.registered.load();
        let virtual_keys = self.in_force();
        let has_virtual = virtual_keys.as_ref().is_some_and(|all| !all.keys.is_empty());
        let refuses = match self.unknown {
            Some(unknown) => unknown == UnknownApiKey::Refuse,
            None => !registered.is_empty() || has_virtual,
        };
        if registered.is_empty() && !self.is_trusted && !refuses && virtual_keys.is_none() {
            // No key means anything here.
            return Ok(None);
        }
        let shown = self.shown(headers, authorization, &registered, virtual_keys.as_ref())?;
        let Some(key) = shown else { return Ok(None) };
        if key.len() > MAX_VALUE_BYTES {
            return Err(api_key_too_long("an API key has at most 256 bytes"));
        }
        let text = std::str::from_utf8(key).ok().filter(|text| !text.is_empty());
        let Some(text) = text else {
            return Err(bad_credentials("the API key is empty or not text"));
        };
        if let Some(all) = &virtual_keys {
            match all.find(key) {
                Some(found) if found.is_valid(all.now) => {
                    return Ok(Some(ShownKey::Virtual(text.to_owned(), Arc::clone(found))));
                }
                // An id is no secret: only the key's holder may spend its limits.
                None if !is_secret(key) && all.keys.get(text).is_none() => {}
                _ => return Err(invalid_api_key()),
            }
        }
        match registered.find(key) {
            Some(owner) => Ok(Some(ShownKey::Registered(text.to_owned(), owner.clone()))),
            None if self.is_trusted => {
                Ok(Some(ShownKey::Registered(text.to_owned(), KeyOwner::default())))
            }
            None if refuses => Err(unknown_api_key()),
            None => Ok(None),
        }
    }

    /// The one key that is shown.
    fn shown<'a>(
        &self,
        headers: &'a HeaderMap,
        authorization: Option<Authorization<'a>>,
        registered: &ApiKeys,
        virtual_keys: Option<&InForce>,
    ) -> Result<Option<&'a [u8]>, Refused> {
        let named = self.header.as_ref().map(|name| headers.get_all(name));
        let named = named.iter().flat_map(|values| values.iter().map(HeaderValue::as_bytes));
        let other = authorization.filter(|_| self.in_authorization);
        let other = other.and_then(|authorization| authorization.under("apikey"));
        let bearer = authorization.and_then(|authorization| authorization.under("bearer"));
        let is_virtual = |key: &[u8]| {
            virtual_keys
                .is_some_and(|all| is_secret(key) || (self.as_bearer && all.find(key).is_some()))
        };
        // Where there are tokens, one that nobody registered is taken for one.
        let is_key = |key: &&[u8]| {
            is_virtual(key)
                || (self.as_bearer && (!self.has_tokens || registered.find(key).is_some()))
        };
        let bearer = bearer.filter(is_key);
        let mut keys = named.chain(other).chain(bearer);
        let first = keys.next();
        if keys.next().is_some() {
            return Err(bad_credentials("there is more than one API key"));
        }
        Ok(first)
    }
}
