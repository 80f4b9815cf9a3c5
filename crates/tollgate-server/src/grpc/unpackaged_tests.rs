//! Slots and the service without a package.

use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use tonic::Code;

use super::frame::HEAD_BYTES;
use super::service::framed_message;
use super::tests::{routes_with, user};
use super::*;

/// The answer of the service without a package has no id by which a slot could be released.
#[tokio::test]
async fn the_small_protocol_takes_no_slot() {
    let routes = routes_with(Duration::from_secs(60));
    let body = |api_key: &str| {
        let mut asked = user("ann");
        asked.model_id = "m".to_owned();
        asked.api_key = api_key.to_owned();
        framed_message(&asked)
    };
    let ask = |body: Vec<u8>| {
        let request = Request::post("/RateLimiterService/Allow")
            .header(CONTENT_TYPE, "application/grpc")
            .body(Body::new(http_body_util::Full::from(body)))
            .unwrap();
        routes.call(request)
    };
    for _ in 0..3 {
        let answer = ask(body("k")).await;
        let status = answer.headers().get("grpc-status").unwrap();
        assert_eq!(status, &(Code::FailedPrecondition as i32).to_string());
        let message = answer.headers().get("grpc-message").unwrap().to_str().unwrap();
        assert!(message.contains("tollgate.v1"), "{message}");
    }
    // Nothing was charged: all three of the day are left, without the rule of slots.
    for _ in 0..3 {
        let answer = ask(body("")).await.into_body().collect().await.unwrap();
        assert_eq!(answer.to_bytes()[HEAD_BYTES..][..2], [8, 1]);
    }
}
