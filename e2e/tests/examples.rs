//! The programs beside the layer, as they are built and run.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::TokioExecutor;
use tollgate_e2e::Client;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A running example; killed when dropped.
struct Example {
    child: Child,
    addr: SocketAddr,
}

impl Example {
    fn start(name: &str) -> Self {
        let path = tollgate_e2e::server::binary().with_file_name("examples").join(name);
        let mut child = Command::new(&path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; `make test` builds it", path.display()));
        let mut line = String::new();
        let out = child.stdout.take().expect("standard output");
        BufReader::new(out).read_line(&mut line).expect("the first line");
        let addr = line.trim().rsplit('=').next().and_then(|addr| addr.parse().ok());
        Self { child, addr: addr.unwrap_or_else(|| panic!("{line:?}")) }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn axum() {
    let example = Example::start("axum");
    let mut client = Client::connect(example.addr).expect("a connection");
    for remaining in ["2", "1", "0"] {
        let answer = client.get("/");
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello\n"));
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining));
    }
    assert_eq!(client.get("/").status, 429);
}

#[test]
fn hyper() {
    let example = Example::start("hyper");
    let mut client = Client::connect(example.addr).expect("a connection");
    let mut call =
        |path: &str, key: &str| client.request("GET", path, &[("x-api-key", key)], b"").status;
    assert_eq!([call("/report", "demo"), call("/report", "demo")], [200, 200], "5 of 10 each");
    assert_eq!(call("/", "demo"), 429);
    assert_eq!(call("/", "guessed"), 401);
}

#[tokio::test]
async fn tonic() {
    let example = Example::start("tonic");
    let http2 = HyperClient::builder(TokioExecutor::new()).http2_only(true).build_http();
    let origin = format!("http://{}", example.addr).parse().expect("a URL");
    let mut client = HealthClient::with_origin(http2, origin);
    for _ in 0..3 {
        let asked = HealthCheckRequest { service: String::new() };
        assert_eq!(client.check(asked).await.expect("an answer").into_inner().status, 1);
    }
    let refused = client.check(HealthCheckRequest { service: String::new() }).await;
    let refused = refused.expect_err("the fourth is refused");
    assert_eq!(refused.code(), ::tonic::Code::ResourceExhausted);
    assert!(refused.message().contains("health-checks"), "{}", refused.message());
}
