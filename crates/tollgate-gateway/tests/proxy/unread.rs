//! Refused requests with a body: the answer arrives, and the client knows whether its connection can be used again.

use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate_tower::{Rejection, Ruling};

use crate::ground::{Decider, Front, Upstream, options};

async fn refusing() -> Front {
    let upstream = Upstream::named("x").await;
    let decider = Decider::new(|_| {
        let status = StatusCode::TOO_MANY_REQUESTS;
        Ruling::Refuse(Box::new(Rejection::new(status, "RATE_LIMIT_EXCEEDED", "no")))
    });
    Front::with(options(&[&upstream.url()]), decider).await
}

/// The head of the next answer; its body is read, too.
async fn head(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let until_head = async {
        while !read.ends_with(b"\r\n\r\n") {
            read.push(stream.read_u8().await.expect("an answer"));
        }
    };
    tokio::time::timeout(Duration::from_secs(60), until_head).await.expect("an answer in time");
    let head = String::from_utf8(read).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    head
}

fn post(length: usize, more: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{more}\r\n")
}

#[tokio::test]
async fn a_refused_request_with_a_body_leaves_its_connection_usable() {
    let front = refusing().await;
    let mut stream = front.connect().await;
    for length in [10, 64 << 10, 500 << 10, 10] {
        stream.write_all(post(length, "").as_bytes()).await.unwrap();
        // The head is there before the body.
        tokio::task::yield_now().await;
        stream.write_all(&vec![b'a'; length]).await.unwrap();
        let head = head(&mut stream).await;
        assert!(head.starts_with("http/1.1 429 "), "{length}: {head}");
        assert!(!head.contains("connection: close"), "{length}: {head}");
    }
}

#[tokio::test]
async fn a_connection_that_is_closed_behind_a_refusal_is_announced() {
    let front = refusing().await;
    let table = [
        ("longer than is read", post((1 << 20) + 1, "")),
        ("not sent before it is asked for", post(10, "Expect: 100-continue\r\n")),
        ("never sent", post(10, "")),
    ];
    for (what, request) in table {
        let mut stream = front.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = head(&mut stream).await;
        assert!(head.starts_with("http/1.1 429 "), "{what}: {head}");
        assert!(head.contains("connection: close"), "{what}: {head}");
    }
}
