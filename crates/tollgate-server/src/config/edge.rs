//! The edge: TLS, who calls, the gateway and its queue.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::{MAX_TIMEOUT_MS, millis, parse_address, size};
use super::openai::{self, OpenAiConfig};
use super::read::{Reader, Said};
use super::route_kind::RouteKind;

/// The most networks of trusted proxies, issuers, audiences and the like.
const MAX_ENTRIES: usize = 1_000;

/// Whether clients are asked for certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// They are not.
    #[default]
    Off,
    /// One that is shown must be good.
    Optional,
    /// Nobody gets in without.
    Required,
}

impl ClientCertificates {
    /// Every choice with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("off", Self::Off), ("optional", Self::Optional), ("required", Self::Required)];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

/// TLS on listeners.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsConfig {
    /// The certificate; `None`: no TLS.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// Who signs clients' certificates.
    pub client_ca_file: Option<PathBuf>,
    /// Whether clients are asked for one.
    pub client_certificates: ClientCertificates,
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityConfig {
    /// The header with the API key.
    pub api_key_header: String,
    /// Whether it has been checked by something in front of us.
    pub trust_api_key_header: bool,
    /// Whether `Authorization: Bearer` may hold it too.
    pub api_key_as_bearer: bool,
    /// The registered keys.
    pub api_keys_file: Option<PathBuf>,
    /// Whose word about addresses is believed.
    pub trusted_proxies: Vec<String>,
    /// Which header they write.
    pub address_header: AddressHeader,
    /// How IPv6 callers are grouped.
    pub ipv6_prefix: u8,
    /// Tokens.
    pub jwt: JwtConfig,
}

/// Which header says what address a proxy saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressHeader {
    /// `X-Forwarded-For`
    #[default]
    XForwardedFor,
    /// `Forwarded`
    Forwarded,
    /// None: the peer is the client.
    None,
}

impl AddressHeader {
    const ALL: &'static [(&'static str, Self)] = &[
        ("x-forwarded-for", Self::XForwardedFor),
        ("forwarded", Self::Forwarded),
        ("none", Self::None),
    ];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::None => "none",
        }
    }
}

/// Tokens that say who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtConfig {
    /// The accepted algorithms; empty: tokens are not looked at.
    pub algorithms: Vec<String>,
    /// A public key in PEM.
    pub key_file: Option<PathBuf>,
    /// A shared secret.
    pub secret_file: Option<PathBuf>,
    /// A key set.
    pub jwks_file: Option<PathBuf>,
    /// A key set behind a URL.
    pub jwks_url: Option<String>,
    /// How often that is fetched.
    pub jwks_refresh: Duration,
    /// Accepted issuers.
    pub issuers: Vec<String>,
    /// Accepted audiences.
    pub audiences: Vec<String>,
    /// How far clocks may be apart.
    pub leeway: Duration,
    /// Whether callers need one.
    pub required: bool,
    /// The claims that say who it is: user, tenant, tier.
    pub claims: [Option<String>; 3],
}

/// The reverse proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Where it listens.
    pub listen: Option<SocketAddr>,
    /// The one service behind it.
    pub upstream: Option<String>,
    /// Services, by name.
    pub pools: BTreeMap<String, PoolConfig>,
    /// Which requests go where.
    pub routes: Vec<RouteConfig>,
    /// The header that names the model.
    pub model_header: String,
    /// Whether services see the Host of the client.
    pub preserve_host: bool,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// For the head of an answer.
    pub response_timeout: Duration,
    /// For the next part of a body.
    pub body_idle_timeout: Duration,
    /// The least rate at which clients send bodies.
    pub min_body_bytes_per_second: u64,
    /// How long an upgraded connection may be silent.
    pub upgrade_idle_timeout: Duration,
    /// How long a connection to a service is kept that nobody uses.
    pub pool_idle_timeout: Duration,
    /// How often a request is tried.
    pub attempts: u32,
    /// Requests that wait for their turn.
    pub max_waiting: usize,
    /// Models.
    pub openai: OpenAiConfig,
}

/// A service behind the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Where it is.
    pub targets: Vec<TargetConfig>,
    /// How it is asked whether it is well.
    #[serde(default)]
    pub health: Option<HealthConfig>,
    /// Whether it speaks HTTP/2 without being asked (h2c).
    #[serde(default)]
    pub http2: bool,
    /// Who signs its certificate, if none of the system's authorities.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Our certificate, for services that ask for one.
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// Its key.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// A file with the API key that it is called with, in place of the client's.
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// How many requests of models it serves at once.
    #[serde(default)]
    pub max_concurrency: Option<usize>,
    /// How many may wait for a place there, ...
    #[serde(default = "one_thousand")]
    pub max_waiting: usize,
    /// ... and for how long.
    #[serde(default = "half_a_minute")]
    pub max_wait_ms: u64,
    /// Places for kinds of clients.
    #[serde(default)]
    pub shares: Vec<ShareConfig>,
}

const fn one_thousand() -> usize {
    1_000
}

const fn half_a_minute() -> u64 {
    30_000
}

/// The places of one kind of clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareConfig {
    /// Who.
    pub client_type: String,
    /// Its part of all places.
    pub percent: u32,
    /// Whether it may have what others leave idle; only INTERNAL where nothing is said.
    #[serde(default)]
    pub may_borrow: Option<bool>,
}

/// One place of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// `http://host:port` or `https://host:port`.
    pub url: String,
    /// Its share.
    #[serde(default = "one")]
    pub weight: u32,
}

const fn one() -> u32 {
    1
}

/// How a service is asked whether it is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthConfig {
    /// The path that is asked for.
    pub path: String,
    /// How often.
    #[serde(default = "five_seconds")]
    pub interval_ms: u64,
    /// For how long to wait.
    #[serde(default = "one_second")]
    pub timeout_ms: u64,
    /// So many good answers in a row make it well.
    #[serde(default = "two")]
    pub healthy_after: u32,
    /// So many bad ones in a row make it unwell.
    #[serde(default = "two")]
    pub unhealthy_after: u32,
}

const fn five_seconds() -> u64 {
    5_000
}

const fn one_second() -> u64 {
    1_000
}

const fn two() -> u32 {
    2
}

/// Which requests go where. What is empty fits everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// A name for logs and metrics.
    pub name: String,
    /// Hosts, without ports.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Patterns of paths, as in rules.
    #[serde(default)]
    pub paths: Vec<String>,
    /// HTTP methods.
    #[serde(default)]
    pub methods: Vec<String>,
    /// Models.
    #[serde(default)]
    pub models: Vec<String>,
    /// Where they go.
    pub pool: String,
    /// What they are.
    #[serde(default)]
    pub kind: RouteKind,
    /// What is taken off the front of the path.
    #[serde(default)]
    pub strip_prefix: Option<String>,
    /// How long the head of an answer may take, where other than usual.
    #[serde(default)]
    pub response_timeout_ms: Option<u64>,
}

/// What is sent on later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// How many may wait.
    pub max_depth: u64,
    /// For one key.
    pub max_depth_per_key: u64,
    /// How many bytes of requests are kept in all, and of answers again as many.
    pub max_bytes: u64,
    /// Of one tenant's requests.
    pub max_bytes_per_tenant: u64,
    /// Of the requests of one key.
    pub max_bytes_per_key: u64,
    /// For how long.
    pub max_age: Duration,
    /// The largest body.
    pub max_body_bytes: usize,
    /// How often one is tried.
    pub max_attempts: u32,
    /// How long an answer is kept.
    pub keep: Duration,
    /// How long a request waits whose sender was killed.
    pub lease: Duration,
}

pub(super) fn optional_address(reader: &mut Reader, key: &str) -> Option<Said<SocketAddr>> {
    let Said { value, origin } = reader.optional_text(key, "an address and a port or null")?;
    match parse_address(&value) {
        Ok(value) => Some(Said { value, origin }),
        Err(message) => {
            reader.wrong(&origin, key, message);
            None
        }
    }
}

pub(super) fn tls(reader: &mut Reader) -> TlsConfig {
    let cert = reader.optional_path("tls.cert_file");
    let key = reader.optional_path("tls.key_file");
    match (&cert, &key) {
        (Some(said), None) => {
            reader.wrong(&said.origin, "tls.key_file", "is required with tls.cert_file");
        }
        (None, Some(said)) => {
            reader.wrong(&said.origin, "tls.cert_file", "is required with tls.key_file");
        }
        _ => {}
    }
    let client_ca = reader.optional_path("tls.client_ca_file");
    let client_certificates = reader.choice("tls.client_certificates", ClientCertificates::ALL);
    if let (Some(said), None) = (&client_ca, &cert) {
        reader.wrong(&said.origin, "tls.client_ca_file", "goes with tls.cert_file only");
    }
    if client_certificates == ClientCertificates::Off
        && let Some(said) = &client_ca
    {
        let message = "must be optional or required where tls.client_ca_file is set";
        reader.wrong(&said.origin, "tls.client_certificates", message);
    }
    if client_certificates != ClientCertificates::Off && cert.is_none() {
        let origin = super::Origin::Variable("tls.client_certificates".to_owned());
        reader.wrong(
            &origin,
            "tls.cert_file",
            "is required where tls.client_certificates is optional or required",
        );
    }
    if client_certificates != ClientCertificates::Off
        && client_ca.is_none()
        && let Some(said) = &cert
    {
        let message = "is needed to judge clients' certificates";
        reader.wrong(&said.origin, "tls.client_ca_file", message);
    }
    TlsConfig {
        cert_file: cert.map(|said| said.value),
        key_file: key.map(|said| said.value),
        client_ca_file: client_ca.map(|said| said.value),
        client_certificates,
    }
}

fn texts(reader: &mut Reader, key: &str) -> Vec<String> {
    reader.texts(key, MAX_ENTRIES).into_iter().map(|said| said.value).collect()
}

fn path(reader: &mut Reader, key: &str) -> Option<PathBuf> {
    reader.optional_path(key).map(|said| said.value)
}

fn text(reader: &mut Reader, key: &str) -> Option<String> {
    let said = reader.optional_text(key, "text or null")?;
    Some(said.value).filter(|text| !text.is_empty())
}

fn seconds(reader: &mut Reader, key: &str, least: u64, most: u64) -> Duration {
    Duration::from_secs(reader.number(key, least..=most))
}

/// A header's name, in lower case.
fn header(reader: &mut Reader, key: &str) -> String {
    let parse = |text: &str| http::HeaderName::from_bytes(text.as_bytes()).ok();
    let said = reader.parsed(key, "the name of a header", parse);
    said.map(|said| said.value.as_str().to_owned()).unwrap_or_default()
}

pub(super) fn identity(reader: &mut Reader) -> IdentityConfig {
    IdentityConfig {
        api_key_header: header(reader, "identity.api_key_header"),
        trust_api_key_header: reader.boolean("identity.trust_api_key_header"),
        api_key_as_bearer: reader.boolean("identity.api_key_as_bearer"),
        api_keys_file: path(reader, "identity.api_keys_file"),
        trusted_proxies: texts(reader, "identity.trusted_proxies"),
        address_header: reader.choice("identity.address_header", AddressHeader::ALL),
        ipv6_prefix: u8::try_from(reader.number("identity.ipv6_prefix", 1..=128)).unwrap_or(128),
        jwt: jwt(reader),
    }
}

fn jwt(reader: &mut Reader) -> JwtConfig {
    JwtConfig {
        algorithms: texts(reader, "identity.jwt.algorithms"),
        key_file: path(reader, "identity.jwt.key_file"),
        secret_file: path(reader, "identity.jwt.secret_file"),
        jwks_file: path(reader, "identity.jwt.jwks_file"),
        jwks_url: text(reader, "identity.jwt.jwks_url"),
        jwks_refresh: seconds(reader, "identity.jwt.jwks_refresh_seconds", 10, 86_400),
        issuers: texts(reader, "identity.jwt.issuers"),
        audiences: texts(reader, "identity.jwt.audiences"),
        leeway: seconds(reader, "identity.jwt.leeway_seconds", 0, 3_600),
        required: reader.boolean("identity.jwt.required"),
        claims: ["identity.jwt.user_claim", "identity.jwt.tenant_claim", "identity.jwt.tier_claim"]
            .map(|key| text(reader, key)),
    }
}

pub(super) fn gateway(reader: &mut Reader) -> GatewayConfig {
    let wait = |reader: &mut Reader, key: &str| millis(reader, key, 1, MAX_TIMEOUT_MS);
    let pools: BTreeMap<String, PoolConfig> =
        reader.document("gateway.pools", "a mapping of names to pools").unwrap_or_default();
    GatewayConfig {
        listen: optional_address(reader, "gateway.listen").map(|said| said.value),
        upstream: text(reader, "gateway.upstream"),
        openai: openai::check(reader, &pools),
        pools,
        routes: reader.document("gateway.routes", "a list of routes").unwrap_or_default(),
        model_header: header(reader, "gateway.model_header"),
        preserve_host: reader.boolean("gateway.preserve_host"),
        connect_timeout: wait(reader, "gateway.connect_timeout_ms"),
        response_timeout: wait(reader, "gateway.response_timeout_ms"),
        body_idle_timeout: wait(reader, "gateway.body_idle_timeout_ms"),
        min_body_bytes_per_second: reader
            .number("gateway.min_body_bytes_per_second", 0..=1_000_000_000),
        upgrade_idle_timeout: wait(reader, "gateway.upgrade_idle_timeout_ms"),
        pool_idle_timeout: wait(reader, "gateway.pool_idle_timeout_ms"),
        attempts: u32::try_from(reader.number("gateway.attempts", 1..=10)).unwrap_or(1),
        max_waiting: size(reader, "gateway.max_waiting", 0, 1_000_000),
    }
}

pub(super) fn queue(reader: &mut Reader) -> QueueConfig {
    QueueConfig {
        max_depth: reader.number("queue.max_depth", 0..=10_000_000),
        max_depth_per_key: reader.number("queue.max_depth_per_key", 1..=1_000_000),
        max_bytes: reader.number("queue.max_bytes", 1_024..=1 << 40),
        max_bytes_per_tenant: reader.number("queue.max_bytes_per_tenant", 1_024..=1 << 40),
        max_bytes_per_key: reader.number("queue.max_bytes_per_key", 1_024..=1 << 40),
        max_age: seconds(reader, "queue.max_age_seconds", 1, 2_592_000),
        max_body_bytes: size(reader, "queue.max_body_bytes", 0, 64 << 20),
        max_attempts: u32::try_from(reader.number("queue.max_attempts", 1..=100)).unwrap_or(1),
        keep: seconds(reader, "queue.keep_seconds", 1, 2_592_000),
        lease: seconds(reader, "queue.lease_seconds", 1, 3_600),
    }
}
