//! What a request shows: an `Authorization` header and an API key.

use std::fmt;

use arc_swap::ArcSwap;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

use super::MAX_VALUE_BYTES;
use super::api_keys::{ApiKeys, KeyOwner};
use super::refuse::{Refused, api_key_too_long, bad_credentials, unknown_api_key};

/// What becomes of an API key that is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownApiKey {
    /// It is as if it were not there.
    Ignore,
    /// It is refused with 401.
    Refuse,
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
    pub(super) const fn reads_authorization(&self) -> bool {
        self.in_authorization || self.as_bearer
    }

    /// The key and whom it stands for. None: there is none, or it says nothing.
    pub(super) fn check(
        &self,
        headers: &HeaderMap,
        authorization: Option<Authorization<'_>>,
    ) -> Result<Option<(String, KeyOwner)>, Refused> {
        let registered = self.registered.load();
        let refuses = match self.unknown {
            Some(unknown) => unknown == UnknownApiKey::Refuse,
            None => !registered.is_empty(),
        };
        if registered.is_empty() && !self.is_trusted && !refuses {
            // No key means anything here.
            return Ok(None);
        }
        let Some(key) = self.shown(headers, authorization, &registered)? else { return Ok(None) };
        if key.len() > MAX_VALUE_BYTES {
            return Err(api_key_too_long("an API key has at most 256 bytes"));
        }
        let text = std::str::from_utf8(key).ok().filter(|text| !text.is_empty());
        let Some(text) = text else {
            return Err(bad_credentials("the API key is empty or not text"));
        };
        match registered.find(key) {
            Some(owner) => Ok(Some((text.to_owned(), owner.clone()))),
            None if self.is_trusted => Ok(Some((text.to_owned(), KeyOwner::default()))),
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
    ) -> Result<Option<&'a [u8]>, Refused> {
        let named = self.header.as_ref().map(|name| headers.get_all(name));
        let named = named.iter().flat_map(|values| values.iter().map(HeaderValue::as_bytes));
        let other = authorization.filter(|_| self.in_authorization);
        let other = other.and_then(|authorization| authorization.under("apikey"));
        let bearer = authorization.filter(|_| self.as_bearer);
        let bearer = bearer.and_then(|authorization| authorization.under("bearer"));
        // Where there are tokens, one that nobody registered is taken for one.
        let bearer = bearer.filter(|key| !self.has_tokens || registered.find(key).is_some());
        let mut keys = named.chain(other).chain(bearer);
        let first = keys.next();
        if keys.next().is_some() {
            return Err(bad_credentials("there is more than one API key"));
        }
        Ok(first)
    }
}
