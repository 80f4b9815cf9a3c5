//! Requests that a remote Tollgate decides: tokens are reserved there, and settled when the actual cost is known.

use serde_json::json;
use tollgate_client::{Client, OnFailure};
use tollgate_e2e::{Server, ServerBuilder, eventually};
use tollgate_tower::{
    Decide, Dialect, EdgeRequest, Format, HeaderFamilies, Identity, Pass, PendingCharge, Remote,
    Ruling, Usage,
};

const RULES: &str = "
default: false
rules:
  - {rule_id: tokens, identifier_type: user_id, unit: tokens, limit: 1000, window: 365d, algorithm: fixed_window}
  - {rule_id: calls, identifier_type: user_id, limit: 1000, window: 365d, algorithm: fixed_window}
  - {rule_id: slots, identifier_type: user_id, unit: concurrency, algorithm: concurrency, limit: 2, slot_ttl: 1h}
";

fn asked(tokens: Option<u64>) -> EdgeRequest {
    let identity = Identity { user_id: Some("ann".to_owned()), ..Identity::default() };
    EdgeRequest { identity, tokens, dialect: Dialect::OpenAi, ..EdgeRequest::default() }
}

fn used(server: &Server) -> [u64; 3] {
    let peeked = server.client().post("/rate-limit/peek", &json!({"userId": "ann"})).json();
    let scopes = peeked["scopes"].as_array().expect("scopes").clone();
    ["tokens", "calls", "slots"].map(|rule| {
        let scope = scopes.iter().find(|scope| scope["ruleId"] == rule);
        scope.and_then(|scope| scope["current"].as_u64()).expect("a count")
    })
}

fn released(server: &Server) -> u64 {
    let metrics = server.client().get("/metrics").text();
    let name = "rate_limiter_reservations_total{state=\"released\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.expect("a counter").parse().expect("a number")
}

async fn pass(remote: &Remote, tokens: Option<u64>) -> Pass {
    match remote.decide(&asked(tokens)).await {
        Ruling::Pass(pass) => pass,
        other => panic!("{other:?}"),
    }
}

/// Sends a request: its charge is kept, and settled by the pending.
fn sent(pass: &mut Pass) -> Option<PendingCharge> {
    std::mem::take(&mut pass.charge).sent().take_pending()
}

fn remote(client: Client, on_failure: OnFailure) -> Remote {
    Remote::new(client, on_failure, HeaderFamilies::default())
}

async fn settles(server: &Server, client: Client) {
    let remote = remote(client, OnFailure::Closed);
    let [tokens, calls, slots] = used(server);
    assert_eq!(slots, 0);

    // What it used is paid, and the slot comes back.
    let mut one = pass(&remote, Some(100)).await;
    assert_eq!(used(server), [tokens + 100, calls + 1, 1], "reserved there");
    let pending = sent(&mut one).expect("a pending");
    assert_eq!(pending.tokens(), 100);
    pending.settle(Usage::new(10, 20));
    drop(one);
    eventually("it is settled", || used(server) == [tokens + 30, calls + 1, 0]);

    // What was not sent costs nothing, and what nobody says a word about stays as estimated.
    let mut two = pass(&remote, Some(100)).await;
    drop(std::mem::take(&mut two.charge));
    eventually("it is given back", || used(server) == [tokens + 30, calls + 1, 0]);
    drop(two);
    let mut three = pass(&remote, Some(10)).await;
    drop(sent(&mut three));
    assert_eq!(used(server)[2], 1, "under way");
    drop(three);
    eventually("its slot is given back", || used(server) == [tokens + 40, calls + 2, 0]);

    // Without tokens there is a slot, and no pending.
    let four = pass(&remote, None).await;
    assert!(four.charge.tokens().is_none() && four.held.is_some());
    drop(four);
    eventually("its slot is given back", || used(server) == [tokens + 40, calls + 3, 0]);

    // More of a request is tokens alone, and settled by itself.
    let mut five = pass(&remote, Some(10)).await;
    let more = EdgeRequest { is_more: true, ..asked(Some(50)) };
    let Ruling::Pass(mut topped) = remote.decide(&more).await else {
        panic!("there is room for more")
    };
    assert_eq!(used(server), [tokens + 100, calls + 4, 1]);
    sent(&mut five).expect("a pending").settle(Usage::new(10, 0));
    sent(&mut topped).expect("a pending").settle(Usage::new(0, 20));
    drop((five, topped));
    eventually("both are settled", || used(server) == [tokens + 70, calls + 4, 0]);

    let Ruling::Refuse(refusal) = remote.decide(&asked(Some(990))).await else {
        panic!("there is no room for so much")
    };
    let refusal = refusal.into_response(Format::Model(Dialect::OpenAi));
    assert_eq!(refusal.status(), 429);
    assert!(refusal.headers().contains_key("retry-after-ms"), "{:?}", refusal.headers());
    assert_eq!(used(server), [tokens + 70, calls + 4, 0], "nothing is charged");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_reserved_remotely_and_settled() {
    let server = ServerBuilder::default().rules(RULES).start();
    settles(&server, Client::http(&format!("http://{}", server.addr())).expect("a client")).await;
    settles(&server, Client::grpc(&format!("http://{}", server.grpc_addr())).expect("a client"))
        .await;
}

/// A caller that leaves before it has heard of its reservation leaves none behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_nobody_heard_of_is_given_back() {
    let server = ServerBuilder::default().rules(RULES).start();
    let client = Client::http(&format!("http://{}", server.addr())).expect("a client");
    let remote = remote(client, OnFailure::Closed);
    let asked = asked(Some(100));
    let mut deciding = Box::pin(remote.decide(&asked));
    let begun = futures_util::poll!(&mut deciding);
    assert!(begun.is_pending(), "it cannot be answered yet");
    drop(deciding);
    eventually("it is released", || released(&server) == 1);
    assert_eq!(used(&server), [0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_answers_the_policy_decides() {
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    };
    let client = Client::http(&gone).expect("a client");
    let open = pass(&remote(client.clone(), OnFailure::Open), Some(100)).await;
    assert!(open.charge.tokens().is_none() && open.held.is_none(), "nothing was charged");
    let closed = remote(client, OnFailure::Closed);
    let ruling = closed.decide(&asked(Some(100))).await;
    assert!(matches!(ruling, Ruling::Refuse(refusal) if refusal.status == 503));
}
