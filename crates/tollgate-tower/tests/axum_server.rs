//! The layer in an axum server, over real sockets: a request that cannot be limited is refused.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

#[path = "../examples/axum.rs"]
#[expect(dead_code, reason = "its main is run by hand")]
mod example;
#[path = "support/flood.rs"]
mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use support::flood;
use tollgate_core::SECOND;
use tollgate_engine::{Engine, ManualClock, MissingKey};
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;
use tollgate_tower::{HeaderFamilies, InProcess, TollgateLayer};

const REQUESTS: usize = 200;

/// Serves, floods, and counts the answers by status.
async fn answers(app: Router, knows_addresses: bool) -> BTreeMap<u16, usize> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        if knows_addresses {
            let service = app.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, service).await.unwrap();
        } else {
            axum::serve(listener, app).await.unwrap();
        }
    });
    let answers = flood(address, REQUESTS).await;
    server.abort();
    answers
}

fn app(rules: &str, policy: MissingKey) -> Router {
    let rules = RuleSet::from_yaml(&format!("default: false\nrules: [{rules}]"), "t").unwrap();
    let clock = Arc::new(ManualClock::new(SECOND));
    let engine = Engine::new(MemoryStore::new(1_000), clock, rules).with_missing_key(policy);
    let layer = TollgateLayer::new(InProcess::new(Arc::new(engine), HeaderFamilies::default()));
    Router::new().route("/", get(async || "hello")).layer(layer)
}

const PER_IP: &str = "{rule_id: per-ip, identifier_type: ip, limit: 3, window: 1h}";

#[tokio::test]
async fn the_example_lets_exactly_three_of_two_hundred_pass() {
    let answers = answers(example::app().unwrap(), true).await;
    assert_eq!(answers, [(200, 3), (429, 197)].into());
}

#[tokio::test]
async fn the_address_is_found_where_axum_puts_it() {
    let answers = answers(app(PER_IP, MissingKey::default()), true).await;
    assert_eq!(answers, [(200, 3), (429, 197)].into());
}

#[tokio::test]
async fn without_an_address_nobody_passes_a_rule_by_address() {
    assert_eq!(answers(app(PER_IP, MissingKey::default()), false).await, [(500, 200)].into());
    assert_eq!(answers(app(PER_IP, MissingKey::Reject), false).await, [(400, 200)].into());
    // As in the service, if that is chosen.
    assert_eq!(answers(app(PER_IP, MissingKey::Allow), false).await, [(200, 200)].into());
}

#[tokio::test]
async fn a_misspelt_attribute_limits_nobody_and_so_nobody_passes() {
    let rules = "{rule_id: r, key_by: [adress], limit: 3, window: 1h}";
    assert_eq!(answers(app(rules, MissingKey::default()), true).await, [(500, 200)].into());
}
