//! Bodies pass as they come, no faster than they are taken, and never end well when they did not.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::ground::{
    AnyBody, Front, PATIENCE, Upstream, client, http2_client, options, raw_upstream, read_head,
    text, until,
};

const MEGABYTE: usize = 1024 * 1024;
const TOTAL: usize = 64 * MEGABYTE;
const PIECE: usize = 16 * 1024;

/// The most that may be under way between the two ends: buffers of four sockets and of the gateway.
const MAX_UNDER_WAY: usize = 16 * MEGABYTE;

/// The same while somebody reads: the system lets the buffers of sockets grow then.
const MAX_WHILE_READ: usize = TOTAL / 2;

/// A body of what is sent here.
pub(crate) fn streamed(receiver: UnboundedReceiver<Bytes>) -> AnyBody {
    struct Streamed(UnboundedReceiver<Bytes>);
    impl Body for Streamed {
        type Data = Bytes;
        type Error = std::io::Error;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
        }
    }
    Streamed(receiver).boxed_unsync()
}

/// A body of one piece without a declared length: others have no trailers in HTTP/1.1.
fn once(piece: &'static str) -> AnyBody {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    sender.send(Bytes::from_static(piece.as_bytes())).unwrap();
    streamed(receiver)
}

/// A large body that counts what has been taken of it.
fn counted(produced: Arc<AtomicUsize>) -> AnyBody {
    struct Counted(Arc<AtomicUsize>);
    impl Body for Counted {
        type Data = Bytes;
        type Error = std::io::Error;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            if self.0.load(Ordering::SeqCst) >= TOTAL {
                return Poll::Ready(None);
            }
            self.0.fetch_add(PIECE, Ordering::SeqCst);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; PIECE])))))
        }
    }
    Counted(produced).boxed_unsync()
}

/// Waits until a number does not change any more.
async fn settled(number: &AtomicUsize) -> usize {
    let mut last = usize::MAX;
    let mut same = 0;
    while same < 10 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = number.load(Ordering::SeqCst);
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

async fn downloads_are_held_back(is_http2: bool) {
    let produced = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&produced);
    let upstream = Upstream::start(move |_| {
        let body = counted(Arc::clone(&counter));
        async move { Response::new(body) }
    })
    .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let client = if is_http2 { http2_client() } else { client() };
    let request = Request::get(front.url("/")).body(text("")).unwrap();
    let mut body = client.request(request).await.unwrap().into_body();
    let ahead = settled(&produced).await;
    assert!(ahead < MAX_UNDER_WAY, "{ahead} bytes under way to a reader that does not read");
    let mut read = 0;
    let mut most = 0;
    while let Some(frame) = body.frame().await {
        read += frame.unwrap().into_data().unwrap().len();
        most = most.max(produced.load(Ordering::SeqCst).saturating_sub(read));
    }
    assert_eq!(read, TOTAL);
    assert!(most < MAX_WHILE_READ, "{most}");
}

#[tokio::test]
async fn downloads_go_no_faster_than_they_are_read() {
    downloads_are_held_back(false).await;
}

#[tokio::test]
async fn downloads_over_http2_go_no_faster_than_they_are_read() {
    downloads_are_held_back(true).await;
}

#[tokio::test]
async fn uploads_go_no_faster_than_they_are_read() {
    let (go, wait) = tokio::sync::watch::channel(false);
    let received = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&received);
    let upstream = Upstream::start(move |request| {
        let (mut wait, counter) = (wait.clone(), Arc::clone(&counter));
        async move {
            wait.wait_for(|go| *go).await.unwrap();
            let mut body = request.into_body();
            while let Some(frame) = body.frame().await {
                counter.fetch_add(frame.unwrap().into_data().unwrap().len(), Ordering::SeqCst);
            }
            Response::new(text("thanks"))
        }
    })
    .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let produced = Arc::new(AtomicUsize::new(0));
    let request = Request::post(front.url("/")).body(counted(Arc::clone(&produced))).unwrap();
    let sending = tokio::spawn(async move { front.send(request).await });
    let ahead = settled(&produced).await;
    assert!(ahead < MAX_UNDER_WAY, "{ahead} bytes under way to a reader that does not read");
    go.send(true).unwrap();
    assert_eq!(sending.await.unwrap().body, "thanks");
    assert_eq!(received.load(Ordering::SeqCst), TOTAL);
}

#[tokio::test]
async fn events_arrive_before_the_last_is_sent() {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Arc::new(parking_lot::Mutex::new(Some(receiver)));
    let upstream = Upstream::start(move |_| {
        let body = streamed(receiver.lock().take().unwrap());
        async move {
            Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
        }
    })
    .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let request = Request::get(front.url("/")).body(text("")).unwrap();
    let mut body = client().request(request).await.unwrap().into_body();
    for number in 0..3 {
        let event = Bytes::from(format!("data: {number}\n\n"));
        sender.send(event.clone()).unwrap();
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap();
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), event);
    }
    drop(sender);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn expectations_are_met_when_the_upstream_takes_the_body() {
    let upstream = Upstream::echo().await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let mut stream = front.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\
                Connection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(read_head(&mut stream).await, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\nhello"), "{answer}");
    assert!(!answer.contains("expect"), "{answer}");
}

#[tokio::test]
async fn trailers_pass_in_both_directions() {
    let upstream = Upstream::start(|request| async move {
        let trailers = request.into_body().collect().await.unwrap().trailers().cloned();
        let mut back = trailers.unwrap_or_default();
        back.insert("x-back", "1".parse().unwrap());
        let body = once("x").with_trailers(async move { Some(Ok(back)) }).boxed_unsync();
        Response::builder().header("trailer", "x-there, x-back").body(body).unwrap()
    })
    .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let there = HeaderMap::from_iter([("x-there".parse().unwrap(), "2".parse().unwrap())]);
    let body = once("y").with_trailers(async move { Some(Ok(there)) }).boxed_unsync();
    let request = Request::post(front.url("/"))
        .header("te", "trailers")
        .header("trailer", "x-there")
        .body(body)
        .unwrap();
    let response = client().request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    let trailers = body.trailers().unwrap();
    assert_eq!(trailers["x-there"], "2");
    assert_eq!(trailers["x-back"], "1");
}

/// What a header must not say, a trailer must not say either.
#[tokio::test]
async fn request_trailers_are_filtered_as_headers_are() {
    let upstream = Upstream::start(|request| async move {
        let trailers = request.into_body().collect().await.unwrap().trailers().cloned();
        let mut names: Vec<String> =
            trailers.unwrap_or_default().keys().map(|name| name.as_str().to_owned()).collect();
        names.sort_unstable();
        Response::new(text(names.join(" ")))
    })
    .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let forged = ["x-kept", "x-forwarded-for", "x-tollgate-user-id", "authorization", "host"];
    let there: HeaderMap =
        forged.iter().map(|name| (name.parse().unwrap(), "6.6.6.6".parse().unwrap())).collect();
    let body = once("y").with_trailers(async move { Some(Ok(there)) }).boxed_unsync();
    let request = Request::post(front.url("/"))
        .header("te", "trailers")
        .header("trailer", forged.join(", "))
        .body(body)
        .unwrap();
    let response = client().request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "x-kept");
}

#[tokio::test]
async fn a_body_that_breaks_off_breaks_off_for_the_client_too() {
    for head in
        ["Content-Length: 10\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"]
    {
        let url = raw_upstream(move |mut stream, _| async move {
            read_head(&mut stream).await;
            let answer = format!("HTTP/1.1 200 OK\r\n{head}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        })
        .await;
        let front = Front::start(options(&[&url])).await;
        for client in [client(), http2_client()] {
            let request = Request::get(front.url("/")).body(text("")).unwrap();
            let response = client.request(request).await.unwrap();
            assert_eq!(response.status(), 200);
            assert!(response.into_body().collect().await.is_err(), "{head}");
        }
        assert!(front.targets()[0].failures >= 2);
    }
}

#[tokio::test]
async fn an_upstream_that_stops_in_the_middle_is_cut_off() {
    let url = raw_upstream(|mut stream, _| async move {
        read_head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
        let _ = stream.read_u8().await;
    })
    .await;
    let mut options = options(&[&url]);
    options.timeouts.response_idle = Duration::from_millis(100);
    let front = Front::start(options).await;
    let request = Request::get(front.url("/")).body(text("")).unwrap();
    let response = client().request(request).await.unwrap();
    assert!(response.into_body().collect().await.is_err());
    until("the end", || front.targets()[0].active == 0).await;
}

#[tokio::test]
async fn a_client_that_stops_in_the_middle_gets_an_error() {
    let upstream = Upstream::echo().await;
    let mut options = options(&[&upstream.url()]);
    options.timeouts.request_idle = Duration::from_millis(100);
    let front = Front::start(options).await;
    let answer = front.raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf").await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("REQUEST_TIMEOUT") && answer.contains("x-ratelimit-limit"), "{answer}");
    until("the end", || front.targets()[0].active == 0).await;
    assert_eq!(front.targets()[0].failures, 0);
}

/// Each byte comes in time; the body never gets on.
#[tokio::test]
async fn a_body_that_drips_is_cut() {
    let upstream = Upstream::echo().await;
    let mut options = options(&[&upstream.url()]);
    options.timeouts.request_idle = Duration::from_millis(500);
    options.timeouts.min_request_rate = 10_000;
    let front = Front::start(options).await;
    let stream = front.connect().await;
    let (mut reader, mut writer) = stream.into_split();
    let drip = tokio::spawn(async move {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
        writer.write_all(head.as_bytes()).await.unwrap();
        while writer.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut answer = [0; 13];
    tokio::time::timeout(PATIENCE, reader.read_exact(&mut answer)).await.unwrap().unwrap();
    drip.abort();
    assert_eq!(&answer, b"HTTP/1.1 408 ");
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_along() {
    let (left, mut has_left) = tokio::sync::mpsc::unbounded_channel();
    let url = raw_upstream(move |mut stream, _| {
        let left = left.clone();
        async move {
            read_head(&mut stream).await;
            // Never answers; sees the connection closed.
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            left.send(()).unwrap();
        }
    })
    .await;
    let front = Front::start(options(&[&url])).await;
    let mut stream = front.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    until("the request", || front.targets()[0].active == 1).await;
    drop(stream);
    tokio::time::timeout(PATIENCE, has_left.recv()).await.unwrap();
    until("the end", || front.targets()[0].active == 0).await;
}

#[tokio::test]
async fn a_slow_upload_does_not_count_as_a_slow_answer() {
    let upstream = Upstream::echo().await;
    let mut options = options(&[&upstream.url()]);
    options.timeouts.head = Duration::from_secs(1);
    let front = Front::start(options).await;
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let request = Request::post(front.url("/")).body(streamed(receiver)).unwrap();
    let sending = tokio::spawn(async move { front.send(request).await });
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        sender.send(Bytes::from_static(b"x")).unwrap();
    }
    drop(sender);
    let answer = sending.await.unwrap();
    assert!(answer.status == 200 && answer.body.ends_with("\nxxxxx"), "{answer:?}");
}
