//! A plain hyper service, limited by API key and by cost.
//!
//! `cargo run -p tollgate-tower --example hyper` prints where it listens. Requests with `x-api-key: demo` pay
//! 5 for `/report` and 1 for everything else, out of 10 an hour; others are known by their address.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tollgate_engine::{Engine, SystemClock};
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;
use tollgate_tower::identity::{ApiKeys, IdentityOptions, KeyOwner};
use tollgate_tower::{HeaderFamilies, Identifier, InProcess, Peer, TollgateLayer};
use tower_layer::Layer as _;
use tower_service::Service;

const RULES: &str = "
default: false
rules:
  # Alternatives: a client without a key is limited by its address.
  - rule_id: per-key
    scope: caller
    priority: 1
    identifier_type: api_key
    limit: 10
    window: 1h
    algorithm: fixed_window
    costs: [{endpoint: /report, cost: 5}]
  - {rule_id: per-address, scope: caller, identifier_type: ip, limit: 1000, window: 1h, algorithm: fixed_window}
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules = RuleSet::from_yaml(RULES, "rules").map_err(|problems| problems.to_string())?;
    let engine = Engine::new(MemoryStore::new(100_000), Arc::new(SystemClock::new()), rules);
    let mut api_keys = ApiKeys::new();
    api_keys.register("demo", KeyOwner::default());
    let identifier = Identifier::new(IdentityOptions { api_keys, ..IdentityOptions::default() })?;
    let layer = TollgateLayer::new(InProcess::new(Arc::new(engine), HeaderFamilies::default()))
        .identifier(Arc::new(identifier));
    let service = layer.layer(Hello);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening http={}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        let service = service.clone();
        // The layer cannot see sockets: the code that accepts connections states the peer.
        let answer = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer.ip()));
            service.clone().call(request)
        });
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// The service itself.
#[derive(Clone)]
struct Hello;

impl<B> Service<Request<B>> for Hello {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        std::future::ready(Ok(Response::new(Full::new(Bytes::from_static(b"hello\n")))))
    }
}
