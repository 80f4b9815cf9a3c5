//! The gRPC API: decisions, Envoy's rate limit protocol, health and reflection.
//!
//! Calls are matched here and answered without a router between. Decisions are read and written by
//! hand (`read`, `write`); health and reflection, which nobody calls often, are generated code.

#[cfg(test)]
mod awaited_tests;
mod fields;
mod frame;
mod health;
mod read;
mod reservations;
mod service;
mod stream;
#[cfg(test)]
mod tests;
mod unpackaged;
#[cfg(test)]
mod unpackaged_tests;
mod write;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::HeaderMap;
use http::{Method, Request, Response};
use tokio::sync::watch;
use tollgate_engine::Engine;
use tollgate_store::Store;
use tollgate_tower::headers::HeaderFamilies;
use tonic::Status;
use tonic::body::Body;
use tonic_health::pb::health_server::HealthServer;
use tower_service::Service;
use tracing::Instrument as _;

use crate::callers::CallerId;
use crate::envoy::{DescriptorStats, EnvoyService};
use crate::http::read as http_read;
use crate::reservation_shares::ReservationShares;
use crate::telemetry::latency::{Operation, Timed};
use crate::telemetry::traces;
use service::{Call, GrpcService};
use stream::Conversation;

pub use frame::MAX_MESSAGE_BYTES;
pub use service::{ResetAsked, ResetAuth};
pub use stream::{MAX_BYTES_TOGETHER, MAX_REQUESTS_TOGETHER};

/// The decision service.
pub(crate) const SERVICE: &str = "tollgate.v1.RateLimiterService";

/// Envoy's.
pub(crate) const ENVOY_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The calls that are traced: those that decide once. A stream lasts, and is no one's request.
const DECISIONS: [&str; 9] = [
    "/RateLimiterService/Allow",
    "/tollgate.v1.RateLimiterService/Allow",
    "/tollgate.v1.RateLimiterService/AllowBatch",
    "/tollgate.v1.RateLimiterService/Peek",
    "/tollgate.v1.RateLimiterService/Reserve",
    "/tollgate.v1.RateLimiterService/Settle",
    "/tollgate.v1.RateLimiterService/Release",
    "/tollgate.v1.RateLimiterService/Renew",
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
];

/// A call without a token that is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unauthorized;

/// Who calls, so that callers' request ids do not meet.
pub type Authorize = Arc<dyn Fn(&HeaderMap) -> Result<String, Unauthorized> + Send + Sync>;

/// What the gRPC API needs.
pub struct GrpcOptions<S> {
    /// Decides.
    pub engine: Arc<Engine<S>>,
    /// Who has how many reservations.
    pub reservations: Arc<ReservationShares>,
    /// Knows callers by their tokens.
    pub authorize: Authorize,
    /// Says who may reset counters; nobody may if absent.
    pub resets: Option<Arc<dyn ResetAuth>>,
    /// Which headers Envoy is asked to add to its answers.
    pub headers: HeaderFamilies,
    /// Where statistics of limits of Envoy are kept.
    pub descriptor_stats: Arc<DescriptorStats>,
    /// How long a call's message may take to arrive.
    pub body_timeout: Duration,
    /// How long an `AllowStream` may be silent.
    pub stream_idle_timeout: Duration,
}

/// A service of generated code.
type Generated = Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// Answers gRPC calls.
pub struct GrpcRoutes<S> {
    service: GrpcService<S>,
    envoy: EnvoyService<S>,
    authorize: Authorize,
    resets: Option<Arc<dyn ResetAuth>>,
    body_timeout: Duration,
    stream_idle_timeout: Duration,
    draining: watch::Sender<bool>,
    health: Generated,
    reflection: Option<Generated>,
    reflection_alpha: Option<Generated>,
}

/// The gRPC API.
pub fn routes<S: Store + 'static>(options: GrpcOptions<S>) -> GrpcRoutes<S> {
    let GrpcOptions {
        engine,
        reservations,
        authorize,
        resets,
        headers,
        descriptor_stats,
        body_timeout,
        stream_idle_timeout,
    } = options;
    let (draining, watched) = watch::channel(false);
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tollgate_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    GrpcRoutes {
        envoy: EnvoyService::new(Arc::clone(&engine), headers, descriptor_stats),
        service: GrpcService { engine, reservations },
        authorize,
        resets,
        body_timeout,
        stream_idle_timeout,
        draining,
        health: generated(HealthServer::new(health::HealthOf { draining: watched })),
        reflection: described().build_v1().ok().map(generated),
        reflection_alpha: described().build_v1alpha().ok().map(generated),
    }
}

fn generated<G>(service: G) -> Generated
where
    G: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    G: Clone + Send + Sync + 'static,
    G::Future: Send + 'static,
{
    Arc::new(move |request| {
        let answered = service.clone().call(request);
        Box::pin(async move {
            match answered.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    })
}

impl<S: Store + 'static> GrpcRoutes<S> {
    /// From now on health says no, and streams end.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Answers one call from nobody knows where.
    pub async fn call<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.call_from(request, None).await
    }

    /// Answers one call from this address.
    pub(crate) async fn call_from<B>(
        &self,
        request: Request<B>,
        peer: Option<IpAddr>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if request.method() != Method::POST || !frame::is_grpc(request.headers()) {
            return frame::not_grpc();
        }
        let routed = if traces::is_on() && DECISIONS.contains(&request.uri().path()) {
            let span = traces::server_span(request.uri().path(), request.headers());
            self.route(request, peer).instrument(span).await
        } else {
            self.route(request, peer).await
        };
        routed.unwrap_or_else(Status::into_http)
    }

    async fn route<B>(
        &self,
        request: Request<B>,
        peer: Option<IpAddr>,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = request.uri().path();
        let (service, method) =
            path.strip_prefix('/').and_then(|path| path.split_once('/')).unwrap_or_default();
        let generated = match (service, method) {
            (SERVICE, "Allow") => return self.decide(Call::Allow, request, peer).await,
            (ENVOY_SERVICE, "ShouldRateLimit") => return self.ask_envoy(request, peer).await,
            (unpackaged::SERVICE, "Allow") => {
                return self.decide(Call::AllowUnpackaged, request, peer).await;
            }
            (SERVICE, "AllowBatch") => return self.decide(Call::AllowBatch, request, peer).await,
            (SERVICE, "AllowStream") => return self.converse(request, peer),
            (SERVICE, "Peek") => return self.decide(Call::Peek, request, peer).await,
            // Large, and seldom: it would be carried about by all the others.
            (SERVICE, "Reset") => return Box::pin(self.reset(request)).await,
            (SERVICE, "Reserve") => return self.decide(Call::Reserve, request, peer).await,
            (SERVICE, "Settle") => return self.decide(Call::Settle, request, peer).await,
            (SERVICE, "Release") => return self.decide(Call::Release, request, peer).await,
            (SERVICE, "Renew") => return self.decide(Call::Renew, request, peer).await,
            ("grpc.health.v1.Health", _) => Some(&self.health),
            ("grpc.reflection.v1.ServerReflection", _) => self.reflection.as_ref(),
            ("grpc.reflection.v1alpha.ServerReflection", _) => self.reflection_alpha.as_ref(),
            _ => None,
        };
        match generated {
            Some(generated) => Ok(generated(request.map(Body::new)).await),
            None => Err(Status::unimplemented("there is no such call; reflection lists them")),
        }
    }

    fn caller(&self, headers: &HeaderMap) -> Result<String, Status> {
        (self.authorize)(headers).map_err(|Unauthorized| {
            Status::unauthenticated("a bearer token is needed: authorization: Bearer <token>")
        })
    }

    async fn read<B>(&self, body: B) -> Result<Bytes, Status>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let most = MAX_MESSAGE_BYTES + frame::HEAD_BYTES;
        http_read::body(body, most, self.body_timeout).await.map_err(frame::status)
    }

    async fn decide<B>(
        &self,
        call: Call,
        request: Request<B>,
        peer: Option<IpAddr>,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let caller = self.caller(&head.headers)?;
        let bytes = self.read(body).await?;
        let _timed = Timed::new(call.operation());
        if let Call::Allow = call {
            let room = frame::room(peer)?;
            let caller = CallerId { name: &caller, peer };
            if let Some(framed) = self.service.allow_at_once(&bytes, caller) {
                return Ok(frame::answer(room.fill(framed?)));
            }
        }
        // What a decision needs is large. It is kept apart, so that calls do not carry it about.
        let decided = Box::pin(call.answer(self.service.clone(), bytes, caller, peer));
        let framed = self.service.lasting(decided).await.map_err(frame::status)??;
        Ok(frame::answer(framed))
    }

    async fn ask_envoy<B>(
        &self,
        request: Request<B>,
        peer: Option<IpAddr>,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let caller = self.caller(&head.headers)?;
        let bytes = self.read(body).await?;
        let _timed = Timed::new(Operation::Envoy);
        let room = frame::room(peer)?;
        if let Some(answer) =
            self.envoy.answer_now(frame::only_message(&bytes)?, CallerId { name: &caller, peer })
        {
            return Ok(frame::answer(room.fill(service::framed_message(&answer?))));
        }
        let envoy = self.envoy.clone();
        let decided = Box::pin(async move {
            let caller = CallerId { name: &caller, peer };
            let answer = envoy.answer(frame::only_message(&bytes)?, caller).await?;
            Ok::<_, Status>(room.fill(service::framed_message(&answer)))
        });
        let framed = self.service.lasting(decided).await.map_err(frame::status)??;
        Ok(frame::answer(framed))
    }

    fn converse<B>(
        &self,
        request: Request<B>,
        peer: Option<IpAddr>,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let caller = self.caller(&head.headers)?;
        let (service, draining) = (self.service.clone(), self.draining.subscribe());
        let idle = self.stream_idle_timeout;
        Ok(frame::respond(
            Conversation::new(service, (caller, peer), idle, draining, body).into_body(),
        ))
    }

    async fn reset<B>(&self, request: Request<B>) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let bytes = self.read(body).await?;
        let message = frame::only_message(&bytes)?;
        let framed = self.service.reset(message, &head.headers, self.resets.as_deref()).await?;
        Ok(frame::answer(framed))
    }
}
