//! Bearer tokens, as the identifier uses them.

use std::fmt;
use std::sync::Arc;

use tollgate_engine::Clock;

use super::jwt::Jwt;
pub use super::jwt::JwtOptions;
use super::refuse::Refused;
use super::{Identity, IdentityError};

/// Verifies bearer tokens.
pub(super) struct Tokens {
    jwt: Jwt,
    clock: Arc<dyn Clock>,
}

impl Tokens {
    pub(super) fn new(options: JwtOptions, clock: Arc<dyn Clock>) -> Result<Self, IdentityError> {
        Ok(Self { jwt: Jwt::new(options)?, clock })
    }

    pub(super) fn verify(&self, token: &[u8]) -> Result<Identity, Refused> {
        self.jwt.verify(token, self.clock.now())
    }

    /// Whether a request without a token is refused.
    pub(super) const fn is_required(&self) -> bool {
        self.jwt.is_required
    }

    /// Whether the keys that verify tokens are there.
    pub(super) fn is_ready(&self) -> bool {
        self.jwt.ring.current().is_some()
    }

    pub(super) async fn refresh_loop(&self) {
        self.jwt.ring.refresh_loop().await;
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.jwt.fmt(f)
    }
}
