//! Keys from a URL or a file, and how they change under running traffic.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

mod tokens;

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jsonwebtoken::Algorithm;
use serde_json::json;
use tokens::{Issuer, ask, bearer, claims, identifier, jwks, options};
use tokio::sync::oneshot;
use tollgate_tower::identity::{Identifier, JwtOptions, KeySource};

/// An issuer's server with answers set by the test.
#[derive(Default)]
struct Publisher {
    answer: Mutex<(u16, Vec<u8>, &'static str)>,
    asked: AtomicUsize,
}

impl Publisher {
    async fn start(document: Vec<u8>) -> (Arc<Self>, String) {
        let publisher = Arc::new(Self::default());
        publisher.publish(200, document);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks.json", listener.local_addr().unwrap());
        let own = Arc::clone(&publisher);
        tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { return };
                let own = Arc::clone(&own);
                let service = service_fn(move |_: Request<Incoming>| {
                    let response = own.respond();
                    async move { Ok::<_, Infallible>(response) }
                });
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(socket), service));
            }
        });
        (publisher, url)
    }

    fn publish(&self, status: u16, body: Vec<u8>) {
        *self.answer.lock().unwrap() = (status, body, "no-transform");
    }

    fn respond(&self) -> Response<Full<Bytes>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (status, body, cache) = self.answer.lock().unwrap().clone();
        Response::builder()
            .status(status)
            .header("cache-control", cache)
            .header("location", "http://127.0.0.1:1/other")
            .body(Full::new(body.into()))
            .unwrap()
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Waits for something to become so, and says what did not.
async fn eventually(what: &str, so: impl Fn() -> bool) {
    for _ in 0..500 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(so(), "{what}");
}

/// Moves the runtime's clock, which sockets do not follow.
async fn later(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

fn start(identifier: &Arc<Identifier>) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let own = Arc::clone(identifier);
    let task = tokio::spawn(async move {
        own.refresh_loop(async {
            let _ = stopped.await;
        })
        .await;
    });
    (stop, task)
}

#[tokio::test]
async fn keys_rotate_and_outlive_their_issuers_failures() {
    let (old, new) = (Issuer::elliptic(Algorithm::ES256), Issuer::elliptic(Algorithm::ES256));
    let (publisher, url) = Publisher::start(jwks(&[old.named("old", json!({}))])).await;
    let identifier = Arc::new(identifier(options(&[Algorithm::ES256], KeySource::JwksUrl(url))));
    let by_old = bearer(&old.token("old", &claims(json!({}))));
    let by_new = bearer(&new.token("new", &claims(json!({}))));

    let (status, code, _) = ask(&identifier, &by_old).unwrap_err();
    assert_eq!((status, code.as_str()), (503, "KEYS_UNAVAILABLE"), "not yet fetched");
    assert!(!identifier.is_ready());
    let (stop, task) = start(&identifier);
    eventually("the first keys arrive", || identifier.is_ready()).await;
    assert!(ask(&identifier, &by_old).is_ok());

    // Many tokens of an unknown key make one fetch, and not before ten seconds have passed.
    publisher.publish(200, jwks(&[new.named("new", json!({}))]));
    for _ in 0..100 {
        assert_eq!(ask(&identifier, &by_new).unwrap_err().0, 401);
    }
    later(9).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(publisher.asked(), 1);
    later(2).await;
    eventually("the new key is accepted", || ask(&identifier, &by_new).is_ok()).await;
    assert_eq!(publisher.asked(), 2);
    assert_eq!(ask(&identifier, &by_old).unwrap_err().0, 401, "the old key is gone");

    // What is no set of keys changes nothing.
    let failures = [
        (500, b"{}".to_vec()),
        (302, jwks(&[old.named("old", json!({}))])),
        (200, b"<html>".to_vec()),
        (200, vec![b' '; (1 << 20) + 1]),
        (200, jwks(&vec![json!({}); 101])),
        // Without a key that could be used, or with keys of other algorithms only.
        (200, jwks(&[Issuer::rsa().named("new", json!({}))])),
        (200, jwks(&[Issuer::elliptic(Algorithm::ES384).named("new", json!({}))])),
        (200, jwks(&[Issuer::secret(&[7; 32], Algorithm::HS256).named("new", json!({}))])),
        (200, jwks(&[])),
        (200, jwks(&[json!({"kty": "unknown", "kid": "new"})])),
    ];
    for (status, body) in failures {
        let before = publisher.asked();
        publisher.publish(status, body);
        later(301).await;
        eventually("it is asked again", || publisher.asked() > before).await;
        assert!(ask(&identifier, &by_new).is_ok(), "old keys stay");
        assert_eq!(ask(&identifier, &by_old).unwrap_err().0, 401);
    }

    // But not for ever.
    later(25 * 3600).await;
    eventually("keys are too old", || !identifier.is_ready()).await;
    assert_eq!(ask(&identifier, &by_new).unwrap_err().0, 503);
    publisher.publish(200, jwks(&[new.named("new", json!({}))]));
    later(61).await;
    eventually("keys are back", || ask(&identifier, &by_new).is_ok()).await;

    stop.send(()).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn the_issuer_says_for_how_long_keys_are_good() {
    let issuer = Issuer::edwards();
    let (publisher, url) = Publisher::start(Vec::new()).await;
    let document = jwks(&[issuer.named("k", json!({}))]);
    *publisher.answer.lock().unwrap() = (200, document, "public, max-age=20");
    let identifier = Arc::new(identifier(options(&[Algorithm::EdDSA], KeySource::JwksUrl(url))));
    let (_stop, _task) = start(&identifier);
    eventually("the first keys arrive", || identifier.is_ready()).await;
    later(19).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(publisher.asked(), 1);
    later(2).await;
    eventually("they are fetched again", || publisher.asked() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_file_of_keys_is_read_again() {
    let (old, new) = (Issuer::edwards(), Issuer::edwards());
    let name = format!("tollgate-jwks-{}.json", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, jwks(&[old.named("old", json!({}))])).unwrap();
    let jwt = options(&[Algorithm::EdDSA], KeySource::JwksFile(path.clone()));
    let identifier = Arc::new(identifier(jwt));
    let by_old = bearer(&old.token("old", &claims(json!({}))));
    let by_new = bearer(&new.token("new", &claims(json!({}))));
    assert!(ask(&identifier, &by_old).is_ok(), "a file is there from the start");
    let (stop, task) = start(&identifier);
    std::fs::write(&path, jwks(&[new.named("new", json!({}))])).unwrap();
    tokio::time::sleep(Duration::from_secs(301)).await;
    eventually("the new key is accepted", || ask(&identifier, &by_new).is_ok()).await;
    assert!(ask(&identifier, &by_old).is_err());
    std::fs::remove_file(&path).unwrap();
    tokio::time::sleep(Duration::from_secs(301)).await;
    assert!(ask(&identifier, &by_new).is_ok(), "old keys stay");
    stop.send(()).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn there_is_nothing_to_refresh_where_keys_are_fixed() {
    let key = KeySource::Secret(tokens::SECRET.to_vec());
    let fixed = identifier(JwtOptions::new(vec![Algorithm::HS256], key));
    fixed.refresh_loop(std::future::pending()).await;
    Identifier::default().refresh_loop(std::future::pending()).await;
}
