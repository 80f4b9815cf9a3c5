//! Connections that change their protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tollgate_tower::{Held, Pass, Rejection, Ruling};

use crate::ground::{
    Decider, Front, Upstream, dead_url, decision_headers, options, read_head, text, until,
};

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\n\
                       Upgrade: websocket\r\nSec-WebSocket-Key: abc\r\n\r\n";

/// Changes the protocol, then sends back what it gets, in upper case.
async fn shouting() -> Upstream {
    Upstream::start(|mut request| async move {
        let wanted = |name: &str, headers: &HeaderMap| headers[name].to_str().unwrap().to_owned();
        assert_eq!(wanted("upgrade", request.headers()), "websocket");
        assert_eq!(wanted("connection", request.headers()), "upgrade");
        assert_eq!(wanted("sec-websocket-key", request.headers()), "abc");
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgraded.await.unwrap());
            let mut buffer = [0; 1024];
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                let shout = buffer[..read].to_ascii_uppercase();
                if stream.write_all(&shout).await.is_err() {
                    break;
                }
            }
        });
        Response::builder()
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-accept", "def")
            .body(text(""))
            .unwrap()
    })
    .await
}

fn holding() -> (Decider, Arc<AtomicUsize>) {
    let held = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&held);
    let decider = Decider::new(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        let counter = Arc::clone(&counter);
        let held = Held::new(move || {
            counter.fetch_sub(1, Ordering::SeqCst);
        });
        Ruling::Pass(Pass {
            held: Some(held),
            headers: decision_headers().into(),
            ..Pass::default()
        })
    });
    (decider, held)
}

#[tokio::test]
async fn bytes_pass_both_ways_and_the_slot_is_held() {
    let upstream = shouting().await;
    let (decider, held) = holding();
    let front = Front::with(options(&[&upstream.url()]), decider).await;
    let mut stream = front.connect().await;
    // Also what is sent before the answer is there.
    stream.write_all(format!("{UPGRADE}early ").as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for line in [
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-accept: def",
        "x-ratelimit-limit: 100",
    ] {
        assert!(head.contains(line), "{line} in {head}");
    }
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"EARLY ");
    for _ in 0..100 {
        stream.write_all(b"hello").await.unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HELLO");
    }
    assert_eq!((held.load(Ordering::SeqCst), front.targets()[0].active), (1, 1));
    drop(stream);
    until("giving back", || held.load(Ordering::SeqCst) == 0).await;
    until("the end", || front.targets()[0].active == 0).await;
}

#[tokio::test]
async fn a_connection_that_stands_still_is_closed() {
    let upstream = shouting().await;
    let (decider, held) = holding();
    let mut options = options(&[&upstream.url()]);
    options.timeouts.tunnel_idle = Duration::from_millis(60);
    let front = Front::with(options, decider).await;
    let mut stream = front.connect().await;
    stream.write_all(UPGRADE.as_bytes()).await.unwrap();
    read_head(&mut stream).await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    until("giving back", || held.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn an_upstream_that_does_not_change_is_passed_on() {
    let upstream =
        Upstream::start(|_| async { Response::builder().status(426).body(text("no")).unwrap() })
            .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let request = UPGRADE.replace("keep-alive", "close");
    let answer = front.raw(&request).await;
    assert!(answer.starts_with("HTTP/1.1 426 ") && answer.ends_with("no"), "{answer}");
}

#[tokio::test]
async fn another_target_is_taken_for_upgrades_too() {
    let upstream = shouting().await;
    let front = Front::start(options(&[&dead_url().await, &upstream.url()])).await;
    for _ in 0..2 {
        let mut stream = front.connect().await;
        stream.write_all(UPGRADE.as_bytes()).await.unwrap();
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 101 "));
    }
}

#[tokio::test]
async fn a_refused_upgrade_reaches_nobody() {
    let upstream = shouting().await;
    let decider = Decider::new(|_| {
        let status = http::StatusCode::TOO_MANY_REQUESTS;
        Ruling::Refuse(Box::new(Rejection::new(status, "RATE_LIMIT_EXCEEDED", "no")))
    });
    let front = Front::with(options(&[&upstream.url()]), decider).await;
    let answer = front.raw(&UPGRADE.replace("keep-alive", "close")).await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert_eq!(upstream.served(), 0);
}
