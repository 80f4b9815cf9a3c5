//! What the tests stand on: upstreams, a gateway in front of them, clients, and a decider that says
//! what a test wants.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tollgate_gateway::options::{PoolOptions, TargetOptions};
use tollgate_gateway::{ConnectionInfo, Gateway, GatewayOptions, WatchedStream, Worker};
use tollgate_tower::{Decide, EdgeRequest, Identifier, Pass, Ruling};

/// How long anything in a test may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) type AnyBody = UnsyncBoxBody<Bytes, std::io::Error>;

pub(crate) fn text(body: impl Into<Bytes>) -> AnyBody {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Says what a test wants, and counts how often it was asked.
#[derive(Clone)]
pub(crate) struct Decider {
    rule: Arc<dyn Fn(&EdgeRequest) -> Ruling + Send + Sync>,
    pub(crate) asked: Arc<AtomicUsize>,
}

impl Decider {
    pub(crate) fn new(rule: impl Fn(&EdgeRequest) -> Ruling + Send + Sync + 'static) -> Self {
        Self { rule: Arc::new(rule), asked: Arc::default() }
    }

    pub(crate) fn pass() -> Self {
        Self::new(|_| Ruling::Pass(Pass { headers: decision_headers().into(), ..Pass::default() }))
    }

    pub(crate) fn count(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

pub(crate) fn decision_headers() -> HeaderMap {
    let name = HeaderName::from_static("x-ratelimit-limit");
    HeaderMap::from_iter([(name, HeaderValue::from_static("100"))])
}

impl Decide for Decider {
    async fn decide(&self, asked: &EdgeRequest) -> Ruling {
        self.asked.fetch_add(1, Ordering::SeqCst);
        (self.rule)(asked)
    }
}

/// An HTTP server, in HTTP/1.1 and, for who begins with it, HTTP/2.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    served: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Upstream {
    pub(crate) async fn start<F, R>(serve: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
        R: Future<Output = Response<AnyBody>> + Send + 'static,
    {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), serve)
    }

    pub(crate) fn start_on<F, R>(listener: TcpListener, serve: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
        R: Future<Output = Response<AnyBody>> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        let serve = Arc::new(serve);
        let counter = Arc::clone(&served);
        let task = tokio::spawn(async move {
            // Dropped with the task, so that an upstream that is stopped is stopped.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let (serve, counter) = (Arc::clone(&serve), Arc::clone(&counter));
                connections.spawn(async move {
                    let service = service_fn(move |request| {
                        counter.fetch_add(1, Ordering::SeqCst);
                        let answer = serve(request);
                        async move { Ok::<_, Infallible>(answer.await) }
                    });
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ =
                        builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, served, task }
    }

    /// Answers with a name.
    pub(crate) async fn named(name: &'static str) -> Self {
        Self::start(move |_| async move { Response::new(text(name)) }).await
    }

    /// Answers with the request's line, headers and body as text.
    pub(crate) async fn echo() -> Self {
        Self::start(|request| async move {
            let (parts, body) = request.into_parts();
            let mut answer = format!("{} {} {:?}\n", parts.method, parts.uri, parts.version);
            for (name, value) in &parts.headers {
                let _ = writeln!(answer, "{name}: {}", value.to_str().unwrap());
            }
            let body = body.collect().await.unwrap().to_bytes();
            let _ = write!(answer, "\n{}", String::from_utf8_lossy(&body));
            Response::new(text(answer))
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }

    pub(crate) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A server that does with each connection what a test says. Gives its URL.
pub(crate) async fn raw_upstream<F, R>(serve: F) -> String
where
    F: Fn(TcpStream, usize) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut count = 0;
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, count));
            count += 1;
        }
    });
    format!("http://{address}")
}

/// Reads a request's head from a connection.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { break };
        head.push(byte);
    }
    String::from_utf8(head).unwrap()
}

/// A port where nothing listens.
pub(crate) async fn dead_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

pub(crate) fn pool(urls: &[&str]) -> PoolOptions {
    let targets = urls.iter().map(|url| TargetOptions::new(url)).collect();
    PoolOptions { targets, ..PoolOptions::default() }
}

/// One route to one pool.
pub(crate) fn options(urls: &[&str]) -> GatewayOptions {
    let mut options = GatewayOptions::to_upstream("http://placeholder");
    options.pools.insert("default".to_owned(), pool(urls));
    options
}

/// A gateway that listens.
pub(crate) struct Front<D: Decide = Decider> {
    pub(crate) address: SocketAddr,
    pub(crate) gateway: Arc<Gateway<D>>,
    pub(crate) worker: Arc<Worker<D>>,
}

impl Front {
    pub(crate) async fn start(options: GatewayOptions) -> Self {
        Self::with(options, Decider::pass()).await
    }

    pub(crate) async fn with(options: GatewayOptions, decider: Decider) -> Self {
        Self::of(Gateway::new(options, decider, Arc::new(Identifier::default())).unwrap()).await
    }
}

impl<D: Decide> Front<D> {
    pub(crate) async fn of(gateway: Gateway<D>) -> Self {
        let gateway = Arc::new(gateway);
        let worker = gateway.worker();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Arc::clone(&worker);
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let mut info = ConnectionInfo::new(peer, address);
                let (stream, watch) = WatchedStream::new(stream);
                info.framing = Some(watch);
                let (worker, info) = (Arc::clone(&serving), Arc::new(info));
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let (worker, info) = (Arc::clone(&worker), Arc::clone(&info));
                        async move { Ok::<_, Infallible>(worker.answer(request, &info).await) }
                    });
                    let mut builder = auto::Builder::new(TokioExecutor::new());
                    builder.http1().max_buf_size(64 * 1024);
                    let _ =
                        builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, gateway, worker }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends bytes and reads until the other side closes. They should ask for that.
    pub(crate) async fn raw(&self, bytes: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer));
        let _ = read.await.expect("the connection stays open");
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(self.url(path)).body(text("")).unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<AnyBody>) -> Answer {
        Answer::read(client().request(request).await.unwrap()).await
    }

    /// How the targets of the one pool are doing.
    pub(crate) fn targets(&self) -> Vec<tollgate_gateway::TargetStatus> {
        self.gateway.pools_status().remove(0).targets
    }
}

pub(crate) fn client() -> Client<HttpConnector, AnyBody> {
    Client::builder(TokioExecutor::new()).build_http()
}

pub(crate) fn http2_client() -> Client<HttpConnector, AnyBody> {
    Client::builder(TokioExecutor::new()).http2_only(true).build_http()
}

/// An answer, read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn read(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Self { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        body["error"]["code"].as_str().unwrap().to_owned()
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(tokio::time::Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
