//! Which Redis, and how to talk to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

use super::credentials::{Credentials, Password};

/// What is at the other end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RedisKind {
    /// One server.
    #[default]
    Single,
    /// A cluster; the addresses are some of its nodes.
    Cluster,
    /// Servers under Sentinel; the addresses are sentinels.
    Sentinel {
        /// What the sentinels call the master.
        master_name: String,
    },
}

/// How to reach Redis.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://`, `rediss://` (TLS) or `unix://` addresses: one server, or some nodes of a cluster, or
    /// the sentinels. A user and a password may be part of them.
    pub urls: Vec<String>,
    /// What is at the other end.
    pub kind: RedisKind,
    /// The user of the servers, before the one in an address.
    pub username: Option<String>,
    /// The password of the servers, before the one in an address. Sentinels get what is in their
    /// addresses. It may be changed while the store is in use: new connections use the new one.
    pub password: Password,
    /// PEM file of the authorities that may have signed the server's certificate; those of the system if
    /// absent.
    pub tls_ca_file: Option<PathBuf>,
    /// PEM files of our certificate and its key, for servers that ask for one.
    pub tls_client: Option<(PathBuf, PathBuf)>,
    /// Take any certificate. For trials only.
    pub tls_insecure: bool,
    /// How long an attempt may take. A decision takes at most twice as long and 10 ms more.
    pub timeout: Duration,
    /// What all keys start with.
    pub prefix: String,
    /// Keys the hash that secrets among key values are kept as. Nodes that share counters share it.
    pub api_key_secret: Vec<u8>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            urls: vec!["redis://127.0.0.1:6379".to_owned()],
            kind: RedisKind::Single,
            username: None,
            password: Password::default(),
            tls_ca_file: None,
            tls_client: None,
            tls_insecure: false,
            timeout: Duration::from_millis(20),
            prefix: "tg".to_owned(),
            api_key_secret: Vec::new(),
        }
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<String> = self.urls.iter().map(|url| without_password(url)).collect();
        f.debug_struct("RedisOptions")
            .field("urls", &urls)
            .field("kind", &self.kind)
            .field("username", &self.username)
            .field("timeout", &self.timeout)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// Options that make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedisOptionsError {
    /// No address at all.
    #[error("no Redis address is given")]
    NoUrl,
    /// An address that is none.
    #[error("{url:?} is no Redis address: {problem}")]
    Url {
        /// The address, without its password.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A prefix that would break keys.
    #[error("the key prefix {0:?} must be letters, digits, '.', '_', '-' or ':'")]
    Prefix(String),
    /// A timeout of nothing.
    #[error("the Redis timeout must be longer than zero")]
    Timeout,
    /// A file that cannot be read or used.
    #[error("{file}: {problem}")]
    File {
        /// Which.
        file: String,
        /// Why.
        problem: String,
    },
}

/// An address without what must not be shown.
pub(super) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    match rest.rsplit_once('@') {
        Some((_, address)) => format!("{scheme}://…@{address}"),
        None => url.to_owned(),
    }
}

impl RedisOptions {
    pub(super) fn check(&self) -> Result<(), RedisOptionsError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
        if self.prefix.is_empty() || !self.prefix.chars().all(is_plain) {
            return Err(RedisOptionsError::Prefix(self.prefix.clone()));
        }
        if self.timeout.is_zero() {
            return Err(RedisOptionsError::Timeout);
        }
        if self.urls.is_empty() {
            return Err(RedisOptionsError::NoUrl);
        }
        Ok(())
    }

    /// What the addresses say, as they are.
    pub(super) fn seeds(&self) -> Result<Vec<ConnectionInfo>, RedisOptionsError> {
        let certificates = self.certificates()?;
        self.urls.iter().map(|url| self.seed(url, certificates.as_ref())).collect()
    }

    fn seed(
        &self,
        url: &str,
        certificates: Option<&TlsCertificates>,
    ) -> Result<ConnectionInfo, RedisOptionsError> {
        let wrong =
            |problem: String| RedisOptionsError::Url { url: without_password(url), problem };
        let mut info = url
            .into_connection_info()
            .map_err(|error| wrong(error.detail().unwrap_or("it cannot be read").to_owned()))?;
        if let ConnectionAddr::TcpTls { host, port, insecure, .. } = info.addr() {
            if *insecure {
                return Err(wrong(
                    "#insecure switches the verification of the server's certificate off, and is \
                     not accepted; give the authority that signed it (ca_file)"
                        .to_owned(),
                ));
            }
            let insecure = self.tls_insecure;
            let (host, port) = (host.clone(), *port);
            info = info.set_addr(ConnectionAddr::TcpTls { host, port, insecure, tls_params: None });
            if let Some(certificates) = certificates {
                info = redis::Client::build_with_tls(info, certificates.clone())
                    .map_err(|error| wrong(error.to_string()))?
                    .get_connection_info()
                    .clone();
            }
        }
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        Ok(info.set_redis_settings(settings))
    }

    /// The same for a server: with the user and password of the options, if there are any.
    pub(super) fn with_credentials(&self, info: ConnectionInfo) -> ConnectionInfo {
        self.credentials().apply(info)
    }

    /// The user and the password of the servers.
    pub(super) fn credentials(&self) -> Credentials {
        Credentials { username: self.username.clone(), password: self.password.clone() }
    }

    fn certificates(&self) -> Result<Option<TlsCertificates>, RedisOptionsError> {
        if self.tls_ca_file.is_none() && self.tls_client.is_none() {
            return Ok(None);
        }
        let read = |file: &Path| {
            std::fs::read(file).map_err(|error| RedisOptionsError::File {
                file: file.display().to_string(),
                problem: error.to_string(),
            })
        };
        let root_cert = self.tls_ca_file.as_deref().map(read).transpose()?;
        let client_tls = match &self.tls_client {
            Some((cert, key)) => {
                Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
            }
            None => None,
        };
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let urls = vec!["redis://user:hunter2@host:1".to_owned(), "rediss://:hunter2@x".to_owned()];
        let password = Password::new(Some("hunter2".to_owned()));
        let options = RedisOptions { urls, password, ..RedisOptions::default() };
        let shown = format!("{options:?}");
        assert!(!shown.contains("hunter2") && shown.contains("host:1"), "{shown}");
    }

    #[test]
    fn nonsense_is_refused() {
        let with = |change: fn(&mut RedisOptions)| {
            let mut options = RedisOptions::default();
            change(&mut options);
            options.check().and_then(|()| options.seeds().map(|_| ()))
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|options| options.urls.clear()), Err(RedisOptionsError::NoUrl));
        assert!(with(|options| options.prefix = "a{b".to_owned()).is_err());
        assert!(with(|options| options.timeout = Duration::ZERO).is_err());
        assert!(with(|options| options.tls_ca_file = Some("/nowhere.pem".into())).is_err());
        let insecure = RedisOptions {
            urls: vec!["rediss://:hunter2@host:1/#insecure".to_owned()],
            ..RedisOptions::default()
        };
        let error = insecure.seeds().expect_err("#insecure").to_string();
        assert!(error.contains("not accepted") && !error.contains("hunter2"), "{error}");
        for url in ["", "redis", "http://x", "redis://:hunter2@[::bad"] {
            let options = RedisOptions { urls: vec![url.to_owned()], ..RedisOptions::default() };
            let error = options.seeds().expect_err(url).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
