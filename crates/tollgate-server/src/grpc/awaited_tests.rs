//! The gRPC API on a store that has to be awaited.

use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Full};
use prost::Message;
use tollgate_core::SECOND;
use tollgate_engine::ManualClock;
use tollgate_policy::RuleSet;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response,
};
use tollgate_proto::v1;

use super::*;

const RULES: &str = "
default: false
rules:
- {rule_id: per-user, identifier_type: user_id, limit: 3, window: 1d, algorithm: fixed_window}
";

/// `Allow` and Envoy's call wait for a store that has to be awaited, and limit all the same.
#[tokio::test]
async fn a_store_that_is_awaited_limits_every_call() {
    for is_in_process in [false, true] {
        let rules = RuleSet::from_yaml(RULES, "t").unwrap();
        let clock = Arc::new(ManualClock::new(1_000_000 * SECOND));
        let store = tollgate_store::conformance::Awaited::new(is_in_process);
        let engine = Engine::new(store, clock, rules);
        let routes = routes(GrpcOptions {
            reservations: Arc::default(),
            engine: Arc::new(engine.with_missing_key(tollgate_engine::MissingKey::Allow)),
            authorize: Arc::new(|_| Ok(String::new())),
            resets: None,
            headers: HeaderFamilies::default(),
            descriptor_stats: Arc::default(),
            body_timeout: Duration::from_secs(5),
            stream_idle_timeout: Duration::from_secs(60),
        });
        let mut allowed = Vec::new();
        for _ in 0..4 {
            let ann = v1::AllowRequest { user_id: "ann".to_owned(), ..Default::default() };
            let framed = service::framed_message(&ann);
            let answer = routes.call(grpc_call(SERVICE, "Allow", framed)).await;
            let bytes = answer.into_body().collect().await.unwrap().to_bytes();
            allowed.push(v1::AllowResponse::decode(&bytes[frame::HEAD_BYTES..]).unwrap().allowed);
        }
        assert_eq!(allowed, [true, true, true, false]);
        let ann = v1::AllowRequest { user_id: "ann".to_owned(), ..Default::default() };
        let call = grpc_call("RateLimiterService", "Allow", service::framed_message(&ann));
        let bytes = routes.call(call).await.into_body().collect().await.unwrap().to_bytes();
        let scope_hit = b"\x22\x08per-user";
        assert!(bytes.windows(scope_hit.len()).any(|part| part == scope_hit), "{bytes:?}");
        let entry = Entry { key: "user_id".to_owned(), value: "ann".into() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let (domain, descriptors) = ("d".to_owned(), vec![descriptor]);
        let asked = RateLimitRequest { domain, descriptors, hits_addend: 1 };
        let call = grpc_call(ENVOY_SERVICE, "ShouldRateLimit", service::framed_message(&asked));
        let bytes = routes.call(call).await.into_body().collect().await.unwrap().to_bytes();
        let answer = RateLimitResponse::decode(&bytes[frame::HEAD_BYTES..]).unwrap();
        assert_eq!(answer.overall_code(), rate_limit_response::Code::OverLimit);
    }
}

fn grpc_call(service: &str, method: &str, framed: Vec<u8>) -> Request<Full<Bytes>> {
    Request::post(format!("/{service}/{method}"))
        .header(CONTENT_TYPE, "application/grpc")
        .body(Full::new(Bytes::from(framed)))
        .unwrap()
}
