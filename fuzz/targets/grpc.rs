//! `tollgate.v1.RateLimiterService`: messages and frames from a caller.
//!
//! The message reader is written by hand; where it takes a batch, the generated code reads as many requests, and as
//! many decisions are answered.
#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use tokio::runtime::Runtime;
use tollgate_fuzz::{choice, engine, runtime};
use tollgate_proto::v1;
use tollgate_server::grpc::{GrpcOptions, GrpcRoutes, routes};
use tollgate_store::MemoryStore;
use tollgate_tower::HeaderFamilies;

const CALLS: [&str; 5] = ["Allow", "AllowBatch", "AllowStream", "Peek", "Reset"];

const HEAD_BYTES: usize = 5;

static ROUTES: LazyLock<GrpcRoutes<MemoryStore>> = LazyLock::new(|| {
    routes(GrpcOptions {
        reservations: std::sync::Arc::default(),
        engine: engine(),
        authorize: Arc::new(|_| Ok("me".to_owned())),
        resets: None,
        headers: HeaderFamilies::default(),
        body_timeout: Duration::from_secs(5),
        stream_idle_timeout: Duration::from_secs(5),
    })
});

thread_local!(static RUNTIME: Runtime = runtime());

async fn ask(path: &str, body: Bytes) -> Option<Bytes> {
    let request = Request::post(path).header("content-type", "application/grpc");
    let response = ROUTES.call(request.body(Full::new(body)).unwrap()).await;
    assert!(response.status().is_success());
    let head_status = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.unwrap();
    let status = body.trailers().and_then(|trailers| trailers.get("grpc-status")).cloned();
    let status = head_status.or(status).expect("every answer has a status");
    // 13 is INTERNAL: nothing that a caller sends may lead to it.
    assert_ne!(status, "13");
    (status == "0").then(|| body.to_bytes())
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, message)) = choice(input) else { return };
    let call = CALLS[usize::from(kind & 0x7f) % CALLS.len()];
    let is_raw = kind & 0x80 != 0;
    let mut framed = Vec::with_capacity(message.len() + HEAD_BYTES);
    if !is_raw {
        framed.push(0);
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    }
    framed.extend_from_slice(message);
    let path = format!("/tollgate.v1.RateLimiterService/{call}");
    let answer = RUNTIME.with(|runtime| runtime.block_on(ask(&path, framed.into())));
    let Some(answer) = answer.filter(|_| !is_raw) else { return };
    match call {
        "AllowBatch" => {
            let answer = v1::AllowBatchResponse::decode(&answer[HEAD_BYTES..]).unwrap();
            // Groups and requests that are no messages are all that the generated code refuses beyond.
            if let Ok(asked) = v1::AllowBatchRequest::decode(message) {
                assert_eq!(answer.decisions.len(), asked.requests.len());
            }
        }
        "AllowStream" => {
            let answer = v1::AllowStreamResponse::decode(&answer[HEAD_BYTES..]).unwrap();
            if let Ok(asked) = v1::AllowStreamRequest::decode(message) {
                assert_eq!((answer.id, answer.decisions.len()), (asked.id, asked.requests.len()));
            }
        }
        "Allow" => {
            v1::AllowRequest::decode(message).expect("what is taken is a message");
            v1::AllowResponse::decode(&answer[HEAD_BYTES..]).unwrap();
        }
        _ => {}
    }
});
