//! T4: the HTTP handler without HTTP: from a body to the whole answer, call by call.

use std::sync::Arc;

use ::http::{Method, Request};
use bytes::Bytes;
use http_body_util::Full;
use tollgate_bench::once::poll;
use tollgate_bench::record::{compare, record};
use tollgate_bench::{http, rules};
use tollgate_engine::Engine;
use tollgate_server::config::{Config, Overrides};
use tollgate_server::http::Api;
use tollgate_store::MemoryStore;

use super::decide::{USERS, engine};

pub fn api(rule_count: usize) -> Arc<Api<MemoryStore>> {
    let overrides = Overrides { data_dir: Some("null".into()), ..Overrides::default() };
    let config = Config::load(None, std::iter::empty(), &overrides).unwrap();
    let engine: Engine<MemoryStore> = engine(rule_count);
    Arc::new(Api::new(Arc::new(engine), Arc::new(config), Box::new(String::new)))
}

pub fn bodies(count: usize) -> Vec<Bytes> {
    rules::callers(USERS, count).iter().map(|caller| Bytes::from(caller.body())).collect()
}

pub fn answer(api: &Arc<Api<MemoryStore>>, body: &Bytes) {
    let request = Request::builder().method(Method::POST).uri(http::PATH);
    let request = request.header("content-type", "application/json");
    let request = request.body(Full::new(body.clone())).unwrap();
    let response = poll(api.answer(request, None)).unwrap();
    assert!(response.status().is_success());
}

pub fn run(quick: bool) {
    let count = if quick { 100_000 } else { 1_000_000 };
    println!("\nT4: the HTTP handler, call by call, 1,000 rules of which 3 match");
    let api = api(1_000);
    let bodies = bodies(count);
    let clock = quanta::Clock::new();
    let mut nanos: Vec<u64> = Vec::with_capacity(count);
    for _ in 0..2 {
        nanos.clear();
        for body in &bodies {
            let start = clock.raw();
            answer(&api, body);
            nanos.push(clock.delta_as_nanos(start, clock.raw()));
        }
    }
    nanos.sort_unstable();
    let micros = |share: f64| nanos[(count as f64 * share) as usize - 1] as f64 / 1e3;
    let figure = format!("{:.1} µs", micros(0.99));
    record("T4", "p99 inside the handler", &figure, "<= 20 µs", Some(micros(0.99) <= 20.0));
    let figure = format!("{:.1} µs, {:.1} µs", micros(0.5), micros(0.999));
    compare("T4", "p50, p99.9 inside the handler", &figure);
}
