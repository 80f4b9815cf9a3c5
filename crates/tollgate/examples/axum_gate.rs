//! Limits for an axum service: `cargo run -p tollgate --example axum_gate --features axum`.

use std::net::SocketAddr;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tollgate::{Client, Gate, Hold, Quota, Rule, Usage};

async fn chat(hold: Hold) -> Result<&'static str, StatusCode> {
    let used = 250; // What the model reports.
    hold.settle(Usage::tokens(used)).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok("an answer\n")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gate = Gate::builder()
        .rule(Rule::per("ip").quota(Quota::per_minute(60)))
        .rule(
            Rule::per("client")
                .tokens(Quota::per_day(10_000))
                .tier("pro", Quota::per_day(1_000_000)),
        )
        .build()?;
    let layer = gate
        .axum_layer()
        .api_keys([("k1", Client::user("ann").tier("pro"))])
        .cost(|parts| if parts.uri.path() == "/report" { 5 } else { 1 })
        .tokens(|parts| if parts.uri.path() == "/chat" { 1_000 } else { 0 });
    let app = Router::new()
        .route("/chat", get(chat))
        .route("/report", get(async || "a report\n"))
        .layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening http={}", listener.local_addr()?);
    // Rules by address need the addresses of clients.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
