//! A service behind the gateway: a real HTTP server that remembers what reached it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct Arrived {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub version: String,
    pub body: Vec<u8>,
}

impl Arrived {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

#[derive(Default)]
struct Seen {
    arrived: Mutex<Vec<Arrived>>,
    status: AtomicU16,
    go_on: Notify,
}

/// A running service; stopped when dropped.
pub struct Upstream {
    addr: SocketAddr,
    seen: Arc<Seen>,
    runtime: Option<tokio::runtime::Runtime>,
}

type Body = BoxBody<Bytes, hyper::Error>;

impl Upstream {
    /// On a free port. `/echo` sends the body back as it comes, `/events` sends one event, and the next
    /// on [`Upstream::go_on`]; `/ws` becomes an echo of bytes; everything else is answered with
    /// its path.
    pub fn start() -> Self {
        Self::on("127.0.0.1:0".parse().expect("an address"))
    }

    /// On this address.
    pub fn on(addr: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind(addr)).expect("a listener");
        let addr = listener.local_addr().expect("an address");
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let answer = service_fn(move |request| answer(Arc::clone(&shared), request));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let stream = TokioIo::new(stream);
                    let _ = builder.serve_connection_with_upgrades(stream, answer).await;
                });
            }
        });
        Self { addr, seen, runtime: Some(runtime) }
    }

    /// Where it is.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// What arrived so far.
    pub fn arrived(&self) -> Vec<Arrived> {
        self.seen.arrived.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on answers this status.
    pub fn answer_with(&self, status: u16) {
        self.seen.status.store(status, Ordering::Relaxed);
    }

    /// Lets `/events` send what is left.
    pub fn go_on(&self) {
        self.seen.go_on.notify_one();
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            crate::end(runtime);
        }
    }
}

/// A port that refuses connections and that no other process can get meanwhile: it is bound, and nobody
/// listens.
pub struct ClosedPort(tokio::net::TcpSocket);

impl ClosedPort {
    pub fn new() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        Self(socket)
    }

    /// Where nobody is.
    pub fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().expect("an address"))
    }
}

impl Default for ClosedPort {
    fn default() -> Self {
        Self::new()
    }
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed()
}

async fn answer(
    seen: Arc<Seen>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let mut arrived = Arrived {
        method: request.method().to_string(),
        path: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers: request
            .headers()
            .iter()
            .map(|(name, value)| {
                (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
            })
            .collect(),
        version: format!("{:?}", request.version()),
        body: Vec::new(),
    };
    let note = |arrived: Arrived| {
        seen.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(arrived);
    };
    match path.as_str() {
        "/echo" => {
            note(arrived);
            Ok(Response::new(request.into_body().boxed()))
        }
        "/events" => {
            note(arrived);
            let (sender, mut receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
            let shared = Arc::clone(&seen);
            tokio::spawn(async move {
                let _ = sender.send(Bytes::from_static(b"data: first\n\n")).await;
                shared.go_on.notified().await;
                let _ = sender.send(Bytes::from_static(b"data: last\n\n")).await;
            });
            let stream = futures_util::stream::poll_fn(move |context| {
                receiver.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
            });
            let mut response = Response::new(StreamBody::new(stream).boxed());
            let kind = "text/event-stream".parse().expect("a header");
            response.headers_mut().insert("content-type", kind);
            Ok(response)
        }
        "/ws" => {
            note(arrived);
            Ok(upgrade(request))
        }
        _ => {
            arrived.body = request.into_body().collect().await?.to_bytes().to_vec();
            note(arrived);
            let mut response = Response::new(full(format!("hello from {path}\n")));
            if let Ok(status) = StatusCode::from_u16(seen.status.load(Ordering::Relaxed)) {
                *response.status_mut() = status;
            }
            Ok(response)
        }
    }
}

/// A WebSocket handshake, and then an echo of frames as they are but for their mask.
fn upgrade(mut request: Request<Incoming>) -> Response<Body> {
    let key = request.headers().get("sec-websocket-key").cloned();
    let Some(key) = key else {
        let mut response = Response::new(full("an upgrade is needed"));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    };
    let accept = tungstenite::handshake::derive_accept_key(key.as_bytes());
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let mut io = TokioIo::new(upgraded);
        let mut buffer = vec![0; 64 << 10];
        // Small frames arrive whole: header, mask, payload.
        while let Ok(length @ 1..) = io.read(&mut buffer).await {
            let Some(frame) = unmasked(&buffer[..length]) else { return };
            if io.write_all(&frame).await.is_err() {
                return;
            }
        }
    });
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert("connection", "upgrade".parse().expect("a header"));
    headers.insert("upgrade", "websocket".parse().expect("a header"));
    headers.insert("sec-websocket-accept", accept.parse().expect("a header"));
    response
}

fn unmasked(frame: &[u8]) -> Option<Vec<u8>> {
    let length = usize::from(frame.get(1)? & 0x7f);
    let (mask, payload) = (frame.get(2..6)?, frame.get(6..6 + length)?);
    let mut answer = vec![frame[0], length as u8];
    answer.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    (length < 126).then_some(answer)
}
