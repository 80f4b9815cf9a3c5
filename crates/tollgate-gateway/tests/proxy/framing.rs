//! Requests that servers may read differently, byte by byte as an attacker sends them.

use crate::ground::{Decider, Front, Upstream, options};

#[tokio::test]
async fn ambiguous_requests_are_refused_and_reach_nobody() {
    let table = [
        ("both lengths", "Host: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n", 400),
        ("both, swapped", "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n", 400),
        ("both, empty", "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n", 400),
        ("two lengths", "Host: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n", 400),
        ("listed lengths", "Host: a\r\nContent-Length: 4, 5\r\n", 400),
        ("signed length", "Host: a\r\nContent-Length: +4\r\n", 400),
        ("negative length", "Host: a\r\nContent-Length: -4\r\n", 400),
        ("no number", "Host: a\r\nContent-Length: four\r\n", 400),
        ("huge length", "Host: a\r\nContent-Length: 99999999999999999999\r\n", 400),
        ("unknown coding", "Host: a\r\nTransfer-Encoding: xchunked\r\n", 400),
        ("identity", "Host: a\r\nTransfer-Encoding: identity\r\n", 400),
        ("chunked not last", "Host: a\r\nTransfer-Encoding: chunked, gzip\r\n", 400),
        ("gzip then chunked", "Host: a\r\nTransfer-Encoding: gzip, chunked\r\n", 400),
        ("chunked twice", "Host: a\r\nTransfer-Encoding: chunked, chunked\r\n", 400),
        (
            "two codings",
            "Host: a\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
            400,
        ),
        ("space before colon", "Host: a\r\nTransfer-Encoding : chunked\r\n", 400),
        ("folded line", "Host: a\r\nTransfer-Encoding:\r\n chunked\r\n", 400),
        ("no host", "", 400),
        ("two hosts", "Host: a\r\nHost: b\r\n", 400),
        ("host with user", "Host: a@b\r\n", 400),
        ("host with path", "Host: a/b\r\n", 400),
        ("bad expectation", "Host: a\r\nExpect: a-pony\r\n", 417),
    ];
    let upstream = Upstream::echo().await;
    let decider = Decider::pass();
    let front = Front::with(options(&[&upstream.url()]), decider.clone()).await;
    for (what, lines, status) in table {
        let request = format!(
            "POST / HTTP/1.1\r\n{lines}Connection: close\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        );
        let answer = front.raw(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what}: {answer}");
        assert_eq!((upstream.served(), decider.count()), (0, 0), "{what}");
    }
}

#[tokio::test]
async fn odd_request_lines_are_refused() {
    let long = format!("GET /{} HTTP/1.1", "a".repeat(9_000));
    let table = [
        ("GET /%zz HTTP/1.1", 400),
        ("GET /%00 HTTP/1.1", 400),
        ("GET /a%0d%0ab HTTP/1.1", 400),
        ("OPTIONS * HTTP/1.1", 400),
        ("CONNECT a:443 HTTP/1.1", 405),
        ("GET http://user@b/ HTTP/1.1", 400),
        (long.as_str(), 414),
    ];
    let upstream = Upstream::echo().await;
    let front = Front::start(options(&[&upstream.url()])).await;
    for (line, status) in table {
        let answer = front.raw(&format!("{line}\r\nHost: a\r\nConnection: close\r\n\r\n")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {answer}");
        assert_eq!(upstream.served(), 0, "{line}");
    }
}

#[tokio::test]
async fn large_heads_are_refused() {
    let upstream = Upstream::echo().await;
    let front = Front::start(options(&[&upstream.url()])).await;
    // One that the HTTP library still reads, and one that it does not.
    for bytes in [40_000, 1_000_000] {
        let mut answer = String::new();
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: {}\r\n\r\n",
            "x".repeat(bytes)
        );
        // The second is cut while it is sent, so that its answer may be lost with the connection.
        let stream = front.connect().await;
        let (mut reading, mut writing) = stream.into_split();
        let writer = tokio::spawn(async move {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut writing, request.as_bytes()).await;
            writing
        });
        let mut bytes_read = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut bytes_read).await;
        answer.push_str(&String::from_utf8_lossy(&bytes_read));
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{bytes}: {answer}");
        let _ = writer.await;
    }
    assert_eq!(upstream.served(), 0);
}

#[tokio::test]
async fn what_is_clear_passes_also_in_a_row() {
    let upstream = Upstream::echo().await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let requests = "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n\
                    POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\ntwo\
                    POST /3 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nthree\
                    GET /4 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = front.raw(requests).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 4, "{answer}");
    for part in ["\none", "\ntwo", "\nthree", "GET /4"] {
        assert!(answer.contains(part), "{part:?} in {answer}");
    }
}

#[tokio::test]
async fn http_1_0_is_served() {
    let upstream = Upstream::echo().await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let answer = front.raw("GET /old HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200 OK"), "{answer}");
    assert!(answer.contains(&format!("host: {}", upstream.address)), "{answer}");
}
