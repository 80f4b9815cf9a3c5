//! A tonic service with limits: refusals are gRPC statuses (`RESOURCE_EXHAUSTED`), not HTTP ones.
//!
//! `cargo run -p tollgate-tower --example tonic` prints where it listens; the service is gRPC's own health
//! service, of which three calls an hour pass for each address.

use std::sync::Arc;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tollgate_engine::{Engine, SystemClock};
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;
use tollgate_tower::{HeaderFamilies, InProcess, Peer, TollgateLayer};
use tower_layer::Layer as _;
use tower_service::Service as _;

const RULES: &str = "
default: false
rules:
  - rule_id: health-checks
    identifier_type: ip
    applies_to: {endpoints: ['/grpc.health.v1.Health/*']}
    limit: 3
    window: 1h
    algorithm: fixed_window
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules = RuleSet::from_yaml(RULES, "rules").map_err(|problems| problems.to_string())?;
    let engine = Engine::new(MemoryStore::new(100_000), Arc::new(SystemClock::new()), rules);
    let layer = TollgateLayer::new(InProcess::new(Arc::new(engine), HeaderFamilies::default()));
    let (_reporter, health) = tonic_health::server::health_reporter();
    let service = layer.layer(health);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening grpc={}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        let service = service.clone();
        let answer = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(Peer(peer.ip()));
            service.clone().call(request.map(tonic::body::Body::new))
        });
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
            let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}
