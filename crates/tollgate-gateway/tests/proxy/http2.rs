//! HTTP/2 on either side, and TLS towards upstreams.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tollgate_gateway::options::{Http2Mode, TlsOptions};

use crate::ground::{Answer, Front, Upstream, http2_client, options, read_head, text, until};

#[tokio::test]
async fn a_client_may_speak_http2() {
    let upstream = Upstream::echo().await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let client = http2_client();
    for number in 0..5 {
        let request = Request::post(front.url(&format!("/{number}?q")))
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(text("body"))
            .unwrap();
        let response = client.request(request).await.unwrap();
        assert_eq!(response.version(), Version::HTTP_2);
        let answer = Answer::read(response).await;
        assert!(
            answer.body.starts_with(&format!("POST /{number}?q HTTP/1.1\n")),
            "{}",
            answer.body
        );
        assert!(answer.body.contains(&format!("\nhost: {}\n", front.address)), "{}", answer.body);
        assert!(answer.body.contains("\ncookie: a=1; b=2\n"), "{}", answer.body);
        assert!(answer.body.ends_with("\nbody"), "{}", answer.body);
        assert_eq!(answer.headers["x-ratelimit-limit"], "100");
    }
}

#[tokio::test]
async fn an_upstream_may_speak_http2() {
    let upstream = Upstream::echo().await;
    let mut options = options(&[&upstream.url()]);
    options.pools.get_mut("default").unwrap().http2 = Http2Mode::PriorKnowledge;
    let front = Front::start(options).await;
    let answers = (0..50).map(|number| {
        let request = Request::put(front.url(&format!("/{number}")))
            .header("host", "api.example.com")
            .header("connection", "x-hop")
            .header("x-hop", "1")
            .body(text("body"))
            .unwrap();
        front.send(request)
    });
    for (number, answer) in futures_util::future::join_all(answers).await.into_iter().enumerate() {
        let line = format!("PUT http://api.example.com/{number} HTTP/2.0\n");
        assert!(answer.body.starts_with(&line), "{}", answer.body);
        assert!(
            !answer.body.contains("x-hop") && answer.body.ends_with("\nbody"),
            "{}",
            answer.body
        );
    }
    assert_eq!(upstream.served(), 50);
}

#[tokio::test]
async fn grpc_passes_trailers_and_all() {
    let upstream = Upstream::start(|request| async move {
        assert_eq!(request.headers()["te"], "trailers");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let trailers =
            HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
        let body = text(body).with_trailers(async move { Some(Ok(trailers)) }).boxed_unsync();
        Response::builder().header("content-type", "application/grpc").body(body).unwrap()
    })
    .await;
    let mut options = options(&[&upstream.url()]);
    options.pools.get_mut("default").unwrap().http2 = Http2Mode::PriorKnowledge;
    let front = Front::start(options).await;
    let request = Request::post(front.url("/package.Service/Method"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(text("\0\0\0\0\u{2}hi"))
        .unwrap();
    let response = http2_client().request(request).await.unwrap();
    assert_eq!(response.headers()["x-ratelimit-limit"], "100");
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), "\0\0\0\0\u{2}hi");
}

#[tokio::test]
async fn a_lost_http2_connection_is_made_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = Upstream::start_on(listener, |_| async { Response::new(text("one")) });
    let mut options = options(&[&upstream.url()]);
    options.pools.get_mut("default").unwrap().http2 = Http2Mode::PriorKnowledge;
    let front = Front::start(options).await;
    assert_eq!(front.get("/").await.body, "one");
    upstream.stop().await;
    let listener = TcpListener::bind(address).await.unwrap();
    let _second = Upstream::start_on(listener, |_| async { Response::new(text("two")) });
    assert_eq!(front.get("/").await.body, "two");
}

async fn echo(upgraded: hyper::upgrade::OnUpgrade) {
    let (mut reading, mut writing) = tokio::io::split(TokioIo::new(upgraded.await.unwrap()));
    let _ = tokio::io::copy(&mut reading, &mut writing).await;
}

/// An upstream over TLS that answers with its protocol and whether the client showed a certificate.
async fn tls_upstream(protocols: &[&[u8]], wants_certificate: bool) -> (String, TlsOptions) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let issue = |names: &[&str], usage| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = CertificateParams::new(names).unwrap();
        parameters.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &authority).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    let (certificate, key) = issue(&["localhost"], ExtendedKeyUsagePurpose::ServerAuth);
    let (client_certificate, client_key) = issue(&["gateway"], ExtendedKeyUsagePurpose::ClientAuth);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if wants_certificate {
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        builder.with_no_client_auth()
    };
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let shown = stream.get_ref().1.peer_certificates().is_some();
                let service =
                    service_fn(move |mut request: Request<hyper::body::Incoming>| async move {
                        let body = format!("{:?} {shown}", request.version());
                        let mut response = Response::new(Full::new(Bytes::from(body)));
                        if request.headers().contains_key("upgrade") {
                            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                            *response.body_mut() = Full::default();
                            tokio::spawn(echo(hyper::upgrade::on(&mut request)));
                        }
                        Ok::<_, Infallible>(response)
                    });
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            });
        }
    });
    let tls = TlsOptions {
        ca_pem: Some(authority.pem().into_bytes()),
        client_certificate_pem: wants_certificate.then(|| client_certificate.into_bytes()),
        client_key_pem: wants_certificate.then(|| client_key.into_bytes()),
    };
    (format!("https://localhost:{port}"), tls)
}

#[tokio::test]
async fn upstreams_over_tls_are_spoken_to_as_they_like_it() {
    let both: &[&[u8]] = &[b"h2", b"http/1.1"];
    let old: &[&[u8]] = &[b"http/1.1"];
    for (protocols, mode, expected) in [
        (both, Http2Mode::Auto, "HTTP/2.0 false"),
        (old, Http2Mode::Auto, "HTTP/1.1 false"),
        (both, Http2Mode::Never, "HTTP/1.1 false"),
        (both, Http2Mode::PriorKnowledge, "HTTP/2.0 false"),
    ] {
        let (url, tls) = tls_upstream(protocols, false).await;
        let mut options = options(&[&url]);
        let pool = options.pools.get_mut("default").unwrap();
        (pool.tls, pool.http2) = (tls, mode);
        let front = Front::start(options).await;
        for _ in 0..3 {
            assert_eq!(front.get("/").await.body, expected, "{mode:?}");
        }
    }
}

#[tokio::test]
async fn certificates_are_checked_and_shown() {
    let (url, tls) = tls_upstream(&[b"http/1.1"], true).await;
    let mut with = options(&[&url]);
    with.pools.get_mut("default").unwrap().tls = tls.clone();
    assert_eq!(Front::start(with).await.get("/").await.body, "HTTP/1.1 true");
    // Not who it says it is: the certificate is for another name.
    let mut misnamed = options(&[&url.replace("localhost", "127.0.0.1")]);
    misnamed.pools.get_mut("default").unwrap().tls = tls;
    let answer = Front::start(misnamed).await.get("/").await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "NO_UPSTREAM"));
    // Nobody whom we know has signed it.
    let (_, strangers) = tls_upstream(&[b"http/1.1"], true).await;
    let mut unknown = options(&[&url]);
    unknown.pools.get_mut("default").unwrap().tls = strangers;
    assert_eq!(Front::start(unknown).await.get("/").await.status, 503);
}

const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: echo\r\n\r\n";

#[tokio::test]
async fn upgrades_pass_over_tls_also_where_http2_is_preferred() {
    let (url, tls) = tls_upstream(&[b"h2", b"http/1.1"], false).await;
    let mut options = options(&[&url]);
    options.pools.get_mut("default").unwrap().tls = tls;
    let front = Front::start(options).await;
    assert_eq!(front.get("/").await.body, "HTTP/2.0 false");
    let mut stream = front.connect().await;
    stream.write_all(UPGRADE.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream.write_all(b"hello").await.unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"hello");
}

#[tokio::test]
async fn an_upgrade_to_an_upstream_that_has_none_goes_as_a_plain_request() {
    let upstream = Upstream::echo().await;
    let mut options = options(&[&upstream.url()]);
    options.pools.get_mut("default").unwrap().http2 = Http2Mode::PriorKnowledge;
    let front = Front::start(options).await;
    let answer = front.raw(UPGRADE).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("HTTP/2.0") && !answer.contains("upgrade"), "{answer}");
}

#[tokio::test]
async fn streams_that_are_opened_and_reset_leave_nothing_behind() {
    let upstream = Upstream::start(|_| async {
        // Never answers.
        std::future::pending::<()>().await;
        Response::new(text(""))
    })
    .await;
    let front = Front::start(options(&[&upstream.url()])).await;
    let client = http2_client();
    for _ in 0..20 {
        let requests: Vec<_> = (0..10)
            .map(|_| {
                let request = Request::get(front.url("/")).body(text("")).unwrap();
                tokio::spawn(client.request(request))
            })
            .collect();
        tokio::task::yield_now().await;
        requests.iter().for_each(tokio::task::JoinHandle::abort);
    }
    let last = Request::get(front.url("/")).body(text("")).unwrap();
    let last = tokio::spawn(client.request(last));
    until("the last request", || front.targets()[0].active == 1).await;
    last.abort();
    until("the end", || front.targets()[0].active == 0).await;
    assert_eq!(front.targets()[0].failures, 0);
}
