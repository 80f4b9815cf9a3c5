//! A whole connection to the gateway: bytes of a client in, a real upstream behind.
//!
//! No request reaches the upstream without a decision, however its bytes are arranged; one that did
//! would be request smuggling. The upstream receives the client's address from the gateway only,
//! never from the client.
#![no_main]

use std::cell::OnceCell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tollgate_fuzz::runtime;
use tollgate_gateway::{ConnectionInfo, Gateway, GatewayOptions, WatchedStream, Worker};
use tollgate_tower::{EdgeRequest, Decide, Identifier, Pass, Ruling};

/// How long one connection may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// Room for what is under way in either direction.
const PIPE_BYTES: usize = 64 * 1024;

/// A client that nobody on the way could have made up.
const PEER: &str = "198.51.100.77:4711";

#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Decide for Counting {
    async fn decide(&self, asked: &EdgeRequest) -> Ruling {
        assert_eq!(asked.identity.ip.as_deref(), Some("198.51.100.77"));
        self.0.fetch_add(1, Ordering::SeqCst);
        Ruling::Pass(Pass::default())
    }
}

struct Ground {
    runtime: Runtime,
    worker: Arc<Worker<Counting>>,
    decided: Counting,
    arrived: Arc<AtomicUsize>,
}

thread_local!(static GROUND: OnceCell<Ground> = const { OnceCell::new() });

async fn serve_upstream(listener: TcpListener, arrived: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        let arrived = Arc::clone(&arrived);
        let service = service_fn(move |request: Request<Incoming>| {
            arrived.fetch_add(1, Ordering::SeqCst);
            let named = request.headers().get_all("x-forwarded-for").iter().collect::<Vec<_>>();
            assert_eq!(named, ["198.51.100.77"]);
            assert!(request.headers().get_all("host").iter().count() <= 1);
            async move {
                let _ = request.into_body().collect().await;
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
            }
        });
        tokio::spawn(async move {
            let builder = hyper::server::conn::http1::Builder::new();
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn make_ground() -> Ground {
    let runtime = runtime();
    let (arrived, decided) = (Arc::<AtomicUsize>::default(), Counting::default());
    let worker = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_upstream(listener, Arc::clone(&arrived)));
        let options = GatewayOptions::to_upstream(&format!("http://{address}"));
        let identifier = Arc::new(Identifier::default());
        Arc::new(Gateway::new(options, decided.clone(), identifier).unwrap()).worker()
    });
    Ground { runtime, worker, decided, arrived }
}

async fn talk(worker: Arc<Worker<Counting>>, bytes: &[u8]) {
    let (mut client, server) = tokio::io::duplex(PIPE_BYTES);
    let local: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let mut info = ConnectionInfo::new(PEER.parse().unwrap(), local);
    let (server, watch) = WatchedStream::new(server);
    info.framing = Some(watch);
    let info = Arc::new(info);
    let service = service_fn(move |request| {
        let (worker, info) = (Arc::clone(&worker), Arc::clone(&info));
        async move { Ok::<_, Infallible>(worker.answer(request, &info).await) }
    });
    let serving = tokio::spawn(async move {
        let builder = auto::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection_with_upgrades(TokioIo::new(server), service).await;
    });
    let _ = client.write_all(bytes).await;
    // Like a client that has said all it had to say.
    let _ = client.shutdown().await;
    let mut answers = Vec::new();
    let _ = client.read_to_end(&mut answers).await;
    serving.await.expect("the gateway does not panic");
}

fuzz_target!(|input: &[u8]| {
    // A client that sends more fills the pipe before anybody reads.
    let Some(input) = Some(input).filter(|input| input.len() < PIPE_BYTES) else { return };
    GROUND.with(|ground| {
        let Ground { runtime, worker, decided, arrived } = ground.get_or_init(make_ground);
        runtime.block_on(async {
            let talking = tokio::time::timeout(PATIENCE, talk(Arc::clone(worker), input));
            talking.await.expect("the connection comes to an end");
        });
        let (decided, arrived) = (decided.0.load(Ordering::SeqCst), arrived.load(Ordering::SeqCst));
        assert!(arrived <= decided, "{arrived} requests arrived, {decided} were decided");
    });
});
