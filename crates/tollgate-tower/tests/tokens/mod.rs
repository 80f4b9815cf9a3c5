//! Makes tokens, good and bad ones, for the tests of identity.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    reason = "helpers of several tests, which not all use all of them"
)]

use std::fmt::Write as _;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use jsonwebtoken::{Algorithm, EncodingKey};
use ring::signature::{self as sig, KeyPair};
use serde_json::{Value, json};
use tollgate_core::SECOND;
use tollgate_engine::ManualClock;
use tollgate_tower::identity::{
    Identifier, Identity, IdentityOptions, JwtOptions, KeySource, install_crypto,
};

/// What the clock says, in seconds.
pub(crate) const NOW: u64 = 1_800_000_000;
pub(crate) const AUDIENCE: &str = "api";
pub(crate) const ISSUER: &str = "https://issuer.test";
pub(crate) const SECRET: &[u8] = b"a secret of at least thirty-two bytes";
pub(crate) const RSA_PUBLIC_PEM: &str = include_str!("../data/rsa-test-only.pub.pem");
const RSA_PRIVATE_PEM: &str = include_str!("../data/rsa-test-only.pem");

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Base64 as tokens have it.
pub(crate) fn base64url(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let mut word = 0_u32;
        for place in 0..3 {
            word = word << 8 | u32::from(chunk.get(place).copied().unwrap_or(0));
        }
        for place in 0..=chunk.len() {
            let digit = (word >> (18 - 6 * place)) & 63;
            out.push(char::from(*DIGITS.get(digit as usize).unwrap()));
        }
    }
    out
}

/// Someone who signs.
pub(crate) struct Issuer {
    pub(crate) algorithm: Algorithm,
    pub(crate) key: EncodingKey,
    /// The public half, as an issuer publishes it; without a name.
    pub(crate) jwk: Value,
}

impl Issuer {
    pub(crate) fn rsa() -> Self {
        install_crypto();
        let key = EncodingKey::from_rsa_pem(RSA_PRIVATE_PEM.as_bytes()).unwrap();
        let pair = sig::RsaKeyPair::from_der(key.as_bytes()).unwrap();
        let parts: sig::RsaPublicKeyComponents<Vec<u8>> = pair.public().into();
        let jwk = json!({"kty": "RSA", "n": base64url(&parts.n), "e": base64url(&parts.e)});
        Self { algorithm: Algorithm::RS256, key, jwk }
    }

    pub(crate) fn elliptic(algorithm: Algorithm) -> Self {
        install_crypto();
        let (curve, name) = match algorithm {
            Algorithm::ES384 => (&sig::ECDSA_P384_SHA384_FIXED_SIGNING, "P-384"),
            _ => (&sig::ECDSA_P256_SHA256_FIXED_SIGNING, "P-256"),
        };
        let random = ring::rand::SystemRandom::new();
        let pkcs8 = sig::EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
        let pair = sig::EcdsaKeyPair::from_pkcs8(curve, pkcs8.as_ref(), &random).unwrap();
        let (_, point) = pair.public_key().as_ref().split_first().unwrap();
        let (x, y) = point.split_at(point.len() / 2);
        let jwk = json!({"kty": "EC", "crv": name, "x": base64url(x), "y": base64url(y)});
        Self { algorithm, key: EncodingKey::from_ec_der(pkcs8.as_ref()), jwk }
    }

    pub(crate) fn edwards() -> Self {
        install_crypto();
        let random = ring::rand::SystemRandom::new();
        let pkcs8 = sig::Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let pair = sig::Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let x = base64url(pair.public_key().as_ref());
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": x});
        Self { algorithm: Algorithm::EdDSA, key: EncodingKey::from_ed_der(pkcs8.as_ref()), jwk }
    }

    pub(crate) fn secret(secret: &[u8], algorithm: Algorithm) -> Self {
        install_crypto();
        let jwk = json!({"kty": "oct", "k": base64url(secret)});
        Self { algorithm, key: EncodingKey::from_secret(secret), jwk }
    }

    /// The public half under a name, with further members.
    pub(crate) fn named(&self, name: &str, more: Value) -> Value {
        let mut jwk = self.jwk.clone();
        let members = jwk.as_object_mut().unwrap();
        members.insert("kid".to_owned(), name.into());
        members.extend(more.as_object().cloned().unwrap_or_default());
        jwk
    }

    /// Signs these very bytes, as this algorithm.
    pub(crate) fn sign(&self, header: &str, claims: &[u8]) -> String {
        let mut token = format!("{}.{}", base64url(header.as_bytes()), base64url(claims));
        let mac = jsonwebtoken::crypto::sign(token.as_bytes(), &self.key, self.algorithm).unwrap();
        write!(token, ".{mac}").unwrap();
        token
    }

    /// Signs these claims under the name of a key.
    pub(crate) fn token(&self, key_name: &str, claims: &Value) -> String {
        let header = json!({"alg": format!("{:?}", self.algorithm), "typ": "JWT", "kid": key_name});
        self.sign(&header.to_string(), claims.to_string().as_bytes())
    }
}

/// Claims that hold now and here, changed as stated; null takes one away.
pub(crate) fn claims(changes: Value) -> Value {
    let mut claims = json!({
        "sub": "ann", "tenant_id": "acme", "plan": "pro",
        "iss": ISSUER, "aud": AUDIENCE, "iat": NOW - 60, "nbf": NOW - 60, "exp": NOW + 600,
    });
    let members = claims.as_object_mut().unwrap();
    for (name, value) in changes.as_object().cloned().unwrap_or_default() {
        if value.is_null() {
            members.remove(&name);
        } else {
            members.insert(name, value);
        }
    }
    claims
}

pub(crate) fn jwks(keys: &[Value]) -> Vec<u8> {
    json!({"keys": keys}).to_string().into_bytes()
}

/// Tokens of these algorithms and keys, for this audience and of this issuer.
pub(crate) fn options(algorithms: &[Algorithm], key: KeySource) -> JwtOptions {
    JwtOptions {
        audiences: vec![AUDIENCE.to_owned()],
        issuers: vec![ISSUER.to_owned()],
        ..JwtOptions::new(algorithms.to_vec(), key)
    }
}

pub(crate) fn identifier(jwt: JwtOptions) -> Identifier {
    let clock = Arc::new(ManualClock::new(NOW * SECOND));
    let options = IdentityOptions { jwt: Some(jwt), ..IdentityOptions::default() };
    Identifier::with_clock(options, clock).unwrap()
}

pub(crate) fn bearer(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}")).unwrap());
    headers
}

/// Who it is, or status, code, and message.
pub(crate) fn ask(
    identifier: &Identifier,
    headers: &HeaderMap,
) -> Result<Identity, (u16, String, String)> {
    identifier.identify(headers, None).map_err(|rejection| {
        let status = rejection.status.as_u16();
        (status, rejection.code.into_owned(), rejection.message.into_owned())
    })
}
