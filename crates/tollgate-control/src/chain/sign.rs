//! Keys and signatures of the chain: Ed25519, in hex.

use std::fmt;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::token::hex;

/// The bytes of a private or a public key.
pub const KEY_BYTES: usize = 32;

/// Why a key cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SigningKeyError {
    /// It is not 64 hexadecimal digits.
    #[error("a key is 64 hexadecimal digits, such as `openssl rand -hex 32` prints")]
    NotHex,
    /// It is no key.
    #[error("these bytes are no Ed25519 key")]
    NotAKey,
    /// The system has no random bytes.
    #[error("the system has no random bytes")]
    NoRandomBytes,
}

/// A private key.
pub struct Signer {
    pair: Ed25519KeyPair,
}

impl fmt::Debug for Signer {
    /// Without the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signer").field(&self.public_key()).finish()
    }
}

impl Signer {
    /// The key of these 64 hexadecimal digits: 32 secret random bytes.
    pub fn from_hex(text: &str) -> Result<Self, SigningKeyError> {
        let seed = bytes_of::<KEY_BYTES>(text.trim()).ok_or(SigningKeyError::NotHex)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed);
        Ok(Self { pair: pair.map_err(|_| SigningKeyError::NotAKey)? })
    }

    /// The digits of a new key.
    pub fn new_hex() -> Result<String, SigningKeyError> {
        let mut seed = [0; KEY_BYTES];
        getrandom::fill(&mut seed).map_err(|_| SigningKeyError::NoRandomBytes)?;
        Ok(hex(&seed))
    }

    /// The public key.
    pub fn public_key(&self) -> PublicKey {
        let mut bytes = [0; KEY_BYTES];
        for (to, from) in bytes.iter_mut().zip(self.pair.public_key().as_ref()) {
            *to = *from;
        }
        PublicKey(bytes)
    }

    pub(crate) fn sign(&self, statement: &[u8]) -> Signed {
        let signature = hex(self.pair.sign(statement).as_ref());
        Signed { public_key: self.public_key().to_string(), signature }
    }
}

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// The key of these 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, SigningKeyError> {
        bytes_of(text.trim()).map(Self).ok_or(SigningKeyError::NotHex)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A signature, and the key that made it. Both are empty where a node had no key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    /// The public key, in hex.
    pub public_key: String,
    /// The signature, in hex.
    pub signature: String,
}

impl Signed {
    /// The key that signed this statement; `None` if the signature is not one of it.
    pub(super) fn key(&self, statement: &[u8]) -> Option<PublicKey> {
        let key = PublicKey::from_hex(&self.public_key).ok()?;
        let signature = bytes_of::<64>(&self.signature)?;
        UnparsedPublicKey::new(&ED25519, key.0).verify(statement, &signature).ok()?;
        Some(key)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.public_key.is_empty() && self.signature.is_empty()
    }
}

fn bytes_of<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = (digit(*high)? << 4) | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first test vector of RFC 8032, section 7.1.
    #[test]
    fn keys_and_signatures_are_those_of_rfc_8032() {
        let secret = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let signer = Signer::from_hex(secret).unwrap();
        let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
        assert_eq!(signer.public_key().to_string(), public);
        let signed = signer.sign(b"");
        assert!(signed.signature.starts_with("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974"));
        assert_eq!(signed.key(b""), Some(signer.public_key()));
        assert_eq!(signed.key(b"x"), None);
    }

    #[test]
    fn wrong_keys_are_refused_and_never_shown() {
        for wrong in ["", "zz", &"g".repeat(64), &"a".repeat(63), &"a".repeat(66)] {
            assert_eq!(Signer::from_hex(wrong).err(), Some(SigningKeyError::NotHex));
            assert!(PublicKey::from_hex(wrong).is_err());
        }
        let secret = Signer::new_hex().unwrap();
        assert_ne!(secret, Signer::new_hex().unwrap());
        assert!(!format!("{:?}", Signer::from_hex(&secret).unwrap()).contains(&secret));
        let empty = Signed::default();
        assert!(empty.is_empty() && empty.key(b"").is_none());
    }
}
