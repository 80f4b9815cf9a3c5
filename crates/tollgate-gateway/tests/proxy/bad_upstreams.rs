//! Upstreams that never answer, answer garbage, or hang up: each has a stated answer.

use std::time::Duration;

use http::{Request, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::ground::{Front, Upstream, dead_url, options, raw_upstream, read_head, text, until};

#[tokio::test]
async fn an_upstream_that_never_answers() {
    let url = raw_upstream(|mut stream, _| async move {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await;
    })
    .await;
    let mut options = options(&[&url]);
    options.timeouts.head = Duration::from_millis(100);
    let front = Front::start(options).await;
    for body in ["", "with a body"] {
        let request = Request::put(front.url("/")).body(text(body)).unwrap();
        let answer = front.send(request).await;
        assert_eq!((answer.status, answer.code().as_str()), (504, "UPSTREAM_TIMEOUT"));
        assert_eq!(answer.headers["x-ratelimit-limit"], "100");
        assert!(!answer.body.contains("127.0.0.1"), "{}", answer.body);
    }
    assert_eq!(front.targets()[0].failures, 2);
    until("the end", || front.targets()[0].active == 0).await;
}

#[tokio::test]
async fn an_upstream_that_answers_garbage() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(200_000));
    let table = [
        "SSH-2.0-OpenSSH_9\r\n".to_owned(),
        "HTTP/1.1 abc OK\r\n\r\n".to_owned(),
        "HTTP/9.9 200 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            .to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n".to_owned(),
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".to_owned(),
        "\u{0}\u{1}\u{2}".repeat(5_000),
        long,
    ];
    for garbage in table {
        let shown: String = garbage.chars().take(60).collect();
        let url = raw_upstream(move |mut stream, _| {
            let garbage = garbage.clone();
            async move {
                read_head(&mut stream).await;
                let _ = stream.write_all(garbage.as_bytes()).await;
                let _ = stream.read_u8().await;
            }
        })
        .await;
        let front = Front::start(options(&[&url])).await;
        let answer = front.get("/").await;
        assert_eq!((answer.status, answer.code().as_str()), (502, "BAD_UPSTREAM"), "{shown:?}");
        until("the end", || front.targets()[0].active == 0).await;
    }
}

#[tokio::test]
async fn an_upstream_that_hangs_up() {
    let url = raw_upstream(|mut stream, _| async move {
        read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 20").await;
    })
    .await;
    let front = Front::start(options(&[&url])).await;
    let answer = front.get("/").await;
    assert_eq!((answer.status, answer.code().as_str()), (502, "BAD_UPSTREAM"));
}

#[tokio::test]
async fn an_upstream_that_is_not_there() {
    let front = Front::start(options(&[&dead_url().await])).await;
    let request = Request::post(front.url("/")).body(text("x")).unwrap();
    let answer = front.send(request).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "NO_UPSTREAM"));
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.headers["x-ratelimit-limit"], "100");
}

#[tokio::test]
async fn an_upstream_that_answers_before_it_has_read_everything() {
    let url = raw_upstream(|mut stream, _| async move {
        read_head(&mut stream).await;
        stream
            .write_all(
                b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
            )
            .await
            .unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    })
    .await;
    let front = Front::start(options(&[&url])).await;
    let mut stream = front.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nstart";
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_head(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    drop(stream);
    until("the end", || front.targets()[0].active == 0).await;
}

#[tokio::test]
async fn connections_are_used_again_and_stale_ones_do_no_harm() {
    let (count, mut counted) = tokio::sync::watch::channel(0);
    let url = raw_upstream(move |mut stream, number| {
        let count = count.clone();
        async move {
            count.send_replace(number + 1);
            // Answers twice, then hangs up while idle.
            for _ in 0..2 {
                let head = read_head(&mut stream).await;
                if head.starts_with("POST") {
                    let mut body = [0; 4];
                    stream.read_exact(&mut body).await.unwrap();
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            }
        }
    })
    .await;
    let front = Front::start(options(&[&url])).await;
    for _ in 0..6 {
        let request = Request::post(front.url("/")).body(text("body")).unwrap();
        assert_eq!(front.send(request).await.body, "ok");
    }
    // Some time passes, so that the hang-up is noticed before the next.
    assert_eq!(*counted.borrow_and_update(), 3);
    assert_eq!(front.targets()[0].failures, 0);
}

#[tokio::test]
async fn idle_connections_are_closed_in_time() {
    let (closed, mut is_closed) = tokio::sync::mpsc::unbounded_channel();
    let url = raw_upstream(move |mut stream, _| {
        let closed = closed.clone();
        async move {
            read_head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            assert!(stream.read_u8().await.is_err());
            closed.send(()).unwrap();
        }
    })
    .await;
    let mut options = options(&[&url]);
    options.pools.get_mut("default").unwrap().idle_timeout = Duration::from_millis(50);
    let front = Front::start(options).await;
    assert_eq!(front.get("/").await.status, 204);
    tokio::time::timeout(crate::ground::PATIENCE, is_closed.recv()).await.unwrap();
}

#[tokio::test]
async fn an_early_hint_is_passed_over() {
    let url = raw_upstream(|mut stream, _| async move {
        read_head(&mut stream).await;
        let answer = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
                      HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(answer.as_bytes()).await.unwrap();
        let _ = stream.read_u8().await;
    })
    .await;
    let front = Front::start(options(&[&url])).await;
    assert_eq!(front.get("/").await.body, "ok");
}

#[tokio::test]
async fn many_requests_share_few_connections() {
    let upstream = Upstream::start(|_| async { Response::new(text("x")) }).await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let client = crate::ground::client();
    for _ in 0..200 {
        let request = Request::get(front.url("/")).body(text("")).unwrap();
        let response = client.request(request).await.unwrap();
        assert_eq!(crate::ground::Answer::read(response).await.body, "x");
    }
    assert_eq!(upstream.served(), 200);
}
