//! The configuration in force, for people and machines; secrets are not shown.

use serde::Serialize;

use super::{Config, DataAuth, StoreConfig, without_password};

/// Stands where a secret would.
const HIDDEN: &str = "(hidden)";

#[derive(Serialize)]
struct Shown<'c> {
    http: String,
    data_dir: Option<String>,
    rules: Option<String>,
    enforcement: &'static str,
    role: &'static str,
    postgres: Option<String>,
    postgres_password_file: Option<String>,
    admin: Admin,
    audit: Audit,
    redis: Store,
    stores: Option<std::collections::BTreeMap<String, Store>>,
    api_key_secret_file: Option<String>,
    max_counters: usize,
    journal_interval_ms: u64,
    data_auth: &'static str,
    data_tokens: Vec<&'static str>,
    cors_origins: &'c [String],
    headers: Headers,
    limits: Limits,
    threads: usize,
    log: Log,
}

#[derive(Serialize)]
struct Admin {
    http: Option<String>,
    wrong_tokens: u32,
    take_over: bool,
}

#[derive(Serialize)]
struct Audit {
    decisions: bool,
    sample_allowed: u64,
    retention_days: u64,
    max_buffered_bytes: usize,
}

#[derive(Serialize)]
struct Store {
    urls: Vec<String>,
    kind: &'static str,
    master_name: String,
    password_file: Option<String>,
    timeout_ms: u64,
    prefix: String,
    ca_file: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    assumed_nodes: u32,
    lease_ttl_ms: u64,
}

impl Store {
    fn of(store: &StoreConfig) -> Self {
        let path = |path: &std::path::PathBuf| path.display().to_string();
        Self {
            urls: store.urls.iter().map(|url| without_password(url)).collect(),
            kind: store.kind.name(),
            master_name: store.master_name.clone(),
            password_file: store.password.file.as_ref().map(path),
            timeout_ms: millis(store.timeout),
            prefix: store.prefix.clone(),
            ca_file: store.ca_file.as_ref().map(path),
            cert_file: store.cert_file.as_ref().map(path),
            key_file: store.key_file.as_ref().map(path),
            assumed_nodes: store.assumed_nodes,
            lease_ttl_ms: millis(store.lease_ttl),
        }
    }
}

fn millis(wait: std::time::Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Serialize)]
struct Headers {
    x_ratelimit: bool,
    ratelimit: bool,
    retry_after: bool,
}

#[derive(Serialize)]
struct Limits {
    max_body_bytes: usize,
    max_header_bytes: usize,
    max_connections: usize,
    header_timeout_ms: u64,
    body_timeout_ms: u64,
    idle_timeout_ms: u64,
    drain_delay_ms: u64,
    drain_timeout_ms: u64,
}

#[derive(Serialize)]
struct Log {
    level: &'static str,
    format: &'static str,
}

impl Config {
    /// The configuration as YAML. Tokens are hidden, those of `data_token_file` among the others.
    pub fn to_yaml(&self) -> String {
        // A struct of plain values always serialises.
        serde_saphyr::to_string(&self.shown()).unwrap_or_default()
    }

    /// The configuration as JSON, like [`Config::to_yaml`].
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self.shown()).unwrap_or_default()
    }

    fn shown(&self) -> Shown<'_> {
        let path = |path: &std::path::PathBuf| path.display().to_string();
        let named: std::collections::BTreeMap<_, _> =
            self.stores.iter().map(|store| (store.name.clone(), Store::of(store))).collect();
        let (data_auth, tokens) = match &self.data_auth {
            DataAuth::None => ("none", 0),
            DataAuth::Token(digests) => ("token", digests.len()),
        };
        Shown {
            http: self.http.to_string(),
            data_dir: self.data_dir.as_ref().map(path),
            rules: self.rules.as_ref().map(path),
            enforcement: self.enforcement.name(),
            role: self.control.role.name(),
            postgres: self.control.postgres.url.as_deref().map(without_password),
            postgres_password_file: self.control.postgres.password.file.as_ref().map(path),
            admin: Admin {
                http: self.control.admin_http.map(|address| address.to_string()),
                wrong_tokens: self.control.wrong_tokens,
                take_over: self.control.take_over,
            },
            audit: Audit {
                decisions: self.control.audit.is_on,
                sample_allowed: self.control.audit.sample_allowed,
                retention_days: self.control.audit.retention.as_secs() / 86_400,
                max_buffered_bytes: self.control.audit.max_buffered_bytes,
            },
            redis: Store::of(&self.redis),
            stores: (!named.is_empty()).then_some(named),
            api_key_secret_file: self.api_key_secret.file.as_ref().map(path),
            max_counters: self.max_counters,
            journal_interval_ms: millis(self.journal_interval),
            data_auth,
            data_tokens: vec![HIDDEN; tokens],
            cors_origins: &self.cors_origins,
            headers: Headers {
                x_ratelimit: self.headers.x_ratelimit,
                ratelimit: self.headers.ratelimit,
                retry_after: self.headers.retry_after,
            },
            limits: Limits {
                max_body_bytes: self.limits.max_body_bytes,
                max_header_bytes: self.limits.max_header_bytes,
                max_connections: self.limits.max_connections,
                header_timeout_ms: millis(self.limits.header_timeout),
                body_timeout_ms: millis(self.limits.body_timeout),
                idle_timeout_ms: millis(self.limits.idle_timeout),
                drain_delay_ms: millis(self.limits.drain_delay),
                drain_timeout_ms: millis(self.limits.drain_timeout),
            },
            threads: self.threads,
            log: Log { level: self.log.level.name(), format: self.log.format.name() },
        }
    }
}
