//! The layer on a third-party store that has to be awaited.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollgate_core::SECOND;
use tollgate_engine::{Engine, ManualClock};
use tollgate_policy::RuleSet;
use tollgate_policy::prices::Usage;
use tollgate_store::conformance::Awaited;
use tollgate_tower::{
    Decide as _, EdgeRequest, HeaderFamilies, InProcess, Peer, Ruling, TollgateLayer, unfinished,
};
use tower_layer::Layer as _;
use tower_service::Service;

#[derive(Clone)]
struct Upstream;

impl Service<Request<()>> for Upstream {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::default()))
    }
}

fn decider(rules: &str, is_in_process: bool) -> InProcess<Awaited> {
    let rules = RuleSet::from_yaml(&format!("default: false\n{rules}"), "t").unwrap();
    let clock = Arc::new(ManualClock::new(SECOND));
    let engine = Engine::new(Awaited::new(is_in_process), clock, rules);
    InProcess::new(Arc::new(engine), HeaderFamilies::default())
}

fn get() -> Request<()> {
    let mut request = Request::get("/a").body(()).unwrap();
    request.extensions_mut().insert(Peer(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    request
}

#[tokio::test]
async fn requests_are_limited() {
    let rule = "rules: [{rule_id: per-ip, identifier_type: ip, limit: 2, window: 1h, algorithm: fixed_window}]";
    for is_in_process in [false, true] {
        let mut service = TollgateLayer::new(decider(rule, is_in_process)).layer(Upstream);
        for expected in [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            assert_eq!(service.call(get()).await.unwrap().status(), expected);
        }
    }
}

#[tokio::test]
async fn slots_and_estimates_are_returned_in_the_background() {
    let rules = "
rules:
- {rule_id: slots, identifier_type: global, unit: concurrency, limit: 1}
- {rule_id: tokens, identifier_type: global, unit: tokens, limit: 100, window: 1h, algorithm: fixed_window}
";
    for is_in_process in [false, true] {
        let decider = decider(rules, is_in_process);
        let asked = EdgeRequest { tokens: Some(90), ..EdgeRequest::default() };
        assert!(decider.decide_now(&asked).is_none(), "it has to be awaited");
        // Each one settles at 10 of its 90 tokens: six fit, were nothing returned the second would not.
        for _ in 0..2 {
            let Ruling::Pass(pass) = decider.decide(&asked).await else {
                panic!("refused");
            };
            let Ruling::Refuse(_) = decider.decide(&asked).await else {
                panic!("one slot, and 90 of 100 tokens");
            };
            let mut sent = pass.charge.sent();
            sent.take_pending().unwrap().settle(Usage::new(2, 3));
            drop(pass.held);
            while unfinished() > 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}
