//! The stores that nodes share: the `redis` section, and `stores` by name.

use std::path::PathBuf;
use std::time::Duration;

use tollgate_store::redis::{self, Password, RedisOptions, RedisStore};

use super::problem::ConfigProblems;
use super::raw::Raw;
use super::read::{Reader, Said};
use super::tree::Value;

/// The most URLs of one store.
const MAX_URLS: usize = 100;

/// The most stores.
const MAX_STORES: usize = 16;

/// The least bytes of what keys the hash of API keys.
const LEAST_SECRET_BYTES: usize = 16;

/// The name of the store of the `redis` section.
pub const DEFAULT_STORE: &str = "default";

/// How the servers of a store belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RedisKind {
    /// One server.
    #[default]
    Single,
    /// Redis Cluster; the URLs are some of its nodes.
    Cluster,
    /// A master that Sentinels watch; the URLs are those of the Sentinels.
    Sentinel,
}

impl RedisKind {
    /// Every kind with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("single", Self::Single), ("cluster", Self::Cluster), ("sentinel", Self::Sentinel)];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
        }
    }
}

/// A text that is kept in a file and not shown.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret {
    /// Where it is kept.
    pub file: Option<PathBuf>,
    /// The text itself.
    pub text: Option<String>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Secret {
    /// Reads the file of this key; `least` is how many bytes it must hold.
    pub(super) fn read(reader: &mut Reader, key: &str, least: usize) -> Self {
        let Some(Said { value: path, origin }) = reader.optional_path(key) else {
            return Self::default();
        };
        let text = match super::read_file(&path) {
            Ok(text) if text.trim_end_matches(['\n', '\r']).len() >= least => {
                Some(text.trim_end_matches(['\n', '\r']).to_owned())
            }
            Ok(_) => {
                let message = format!("{} must hold at least {least} bytes", path.display());
                reader.wrong(&origin, key, message);
                None
            }
            Err(error) => {
                reader.wrong(&origin, key, format!("{} cannot be read: {error}", path.display()));
                None
            }
        };
        Self { file: Some(path), text }
    }
}

/// A Redis that nodes share.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// What rules call it.
    pub name: String,
    /// Where it is; may hold a password.
    pub urls: Vec<String>,
    /// How its servers belong together.
    pub kind: RedisKind,
    /// What the Sentinels call the master.
    pub master_name: String,
    /// The password, where the URLs have none.
    pub password: Secret,
    /// The same as it is now: the file is read again while the process runs.
    pub current_password: Password,
    /// How long one attempt at a call may take.
    pub timeout: Duration,
    /// What our keys begin with.
    pub prefix: String,
    /// Who signs the server's certificate, if not one of the system's authorities.
    pub ca_file: Option<PathBuf>,
    /// Our certificate, for servers that ask for one.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// How many nodes there are, for one that has not heard of the store yet.
    pub assumed_nodes: u32,
    /// How long a lease lasts.
    pub lease_ttl: Duration,
}

impl std::fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let urls: Vec<String> = self.urls.iter().map(|url| without_password(url)).collect();
        f.debug_struct("StoreConfig")
            .field("name", &self.name)
            .field("urls", &urls)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl StoreConfig {
    /// Reads the file of the password again. True if it holds another one, which connections that are
    /// made from now on use. An empty file is being written, and changes nothing.
    pub fn read_password_again(&self) -> std::io::Result<bool> {
        let Some(file) = &self.password.file else { return Ok(false) };
        let text = super::read_file(file)?;
        let text = text.trim_end_matches(['\n', '\r']);
        Ok(!text.is_empty() && self.current_password.set(Some(text.to_owned())))
    }

    /// How the store is reached; `secret` keys the hash that API keys are known by there.
    pub fn options(&self, secret: &[u8]) -> RedisOptions {
        let kind = match self.kind {
            RedisKind::Single => redis::RedisKind::Single,
            RedisKind::Cluster => redis::RedisKind::Cluster,
            RedisKind::Sentinel => {
                redis::RedisKind::Sentinel { master_name: self.master_name.clone() }
            }
        };
        RedisOptions {
            urls: self.urls.clone(),
            kind,
            password: self.current_password.clone(),
            tls_ca_file: self.ca_file.clone(),
            tls_client: self.cert_file.clone().zip(self.key_file.clone()),
            timeout: self.timeout,
            prefix: self.prefix.clone(),
            api_key_secret: secret.to_owned(),
            ..RedisOptions::default()
        }
    }
}

/// The keys of the `redis` section that a named store takes over where it says nothing itself.
const INHERITED: [&str; 10] = [
    "kind",
    "master_name",
    "password_file",
    "timeout_ms",
    "prefix",
    "ca_file",
    "cert_file",
    "key_file",
    "assumed_nodes",
    "lease_ttl_ms",
];

/// Gives every store of `stores` the keys of the `redis` section, and lays over them what it says
/// itself. Returns the stores' names in the order of the file.
pub(super) fn expand(raw: &mut Raw, problems: &mut ConfigProblems) -> Vec<String> {
    let Some(stores) = raw.settings.remove("stores") else { return Vec::new() };
    let entries = match stores.value {
        Value::Null => return Vec::new(),
        Value::Map(entries) => entries,
        other => {
            let message =
                format!("must be a mapping of names to stores, in a file, not {}", other.kind());
            problems.add(&stores.origin, Some("stores"), message);
            return Vec::new();
        }
    };
    let file = stores.file.unwrap_or_default();
    let mut names = Vec::new();
    if entries.len() > MAX_STORES {
        let message = format!("must not have more than {MAX_STORES} stores");
        problems.add(&stores.origin, Some("stores"), message);
    }
    for (name, node) in entries.into_iter().take(MAX_STORES) {
        let origin = super::raw::place(&file, &name.referenced);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        let text = name.value;
        if text.is_empty() || text.len() > 64 || !text.bytes().all(is_name) || text == DEFAULT_STORE
        {
            let message = format!(
                "a store's name is letters, digits, - and _ (and not {DEFAULT_STORE:?}, which is \
                 the redis section), not {text:?}"
            );
            problems.add(&origin, Some("stores"), message);
            continue;
        }
        let path = format!("stores.{text}");
        for key in INHERITED {
            if let Some(setting) = raw.settings.get(&format!("redis.{key}")) {
                let setting = setting.clone();
                raw.settings.insert(format!("{path}.{key}"), setting);
            }
        }
        let urls = super::raw::Setting { value: Value::Null, origin, file: Some(file.clone()) };
        raw.settings.insert(format!("{path}.urls"), urls);
        raw.lay_node(&path, node, &file, problems);
        let urls = raw.settings.get(&format!("{path}.urls"));
        if let Some(urls) = urls.filter(|urls| urls.value == Value::Null) {
            problems.add(&urls.origin, Some(&path), "its urls must name at least one server");
        }
        names.push(text);
    }
    names
}

/// Reads the `redis` section, every named store, and what keys the hash of API keys.
pub(super) fn check(
    reader: &mut Reader,
    names: &[String],
) -> (StoreConfig, Vec<StoreConfig>, Secret) {
    let secret = Secret::read(reader, "api_key_secret_file", LEAST_SECRET_BYTES);
    let redis = store(reader, "redis", DEFAULT_STORE);
    let named = names.iter().map(|name| store(reader, &format!("stores.{name}"), name)).collect();
    (redis, named, secret)
}

/// One section.
fn store(reader: &mut Reader, path: &str, name: &str) -> StoreConfig {
    let key = |key: &str| format!("{path}.{key}");
    let urls = reader.texts(&key("urls"), MAX_URLS);
    let find =
        |text: &str| RedisKind::ALL.iter().find(|(name, _)| *name == text).map(|kind| kind.1);
    let said_kind = reader.parsed(&key("kind"), "one of single, cluster, sentinel", find);
    let kind = said_kind.as_ref().map(|said| said.value).unwrap_or_default();
    if let Some(said) = said_kind.filter(|said| said.value != RedisKind::Single && urls.is_empty())
        && name == DEFAULT_STORE
    {
        let message = format!("{} needs the addresses of its servers: urls", kind.name());
        reader.wrong(&said.origin, &key("kind"), message);
    }
    let password = Secret::read(reader, &key("password_file"), 1);
    let config = StoreConfig {
        name: name.to_owned(),
        kind,
        master_name: text(reader, &key("master_name")),
        current_password: Password::new(password.text.clone()),
        password,
        timeout: super::check::millis(reader, &key("timeout_ms"), 1, 10_000),
        prefix: text(reader, &key("prefix")),
        ca_file: file(reader, &key("ca_file")),
        cert_file: file(reader, &key("cert_file")),
        key_file: file(reader, &key("key_file")),
        assumed_nodes: u32::try_from(reader.number(&key("assumed_nodes"), 1..=10_000)).unwrap_or(1),
        lease_ttl: super::check::millis(reader, &key("lease_ttl_ms"), 10, 60_000),
        urls: urls.iter().map(|said| said.value.clone()).collect(),
    };
    let are_known: Vec<bool> =
        urls.iter().map(|said| check_url(reader, said, &key("urls"), kind)).collect();
    if let Some(second) = urls.get(1).filter(|_| kind == RedisKind::Single) {
        let message = "one server has one URL; say kind cluster or sentinel for several";
        reader.wrong(&second.origin, &key("urls"), message);
    } else if let Some(first) = urls.first().filter(|_| are_known.iter().all(|known| *known)) {
        // What the store itself would say when it is built: no server is asked.
        if let Err(error) = RedisStore::new(&config.options(b"")) {
            reader.wrong(&first.origin, &key("urls"), error.to_string());
        }
    }
    config
}

fn check_url(reader: &mut Reader, said: &Said<String>, key: &str, kind: RedisKind) -> bool {
    const SCHEMES: [&str; 4] = ["redis://", "rediss://", "unix://", "redis+unix://"];
    let is_known = SCHEMES.iter().any(|scheme| said.value.starts_with(scheme));
    if !is_known {
        // The value is not repeated: it may hold a password.
        let message = "must begin with redis://, rediss:// (TLS) or unix:// (a socket)";
        reader.wrong(&said.origin, key, message);
    } else if said.value.contains("unix://") && kind != RedisKind::Single {
        reader.wrong(&said.origin, key, "a socket is one server; cluster and sentinel need TCP");
        return false;
    }
    is_known
}

fn text(reader: &mut Reader, key: &str) -> String {
    let parse = |text: &str| (!text.is_empty() && text.len() <= 64).then(|| text.to_owned());
    reader.parsed(key, "text of 1 to 64 bytes", parse).map(|said| said.value).unwrap_or_default()
}

fn file(reader: &mut Reader, key: &str) -> Option<PathBuf> {
    reader.optional_path(key).map(|said| said.value)
}

/// A URL as it may be shown. Passwords may have any character, also such as end a URL's host: up to the
/// last `@` all is taken for credentials.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "(not a URL)".to_owned() };
    if scheme.contains("unix") {
        // A socket has its password among the parameters.
        return match rest.split_once('?') {
            None => url.to_owned(),
            Some((path, _)) => format!("{scheme}://{path}?(hidden)"),
        };
    }
    // Drivers take it among the parameters, too.
    if let Some((before, _)) = rest.split_once('?').filter(|(_, it)| it.contains("password")) {
        return format!("{}?(hidden)", without_password(&format!("{scheme}://{before}")));
    }
    match rest.rsplit_once('@') {
        None => url.to_owned(),
        Some((credentials, host)) => {
            let user = credentials.split(':').next().unwrap_or_default();
            let user = if credentials.contains(':') { user } else { "" };
            format!("{scheme}://{user}:(hidden)@{host}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("redis://10.0.0.1:6379/2", "redis://10.0.0.1:6379/2"),
            ("redis://:geheim@host:1", "redis://:(hidden)@host:1"),
            ("rediss://ann:ge@heim@host/0", "rediss://ann:(hidden)@host/0"),
            ("geheim", "(not a URL)"),
            ("postgres://h/d?password=geheim", "postgres://h/d?(hidden)"),
            ("redis://u:top/geheim@10.0.0.1:9/1", "redis://u:(hidden)@10.0.0.1:9/1"),
            ("redis://u:ge?he#im@host", "redis://u:(hidden)@host"),
            ("redis://geheim@host", "redis://:(hidden)@host"),
            ("unix:///x.sock?pass=geheim", "unix:///x.sock?(hidden)"),
            ("unix:///x.sock", "unix:///x.sock"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
