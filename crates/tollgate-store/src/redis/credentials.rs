//! The user and password of servers. The password can change while connections are in use.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use redis::ConnectionInfo;

/// A password that may change. Clones share it.
#[derive(Clone, Default)]
pub struct Password(Arc<RwLock<Option<String>>>);

impl Password {
    /// This one; `None`: those of the addresses.
    pub fn new(text: Option<String>) -> Self {
        Self(Arc::new(RwLock::new(text)))
    }

    /// Replaces it, for connections that are made from now on. True if it is another one.
    pub fn set(&self, text: Option<String>) -> bool {
        let mut current = self.0.write();
        let is_other = *current != text;
        *current = text;
        is_other
    }
}

impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        let own = self.0.read().clone();
        own == *other.0.read()
    }
}

impl Eq for Password {}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(hidden)")
    }
}

/// Who we are to a server.
#[derive(Clone)]
pub(super) struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password: Password,
}

impl Credentials {
    /// The same server, with the user and the password of this moment.
    pub(super) fn apply(&self, info: ConnectionInfo) -> ConnectionInfo {
        let mut settings = info.redis_settings().clone();
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &*self.password.0.read() {
            settings = settings.set_password(password);
        }
        info.set_redis_settings(settings)
    }
}
