//! The layer around a small service: what passes, what is refused, who waits.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tokio::time::Instant;
use tollgate_core::SECOND;
use tollgate_engine::{Clock, Engine, ManualClock};
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;
use tollgate_tower::{HeaderFamilies, InProcess, LimitedBody, Peer, TollgateLayer};
use tower_layer::Layer as _;
use tower_service::Service;

/// Answers everything, and counts.
#[derive(Clone, Default)]
struct Upstream(Arc<AtomicUsize>);

impl Service<Request<()>> for Upstream {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Response::new(Full::new(Bytes::from_static(b"hello")))))
    }
}

type Layer = TollgateLayer<InProcess<MemoryStore>>;

fn layer(rules: &str) -> Layer {
    layer_by(rules).0
}

/// A layer and the clock that it decides by.
fn layer_by(rules: &str) -> (Layer, Arc<ManualClock>) {
    let rules = RuleSet::from_yaml(&format!("default: false\n{rules}"), "t").unwrap();
    let clock = Arc::new(ManualClock::new(SECOND));
    let engine = Engine::new(MemoryStore::new(1_000), Arc::clone(&clock) as Arc<dyn Clock>, rules);
    let layer = TollgateLayer::new(InProcess::new(Arc::new(engine), HeaderFamilies::default()));
    (layer, clock)
}

fn get(path: &str) -> Request<()> {
    let mut request = Request::get(path).header("host", "Api.Example:8080").body(()).unwrap();
    request.extensions_mut().insert(Peer(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9))));
    request
}

async fn call(
    layer: &Layer,
    upstream: &Upstream,
    request: Request<()>,
) -> Response<LimitedBody<Full<Bytes>>> {
    layer.layer(upstream.clone()).call(request).await.unwrap()
}

/// The service may read any of these as `/login`.
#[tokio::test]
async fn no_spelling_of_a_path_passes_its_rule() {
    let layer = layer(
        "rules: [{rule_id: login, applies_to: {endpoints: [/login]}, identifier_type: global, limit: 0, window: 1h}]",
    );
    let upstream = Upstream::default();
    for target in [
        "/login",
        "/login/",
        "/login?x",
        "/login;x",
        "/login%3bx",
        "/login\\",
        "/%6cogin",
        "/x/../login",
        "/%2flogin",
        "/x%2F..%2Flogin",
        "//login",
        "//host/login",
        "/x\\..\\login",
        "/x%5c..%5Clogin",
        "/\\host/login",
        "http://host/login",
        "http://host/x/../login?y",
        "*",
        "/login/%zz",
    ] {
        let status = call(&layer, &upstream, get(target)).await.status();
        let is_refused = [StatusCode::TOO_MANY_REQUESTS, StatusCode::BAD_REQUEST].contains(&status);
        assert!(is_refused, "{target}: {status}");
    }
    assert_eq!(upstream.0.load(Ordering::Relaxed), 0);
    assert_eq!(call(&layer, &upstream, get("/other")).await.status(), StatusCode::OK);
}

/// A suspended limit does not admit anything in 0 seconds.
#[tokio::test]
async fn a_limit_of_0_has_no_reset() {
    let layer = layer("rules: [{rule_id: none, identifier_type: ip, limit: 0, window: 1h}]");
    let answer = call(&layer, &Upstream::default(), get("/a")).await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    let header = |name: &str| answer.headers().get(name).map(|value| value.to_str().unwrap());
    assert_eq!(header("ratelimit"), Some("\"none\";r=0"));
    assert_eq!(header("ratelimit-policy"), Some("\"none\";q=0;w=3600"));
    assert_eq!((header("x-ratelimit-reset"), header("retry-after")), (None, None));
    assert_eq!(header("x-ratelimit-limit"), Some("0"));
}

#[tokio::test]
async fn answers_carry_the_limit_and_refusals_go_nowhere() {
    let layer = layer(
        "rules: [{rule_id: per-ip, identifier_type: ip, limit: 2, window: 1h, algorithm: fixed_window}]",
    );
    let upstream = Upstream::default();
    for remaining in ["1", "0"] {
        let answer = call(&layer, &upstream, get("/a")).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["x-ratelimit-remaining"], remaining);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
    }
    let refused = call(&layer, &upstream, get("/a")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("retry-after"));
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error"]["code"], "RATE_LIMIT_EXCEEDED");
    assert_eq!(body["error"]["rule_id"], "per-ip");
    assert_eq!(upstream.0.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn path_method_and_host_are_what_rules_see() {
    let layer = layer(
        "rules: [{rule_id: r, limit: 0, window: 1h, applies_to: {endpoints: ['/api/{x}'], methods: [GET], domains: [api.example]}}]",
    );
    let upstream = Upstream::default();
    for path in ["/api/a", "/api//a", "/b/../api/%61", "/api/a?q=1"] {
        let answer = call(&layer, &upstream, get(path)).await;
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS, "{path}");
    }
    for path in ["/api", "/api/a/b", "/"] {
        assert_eq!(call(&layer, &upstream, get(path)).await.status(), StatusCode::OK, "{path}");
    }
    let escaping = call(&layer, &upstream, get("/%zz")).await;
    assert_eq!(escaping.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn grpc_clients_get_a_grpc_status() {
    let layer =
        layer("rules: [{rule_id: r, limit: 0, window: 1h}]\ndeny_list: ['ip:198.51.100.1']");
    let upstream = Upstream::default();
    let mut request = get("/x.Y/Z");
    request.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
    let refused = call(&layer, &upstream, request).await;
    assert_eq!(refused.status(), StatusCode::OK);
    assert_eq!(refused.headers()["grpc-status"], "8");
    assert!(!refused.headers()["grpc-message"].is_empty());
    let mut denied = get("/x.Y/Z");
    denied.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    denied.extensions_mut().insert(Peer(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1))));
    assert_eq!(call(&layer, &upstream, denied).await.headers()["grpc-status"], "7");
}

/// 220 requests at the same instant into a queue of 200 that drains at 50 a second: 200 leave in the
/// order they came, 20 ms apart, and 20 are refused at once.
#[tokio::test(start_paused = true)]
async fn throttled_requests_leave_in_order_at_the_drain_rate() {
    let layer = layer(
        "rules: [{rule_id: r, algorithm: leaky_bucket, limit: 50, window: 1s, burst: 200, action: throttle, max_delay_ms: 10000}]",
    );
    let upstream = Upstream::default();
    let left = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let mut tasks = Vec::new();
    for number in 0..220_u32 {
        let (layer, upstream, left) = (layer.clone(), upstream.clone(), Arc::clone(&left));
        tasks.push(tokio::spawn(async move {
            let status = call(&layer, &upstream, get("/")).await.status();
            left.lock().unwrap().push((number, status, start.elapsed()));
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let left = left.lock().unwrap();
    let (gone, refused): (Vec<_>, Vec<_>) =
        left.iter().copied().partition(|(_, status, _)| *status == StatusCode::OK);
    assert_eq!((gone.len(), refused.len()), (200, 20));
    assert!(refused.iter().all(|(number, _, at)| *number >= 200 && at.is_zero()));
    for (place, (number, _, at)) in gone.iter().enumerate() {
        assert_eq!(*number as usize, place, "in order");
        let due = Duration::from_millis(20) * *number;
        // Timers of the runtime have a grain of a millisecond.
        assert!(
            *at >= due && *at <= due + Duration::from_millis(1),
            "{number}: {at:?} for {due:?}"
        );
    }
    assert_eq!(upstream.0.load(Ordering::Relaxed), 200);
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded_and_ends_when_the_client_leaves() {
    let layer = layer(
        "rules: [{rule_id: r, algorithm: leaky_bucket, limit: 1, window: 1s, burst: 100, action: throttle, max_delay_ms: 100000}]",
    )
    .max_waiting(2);
    let upstream = Upstream::default();
    assert_eq!(call(&layer, &upstream, get("/")).await.status(), StatusCode::OK);
    let waiting = [0, 1].map(|_| {
        let (layer, upstream) = (layer.clone(), upstream.clone());
        tokio::spawn(async move { call(&layer, &upstream, get("/")).await.status() })
    });
    tokio::task::yield_now().await;
    let refused = call(&layer, &upstream, get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    // Both leave: their places are free at once, and nothing was sent on for them.
    for task in waiting {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    assert_eq!(upstream.0.load(Ordering::Relaxed), 1);
    let (again, upstream_too) = (layer.clone(), upstream.clone());
    let again = tokio::spawn(async move { call(&again, &upstream_too, get("/")).await.status() });
    assert_eq!(again.await.unwrap(), StatusCode::OK);
}

#[tokio::test]
async fn a_slot_is_held_until_the_body_ends_or_is_dropped() {
    let layer = layer("rules: [{rule_id: r, unit: concurrency, limit: 1, slot_ttl: 1h}]");
    let upstream = Upstream::default();
    for read_it in [true, false] {
        let first = call(&layer, &upstream, get("/")).await;
        assert_eq!(first.status(), StatusCode::OK);
        let second = call(&layer, &upstream, get("/")).await.status();
        assert_eq!(second, StatusCode::TOO_MANY_REQUESTS);
        if read_it {
            let _ = first.into_body().collect().await.unwrap();
        } else {
            drop(first);
        }
        // The slot is given back by a task of its own.
        tokio::task::yield_now().await;
    }
    assert_eq!(call(&layer, &upstream, get("/")).await.status(), StatusCode::OK);
}

/// Slots are given back by their receipts. A record of each, which nobody would end, would take the room of reservations.
#[tokio::test]
async fn slots_of_the_layer_take_no_place_of_reservations() {
    let rules = "default: false\nrules: [{rule_id: r, unit: concurrency, limit: 1, slot_ttl: 1h}]";
    let rules = RuleSet::from_yaml(rules, "t").unwrap();
    let store = MemoryStore::new(1_000).with_max_reservations(1);
    let engine = Engine::new(store, Arc::new(ManualClock::new(SECOND)), rules);
    let layer = TollgateLayer::new(InProcess::new(Arc::new(engine), HeaderFamilies::default()));
    let upstream = Upstream::default();
    for _ in 0..3 {
        let response = call(&layer, &upstream, get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        drop(response);
        tokio::task::yield_now().await;
    }
}

/// A slot that is not renewed is free when its lifetime ends; one whose request is under way is not.
#[tokio::test(start_paused = true)]
async fn a_slot_is_renewed_for_as_long_as_its_request_is_under_way() {
    let (layer, clock) =
        layer_by("rules: [{rule_id: r, unit: concurrency, limit: 1, slot_ttl: 3s}]");
    let upstream = Upstream::default();
    let first = call(&layer, &upstream, get("/")).await;
    assert_eq!(first.status(), StatusCode::OK);
    for second in 0..12 {
        clock.advance(SECOND);
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
        let status = call(&layer, &upstream, get("/")).await.status();
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "after {second} s");
    }
    drop(first);
    tokio::task::yield_now().await;
    assert_eq!(call(&layer, &upstream, get("/")).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_is_given_back_its_charge() {
    let layer = layer(
        "rules: [{rule_id: r, algorithm: leaky_bucket, limit: 1, window: 1s, burst: 3, action: throttle, max_delay_ms: 100000}]",
    );
    let upstream = Upstream::default();
    assert_eq!(call(&layer, &upstream, get("/")).await.status(), StatusCode::OK);
    // The bucket has room for two more. They leave before their turn, again and again.
    for round in 0..5 {
        let waiting = [0, 1].map(|_| {
            let (layer, upstream) = (layer.clone(), upstream.clone());
            tokio::spawn(async move { call(&layer, &upstream, get("/")).await.status() })
        });
        tokio::task::yield_now().await;
        let refused = call(&layer, &upstream, get("/")).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "round {round}");
        for task in waiting {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled(), "round {round}: it waited");
        }
        // The charge is given back by a task of its own.
        tokio::task::yield_now().await;
    }
    assert_eq!(upstream.0.load(Ordering::Relaxed), 1);
}

/// A layer that is shared can still be changed: the change is the changed clone's alone.
#[tokio::test]
async fn a_clone_that_is_changed_is_a_layer_of_its_own() {
    let plain = layer("rules: [{rule_id: r, limit: 10, window: 1h, algorithm: fixed_window}]");
    let dear = plain.clone().refine(|_, asked| asked.cost = Some(5));
    let crowded = dear.clone().max_waiting(0).peer(|_| None);
    let upstream = Upstream::default();
    for (layer, remaining) in [(&plain, "9"), (&dear, "4"), (&plain, "3")] {
        let answer = call(layer, &upstream, get("/")).await;
        assert_eq!(answer.headers()["x-ratelimit-remaining"], remaining);
    }
    let refused = call(&crowded, &upstream, get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "it has the cost of its original");
}

/// A request that lacks the key of a rule is an error in an embedded engine, and the service is not
/// called.
#[tokio::test]
async fn a_request_that_a_rule_cannot_limit_is_refused() {
    let layer = layer("rules: [{rule_id: r, identifier_type: ip, limit: 3, window: 1h}]");
    let upstream = Upstream::default();
    let unknown = Request::get("/").body(()).unwrap();
    let refused = call(&layer, &upstream, unknown).await;
    assert_eq!(refused.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error"]["code"], "MISSING_KEY");
    assert_eq!(upstream.0.load(Ordering::Relaxed), 0);
    assert_eq!(call(&layer, &upstream, get("/")).await.status(), StatusCode::OK);
}
