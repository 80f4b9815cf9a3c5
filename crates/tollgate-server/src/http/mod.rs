//! The HTTP API.
//!
//! Decision calls are matched here and answered without a router between; everything else is few
//! and small enough to stand beside them.

mod allow_body;
pub(crate) mod amounts_body;
mod auth;
mod console;
pub(crate) mod decision_json;
mod decisions;
pub(crate) mod holder;
mod openapi;
mod origin;
pub(crate) mod read;
pub(crate) mod reservations;
pub(crate) mod respond;
mod status;
#[cfg(test)]
mod tests;
pub(crate) mod time;
pub(crate) mod virtual_keys;
pub(crate) mod wire;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tollgate_engine::Engine;
use tollgate_gateway::unread;
use tollgate_queue::TICKETS_PATH;
use tollgate_store::Store;
use tracing::Instrument as _;

use crate::activity::Endless;
use crate::admin::{Admin, Door};
use crate::callers::CallerId;
use crate::config::{Config, DataAuth};
use crate::control::ControlFigures;
use crate::edge::queue::Tickets;
use crate::envoy::{DescriptorStats, EnvoyService};
use crate::listen::{Answer, Connection};
use crate::reservation_shares::ReservationShares;
use crate::telemetry::traces;
use holder::HolderCall;
use respond::ApiError;

pub use openapi::document as openapi_document;

/// The most requests of one batch.
pub(crate) const MAX_BATCH: usize = 1_000;

/// What every request is answered from.
pub struct Api<S> {
    engine: Arc<Engine<S>>,
    config: Arc<Config>,
    /// False while the process drains: load balancers send no more.
    ready: AtomicBool,
    metrics: Metrics,
    admin: Option<Arc<Admin>>,
    /// Whether decisions are made here.
    decides: bool,
    /// Requests that are sent later, where there is a queue.
    tickets: Option<Tickets>,
    reservations: Arc<ReservationShares>,
    /// Answers calls of Envoy that come as JSON.
    envoy: EnvoyService<S>,
    /// What is to be said beside being ready.
    figures: Option<Arc<ControlFigures>>,
}

/// Writes what `/metrics` answers.
pub type Metrics = Box<dyn Fn() -> String + Send + Sync>;

impl<S: Store + 'static> Api<S> {
    /// The API of this engine.
    pub fn new(engine: Arc<Engine<S>>, config: Arc<Config>, metrics: Metrics) -> Self {
        let ready = AtomicBool::new(true);
        let reservations = Arc::new(ReservationShares::new(config.max_reservations));
        let envoy = EnvoyService::new(Arc::clone(&engine), config.headers, Arc::default());
        Self {
            engine,
            config,
            ready,
            metrics,
            admin: None,
            decides: true,
            tickets: None,
            reservations,
            envoy,
            figures: None,
        }
    }

    /// Who has how many reservations.
    pub(crate) const fn reservations(&self) -> &Arc<ReservationShares> {
        &self.reservations
    }

    /// The same with an admin API, and with or without decisions.
    pub(crate) fn serving(self, admin: Option<Arc<Admin>>, decides: bool) -> Self {
        Self { admin, decides, ..self }
    }

    /// The same with shares of reservations that others count in, too.
    pub(crate) fn sharing(self, reservations: Arc<ReservationShares>) -> Self {
        Self { reservations, ..self }
    }

    /// The same with the tickets of a queue.
    pub(crate) fn with_tickets(self, tickets: Option<Tickets>) -> Self {
        Self { tickets, ..self }
    }

    /// The same with statistics of the limits that Envoy asks about.
    pub(crate) fn counting(self, stats: Arc<DescriptorStats>) -> Self {
        let envoy = EnvoyService::new(Arc::clone(&self.engine), self.config.headers, stats);
        Self { envoy, ..self }
    }

    /// The same with what the control plane knows, for `/readyz`.
    pub(crate) fn reporting(self, figures: Arc<ControlFigures>) -> Self {
        Self { figures: Some(figures), ..self }
    }

    /// From now on `/readyz` says no.
    pub fn stop_being_ready(&self) {
        self.ready.store(false, Ordering::Relaxed);
        if let Some(admin) = &self.admin {
            admin.end_streams();
        }
    }

    /// Answers one request.
    pub async fn answer<B>(
        self: &Arc<Self>,
        request: Request<B>,
        peer: Option<IpAddr>,
    ) -> Result<Response<Body>, Infallible>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Ok(self.answer_to(request, Caller { peer, certificate: None, is_tls: false }).await)
    }

    async fn answer_to<B>(self: &Arc<Self>, request: Request<B>, from: Caller) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let span = traced(head.uri.path(), &head.headers);
        let routed = self.route(&head, body, from);
        let routed = match &span {
            None => routed.await,
            Some(span) => routed.instrument(span.clone()).await,
        };
        let mut response = routed.unwrap_or_else(ApiError::respond);
        if let Some(span) = span {
            span.record("http.response.status_code", response.status().as_u16());
        }
        if !self.config.cors_origins.is_empty() {
            self.allow_origin(&head.headers, response.headers_mut());
        }
        response
    }

    async fn route<B>(
        self: &Arc<Self>,
        head: &http::request::Parts,
        body: B,
        from: Caller,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = head.uri.path();
        let peer = from.peer;
        if let Some(call) = decisions::Call::of(path).filter(|_| self.decides) {
            return match head.method {
                Method::POST => {
                    let limits = &self.config.limits;
                    let is_own = origin::check(head, from.peer, &self.config.cors_origins);
                    let caller =
                        is_own.and_then(|()| self.authorize(&head.headers, from.certificate));
                    let caller = match caller {
                        Ok(caller) => caller,
                        Err(error) => {
                            // On HTTP/2 an unread body is a reset stream, on HTTP/1 a closed
                            // connection: clients take both for a fault.
                            if unread::is_dropped(&head.headers, Box::pin(body)).await {
                                return Err(error);
                            }
                            return Ok(unread::closing(error.respond(), head.version));
                        }
                    };
                    let bytes =
                        read::body(body, limits.max_body_bytes, limits.body_timeout).await?;
                    if self.engine.store().is_in_process() {
                        return self.decide(call, &bytes, CallerId { name: &caller, peer }).await;
                    }
                    // A client that hangs up must not stop a decision that other nodes and stores
                    // have begun to count: it goes on by itself, and ends by its deadline.
                    let api = Arc::clone(self);
                    let decided = async move {
                        api.decide(call, &bytes, CallerId { name: &caller, peer }).await
                    };
                    finish(decided).await
                }
                Method::OPTIONS => Ok(self.preflight("POST")),
                _ => Err(ApiError::MethodNotAllowed("POST")),
            };
        }
        if let Some(tickets) = &self.tickets
            && let Some(id) = path.strip_prefix(TICKETS_PATH)
        {
            return Ok(tickets.response(&head.method, id).await.map(Body::from));
        }
        if let Some(call) = HolderCall::of(&head.method, path) {
            let answer = call.answer(&self.engine, &head.headers).await?;
            return Ok(respond::raw(StatusCode::OK, respond::JSON, answer));
        }
        let is_get = head.method == Method::GET || head.method == Method::HEAD;
        match path {
            "/rate-limit/auth" if self.decides => {
                origin::check_auth(head, from.peer, &self.config.cors_origins)?;
                if matches!(self.config.data_auth, DataAuth::None) {
                    origin::check_host(head, from.peer, &self.config.allowed_hosts)?;
                }
                // Proxies send the method of the request they ask about, whatever it is.
                let caller = self.authorize(&head.headers, from.certificate)?;
                if self.engine.store().is_in_process() {
                    return self.auth(head, CallerId { name: &caller, peer }).await;
                }
                let (api, head) = (Arc::clone(self), head.clone());
                let decided =
                    async move { api.auth(&head, CallerId { name: &caller, peer }).await };
                finish(decided).await
            }
            _ if head.method == Method::OPTIONS && is_known(path) => Ok(self.preflight("GET")),
            _ if !is_get && is_known(path) => Err(ApiError::MethodNotAllowed("GET")),
            "/api/v1/rate-limits/status" => {
                let caller = self.authorize(&head.headers, from.certificate)?;
                if matches!(self.config.data_auth, DataAuth::None) {
                    origin::check_host(head, from.peer, &self.config.allowed_hosts)?;
                }
                let caller = CallerId { name: &caller, peer };
                self.status(head.uri.query().unwrap_or_default(), caller).await
            }
            _ if path.starts_with("/admin/") => match &self.admin {
                Some(admin) => {
                    let door = Door { peer: from.peer, is_tls: from.is_tls };
                    Ok(admin.answer(head, body, door).await)
                }
                None => Err(ApiError::NotFound),
            },
            "/healthz" => Ok(text(StatusCode::OK, "ok\n")),
            "/readyz" => Ok(self.readiness(head, from.peer)),
            // As envoyproxy/ratelimit answers it.
            "/healthcheck" if self.not_ready().is_none() => Ok(text(StatusCode::OK, "OK")),
            "/healthcheck" => Ok(text(StatusCode::INTERNAL_SERVER_ERROR, "")),
            "/metrics" => {
                origin::check_host(head, from.peer, &self.config.allowed_hosts)?;
                let kind = HeaderValue::from_static(crate::telemetry::CONTENT_TYPE);
                Ok(respond::raw(StatusCode::OK, kind, (self.metrics)()))
            }
            "/openapi.json" => {
                let json = HeaderValue::from_static("application/json");
                Ok(respond::raw(StatusCode::OK, json, openapi::bytes()))
            }
            // The console is where the admin API is: it can do nothing without.
            _ if self.admin.is_some() => {
                console::answer(&head.method, path, &head.headers).ok_or(ApiError::NotFound)
            }
            _ => Err(ApiError::NotFound),
        }
    }

    /// Why it is not ready: it ends, or has only the built-in rules while others are to come.
    fn not_ready(&self) -> Option<&'static str> {
        if !self.ready.load(Ordering::Relaxed) {
            return Some("draining");
        }
        self.figures.as_ref().and_then(|figures| figures.lacks_rules())
    }

    /// Whether it is ready, with the states that an operator must see. Health checks get the status under any name; the
    /// detail is for operators.
    fn readiness(&self, head: &http::request::Parts, peer: Option<IpAddr>) -> Response<Body> {
        let (status, state) = match self.not_ready() {
            None => (StatusCode::OK, "ready"),
            Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
        };
        let mut answer = format!("{state}\n");
        let is_own = origin::check_host(head, peer, &self.config.allowed_hosts).is_ok();
        let figures = self.figures.iter().filter(|_| is_own);
        for (_, text) in figures.flat_map(|figures| figures.incidents()) {
            answer.extend(["warning: ", &text, "\n"]);
        }
        respond::raw(status, HeaderValue::from_static(TEXT), answer)
    }

    /// Who calls, if calls need a token or a certificate: its digest, so that callers' request ids do
    /// not meet.
    pub(crate) fn authorize(
        &self,
        headers: &HeaderMap,
        certificate: Option<[u8; 32]>,
    ) -> Result<String, ApiError> {
        let accepted = match &self.config.data_auth {
            DataAuth::None => return Ok(String::new()),
            DataAuth::Mtls => {
                let digest = certificate.ok_or(ApiError::NoCertificate)?;
                return Ok(format!("{:016x}", short(&digest)));
            }
            DataAuth::Token(accepted) => accepted,
        };
        // Of two, one may be the client's own, and nobody can say which.
        if headers.get_all(AUTHORIZATION).iter().nth(1).is_some() {
            return Err(ApiError::invalid("authorization", "is there more than once"));
        }
        let given = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| Sha256::digest(token.trim().as_bytes()));
        let Some(given) = given else { return Err(ApiError::Unauthorized) };
        // All are compared, so that the time does not tell which one nearly fits.
        let mut known = subtle::Choice::from(0);
        for digest in accepted {
            known |= given.as_slice().ct_eq(digest.as_slice());
        }
        if bool::from(known) {
            Ok(format!("{:016x}", short(&given)))
        } else {
            Err(ApiError::Unauthorized)
        }
    }

    fn preflight(&self, methods: &'static str) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        if !self.config.cors_origins.is_empty() {
            let headers = response.headers_mut();
            let name = HeaderName::from_static;
            headers.insert(name("access-control-allow-methods"), HeaderValue::from_static(methods));
            headers.insert(
                name("access-control-allow-headers"),
                HeaderValue::from_static("authorization, content-type"),
            );
            headers.insert(name("access-control-max-age"), HeaderValue::from_static("600"));
        }
        response
    }

    fn allow_origin(&self, asked: &HeaderMap, headers: &mut HeaderMap) {
        headers.append(VARY, HeaderValue::from_static("origin"));
        let Some(origin) = asked.get(ORIGIN) else { return };
        let accepted = &self.config.cors_origins;
        let fits = |accepted: &String| accepted == "*" || accepted.as_bytes() == origin.as_bytes();
        if accepted.iter().any(fits) {
            let name = HeaderName::from_static("access-control-allow-origin");
            headers.insert(name, origin.clone());
            headers.insert(
                HeaderName::from_static("access-control-expose-headers"),
                HeaderValue::from_static(
                    "x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, \
                     x-ratelimit-policy, x-ratelimit-warning, ratelimit, ratelimit-policy, \
                     retry-after",
                ),
            );
        }
    }
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
struct Caller {
    peer: Option<IpAddr>,
    /// The digest of the certificate that the client has shown.
    certificate: Option<[u8; 32]>,
    is_tls: bool,
}

impl<S: Store + 'static> Answer for Api<S> {
    type Body = Body;

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        connection: Connection,
    ) -> Response<Body> {
        let peer = Some(connection.peer.ip());
        let certificate = connection.client_certificate;
        let is_tls = connection.is_tls;
        self.answer_to(request, Caller { peer, certificate, is_tls }).await
    }

    fn is_endless(response: &Response<Body>) -> bool {
        response.extensions().get::<Endless>().is_some()
    }
}

/// The first bytes of a digest, as a number.
fn short(digest: &[u8]) -> u64 {
    digest.first_chunk().copied().map_or(0, u64::from_be_bytes)
}

/// A span for a call that decides, where somebody wants traces.
#[inline]
fn traced(path: &str, headers: &HeaderMap) -> Option<tracing::Span> {
    let decides = traces::is_on() && path.starts_with("/rate-limit/") && is_decision(path);
    decides.then(|| traces::server_span(path, headers))
}

/// Paths are part of a span's name, so there are only those that we have.
fn is_decision(path: &str) -> bool {
    path == "/rate-limit/auth" || decisions::Call::of(path).is_some()
}

/// Makes a decision in a task of its own, which a client that hangs up does not stop.
async fn finish(
    decided: impl Future<Output = Result<Response<Body>, ApiError>> + Send + 'static,
) -> Result<Response<Body>, ApiError> {
    tokio::spawn(decided.in_current_span()).await.unwrap_or(Err(ApiError::Internal))
}

fn is_known(path: &str) -> bool {
    matches!(
        path,
        "/api/v1/rate-limits/status"
            | "/v1/usage"
            | "/v1/budget"
            | "/healthz"
            | "/readyz"
            | "/healthcheck"
            | "/metrics"
            | "/openapi.json"
    )
}

/// The type of plain answers.
const TEXT: &str = "text/plain; charset=utf-8";

fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    respond::raw(status, HeaderValue::from_static(TEXT), text)
}
