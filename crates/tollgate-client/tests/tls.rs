//! TLS: who is trusted, and that both protocols come through.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;
use tollgate_client::{Check, Client, ClientError, ClientOptions, ServerTrust};

const DECISION: &str = r#"{"allowed": true, "reason": "WITHIN_LIMITS"}"#;

/// Where it listens, and whom to trust for it.
async fn start() -> (String, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not trust the certificate closes the connection here.
                let Ok(stream) = acceptor.accept(socket).await else { return };
                let http = auto::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection(TokioIo::new(stream), service_fn(respond)).await;
            });
        }
    });
    (url, made.cert.pem().into_bytes())
}

/// JSON to those who call over HTTP; to gRPC, that there is no such service.
async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let kind = request.headers().get("content-type").cloned();
    let is_grpc = kind.is_some_and(|kind| kind == "application/grpc");
    let response = Response::builder();
    let response = if is_grpc {
        response.header("content-type", "application/grpc").header("grpc-status", "12")
    } else {
        response
    };
    let body = if is_grpc { "" } else { DECISION };
    Ok(response.body(Full::from(body)).unwrap())
}

#[tokio::test]
async fn only_trusted_certificates_are_spoken_to() {
    let (url, trusted) = start().await;
    let (_, stranger) = start().await;
    let check = Check::new().user_id("ann");
    let with = |ca: &[u8]| ClientOptions {
        trust: ServerTrust::Authorities(ca.to_vec()),
        ..Default::default()
    };
    let client = Client::http_with(&url, &with(&trusted)).unwrap();
    assert!(client.allow(&check).await.unwrap().allowed);
    // The answer is no decision, but it came over HTTP/2 and TLS.
    let client = Client::grpc_with(&url, &with(&trusted)).unwrap();
    let error = client.allow(&check).await.unwrap_err();
    assert!(matches!(&error, ClientError::Unreadable(text) if text.contains("Unimplemented")));
    for client in [
        Client::http_with(&url, &with(&stranger)).unwrap(),
        Client::grpc_with(&url, &with(&stranger)).unwrap(),
    ] {
        let error = client.allow(&check).await.unwrap_err();
        assert!(error.is_outage(), "{error:?}");
    }
}
