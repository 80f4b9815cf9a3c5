//! `POST /rate-limit/allow` and its siblings: JSON from a caller. Whatever it is, the answer is never a server error.
#![no_main]

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;
use tollgate_fuzz::{choice, engine, runtime};
use tollgate_server::config::{Config, Overrides};
use tollgate_server::http::Api;
use tollgate_store::MemoryStore;

const PATHS: [&str; 4] =
    ["/rate-limit/allow", "/rate-limit/allow/batch", "/rate-limit/peek", "/rate-limit/check"];

static API: LazyLock<Arc<Api<MemoryStore>>> = LazyLock::new(|| {
    let overrides = Overrides { data_dir: Some("null".into()), ..Overrides::default() };
    let config = Config::load(None, std::iter::empty(), &overrides).unwrap();
    Arc::new(Api::new(engine(), Arc::new(config), Box::new(String::new)))
});

thread_local!(static RUNTIME: Runtime = runtime());

fuzz_target!(|input: &[u8]| {
    let Some((kind, body)) = choice(input) else { return };
    let request = Request::post(PATHS[usize::from(kind) % PATHS.len()])
        .header("content-type", "application/json")
        .body(Full::new(Bytes::copy_from_slice(body)))
        .unwrap();
    let answered = RUNTIME.with(|runtime| runtime.block_on(API.answer(request, None)));
    let Ok(response) = answered;
    assert!(!response.status().is_server_error(), "{}", response.status());
});
