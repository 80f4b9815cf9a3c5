//! How even the gateway's `throttle` lets requests go, by the clock on the wall of the upstream.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate_bench::record::compare;

use super::edge_gateway::gateway;

const REQUESTS: usize = 200;
const PER_SECOND: usize = 50;

fn rules() -> String {
    format!(
        "default: false\nrules:\n- {{rule_id: paced, scope: IP, identifier_type: ip, algorithm: leaky_bucket, \
         limit: {PER_SECOND}, window: 1s, burst: {REQUESTS}, action: throttle, max_delay_ms: 10000}}\n"
    )
}

type Arrivals = Arc<Mutex<Vec<Instant>>>;

async fn serve(listener: TcpListener, arrivals: Arrivals) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let arrivals = Arc::clone(&arrivals);
        let service = service_fn(move |_: hyper::Request<Incoming>| {
            arrivals.lock().unwrap().push(Instant::now());
            async {
                Ok::<_, Infallible>(hyper::Response::new(Full::new(Bytes::from_static(b"ok"))))
            }
        });
        tokio::spawn(async move {
            let builder = hyper::server::conn::http1::Builder::new();
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// An upstream on a thread of its own, which ends with the process.
fn start_upstream(arrivals: Arrivals) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        runtime().block_on(async {
            serve(TcpListener::from_std(listener).unwrap(), arrivals).await;
        });
    });
    addr
}

async fn ask(mut stream: TcpStream) {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

pub fn run(binary: &Path) {
    println!("\nThrottling: {REQUESTS} requests at once into a leaky bucket of {PER_SECOND}/s");
    let dir = tempfile::tempdir().unwrap();
    let arrivals = Arrivals::default();
    let upstream = start_upstream(Arc::clone(&arrivals));
    let server = gateway(binary, dir.path(), upstream, &rules());
    let addr = server.at("gateway");
    runtime().block_on(async {
        // Connected before the first one asks, so that all ask at once.
        let mut streams = Vec::new();
        for _ in 0..REQUESTS {
            let stream = TcpStream::connect(addr).await.unwrap();
            stream.set_nodelay(true).unwrap();
            streams.push(stream);
        }
        let asked: Vec<_> = streams.into_iter().map(|stream| tokio::spawn(ask(stream))).collect();
        for one in asked {
            one.await.unwrap();
        }
    });
    let mut arrivals = std::mem::take(&mut *arrivals.lock().unwrap());
    arrivals.sort_unstable();
    assert_eq!(arrivals.len(), REQUESTS);
    let gap = Duration::from_secs(1) / PER_SECOND as u32;
    let errors: Vec<Duration> =
        arrivals.windows(2).map(|pair| (pair[1] - pair[0]).abs_diff(gap)).collect();
    let mean = errors.iter().sum::<Duration>() / errors.len() as u32;
    let most = errors.iter().max().unwrap();
    let whole = arrivals[REQUESTS - 1] - arrivals[0];
    let wanted = gap * (REQUESTS as u32 - 1);
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let figure = format!(
        "error of the gaps of {:.0} ms: {:.2} ms in the mean, {:.2} at most; all of them in {:.0} ms where {:.0} are right",
        millis(gap),
        millis(mean),
        millis(*most),
        millis(whole),
        millis(wanted)
    );
    compare("", "throttle: 200 requests at once through the gateway at 50/s", &figure);
}
