//! The layer in a real axum server, over real sockets.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tollgate::{Client, Gate, Hold, MissingKey, Quota, Rule, TestClock, Unsettled, Usage};

const REQUESTS: usize = 200;

/// Serves in the background, with the addresses of clients or without.
async fn serve(app: Router, knows_addresses: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        if knows_addresses {
            let service = app.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, service).await.unwrap();
        } else {
            axum::serve(listener, app).await.unwrap();
        }
    });
    address
}

async fn send(address: SocketAddr, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// The status and all of the response.
async fn read(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    (status, text)
}

async fn call(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    read(send(address, path, headers).await).await
}

/// Responses to many requests, by status.
async fn flood(address: SocketAddr, headers: &str) -> BTreeMap<u16, usize> {
    let mut statuses = BTreeMap::new();
    for _ in 0..REQUESTS {
        *statuses.entry(call(address, "/", headers).await.0).or_default() += 1;
    }
    statuses
}

fn app(gate: &Gate) -> Router {
    Router::new().route("/", get(async || "hello")).layer(gate.axum_layer())
}

fn three_per_address() -> tollgate::GateBuilder {
    Gate::builder().rule(Rule::per("ip").quota(Quota::per_hour(3))).clock(TestClock::new())
}

#[tokio::test]
async fn exactly_three_of_two_hundred_pass() {
    let address = serve(app(&three_per_address().build().unwrap()), true).await;
    assert_eq!(flood(address, "").await, [(200, 3), (429, 197)].into());
    let (_, response) = call(address, "/", "").await;
    assert!(response.contains("x-ratelimit-limit: 3"), "{response}");
    assert!(response.contains("retry-after: 1200"), "{response}");
    assert!(response.contains("RATE_LIMIT_EXCEEDED"), "{response}");
}

#[tokio::test]
async fn without_an_address_nobody_passes_a_rule_by_address() {
    let address = serve(app(&three_per_address().build().unwrap()), false).await;
    assert_eq!(flood(address, "").await, [(500, REQUESTS)].into());
    let gate = three_per_address().missing_key(MissingKey::Reject).build().unwrap();
    assert_eq!(flood(serve(app(&gate), false).await, "").await, [(400, REQUESTS)].into());
    // Only if that is chosen.
    let gate = three_per_address().missing_key(MissingKey::Allow).build().unwrap();
    assert_eq!(flood(serve(app(&gate), false).await, "").await, [(200, REQUESTS)].into());
}

#[tokio::test]
async fn api_keys_stand_for_clients_and_others_are_refused() {
    let rule = Rule::per("user_id").quota(Quota::per_day(2)).tier("pro", Quota::per_day(5));
    let gate = Gate::builder()
        .rule(rule)
        .missing_key(MissingKey::Reject)
        .clock(TestClock::new())
        .build()
        .unwrap();
    let layer = gate
        .axum_layer()
        .api_keys([("k1", Client::user("ann").tier("pro")), ("k2", Client::user("bob"))]);
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let address = serve(app, true).await;
    assert_eq!(flood(address, "x-api-key: k1\r\n").await, [(200, 5), (429, 195)].into());
    assert_eq!(flood(address, "x-api-key: k2\r\n").await, [(200, 2), (429, 198)].into());
    assert_eq!(flood(address, "x-api-key: k3\r\n").await, [(401, REQUESTS)].into());
    assert_eq!(flood(address, "").await, [(400, REQUESTS)].into(), "no key, no user");
}

#[tokio::test]
async fn costs_attributes_and_refusals_are_the_services_own() {
    let gate = Gate::builder()
        .rule(Rule::per("region").id("per-region").quota(Quota::per_day(10)))
        .clock(TestClock::new())
        .build()
        .unwrap();
    let layer = gate
        .axum_layer()
        .attribute("region", |parts| {
            parts.headers.get("x-region").and_then(|value| value.to_str().ok()).map(str::to_owned)
        })
        .cost(|parts| if parts.uri.path() == "/report" { 5 } else { 1 })
        .on_refusal(|denial| {
            (StatusCode::IM_A_TEAPOT, format!("refused by {}", denial.rule_id().unwrap_or("?")))
        });
    let page = || get(async || "hello");
    let app = Router::new().route("/", page()).route("/report", page()).layer(layer);
    let address = serve(app, true).await;
    let eu = "x-region: eu\r\n";
    assert_eq!(call(address, "/report", eu).await.0, 200);
    assert_eq!(call(address, "/report", eu).await.0, 200);
    let (status, response) = call(address, "/", eu).await;
    assert_eq!(status, 418, "10 of 10 are used");
    assert!(response.ends_with("refused by per-region"), "{response}");
    assert!(response.contains("x-ratelimit-limit: 10"), "{response}");
    assert_eq!(call(address, "/", "x-region: us\r\n").await.0, 200);
    let (status, _) = call(address, "/", "").await;
    assert_eq!(status, 500, "a mistake of the service is not shown as a refusal");
}

async fn chat(hold: Hold) -> StatusCode {
    hold.settle(Usage::tokens(200)).await.map_or(StatusCode::BAD_GATEWAY, |()| StatusCode::OK)
}

#[tokio::test]
async fn a_handler_settles_what_its_request_holds() {
    let gate = Gate::builder()
        .rule(Rule::global().tokens(Quota::per_day(1_000)))
        .clock(TestClock::new())
        .build()
        .unwrap();
    let app = Router::new()
        .route("/chat", get(chat))
        .route("/free", get(async |hold: Hold| hold.release().await.unwrap()))
        .route("/kept", get(async || "does not settle"))
        .route("/twice", get(async |_: Hold, _: Hold| "cannot be"))
        .layer(gate.axum_layer().tokens(|_| 600))
        .route("/bare", get(async |_: Hold| "has no layer"));
    let address = serve(app, true).await;
    let left = || gate.peek_now(&Client::new()).unwrap().remaining();
    assert_eq!((call(address, "/chat", "").await.0, left()), (200, Some(800)));
    assert_eq!((call(address, "/free", "").await.0, left()), (200, Some(800)));
    assert_eq!((call(address, "/chat", "").await.0, left()), (200, Some(600)));
    assert_eq!((call(address, "/kept", "").await.0, left()), (200, Some(0)));
    assert_eq!(call(address, "/chat", "").await.0, 429);
    gate.reset(&Client::new()).await.unwrap();
    assert_eq!(call(address, "/twice", "").await.0, 500);
    assert_eq!(call(address, "/bare", "").await.0, 500);
}

/// A route whose handler takes no hold must not refund what its requests cost.
#[tokio::test]
async fn a_hold_that_no_handler_takes_stays_charged() {
    let gate = three_per_address()
        .rule(Rule::global().tokens(Quota::per_day(1_000)))
        .unsettled(Unsettled::Release)
        .build()
        .unwrap();
    let address = serve(app(&gate), true).await;
    assert_eq!(flood(address, "").await, BTreeMap::from([(200, 3), (429, REQUESTS - 3)]));
}

#[tokio::test]
async fn a_slot_is_held_until_the_response_has_ended() {
    let gate = Gate::builder().rule(Rule::per("ip").concurrent(1)).build().unwrap();
    let (entered, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (reached, leave) = (Arc::clone(&entered), Arc::clone(&finish));
    let work = async move || {
        reached.notify_one();
        leave.notified().await;
        "done"
    };
    let app = Router::new().route("/", get(work)).layer(gate.axum_layer());
    let address = serve(app, true).await;
    let first = send(address, "/", "").await;
    entered.notified().await;
    assert_eq!(call(address, "/", "").await.0, 429, "the only slot is taken");
    finish.notify_one();
    assert_eq!(read(first).await.0, 200);
    finish.notify_one();
    assert_eq!(call(address, "/", "").await.0, 200, "it was given back");
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_is_refunded() {
    let rules = "rules: [{rule_id: slow, identifier_type: ip, limit: 1, window: 30m, action: throttle, \
                 algorithm: token_bucket, max_delay_ms: 3600000}]";
    let gate = Gate::builder().rules_yaml(rules).clock(TestClock::new()).build().unwrap();
    let address = serve(app(&gate), true).await;
    assert_eq!(call(address, "/", "").await.0, 200);
    let token = Duration::from_secs(1_800);
    let wait = || gate.peek_now(&Client::new().ip("127.0.0.1")).unwrap().wait();
    assert_eq!(wait(), token);
    let waiting = send(address, "/", "").await;
    until(|| wait() == 2 * token, "the request waits, and is charged").await;
    drop(waiting);
    until(|| wait() == token, "it is refunded").await;
}

/// Waits for an event.
async fn until(mut happened: impl FnMut() -> bool, what: &str) {
    let waited = async {
        while !happened() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let happened = tokio::time::timeout(tollgate_testkit::PATIENCE, waited).await;
    assert!(happened.is_ok(), "never: {what}");
}
