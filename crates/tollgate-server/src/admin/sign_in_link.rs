//! A link that signs in once, for the person who started the process at a terminal.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_control::draft::rfc3339;
use tollgate_control::{Actor, NewToken, Role, digest};

use super::respond::AdminError;
use super::{Admin, instant, now};

/// How long the link can be used.
const LIFETIME: Duration = Duration::from_secs(600);
/// How long the session lasts that it begins, in milliseconds.
const SESSION_MILLIS: i64 = 12 * 3_600_000;

/// The code of a link that was not used yet.
#[derive(Debug)]
pub(super) struct SignInCode {
    digest: String,
    ends: Instant,
}

/// The unused code, if there is one. A new one replaces it.
#[derive(Debug, Default)]
pub(super) struct SignInCodes(parking_lot::Mutex<Option<SignInCode>>);

impl SignInCodes {
    fn put(&self, code: &str, now: Instant) {
        *self.0.lock() = Some(SignInCode { digest: digest(code), ends: now + LIFETIME });
    }

    /// Whether this is the code. It is used up by that.
    fn take(&self, code: &str, now: Instant) -> bool {
        let mut known = self.0.lock();
        let is_it = known.as_ref().is_some_and(|one| one.digest == digest(code));
        is_it && known.take().is_some_and(|one| now < one.ends)
    }
}

/// No token: those have no spaces.
const NO_TOKEN: &str = "an unknown code";

impl Admin {
    /// A code that signs in once, as an admin. None if the system has no random bytes.
    pub(crate) fn new_sign_in_code(&self) -> Option<String> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).ok()?;
        let mut code = String::new();
        for byte in bytes {
            // Writing to memory does not fail.
            let _ = write!(code, "{byte:02x}");
        }
        self.sign_in_codes.put(&code, instant());
        Some(code)
    }

    /// The token of a session that this code begins. In place of an unknown code it returns what is no token: a link must
    /// not sign its reader in by a token that somebody wrote into it.
    pub(super) async fn redeem(self: &Arc<Self>, code: &str) -> Result<String, AdminError> {
        if !self.sign_in_codes.take(code, instant()) {
            return Ok(NO_TOKEN.to_owned());
        }
        let admin = Arc::clone(self);
        let create = async move {
            let actor = Actor { name: "sign-in link".to_owned(), ..Actor::default() };
            let new = NewToken {
                name: "sign-in link".to_owned(),
                role: Role::Admin,
                tenant: None,
                expires_at: Some(rfc3339(now() + SESSION_MILLIS)),
            };
            Ok(admin.control.create_token(&actor, &new, now()).await?.1)
        };
        self.on_control_thread(create).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_used_once_and_ends() {
        let (codes, now) = (SignInCodes::default(), instant());
        assert!(!codes.take("a", now));
        codes.put("a", now);
        assert!(!codes.take("b", now), "another one");
        assert!(codes.take("a", now) && !codes.take("a", now), "once");
        codes.put("a", now);
        assert!(!codes.take("a", now + LIFETIME), "not after its end");
        codes.put("a", now);
        codes.put("b", now);
        assert!(!codes.take("a", now) && codes.take("b", now), "the newest alone");
    }
}
