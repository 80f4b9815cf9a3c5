//! `ShouldRateLimit`: a message from Envoy, its descriptors turned into attributes and decided.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use tokio::runtime::Runtime;
use tollgate_fuzz::{engine, runtime};
use tollgate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate_server::envoy::EnvoyService;
use tollgate_store::MemoryStore;
use tollgate_tower::HeaderFamilies;

static SERVICE: LazyLock<EnvoyService<MemoryStore>> =
    LazyLock::new(|| EnvoyService::new(engine(), HeaderFamilies::default()));

thread_local!(static RUNTIME: Runtime = runtime());

fuzz_target!(|message: &[u8]| {
    let Ok(request) = RateLimitRequest::decode(message) else { return };
    let answer =
        RUNTIME.with(|runtime| runtime.block_on(SERVICE.should_rate_limit(&request, "caller")));
    match answer {
        // Envoy reads the statuses by their place.
        Ok(answer) => assert_eq!(answer.statuses.len(), request.descriptors.len()),
        Err(status) => assert_eq!(status.code() as i32, 3, "{status}"),
    }
});
