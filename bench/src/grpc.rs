//! Load over gRPC: unary calls by h2load, streams by a client of our own that does no more than it must.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::{HeaderMap, Request};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;

use crate::process::end_with_this;

/// The call that streams.
pub const STREAM: &str = "/tollgate.v1.RateLimiterService/AllowStream";

/// How many connections the load comes over.
pub const CONNECTIONS: usize = 8;

/// How many threads put it on.
const LOAD_THREADS: usize = 2;

/// What comes before every message.
const HEAD_BYTES: usize = 5;

/// Large, so that it never waits for us.
const WINDOW_BYTES: u32 = 16 << 20;

/// A message with its head.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + length);
    bytes.push(0);
    bytes.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
    message.encode(&mut bytes).unwrap();
    bytes
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn connect<B>(addr: SocketAddr) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = TcpStream::connect(addr).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

fn request<B>(addr: SocketAddr, path: &str, body: B) -> Request<B> {
    Request::post(format!("http://{addr}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap()
}

fn assert_ok(head: &HeaderMap, trailers: Option<&HeaderMap>) {
    let status = trailers.and_then(|it| it.get("grpc-status")).or_else(|| head.get("grpc-status"));
    assert!(status.is_some_and(|status| status == "0"), "{head:?} {trailers:?}");
}

/// The answer to one framed message, and how long it is with its head.
pub fn ask<A: Message + Default>(addr: SocketAddr, path: &str, framed: &[u8]) -> (A, usize) {
    let body = Full::new(Bytes::copy_from_slice(framed));
    runtime().block_on(async {
        let response = connect(addr).await.send_request(request(addr, path, body)).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap();
        assert_ok(&head.headers, body.trailers());
        let bytes = body.to_bytes();
        (A::decode(&bytes[HEAD_BYTES..]).unwrap(), bytes.len())
    })
}

/// Calls a second by h2load, with so many streams on each connection that send the same framed message again and
/// again. h2load does not look at the status at the end of an answer, so the length is looked at: a call that failed
/// has no answer at all.
pub fn load_unary(
    addr: SocketAddr,
    path: &str,
    message_file: &Path,
    streams: usize,
    seconds: u64,
    answer_bytes: usize,
) -> f64 {
    let mut command = Command::new("h2load");
    end_with_this(&mut command);
    let output = command
        .args(["-t", &LOAD_THREADS.to_string(), "-c", &CONNECTIONS.to_string()])
        .args(["-m", &streams.to_string(), "-D", &seconds.to_string(), "-d"])
        .arg(message_file)
        .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
        .arg(format!("http://{addr}{path}"))
        .output()
        .expect("h2load must be installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |start: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_else(|| panic!("h2load said {output:?}"))
    };
    // `requests: 10 total, 10 started, 10 done, 10 succeeded, 0 failed, 0 errored, 0 timeout`
    let count = |name: &str| -> f64 {
        let parts = line("requests: ").split(", ");
        let count = parts.filter_map(|part| part.strip_suffix(name)).next().unwrap();
        count.trim().parse().unwrap()
    };
    let bad = count(" failed") + count(" errored") + count(" timeout");
    assert!(bad == 0.0, "not every call was answered: {text}");
    // `traffic: 1.00MB (1048576) total, 1.00KB (1024) headers (space savings 90.00%), 1.00MB (1048576) data`
    let data = line("traffic: ").rsplit(", ").next().unwrap();
    let data: f64 = data.split(['(', ')']).nth(1).unwrap().parse().unwrap();
    let succeeded = count(" succeeded");
    // Numbers within an answer get a little shorter, and calls under way at the end have sent a part.
    let least = 0.9 * succeeded * answer_bytes as f64;
    assert!(succeeded > 0.0 && data >= least, "answers are not as long as they should be: {text}");
    succeeded / seconds as f64
}

/// Framed messages, one after the other.
#[derive(Clone)]
pub struct Messages {
    bytes: Bytes,
    /// Where each begins, and at last where all end.
    starts: Arc<[usize]>,
}

impl Messages {
    /// These.
    pub fn new<M: Message>(messages: impl IntoIterator<Item = M>) -> Self {
        let (mut bytes, mut starts) = (Vec::new(), vec![0]);
        for message in messages {
            bytes.extend(framed(&message));
            starts.push(bytes.len());
        }
        Self { bytes: bytes.into(), starts: starts.into() }
    }

    /// The first one.
    pub fn first(&self) -> &[u8] {
        &self.bytes[..self.starts[1]]
    }

    fn len(&self) -> usize {
        self.starts.len() - 1
    }
}

/// What both directions of a stream know.
#[derive(Default)]
struct Flow {
    /// How many more messages may be sent.
    credit: AtomicUsize,
    waker: AtomicWaker,
    is_over: AtomicBool,
}

impl Flow {
    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Sends as much as there is credit for, round and round.
struct Sending {
    flow: Arc<Flow>,
    messages: Messages,
    place: usize,
}

impl Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.flow.waker.register(context.waker());
        if self.flow.is_over.load(Ordering::Acquire) {
            return Poll::Ready(None);
        }
        let credit = self.flow.credit.load(Ordering::Acquire);
        if credit == 0 {
            return Poll::Pending;
        }
        let count = credit.min(self.messages.len() - self.place);
        self.flow.credit.fetch_sub(count, Ordering::AcqRel);
        let (start, end) = (self.place, self.place + count);
        self.place = end % self.messages.len();
        let starts = &self.messages.starts;
        let bytes = self.messages.bytes.slice(starts[start]..starts[end]);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

/// Counts whole messages without reading them.
#[derive(Default)]
struct Counter {
    head: Vec<u8>,
    left: usize,
}

impl Counter {
    fn take(&mut self, mut bytes: &[u8]) -> usize {
        let mut count = 0;
        while !bytes.is_empty() {
            if self.left > 0 {
                let here = self.left.min(bytes.len());
                (self.left, bytes) = (self.left - here, &bytes[here..]);
                count += usize::from(self.left == 0);
                continue;
            }
            let here = (HEAD_BYTES - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..here]);
            bytes = &bytes[here..];
            if let [_, length @ ..] = &self.head[..]
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.left = u32::from_be_bytes(length) as usize;
                assert!(self.left > 0, "an answer is empty");
                self.head.clear();
            }
        }
        count
    }
}

/// One stream until its end.
async fn converse(addr: SocketAddr, messages: Messages, flow: Arc<Flow>, answered: Arc<AtomicU64>) {
    let sending = Sending { flow: Arc::clone(&flow), messages, place: 0 };
    let mut sender = connect(addr).await;
    let response = sender.send_request(request(addr, STREAM, sending)).await.unwrap();
    let (head, mut body) = response.into_parts();
    let (mut counter, mut trailers) = (Counter::default(), None);
    while let Some(frame) = body.frame().await {
        match frame.unwrap().into_data() {
            Ok(data) => {
                let count = counter.take(&data);
                answered.fetch_add(count as u64, Ordering::Relaxed);
                flow.credit.fetch_add(count, Ordering::AcqRel);
                flow.waker.wake();
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    assert_ok(&head.headers, trailers.as_ref());
}

/// Messages answered in a second on `AllowStream`: one stream on each connection, each with so many messages under
/// way. The first second does not count.
pub fn load_stream(addr: SocketAddr, messages: &Messages, in_flight: usize, seconds: u64) -> f64 {
    let flows: Vec<Arc<Flow>> = (0..CONNECTIONS)
        .map(|_| Arc::new(Flow { credit: AtomicUsize::new(in_flight), ..Flow::default() }))
        .collect();
    let answered = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for own in flows.chunks(CONNECTIONS.div_ceil(LOAD_THREADS)) {
            let answered = &answered;
            scope.spawn(move || {
                runtime().block_on(async {
                    let streams: Vec<_> = own
                        .iter()
                        .map(|flow| {
                            let (flow, answered) = (Arc::clone(flow), Arc::clone(answered));
                            tokio::spawn(converse(addr, messages.clone(), flow, answered))
                        })
                        .collect();
                    for stream in streams {
                        stream.await.unwrap();
                    }
                });
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        let (start, before) = (Instant::now(), answered.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_secs(seconds));
        let (taken, after) = (start.elapsed(), answered.load(Ordering::Relaxed));
        flows.iter().for_each(|flow| flow.end());
        (after - before) as f64 / taken.as_secs_f64()
    })
}
