//! An axum service with limits of its own, decided in the process.
//!
//! `cargo run -p tollgate-tower --example axum` prints where it listens; three calls pass, the fourth is 429.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::ConnectInfo;
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules = RuleSet::from_yaml(RULES, "rules").map_err(|problems| problems.to_string())?;
    let engine = Engine::new(MemoryStore::new(100_000), Arc::new(SystemClock::new()), rules);
    let layer = TollgateLayer::new(InProcess::new(Arc::new(engine), HeaderFamilies::default()))
        // Who is connected is what axum says.
        .peer(|head| {
            let info = head.extensions.get::<ConnectInfo<SocketAddr>>();
            info.map(|info| info.0.ip())
        });
    let app = Router::new().route("/", get(async || "hello\n")).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening http={}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}
