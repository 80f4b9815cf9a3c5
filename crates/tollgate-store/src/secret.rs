//! How secrets are shown and stored: as a keyed hash, the same on every node that has the key.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How many bytes of the keyed hash stand for a secret.
const ID_BYTES: usize = 12;

/// The name of an API key in stores, logs and audit: a truncated HMAC-SHA256 in hex.
pub fn api_key_id(secret: &[u8], key: &str) -> String {
    let mut bytes = Vec::with_capacity(2 * ID_BYTES);
    Hider::new(secret).push(&mut bytes, key);
    bytes.into_iter().map(char::from).collect()
}

/// Hides secrets under one key.
pub(crate) struct Hider(Hmac<Sha256>);

impl Hider {
    pub(crate) fn new(key: &[u8]) -> Self {
        // A key of any length makes an HMAC; the other branch is for the type.
        let keyed = <Hmac<Sha256> as KeyInit>::new_from_slice(key)
            .unwrap_or_else(|_| <Hmac<Sha256> as KeyInit>::new(&[0; 64].into()));
        Self(keyed)
    }

    /// Appends what stands for a secret.
    pub(crate) fn push(&self, bytes: &mut Vec<u8>, secret: &str) {
        let mut mac = self.0.clone();
        mac.update(secret.as_bytes());
        let digest = mac.finalize().into_bytes();
        for byte in digest.iter().take(ID_BYTES) {
            push_hex(bytes, *byte);
        }
    }
}

/// Appends a byte as two digits.
pub(crate) fn push_hex(bytes: &mut Vec<u8>, byte: u8) {
    for digit in [byte >> 4, byte & 0x0F] {
        bytes.push(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_hash_that_others_can_compute() {
        // printf sk-live | openssl dgst -sha256 -hmac secret
        assert_eq!(api_key_id(b"secret", "sk-live"), "7513bd7d3dce2296b4af758d");
        assert_ne!(api_key_id(b"other", "sk-live"), api_key_id(b"secret", "sk-live"));
    }
}
