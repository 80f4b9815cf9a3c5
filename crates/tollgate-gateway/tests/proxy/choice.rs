//! Which target is chosen, when another, and when a request is sent again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request, Response};
use tokio::net::TcpListener;
use tollgate_gateway::options::{HealthOptions, PassiveOptions, TargetOptions};
use tollgate_gateway::{Gateway, GatewayError, GatewayOptions};
use tollgate_tower::Identifier;

use crate::ground::{
    Decider, Front, Upstream, dead_url, options, raw_upstream, read_head, text, until,
};

#[tokio::test]
async fn targets_get_their_exact_share() {
    let upstreams =
        [Upstream::named("a").await, Upstream::named("b").await, Upstream::named("c").await];
    let mut options = options(&[]);
    let pool = options.pools.get_mut("default").unwrap();
    for (upstream, weight) in upstreams.iter().zip([5, 3, 2]) {
        pool.targets.push(TargetOptions { url: upstream.url(), weight });
    }
    let front = Front::start(options).await;
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..100 {
        *counts.entry(front.get("/").await.body).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(counts, [("a", 50), ("b", 30), ("c", 20)]);
}

#[tokio::test]
async fn another_target_is_taken_when_one_is_away_whatever_the_method() {
    let upstream = Upstream::echo().await;
    let front = Front::start(options(&[&dead_url().await, &upstream.url()])).await;
    for _ in 0..10 {
        let request = Request::post(front.url("/")).body(text("whole body")).unwrap();
        let answer = front.send(request).await;
        assert!(answer.status == 200 && answer.body.ends_with("\nwhole body"), "{answer:?}");
    }
    let targets = front.targets();
    assert_eq!(
        (targets[0].failures, targets[0].is_healthy, targets[0].is_ejected),
        (5, false, true)
    );
    assert_eq!((targets[1].failures, targets[1].is_healthy), (0, true));
}

#[tokio::test]
async fn an_ejected_target_comes_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let other = Upstream::named("other").await;
    let mut options = options(&[&format!("http://{address}"), &other.url()]);
    options.pools.get_mut("default").unwrap().passive = PassiveOptions {
        max_failures: 2,
        back_off: Duration::from_millis(200),
        max_back_off: Duration::from_millis(200),
    };
    let front = Front::start(options).await;
    for _ in 0..8 {
        assert_eq!(front.get("/").await.body, "other");
    }
    assert!(front.targets()[0].is_ejected);
    assert_eq!(front.targets()[0].failures, 2);
    let listener = TcpListener::bind(address).await.unwrap();
    let _back = Upstream::start_on(listener, |_| async { Response::new(text("back")) });
    until("the end of the back-off", || !front.targets()[0].is_ejected).await;
    let answers = [front.get("/").await.body, front.get("/").await.body];
    assert!(answers.contains(&"back".to_owned()) && answers.contains(&"other".to_owned()));
}

#[tokio::test]
async fn where_all_are_ejected_they_are_tried_nevertheless() {
    let is_bad = Arc::new(AtomicBool::new(true));
    let bad = Arc::clone(&is_bad);
    let upstream = Upstream::start(move |_| {
        let status = if bad.load(Ordering::SeqCst) { 503 } else { 200 };
        async move { Response::builder().status(status).body(text("own words")).unwrap() }
    })
    .await;
    let front = Front::start(options(&[&upstream.url(), &upstream.url()])).await;
    for _ in 0..12 {
        let answer = front.get("/").await;
        assert_eq!((answer.status, answer.body.as_str()), (503, "own words"));
    }
    assert!(front.targets().iter().all(|target| target.is_ejected && !target.is_healthy));
    is_bad.store(false, Ordering::SeqCst);
    assert_eq!(front.get("/").await.status, 200);
}

/// An upstream that hangs up on its first request, having read its head, and answers later ones.
async fn hangs_up_first() -> (String, Arc<AtomicUsize>) {
    let heads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&heads);
    let url = raw_upstream(move |mut stream, number| {
        let counter = Arc::clone(&counter);
        async move {
            read_head(&mut stream).await;
            counter.fetch_add(1, Ordering::SeqCst);
            if number > 0 {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
                tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
            }
        }
    })
    .await;
    (url, heads)
}

#[tokio::test]
async fn only_idempotent_requests_without_a_body_are_sent_again() {
    for (method, body, attempts, expected) in [
        (Method::GET, "", 2, (200, 2)),
        (Method::HEAD, "", 2, (200, 2)),
        (Method::OPTIONS, "", 2, (200, 2)),
        (Method::DELETE, "", 2, (200, 2)),
        (Method::PUT, "", 2, (200, 2)),
        (Method::TRACE, "", 2, (200, 2)),
        (Method::GET, "", 1, (502, 1)),
        (Method::POST, "", 2, (502, 1)),
        (Method::PATCH, "", 2, (502, 1)),
        (Method::PUT, "body", 2, (502, 1)),
        (Method::POST, "body", 3, (502, 1)),
    ] {
        let (url, heads) = hangs_up_first().await;
        let mut options = options(&[&url]);
        options.retries.max_attempts = attempts;
        let front = Front::start(options).await;
        let request = Request::builder().method(&method).uri(front.url("/"));
        let answer = front.send(request.body(text(body)).unwrap()).await;
        let seen = (answer.status, heads.load(Ordering::SeqCst));
        assert_eq!(seen, expected, "{method} {body:?} {attempts}");
    }
}

#[tokio::test]
async fn gateway_statuses_are_retried_only_if_configured() {
    let bad =
        Upstream::start(|_| async { Response::builder().status(503).body(text("busy")).unwrap() })
            .await;
    let good = Upstream::named("good").await;
    for (on, method, expected) in
        [(false, "GET", "busy"), (true, "GET", "good"), (true, "POST", "busy")]
    {
        let mut options = options(&[&bad.url(), &good.url()]);
        options.retries.on_gateway_status = on;
        let front = Front::start(options).await;
        let request = Request::builder().method(method).uri(front.url("/"));
        let answer = front.send(request.body(text("")).unwrap()).await;
        assert_eq!(answer.body, expected, "{on} {method}");
    }
}

#[tokio::test]
async fn targets_are_asked_how_they_are() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&is_well);
    let sick = Upstream::start(move |request| {
        let is_probe = request.uri().path() == "/health";
        let status = if is_probe && !well.load(Ordering::SeqCst) { 500 } else { 200 };
        async move { Response::builder().status(status).body(text("sick")).unwrap() }
    })
    .await;
    let well = Upstream::named("well").await;
    let mut options = options(&[&sick.url(), &well.url()]);
    options.pools.get_mut("default").unwrap().health = Some(HealthOptions {
        path: "/health".to_owned(),
        interval: Duration::from_millis(20),
        ..HealthOptions::default()
    });
    let front = Front::start(options).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let tasks = front.gateway.spawn_health_checks(&stopped);
    until("unhealthy", || !front.targets()[0].is_healthy).await;
    assert!(front.targets()[1].is_healthy);
    for _ in 0..6 {
        assert_eq!(front.get("/").await.body, "well");
    }
    is_well.store(true, Ordering::SeqCst);
    until("healthy", || front.targets()[0].is_healthy).await;
    let answers = [front.get("/").await.body, front.get("/").await.body];
    assert!(answers.contains(&"sick".to_owned()));
    // One that is gone altogether.
    sick.stop().await;
    until("unhealthy", || !front.targets()[0].is_healthy).await;
    stop.send(true).unwrap();
    for task in tasks {
        task.await.unwrap();
    }
}

#[test]
fn what_cannot_work_is_refused() {
    let refused = |change: fn(&mut GatewayOptions)| {
        let mut options = GatewayOptions::to_upstream("http://127.0.0.1:1");
        change(&mut options);
        let identifier = Arc::new(Identifier::default());
        Gateway::new(options, Decider::pass(), identifier).unwrap_err()
    };
    let error = refused(|it| it.routes[0].pool = "none".to_owned());
    assert!(matches!(error, GatewayError::Route { .. }), "{error}");
    assert_eq!(error.to_string(), "route default: there is no pool \"none\"");
    for change in [
        (|it| it.routes[0].models.push("x".to_owned())) as fn(&mut GatewayOptions),
        |it| it.routes[0].paths.push("no-slash".to_owned()),
        |it| it.routes[0].hosts.push("a:80".to_owned()),
        |it| it.routes[0].strip_prefix = Some("x".to_owned()),
        |it| it.routes.push(it.routes[0].clone()),
        |it| it.pools.get_mut("default").unwrap().targets.clear(),
        |it| it.pools.get_mut("default").unwrap().targets[0].weight = 0,
        |it| it.pools.get_mut("default").unwrap().targets[0].url = "ftp://a".to_owned(),
        |it| it.max_header_bytes = 10,
        |it| it.retries.max_attempts = 0,
        |it| it.timeouts.head = Duration::ZERO,
        |it| it.via = Some("two words".to_owned()),
        |it| {
            let pool = it.pools.get_mut("default").unwrap();
            pool.targets[0].url = "https://a".to_owned();
            pool.tls.ca_pem = Some(b"no certificate".to_vec());
        },
    ] {
        assert!(!refused(change).to_string().is_empty());
    }
}
