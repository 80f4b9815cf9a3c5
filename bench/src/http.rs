//! Bare servers to compare with, and the load on them and on ours.

use std::convert::Infallible;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};

use crate::process::end_with_this;
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

/// The path that is asked, of ours and of the bare ones.
pub const PATH: &str = "/rate-limit/allow";

/// How many threads a server gets.
pub const SERVER_THREADS: usize = 2;

const BACKLOG: i32 = 1024;

const SCRIPT: &str = include_str!("../wrk/post.lua");
const GET_SCRIPT: &str = include_str!("../wrk/get.lua");

/// How a bare server is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Bare {
    /// axum on one work-stealing runtime.
    AxumStealing,
    /// axum on a runtime and a socket per core.
    AxumPerCore,
    /// hyper alone on a runtime and a socket per core.
    HyperPerCore,
}

/// What a bare server is asked: as much as ours.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    user_id: String,
    tenant_id: String,
    model_id: String,
    endpoint: String,
    method: String,
    client_type: String,
    cost: u64,
}

#[derive(Serialize)]
struct Answered {
    allowed: bool,
    remaining: usize,
}

impl Asked {
    /// Looks at everything, so that nothing of the parsing can be left out.
    fn answer(&self) -> Answered {
        let texts =
            [&self.user_id, &self.tenant_id, &self.model_id, &self.endpoint, &self.client_type];
        let remaining = texts.iter().map(|text| text.len()).sum::<usize>();
        Answered { allowed: self.method == "POST", remaining: remaining + self.cost as usize }
    }
}

fn listener(addr: SocketAddr) -> TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&addr.into()).unwrap();
    socket.listen(BACKLOG).unwrap();
    socket.into()
}

/// Serves until it is killed.
pub fn serve_bare(kind: Bare) {
    let first = listener(SocketAddr::from(([127, 0, 0, 1], 0)));
    let addr = first.local_addr().unwrap();
    println!("listening http={addr}");
    std::io::stdout().flush().unwrap();
    if kind == Bare::AxumStealing {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(SERVER_THREADS).enable_all().build().unwrap();
        runtime.block_on(async { tokio::spawn(serve_axum(first)).await.unwrap() });
        return;
    }
    let mut listeners = vec![first];
    listeners.extend((1..SERVER_THREADS).map(|_| listener(addr)));
    std::thread::scope(|scope| {
        for listener in listeners {
            scope.spawn(move || {
                let mut builder = tokio::runtime::Builder::new_current_thread();
                let runtime = builder.enable_all().build().unwrap();
                match kind {
                    Bare::HyperPerCore => runtime.block_on(serve_hyper(listener)),
                    Bare::AxumPerCore | Bare::AxumStealing => {
                        runtime.block_on(serve_axum(listener));
                    }
                }
            });
        }
    });
}

async fn serve_axum(listener: TcpListener) {
    use axum::serve::ListenerExt;
    let router =
        Router::new().route(PATH, post(async |Json(asked): Json<Asked>| Json(asked.answer())));
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
    axum::serve(listener, router).await.unwrap();
}

async fn serve_hyper(listener: TcpListener) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.pipeline_flush(true);
        let connection = builder.serve_connection(TokioIo::new(stream), service_fn(answer_bare));
        tokio::spawn(async move {
            let _ = connection.await;
        });
    }
}

async fn answer_bare(
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let status = |status| {
        let mut response = hyper::Response::new(Full::default());
        *response.status_mut() = status;
        Ok(response)
    };
    if request.uri().path() != PATH {
        return status(hyper::StatusCode::NOT_FOUND);
    }
    let Ok(body) = request.into_body().collect().await else {
        return status(hyper::StatusCode::BAD_REQUEST);
    };
    let Ok(asked) = serde_json::from_slice::<Asked>(&body.to_bytes()) else {
        return status(hyper::StatusCode::BAD_REQUEST);
    };
    let json = serde_json::to_vec(&asked.answer()).unwrap();
    let response = hyper::Response::builder().header("content-type", "application/json");
    Ok(response.body(Full::new(json.into())).unwrap())
}

/// How a load went.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Requests answered in all.
    pub requests: f64,
    /// Requests answered in a second.
    pub per_second: f64,
    /// Half of the answers took no longer, in microseconds.
    pub p50_micros: f64,
    /// 99 of 100 answers took no longer, in microseconds.
    pub p99_micros: f64,
}

/// Puts load on a server with wrk, which runs `script_dir/post.lua` over `script_dir/bodies`.
pub fn load(addr: SocketAddr, connections: usize, seconds: u64, script_dir: &Path) -> Load {
    let threads = connections.min(SERVER_THREADS);
    let mut wrk = Command::new("wrk");
    end_with_this(&mut wrk);
    let output = wrk
        .args(["-t", &threads.to_string(), "-c", &connections.to_string()])
        .args(["-d", &format!("{seconds}s"), "-s"])
        .arg(script_dir.join("post.lua"))
        .arg(format!("http://{addr}{PATH}"))
        .arg("--")
        .arg(script_dir.join("bodies"))
        .output()
        .expect("wrk must be installed");
    read(&output)
}

/// Puts load on a server with wrk that asks for `/`.
pub fn load_get(addr: SocketAddr, connections: usize, seconds: u64, script_dir: &Path) -> Load {
    let script = script_dir.join("get.lua");
    std::fs::write(&script, GET_SCRIPT).unwrap();
    let threads = connections.min(SERVER_THREADS);
    let mut wrk = Command::new("wrk");
    end_with_this(&mut wrk);
    let output = wrk
        .args(["-t", &threads.to_string(), "-c", &connections.to_string()])
        .args(["-d", &format!("{seconds}s"), "-s"])
        .arg(script)
        .arg(format!("http://{addr}/"))
        .output()
        .expect("wrk must be installed");
    read(&output)
}

/// What our scripts make wrk say at its end.
fn read(output: &Output) -> Load {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("result "));
    let line = line.unwrap_or_else(|| panic!("wrk said {output:?}"));
    let field = |name: &str| -> f64 {
        let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap().parse().unwrap()
    };
    assert!(field("errors") == 0.0, "not every request was answered: {line}");
    Load {
        requests: field("requests"),
        per_second: field("requests") / (field("micros") / 1e6),
        p50_micros: field("p50"),
        p99_micros: field("p99"),
    }
}

/// Writes the script and the bodies it sends.
pub fn prepare_load(dir: &Path, bodies: impl Iterator<Item = String>) {
    std::fs::write(dir.join("post.lua"), SCRIPT).unwrap();
    let bodies: Vec<String> = bodies.collect();
    std::fs::write(dir.join("bodies"), bodies.join("\n")).unwrap();
}
