//! A sign-in under way: what binds the provider's answer to the browser that began it.
//!
//! Nothing is stored for it. The browser keeps a random secret in a cookie, and everything else is derived from that
//! secret and a key that all nodes with the same configuration have. So a sign-in may end at another node than it began
//! at, and beginning many of them takes no memory.

use std::collections::HashMap;
use std::fmt;
use std::fmt::Write as _;
use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::{hmac, pbkdf2};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tollgate_control::Millis;

/// How long a sign-in may take.
pub(super) const LIFETIME_SECONDS: i64 = 600;
/// How far the clock of the node that began it may be ahead.
const LEEWAY_SECONDS: i64 = 60;
/// Sign-ins that are remembered as used. Past that the oldest are forgotten: their codes are used up at the provider.
const MAX_USED: usize = 10_000;
/// Beginning a sign-in shows what is derived from the key: trying secrets until one fits must take long.
const KEY_ROUNDS: NonZeroU32 = match NonZeroU32::new(200_000) {
    Some(rounds) => rounds,
    None => NonZeroU32::MAX,
};
const SECRET_BYTES: usize = 32;

/// Derives sign-ins.
pub(super) struct AttemptKey(hmac::Key);

impl fmt::Debug for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AttemptKey(hidden)")
    }
}

/// A sign-in under way.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// What the browser keeps.
    pub(super) cookie: String,
    pub(super) state: String,
    pub(super) nonce: String,
    pub(super) verifier: String,
    /// When it ends, in seconds since 1970.
    pub(super) ends: i64,
}

impl AttemptKey {
    pub(super) fn new(issuer: &str, client_id: &str, client_secret: &str) -> Self {
        let salt = format!("tollgate sign-in 1\0{issuer}\0{client_id}");
        let mut key = [0; 32];
        let (salt, secret) = (salt.as_bytes(), client_secret.as_bytes());
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, KEY_ROUNDS, salt, secret, &mut key);
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// A new sign-in. None if the system has no random bytes.
    pub(super) fn begin(&self, now: Millis) -> Option<Attempt> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).ok()?;
        Some(self.derive(&hex(&secret), now / 1_000))
    }

    /// The sign-in of a browser's cookie, if it has not ended.
    pub(super) fn resume(&self, cookie: &str, now: Millis) -> Option<Attempt> {
        let (secret, began) = cookie.split_once('.')?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if secret.len() != 2 * SECRET_BYTES || !secret.bytes().all(is_hex) {
            return None;
        }
        let began: i64 = began.parse().ok()?;
        let age = (now / 1_000).checked_sub(began)?;
        (-LEEWAY_SECONDS..LIFETIME_SECONDS).contains(&age).then(|| self.derive(secret, began))
    }

    /// The beginning is part of what is derived: a cookie with another one fits no state.
    fn derive(&self, secret: &str, began: i64) -> Attempt {
        let cookie = format!("{secret}.{began}");
        let part = |name: &str| {
            let text = format!("{name}\0{cookie}");
            hex(hmac::sign(&self.0, text.as_bytes()).as_ref())
        };
        let (state, nonce, verifier) = (part("state"), part("nonce"), part("verifier"));
        Attempt { state, nonce, verifier, ends: began.saturating_add(LIFETIME_SECONDS), cookie }
    }
}

impl Attempt {
    /// Whether the provider answers this sign-in.
    pub(super) fn is_answered_by(&self, state: &str) -> bool {
        self.state.as_bytes().ct_eq(state.as_bytes()).into()
    }

    /// What the provider checks the verifier with (RFC 7636, S256).
    pub(super) fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(self.verifier.as_bytes()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to memory does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Sign-ins that were answered.
#[derive(Debug, Default)]
pub(super) struct UsedAttempts(Mutex<HashMap<String, i64>>);

impl UsedAttempts {
    /// Whether this is the first answer. It is used up by that.
    pub(super) fn take(&self, attempt: &Attempt, now: Millis) -> bool {
        let mut used = self.0.lock();
        if used.len() >= MAX_USED {
            used.retain(|_, ends| *ends > now / 1_000);
        }
        if used.len() >= MAX_USED {
            let oldest = used.iter().min_by_key(|(_, ends)| **ends).map(|(state, _)| state.clone());
            if let Some(oldest) = oldest {
                used.remove(&oldest);
            }
        }
        used.insert(attempt.state.clone(), attempt.ends + LEEWAY_SECONDS).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_800_000_000_000;

    fn key(secret: &str) -> AttemptKey {
        AttemptKey::new("https://login.example", "tollgate", secret)
    }

    #[test]
    fn a_sign_in_is_resumed_at_any_node_with_the_same_secret() {
        let began = key("0123456789abcdef").begin(NOW).unwrap();
        let resumed = key("0123456789abcdef").resume(&began.cookie, NOW + 599_000).unwrap();
        assert_eq!(resumed, began);
        let other = key("another secret of ours").resume(&began.cookie, NOW).unwrap();
        assert_ne!(other.state, began.state);
        assert_ne!(key("0123456789abcdef").begin(NOW).unwrap().state, began.state);
        for part in [&began.nonce, &began.verifier] {
            assert_ne!(*part, began.state);
            assert!((43..=128).contains(&part.len()), "RFC 7636, section 4.1");
        }
    }

    #[test]
    fn a_sign_in_ends_and_its_cookie_cannot_be_changed() {
        let key = key("0123456789abcdef");
        let began = key.begin(NOW).unwrap();
        assert_eq!(key.resume(&began.cookie, NOW + 600_000), None, "ten minutes");
        let (secret, at) = began.cookie.split_once('.').unwrap();
        let later = format!("{secret}.{}", at.parse::<i64>().unwrap() + 300);
        let moved = key.resume(&later, NOW + 700_000).unwrap();
        assert!(!moved.is_answered_by(&began.state), "a later beginning fits no state");
        let wrong = ["", ".", "x.1", &format!("{secret}."), &format!("{secret}.x"), secret];
        for wrong in wrong {
            assert_eq!(key.resume(wrong, NOW), None, "{wrong}");
        }
        assert_eq!(key.resume(&format!("{secret}.{}", i64::MIN), NOW), None);
        assert_eq!(key.resume(&format!("{}.1800000000", secret.to_uppercase()), NOW), None);
    }

    #[test]
    fn a_sign_in_is_used_once_and_few_are_remembered() {
        let (key, used) = (key("0123456789abcdef"), UsedAttempts::default());
        let first = key.begin(NOW).unwrap();
        assert!(used.take(&first, NOW) && !used.take(&first, NOW));
        for number in 0..20_000 {
            used.take(&key.derive("0", NOW / 1_000 + number), NOW);
        }
        assert!(used.0.lock().len() <= MAX_USED);
    }

    #[test]
    fn the_challenge_is_that_of_the_rfc() {
        // RFC 7636, appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".to_owned();
        let rest = String::new;
        let attempt = Attempt { cookie: rest(), state: rest(), nonce: rest(), verifier, ends: 0 };
        assert_eq!(attempt.challenge(), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }
}
