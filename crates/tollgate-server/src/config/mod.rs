//! The configuration of the server.
//!
//! It has two stages: settings as typed, from the default file, a file of the user's, the
//! environment and flags, each laid over the one before; and [`Config`], checked and ready. The
//! default file decides what keys there are and what they are by default. Every problem is reported
//! at once, with the place it was said.

mod auth;
mod check;
mod control;
mod edge;
mod listener;
mod oidc;
mod openai;
mod prices;
mod problem;
mod raw;
mod read;
mod recording;
mod route_kind;
mod show;
mod stores;
mod telemetry;
#[cfg(test)]
mod tests;
mod tree;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate_engine::Enforcement;

pub use check::parse_address;
pub use control::{AuditConfig, ControlConfig, LedgerConfig, NodeRole, PostgresConfig};
pub use edge::{
    AddressHeader, ClientCertificates, GatewayConfig, HealthConfig, IdentityConfig, JwtConfig,
    PoolConfig, QueueConfig, RouteConfig, ShareConfig, TargetConfig, TlsConfig,
};
pub use listener::HttpListener;
pub use oidc::{OidcConfig, RoleMapping, TenantSource};
pub use openai::{ModelConfig, OpenAiConfig, UnknownModels};
pub use prices::{PricesConfig, PricesError};
pub use problem::{ConfigProblem, ConfigProblems, Origin};
pub use recording::RecordingConfig;
pub use route_kind::RouteKind;
pub use stores::{DEFAULT_STORE, RedisKind, Secret, StoreConfig, without_password};
pub use telemetry::{DecisionLogConfig, StatsdConfig, TelemetryConfig, TracesConfig};
pub use tollgate_tower::HeaderFamilies;

/// The commented default file, which is the defaults.
pub const DEFAULT_FILE: &str = include_str!("tollgate.default.yaml");

/// How problems name the default file.
const DEFAULT_FILE_NAME: &str = "tollgate.default.yaml";

/// The largest file that is read as a configuration or a list of tokens.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The configuration, checked and ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where HTTP is served.
    pub http: SocketAddr,
    /// Where gRPC is served.
    pub grpc: Option<SocketAddr>,
    /// TLS on listeners.
    pub tls: TlsConfig,
    /// Who calls.
    pub identity: IdentityConfig,
    /// The reverse proxy.
    pub gateway: GatewayConfig,
    /// What is sent on later.
    pub queue: QueueConfig,
    /// Where counters are kept across restarts; nowhere if absent.
    pub data_dir: Option<PathBuf>,
    /// The rule file; the built-in default rule alone if absent.
    pub rules: Option<PathBuf>,
    /// What models cost.
    pub prices: PricesConfig,
    /// Whether refusals are enforced.
    pub enforcement: Enforcement,
    /// The control plane.
    pub control: ControlConfig,
    /// Single sign-on to the console.
    pub oidc: OidcConfig,
    /// The Redis that nodes share, if it has an address.
    pub redis: StoreConfig,
    /// Further ones, by name.
    pub stores: Vec<StoreConfig>,
    /// Holds what keys the hash that API keys are known by in shared stores.
    pub api_key_secret: Secret,
    /// How many counters are kept in memory.
    pub max_counters: usize,
    /// How many reservations are kept in memory.
    pub max_reservations: usize,
    /// How often changes of counters are written to disk.
    pub journal_interval: Duration,
    /// Who may ask for decisions.
    pub data_auth: DataAuth,
    /// The origins whose pages may call the server; `*` is every one.
    pub cors_origins: Vec<String>,
    /// The names under which proxies call from loopback, besides local ones.
    pub allowed_hosts: Vec<String>,
    /// Which families of headers a decision carries.
    pub headers: HeaderFamilies,
    /// Bounds of what a client can take up.
    pub limits: Limits,
    /// Threads that serve requests; 0 is one for each core.
    pub threads: usize,
    /// What is logged, and how.
    pub log: LogConfig,
    /// What this node reports about itself.
    pub telemetry: TelemetryConfig,
    /// Which decisions are recorded, and where.
    pub recording: RecordingConfig,
}

/// Who may ask for decisions.
#[derive(Clone, PartialEq, Eq)]
pub enum DataAuth {
    /// Anyone who reaches the listener.
    None,
    /// Bearers of a token with one of these SHA-256 digests.
    Token(Vec<[u8; 32]>),
    /// Clients with a certificate by one of our authorities.
    Mtls,
}

impl std::fmt::Debug for DataAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Mtls => f.write_str("Mtls"),
            Self::Token(digests) => write!(f, "Token({} hidden)", digests.len()),
        }
    }
}

/// Bounds of what a client can take up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body.
    pub max_body_bytes: usize,
    /// The most that a request's line and headers take together.
    pub max_header_bytes: usize,
    /// Connections at the same time.
    pub max_connections: usize,
    /// Connections of one address at the same time.
    pub max_connections_per_address: usize,
    /// The most bytes that bodies and answers take in memory, over all connections.
    pub max_buffered_bytes: usize,
    /// How long a client may take to send its headers.
    pub header_timeout: Duration,
    /// How long a client may take to send its body.
    pub body_timeout: Duration,
    /// How long a client may take to begin its next request.
    pub idle_timeout: Duration,
    /// How long `/readyz` says no before the listeners close at shutdown.
    pub drain_delay: Duration,
    /// How long requests under way have to finish at shutdown.
    pub drain_timeout: Duration,
}

/// What is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// The least important level that is logged.
    pub level: LogLevel,
    /// The form.
    pub format: LogFormat,
}

/// The least important level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Nothing is logged.
    Off,
    /// What failed.
    Error,
    /// What someone should look at.
    Warn,
    /// What happens to the server.
    #[default]
    Info,
    /// What happens to requests.
    Debug,
    /// Everything.
    Trace,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// What flags say; each comes before the environment and the file. Paths are text, since `null` is
/// one of their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--http`
    pub http: Option<SocketAddr>,
    /// `--grpc`; `null` serves none.
    pub grpc: Option<String>,
    /// `--listen`
    pub listen: Option<SocketAddr>,
    /// `--upstream`
    pub upstream: Option<String>,
    /// `--data-dir`; `null` keeps nothing on disk.
    pub data_dir: Option<String>,
    /// `--rules`
    pub rules: Option<String>,
    /// `--record`
    pub record: Option<String>,
    /// `--enforcement`
    pub enforcement: Option<Enforcement>,
    /// `--data-auth`
    pub data_auth: Option<String>,
    /// `--role`
    pub role: Option<NodeRole>,
    /// `--postgres`
    pub postgres: Option<String>,
    /// `--admin-http`
    pub admin_http: Option<SocketAddr>,
    /// `--redis`
    pub redis: Vec<String>,
    /// `--redis-cluster`
    pub redis_cluster: bool,
    /// `--redis-sentinel`
    pub redis_sentinel: Option<String>,
    /// `--max-counters`
    pub max_counters: Option<u64>,
    /// `--threads`
    pub threads: Option<u64>,
    /// `--log-level`
    pub log_level: Option<LogLevel>,
    /// `--log-format`
    pub log_format: Option<LogFormat>,
}

impl Config {
    /// The stores that nodes share, the first for rules that name none; none: this node is alone.
    pub fn shared_stores(&self) -> impl Iterator<Item = &StoreConfig> {
        std::iter::once(&self.redis).filter(|redis| !redis.urls.is_empty()).chain(&self.stores)
    }

    /// The configuration that a file, the environment and flags say together.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        overrides: &Overrides,
    ) -> Result<Self, ConfigProblems> {
        let mut problems = ConfigProblems::default();
        let mut raw = Self::layers(file, env, &mut problems);
        overrides.lay(&mut raw);
        let stores = stores::expand(&mut raw, &mut problems);
        check::check(read::Reader::new(raw, problems), &stores)
    }

    /// The settings of the defaults, a file and the environment, each laid over the one before.
    fn layers(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        problems: &mut ConfigProblems,
    ) -> raw::Raw {
        let mut raw = raw::Raw::defaults(problems);
        if let Some(path) = file {
            let name = path.display().to_string();
            match read_file(path) {
                Ok(text) => raw.lay_file(&text, &name, problems),
                Err(error) => {
                    let origin = Origin::File { name, line: 0, column: 0 };
                    problems.add(&origin, None, format!("cannot be read: {error}"));
                }
            }
        }
        raw.lay_variables(env);
        raw
    }
}

impl Overrides {
    fn lay(&self, raw: &mut raw::Raw) {
        let urls = (!self.redis.is_empty()).then(|| self.redis.join(","));
        let kind = match (self.redis_cluster, &self.redis_sentinel) {
            (true, _) => Some("cluster".to_owned()),
            (false, Some(_)) => Some("sentinel".to_owned()),
            (false, None) => None,
        };
        let said: [(&str, &'static str, Option<String>); 19] = [
            ("http", "--http", self.http.map(|address| address.to_string())),
            ("grpc", "--grpc", self.grpc.clone()),
            ("gateway.listen", "--listen", self.listen.map(|address| address.to_string())),
            ("gateway.upstream", "--upstream", self.upstream.clone()),
            ("data_dir", "--data-dir", self.data_dir.clone()),
            ("rules", "--rules", self.rules.clone()),
            ("recording.dir", "--record", self.record.clone()),
            ("enforcement", "--enforcement", self.enforcement.map(|mode| mode.name().into())),
            ("data_auth", "--data-auth", self.data_auth.clone()),
            ("role", "--role", self.role.map(|role| role.name().into())),
            ("postgres", "--postgres", self.postgres.clone()),
            ("admin.http", "--admin-http", self.admin_http.map(|address| address.to_string())),
            ("redis.urls", "--redis", urls),
            ("redis.kind", "--redis-cluster or --redis-sentinel", kind),
            ("redis.master_name", "--redis-sentinel", self.redis_sentinel.clone()),
            ("max_counters", "--max-counters", self.max_counters.map(|count| count.to_string())),
            ("threads", "--threads", self.threads.map(|count| count.to_string())),
            ("log.level", "--log-level", self.log_level.map(|level| level.name().into())),
            ("log.format", "--log-format", self.log_format.map(|format| format.name().into())),
        ];
        for (key, flag, value) in said {
            if let Some(text) = value {
                raw.lay_text(key, text, Origin::Flag(flag));
            }
        }
    }
}

/// The environment variable of every key, in the order of the keys.
pub fn variables() -> Vec<(String, String)> {
    let raw = raw::Raw::defaults(&mut ConfigProblems::default());
    raw.settings.keys().map(|key| (raw::variable_of(key), key.clone())).collect()
}

/// The variables that look like settings and are none: most likely a slip, worth a warning.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let known = raw::Raw::defaults(&mut ConfigProblems::default()).variables();
    names.filter(|name| raw::is_unknown_variable(name, &known)).collect()
}

/// Reads a file of at most [`MAX_FILE_BYTES`].
fn read_file(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::other(format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}
