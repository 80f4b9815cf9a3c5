//! ID tokens of `OpenID` Connect: who has signed in at a provider, for this client and this sign-in.

use std::time::Duration;

use jsonwebtoken::{Algorithm, decode, decode_header};
use serde_json::Value;
use tollgate_core::Nanos;

use super::claims::{ClaimChecks, Claims};
use super::jwks::{Jwks, MAX_KEY_ID_BYTES, NoKey};
use super::jwt::signature_only;

/// The longest ID token. It lists the groups of a person, which may be many.
pub const MAX_ID_TOKEN_BYTES: usize = 128 << 10;

/// The longest `sub`, by the specification.
const MAX_SUBJECT_BYTES: usize = 255;

/// The only algorithms that are accepted: signatures by a key that this process does not know.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// By how much the provider's clock may differ.
const LEEWAY: Duration = Duration::from_secs(60);

/// Why an ID token is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdTokenError {
    /// No key of the set has this name; it may be newer than the set.
    #[error("the key of the token is not known")]
    UnknownKey,
    /// It is wrong.
    #[error("{0}")]
    Invalid(&'static str),
}

/// What an ID token must say.
#[derive(Debug)]
pub struct IdTokenChecks {
    checks: ClaimChecks,
    client_id: String,
}

impl IdTokenChecks {
    /// Tokens of this issuer for this client.
    pub fn new(issuer: &str, client_id: &str) -> Self {
        super::crypto::install_crypto();
        let checks = ClaimChecks {
            requires_expiry: true,
            leeway: LEEWAY,
            audiences: vec![client_id.to_owned()],
            issuers: vec![issuer.to_owned()],
        };
        Self { checks, client_id: client_id.to_owned() }
    }

    /// What the token says, if it is signed by one of these keys, holds now and answers this sign-in.
    pub fn verify(
        &self,
        token: &str,
        keys: &Jwks,
        nonce: &str,
        now: Nanos,
    ) -> Result<IdClaims, IdTokenError> {
        let invalid = IdTokenError::Invalid;
        if token.len() > MAX_ID_TOKEN_BYTES {
            return Err(invalid("the token is too long"));
        }
        let header = decode_header(token)
            .map_err(|_| invalid("its header cannot be read, or names an unknown algorithm"))?;
        // Before any key is looked for, so that a token cannot choose how it is verified.
        if !ALGORITHMS.contains(&header.alg) {
            return Err(invalid("its algorithm is not accepted"));
        }
        if header.crit.is_some() {
            return Err(invalid("it demands extensions that are not known"));
        }
        let name = header.kid.as_deref();
        if name.is_some_and(|name| name.len() > MAX_KEY_ID_BYTES) {
            return Err(invalid("the name of its key is too long"));
        }
        let key = keys.find(name, header.alg).map_err(|why| match why {
            NoKey::Unknown => IdTokenError::UnknownKey,
            NoKey::Ambiguous => invalid("it does not say which key signed it"),
            NoKey::Unfit => invalid("its key is not for its algorithm"),
        })?;
        let claims = decode::<Claims>(token, key, &signature_only(header.alg))
            .map_err(|_| invalid("its signature does not match, or its claims cannot be read"))?
            .claims;
        self.checks.check(&claims, now).map_err(invalid)?;
        self.check_party(&claims)?;
        if claims.0.get("nonce").and_then(Value::as_str) != Some(nonce) {
            return Err(invalid("it answers another sign-in: its nonce differs"));
        }
        let claims = IdClaims(claims);
        if claims.subject().is_empty() {
            return Err(invalid("it names nobody: sub is missing or wrong"));
        }
        Ok(claims)
    }

    /// A token for several audiences, or one that names a party, must name this client.
    fn check_party(&self, claims: &Claims) -> Result<(), IdTokenError> {
        let is_for_several =
            claims.0.get("aud").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
        match claims.0.get("azp") {
            None if is_for_several => {
                Err(IdTokenError::Invalid("it is for several audiences and names no party"))
            }
            Some(party) if party.as_str() != Some(&self.client_id) => {
                Err(IdTokenError::Invalid("it was issued to another party"))
            }
            _ => Ok(()),
        }
    }
}

/// What a verified ID token says.
#[derive(Debug)]
pub struct IdClaims(Claims);

impl IdClaims {
    /// Who it is, to the issuer.
    pub fn subject(&self) -> &str {
        let subject = self.0.0.get("sub").and_then(Value::as_str).unwrap_or_default();
        let is_usable =
            subject.len() <= MAX_SUBJECT_BYTES && !subject.chars().any(char::is_control);
        if is_usable { subject } else { "" }
    }

    /// The texts of a claim: a list of them, or one. A dot leads into an object.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        match self.0.find(name) {
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// The one text of a claim.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.find(name).and_then(Value::as_str)
    }

    /// Whether a claim is there and false.
    pub fn denies(&self, name: &str) -> bool {
        matches!(self.0.find(name), Some(Value::Bool(false)))
            || self.text(name).is_some_and(|text| text == "false")
    }
}
