//! Keys that verify tokens: one from a file, or a set of them by name (RFC 7517).

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// The largest document of keys.
pub const MAX_JWKS_BYTES: usize = 1 << 20;

/// The most keys of one document.
pub const MAX_JWKS_KEYS: usize = 100;

/// The longest name of a key.
pub const MAX_KEY_ID_BYTES: usize = 256;

/// The shortest secret: RFC 7518 asks for the size of the hash.
pub const MIN_SECRET_BYTES: usize = 32;

/// Why keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    /// More bytes than are read.
    #[error("a set of keys has at most {MAX_JWKS_BYTES} bytes")]
    TooLarge,
    /// More keys than are kept.
    #[error("a set of keys has at most {MAX_JWKS_KEYS} keys")]
    TooManyKeys,
    /// Not a JWKS.
    #[error("this is no JSON document with a list of keys")]
    Malformed,
    /// Not a key.
    #[error("this is no public key of RSA, P-256, P-384 or Ed25519 in PEM")]
    NoPublicKey,
    /// A secret where none belongs.
    #[error("this is a private key; tokens are verified with the public one")]
    PrivateKey,
    /// A secret that can be guessed.
    #[error("a secret has at least {MIN_SECRET_BYTES} bytes")]
    ShortSecret,
}

/// Why no key of the set verifies a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoKey {
    /// No key has this name.
    Unknown,
    /// The token names none, and several would do.
    Ambiguous,
    /// The key is for something else.
    Unfit,
}

/// A set of keys.
#[derive(Debug, Clone)]
pub struct Jwks {
    keys: Vec<NamedKey>,
    /// One key from a file verifies all tokens, whatever they call it.
    ignores_names: bool,
}

#[derive(Debug, Clone)]
struct NamedKey {
    name: Option<String>,
    /// The only algorithm that it is for.
    only: Option<Algorithm>,
    key: DecodingKey,
}

impl NamedKey {
    fn fits(&self, algorithm: Algorithm) -> bool {
        // Families apart: a public key must never be taken for a secret.
        self.key.family() == algorithm.family() && self.only.is_none_or(|only| only == algorithm)
    }
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl Jwks {
    /// Reads a JWKS document. Keys of kinds that are not known here, or for encryption, are passed over.
    pub fn parse(bytes: &[u8]) -> Result<Self, JwksError> {
        if bytes.len() > MAX_JWKS_BYTES {
            return Err(JwksError::TooLarge);
        }
        let document: Document = serde_json::from_slice(bytes).map_err(|_| JwksError::Malformed)?;
        if document.keys.len() > MAX_JWKS_KEYS {
            return Err(JwksError::TooManyKeys);
        }
        let keys = document.keys.into_iter().filter_map(named_key).collect();
        Ok(Self { keys, ignores_names: false })
    }

    /// The one public key of a PEM file.
    pub fn from_pem(pem: &[u8]) -> Result<Self, JwksError> {
        const PRIVATE: &[u8] = b"PRIVATE KEY-----";
        if pem.windows(PRIVATE.len()).any(|window| window == PRIVATE) {
            return Err(JwksError::PrivateKey);
        }
        let key = DecodingKey::from_rsa_pem(pem)
            .or_else(|_| DecodingKey::from_ec_pem(pem))
            .or_else(|_| DecodingKey::from_ed_pem(pem))
            .map_err(|_| JwksError::NoPublicKey)?;
        let only = match key.family() {
            AlgorithmFamily::Ec => Some(curve_of(&key).ok_or(JwksError::NoPublicKey)?),
            _ => None,
        };
        Ok(Self { keys: vec![NamedKey { name: None, only, key }], ignores_names: true })
    }

    /// The secret of HMAC.
    pub fn from_secret(secret: &[u8]) -> Result<Self, JwksError> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err(JwksError::ShortSecret);
        }
        let key = DecodingKey::from_secret(secret);
        Ok(Self { keys: vec![NamedKey { name: None, only: None, key }], ignores_names: true })
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether any of its keys is for this algorithm.
    pub(super) fn serves(&self, algorithm: Algorithm) -> bool {
        self.keys.iter().any(|key| key.fits(algorithm))
    }

    /// The key of this name for this algorithm. A name is compared, and nothing else is done with it.
    pub(super) fn find(
        &self,
        name: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<&DecodingKey, NoKey> {
        let name = name.filter(|_| !self.ignores_names);
        let Some(name) = name else {
            let mut fitting = self.keys.iter().filter(|key| key.fits(algorithm));
            return match (fitting.next(), fitting.next()) {
                (Some(only), None) => Ok(&only.key),
                (Some(_), Some(_)) => Err(NoKey::Ambiguous),
                (None, _) => Err(NoKey::Unfit),
            };
        };
        let named = || self.keys.iter().filter(|key| key.name.as_deref() == Some(name));
        match named().find(|key| key.fits(algorithm)) {
            Some(found) => Ok(&found.key),
            None if named().next().is_some() => Err(NoKey::Unfit),
            None => Err(NoKey::Unknown),
        }
    }
}

/// A key of a set, if it verifies signatures in a way that is known here.
fn named_key(value: Value) -> Option<NamedKey> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    let common = &jwk.common;
    if common.public_key_use.as_ref().is_some_and(|usage| *usage != PublicKeyUse::Signature) {
        return None;
    }
    let verifies = |operations: &Vec<KeyOperations>| operations.contains(&KeyOperations::Verify);
    if !common.key_operations.as_ref().is_none_or(verifies) {
        return None;
    }
    if common.key_id.as_ref().is_some_and(|name| name.len() > MAX_KEY_ID_BYTES) {
        return None;
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    let stated = match common.key_algorithm {
        Some(stated) => Some(Algorithm::try_from(stated).ok()?),
        None => None,
    };
    let implied = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => None,
        AlgorithmParameters::EllipticCurve(ec) => match ec.curve {
            EllipticCurve::P256 => Some(Algorithm::ES256),
            EllipticCurve::P384 => Some(Algorithm::ES384),
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(pair) => match pair.curve {
            EllipticCurve::Ed25519 => Some(Algorithm::EdDSA),
            _ => return None,
        },
        AlgorithmParameters::OctetKey(_) => {
            if key.try_get_as_bytes().ok()?.len() < MIN_SECRET_BYTES {
                return None;
            }
            None
        }
        _ => return None,
    };
    if stated.is_some_and(|stated| stated.family() != key.family())
        || (stated.is_some() && implied.is_some() && stated != implied)
    {
        return None;
    }
    Some(NamedKey { name: common.key_id.clone(), only: stated.or(implied), key })
}

/// The algorithm of a point, by its size.
fn curve_of(key: &DecodingKey) -> Option<Algorithm> {
    const P256_POINT_BYTES: usize = 65;
    const P384_POINT_BYTES: usize = 97;
    match key.try_get_as_bytes().ok()?.len() {
        P256_POINT_BYTES => Some(Algorithm::ES256),
        P384_POINT_BYTES => Some(Algorithm::ES384),
        _ => None,
    }
}
