//! Without the feature `jwt` there are no bearer tokens: these types have no values.

use std::sync::Arc;

use tollgate_engine::Clock;

use super::refuse::Refused;
use super::{Identity, IdentityError};

/// How bearer tokens are verified. Has no value without the feature `jwt`.
#[derive(Debug, Clone)]
pub enum JwtOptions {}

#[derive(Debug)]
pub(super) enum Tokens {}

impl Tokens {
    pub(super) fn new(options: JwtOptions, _: Arc<dyn Clock>) -> Result<Self, IdentityError> {
        match options {}
    }

    pub(super) const fn verify(&self, _: &[u8]) -> Result<Identity, Refused> {
        match *self {}
    }

    pub(super) const fn is_required(&self) -> bool {
        match *self {}
    }

    pub(super) const fn is_ready(&self) -> bool {
        match *self {}
    }

    pub(super) async fn refresh_loop(&self) {
        match *self {}
    }
}
