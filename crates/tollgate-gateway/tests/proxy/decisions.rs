//! Decisions come before upstreams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use tollgate_gateway::Gateway;
use tollgate_gateway::options::RouteOptions;
use tollgate_tower::identity::{IdentityOptions, UnknownApiKey};
use tollgate_tower::{EdgeRequest, Held, Identifier, Pass, Rejection, Ruling};

use crate::ground::{
    Decider, Front, Upstream, client, decision_headers, options, pool, text, until,
};

#[tokio::test]
async fn a_request_passes_and_its_answer_carries_the_decision() {
    let upstream = Upstream::start(|_| async {
        Response::builder()
            .header("x-ratelimit-limit", "7")
            .header("x-ratelimit-limit", "8")
            .header("x-own", "1")
            .status(201)
            .body(text("made"))
            .unwrap()
    })
    .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let answer = front.get("/a").await;
    assert_eq!((answer.status, answer.body.as_str()), (201, "made"));
    assert_eq!(answer.headers.get_all("x-ratelimit-limit").iter().collect::<Vec<_>>(), ["100"]);
    assert_eq!(answer.headers["x-own"], "1");
}

#[tokio::test]
async fn what_is_asked_is_what_was_called() {
    let upstream = Upstream::named("x").await;
    let seen: Arc<Mutex<Vec<EdgeRequest>>> = Arc::default();
    let seen_there = Arc::clone(&seen);
    let decider = Decider::new(move |asked| {
        seen_there.lock().push(asked.clone());
        Ruling::Pass(Pass::default())
    });
    let mut options = options(&[&upstream.url()]);
    options.model_header = Some(http::HeaderName::from_static("x-model"));
    let front = Front::with(options, decider).await;
    let request = Request::put(front.url("/v1/../v2//%61?secret=1"))
        .header("host", "API.Example.com:81")
        .header("x-model", "large")
        .body(text(""))
        .unwrap();
    front.send(request).await;
    let asked = seen.lock().remove(0);
    assert_eq!(asked.endpoint.as_deref(), Some("/v2/a"));
    assert_eq!(asked.method.as_deref(), Some("PUT"));
    assert_eq!(asked.domain.as_deref(), Some("api.example.com"));
    assert_eq!(asked.model_id.as_deref(), Some("large"));
    assert_eq!(asked.identity.ip.as_deref(), Some("127.0.0.1"));
}

#[tokio::test]
async fn a_model_is_named_once() {
    let upstream = Upstream::named("x").await;
    let decider = Decider::pass();
    let mut options = options(&[&upstream.url()]);
    options.model_header = Some(http::HeaderName::from_static("x-model"));
    let front = Front::with(options, decider.clone()).await;
    for models in [["small", "large"], ["small", "small"]] {
        let [one, two] = models;
        let request = Request::get(front.url("/")).header("x-model", one).header("x-model", two);
        let answer = front.send(request.body(text("")).unwrap()).await;
        assert_eq!(answer.status, 400, "{models:?}");
        assert!(answer.body.contains("the model must be named once"), "{}", answer.body);
    }
    assert_eq!((decider.count(), upstream.served()), (0, 0));
}

#[tokio::test]
async fn wrong_credentials_are_answered_before_anything_is_asked() {
    let upstream = Upstream::named("x").await;
    let decider = Decider::pass();
    let identifier = Identifier::new(IdentityOptions {
        unknown_api_key: Some(UnknownApiKey::Refuse),
        ..IdentityOptions::default()
    });
    let options = options(&[&upstream.url()]);
    let gateway = Gateway::new(options, decider.clone(), Arc::new(identifier.unwrap()));
    let front = Front::of(gateway.unwrap()).await;
    let request = Request::get(front.url("/")).header("x-api-key", "guessed");
    let answer = front.send(request.body(text("")).unwrap()).await;
    assert_eq!(answer.status, 401);
    assert_eq!((decider.count(), upstream.served()), (0, 0));
    assert_eq!(front.get("/").await.status, 200);
}

#[tokio::test]
async fn a_refused_request_never_touches_an_upstream() {
    let upstream = Upstream::named("x").await;
    let decider = Decider::new(|_| {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let mut rejection = Rejection::new(status, "RATE_LIMIT_EXCEEDED", "no");
        rejection.headers = decision_headers().into();
        Ruling::Refuse(Box::new(rejection))
    });
    let front = Front::with(options(&[&upstream.url()]), decider).await;
    for _ in 0..3 {
        let request = Request::post(front.url("/")).body(text("a body nobody reads")).unwrap();
        let answer = front.send(request).await;
        assert_eq!((answer.status, answer.code().as_str()), (429, "RATE_LIMIT_EXCEEDED"));
        assert_eq!(answer.headers["x-ratelimit-limit"], "100");
    }
    assert_eq!(upstream.served(), 0);
}

#[tokio::test]
async fn what_has_no_route_is_not_charged() {
    let upstream = Upstream::echo().await;
    let other = Upstream::named("other").await;
    let mut options = options(&[&upstream.url()]);
    options.pools.insert("other".to_owned(), pool(&[&other.url()]));
    options.model_header = Some(http::HeaderName::from_static("x-model"));
    let route = |name: &str, pool: &str| RouteOptions::to_pool(name, pool);
    options.routes = vec![
        RouteOptions { models: vec!["gpt-*".to_owned()], ..route("by-model", "other") },
        RouteOptions { hosts: vec!["*.example.com".to_owned()], ..route("by-host", "other") },
        RouteOptions { methods: vec![http::Method::PATCH], ..route("by-method", "other") },
        RouteOptions {
            paths: vec!["/api/*".to_owned()],
            strip_prefix: Some("/api".to_owned()),
            add_prefix: Some("/base".to_owned()),
            ..route("by-path", "default")
        },
    ];
    let decider = Decider::pass();
    let front = Front::with(options, decider.clone()).await;
    let answer = front.get("/unrouted").await;
    assert_eq!((answer.status, answer.code().as_str()), (404, "NO_ROUTE"));
    assert_eq!(decider.count(), 0);
    let answer = front.get("/api/x?y=%20z").await;
    assert!(answer.body.starts_with("GET /base/x?y=%20z HTTP/1.1\n"), "{}", answer.body);
    for (name, value, method) in
        [("x-model", "gpt-4", "GET"), ("host", "a.example.com", "GET"), ("x-none", "1", "PATCH")]
    {
        let request = Request::builder().method(method).uri(front.url("/api/x"));
        let answer = front.send(request.header(name, value).body(text("")).unwrap()).await;
        assert_eq!(answer.body, "other", "{name}");
    }
}

#[tokio::test]
async fn throttled_requests_wait_and_too_many_are_refused_at_once() {
    let upstream = Upstream::named("x").await;
    let decider = Decider::new(|asked| {
        let wait = if asked.endpoint.as_deref() == Some("/long") { 60_000 } else { 30 };
        let wait = Duration::from_millis(wait);
        Ruling::Pass(Pass { wait, headers: decision_headers().into(), ..Pass::default() })
    });
    let mut options = options(&[&upstream.url()]);
    options.max_waiting = 2;
    let front = Front::with(options, decider).await;
    let before = tokio::time::Instant::now();
    assert_eq!(front.get("/").await.status, 200);
    assert!(before.elapsed() >= Duration::from_millis(30));
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let request = Request::get(front.url("/long")).body(text("")).unwrap();
            tokio::spawn(client().request(request))
        })
        .collect();
    until("waiting", || front.gateway.waiting_room() == 0).await;
    let before = tokio::time::Instant::now();
    let answer = front.get("/long").await;
    assert!(before.elapsed() < Duration::from_secs(5));
    assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_WAITING"));
    assert_eq!(answer.headers["retry-after"], "60");
    assert_eq!(answer.headers["x-ratelimit-limit"], "100");
    // Who leaves makes room.
    for waiter in waiters {
        waiter.abort();
        let _ = waiter.await;
    }
    until("leaving", || front.gateway.waiting_room() == 2).await;
    assert_eq!(upstream.served(), 1);
}

#[tokio::test]
async fn what_a_request_holds_is_held_until_its_answer_has_ended() {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
    let receiver = Arc::new(Mutex::new(Some(receiver)));
    let upstream = Upstream::start(move |_| {
        let receiver = receiver.lock().take().unwrap();
        async move { Response::new(crate::streaming::streamed(receiver)) }
    })
    .await;
    let held = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&held);
    let decider = Decider::new(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        let counter = Arc::clone(&counter);
        let held = Held::new(move || {
            counter.fetch_sub(1, Ordering::SeqCst);
        });
        Ruling::Pass(Pass { held: Some(held), ..Pass::default() })
    });
    let front = Front::with(options(&[&upstream.url()]), decider).await;
    let request = Request::get(front.url("/")).body(text("")).unwrap();
    let response = client().request(request).await.unwrap();
    assert_eq!(held.load(Ordering::SeqCst), 1);
    assert_eq!(front.targets()[0].active, 1);
    sender.send(Bytes::from_static(b"a")).unwrap();
    drop(sender);
    let body = crate::ground::Answer::read(response).await.body;
    assert_eq!(body, "a");
    until("giving back", || held.load(Ordering::SeqCst) == 0).await;
    until("the end", || front.targets()[0].active == 0).await;
}
