//! The configuration in force, for people and machines; secrets are not shown.

use serde::Serialize;
use tollgate_control::HistoryBounds;

use super::{Config, DataAuth, Secret, StoreConfig, without_password};

/// Stands where a secret would.
pub(super) const HIDDEN: &str = "(hidden)";

#[derive(Serialize)]
struct Shown<'c> {
    http: String,
    grpc: Option<String>,
    tls: Tls,
    identity: Identity,
    gateway: Gateway,
    queue: Queue,
    data_dir: Option<String>,
    rules: Option<String>,
    prices: serde_json::Value,
    unpriced: serde_json::Value,
    default_price: serde_json::Value,
    enforcement: &'static str,
    role: &'static str,
    postgres: Option<String>,
    postgres_password_file: Option<String>,
    admin: Admin,
    oidc: super::oidc::ShownOidc,
    history: History,
    audit: Audit,
    ledger: Ledger,
    redis: Store,
    stores: Option<std::collections::BTreeMap<String, Store>>,
    api_key_secret_file: Option<String>,
    max_counters: usize,
    max_reservations: usize,
    journal_interval_ms: u64,
    data_auth: &'static str,
    data_tokens: Vec<&'static str>,
    cors_origins: &'c [String],
    allowed_hosts: &'c [String],
    headers: Headers,
    limits: Limits,
    threads: usize,
    log: Log,
    metrics: super::telemetry::ShownMetrics,
    top: super::telemetry::ShownTop,
    traces: super::telemetry::ShownTraces,
    recording: super::recording::ShownRecording,
}

#[derive(Serialize)]
struct Tls {
    cert_file: Option<String>,
    key_file: Option<String>,
    client_ca_file: Option<String>,
    client_certificates: &'static str,
}

#[derive(Serialize)]
struct Identity {
    api_key_header: String,
    trust_api_key_header: bool,
    api_key_as_bearer: bool,
    api_keys_file: Option<String>,
    trusted_proxies: Vec<String>,
    address_header: &'static str,
    ipv6_prefix: u8,
    jwt: Jwt,
}

#[derive(Serialize)]
struct Jwt {
    algorithms: Vec<String>,
    key_file: Option<String>,
    secret_file: Option<String>,
    jwks_file: Option<String>,
    jwks_url: Option<String>,
    jwks_refresh_seconds: u64,
    issuers: Vec<String>,
    audiences: Vec<String>,
    leeway_seconds: u64,
    required: bool,
    user_claim: Option<String>,
    tenant_claim: Option<String>,
    tier_claim: Option<String>,
}

#[derive(Serialize)]
struct Gateway {
    listen: Option<String>,
    upstream: Option<String>,
    pools: Option<std::collections::BTreeMap<String, super::PoolConfig>>,
    routes: Option<Vec<super::RouteConfig>>,
    model_header: String,
    preserve_host: bool,
    connect_timeout_ms: u64,
    response_timeout_ms: u64,
    body_idle_timeout_ms: u64,
    min_body_bytes_per_second: u64,
    upgrade_idle_timeout_ms: u64,
    pool_idle_timeout_ms: u64,
    attempts: u32,
    max_waiting: usize,
    openai: super::openai::ShownOpenAi,
}

#[derive(Serialize)]
struct Queue {
    max_depth: u64,
    max_depth_per_key: u64,
    max_bytes: u64,
    max_bytes_per_tenant: u64,
    max_bytes_per_key: u64,
    max_age_seconds: u64,
    max_body_bytes: usize,
    max_attempts: u32,
    keep_seconds: u64,
    lease_seconds: u64,
}

#[derive(Serialize)]
struct Admin {
    http: Option<String>,
    wrong_tokens: u32,
    take_over: bool,
}

#[derive(Serialize)]
#[allow(clippy::struct_field_names, reason = "they are the names of configuration keys")]
struct History {
    max_versions_per_rule: u32,
    max_versions_per_tenant: u32,
    max_versions: u32,
    max_changes_per_tenant: u32,
    max_changes: u32,
    max_bytes_per_rule: u64,
    max_bytes_per_tenant: u64,
    max_bytes: u64,
    signing_key_file: Option<String>,
}

impl History {
    fn of(bounds: &HistoryBounds, signing_key: &Secret) -> Self {
        Self {
            max_versions_per_rule: bounds.versions_per_rule,
            max_versions_per_tenant: bounds.versions_per_tenant,
            max_versions: bounds.versions,
            max_changes_per_tenant: bounds.changes_per_tenant,
            max_changes: bounds.changes,
            max_bytes_per_rule: bounds.bytes_per_rule,
            max_bytes_per_tenant: bounds.bytes_per_tenant,
            max_bytes: bounds.bytes,
            signing_key_file: signing_key.file.as_ref().map(|file| file.display().to_string()),
        }
    }
}

#[derive(Serialize)]
struct Audit {
    decisions: bool,
    sample_allowed: u64,
    retention_days: u64,
    max_bytes: u64,
    aggregate_seconds: u64,
    max_buffered_bytes: usize,
}

#[derive(Serialize)]
struct Ledger {
    enabled: bool,
    retention_days: u32,
    max_rows_per_day: u32,
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
    max_connections_per_address: usize,
    max_buffered_bytes: usize,
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
    decisions: super::telemetry::ShownDecisionLog,
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
            DataAuth::Mtls => ("mtls", 0),
        };
        Shown {
            http: self.http.to_string(),
            grpc: self.grpc.map(|address| address.to_string()),
            tls: Tls {
                cert_file: self.tls.cert_file.as_ref().map(path),
                key_file: self.tls.key_file.as_ref().map(path),
                client_ca_file: self.tls.client_ca_file.as_ref().map(path),
                client_certificates: self.tls.client_certificates.name(),
            },
            identity: self.shown_identity(),
            gateway: self.shown_gateway(),
            queue: Queue {
                max_depth: self.queue.max_depth,
                max_depth_per_key: self.queue.max_depth_per_key,
                max_bytes: self.queue.max_bytes,
                max_bytes_per_tenant: self.queue.max_bytes_per_tenant,
                max_bytes_per_key: self.queue.max_bytes_per_key,
                max_age_seconds: self.queue.max_age.as_secs(),
                max_body_bytes: self.queue.max_body_bytes,
                max_attempts: self.queue.max_attempts,
                keep_seconds: self.queue.keep.as_secs(),
                lease_seconds: self.queue.lease.as_secs(),
            },
            data_dir: self.data_dir.as_ref().map(path),
            rules: self.rules.as_ref().map(path),
            prices: self.prices.shown("prices"),
            unpriced: self.prices.shown("unpriced"),
            default_price: self.prices.shown("default_price"),
            enforcement: self.enforcement.name(),
            role: self.control.role.name(),
            postgres: self.control.postgres.url.as_deref().map(without_password),
            postgres_password_file: self.control.postgres.password.file.as_ref().map(path),
            admin: Admin {
                http: self.control.admin_http.map(|address| address.to_string()),
                wrong_tokens: self.control.wrong_tokens,
                take_over: self.control.take_over,
            },
            oidc: self.shown_oidc(),
            history: History::of(&self.control.history, &self.control.signing_key),
            audit: Audit {
                decisions: self.control.audit.is_on,
                sample_allowed: self.control.audit.sample_allowed,
                retention_days: self.control.audit.retention.as_secs() / 86_400,
                max_bytes: self.control.audit.max_bytes.unwrap_or(0),
                aggregate_seconds: self.control.audit.aggregate.as_secs(),
                max_buffered_bytes: self.control.audit.max_buffered_bytes,
            },
            ledger: Ledger {
                enabled: self.control.ledger.is_on,
                retention_days: self.control.ledger.retention_days,
                max_rows_per_day: self.control.ledger.max_rows_per_day,
            },
            redis: Store::of(&self.redis),
            stores: (!named.is_empty()).then_some(named),
            api_key_secret_file: self.api_key_secret.file.as_ref().map(path),
            max_counters: self.max_counters,
            max_reservations: self.max_reservations,
            journal_interval_ms: millis(self.journal_interval),
            data_auth,
            data_tokens: vec![HIDDEN; tokens],
            cors_origins: &self.cors_origins,
            allowed_hosts: &self.allowed_hosts,
            headers: Headers {
                x_ratelimit: self.headers.x_ratelimit,
                ratelimit: self.headers.ratelimit,
                retry_after: self.headers.retry_after,
            },
            limits: Limits {
                max_body_bytes: self.limits.max_body_bytes,
                max_header_bytes: self.limits.max_header_bytes,
                max_connections: self.limits.max_connections,
                max_connections_per_address: self.limits.max_connections_per_address,
                max_buffered_bytes: self.limits.max_buffered_bytes,
                header_timeout_ms: millis(self.limits.header_timeout),
                body_timeout_ms: millis(self.limits.body_timeout),
                idle_timeout_ms: millis(self.limits.idle_timeout),
                drain_delay_ms: millis(self.limits.drain_delay),
                drain_timeout_ms: millis(self.limits.drain_timeout),
            },
            threads: self.threads,
            log: Log {
                level: self.log.level.name(),
                format: self.log.format.name(),
                decisions: self.shown_decision_log(),
            },
            metrics: self.shown_metrics(),
            top: self.shown_top(),
            traces: self.shown_traces(),
            recording: self.shown_recording(),
        }
    }

    fn shown_identity(&self) -> Identity {
        let path = |path: &std::path::PathBuf| path.display().to_string();
        let identity = &self.identity;
        let jwt = &identity.jwt;
        let [user_claim, tenant_claim, tier_claim] = jwt.claims.clone();
        Identity {
            api_key_header: identity.api_key_header.clone(),
            trust_api_key_header: identity.trust_api_key_header,
            api_key_as_bearer: identity.api_key_as_bearer,
            api_keys_file: identity.api_keys_file.as_ref().map(path),
            trusted_proxies: identity.trusted_proxies.clone(),
            address_header: identity.address_header.name(),
            ipv6_prefix: identity.ipv6_prefix,
            jwt: Jwt {
                algorithms: jwt.algorithms.clone(),
                key_file: jwt.key_file.as_ref().map(path),
                secret_file: jwt.secret_file.as_ref().map(path),
                jwks_file: jwt.jwks_file.as_ref().map(path),
                jwks_url: jwt.jwks_url.as_deref().map(without_password),
                jwks_refresh_seconds: jwt.jwks_refresh.as_secs(),
                issuers: jwt.issuers.clone(),
                audiences: jwt.audiences.clone(),
                leeway_seconds: jwt.leeway.as_secs(),
                required: jwt.required,
                user_claim,
                tenant_claim,
                tier_claim,
            },
        }
    }

    fn shown_gateway(&self) -> Gateway {
        let gateway = &self.gateway;
        let url = |url: &str| without_password(url);
        let mut pools = gateway.pools.clone();
        for target in pools.values_mut().flat_map(|pool| &mut pool.targets) {
            target.url = url(&target.url);
        }
        Gateway {
            listen: gateway.listen.map(|address| address.to_string()),
            upstream: gateway.upstream.as_deref().map(url),
            pools: (!pools.is_empty()).then_some(pools),
            routes: (!gateway.routes.is_empty()).then(|| gateway.routes.clone()),
            model_header: gateway.model_header.clone(),
            preserve_host: gateway.preserve_host,
            connect_timeout_ms: millis(gateway.connect_timeout),
            response_timeout_ms: millis(gateway.response_timeout),
            body_idle_timeout_ms: millis(gateway.body_idle_timeout),
            min_body_bytes_per_second: gateway.min_body_bytes_per_second,
            upgrade_idle_timeout_ms: millis(gateway.upgrade_idle_timeout),
            pool_idle_timeout_ms: millis(gateway.pool_idle_timeout),
            attempts: gateway.attempts,
            max_waiting: gateway.max_waiting,
            openai: (&gateway.openai).into(),
        }
    }
}
