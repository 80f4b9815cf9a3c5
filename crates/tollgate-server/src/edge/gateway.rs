//! The gateway: from the configuration to something that answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use tollgate_engine::Engine;
use tollgate_gateway::ai::options::AiOptions;
use tollgate_gateway::options::{
    GatewayOptions, HealthOptions, Http2Mode, PlacesOptions, PoolOptions, RetryOptions,
    RouteOptions, ShareOptions, TargetOptions, TimeoutOverrides, Timeouts, TlsOptions,
};
use tollgate_gateway::{ConnectionInfo, Gateway, GatewayBody, GatewayError, Worker};
use tollgate_queue::TICKETS_PATH;
use tollgate_tower::render::problem;
use tollgate_tower::{Decide, EdgeRequest, Identity, InProcess, Ruling};
use tracing::Instrument as _;

use super::queue::Tickets;
use super::{Callers, EdgeError};
use crate::config::{Config, GatewayConfig, PoolConfig, RouteConfig, ShareConfig};
use crate::http::holder::{HolderCall, shows_virtual_key};
use crate::http::respond::JSON;
use crate::listen::{Answer, Connection};
use crate::reservation_shares::ReservationShares;
use crate::stores::Stores;
use crate::telemetry::latency::{Operation, Timed};
use crate::telemetry::traces;

/// The name of the pool that `gateway.upstream` is.
const ONLY: &str = "upstream";

/// The kind of clients that may have places that others leave idle, unless the configuration says otherwise.
const BORROWER: &str = "INTERNAL";

/// What the gateway asks: the engine, and how long it takes is noted.
#[derive(Clone)]
pub(crate) struct Decider(pub(crate) InProcess<Stores>);

impl Decide for Decider {
    fn decide_now(&self, asked: &EdgeRequest) -> Option<Ruling> {
        let timed = Timed::new(Operation::Gateway);
        let ruling = self.0.decide_now(asked);
        if ruling.is_none() {
            timed.forget();
        }
        ruling
    }

    fn meets_hard_budget(&self, asked: &EdgeRequest) -> bool {
        self.0.meets_hard_budget(asked)
    }

    async fn decide(&self, asked: &EdgeRequest) -> Ruling {
        let _timed = Timed::new(Operation::Gateway);
        self.0.decide(asked).await
    }
}

/// A gateway that decides by this engine.
pub(crate) fn build(
    config: &Config,
    engine: &Arc<Engine<Stores>>,
    reservations: &Arc<ReservationShares>,
    callers: &Callers,
    node: &str,
) -> Result<Gateway<Decider>, EdgeError> {
    let mut options = options(config)?;
    // By its own name a gateway knows a request that it has sent itself.
    options.via = Some(format!("tollgate-{node}"));
    let (shares, clock) = (Arc::clone(reservations), Arc::clone(engine));
    let take_place = move |identity: &Identity| shares.take_place(identity, clock.clock().now());
    let decide = InProcess::new(Arc::clone(engine), config.headers);
    let decide = Decider(decide.with_places(Arc::new(take_place)));
    Ok(Gateway::new(options, decide, Arc::clone(&callers.identifier))?)
}

/// Reads the files of a pool.
pub(crate) fn check_pool(name: &str, pool: &PoolConfig) -> Result<(), EdgeError> {
    pool_options(name, pool).map(|_| ())
}

/// The gateway as the configuration describes it.
pub(crate) fn options(config: &Config) -> Result<GatewayOptions, EdgeError> {
    let GatewayConfig { upstream, pools, routes, .. } = &config.gateway;
    let mut options = GatewayOptions {
        timeouts: Timeouts {
            connect: config.gateway.connect_timeout,
            head: config.gateway.response_timeout,
            request_idle: config.gateway.body_idle_timeout,
            min_request_rate: config.gateway.min_body_bytes_per_second,
            response_idle: config.gateway.body_idle_timeout,
            tunnel_idle: config.gateway.upgrade_idle_timeout,
        },
        max_header_bytes: config.limits.max_header_bytes,
        retries: RetryOptions { max_attempts: config.gateway.attempts, ..RetryOptions::default() },
        max_waiting: config.gateway.max_waiting,
        max_stored_body_bytes: config.queue.max_body_bytes,
        preserve_host: config.gateway.preserve_host,
        model_header: HeaderName::from_bytes(config.gateway.model_header.as_bytes()).ok(),
        cors_origins: config.cors_origins.clone(),
        ai: AiOptions {
            max_waiting: config.gateway.max_waiting,
            ..config.gateway.openai.options().map_err(EdgeError::Wrong)?
        },
        inject_trace: Some(traces::inject),
        ..GatewayOptions::default()
    };
    let idle_timeout = config.gateway.pool_idle_timeout;
    for (name, pool) in pools {
        let pool = PoolOptions { idle_timeout, ..pool_options(name, pool)? };
        options.pools.insert(name.clone(), pool);
    }
    let patience = config.gateway.openai.answer_timeout;
    let route = |route| route_options(route, patience);
    options.routes = routes.iter().map(route).collect::<Result<_, _>>()?;
    if let Some(url) = upstream {
        if options.pools.contains_key(ONLY) {
            let message = format!("gateway.pools has a pool named {ONLY:?}, which --upstream is");
            return Err(EdgeError::Wrong(message));
        }
        let targets = vec![TargetOptions::new(url)];
        let only = PoolOptions { targets, idle_timeout, ..PoolOptions::default() };
        options.pools.insert(ONLY.to_owned(), only);
        options.routes.push(RouteOptions::to_pool(ONLY, ONLY));
    }
    if options.pools.is_empty() {
        let message = "there is nothing behind the gateway: give --upstream URL, or gateway.pools \
                       and gateway.routes in the configuration";
        return Err(EdgeError::Wrong(message.to_owned()));
    }
    if options.routes.is_empty() {
        let message = "gateway.routes is empty: nothing would be forwarded to gateway.pools";
        return Err(EdgeError::Wrong(message.to_owned()));
    }
    Ok(options)
}

fn pool_options(name: &str, pool: &PoolConfig) -> Result<PoolOptions, EdgeError> {
    let read = |file: &Option<std::path::PathBuf>| match file {
        Some(file) => read_file(name, file).map(Some),
        None => Ok(None),
    };
    Ok(PoolOptions {
        targets: pool
            .targets
            .iter()
            .map(|target| TargetOptions { url: target.url.clone(), weight: target.weight })
            .collect(),
        health: pool.health.as_ref().map(|health| HealthOptions {
            path: health.path.clone(),
            interval: Duration::from_millis(health.interval_ms),
            timeout: Duration::from_millis(health.timeout_ms),
            healthy_after: health.healthy_after,
            unhealthy_after: health.unhealthy_after,
            ..HealthOptions::default()
        }),
        http2: if pool.http2 { Http2Mode::PriorKnowledge } else { Http2Mode::Auto },
        tls: TlsOptions {
            ca_pem: read(&pool.ca_file)?,
            client_certificate_pem: read(&pool.cert_file)?,
            client_key_pem: read(&pool.key_file)?,
        },
        places: places(pool),
        authorization: read(&pool.api_key_file)?.map(|key| bearer(name, &key)).transpose()?,
        ..PoolOptions::default()
    })
}

/// The places of a pool, where they are counted.
fn places(pool: &PoolConfig) -> Option<PlacesOptions> {
    let share = |share: &ShareConfig| ShareOptions {
        client_type: share.client_type.clone(),
        percent: share.percent,
        may_borrow: share.may_borrow.unwrap_or(share.client_type == BORROWER),
    };
    Some(PlacesOptions {
        capacity: pool.max_concurrency?,
        max_waiting: pool.max_waiting,
        max_wait: Duration::from_millis(pool.max_wait_ms),
        shares: pool.shares.iter().map(share).collect(),
        ..PlacesOptions::default()
    })
}

/// The header that a pool is called with.
fn bearer(pool: &str, key: &[u8]) -> Result<HeaderValue, EdgeError> {
    let key = key.trim_ascii();
    let value = HeaderValue::from_bytes(&[b"Bearer ", key].concat()).ok();
    let Some(mut value) = value.filter(|_| !key.is_empty()) else {
        let message = format!("gateway.pools.{pool}.api_key_file must hold one key, in one line");
        return Err(EdgeError::Wrong(message));
    };
    value.set_sensitive(true);
    Ok(value)
}

fn read_file(pool: &str, file: &Path) -> Result<Vec<u8>, EdgeError> {
    std::fs::read(file).map_err(|error| {
        EdgeError::Wrong(format!("gateway.pools.{pool}: {}: {error}", file.display()))
    })
}

fn route_options(route: &RouteConfig, answer_timeout: Duration) -> Result<RouteOptions, EdgeError> {
    let method = |text: &String| {
        text.to_ascii_uppercase().parse::<Method>().map_err(|_| {
            EdgeError::Wrong(format!("gateway.routes: {}: {text:?} is no method", route.name))
        })
    };
    // Models think before they speak, and while they do.
    let patience = route.kind.protocol().map(|_| answer_timeout);
    Ok(RouteOptions {
        name: route.name.clone(),
        hosts: route.hosts.clone(),
        paths: route.paths.clone(),
        methods: route.methods.iter().map(method).collect::<Result<_, _>>()?,
        models: route.models.clone(),
        pool: route.pool.clone(),
        protocol: route.kind.protocol(),
        strip_prefix: route.strip_prefix.clone(),
        timeouts: TimeoutOverrides {
            head: route.response_timeout_ms.map(Duration::from_millis).or(patience),
            response_idle: patience,
            ..TimeoutOverrides::default()
        },
        ..RouteOptions::default()
    })
}

impl From<GatewayError> for EdgeError {
    fn from(error: GatewayError) -> Self {
        Self::Wrong(format!("gateway: {error}"))
    }
}

/// Answers one runtime's connections.
pub(crate) struct GatewayDoor {
    worker: Arc<Worker<Decider>>,
    tickets: Option<Tickets>,
    identifier: Arc<tollgate_tower::Identifier>,
    engine: Arc<Engine<Stores>>,
}

impl GatewayDoor {
    /// Made on the runtime that it is for.
    pub(crate) fn new(
        gateway: &Arc<Gateway<Decider>>,
        callers: &Callers,
        tickets: Option<Tickets>,
        engine: Arc<Engine<Stores>>,
    ) -> Self {
        let identifier = Arc::clone(&callers.identifier);
        Self { worker: gateway.worker(), tickets, identifier, engine }
    }

    /// The answer to the holder of a virtual key who asks for its usage; none to every other call.
    async fn answer_holder(&self, request: &Request<Incoming>) -> Option<Response<GatewayBody>> {
        let call = HolderCall::of(request.method(), request.uri().path())?;
        // Without a virtual key it is a call of the upstream's own.
        if !shows_virtual_key(&self.engine, request.headers()) {
            return None;
        }
        let (status, bytes) = match call.answer(&self.engine, request.headers()).await {
            Ok(bytes) => (http::StatusCode::OK, bytes),
            Err(error) => {
                let (status, body) = error.body();
                (status, serde_json::to_vec(&body).unwrap_or_default())
            }
        };
        let mut response = Response::new(GatewayBody::full(bytes::Bytes::from(bytes)));
        *response.status_mut() = status;
        response.headers_mut().insert(http::header::CONTENT_TYPE, JSON);
        Some(response)
    }
}

impl Answer for GatewayDoor {
    type Body = GatewayBody;

    const UPGRADES: bool = true;

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: Connection,
    ) -> Response<GatewayBody> {
        if let Some(tickets) = &self.tickets
            && let Some(id) = request.uri().path().strip_prefix(TICKETS_PATH)
        {
            if connection.framing.as_ref().is_some_and(|framing| framing.is_ambiguous()) {
                let message = "the end of a request on this connection can be read in two ways";
                let status = http::StatusCode::BAD_REQUEST;
                return problem(status, "AMBIGUOUS_FRAMING", message).map(GatewayBody::full);
            }
            return tickets.response(request.method(), id).await.map(GatewayBody::full);
        }
        if let Some(answer) = self.answer_holder(&request).await {
            return answer;
        }
        let info = ConnectionInfo {
            peer: connection.peer,
            local: connection.local,
            is_tls: connection.is_tls,
            is_trusted: self.identifier.peer_is_trusted(connection.peer.ip()),
            framing: connection.framing,
            permit: connection.permit.map(|permit| permit as Arc<dyn std::any::Any + Send + Sync>),
        };
        if !traces::is_on() {
            return self.worker.answer(request, &info).await;
        }
        let span = traces::server_span("gateway", request.headers());
        let response = self.worker.answer(request, &info).instrument(span.clone()).await;
        span.record("http.response.status_code", response.status().as_u16());
        response
    }

    fn is_endless(_response: &Response<GatewayBody>) -> bool {
        // Bodies are streamed, and end by the gateway's own timeouts.
        true
    }
}
