//! A request id that nodes share over a real server whose answers are lost: it is charged once.

#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests: a panic is how they fail")]

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_core::SECOND;
use tollgate_engine::{Decision, Engine, EngineError, Request, SystemClock};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::Mode;
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_testkit::{Cluster, FaultProxy, PATIENCE, Redis};

const RULES: &str = "
default: false
rules:
- {rule_id: tenant, identifier_type: tenant_id, limit: 1000, window: 30d, algorithm: fixed_window,
   unit: cost, on_store_failure: closed}
";

/// Of one attempt: each call to Redis makes two.
const TIMEOUT: Duration = Duration::from_millis(400);

type Node = Engine<Resilient<RedisStore>>;

async fn node(kind: RedisKind, url: String, name: &str) -> Node {
    let (urls, timeout) = (vec![url], TIMEOUT);
    let options = RedisOptions { kind, urls, timeout, ..RedisOptions::default() };
    let redis = RedisStore::connect(options).await.unwrap();
    let store = Resilient::new(redis, ResilientOptions::new(name.to_owned()));
    let rules = RuleSet::from_yaml(RULES, "t").unwrap();
    Engine::new(store, Arc::new(SystemClock::default()), rules)
}

/// A request of a tenant, whose name is also its id.
fn request(tenant: &str, reserve: bool) -> Request<'_> {
    let mut request = Request { request_id: Some(tenant), ..Request::default() };
    request.amounts.cost = Some(10);
    request.attributes.set(Known::TenantId, tenant);
    request.reserve = reserve.then_some(60 * SECOND);
    request
}

fn is_allowed(decision: &Decision<'_>) -> bool {
    decision.is_allowed()
}

/// Whether the request was allowed.
async fn ask(node: &Node, tenant: &str, reserve: bool) -> Result<bool, EngineError> {
    let rules = node.rules();
    let request = request(tenant, reserve);
    node.decide_once(&rules, &request, is_allowed).await
}

/// Asks until the request is allowed: while the store is unavailable it is refused.
async fn ask_until_allowed(node: &Node, tenant: &str, reserve: bool) {
    let deadline = node.clock().now() + PATIENCE.as_nanos() as u64;
    loop {
        let _ = node.store().heal(node.clock().now()).await;
        match ask(node, tenant, reserve).await {
            Ok(true) => return,
            Ok(false) | Err(EngineError::Store(_) | EngineError::RequestIdInUse) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(node.clock().now() < deadline, "never allowed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the server has counted for a tenant.
async fn used(node: &Node, tenant: &str) -> u64 {
    let rules = node.rules();
    let request = Request { request_id: None, ..request(tenant, false) };
    let decision = node.decide(&rules, &request, Mode::Peek).await.unwrap();
    assert!(decision.degraded.is_none());
    decision.scopes().next().unwrap().outcome.status.used
}

/// So many answers are lost to one node, from its claim on; then another node is asked under the same id. Each case has servers
/// or proxies of its own, so that all of them wait for claims to expire at the same time.
async fn is_charged_once(first: Node, second: Node, proxy: FaultProxy, lost: usize, reserve: bool) {
    let name = format!("{lost} {reserve}");
    ask_until_allowed(&first, "warm", false).await;
    proxy.swallow_replies(lost);
    let answer = ask(&first, &name, reserve).await;
    proxy.heal();
    ask_until_allowed(&second, &name, reserve).await;
    ask_until_allowed(&first, &name, reserve).await;
    let counted = used(&second, &name).await;
    assert_eq!(counted, 10, "{name} answers lost, first answer {answer:?}");
}

/// The number of lost answers, and whether the request reserves.
fn cases() -> impl Iterator<Item = (usize, bool)> {
    (1..=6).flat_map(|lost| [(lost, false), (lost, true)])
}

/// The answers of the claim, of the repeated claim, of the decision or of the publication are lost,
/// whichever come: the calls ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_id_whose_answers_are_lost_is_charged_once() {
    let server = Redis::start();
    let mut all = JoinSet::new();
    for (lost, reserve) in cases() {
        let proxy = FaultProxy::start(server.addr());
        let first = node(RedisKind::Single, proxy.url("redis"), "first").await;
        let second = node(RedisKind::Single, server.url(), "second").await;
        all.spawn(is_charged_once(first, second, proxy, lost, reserve));
    }
    while let Some(case) = all.join_next().await {
        case.unwrap();
    }
}

/// The same on a cluster, where the id and the counter are in different slots. Each case has a cluster whose only node
/// sends its clients to the proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_id_whose_answers_are_lost_is_charged_once_on_a_cluster() {
    let (mut all, mut clusters) = (JoinSet::new(), Vec::new());
    for (lost, reserve) in cases() {
        let cluster = Cluster::start(1, 0);
        let server = cluster.nodes().first().unwrap();
        let proxy = FaultProxy::start(server.addr());
        let port = proxy.addr().port().to_string();
        server.call(&["CONFIG", "SET", "cluster-announce-port", &port]).unwrap().ok().unwrap();
        let first = node(RedisKind::Cluster, proxy.url("redis"), "first").await;
        let second = node(RedisKind::Cluster, proxy.url("redis"), "second").await;
        all.spawn(is_charged_once(first, second, proxy, lost, reserve));
        clusters.push(cluster);
    }
    while let Some(case) = all.join_next().await {
        case.unwrap();
    }
}
