//! Signatures for `jsonwebtoken`, by `ring`, which the TLS of this workspace already uses.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature as sig;
use ring::{hmac, rand::SystemRandom};
use signature::{Error, Signer, Verifier};

static PROVIDER: CryptoProvider =
    CryptoProvider { signer_factory: signer, verifier_factory: verifier, key_utils: KEY_UTILS };

/// Only what makes JWKs out of keys asks for these, and nothing here does. An error beats a panic.
const KEY_UTILS: KeyUtils = KeyUtils {
    rsa_pub_components_from_private_key: |_| Err(ErrorKind::UnsupportedAlgorithm.into()),
    rsa_pub_components_from_public_key: |_| Err(ErrorKind::UnsupportedAlgorithm.into()),
    ec_pub_components_from_private_key: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    ed_pub_components_from_private_key: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    compute_digest: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
};

/// Makes `jsonwebtoken` sign and verify with `ring` in this process. A provider that is installed already
/// stays.
pub fn install_crypto() {
    // The error is the provider that was there before.
    let _ = PROVIDER.install_default();
}

/// One algorithm with its key. Keys of another family are never taken: a public key is no HMAC secret.
struct Keyed<K> {
    algorithm: Algorithm,
    key: K,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that jsonwebtoken asks for")]
fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(Keyed { algorithm: *algorithm, key: key.clone() }))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that jsonwebtoken asks for")]
fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(Keyed { algorithm: *algorithm, key: key.clone() }))
}

impl JwtVerifier for Keyed<DecodingKey> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl JwtSigner for Keyed<EncodingKey> {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Keyed<DecodingKey> {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        if let Some(hash) = hmac_of(self.algorithm) {
            let secret = self.key.try_get_as_bytes().map_err(|_| Error::new())?;
            let key = hmac::Key::new(hash, secret);
            return hmac::verify(&key, message, signature).map_err(|_| Error::new());
        }
        if let Some(parameters) = rsa_of(self.algorithm) {
            return match self.key.kind() {
                DecodingKeyKind::RsaModulusExponent { n, e } => {
                    // ring refuses numbers that begin with a zero; some issuers write one.
                    let (n, e) = (trimmed(n), trimmed(e));
                    sig::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
                }
                DecodingKeyKind::SecretOrDer(der) => {
                    sig::UnparsedPublicKey::new(parameters, der).verify(message, signature)
                }
            }
            .map_err(|_| Error::new());
        }
        let parameters: &'static dyn sig::VerificationAlgorithm = match self.algorithm {
            Algorithm::ES256 => &sig::ECDSA_P256_SHA256_FIXED,
            Algorithm::ES384 => &sig::ECDSA_P384_SHA384_FIXED,
            Algorithm::EdDSA => &sig::ED25519,
            _ => return Err(Error::new()),
        };
        let key = self.key.try_get_as_bytes().map_err(|_| Error::new())?;
        sig::UnparsedPublicKey::new(parameters, key)
            .verify(message, signature)
            .map_err(|_| Error::new())
    }
}

impl Signer<Vec<u8>> for Keyed<EncodingKey> {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        let bytes = self.key.as_bytes();
        let random = SystemRandom::new();
        if let Some(hash) = hmac_of(self.algorithm) {
            let tag = hmac::sign(&hmac::Key::new(hash, bytes), message);
            return Ok(tag.as_ref().to_vec());
        }
        if let Some(padding) = rsa_padding_of(self.algorithm) {
            let pair = sig::RsaKeyPair::from_der(bytes).map_err(|_| Error::new())?;
            let mut signature = vec![0; pair.public().modulus_len()];
            pair.sign(padding, &random, message, &mut signature).map_err(|_| Error::new())?;
            return Ok(signature);
        }
        let curve = match self.algorithm {
            Algorithm::ES256 => &sig::ECDSA_P256_SHA256_FIXED_SIGNING,
            Algorithm::ES384 => &sig::ECDSA_P384_SHA384_FIXED_SIGNING,
            Algorithm::EdDSA => {
                let pair = sig::Ed25519KeyPair::from_pkcs8_maybe_unchecked(bytes);
                let pair = pair.map_err(|_| Error::new())?;
                return Ok(pair.sign(message).as_ref().to_vec());
            }
            _ => return Err(Error::new()),
        };
        let pair =
            sig::EcdsaKeyPair::from_pkcs8(curve, bytes, &random).map_err(|_| Error::new())?;
        let signature = pair.sign(&random, message).map_err(|_| Error::new())?;
        Ok(signature.as_ref().to_vec())
    }
}

fn trimmed(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

const fn hmac_of(algorithm: Algorithm) -> Option<hmac::Algorithm> {
    match algorithm {
        Algorithm::HS256 => Some(hmac::HMAC_SHA256),
        Algorithm::HS384 => Some(hmac::HMAC_SHA384),
        Algorithm::HS512 => Some(hmac::HMAC_SHA512),
        _ => None,
    }
}

/// ring takes no key below 2048 bits.
const fn rsa_of(algorithm: Algorithm) -> Option<&'static sig::RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&sig::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&sig::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&sig::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&sig::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&sig::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&sig::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

const fn rsa_padding_of(algorithm: Algorithm) -> Option<&'static dyn sig::RsaEncoding> {
    match algorithm {
        Algorithm::RS256 => Some(&sig::RSA_PKCS1_SHA256),
        Algorithm::RS384 => Some(&sig::RSA_PKCS1_SHA384),
        Algorithm::RS512 => Some(&sig::RSA_PKCS1_SHA512),
        Algorithm::PS256 => Some(&sig::RSA_PSS_SHA256),
        Algorithm::PS384 => Some(&sig::RSA_PSS_SHA384),
        Algorithm::PS512 => Some(&sig::RSA_PSS_SHA512),
        _ => None,
    }
}
