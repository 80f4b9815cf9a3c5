//! Registered API keys: known by their SHA-256, never in the clear.

use std::collections::HashMap;
use std::fmt;
use std::str::SplitAsciiWhitespace;

use sha2::{Digest, Sha256};

use super::MAX_VALUE_BYTES;

/// The most keys that are registered.
pub const MAX_API_KEYS: usize = 1_000_000;

/// The longest line of a file of keys: a digest and four attributes.
const MAX_LINE_BYTES: usize = 2_048;

const DIGEST_BYTES: usize = 32;
const PREFIX: &str = "sha256:";

/// Whom a registered key stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyOwner {
    /// The user.
    pub user_id: Option<String>,
    /// The tenant.
    pub tenant_id: Option<String>,
    /// The plan.
    pub tier: Option<String>,
    /// INTERNAL, PARTNER, EXTERNAL or the like.
    pub client_type: Option<String>,
}

/// The registered keys.
#[derive(Clone, Default)]
pub struct ApiKeys {
    // Looked up by a digest that only the holder of a key can aim at, so the time it takes reveals
    // nothing about other keys.
    owners: HashMap<[u8; DIGEST_BYTES], KeyOwner>,
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKeys").field("len", &self.owners.len()).finish()
    }
}

/// What is wrong with a file of keys, and in which line. Says nothing of what the line holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {wrong}")]
pub struct ApiKeysError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub wrong: &'static str,
}

impl ApiKeys {
    /// No keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads lines of `sha256:<64 hex digits> name=value…`, where the names are `user_id`, `tenant_id`,
    /// `tier` and `client_type`. Empty lines and those that begin with `#` say nothing.
    pub fn parse(text: &str) -> Result<Self, ApiKeysError> {
        let mut keys = Self::default();
        for (index, line) in text.lines().enumerate() {
            let wrong = |wrong| ApiKeysError { line: index + 1, wrong };
            if line.len() > MAX_LINE_BYTES {
                return Err(wrong("the line is too long"));
            }
            let mut words = line.split_ascii_whitespace();
            let Some(first) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let digest = digest(first).map_err(wrong)?;
            let owner = owner(words).map_err(wrong)?;
            if keys.owners.len() >= MAX_API_KEYS {
                return Err(wrong("there are too many keys"));
            }
            if keys.owners.insert(digest, owner).is_some() {
                return Err(wrong("this key is registered twice"));
            }
        }
        Ok(keys)
    }

    /// Registers a key that is known in the clear.
    pub fn register(&mut self, key: &str, owner: KeyOwner) {
        self.owners.insert(Sha256::digest(key.as_bytes()).into(), owner);
    }

    /// Whom this key stands for, if it is registered.
    pub fn find(&self, key: &[u8]) -> Option<&KeyOwner> {
        let digest: [u8; DIGEST_BYTES] = Sha256::digest(key).into();
        self.owners.get(&digest)
    }

    /// How many stand for no tenant: rules that count by tenant do not limit them.
    pub fn without_tenant(&self) -> usize {
        self.owners.values().filter(|owner| owner.tenant_id.is_none()).count()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }
}

fn digest(word: &str) -> Result<[u8; DIGEST_BYTES], &'static str> {
    let hex = word.strip_prefix(PREFIX).ok_or(
        "a line begins with sha256: and the key's digest; keys are never written in the clear",
    )?;
    if hex.len() != 2 * DIGEST_BYTES || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("the digest must be 64 hexadecimal digits");
    }
    let mut digest = [0; DIGEST_BYTES];
    for (place, pair) in digest.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *place = u8::from_str_radix(pair, 16).unwrap_or_default();
    }
    Ok(digest)
}

fn owner(words: SplitAsciiWhitespace<'_>) -> Result<KeyOwner, &'static str> {
    let mut owner = KeyOwner::default();
    for word in words {
        let (name, value) =
            word.split_once('=').ok_or("after the digest come name=value, apart by spaces")?;
        let place = match name {
            "user_id" => &mut owner.user_id,
            "tenant_id" => &mut owner.tenant_id,
            "tier" => &mut owner.tier,
            "client_type" => &mut owner.client_type,
            _ => return Err("the names are user_id, tenant_id, tier and client_type"),
        };
        if value.is_empty() || value.len() > MAX_VALUE_BYTES {
            return Err("a value has between 1 and 256 bytes");
        }
        if place.replace(value.to_owned()).is_some() {
            return Err("a name is given twice");
        }
    }
    Ok(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SHA-256 of "key-one".
    fn line(attributes: &str) -> String {
        const DIGEST: &str = "9b346041bc9a49574eb2665b2ad2a0a3f9f9cce4e42f5d1f26deb8a256b5966a";
        format!("# keys\n\nsha256:{DIGEST} {attributes}\n")
    }

    #[test]
    fn a_registered_key_is_found_by_its_digest() {
        let keys = ApiKeys::parse(&line("user_id=ann tenant_id=acme tier=pro client_type=PARTNER"));
        let keys = keys.unwrap();
        let owner = keys.find(b"key-one").unwrap();
        assert_eq!(owner.user_id.as_deref(), Some("ann"));
        assert_eq!(owner.tenant_id.as_deref(), Some("acme"));
        assert_eq!(owner.tier.as_deref(), Some("pro"));
        assert_eq!(owner.client_type.as_deref(), Some("PARTNER"));
        assert!(keys.find(b"key-two").is_none());
        assert_eq!((keys.len(), keys.without_tenant()), (1, 0));
        assert_eq!(ApiKeys::parse(&line("user_id=ann")).unwrap().without_tenant(), 1);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_without_its_content() {
        let good = line("");
        let twice = format!("{good}{}", line(""));
        let long = line(&format!("tier={}", "x".repeat(257)));
        let cases = [
            ("sk-secret-in-the-clear", 1, "in the clear"),
            ("\nplain:abc user_id=x", 2, "in the clear"),
            ("sha256:abcd", 1, "64 hexadecimal"),
            (&format!("sha256:{}", "é".repeat(32)), 1, "64 hexadecimal"),
            (&format!("sha256:{}", "g".repeat(64)), 1, "64 hexadecimal"),
            (&line("user"), 3, "name=value"),
            (&line("role=admin"), 3, "the names are"),
            (&line("tier="), 3, "between 1 and 256"),
            (&long, 3, "between 1 and 256"),
            (&line("tier=a tier=b"), 3, "twice"),
            (&twice, 6, "registered twice"),
            (&"x".repeat(3000), 1, "too long"),
        ];
        for (text, at, says) in cases {
            let error = ApiKeys::parse(text).unwrap_err();
            assert_eq!(error.line, at, "{text}");
            assert!(error.wrong.contains(says), "{text}: {error}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
