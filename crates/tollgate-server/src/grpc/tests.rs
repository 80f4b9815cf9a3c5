//! The gRPC API by the generated clients, and by hand where those send only what is right.

use std::task::{Context, Poll};

use futures_util::{StreamExt, stream};
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt, Full, StreamBody};
use prost::Message;
use tollgate_core::SECOND;
use tollgate_engine::{Amounts, Decision, ManualClock, Request as Asked, Verdict};
use tollgate_policy::prices::format_nanos;
use tollgate_policy::{Known, RuleSet};
use tollgate_proto::v1;
use tollgate_proto::v1::decided::Result as Item;
use tollgate_proto::v1::rate_limiter_service_client::RateLimiterServiceClient;
use tollgate_store::{MemoryStore, Mode};
use tonic::{Code, Request as Call};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::*;

const RULES: &str = "
default: false
rules:
- {rule_id: per-user, scope: USER, identifier_type: user_id, limit: 3, window: 1d, algorithm: fixed_window, soft_limit: 0.6}
- {rule_id: per-tenant, scope: TENANT_GLOBAL, identifier_type: tenant_id, limit: 100, burst: 7, window: 1h, algorithm: token_bucket}
- {rule_id: watched, scope: w, identifier_type: user_id, action: log_only, limit: 0, window: 1d, algorithm: fixed_window}
- {rule_id: paced, scope: p, identifier_type: ip, action: throttle, max_delay_ms: 5000, limit: 1, burst: 1, window: 1s, algorithm: leaky_bucket}
- {rule_id: slots, scope: s, identifier_type: api_key, unit: concurrency, limit: 2}
- {rule_id: later, scope: q, key_by: [region], action: queue, limit: 1, window: 1d, algorithm: fixed_window}
deny_list: ['user_id:mallory']
";

struct Operators;

impl ResetAuth for Operators {
    fn may_reset<'a>(
        &'a self,
        headers: &'a HeaderMap,
        asked: ResetAsked<'a>,
    ) -> std::pin::Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        let is_operator = headers.get("authorization").is_some_and(|given| given == "Bearer op");
        let tenant = asked.attributes.get(Known::TenantId);
        Box::pin(async move { is_operator && tenant != Some("other") })
    }
}

fn engine() -> Arc<Engine<MemoryStore>> {
    let rules = RuleSet::from_yaml(RULES, "t").unwrap();
    let clock = ManualClock::new(1_000_000 * SECOND);
    let engine = Engine::new(MemoryStore::new(10_000), Arc::new(clock), rules);
    Arc::new(engine.with_missing_key(tollgate_engine::MissingKey::Allow))
}

pub(super) fn routes_with(idle: Duration) -> Arc<GrpcRoutes<MemoryStore>> {
    Arc::new(routes(GrpcOptions {
        reservations: Arc::default(),
        engine: engine(),
        authorize: Arc::new(|headers| match headers.get("authorization") {
            Some(given) if given == "Bearer wrong" => Err(Unauthorized),
            _ => Ok("me".to_owned()),
        }),
        resets: Some(Arc::new(Operators)),
        headers: HeaderFamilies::default(),
        descriptor_stats: Arc::default(),
        body_timeout: Duration::from_secs(5),
        stream_idle_timeout: idle,
    }))
}

/// A connection to the routes without a network between.
#[derive(Clone)]
struct Direct(Arc<GrpcRoutes<MemoryStore>>);

impl Service<Request<Body>> for Direct {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let routes = Arc::clone(&self.0);
        Box::pin(async move { Ok(routes.call(request).await) })
    }
}

fn direct() -> Direct {
    Direct(routes_with(Duration::from_secs(60)))
}

fn client() -> RateLimiterServiceClient<Direct> {
    RateLimiterServiceClient::new(direct())
}

pub(super) fn user(user_id: &str) -> v1::AllowRequest {
    v1::AllowRequest { user_id: user_id.to_owned(), ..v1::AllowRequest::default() }
}

fn instant(at: u64) -> prost_types::Timestamp {
    let (seconds, nanos) = ((at / SECOND).cast_signed(), (at % SECOND) as i32);
    prost_types::Timestamp { seconds, nanos }
}

/// The same decision as the generated message, put together without hurry.
fn expected(decision: &Decision<'_>) -> v1::AllowResponse {
    let deciding = decision.deciding();
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let scope = |scope: &tollgate_engine::Scope<'_>| v1::Scope {
        name: scope.rule.scope.clone(),
        rule_id: scope.rule.id.clone(),
        limit: scope.quota,
        current: scope.outcome.status.used,
        remaining: scope.outcome.status.remaining,
        reset_at: Some(instant(scope.outcome.status.reset_at)),
        window_seconds: scope.limit.window_seconds,
        burst: (scope.capacity != scope.quota).then_some(scope.capacity),
        money: scope.rule.currency.map(|currency| v1::MoneyFigures {
            currency: currency.code().to_owned(),
            limit: format_nanos(scope.quota),
            current: format_nanos(scope.outcome.status.used),
            remaining: format_nanos(scope.outcome.status.remaining),
        }),
    };
    let would_deny = decision.would_deny().map(|scope| v1::WouldDeny {
        name: scope.rule.scope.clone(),
        rule_id: scope.rule.id.clone(),
        reason: scope.rule.reason.clone(),
    });
    v1::AllowResponse {
        allowed: decision.is_allowed(),
        remaining: deciding.map(|scope| scope.outcome.status.remaining),
        reset_at: deciding.map(|scope| instant(scope.outcome.status.reset_at)),
        scope_hit: match deciding {
            Some(scope) if !decision.is_allowed() => scope.rule.scope.clone(),
            _ => String::new(),
        },
        scopes: decision.scopes().map(scope).collect(),
        reason: decision.reason_code().to_owned(),
        rule_id: text(deciding.map(|scope| scope.rule.id.as_str())),
        effective_limit: decision.effective_limit(),
        retry_after_ms: decision.retry_after().map(|nanos| nanos.div_ceil(1_000_000)),
        wait_ms: decision.wait.div_ceil(1_000_000),
        warnings: decision
            .warnings()
            .map(|warning| tollgate_tower::headers::warning_text(&warning))
            .collect(),
        degraded: decision.degraded.is_some(),
        degraded_reason: decision.degraded_reason().unwrap_or_default(),
        would_deny: would_deny.collect(),
        action: match decision.verdict {
            Verdict::Denied => "reject".to_owned(),
            Verdict::Queued => "queue".to_owned(),
            _ => String::new(),
        },
        explanation: if decision.is_allowed() { String::new() } else { decision.explain() },
        reservation_id: decision
            .reservation_id()
            .map(|id| format!("{id:032x}"))
            .unwrap_or_default(),
        rules_version: decision.rules_version,
    }
}

#[tokio::test]
async fn decisions_are_written_as_the_generated_code_would() {
    let engine = engine();
    let rules = engine.rules();
    let kinds: [&[(Known, &str)]; 6] = [
        &[(Known::UserId, "ann"), (Known::TenantId, "acme")],
        &[(Known::UserId, "mallory")],
        &[(Known::Ip, "10.0.0.1")],
        &[(Known::ApiKey, "k"), (Known::TenantId, "acme")],
        &[],
        &[(Known::TenantId, "x")],
    ];
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..9 {
        for kind in kinds {
            let cost = (round == 8).then_some(99);
            let amounts = Amounts { cost, ..Amounts::NONE };
            let mut request = Asked { amounts, ..Asked::default() };
            for (known, value) in kind {
                request.attributes.set(*known, value);
            }
            if kind.is_empty() && round > 0 {
                request.attributes.push_extra("region", "eu");
            }
            let decision = engine.decide(&rules, &request, Mode::Charge).await.unwrap();
            let mut bytes = Vec::new();
            write::write_decision(&mut write::Message(&mut bytes), &decision);
            let expected = expected(&decision);
            assert_eq!(v1::AllowResponse::decode(&*bytes).unwrap(), expected);
            assert_eq!(bytes, expected.encode_to_vec(), "not one byte differs");
            seen.insert((expected.reason, expected.action, expected.warnings.len()));
        }
    }
    assert!(seen.len() >= 8, "{seen:?}");
}

#[tokio::test]
async fn allow_and_peek() {
    let mut client = client();
    for left in [2, 1, 0] {
        let answer = client.allow(user("ann")).await.unwrap().into_inner();
        assert_eq!((answer.allowed, answer.remaining), (true, Some(left)));
        assert_eq!(answer.would_deny.len(), 1);
    }
    let answer = client.allow(user("ann")).await.unwrap().into_inner();
    assert!(!answer.allowed && answer.retry_after_ms.is_some(), "a refusal is an answer");
    assert_eq!((&*answer.scope_hit, &*answer.reason), ("USER", "HIT_USER_LIMIT"));
    for _ in 0..3 {
        let asked = v1::PeekRequest { request: Some(user("bob")) };
        let peeked = client.peek(asked).await.unwrap().into_inner().decision.unwrap();
        assert_eq!((peeked.allowed, peeked.remaining), (true, Some(3)));
    }
}

#[tokio::test]
async fn what_is_wrong_is_said_with_the_field() {
    let mut client = client();
    let long = user(&"x".repeat(257));
    let error = client.allow(long.clone()).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().starts_with("user_id: "), "{}", error.message());
    for (ip, endpoint, field) in [("nowhere", "", "ip: "), ("", "login", "endpoint: ")] {
        let mut bad = user("ann");
        (bad.ip, bad.endpoint) = (ip.to_owned(), endpoint.to_owned());
        let error = client.allow(bad).await.unwrap_err();
        assert!(error.message().starts_with(field), "{}", error.message());
    }
    let mut bad = user("ann");
    bad.attributes.insert("user_id".to_owned(), "bob".to_owned());
    assert_eq!(client.allow(bad).await.unwrap_err().code(), Code::InvalidArgument);

    let mut first = user("ann");
    first.request_id = "r".to_owned();
    assert!(client.allow(first.clone()).await.unwrap().into_inner().allowed);
    let again = client.allow(first.clone()).await.unwrap().into_inner();
    assert_eq!(again.remaining, Some(2), "answered, and not charged again");
    first.user_id = "bob".to_owned();
    assert_eq!(client.allow(first).await.unwrap_err().code(), Code::AlreadyExists);

    let requests = vec![user("ann"), long, user("mallory")];
    let batch = client.allow_batch(v1::AllowBatchRequest { requests }).await.unwrap();
    let results: Vec<_> = batch.into_inner().decisions.into_iter().map(|d| d.result).collect();
    let [Some(Item::Decision(one)), Some(Item::Error(two)), Some(Item::Decision(three))] =
        &results[..]
    else {
        panic!("{results:?}")
    };
    assert!(one.allowed && !three.allowed && three.reason == "DENY_LISTED");
    assert_eq!((&*two.code, &*two.field), ("INVALID_REQUEST", "user_id"));
    let requests = vec![user("ann"); 1_001];
    let error = client.allow_batch(v1::AllowBatchRequest { requests }).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn tokens_and_resets() {
    fn with<T>(token: &str, request: T) -> Call<T> {
        let mut call = Call::new(request);
        call.metadata_mut().insert("authorization", token.parse().unwrap());
        call
    }
    let mut client = client();
    let error = client.allow(with("Bearer wrong", user("ann"))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unauthenticated);
    client.allow(user("ann")).await.unwrap();
    let attributes = [("region".to_owned(), "eu".to_owned())].into();
    let ann = v1::AllowRequest { attributes, ..user("ann") };
    let reset = |rule_ids| v1::ResetRequest { request: Some(ann.clone()), rule_ids };
    assert_eq!(client.reset(reset(vec![])).await.unwrap_err().code(), Code::PermissionDenied);
    // A counter by region is shared: it is reset only by the name of its rule.
    let later = "later".to_owned();
    for (asked, done) in [(vec![], &["per-user", "watched"][..]), (vec![later], &["later"][..])] {
        let answer = client.reset(with("Bearer op", reset(asked))).await.unwrap();
        assert_eq!(answer.into_inner().rule_ids, done);
    }
    assert_eq!(client.allow(user("ann")).await.unwrap().into_inner().remaining, Some(2));
}

#[tokio::test]
async fn reservations_are_made_and_end_once() {
    let mut client = client();
    let asked = |ttl_ms| v1::ReserveRequest { request: Some(user("ann")), ttl_ms, more: false };
    let error = client.reserve(asked(Some(0))).await.unwrap_err();
    assert_eq!((error.code(), error.message().contains("ttl_ms")), (Code::InvalidArgument, true));
    let reserved = client.reserve(asked(Some(90_000))).await.unwrap().into_inner();
    assert_eq!(reserved.expires_at, Some(instant(1_000_090 * SECOND)));
    let id = reserved.decision.unwrap().reservation_id;
    let renew = v1::RenewRequest { reservation_id: id.clone(), ttl_ms: Some(120_000) };
    let renewed = client.renew(renew).await.unwrap().into_inner();
    assert_eq!((renewed.renewed, renewed.expires_at), (true, Some(instant(1_000_120 * SECOND))));
    let release = v1::ReleaseRequest { reservation_id: id.clone() };
    for _ in 0..2 {
        assert!(client.release(release.clone()).await.unwrap().into_inner().released);
    }
    let answer = client.allow(user("ann")).await.unwrap().into_inner();
    assert_eq!(answer.remaining, Some(2), "the call was given back");
    let settle = v1::SettleRequest { reservation_id: id, ..v1::SettleRequest::default() };
    let error = client.settle(settle).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("was released before"), "{}", error.message());
    let unknown = v1::ReleaseRequest { reservation_id: "0".repeat(32) };
    assert_eq!(client.release(unknown).await.unwrap_err().code(), Code::NotFound);
    let wrong = v1::ReleaseRequest { reservation_id: "x".to_owned() };
    assert_eq!(client.release(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    let slot = v1::AllowRequest { api_key: "k".to_owned(), ..v1::AllowRequest::default() };
    let held = client.allow(slot).await.unwrap().into_inner().reservation_id;
    let release = v1::ReleaseRequest { reservation_id: held };
    assert!(client.release(release).await.unwrap().into_inner().released);
}

#[tokio::test]
async fn a_stream_answers_in_order() {
    let mut client = client();
    let question = |id, users: &[&str]| v1::AllowStreamRequest {
        id,
        requests: users.iter().map(|name| user(name)).collect(),
    };
    let questions: Vec<_> = (0..2_500)
        .map(|id| match id % 5 {
            0 => question(id, &[]),
            1 => question(id, &["ann", "mallory", "ann"]),
            _ => question(id, &["bob"]),
        })
        .collect();
    let asked = questions.clone();
    let answers = client.allow_stream(stream::iter(asked)).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    assert_eq!(answers.len(), questions.len());
    let mut allowed = 0;
    for (question, answer) in questions.iter().zip(&answers) {
        assert_eq!((question.id, question.requests.len()), (answer.id, answer.decisions.len()));
        for decided in &answer.decisions {
            let Some(Item::Decision(decision)) = &decided.result else { panic!() };
            allowed += u32::from(decision.allowed);
        }
    }
    assert_eq!(allowed, 6, "three of ann's, three of bob's");
}

fn framed(message: &impl Message) -> Vec<u8> {
    service::framed_message(message)
}

fn post(path: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body.into()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.parse().unwrap();
    let kind = HeaderValue::from_static("application/grpc");
    request.headers_mut().insert(CONTENT_TYPE, kind);
    request
}

const STREAM: &str = "/tollgate.v1.RateLimiterService/AllowStream";

/// The messages of an answer and its status.
async fn received(response: Response<Body>) -> (Vec<v1::AllowStreamResponse>, i32) {
    let status = |headers: &HeaderMap| {
        let value = headers.get("grpc-status")?;
        value.to_str().ok()?.parse::<i32>().ok()
    };
    let early = status(response.headers());
    let collected = response.into_body().collect().await.unwrap();
    let status = early.or_else(|| status(collected.trailers()?)).unwrap();
    let mut bytes = collected.to_bytes();
    let mut messages = Vec::new();
    while let Some(head) = bytes.first_chunk::<{ frame::HEAD_BYTES }>() {
        let length = frame::length(*head).unwrap();
        let message = bytes.split_to(frame::HEAD_BYTES + length);
        let message = &message[frame::HEAD_BYTES..];
        messages.push(v1::AllowStreamResponse::decode(message).unwrap());
    }
    (messages, status)
}

#[tokio::test]
async fn a_stream_is_cut_anywhere_and_read_alike() {
    let questions: Vec<u8> = (0..5_u64)
        .flat_map(|id| framed(&v1::AllowStreamRequest { id, requests: vec![user("ann")] }))
        .collect();
    for size in 1..questions.len() {
        let parts: Vec<_> = questions
            .chunks(size)
            .map(|part| Ok::<_, Infallible>(http_body::Frame::data(Bytes::copy_from_slice(part))))
            .collect();
        let body = StreamBody::new(stream::iter(parts));
        let request = post(STREAM, Vec::new()).map(|_| body);
        let (answers, status) = received(direct().0.call(request).await).await;
        let ids: Vec<u64> = answers.iter().map(|answer| answer.id).collect();
        assert_eq!((ids, status), ((0..5).collect(), 0));
    }
}

#[tokio::test]
async fn a_stream_ends_with_what_was_wrong_after_what_was_right() {
    let good = framed(&v1::AllowStreamRequest { id: 7, requests: vec![user("ann")] });
    let crowded = v1::AllowStreamRequest { id: 8, requests: vec![user("ann"); 1_001] };
    let endings: [(Vec<u8>, Code); 5] = [
        (b"\0\0\0\0\x05abc".to_vec(), Code::InvalidArgument),
        (b"\0\0\0\0\x01\xff".to_vec(), Code::InvalidArgument),
        (b"\x01\0\0\0\x01a".to_vec(), Code::Unimplemented),
        (b"\0\xff\xff\xff\xff".to_vec(), Code::ResourceExhausted),
        (framed(&crowded), Code::InvalidArgument),
    ];
    for (ending, code) in endings {
        let body = [good.clone(), ending].concat();
        let (answers, status) = received(direct().0.call(post(STREAM, body)).await).await;
        assert_eq!((answers.len(), status), (1, code as i32));
    }
}

#[tokio::test]
async fn a_silent_stream_ends_and_so_does_one_of_a_draining_node() {
    let silent = || {
        post(STREAM, Vec::new()).map(|_| {
            StreamBody::new(stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>())
        })
    };
    let routes = routes_with(Duration::from_millis(1));
    let (answers, status) = received(routes.call(silent()).await).await;
    assert_eq!((answers.len(), status), (0, Code::Unavailable as i32));
    let routes = routes_with(Duration::from_secs(3_600));
    let response = routes.call(silent()).await;
    routes.drain();
    assert_eq!(received(response).await.1, Code::Unavailable as i32);
}

#[tokio::test]
async fn what_is_no_call_is_turned_away() {
    let routes = direct().0;
    let mut get = post("/tollgate.v1.RateLimiterService/Allow", Vec::new());
    *get.method_mut() = Method::GET;
    assert_eq!(routes.call(get).await.status(), 415);
    let mut json = post("/tollgate.v1.RateLimiterService/Allow", Vec::new());
    json.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    assert_eq!(routes.call(json).await.status(), 415);
    for path in ["/", "/x", "/tollgate.v1.RateLimiterService/Nothing", "/a/b/c"] {
        let response = routes.call(post(path, Vec::new())).await;
        assert_eq!(received(response).await.1, Code::Unimplemented as i32, "{path}");
    }
    let allow = "/tollgate.v1.RateLimiterService/Allow";
    for body in [Vec::new(), b"\0\0\0\0\x01".to_vec(), b"\0\0\0\0\x01\xff".to_vec()] {
        let response = routes.call(post(allow, body)).await;
        assert_eq!(received(response).await.1, Code::InvalidArgument as i32);
    }
    let large = vec![0; MAX_MESSAGE_BYTES + frame::HEAD_BYTES + 1];
    let response = routes.call(post(allow, large)).await;
    assert_eq!(received(response).await.1, Code::ResourceExhausted as i32);
}

#[tokio::test]
async fn health_until_it_drains() {
    let direct = direct();
    let mut client = HealthClient::new(direct.clone());
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for service in ["", SERVICE, ENVOY_SERVICE, "ratelimit"] {
        let answer = client.check(ask(service)).await;
        assert_eq!(answer.map(|answer| answer.into_inner().status).ok(), Some(1), "{service}");
    }
    assert_eq!(client.check(ask("x")).await.unwrap_err().code(), Code::NotFound);
    let mut watched = client.watch(ask("")).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
    direct.0.drain();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 2);
    assert!(watched.message().await.unwrap().is_none(), "a watch does not hold the process up");
    assert_eq!(client.check(ask("")).await.unwrap().into_inner().status, 2);
}

#[tokio::test]
async fn reflection_lists_what_is_served() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let mut client = ServerReflectionClient::new(direct());
    let list = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..ServerReflectionRequest::default()
    };
    let answers = client.server_reflection_info(stream::iter([list])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!()
    };
    let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    for service in [SERVICE, ENVOY_SERVICE, "grpc.health.v1.Health"] {
        assert!(names.iter().any(|name| name == service), "{names:?}");
    }
    let alpha = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
    let response = direct().0.call(post(alpha, Vec::new())).await;
    assert_eq!(received(response).await.1, 0);
}
