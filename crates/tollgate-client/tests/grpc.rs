//! Calls over gRPC against the real service description, answered by hand.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tollgate_client::{Check, Client, ClientError, ClientOptions};
use tollgate_proto::v1::rate_limiter_service_server::{
    RateLimiterService, RateLimiterServiceServer,
};
use tollgate_proto::v1::{self as proto, decided};
use tonic::{Request, Response, Status};

/// Refuses user eve, is unavailable to bob, and rejects requests of carl as invalid.
#[derive(Default)]
struct Service {
    asked: Mutex<Vec<proto::AllowRequest>>,
    tokens: Mutex<Vec<Option<String>>>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Service>);

impl Shared {
    fn decide(&self, request: proto::AllowRequest) -> Result<proto::AllowResponse, Status> {
        let user = request.user_id.clone();
        self.0.asked.lock().unwrap().push(request);
        match user.as_str() {
            "bob" => Err(Status::unavailable("the store is away")),
            "carl" => Err(Status::invalid_argument("user_id: too long")),
            user => {
                let refused = user == "eve";
                let reset_at = Some(prost_types::Timestamp { seconds: 100, nanos: 500_000_000 });
                Ok(proto::AllowResponse {
                    allowed: !refused,
                    reason: if refused { "HIT_S_LIMIT" } else { "WITHIN_LIMITS" }.to_owned(),
                    rule_id: "r".to_owned(),
                    remaining: Some(9),
                    reset_at,
                    retry_after_ms: refused.then_some(30_000),
                    wait_ms: 5,
                    scopes: vec![proto::Scope {
                        name: "S".to_owned(),
                        rule_id: "r".to_owned(),
                        limit: 10,
                        current: 1,
                        remaining: 9,
                        reset_at,
                        window_seconds: 60,
                        burst: None,
                        money: None,
                    }],
                    ..Default::default()
                })
            }
        }
    }
}

type Answers = tonic::codegen::BoxStream<proto::AllowStreamResponse>;

#[tonic::async_trait]
impl RateLimiterService for Shared {
    type AllowStreamStream = Answers;

    async fn allow(
        &self,
        request: Request<proto::AllowRequest>,
    ) -> Result<Response<proto::AllowResponse>, Status> {
        let token = request.metadata().get("authorization");
        let token = token.map(|value| value.to_str().unwrap().to_owned());
        self.0.tokens.lock().unwrap().push(token);
        Ok(Response::new(self.decide(request.into_inner())?))
    }

    async fn peek(
        &self,
        request: Request<proto::PeekRequest>,
    ) -> Result<Response<proto::PeekResponse>, Status> {
        let decision = self.decide(request.into_inner().request.unwrap())?;
        Ok(Response::new(proto::PeekResponse { decision: Some(decision) }))
    }

    async fn allow_batch(
        &self,
        request: Request<proto::AllowBatchRequest>,
    ) -> Result<Response<proto::AllowBatchResponse>, Status> {
        let decisions = request.into_inner().requests.into_iter().map(|request| {
            let result = match self.decide(request) {
                Ok(decision) => decided::Result::Decision(decision),
                Err(status) => decided::Result::Error(proto::Error {
                    code: "INVALID_REQUEST".to_owned(),
                    message: status.message().to_owned(),
                    field: "user_id".to_owned(),
                }),
            };
            proto::Decided { result: Some(result) }
        });
        Ok(Response::new(proto::AllowBatchResponse { decisions: decisions.collect() }))
    }

    async fn allow_stream(
        &self,
        _: Request<tonic::Streaming<proto::AllowStreamRequest>>,
    ) -> Result<Response<Answers>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn reserve(
        &self,
        _: Request<proto::ReserveRequest>,
    ) -> Result<Response<proto::ReserveResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn settle(
        &self,
        _: Request<proto::SettleRequest>,
    ) -> Result<Response<proto::SettleResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn release(
        &self,
        _: Request<proto::ReleaseRequest>,
    ) -> Result<Response<proto::ReleaseResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn renew(
        &self,
        _: Request<proto::RenewRequest>,
    ) -> Result<Response<proto::RenewResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn reset(
        &self,
        _: Request<proto::ResetRequest>,
    ) -> Result<Response<proto::ResetResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

async fn start() -> (Shared, String) {
    let own = Shared::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = RateLimiterServiceServer::new(own.clone());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(socket), service));
        }
    });
    (own, url)
}

fn user(name: &str) -> Check {
    Check::new().user_id(name)
}

#[tokio::test]
async fn decisions_come_over_grpc_as_over_http() {
    let (server, url) = start().await;
    let options = ClientOptions { token: Some("secret".to_owned()), ..Default::default() };
    let client = Client::grpc_with(&url, &options).unwrap();
    let check = user("ann").cost(2).attribute("region", "eu").endpoint("/a");
    let decision = client.allow(&check).await.unwrap();
    assert!(decision.allowed && decision.scope_hit.is_none());
    assert_eq!(decision.reset_at, Some(UNIX_EPOCH + Duration::from_millis(100_500)));
    assert_eq!(decision.wait, Duration::from_millis(5));
    assert_eq!(decision.deciding().unwrap().limit, 10);
    let token = server.0.tokens.lock().unwrap()[0].clone();
    assert_eq!(token.as_deref(), Some("Bearer secret"));
    let asked = std::mem::take(&mut *server.0.asked.lock().unwrap());
    assert_eq!((asked[0].cost, asked[0].endpoint.as_str()), (Some(2), "/a"));
    assert_eq!(asked[0].attributes["region"], "eu");

    assert!(!client.allow(&user("eve")).await.unwrap().is_cached);
    assert!(client.allow(&user("eve")).await.unwrap().is_cached);
    assert!(!client.peek(&user("eve")).await.unwrap().is_cached, "a peek looks");
    let away = client.allow(&user("bob")).await.unwrap_err();
    assert!(matches!(&away, ClientError::Unavailable { message, .. } if message.contains("store")));
    let wrong = client.allow(&user("carl")).await.unwrap_err();
    assert!(matches!(&wrong, ClientError::Rejected { code, .. } if code == "INVALID_REQUEST"));
    let answers = client.allow_batch(&[user("ann"), user("eve"), user("carl")]).await.unwrap();
    assert!(answers[0].as_ref().unwrap().allowed);
    assert!(answers[1].as_ref().unwrap().is_cached);
    assert!(matches!(&answers[2], Err(ClientError::Rejected { field: Some(_), .. })));
}
