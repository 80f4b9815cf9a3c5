//! Admin tokens, and what their bearers may do.

use sha2::{Digest, Sha256};

use crate::Millis;

/// What every token begins with, so that scanners find one that was left lying about.
const PREFIX: &str = "tgt_";

/// What the token of a session begins with.
const SESSION_PREFIX: &str = "tgs_";

/// The least length of a token that is given rather than made.
pub const MIN_TOKEN_BYTES: usize = 24;

/// The longest token that is looked at.
pub const MAX_TOKEN_BYTES: usize = 256;

/// What the bearer of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Change and see the rules of one tenant that its own admins made.
    TenantAdmin,
    /// See everything but tokens.
    Viewer,
    /// Change rules, lists, tiers, grants and settings, too.
    Operator,
    /// Give and take tokens, too.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Operator, Self::Admin, Self::TenantAdmin];

    /// The name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TenantAdmin => "tenant_admin",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// The role of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Who bears a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The id of the token.
    pub token_id: String,
    /// The name of the token.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The tenant of a tenant admin.
    pub tenant: Option<String>,
    /// When the token ends.
    pub expires_at: Option<Millis>,
    /// Which version of the token it was known by.
    pub version: i64,
}

/// A new token of 256 random bits. Fails if the system has no random bytes.
pub(crate) fn new_token() -> Result<String, getrandom::Error> {
    with_prefix(PREFIX)
}

/// The same for a session.
pub(crate) fn new_session_token() -> Result<String, getrandom::Error> {
    with_prefix(SESSION_PREFIX)
}

/// Whether this is written like the token of a session. Whether it is one, the database knows.
pub fn is_session_token(token: &str) -> bool {
    token.starts_with(SESSION_PREFIX)
}

fn with_prefix(prefix: &str) -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{prefix}{}", hex(&bytes)))
}

/// A new name for something, of 64 random bits.
pub(crate) fn new_id(prefix: &str) -> Result<String, getrandom::Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{prefix}{}", hex(&bytes)))
}

/// What is kept of a token: its SHA-256, in hex.
pub fn digest(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

/// Bytes in hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let (one, other) = (new_token().unwrap(), new_token().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), PREFIX.len() + 64);
        assert!(one.len() >= MIN_TOKEN_BYTES && one.len() <= MAX_TOKEN_BYTES);
    }

    #[test]
    fn a_digest_is_the_sha_256_in_hex() {
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest("abc"), known);
    }
}
