//! Bearer tokens: verified with pinned algorithms and known keys, or refused.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::{Algorithm, AlgorithmFamily, Validation, decode, decode_header};
use tollgate_core::Nanos;
use tollgate_engine::MAX_ATTRIBUTES;

use super::claims::{ClaimChecks, ClaimNames, Claims};
use super::jwks::{MAX_KEY_ID_BYTES, NoKey};
use super::key_ring::{KeyRing, KeySource, RefreshOptions};
use super::refuse::{Refused, invalid_token, keys_unavailable};
use super::{Identity, IdentityError, MAX_VALUE_BYTES};

/// The longest token.
pub const MAX_TOKEN_BYTES: usize = 8_192;

/// By how much clocks may differ, unless it is said otherwise.
const DEFAULT_LEEWAY: Duration = Duration::from_secs(30);

/// How bearer tokens are verified.
#[derive(Debug, Clone)]
pub struct JwtOptions {
    /// The only algorithms that are taken. All of HMAC, or none.
    pub algorithms: Vec<Algorithm>,
    /// Where the keys are.
    pub key: KeySource,
    /// Whether a request without a token is refused. An API key does not stand in for it.
    pub required: bool,
    /// Whether a token without `exp` is refused.
    pub requires_expiry: bool,
    /// By how much the issuer's clock may differ from this one.
    pub leeway: Duration,
    /// The names of this service: `aud` has one of them. With none, tokens with `aud` are refused.
    pub audiences: Vec<String>,
    /// Who may issue tokens: `iss` is one of them. With none, `iss` is not looked at.
    pub issuers: Vec<String>,
    /// Which claims say who it is.
    pub claims: ClaimNames,
    /// How keys are kept up to date.
    pub refresh: RefreshOptions,
}

impl JwtOptions {
    /// Tokens of these algorithms and keys; the rest as usual.
    pub fn new(algorithms: Vec<Algorithm>, key: KeySource) -> Self {
        Self {
            algorithms,
            key,
            required: false,
            requires_expiry: true,
            leeway: DEFAULT_LEEWAY,
            audiences: Vec::new(),
            issuers: Vec::new(),
            claims: ClaimNames::default(),
            refresh: RefreshOptions::default(),
        }
    }
}

/// Verifies bearer tokens.
#[derive(Debug)]
pub(super) struct Jwt {
    algorithms: Vec<Algorithm>,
    pub(super) ring: Arc<KeyRing>,
    checks: ClaimChecks,
    names: ClaimNames,
    pub(super) is_required: bool,
}

impl Jwt {
    pub(super) fn new(options: JwtOptions) -> Result<Self, IdentityError> {
        super::crypto::install_crypto();
        let is_hmac = |algorithm: &Algorithm| algorithm.family() == AlgorithmFamily::Hmac;
        let algorithms = options.algorithms;
        if algorithms.is_empty() {
            return Err(IdentityError::NoAlgorithms);
        }
        if algorithms.iter().any(is_hmac) && !algorithms.iter().all(is_hmac) {
            return Err(IdentityError::MixedAlgorithms);
        }
        check_names(&options.claims)?;
        let ring = KeyRing::new(options.key, options.refresh, algorithms.clone())?;
        // A single key that serves none of the algorithms would refuse every token.
        if let Some(keys) = ring.current()
            && !keys.is_empty()
            && !algorithms.iter().any(|algorithm| keys.serves(*algorithm))
        {
            return Err(IdentityError::UnfitKey);
        }
        let checks = ClaimChecks {
            requires_expiry: options.requires_expiry,
            leeway: options.leeway,
            audiences: options.audiences,
            issuers: options.issuers,
        };
        let (names, is_required) = (options.claims, options.required);
        Ok(Self { algorithms, ring: Arc::new(ring), checks, names, is_required })
    }

    /// Whom the token is for, if it holds now.
    pub(super) fn verify(&self, token: &[u8], now: Nanos) -> Result<Identity, Refused> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(invalid_token("the token is longer than 8192 bytes"));
        }
        let header = decode_header(token).map_err(|_| {
            invalid_token("the header of the token cannot be read, or names an unknown algorithm")
        })?;
        // Before any key is looked for, so that a token cannot choose how it is verified.
        if !self.algorithms.contains(&header.alg) {
            return Err(invalid_token("the algorithm of the token is not accepted"));
        }
        if header.crit.is_some() {
            return Err(invalid_token("the token demands extensions that are not known"));
        }
        let name = header.kid.as_deref();
        if name.is_some_and(|name| name.len() > MAX_KEY_ID_BYTES) {
            return Err(invalid_token("the name of the key is too long"));
        }
        let Some(keys) = self.ring.current() else { return Err(keys_unavailable()) };
        let key = keys.find(name, header.alg).map_err(|why| match why {
            NoKey::Unknown => {
                self.ring.ask_for_refresh();
                invalid_token("the key of the token is not known")
            }
            NoKey::Ambiguous => invalid_token("the token does not say which key signed it"),
            NoKey::Unfit => invalid_token("the key is not for the algorithm of the token"),
        })?;
        let claims = decode::<Claims>(token, key, &signature_only(header.alg))
            .map_err(|error| invalid_token(why_not(&error)))?
            .claims;
        self.checks.check(&claims, now).map_err(invalid_token)?;
        self.names.identity(&claims).map_err(invalid_token)
    }
}

/// Claims are checked here, by a clock that tests can set.
pub(super) fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation.required_spec_claims = HashSet::new();
    validation
}

fn why_not(error: &jsonwebtoken::errors::Error) -> &'static str {
    use jsonwebtoken::errors::ErrorKind;
    match error.kind() {
        ErrorKind::Json(_) | ErrorKind::Utf8(_) => "the claims of the token cannot be read",
        ErrorKind::InvalidSignature | ErrorKind::Base64(_) => {
            "the signature of the token does not match"
        }
        _ => "the token cannot be verified",
    }
}

fn check_names(names: &ClaimNames) -> Result<(), IdentityError> {
    if names.attributes.len() > MAX_ATTRIBUTES {
        return Err(IdentityError::TooManyAttributes);
    }
    for (place, (name, _)) in names.attributes.iter().enumerate() {
        let is_known = tollgate_policy::Known::from_name(name).is_some();
        let earlier = names.attributes.iter().take(place);
        let is_repeated = earlier.into_iter().any(|(other, _)| other == name);
        if is_known || is_repeated || name.is_empty() || name.len() > MAX_VALUE_BYTES {
            return Err(IdentityError::AttributeName(name.clone()));
        }
    }
    Ok(())
}
