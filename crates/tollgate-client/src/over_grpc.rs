//! Calls over gRPC.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Uri;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tollgate_proto::v1::rate_limiter_service_client::RateLimiterServiceClient;
use tollgate_proto::v1::{
    AllowBatchRequest, AllowResponse, PeekRequest, ReleaseRequest, RenewRequest, ReserveRequest,
    SettleRequest, decided::Result as Outcome,
};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};

use crate::caller::error_chain;
use crate::check::Check;
use crate::decision::{Decision, Scope, WouldDeny};
use crate::error::ClientError;
use crate::options::{ClientOptions, base, connector, millis};
use crate::over_http::RESERVATION_NOT_FOUND;
use crate::reservation::{Actual, Renewed, Reserved, Settled};
use crate::usage::{Money, OtherUnits, Usage};

/// The largest answer that is read; a batch of a thousand is far below.
const MAX_ANSWER_BYTES: usize = 16 << 20;

type Connection = Client<HttpsConnector<HttpConnector>, tonic::body::Body>;

/// Calls one Tollgate over gRPC.
pub(crate) struct GrpcTransport {
    client: RateLimiterServiceClient<Connection>,
    origin: Uri,
    authorization: Option<MetadataValue<Ascii>>,
    timeout: Duration,
}

impl fmt::Debug for GrpcTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcTransport").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl GrpcTransport {
    pub(crate) fn new(url: &str, options: &ClientOptions) -> Result<Self, ClientError> {
        let origin = base(url)?;
        let connector = connector(&origin, options, true)?;
        let connection = Client::builder(TokioExecutor::new()).http2_only(true).build(connector);
        let client = RateLimiterServiceClient::with_origin(connection, origin.clone())
            .max_decoding_message_size(MAX_ANSWER_BYTES);
        let authorization = match options.authorization()? {
            None => None,
            Some(value) => {
                let mut value = MetadataValue::try_from(value.as_bytes())
                    .map_err(|error| ClientError::Setup(error.to_string()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self { client, origin, authorization, timeout: options.timeout })
    }

    pub(crate) async fn allow(&self, check: &Check) -> Result<Decision, ClientError> {
        let request = self.request(check.to_message());
        let answer =
            self.client.clone().allow(request).await.map_err(|status| self.failure(&status))?;
        Ok(decision(answer.into_inner()))
    }

    pub(crate) async fn peek(&self, check: &Check) -> Result<Decision, ClientError> {
        let request = self.request(PeekRequest { request: Some(check.to_message()) });
        let answer =
            self.client.clone().peek(request).await.map_err(|status| self.failure(&status))?;
        answer.into_inner().decision.map(decision).ok_or_else(incomplete)
    }

    pub(crate) async fn allow_batch(
        &self,
        checks: &[&Check],
    ) -> Result<Vec<Result<Decision, ClientError>>, ClientError> {
        let requests = checks.iter().map(|check| check.to_message()).collect();
        let request = self.request(AllowBatchRequest { requests });
        let answer = self.client.clone().allow_batch(request).await;
        let answer = answer.map_err(|status| self.failure(&status))?.into_inner();
        let items = answer.decisions.into_iter().map(|decided| match decided.result {
            Some(Outcome::Decision(answer)) => Ok(decision(answer)),
            Some(Outcome::Error(error)) if error.code == "STORE_UNAVAILABLE" => {
                Err(ClientError::Unavailable { message: error.message, retry_after: None })
            }
            Some(Outcome::Error(error)) => Err(ClientError::Rejected {
                code: error.code,
                message: error.message,
                field: text(error.field),
            }),
            None => Err(incomplete()),
        });
        Ok(items.collect())
    }

    pub(crate) async fn reserve(
        &self,
        check: &Check,
        ttl: Option<Duration>,
        more: bool,
    ) -> Result<Reserved, ClientError> {
        let (request, ttl_ms) = (Some(check.to_message()), ttl.map(millis));
        let request = self.request(ReserveRequest { request, ttl_ms, more });
        let answer = self.client.clone().reserve(request).await;
        let answer = answer.map_err(|status| self.failure(&status))?.into_inner();
        let decision = answer.decision.map(decision).ok_or_else(incomplete)?;
        Ok(Reserved { decision, expires_at: instant(answer.expires_at) })
    }

    pub(crate) async fn settle(&self, id: &str, actual: Actual) -> Result<Settled, ClientError> {
        let request = self.request(SettleRequest {
            reservation_id: id.to_owned(),
            cost: actual.cost,
            tokens: actual.tokens,
            input_tokens: actual.input_tokens,
            output_tokens: actual.output_tokens,
            cached_tokens: actual.cached_tokens,
            money: actual.money.map(Money::into_message),
            usage: actual.usage.map(Usage::into_message),
        });
        let answer = self.client.clone().settle(request).await;
        let answer = answer.map_err(|status| self.failure(&status))?.into_inner();
        Ok(Settled {
            refunded_tokens: answer.refunded_tokens,
            extra_tokens: answer.extra_tokens,
            refunded_cost: answer.refunded_cost,
            extra_cost: answer.extra_cost,
            refunded: OtherUnits::of_message(answer.refunded),
            extra: OtherUnits::of_message(answer.extra),
        })
    }

    pub(crate) async fn release(&self, id: &str) -> Result<Settled, ClientError> {
        let request = self.request(ReleaseRequest { reservation_id: id.to_owned() });
        let answer = self.client.clone().release(request).await;
        let answer = answer.map_err(|status| self.failure(&status))?.into_inner();
        Ok(Settled {
            refunded_tokens: answer.refunded_tokens,
            refunded_cost: answer.refunded_cost,
            refunded: OtherUnits::of_message(answer.refunded),
            ..Settled::default()
        })
    }

    pub(crate) async fn renew(
        &self,
        id: &str,
        ttl: Option<Duration>,
    ) -> Result<Renewed, ClientError> {
        let (reservation_id, ttl_ms) = (id.to_owned(), ttl.map(millis));
        let request = self.request(RenewRequest { reservation_id, ttl_ms });
        let answer = self.client.clone().renew(request).await;
        let answer = answer.map_err(|status| self.failure(&status))?.into_inner();
        Ok(Renewed { renewed: answer.renewed, expires_at: instant(answer.expires_at) })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // The server receives the timeout, too, and drops requests that nobody waits for.
        request.set_timeout(self.timeout);
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        request
    }

    fn failure(&self, status: &Status) -> ClientError {
        let message = status.message().to_owned();
        match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => ClientError::Timeout(self.timeout),
            Code::Unauthenticated | Code::PermissionDenied => ClientError::Unauthorized(message),
            // tonic says Unknown or Unavailable where no connection comes about.
            Code::Unknown => ClientError::Unreachable(error_chain(status)),
            Code::Unavailable | Code::Internal | Code::ResourceExhausted => {
                ClientError::Unavailable { message, retry_after: None }
            }
            Code::InvalidArgument => {
                ClientError::Rejected { code: "INVALID_REQUEST".to_owned(), message, field: None }
            }
            Code::AlreadyExists | Code::Aborted | Code::NotFound | Code::FailedPrecondition => {
                let code = match status.code() {
                    Code::Aborted => "REQUEST_ID_IN_USE",
                    Code::AlreadyExists => "REQUEST_ID_REUSED",
                    Code::NotFound => RESERVATION_NOT_FOUND,
                    _ => "RESERVATION_ENDED",
                };
                ClientError::Rejected { code: code.to_owned(), message, field: None }
            }
            code => ClientError::Unreadable(format!("{code:?}: {message}")),
        }
    }
}

fn incomplete() -> ClientError {
    ClientError::Unreadable("an answer holds no decision".to_owned())
}

fn text(value: String) -> Option<String> {
    Some(value).filter(|value| !value.is_empty())
}

fn instant(stamp: Option<prost_types::Timestamp>) -> Option<SystemTime> {
    let stamp = stamp?;
    let seconds = Duration::from_secs(u64::try_from(stamp.seconds).ok()?);
    let nanos = Duration::from_nanos(u64::try_from(stamp.nanos).ok()?);
    UNIX_EPOCH.checked_add(seconds.checked_add(nanos)?)
}

fn decision(answer: AllowResponse) -> Decision {
    let scopes = answer.scopes.into_iter().map(|scope| Scope {
        name: scope.name,
        rule_id: scope.rule_id,
        limit: scope.limit,
        burst: scope.burst,
        current: scope.current,
        remaining: scope.remaining,
        reset_at: instant(scope.reset_at),
        window_seconds: scope.window_seconds,
    });
    let would_deny = answer.would_deny.into_iter().map(|limit| WouldDeny {
        name: limit.name,
        rule_id: limit.rule_id,
        reason: limit.reason,
    });
    Decision {
        allowed: answer.allowed,
        reason: answer.reason,
        scope_hit: text(answer.scope_hit),
        rule_id: text(answer.rule_id),
        effective_limit: answer.effective_limit,
        remaining: answer.remaining,
        reset_at: instant(answer.reset_at),
        retry_after: answer.retry_after_ms.map(Duration::from_millis),
        wait: Duration::from_millis(answer.wait_ms),
        warnings: answer.warnings,
        degraded: answer.degraded,
        degraded_reason: text(answer.degraded_reason),
        would_deny: would_deny.collect(),
        action: text(answer.action),
        explanation: text(answer.explanation),
        reservation_id: text(answer.reservation_id),
        rules_version: answer.rules_version,
        scopes: scopes.collect(),
        is_cached: false,
    }
}
