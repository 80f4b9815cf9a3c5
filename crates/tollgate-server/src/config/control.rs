//! The control plane: which part of it this node plays, its database, its audit log.

use std::net::SocketAddr;
use std::time::Duration;

use super::check::parse_address;
use super::read::{Reader, Said};
use super::{Config, Secret};
use tollgate_control::{HistoryBounds, Signer};

/// What this node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeRole {
    /// Decides, and serves the admin API.
    #[default]
    All,
    /// Serves the admin API, and does not decide.
    Control,
    /// Decides, and gets its rules from the others.
    Data,
}

impl NodeRole {
    /// Every role with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("all", Self::All), ("control", Self::Control), ("data", Self::Data)];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Control => "control",
            Self::Data => "data",
        }
    }
}

/// The database of the control plane, where it is a PostgreSQL.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PostgresConfig {
    /// Its URL; `None`: SQLite in the data directory.
    pub url: Option<String>,
    /// The password, where the URL has none.
    pub password: Secret,
}

impl std::fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = self.url.as_deref().map(super::without_password);
        f.debug_struct("PostgresConfig").field("url", &url).finish_non_exhaustive()
    }
}

/// What is kept of decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditConfig {
    /// Whether anything is.
    pub is_on: bool,
    /// Of so many allowed requests one is kept; 0: none.
    pub sample_allowed: u64,
    /// For how long.
    pub retention: Duration,
    /// What may wait to be written.
    pub max_buffered_bytes: usize,
    /// What the log may take; none: by the free disk.
    pub max_bytes: Option<u64>,
    /// Repeated decisions within this time are one record.
    pub aggregate: Duration,
}

/// What is kept of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerConfig {
    /// Whether a ledger is kept.
    pub is_on: bool,
    /// For how many days.
    pub retention_days: u32,
    /// How many rows one day may have.
    pub max_rows_per_day: u32,
}

/// The settings of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlConfig {
    /// What this node does.
    pub role: NodeRole,
    /// The database, where it is a PostgreSQL.
    pub postgres: PostgresConfig,
    /// Where the admin API is served, if not beside the decisions.
    pub admin_http: Option<SocketAddr>,
    /// So many wrong tokens are forgiven an address.
    pub wrong_tokens: u32,
    /// Publish to a Redis that holds the rule set of another database.
    pub take_over: bool,
    /// How much of the history of changes is kept.
    pub history: HistoryBounds,
    /// The key that signs the history of changes; `None`: one in the data directory.
    pub signing_key: Secret,
    /// What is kept of decisions.
    pub audit: AuditConfig,
    /// What is kept of usage.
    pub ledger: LedgerConfig,
    /// The first admin token, instead of `TOLLGATE_ADMIN_TOKEN`. No file or variable sets it.
    pub first_token: Secret,
}

pub(super) fn check(reader: &mut Reader) -> ControlConfig {
    let role = reader.choice("role", NodeRole::ALL);
    let url = reader.optional_text("postgres", "a URL or null");
    if let Some(Said { value, origin }) = &url
        && !["postgres://", "postgresql://"].iter().any(|scheme| value.starts_with(scheme))
    {
        let message = "must be a URL such as postgres://user@host:5432/tollgate, or null";
        reader.wrong(origin, "postgres", message);
    }
    let password = Secret::read(reader, "postgres_password_file", 1);
    let admin = reader.optional_text("admin.http", "an address and a port or null");
    let admin_http = admin.and_then(|Said { value, origin }| match parse_address(&value) {
        Ok(address) => Some(address),
        Err(message) => {
            reader.wrong(&origin, "admin.http", message);
            None
        }
    });
    let days = |days: u64| Duration::from_secs(days * 86_400);
    ControlConfig {
        first_token: Secret::default(),
        role,
        postgres: PostgresConfig { url: url.map(|said| said.value), password },
        admin_http,
        wrong_tokens: u32::try_from(reader.number("admin.wrong_tokens", 1..=1_000_000))
            .unwrap_or(u32::MAX),
        take_over: reader.boolean("admin.take_over"),
        history: history(reader),
        signing_key: signing_key(reader),
        audit: AuditConfig {
            is_on: reader.boolean("audit.decisions"),
            sample_allowed: reader.number("audit.sample_allowed", 0..=1_000_000_000),
            retention: days(reader.number("audit.retention_days", 1..=3_650)),
            max_buffered_bytes: usize::try_from(
                reader.number("audit.max_buffered_bytes", 65_536..=1 << 30),
            )
            .unwrap_or(usize::MAX),
            max_bytes: Some(reader.number("audit.max_bytes", 0..=1 << 40)).filter(|it| *it > 0),
            aggregate: Duration::from_secs(reader.number("audit.aggregate_seconds", 1..=3_600)),
        },
        ledger: LedgerConfig {
            is_on: reader.boolean("ledger.enabled"),
            retention_days: small(reader.number("ledger.retention_days", 1..=3_650)),
            max_rows_per_day: small(reader.number("ledger.max_rows_per_day", 100..=10_000_000)),
        },
    }
}

/// The key, checked: a node with a key that it cannot use would not sign.
fn signing_key(reader: &mut Reader) -> Secret {
    const KEY: &str = "history.signing_key_file";
    let Some(Said { value: path, origin }) = reader.optional_path(KEY) else {
        return Secret::default();
    };
    let text = match super::read_file(&path) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) => {
            reader.wrong(&origin, KEY, format!("{} cannot be read: {error}", path.display()));
            None
        }
    };
    if let Some(Err(error)) = text.as_deref().map(Signer::from_hex) {
        reader.wrong(&origin, KEY, format!("{}: {error}", path.display()));
    }
    Secret { file: Some(path), text }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The fewest bytes of a bound of the history.
const MIN_HISTORY_BYTES: u64 = 65_536;

fn history(reader: &mut Reader) -> HistoryBounds {
    let mut bound = |key: &str| {
        u32::try_from(reader.number(&format!("history.{key}"), 1..=1_000_000_000))
            .unwrap_or(u32::MAX)
    };
    let counts = HistoryBounds {
        versions_per_rule: bound("max_versions_per_rule"),
        versions_per_tenant: bound("max_versions_per_tenant"),
        versions: bound("max_versions"),
        changes_per_tenant: bound("max_changes_per_tenant"),
        changes: bound("max_changes"),
        ..HistoryBounds::default()
    };
    let mut bytes =
        |key: &str| reader.number(&format!("history.{key}"), MIN_HISTORY_BYTES..=1 << 40);
    HistoryBounds {
        bytes_per_rule: bytes("max_bytes_per_rule"),
        bytes_per_tenant: bytes("max_bytes_per_tenant"),
        bytes: bytes("max_bytes"),
        ..counts
    }
}

impl Config {
    /// Whether this node has a control plane of its own.
    pub const fn has_control(&self) -> bool {
        !matches!(self.control.role, NodeRole::Data)
    }

    /// Whether this node decides.
    pub const fn decides(&self) -> bool {
        !matches!(self.control.role, NodeRole::Control)
    }
}
