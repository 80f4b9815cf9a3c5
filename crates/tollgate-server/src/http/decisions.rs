//! `POST /rate-limit/{allow, check, peek, allow/batch}`, and which call is which.

use axum::body::Body;
use http::{Response, StatusCode};
use tollgate_engine::{ActiveRules, Decision, Reason, Request};
use tollgate_policy::Known;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate_store::{Mode, Store};
use tollgate_tower::headers::describe;

use super::decision_json::write_decision;
use super::read::{Prepared, parse};
use super::respond::{ApiError, JSON, json, raw};
use super::virtual_keys::resolve_key;
use super::wire::{AllowBody, BatchBody, CheckBody, CheckedBody};
use super::{Api, MAX_BATCH};
use crate::buffered::{AnswerRoom, Counted};
use crate::callers::CallerId;
use crate::envoy::{RequestBody, ResponseBody};
use crate::telemetry::latency::{Operation, Timed};

/// Room for the answer to one request of a batch.
const BYTES_PER_DECISION: usize = 512;

/// Which decision call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Allow,
    Check,
    Peek,
    Batch,
    Reserve,
    Settle,
    Release,
    Renew,
    /// A call of Envoy as JSON, where envoyproxy/ratelimit takes it.
    EnvoyJson,
}

impl Call {
    /// The call that this path names.
    pub(crate) fn of(path: &str) -> Option<Self> {
        if path == "/json" {
            return Some(Self::EnvoyJson);
        }
        match path.strip_prefix("/rate-limit/")? {
            "allow" => Some(Self::Allow),
            "check" => Some(Self::Check),
            "peek" => Some(Self::Peek),
            "allow/batch" => Some(Self::Batch),
            "reserve" => Some(Self::Reserve),
            "settle" => Some(Self::Settle),
            "release" => Some(Self::Release),
            "renew" => Some(Self::Renew),
            _ => None,
        }
    }

    const fn operation(self) -> Operation {
        match self {
            Self::Allow => Operation::Allow,
            Self::Check => Operation::Check,
            Self::Peek => Operation::Peek,
            Self::Batch => Operation::Batch,
            Self::Reserve => Operation::Reserve,
            Self::Settle => Operation::Settle,
            Self::Release => Operation::Release,
            Self::Renew => Operation::Renew,
            Self::EnvoyJson => Operation::Envoy,
        }
    }

    /// Whether its answer grows with the rules, so that it needs room. The answer to a batch does too, which reserves
    /// room by the number of its requests.
    const fn answers_with_limits(self) -> bool {
        matches!(self, Self::Allow | Self::Peek | Self::Reserve | Self::EnvoyJson)
    }
}

impl<S: Store + 'static> Api<S> {
    pub(crate) async fn decide(
        &self,
        call: Call,
        bytes: &[u8],
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let _timed = Timed::new(call.operation());
        if !call.answers_with_limits() {
            return Box::pin(self.decide_in_time(call, bytes, caller)).await;
        }
        // Before anything is charged: the answer would not be sent.
        let room = AnswerRoom::reserve(caller.peer, 1).ok_or(ApiError::Busy)?;
        if call == Call::Allow
            && let Some(answer) = self.allow_at_once(bytes, caller)
        {
            return answer.map(|response| room.hold(response));
        }
        // What a decision needs is large. It is kept apart, so that a request does not carry it about.
        let response = Box::pin(self.decide_in_time(call, bytes, caller)).await?;
        Ok(room.hold(response))
    }

    /// The call that nearly all are, without a future. `None` where the store has to be awaited, or another call under
    /// the same id.
    fn allow_at_once(
        &self,
        bytes: &[u8],
        caller: CallerId<'_>,
    ) -> Option<Result<Response<Body>, ApiError>> {
        if !self.engine.answers_now() {
            return None;
        }
        let body = match parse::<AllowBody<'_>>(bytes) {
            Ok(body) if body.request_id.is_some() => return None,
            Ok(body) => body,
            Err(error) => return Some(Err(error)),
        };
        let rules = self.engine.rules();
        let prepared = match Prepared::without_ttl(&body) {
            Ok(prepared) => prepared,
            Err(error) => return Some(Err(error)),
        };
        let request = self.resolved(prepared.request(&body, caller), &rules);
        let show = |decision: &Decision<'_>| self.answer_decision(decision);
        let decided = self.engine.decide_once_now(&rules, &request, show)?;
        Some(decided.map_err(ApiError::from))
    }

    async fn decide_in_time(
        &self,
        call: Call,
        bytes: &[u8],
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        match call {
            Call::Allow => self.allow(&parse(bytes)?, caller).await,
            Call::Peek => self.peek(&parse(bytes)?, caller).await,
            Call::Check => self.check(parse(bytes)?, caller).await,
            Call::Batch => self.batch(&parse(bytes)?, caller).await,
            Call::Reserve => self.reserve(&parse(bytes)?, caller).await,
            Call::Settle => self.settle(parse(bytes)?).await,
            Call::Release => self.release(parse(bytes)?).await,
            Call::Renew => self.renew(parse(bytes)?).await,
            Call::EnvoyJson => self.envoy_json(parse(bytes)?, caller).await,
        }
    }

    /// 200 or 429, as envoyproxy/ratelimit answers.
    async fn envoy_json(
        &self,
        body: RequestBody,
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let answered = self.envoy.should_rate_limit(&body.into_request(), caller).await;
        let response = answered.map_err(|status| match status.code() {
            tonic::Code::InvalidArgument => {
                ApiError::Invalid { message: status.message().to_owned(), field: None }
            }
            _ => ApiError::Internal,
        })?;
        let is_over = response.overall_code() == Code::OverLimit;
        let status = if is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        Ok(json(status, &ResponseBody::new(response)))
    }

    async fn allow(
        &self,
        body: &AllowBody<'_>,
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let rules = self.engine.rules();
        let prepared = Prepared::without_ttl(body)?;
        let request = self.resolved(prepared.request(body, caller), &rules);
        let show = |decision: &Decision<'_>| self.answer_decision(decision);
        Ok(self.engine.decide_once(&rules, &request, show).await?)
    }

    async fn peek(
        &self,
        body: &AllowBody<'_>,
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let rules = self.engine.rules();
        let prepared = Prepared::without_ttl(body)?;
        let request = self.resolved(prepared.request(body, caller), &rules);
        let decision = self.engine.decide(&rules, &request, Mode::Peek).await?;
        Ok(self.answer_decision(&decision))
    }

    async fn check(
        &self,
        body: CheckBody<'_>,
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let CheckBody { user_id, model_id } = body;
        for (field, value) in [("userId", &user_id), ("modelId", &model_id)] {
            if value.is_empty() {
                return Err(ApiError::invalid(field, "must not be empty"));
            }
        }
        let mut body = AllowBody::default();
        body.set(Known::UserId, Some(user_id));
        body.set(Known::ModelId, Some(model_id));
        let rules = self.engine.rules();
        let prepared = Prepared::new(&body)?;
        // The answer has no id by which a slot could be released.
        let request = Request { refuses_slots: true, ..prepared.request(&body, caller) };
        let decision = self.engine.decide(&rules, &request, Mode::Charge).await?;
        let mut response = json(status_of(&decision), &CheckedBody::new(&decision));
        describe(response.headers_mut(), &decision, self.config.headers);
        Ok(response)
    }

    /// The request as its virtual key identifies it.
    pub(super) fn resolved<'a>(&self, request: Request<'a>, rules: &'a ActiveRules) -> Request<'a> {
        resolve_key(request, &rules.set, self.engine.clock())
    }

    pub(super) fn answer_decision(&self, decision: &Decision<'_>) -> Response<Body> {
        let mut bytes = Vec::with_capacity(BYTES_PER_DECISION * 2);
        write_decision(&mut bytes, decision);
        let mut response = raw(status_of(decision), JSON, bytes);
        describe(response.headers_mut(), decision, self.config.headers);
        response
    }

    /// Decides in order, each request for itself; one that is wrong gets an error in its place.
    async fn batch(
        &self,
        batch: &BatchBody<'_>,
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        if batch.requests.len() > MAX_BATCH {
            let message = format!("at most {MAX_BATCH} requests are taken at once");
            return Err(ApiError::invalid("requests", message));
        }
        let room = AnswerRoom::reserve(caller.peer, batch.requests.len()).ok_or(ApiError::Busy)?;
        let rules = self.engine.rules();
        let prepared: Vec<_> = batch.requests.iter().map(Prepared::without_ttl).collect();
        let sound = batch.requests.iter().zip(&prepared);
        let requests: Vec<_> = sound
            .filter_map(|(body, prepared)| {
                let request = prepared.as_ref().ok()?.request(body, caller);
                Some(self.resolved(request, &rules))
            })
            .collect();
        let mut decisions = Vec::with_capacity(requests.len());
        let mut bytes = Vec::with_capacity(batch.requests.len() * BYTES_PER_DECISION);
        self.engine
            .decide_batch(&rules, &requests, |decided| {
                let start = bytes.len();
                match decided {
                    Ok(decision) => write_decision(&mut bytes, decision),
                    Err(error) => write(&mut bytes, &ApiError::from(error).body().1),
                }
                decisions.push(start..bytes.len());
            })
            .await;
        drop(requests);
        let mut answer = Vec::with_capacity(bytes.len() + batch.requests.len() + 16);
        answer.extend_from_slice(b"{\"decisions\":[");
        let mut decisions = decisions.into_iter();
        for (index, prepared) in prepared.into_iter().enumerate() {
            if index > 0 {
                answer.push(b',');
            }
            match prepared {
                Ok(_) => {
                    let decision = decisions.next().and_then(|place| bytes.get(place));
                    answer.extend_from_slice(decision.unwrap_or(NO_DECISION));
                }
                Err(error) => write(&mut answer, &error.body().1),
            }
        }
        answer.extend_from_slice(b"]}");
        let mut response = raw(StatusCode::OK, JSON, room.fill(answer));
        response.extensions_mut().insert(Counted(None));
        Ok(response)
    }
}

/// A request of a batch that was not decided, which cannot be: it is no admission.
const NO_DECISION: &[u8] =
    br#"{"error":{"code":"INTERNAL","message":"this request was not decided"}}"#;

/// A decision is an answer, allowed or not; one that could not be made is an error as well.
fn status_of(decision: &Decision<'_>) -> StatusCode {
    match decision.reason {
        Reason::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    }
}

fn write(bytes: &mut Vec<u8>, value: &impl serde::Serialize) {
    let length = bytes.len();
    if serde_json::to_writer(&mut *bytes, value).is_err() {
        // Cannot happen: nothing here has keys that are not strings. The list stays valid JSON.
        bytes.truncate(length);
        bytes.extend_from_slice(b"null");
    }
}
