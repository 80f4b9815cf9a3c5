//! Decisions by a remote Tollgate, as the layer gets them.

#![expect(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of a test")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tollgate_client::{Client, OnFailure};
use tollgate_tower::{Decide, EdgeRequest, Format, HeaderFamilies, Identity, Remote, Ruling};

/// Returns the answers that the test sets, and keeps the requests.
#[derive(Default)]
struct Server {
    answers: Mutex<VecDeque<(u16, Value)>>,
    asked: Mutex<Vec<Value>>,
}

async fn start() -> (Arc<Server>, String) {
    let server = Arc::new(Server::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let own = Arc::clone(&server);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let own = Arc::clone(&own);
            let service = service_fn(move |request| respond(Arc::clone(&own), request));
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(socket), service));
        }
    });
    (server, url)
}

async fn respond(
    server: Arc<Server>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    server.asked.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    let (status, body) = server.answers.lock().unwrap().pop_front().unwrap();
    let body = Full::new(body.to_string().into());
    Ok(Response::builder().status(status).body(body).unwrap())
}

fn decision(changes: Value) -> Value {
    let mut decision = json!({
        "allowed": true, "reason": "WITHIN_LIMITS", "ruleId": "api \"x\"", "remaining": 9,
        "resetAt": "2100-01-01T00:00:00.500Z", "retryAfterMs": null, "waitMs": 250,
        "warnings": ["8 of 10 used"], "rulesVersion": 1,
        "scopes": [
            {"name": "OTHER", "ruleId": "o", "limit": 5, "current": 0, "remaining": 5,
             "resetAt": "2100-01-01T00:00:00Z", "windowSeconds": 1},
            {"name": "S", "ruleId": "api \"x\"", "limit": 10, "current": 1, "remaining": 9,
             "resetAt": "2100-01-01T00:00:00.500Z", "windowSeconds": 60},
        ],
    });
    let members = decision.as_object_mut().unwrap();
    members.extend(changes.as_object().cloned().unwrap_or_default());
    decision
}

fn refused(changes: Value) -> Value {
    let mut decision = decision(json!({
        "allowed": false, "reason": "HIT_S_LIMIT", "scopeHit": "S", "retryAfterMs": 1_200,
        "waitMs": 0, "explanation": "10 of 10 used", "action": "reject",
    }));
    let members = decision.as_object_mut().unwrap();
    members.extend(changes.as_object().cloned().unwrap_or_default());
    decision
}

fn asked(user: &str) -> EdgeRequest {
    let identity = Identity {
        user_id: Some(user.to_owned()),
        api_key: Some("key".to_owned()),
        ip: Some("2001:db8:1:2::/64".to_owned()),
        extra: vec![("region".to_owned(), "eu".to_owned())],
        ..Identity::default()
    };
    let endpoint = Some("/a".to_owned());
    EdgeRequest {
        identity,
        endpoint,
        method: Some("GET".to_owned()),
        cost: Some(2),
        ..EdgeRequest::default()
    }
}

fn remote(url: &str, on_failure: OnFailure) -> Remote {
    Remote::new(Client::http(url).unwrap(), on_failure, HeaderFamilies::default())
}

#[tokio::test]
async fn an_answer_becomes_a_ruling() {
    let (server, url) = start().await;
    let remote = remote(&url, OnFailure::Closed);
    let say = |status: u16, body: Value| server.answers.lock().unwrap().push_back((status, body));

    say(200, decision(json!({})));
    let Ruling::Pass(pass) = remote.decide(&asked("ann")).await else { unreachable!("refused") };
    assert_eq!(pass.wait, Duration::from_millis(250));
    let mut headers = HeaderMap::new();
    pass.headers.clone().put_into(&mut headers);
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    assert_eq!(header("x-ratelimit-limit"), "10");
    assert_eq!(header("x-ratelimit-remaining"), "9");
    assert_eq!(header("x-ratelimit-reset"), "4102444801");
    assert_eq!(header("x-ratelimit-policy"), "10;w=60");
    assert_eq!(header("x-ratelimit-warning"), "8 of 10 used");
    assert!(header("ratelimit").starts_with("\"api \\\"x\\\"\";r=9;t="));
    assert_eq!(header("ratelimit-policy"), "\"api \\\"x\\\"\";q=10;w=60");
    let expected = json!({
        "userId": "ann", "apiKey": "key", "ip": "2001:db8:1:2::", "endpoint": "/a",
        "method": "GET", "cost": 2, "attributes": {"region": "eu"},
    });
    assert_eq!(server.asked.lock().unwrap()[0], expected);

    say(200, refused(json!({})));
    let Ruling::Refuse(rejection) = remote.decide(&asked("bob")).await else {
        unreachable!("passed")
    };
    let response = rejection.into_response(Format::Json);
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "2");
    assert_eq!(response.headers()["x-ratelimit-limit"], "10");
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    let expected = json!({"error": {
        "code": "RATE_LIMIT_EXCEEDED", "message": "10 of 10 used", "retry_after": 2,
        "rule_id": "api \"x\"", "scope": "S",
    }});
    assert_eq!(body, expected);

    // Known already; and in the format that the client accepts.
    let mut accepts = HeaderMap::new();
    accepts.insert("accept", HeaderValue::from_static("application/problem+json"));
    let Ruling::Refuse(rejection) = remote.decide(&asked("bob")).await else {
        unreachable!("passed")
    };
    let response = rejection.into_response(Format::accepted(&accepts));
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(body["violated-policies"], json!(["api \"x\""]));
    assert_eq!(server.asked.lock().unwrap().len(), 2, "nobody was asked again");

    say(200, refused(json!({"reason": "DENY_LISTED", "retryAfterMs": null})));
    let ruling = remote.decide(&asked("eve")).await;
    assert!(matches!(ruling, Ruling::Refuse(rejection) if rejection.status == 403));
    let closed = json!({"reason": "STORE_UNAVAILABLE", "retryAfterMs": null});
    say(503, refused(closed));
    let ruling = remote.decide(&asked("eve")).await;
    assert!(matches!(ruling, Ruling::Refuse(rejection) if rejection.status == 503));

    say(200, refused(json!({"action": "queue"})));
    let Ruling::Queue(postponed) = remote.decide(&asked("carl")).await else {
        unreachable!("not queued")
    };
    assert_eq!(postponed.retry_after, Duration::from_millis(1_200));
    assert!(postponed.lane.starts_with("api \"x\":") && !postponed.lane.contains("key"));
}

#[tokio::test]
async fn what_nobody_answers_goes_by_the_policy() {
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let open = remote(&gone, OnFailure::Open).decide(&asked("ann")).await;
    assert!(matches!(open, Ruling::Pass(pass) if pass.wait.is_zero()));
    let closed = remote(&gone, OnFailure::Closed).decide(&asked("ann")).await;
    let Ruling::Refuse(rejection) = closed else { unreachable!("passed") };
    let response = rejection.into_response(Format::Json);
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");

    // A caller that sends nonsense does not get past.
    let (server, url) = start().await;
    let wrong = json!({"error": {"code": "INVALID_REQUEST", "message": "too long"}});
    server.answers.lock().unwrap().push_back((400, wrong));
    let ruling = remote(&url, OnFailure::Open).decide(&asked("ann")).await;
    assert!(matches!(ruling, Ruling::Refuse(rejection) if rejection.status == 400));
}
