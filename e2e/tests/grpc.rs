//! The gRPC port as real gRPC clients meet it.

use std::net::SocketAddr;

use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tollgate_client::{Check, Client};
use tollgate_e2e::{ADMIN_TOKEN, Server, ServerBuilder};
use tollgate_proto::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use tollgate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_proto::v1::rate_limiter_service_client::RateLimiterServiceClient;
use tollgate_proto::v1::{
    AllowBatchRequest, AllowRequest, AllowStreamRequest, PeekRequest, ResetRequest, decided,
};
use tonic::body::Body;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const RULES: &str = "
default: false
deny_list: ['user_id:mallory']
rules:
  - {rule_id: per-user, identifier_type: user_id, limit: 3, window: 365d, algorithm: fixed_window}
  - {rule_id: per-tenant, identifier_type: tenant_id, limit: 1000000, window: 365d, algorithm: fixed_window}
  - {rule_id: slots, applies_to: {models: [big]}, unit: concurrency, limit: 1}
  - {rule_id: by-path, applies_to: {domains: [edge], attributes: {path: /a}}, limit: 2, window: 365d, algorithm: fixed_window}
";

type Http2 = HyperClient<HttpConnector, Body>;

fn http2() -> Http2 {
    HyperClient::builder(TokioExecutor::new()).http2_only(true).build_http()
}

fn origin(addr: SocketAddr) -> hyper::Uri {
    format!("http://{addr}").parse().expect("a URL")
}

fn limiter(server: &Server) -> RateLimiterServiceClient<Http2> {
    RateLimiterServiceClient::with_origin(http2(), origin(server.grpc_addr()))
}

fn user(name: &str) -> AllowRequest {
    AllowRequest { user_id: name.to_owned(), ..AllowRequest::default() }
}

#[tokio::test]
async fn decisions_are_those_of_http() {
    let server = Server::with_rules(RULES);
    let mut client = limiter(&server);
    let first = client.allow(user("ann")).await.expect("an answer").into_inner();
    assert!(first.allowed);
    assert_eq!((first.remaining, first.rule_id.as_str()), (Some(2), "per-user"));
    let mut http = server.client();
    assert_eq!(http.allow(&serde_json::json!({"userId": "ann"}))["remaining"], 1);
    let peek = PeekRequest { request: Some(user("ann")) };
    let peeked = client.peek(peek).await.expect("an answer").into_inner();
    assert_eq!(peeked.decision.and_then(|decision| decision.remaining), Some(1));
    client.allow(user("ann")).await.expect("an answer");
    let refused = client.allow(user("ann")).await.expect("a refusal is an answer").into_inner();
    assert!(!refused.allowed && refused.retry_after_ms.is_some());
    assert_eq!(refused.scope_hit, "per-user");
    assert!(refused.explanation.contains("3 of 3"), "{}", refused.explanation);
    assert_eq!(refused.scopes.len(), 1);
    let denied = client.allow(user("mallory")).await.expect("an answer").into_inner();
    assert_eq!((denied.allowed, denied.reason.as_str()), (false, "DENY_LISTED"));

    let long = client.allow(user(&"x".repeat(300))).await.expect_err("too long");
    assert_eq!(long.code(), tonic::Code::InvalidArgument);
    assert!(long.message().contains("user_id"), "{}", long.message());
}

#[tokio::test]
async fn batches_and_streams_are_answered_in_order() {
    let server = Server::with_rules(RULES);
    let mut client = limiter(&server);
    let requests =
        vec![user("a"), user(&"x".repeat(300)), user("a"), user("a"), user("a"), user("b")];
    let batch = AllowBatchRequest { requests };
    let answered = client.allow_batch(batch).await.expect("an answer").into_inner();
    let verdicts: Vec<Option<bool>> = answered
        .decisions
        .iter()
        .map(|decided| match &decided.result {
            Some(decided::Result::Decision(decision)) => Some(decision.allowed),
            _ => None,
        })
        .collect();
    assert_eq!(verdicts, [Some(true), None, Some(true), Some(true), Some(false), Some(true)]);

    let (sender, receiver) = tokio::sync::mpsc::channel(64);
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|message| (message, receiver))
    });
    let answers = client.allow_stream(stream).await.expect("a stream");
    let mut answers = answers.into_inner();
    let asking = tokio::spawn(async move {
        for id in 0..500_u64 {
            let tenant = AllowRequest { tenant_id: "t".to_owned(), ..AllowRequest::default() };
            let requests = vec![tenant.clone(), tenant];
            sender.send(AllowStreamRequest { id, requests }).await.expect("it is read");
        }
    });
    let mut used = 0;
    for id in 0..500_u64 {
        let answer = answers.message().await.expect("no error").expect("no end");
        assert_eq!((answer.id, answer.decisions.len()), (id, 2));
        for decided in answer.decisions {
            let Some(decided::Result::Decision(decision)) = decided.result else { panic!("{id}") };
            used += 1;
            assert_eq!(decision.scopes[0].current, used, "in order, each counted once");
        }
    }
    asking.await.expect("all was asked");
    assert!(answers.message().await.expect("a clean end").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_health_reset_and_draining() {
    let token = "a-token";
    let dir = tempfile::tempdir().expect("a directory");
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, format!("{token}\n")).expect("a file");
    let mut server = ServerBuilder::default()
        .rules(RULES)
        .env("TOLLGATE_DATA_TOKEN_FILE", &tokens.display().to_string())
        .arg("--data-auth")
        .arg("token")
        .start();
    let mut client = limiter(&server);
    let without = client.allow(user("ann")).await.expect_err("no token");
    assert_eq!(without.code(), tonic::Code::Unauthenticated);
    let with = |token: &str, message| {
        let mut request = tonic::Request::new(message);
        let value = format!("Bearer {token}").parse().expect("a value");
        request.metadata_mut().insert("authorization", value);
        request
    };
    for _ in 0..3 {
        assert!(
            client.allow(with(token, user("ann"))).await.expect("an answer").into_inner().allowed
        );
    }
    assert!(!client.allow(with(token, user("ann"))).await.expect("an answer").into_inner().allowed);

    let reset = || ResetRequest { request: Some(user("ann")), ..ResetRequest::default() };
    let mut request = tonic::Request::new(reset());
    let value = format!("Bearer {token}").parse().expect("a value");
    request.metadata_mut().insert("authorization", value);
    let refused = client.reset(request).await.expect_err("a data token does not reset");
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    let mut request = tonic::Request::new(reset());
    let value = format!("Bearer {ADMIN_TOKEN}").parse().expect("a value");
    request.metadata_mut().insert("authorization", value);
    let done = client.reset(request).await.expect("an operator's does").into_inner();
    assert_eq!(done.rule_ids, ["per-user"]);
    assert!(client.allow(with(token, user("ann"))).await.expect("an answer").into_inner().allowed);
    let audit = server.admin().get("audit?limit=5");
    assert!(audit.to_string().contains("user_id:ann"), "the reset is on record: {audit}");

    let mut health = HealthClient::with_origin(http2(), origin(server.grpc_addr()));
    let ask = || HealthCheckRequest { service: "tollgate.v1.RateLimiterService".to_owned() };
    let status = health.check(ask()).await.expect("no token is needed").into_inner().status;
    assert_eq!(status, 1, "SERVING");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "log: {}", server.log());
}

#[tokio::test]
async fn envoys_protocol_on_the_same_port() {
    let server = Server::with_rules(RULES);
    let mut envoy = RateLimitServiceClient::with_origin(http2(), origin(server.grpc_addr()));
    let descriptor = |pairs: &[(&str, &str)]| RateLimitDescriptor {
        entries: pairs
            .iter()
            .map(|(key, value)| Entry { key: (*key).to_owned(), value: (*value).to_owned().into() })
            .collect(),
        ..RateLimitDescriptor::default()
    };
    let ask = |descriptors: Vec<RateLimitDescriptor>| RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors,
        hits_addend: 0,
    };
    let both = || vec![descriptor(&[("path", "/a")]), descriptor(&[("user_id", "eve")])];
    for remaining in [1, 0] {
        let answer = envoy.should_rate_limit(ask(both())).await.expect("an answer").into_inner();
        assert_eq!(answer.overall_code, Code::Ok as i32);
        assert_eq!(answer.statuses.len(), 2);
        assert_eq!(answer.statuses[0].limit_remaining, remaining);
    }
    let answer = envoy.should_rate_limit(ask(both())).await.expect("an answer").into_inner();
    assert_eq!(answer.overall_code, Code::OverLimit as i32);
    let codes: Vec<i32> = answer.statuses.iter().map(|status| status.code).collect();
    assert_eq!(codes, [Code::OverLimit as i32, Code::Ok as i32]);
    assert_eq!(answer.statuses[1].limit_remaining, 1, "the other was not charged");
    // Neither a long value nor one that is no text is an error, which Envoy would let pass.
    let mut odd = descriptor(&[("user_id", &"x".repeat(5_000))]);
    for (value, expected) in [(vec![b'x'; 5_000], Code::Ok), (vec![0xff; 9], Code::Ok)] {
        odd.entries[0].value = value.into();
        for _ in 0..3 {
            let answer = envoy.should_rate_limit(ask(vec![odd.clone()])).await.expect("an answer");
            assert_eq!(answer.into_inner().overall_code, expected as i32);
        }
        let answer = envoy.should_rate_limit(ask(vec![odd.clone()])).await.expect("an answer");
        assert_eq!(answer.into_inner().overall_code, Code::OverLimit as i32, "it is counted");
    }
    let unknown = ask(vec![descriptor(&[("nothing", "known")])]);
    let answer = envoy.should_rate_limit(unknown).await.expect("an answer").into_inner();
    assert_eq!(answer.overall_code, Code::Ok as i32);
    for wrong in [ask(Vec::new()), RateLimitRequest { domain: String::new(), ..ask(both()) }] {
        let error = envoy.should_rate_limit(wrong).await.expect_err("an error");
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
    }
}

#[tokio::test]
async fn the_official_client_speaks_both_and_remembers_refusals() {
    let server = Server::with_rules(RULES);
    let http = Client::http(&format!("http://{}", server.addr())).expect("a client");
    let grpc = Client::grpc(&format!("http://{}", server.grpc_addr())).expect("a client");
    let check = Check::new().user_id("zoe");
    assert!(http.allow(&check).await.expect("an answer").allowed);
    assert!(grpc.allow(&check).await.expect("an answer").allowed);
    assert!(http.allow(&check).await.expect("an answer").allowed);
    for client in [&http, &grpc] {
        let refused = client.allow(&check).await.expect("an answer");
        assert!(!refused.allowed && !refused.is_cached);
        let again = client.allow(&check).await.expect("an answer");
        assert!(!again.allowed && again.is_cached, "until its retry-after nobody is asked");
    }
    let peeked = grpc.peek(&Check::new().user_id("new")).await.expect("an answer");
    assert!(peeked.allowed);
}
