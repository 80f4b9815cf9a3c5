//! Calls against a small server that returns the responses a test gives it.

#![expect(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of a test")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tollgate_client::{Check, Client, ClientError, ClientOptions, OnFailure, ServerTrust};

/// What was asked: path, headers, body.
type Asked = (String, HeaderMap, Value);

#[derive(Default)]
struct Server {
    answers: Mutex<VecDeque<(u16, String)>>,
    asked: Mutex<Vec<Asked>>,
}

impl Server {
    async fn start() -> (Arc<Self>, String) {
        let own = Arc::new(Self::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = Arc::clone(&own);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let server = Arc::clone(&server);
                let service = service_fn(move |request| respond(Arc::clone(&server), request));
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(socket), service));
            }
        });
        (own, url)
    }

    fn will_say(&self, status: u16, body: impl ToString) {
        self.answers.lock().unwrap().push_back((status, body.to_string()));
    }

    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

async fn respond(
    server: Arc<Server>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&body).unwrap();
    server.asked.lock().unwrap().push((head.uri.path().to_owned(), head.headers, body));
    let next = server.answers.lock().unwrap().pop_front();
    let Some((status, body)) = next else { std::future::pending().await };
    let response = Response::builder().status(status).header("retry-after", "2");
    Ok(response.body(Full::new(body.into())).unwrap())
}

fn allowed() -> Value {
    json!({
        "allowed": true, "reason": "WITHIN_LIMITS", "scopeHit": null, "ruleId": "r",
        "effectiveLimit": 10, "remaining": 9, "resetAt": "1970-01-01T00:01:40.500Z",
        "retryAfterMs": null, "waitMs": 250, "warnings": ["w"], "degraded": false,
        "rulesVersion": 3, "something": "new",
        "scopes": [
            {"name": "S", "ruleId": "r", "limit": 10, "current": 1, "remaining": 9,
             "resetAt": "1970-01-01T00:01:40.500Z", "windowSeconds": 60},
        ],
    })
}

fn refused(retry_after_ms: u64) -> Value {
    json!({
        "allowed": false, "reason": "HIT_S_LIMIT", "scopeHit": "S", "ruleId": "r",
        "remaining": 0, "retryAfterMs": retry_after_ms, "waitMs": 0, "action": "reject",
        "explanation": "10 of 10 used", "rulesVersion": 3, "scopes": [],
    })
}

fn ann() -> Check {
    Check::new().user_id("ann")
}

#[tokio::test]
async fn a_decision_comes_back_as_it_was_made() {
    let (server, url) = Server::start().await;
    let options = ClientOptions { token: Some("secret".to_owned()), ..Default::default() };
    let client = Client::http_with(&url, &options).unwrap();
    server.will_say(200, allowed());
    let check = ann().model_id("m").cost(2).tokens(7).attribute("region", "eu");
    let decision = client.allow(&check).await.unwrap();
    assert!(decision.allowed && !decision.is_cached);
    assert_eq!(decision.wait, Duration::from_millis(250));
    assert_eq!(decision.reset_at, Some(UNIX_EPOCH + Duration::from_millis(100_500)));
    assert_eq!(decision.deciding().unwrap().window_seconds, 60);
    let asked = server.asked();
    let (path, headers, body) = &asked[0];
    assert_eq!(path, "/rate-limit/allow");
    assert_eq!(headers["authorization"], "Bearer secret");
    let expected = json!({
        "userId": "ann", "modelId": "m", "cost": 2, "tokens": 7, "attributes": {"region": "eu"},
    });
    assert_eq!(*body, expected);
    assert!(!format!("{client:?} {options:?}").contains("secret"));
    server.will_say(200, refused(1));
    assert!(!client.peek(&check).await.unwrap().allowed);
    assert_eq!(server.asked()[0].0, "/rate-limit/peek");
}

#[tokio::test]
async fn a_refusal_is_not_asked_for_again_while_it_holds() {
    let (server, url) = Server::start().await;
    let client = Client::http(&url).unwrap();
    server.will_say(200, refused(30_000));
    let first = client.allow(&ann()).await.unwrap();
    assert!(!first.allowed && !first.is_cached);
    let again = client.clone().allow(&ann()).await.unwrap();
    assert!(!again.allowed && again.is_cached);
    assert!(again.retry_after.unwrap() <= Duration::from_secs(30));
    assert_eq!(again.explanation, first.explanation);
    assert_eq!(server.asked().len(), 1);

    // Only what is open is sent, and answers keep their places.
    let error =
        json!({"error": {"code": "INVALID_REQUEST", "message": "too long", "field": "userId"}});
    server.will_say(200, json!({"decisions": [allowed(), error, refused(30_000)]}));
    let checks = [
        Check::new().user_id("bob"),
        ann(),
        Check::new().user_id("x"),
        Check::new().user_id("eve"),
    ];
    let answers = client.allow_batch(&checks).await.unwrap();
    assert!(answers[0].as_ref().unwrap().allowed);
    assert!(answers[1].as_ref().unwrap().is_cached);
    let rejected = answers[2].as_ref().unwrap_err();
    assert!(matches!(rejected, ClientError::Rejected { field: Some(f), .. } if f == "userId"));
    assert_eq!(answers[3].as_ref().unwrap().reason, "HIT_S_LIMIT");
    let asked = server.asked();
    assert_eq!(asked[0].0, "/rate-limit/allow/batch");
    assert_eq!(asked[0].2["requests"].as_array().unwrap().len(), 3);
    let known = client.allow_batch(&[ann(), Check::new().user_id("eve")]).await.unwrap();
    assert!(known.iter().all(|answer| answer.as_ref().unwrap().is_cached));
    assert!(server.asked().is_empty(), "nobody had to be asked");

    // One that has ended is asked for again.
    server.will_say(200, refused(0));
    server.will_say(200, allowed());
    let carl = Check::new().user_id("carl");
    assert!(!client.allow(&carl).await.unwrap().allowed);
    assert!(client.allow(&carl).await.unwrap().allowed);
}

#[tokio::test]
async fn what_goes_wrong_has_a_name() {
    let (server, url) = Server::start().await;
    let client = Client::http(&url).unwrap();
    let says = |code: &str| json!({"error": {"code": code, "message": "m"}});
    let ask = async |status: u16, body: Value| {
        server.will_say(status, body);
        client.allow(&ann()).await.unwrap_err()
    };
    let wrong = ask(400, says("INVALID_REQUEST")).await;
    assert!(matches!(&wrong, ClientError::Rejected { code, .. } if code == "INVALID_REQUEST"));
    assert!(!wrong.is_outage() && !wrong.is_transient());
    let reused = ask(409, says("REQUEST_ID_REUSED")).await;
    assert!(matches!(reused, ClientError::Rejected { .. }));
    let token = ask(401, says("UNAUTHORIZED")).await;
    assert!(matches!(token, ClientError::Unauthorized(_)) && token.is_outage());
    let away = ask(503, says("STORE_UNAVAILABLE")).await;
    let two = Some(Duration::from_secs(2));
    assert!(matches!(&away, ClientError::Unavailable { retry_after, .. } if *retry_after == two));
    assert!(away.is_outage() && away.is_transient());
    assert!(matches!(ask(200, json!("hello")).await, ClientError::Unreadable(_)));
    assert!(matches!(ask(200, json!({"allowed": "yes"})).await, ClientError::Unreadable(_)));
    assert!(matches!(ask(404, json!({})).await, ClientError::Unreadable(_)));
    assert!(matches!(ask(400, json!("a proxy's page")).await, ClientError::Unreadable(_)));
    assert!(matches!(ask(502, json!("bad gateway")).await, ClientError::Unavailable { .. }));
    server.will_say(200, json!({"decisions": []}));
    let short = client.allow_batch(&[ann()]).await.unwrap_err();
    assert!(matches!(short, ClientError::Unreadable(_)));
    let many = vec![ann(); 1_001];
    assert!(matches!(client.allow_batch(&many).await, Err(ClientError::Rejected { .. })));

    // A decision that is also an error is a decision.
    let mut closed = refused(0);
    closed["reason"] = "STORE_UNAVAILABLE".into();
    closed["error"] = json!({"code": "STORE_UNAVAILABLE", "message": "m"});
    server.will_say(503, closed);
    assert_eq!(client.allow(&ann()).await.unwrap().reason, "STORE_UNAVAILABLE");
}

#[tokio::test]
async fn every_call_has_a_deadline_and_a_policy() {
    let (server, url) = Server::start().await;
    let timeout = Duration::from_millis(50);
    let options = ClientOptions { timeout, ..Default::default() };
    let client = Client::http_with(&url, &options).unwrap();
    assert_eq!(client.allow(&ann()).await.unwrap_err(), ClientError::Timeout(timeout));
    assert_eq!(client.peek(&ann()).await.unwrap_err(), ClientError::Timeout(timeout));
    assert!(client.allow_or(&ann(), OnFailure::Open).await.allowed);
    let closed = client.allow_or(&ann(), OnFailure::Closed).await;
    assert!(!closed.allowed && closed.degraded);
    let wrong = json!({"error": {"code": "INVALID_REQUEST", "message": "too long"}});
    server.will_say(400, wrong);
    let nonsense = client.allow_or(&ann(), OnFailure::Open).await;
    assert!(!nonsense.allowed, "nonsense does not open doors");

    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for client in [Client::http(&format!("http://{gone}")), Client::grpc(&format!("http://{gone}"))]
    {
        let error = client.unwrap().allow(&ann()).await.unwrap_err();
        assert!(error.is_outage() && error.is_transient(), "{error:?}");
    }
}

#[test]
fn addresses_and_tokens_that_cannot_be_used_are_said_so() {
    for url in ["", "/", "localhost:8080", "ftp://a", "http://", "http://u:p@a", "http://a?x"] {
        assert!(matches!(Client::http(url), Err(ClientError::Url(_))), "{url}");
        assert!(matches!(Client::grpc(url), Err(ClientError::Url(_))), "{url}");
    }
    let options = ClientOptions { token: Some("a\nb".to_owned()), ..Default::default() };
    assert!(matches!(Client::http_with("http://a", &options), Err(ClientError::Setup(_))));
    let options = ClientOptions {
        trust: ServerTrust::Authorities(b"nothing".to_vec()),
        ..Default::default()
    };
    assert!(matches!(Client::http_with("https://a", &options), Err(ClientError::Setup(_))));
}
