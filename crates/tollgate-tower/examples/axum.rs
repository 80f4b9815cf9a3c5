//! An axum service with limits of its own, decided in the process.
//!
//! `cargo run -p tollgate-tower --example axum` prints where it listens; three calls pass, the fourth is 429.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tollgate_engine::{Engine, SystemClock};
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;
use tollgate_tower::{HeaderFamilies, InProcess, TollgateLayer};

const RULES: &str = "
default: false
rules:
  - {rule_id: per-address, identifier_type: ip, limit: 3, window: 1h, algorithm: fixed_window}
";

/// The service, with the layer around it.
pub(crate) fn app() -> Result<Router, Box<dyn std::error::Error>> {
    let rules = RuleSet::from_yaml(RULES, "rules")?;
    let engine = Engine::new(MemoryStore::new(100_000), Arc::new(SystemClock::new()), rules);
    let layer = TollgateLayer::new(InProcess::new(Arc::new(engine), HeaderFamilies::default()));
    Ok(Router::new().route("/", get(async || "hello\n")).layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening http={}", listener.local_addr()?);
    // The rule is by address, so the layer must know the addresses of clients: the feature `axum` of
    // tollgate-tower reads them from here. Without them every request is refused.
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
