//! What all workers share, and the phases of a request.
//!
//! ```text
//! 1 hygiene    what can be read in two ways is refused        framing, hygiene, host
//! 2 identity   who calls; wrong credentials are answered      tollgate-tower
//! 3 route      where it would go; 404 charges nothing         routes
//! 4 decision   refused, kept for later, or let through,       tollgate-tower, postpone
//!              maybe after a wait                             worker
//! 5 target     whose turn it is; another if it is away        balance, target, connections
//! 6 forward    clean headers out, bodies streamed             forward, headers, forwarded, body
//! 7 answer     clean headers back, the decision's among them  worker, upgrade, respond
//! ```
//!
//! Refused requests never get to 5. What a request holds is held until its answer's body has ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate_tower::{Decide, Identifier};

use crate::ai::intake::Room;
use crate::ai::{Ai, turn};
use crate::connect::Connector;
use crate::error::GatewayError;
use crate::fair::Gate;
use crate::framing::FramingWatch;
use crate::health;
use crate::options::{
    GatewayOptions, Http2Mode, MAX_TARGETS, MAX_TIMEOUT, MIN_HEADER_BYTES, PoolOptions,
};
use crate::postpone::Postpone;
use crate::routes::Routes;
use crate::target::{Origin, Target};
use crate::tls::TlsConnectors;
use crate::waiting::WaitingRoom;
use crate::worker::Worker;

/// The memory that bodies of requests may take while they are read into the queue, over all callers.
const MAX_QUEUE_BODY_BYTES: usize = 64 << 20;

/// The connection that a request came over.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// Who is at the other end.
    pub peer: SocketAddr,
    /// The address that was called.
    pub local: SocketAddr,
    /// Whether it is encrypted.
    pub is_tls: bool,
    /// Whether the peer is a proxy whose word about earlier hops is taken.
    pub is_trusted: bool,
    /// What [`crate::WatchedStream`] sees, where it goes around the connection.
    pub framing: Option<Arc<FramingWatch>>,
    /// Kept for as long as the connection is, also when it has become something else than HTTP.
    pub permit: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

impl ConnectionInfo {
    /// A plain connection from a stranger.
    pub const fn new(peer: SocketAddr, local: SocketAddr) -> Self {
        Self { peer, local, is_tls: false, is_trusted: false, framing: None, permit: None }
    }
}

/// The places of a pool that serves models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolPlaces {
    /// How many there are.
    pub limit: usize,
    /// Those that are taken.
    pub held: usize,
    /// Requests that wait for one.
    pub waiting: usize,
}

/// How a pool is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStatus {
    /// The pool's name.
    pub name: String,
    /// Its targets.
    pub targets: Vec<TargetStatus>,
    /// Its places, where they are counted.
    pub places: Option<PoolPlaces>,
    /// Its answers, in the order of [`RESPONSE_CLASSES`].
    pub responses: [u64; RESPONSE_CLASSES.len()],
}

/// What answers of a pool are counted by: the class of their status; `failed` where there was none.
pub const RESPONSE_CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "failed"];

/// How a target is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetStatus {
    /// Its URL.
    pub url: String,
    /// Whether requests go there: active checks find it well, and it is not ejected.
    pub is_healthy: bool,
    /// Whether it is left alone for a while because it failed requests.
    pub is_ejected: bool,
    /// Requests under way.
    pub active: u64,
    /// Requests that it has failed, ever.
    pub failures: u64,
}

pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) options: PoolOptions,
    pub(crate) targets: Vec<Arc<Target>>,
    /// Its places, where they are counted.
    pub(crate) gate: Option<Arc<Gate>>,
    responses: [AtomicU64; RESPONSE_CLASSES.len()],
}

impl Pool {
    /// Counts an answer, or that there was none.
    pub(crate) fn answered(&self, status: Option<StatusCode>) {
        let class = status.map_or(5, |status| usize::from(status.as_u16() / 100).clamp(1, 5) - 1);
        if let Some(count) = self.responses.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn places(&self) -> Option<PoolPlaces> {
        let (gate, options) = (self.gate.as_ref()?, self.options.places.as_ref()?);
        let (held, waiting) = gate.load();
        Some(PoolPlaces { limit: options.capacity, held, waiting })
    }
}

/// What all workers share.
pub struct Gateway<D> {
    pub(crate) options: GatewayOptions,
    pub(crate) routes: Routes,
    pub(crate) pools: Vec<Pool>,
    pub(crate) ai: Ai,
    pub(crate) decide: D,
    pub(crate) identifier: Arc<Identifier>,
    pub(crate) queue: Option<Arc<dyn Postpone>>,
    /// The memory for bodies of requests that are about to be queued.
    pub(crate) queue_bodies: Arc<Room>,
    /// One permit per request that may wait for its turn.
    pub(crate) waiting: WaitingRoom,
}

impl<D> std::fmt::Debug for Gateway<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("pools", &self.pools_status()).finish_non_exhaustive()
    }
}

impl<D: Decide> Gateway<D> {
    /// Checks the options and makes a gateway of them. Connects to nothing.
    pub fn new(
        options: GatewayOptions,
        decide: D,
        identifier: Arc<Identifier>,
    ) -> Result<Self, GatewayError> {
        check(&options)?;
        let mut pools = Vec::new();
        let mut places = BTreeMap::new();
        for (name, pool) in &options.pools {
            places.insert(name.as_str(), pools.len());
            pools.push(
                make_pool(name, pool, options.max_header_bytes)
                    .map_err(|problem| GatewayError::Pool { pool: name.clone(), problem })?,
            );
        }
        let routes = Routes::new(&options, &places)?;
        let ai = Ai::new(options.ai.clone(), &places)
            .map_err(|problem| GatewayError::Option { field: "openai", problem })?;
        let waiting = WaitingRoom::new(options.max_waiting);
        let queue_bodies = Room::new(MAX_QUEUE_BODY_BYTES, options.max_stored_body_bytes);
        let queue = None;
        Ok(Self { options, routes, pools, ai, decide, identifier, queue, queue_bodies, waiting })
    }

    /// Keeps requests that are to be sent later in this queue. Without one they are refused.
    #[must_use]
    pub fn with_queue(mut self, queue: Arc<dyn Postpone>) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Answers requests on the runtime that this is called on, with connections of its own.
    pub fn worker(self: &Arc<Self>) -> Arc<Worker<D>> {
        Worker::new(Arc::clone(self))
    }

    /// Runs the health checks that the pools ask for, until `stop` is set.
    pub fn spawn_health_checks(&self, stop: &watch::Receiver<bool>) -> Vec<JoinHandle<()>> {
        let mut tasks = Vec::new();
        for pool in &self.pools {
            let Some(options) = &pool.options.health else { continue };
            let count = pool.targets.len().max(1) as u32;
            for (place, target) in (0_u32..).zip(&pool.targets) {
                // Spread, so that a pool is not asked all at once.
                let first_after = options.interval * place / count;
                let (target, options) = (Arc::clone(target), options.clone());
                tasks.push(tokio::spawn(health::watch(target, options, first_after, stop.clone())));
            }
        }
        tasks
    }
}

impl<D> Gateway<D> {
    /// How all pools are doing.
    pub fn pools_status(&self) -> Vec<PoolStatus> {
        let pools = self.pools.iter().map(|pool| PoolStatus {
            name: pool.name.clone(),
            targets: pool.targets.iter().map(|target| status(target)).collect(),
            places: pool.places(),
            responses: std::array::from_fn(|class| {
                pool.responses.get(class).map_or(0, |count| count.load(Ordering::Relaxed))
            }),
        });
        pools.collect()
    }

    /// How many requests wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting.waiting()
    }

    /// How many more requests may wait for their turn.
    pub fn waiting_room(&self) -> usize {
        self.waiting.free()
    }
}

fn status(target: &Target) -> TargetStatus {
    TargetStatus {
        url: target.url.clone(),
        is_healthy: target.is_available(),
        is_ejected: target.is_ejected(),
        active: target.active(),
        failures: target.failures(),
    }
}

fn check(options: &GatewayOptions) -> Result<(), GatewayError> {
    let wrong = |field, problem: String| Err(GatewayError::Option { field, problem });
    if options.max_header_bytes < MIN_HEADER_BYTES {
        return wrong("max_header_bytes", format!("must be at least {MIN_HEADER_BYTES}"));
    }
    if options.retries.max_attempts == 0 || options.retries.max_connects == 0 {
        return wrong("retries", "a request must be sent at least once".to_owned());
    }
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if options.via.as_ref().is_some_and(|via| via.is_empty() || !via.bytes().all(is_token)) {
        return wrong("via", "must be a name of letters, digits and -._~".to_owned());
    }
    let common = &options.timeouts;
    let of_routes = options.routes.iter().map(|route| route.timeouts.or(common));
    for timeouts in std::iter::once(*common).chain(of_routes) {
        let all = [
            timeouts.connect,
            timeouts.head,
            timeouts.request_idle,
            timeouts.response_idle,
            timeouts.tunnel_idle,
        ];
        if all.iter().any(|timeout| timeout.is_zero() || *timeout > MAX_TIMEOUT) {
            return wrong("timeouts", format!("must be more than 0 and at most {MAX_TIMEOUT:?}"));
        }
    }
    Ok(())
}

fn make_pool(name: &str, options: &PoolOptions, max_header_bytes: usize) -> Result<Pool, String> {
    if options.targets.is_empty() || options.targets.len() > MAX_TARGETS {
        return Err(format!("it must have 1 to {MAX_TARGETS} targets"));
    }
    if let Some(health) = &options.health {
        let is_right = health.path.starts_with('/')
            && !health.interval.is_zero()
            && !health.timeout.is_zero()
            && health.interval.max(health.timeout) <= MAX_TIMEOUT;
        if !is_right || health.path.parse::<http::uri::PathAndQuery>().is_err() {
            return Err("health checks need a path, an interval and a timeout".to_owned());
        }
    }
    if options.connect_timeout.is_some_and(|it| it.is_zero() || it > MAX_TIMEOUT) {
        return Err(format!("connect_timeout must be more than 0 and at most {MAX_TIMEOUT:?}"));
    }
    let mut tls = None;
    let mut targets = Vec::new();
    for target in &options.targets {
        let origin = Origin::parse(&target.url)?;
        if origin.is_tls() && tls.is_none() {
            tls = Some(TlsConnectors::new(&options.tls, options.http2)?);
        }
        let own_tls = if origin.is_tls() { tls.clone() } else { None };
        // Without TLS there is nobody to ask: only who says so beforehand gets HTTP/2.
        let http2 = match options.http2 {
            Http2Mode::Auto if !origin.is_tls() => Http2Mode::Never,
            mode => mode,
        };
        let connector = Connector::new(origin, own_tls, http2, max_header_bytes)?;
        targets.push(Arc::new(Target::new(target, options.passive, connector)?));
    }
    let responses = std::array::from_fn(|_| AtomicU64::new(0));
    let gate = options.places.as_ref().map(turn::gate).transpose()?;
    Ok(Pool { name: name.to_owned(), options: options.clone(), targets, gate, responses })
}
