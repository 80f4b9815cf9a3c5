//! A rule on `/login` holds however the path is spelled, wherever Tollgate is asked about it.

use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tollgate_e2e::{Client, Server, ServerBuilder, Upstream};
use tollgate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code as EnvoyCode;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_proto::v1::rate_limiter_service_client::RateLimiterServiceClient;
use tollgate_proto::v1::{AllowBatchRequest, AllowRequest, PeekRequest, ReserveRequest, decided};
use tonic::Code;

/// Nobody passes `/login`, by whatever spelling; everything else passes.
const RULES: &str = "
default: false
rules:
  - {rule_id: login, identifier_type: global, applies_to: {endpoints: [/login]}, limit: 0, window: 1h}
";

/// What some server reads as `/login`.
const SPELLINGS: [&str; 29] = [
    "/login",
    "/login/",
    "/login?next=/",
    "/login#top",
    "/login;x=1",
    "/login%3Bx",
    "/login%3bx",
    "/login\\",
    "/%6Cogin",
    "/%6cogin",
    "/./login",
    "/x/../login",
    "/x/%2E%2e/login",
    "/x%2F..%2Flogin",
    "/x%2f..%2flogin",
    "/%2Flogin",
    "//login",
    "//host/login",
    "/x//..//login",
    "/x\\..\\login",
    "/x%5C..%5Clogin",
    "/x%5c..\\login",
    "/\\host/login",
    "\\login",
    "login",
    "./login",
    "http://host/login",
    "HTTPS://user@host:1/x/../login?y",
    "http://host\\login",
];

/// What Envoy may send in addition, and what cannot be sent as text. An error would let it pass.
const RAW_SPELLINGS: [&[u8]; 6] = [
    b"/login?\xff",
    b"/login#%zz",
    b"/%zz/../login",
    b"/\xff\xfe/../login",
    b"/%00/..%2Flogin",
    b"/\x01\\..\\login",
];

fn server() -> Server {
    Server::with_rules(RULES)
}

#[test]
fn http_calls_refuse_every_spelling() {
    let server = server();
    let mut client = server.client();
    let calls = ["allow", "peek", "reserve"];
    for endpoint in SPELLINGS {
        for call in calls {
            let answer =
                client.post(&format!("/rate-limit/{call}"), &json!({"endpoint": endpoint}));
            let is_refused = answer.status == 200 && answer.json()["allowed"] == false;
            let is_invalid = answer.status == 400 && answer.json()["error"]["field"] == "endpoint";
            assert!(is_refused || is_invalid, "{call} {endpoint}: {}", answer.text());
        }
        let batch = json!({"requests": [{"endpoint": endpoint}, {"endpoint": "/other"}]});
        let answer = client.post("/rate-limit/allow/batch", &batch).json();
        let (first, other) = (&answer["decisions"][0], &answer["decisions"][1]);
        let is_invalid = first["error"]["field"] == "endpoint";
        assert!(first["allowed"] == false || is_invalid, "{endpoint}: {first}");
        assert_eq!(other["allowed"], true, "{endpoint}: {other}");
        let entry = json!({"key": "endpoint", "value": endpoint});
        let asked = json!({"domain": "edge", "descriptors": [{"entries": [entry]}]});
        let answer = client.post("/json", &asked);
        assert_eq!(answer.status, 429, "{endpoint}: {}", answer.text());
    }
    for call in calls {
        let path = format!("/rate-limit/{call}");
        let answer = client.post(&path, &json!({"endpoint": "/other"})).json();
        assert_eq!(answer["allowed"], true, "{call}");
        for endpoint in ["*", " /login", "?/login", "http:///login", "://x/login"] {
            let answer = client.post(&path, &json!({"endpoint": endpoint}));
            assert_eq!(answer.status, 400, "{call} {endpoint}: {}", answer.text());
        }
    }
}

#[test]
fn auth_refuses_every_spelling_in_every_header() {
    let server = server();
    let mut client = server.client();
    for header in ["x-tollgate-endpoint", "x-original-uri", "x-forwarded-uri"] {
        for endpoint in SPELLINGS.iter().chain(&["*"]) {
            let answer = client.request("GET", "/rate-limit/auth", &[(header, endpoint)], b"");
            assert!([400, 429].contains(&answer.status), "{header} {endpoint}: {}", answer.status);
        }
        let answer = client.request("GET", "/rate-limit/auth", &[(header, "/other")], b"");
        assert_eq!(answer.status, 200, "{header}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_calls_refuse_every_spelling() {
    let server = server();
    let http = HyperClient::builder(TokioExecutor::new()).http2_only(true).build_http();
    let origin: hyper::Uri = format!("http://{}", server.grpc_addr()).parse().expect("a URL");
    let mut client = RateLimiterServiceClient::with_origin(http, origin);
    for endpoint in SPELLINGS {
        let asked = AllowRequest { endpoint: endpoint.to_owned(), ..AllowRequest::default() };
        let request = Some(asked.clone());
        let answers = [
            client.allow(asked.clone()).await.map(|it| it.into_inner().allowed),
            client
                .peek(PeekRequest { request: request.clone() })
                .await
                .map(|it| it.into_inner().decision.expect("a decision").allowed),
            client
                .reserve(ReserveRequest { request, ..ReserveRequest::default() })
                .await
                .map(|it| it.into_inner().decision.expect("a decision").allowed),
        ];
        for answer in answers {
            match answer {
                Ok(is_allowed) => assert!(!is_allowed, "{endpoint}"),
                Err(status) => assert_eq!(status.code(), Code::InvalidArgument, "{endpoint}"),
            }
        }
        let batch = AllowBatchRequest { requests: vec![asked] };
        let decided = client.allow_batch(batch).await.expect("an answer").into_inner().decisions;
        match decided[0].result.as_ref().expect("a result") {
            decided::Result::Decision(decision) => assert!(!decision.allowed, "{endpoint}"),
            decided::Result::Error(_) => {}
        }
    }
    let other = AllowRequest { endpoint: "/other".to_owned(), ..AllowRequest::default() };
    assert!(client.allow(other).await.expect("an answer").into_inner().allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_refuses_every_spelling() {
    let server = server();
    let http = HyperClient::builder(TokioExecutor::new()).http2_only(true).build_http();
    let origin: hyper::Uri = format!("http://{}", server.grpc_addr()).parse().expect("a URL");
    let mut client = RateLimitServiceClient::with_origin(http, origin);
    let dots = format!("/{}login", "./".repeat(10_000));
    let spellings = SPELLINGS.iter().map(|spelling| spelling.as_bytes()).chain(RAW_SPELLINGS);
    for value in spellings.chain([dots.as_bytes(), b"/other"]) {
        let entry = Entry { key: "endpoint".to_owned(), value: value.to_vec().into() };
        let descriptor =
            RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        let asked = RateLimitRequest {
            domain: "edge".to_owned(),
            descriptors: vec![descriptor],
            hits_addend: 0,
        };
        let text = String::from_utf8_lossy(value);
        let answer = client.should_rate_limit(asked).await;
        let answer = answer.unwrap_or_else(|error| panic!("{text}: {error}")).into_inner();
        let wanted = if value == b"/other" { EnvoyCode::Ok } else { EnvoyCode::OverLimit };
        assert_eq!(answer.overall_code(), wanted, "{text}");
    }
}

#[test]
fn the_gateway_refuses_every_spelling() {
    let upstream = Upstream::start();
    let gateway = ServerBuilder::default()
        .gateway()
        .rules(RULES)
        .arg("--upstream")
        .arg(&upstream.url())
        .start();
    let status = |target: &str| {
        let mut client = Client::connect(gateway.gateway_addr()).expect("a connection");
        client.request("GET", target, &[], b"").status
    };
    for target in SPELLINGS.iter().chain(&["*"]) {
        // It is forwarded as `/host/login`, which no server reads as another path.
        let is_forwarded_otherwise = *target == "//host/login";
        let status = status(target);
        assert!([400, 429].contains(&status) || is_forwarded_otherwise, "{target}: {status}");
    }
    assert_eq!(status("/other"), 200);
}
