//! How a gateway is set up: plain values, checked by [`crate::Gateway::new`].

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderName, Method};

use crate::ai::Protocol;
use crate::ai::options::AiOptions;

/// The most targets a pool may have.
pub const MAX_TARGETS: usize = 64;

/// The largest weight of a target.
pub const MAX_WEIGHT: u32 = 1_000;

/// The longest timeout that can be set.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The least that headers must be given room for.
pub const MIN_HEADER_BYTES: usize = 8 * 1024;

/// All options of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// Where requests go. The first route that matches is taken.
    pub routes: Vec<RouteOptions>,
    /// Upstreams by name.
    pub pools: BTreeMap<String, PoolOptions>,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// The most bytes that a request's or an answer's headers may have.
    pub max_header_bytes: usize,
    /// When a request is sent once more.
    pub retries: RetryOptions,
    /// The most requests that wait for their turn (`action: throttle`) at once.
    pub max_waiting: usize,
    /// The largest body of a request that is kept for later (`action: queue`).
    pub max_stored_body_bytes: usize,
    /// What upstreams learn about the client.
    pub forwarded: ForwardedOptions,
    /// Whether upstreams see the host that the client called, and not their own.
    pub preserve_host: bool,
    /// The name under which the gateway appears in `Via`, if it does.
    pub via: Option<String>,
    /// The header that names the model a request is for.
    pub model_header: Option<HeaderName>,
    /// The origins whose pages may call models; `*` is every one.
    pub cors_origins: Vec<String>,
    /// How routes of models are served.
    pub ai: AiOptions,
    /// Writes the context of a span into the headers of a request that goes on, where traces are made.
    pub inject_trace: Option<fn(&tracing::Span, &mut http::HeaderMap)>,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            pools: BTreeMap::new(),
            timeouts: Timeouts::default(),
            max_header_bytes: 32 * 1024,
            retries: RetryOptions::default(),
            max_waiting: 10_000,
            max_stored_body_bytes: 1024 * 1024,
            forwarded: ForwardedOptions::default(),
            preserve_host: true,
            via: None,
            model_header: None,
            cors_origins: Vec::new(),
            ai: AiOptions::default(),
            inject_trace: None,
        }
    }
}

impl GatewayOptions {
    /// Everything to one upstream.
    pub fn to_upstream(url: &str) -> Self {
        let pool = PoolOptions { targets: vec![TargetOptions::new(url)], ..PoolOptions::default() };
        Self {
            routes: vec![RouteOptions::to_pool("default", "default")],
            pools: BTreeMap::from([("default".to_owned(), pool)]),
            ..Self::default()
        }
    }
}

/// Which requests go to which pool. An empty list asks for nothing.
#[derive(Debug, Clone, Default)]
pub struct RouteOptions {
    /// What it is called in logs.
    pub name: String,
    /// Hosts: `api.example.com`, or `*.example.com` for everything below.
    pub hosts: Vec<String>,
    /// Paths: literal segments and `*` for any one; a last `*` for anything that follows.
    pub paths: Vec<String>,
    /// Methods.
    pub methods: Vec<Method>,
    /// Models, by the value of [`GatewayOptions::model_header`]; a `*` at the end is for any rest.
    pub models: Vec<String>,
    /// The pool.
    pub pool: String,
    /// The API that its clients speak, where its requests are for models.
    pub protocol: Option<Protocol>,
    /// Cut off the beginning of the path, at a segment's end.
    pub strip_prefix: Option<String>,
    /// Put before the path, after [`Self::strip_prefix`].
    pub add_prefix: Option<String>,
    /// Timeouts that differ from the gateway's.
    pub timeouts: TimeoutOverrides,
}

impl RouteOptions {
    /// A route that takes everything.
    pub fn to_pool(name: &str, pool: &str) -> Self {
        Self { name: name.to_owned(), pool: pool.to_owned(), ..Self::default() }
    }
}

/// How long things may take. There is no bound on a request as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a connection to an upstream stands, TLS included.
    pub connect: Duration,
    /// From when the upstream has the request to the head of its answer.
    pub head: Duration,
    /// Between pieces of a request's body from the client.
    pub request_idle: Duration,
    /// The least rate at which a client sends a body before it is answered, in bytes per second, averaged over
    /// [`Timeouts::request_idle`]. 0: none.
    pub min_request_rate: u64,
    /// Between pieces of an answer's body from the upstream.
    pub response_idle: Duration,
    /// Without a byte in either direction of an upgraded connection.
    pub tunnel_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(60),
            request_idle: Duration::from_secs(60),
            min_request_rate: 100,
            response_idle: Duration::from_secs(300),
            tunnel_idle: Duration::from_secs(600),
        }
    }
}

/// Timeouts of one route.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeoutOverrides {
    /// See [`Timeouts::head`].
    pub head: Option<Duration>,
    /// See [`Timeouts::request_idle`].
    pub request_idle: Option<Duration>,
    /// See [`Timeouts::response_idle`].
    pub response_idle: Option<Duration>,
    /// See [`Timeouts::tunnel_idle`].
    pub tunnel_idle: Option<Duration>,
}

impl TimeoutOverrides {
    /// These, and where there are none, those.
    pub fn or(&self, common: &Timeouts) -> Timeouts {
        Timeouts {
            connect: common.connect,
            head: self.head.unwrap_or(common.head),
            request_idle: self.request_idle.unwrap_or(common.request_idle),
            min_request_rate: common.min_request_rate,
            response_idle: self.response_idle.unwrap_or(common.response_idle),
            tunnel_idle: self.tunnel_idle.unwrap_or(common.tunnel_idle),
        }
    }
}

/// When a request is sent once more. Only requests with an idempotent method and no body, or a body
/// that is at hand, are sent twice. Another target after a failed connect is not a retry: nothing
/// was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOptions {
    /// How often a request is sent at most, the first time included.
    pub max_attempts: u32,
    /// How many targets a request tries to connect to at most.
    pub max_connects: u32,
    /// Whether 502, 503 and 504 from an upstream are reasons too.
    pub on_gateway_status: bool,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self { max_attempts: 2, max_connects: 3, on_gateway_status: false }
    }
}

/// What upstreams learn about the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "four headers, each on or off by itself")]
pub struct ForwardedOptions {
    /// `X-Forwarded-For`.
    pub x_forwarded_for: bool,
    /// `X-Forwarded-Proto`.
    pub x_forwarded_proto: bool,
    /// `X-Forwarded-Host`.
    pub x_forwarded_host: bool,
    /// `Forwarded` (RFC 7239).
    pub forwarded: bool,
}

impl Default for ForwardedOptions {
    fn default() -> Self {
        Self {
            x_forwarded_for: true,
            x_forwarded_proto: true,
            x_forwarded_host: true,
            forwarded: true,
        }
    }
}

/// An upstream: one or more targets that answer alike.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// Where it is.
    pub targets: Vec<TargetOptions>,
    /// Whether targets are asked how they are.
    pub health: Option<HealthOptions>,
    /// When a target that fails is left alone for a while.
    pub passive: PassiveOptions,
    /// How `https` targets are spoken to.
    pub tls: TlsOptions,
    /// Whether targets are spoken to in HTTP/2.
    pub http2: Http2Mode,
    /// The most idle connections that are kept per target and worker.
    pub max_idle_connections: usize,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// See [`Timeouts::connect`]; the gateway's where none is given.
    pub connect_timeout: Option<Duration>,
    /// What it is called with as `Authorization`, in place of the client's own.
    pub authorization: Option<http::HeaderValue>,
    /// How many requests of models it serves at once, and who waits. None: as many as come.
    pub places: Option<PlacesOptions>,
}

/// The places of a pool that serves models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacesOptions {
    /// Requests that are served at once.
    pub capacity: usize,
    /// Requests that wait for a place.
    pub max_waiting: usize,
    /// For how long at most.
    pub max_wait: Duration,
    /// Parts for kinds of clients; who is of none of them is of the last. Without any there is one for all.
    pub shares: Vec<ShareOptions>,
    /// From this part of all places on, in percent, nobody has more than its share.
    pub strict_from_percent: u32,
}

impl Default for PlacesOptions {
    fn default() -> Self {
        Self {
            capacity: 64,
            max_waiting: 1_000,
            max_wait: Duration::from_secs(30),
            shares: Vec::new(),
            strict_from_percent: 80,
        }
    }
}

/// The places of one kind of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareOptions {
    /// Who: the value of `client_type`.
    pub client_type: String,
    /// Its part of all places, in percent.
    pub percent: u32,
    /// Whether it may have what others leave idle.
    pub may_borrow: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            health: None,
            passive: PassiveOptions::default(),
            tls: TlsOptions::default(),
            http2: Http2Mode::Auto,
            max_idle_connections: 256,
            idle_timeout: Duration::from_secs(50),
            connect_timeout: None,
            authorization: None,
            places: None,
        }
    }
}

/// One target of a pool.
#[derive(Debug, Clone)]
pub struct TargetOptions {
    /// `http://` or `https://`, a host, maybe a port, maybe a path that goes before all others.
    pub url: String,
    /// Its share of the requests, in proportion to the other targets' weights.
    pub weight: u32,
}

impl TargetOptions {
    /// A target of weight 1.
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), weight: 1 }
    }
}

/// How targets are asked how they are.
#[derive(Debug, Clone)]
pub struct HealthOptions {
    /// What is fetched.
    pub path: String,
    /// How often.
    pub interval: Duration,
    /// How long it may take.
    pub timeout: Duration,
    /// After so many good answers in a row a target is used again.
    pub healthy_after: u32,
    /// After so many bad ones it is not used any more.
    pub unhealthy_after: u32,
    /// Which statuses are good.
    pub expected: RangeInclusive<u16>,
}

impl Default for HealthOptions {
    fn default() -> Self {
        Self {
            path: "/".to_owned(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            healthy_after: 2,
            unhealthy_after: 3,
            expected: 200..=399,
        }
    }
}

/// When a target that fails requests is left alone for a while.
#[derive(Debug, Clone, Copy)]
pub struct PassiveOptions {
    /// After so many failures in a row; 0 for never. Failures are connections that do not come
    /// about, answers that do not come or make no sense, and the statuses 502, 503 and 504.
    pub max_failures: u32,
    /// For how long, the first time. It doubles each time, as long as nothing succeeds.
    pub back_off: Duration,
    /// For how long at most.
    pub max_back_off: Duration,
}

impl Default for PassiveOptions {
    fn default() -> Self {
        Self {
            max_failures: 5,
            back_off: Duration::from_secs(5),
            max_back_off: Duration::from_secs(120),
        }
    }
}

/// Whether targets are spoken to in HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Http2Mode {
    /// Over TLS if the target offers it.
    #[default]
    Auto,
    /// Always, with and without TLS.
    PriorKnowledge,
    /// Never.
    Never,
}

/// TLS towards targets. A target must always prove who it is.
#[derive(Clone, Default)]
pub struct TlsOptions {
    /// Authorities that are trusted, as PEM, in place of the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// The certificate that we show, with its chain, as PEM.
    pub client_certificate_pem: Option<Vec<u8>>,
    /// Its private key, as PEM.
    pub client_key_pem: Option<Vec<u8>>,
}

impl fmt::Debug for TlsOptions {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("has_ca", &self.ca_pem.is_some())
            .field("has_client_certificate", &self.client_certificate_pem.is_some())
            .finish_non_exhaustive()
    }
}
