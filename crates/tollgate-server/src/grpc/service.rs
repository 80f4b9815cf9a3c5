//! The calls of `tollgate.v1.RateLimiterService`.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::Guard;
use bytes::Bytes;
use http::HeaderMap;
use tollgate_engine::{ActiveRules, Decision, Engine, Request};
use tollgate_policy::{Attributes, Rule};
use tollgate_proto::v1;
use tollgate_store::{Mode, Store};
use tonic::Status;
use tracing::Instrument as _;

use super::frame::{close, open, status};
use super::read::{allow_body, batch, wrapped};
use super::unpackaged;
use super::write::{Message, write_decided, write_decision};
use crate::buffered::AnswerRoom;
use crate::callers::CallerId;
use crate::http::read::Prepared;
use crate::http::respond::ApiError;
use crate::http::virtual_keys::resolve_key;
use crate::http::wire::AllowBody;
use crate::reservation_shares::ReservationShares;
use crate::telemetry::latency::Operation;

/// Room for the answer to one request.
pub(crate) const BYTES_PER_DECISION: usize = 512;

/// The counters that a caller wants to reset.
#[derive(Debug, Clone)]
pub struct ResetAsked<'a> {
    /// Those that a request with these attributes would meet.
    pub attributes: Attributes<'a>,
    /// Only those of these rules; of all if empty.
    pub rule_ids: &'a [String],
}

/// Decides who may reset counters. It is asked before they are reset, so it may record that, too.
pub trait ResetAuth: Send + Sync {
    /// Whether the headers hold an operator's token that is good for this.
    fn may_reset<'a>(
        &'a self,
        headers: &'a HeaderMap,
        asked: ResetAsked<'a>,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>>;
}

/// Decides what gRPC asks.
pub(crate) struct GrpcService<S> {
    pub(crate) engine: Arc<Engine<S>>,
    pub(crate) reservations: Arc<ReservationShares>,
}

impl<S> Clone for GrpcService<S> {
    fn clone(&self) -> Self {
        let reservations = Arc::clone(&self.reservations);
        Self { engine: Arc::clone(&self.engine), reservations }
    }
}

impl<S: Store + 'static> GrpcService<S> {
    /// Whether all counters are in this process: a decision that its caller gave up is nowhere half made.
    fn is_near(&self) -> bool {
        self.engine.store().is_in_process()
    }

    /// Waits for a decision. On shared stores it goes on by itself when the caller hangs up: other
    /// nodes and stores have begun to count it, and it ends by its deadline.
    pub(crate) async fn lasting<T: Send + 'static>(
        &self,
        decision: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ApiError> {
        if self.is_near() {
            return Ok(decision.await);
        }
        tokio::spawn(decision.in_current_span()).await.map_err(|_| ApiError::Internal)
    }

    /// `Allow`: the framed answer.
    pub(crate) async fn allow(
        &self,
        message: &[u8],
        caller: CallerId<'_>,
    ) -> Result<Vec<u8>, ApiError> {
        let rules = self.engine.rules();
        self.decide_one(&rules, message, caller, |decision| framed(decision, None)).await
    }

    /// `Allow` without a future. `None` where the store has to be awaited, or another call under the same id.
    pub(crate) fn allow_at_once(
        &self,
        bytes: &[u8],
        caller: CallerId<'_>,
    ) -> Option<Result<Vec<u8>, Status>> {
        if !self.engine.answers_now() {
            return None;
        }
        let read = super::frame::only_message(bytes)
            .and_then(|message| allow_body(message).map_err(|error| status(error.into())));
        let body = match read {
            Ok(body) if body.request_id.is_some() => return None,
            Ok(body) => body,
            Err(status) => return Some(Err(status)),
        };
        let rules = self.engine.rules();
        let prepared = match Prepared::new(&body) {
            Ok(prepared) => prepared,
            Err(error) => return Some(Err(status(error))),
        };
        let request = self.resolved(prepared.request(&body, caller), &rules);
        let show = |decision: &Decision<'_>| framed(decision, None);
        let decided = self.engine.decide_once_now(&rules, &request, show)?;
        Some(decided.map_err(|error| status(error.into())))
    }

    /// The request as its virtual key identifies it.
    pub(super) fn resolved<'a>(&self, request: Request<'a>, rules: &'a ActiveRules) -> Request<'a> {
        resolve_key(request, &rules.set, self.engine.clock())
    }

    async fn decide_one<T>(
        &self,
        rules: &Guard<Arc<ActiveRules>>,
        message: &[u8],
        caller: CallerId<'_>,
        show: impl FnOnce(&Decision<'_>) -> T,
    ) -> Result<T, ApiError> {
        self.decide_body(rules, &allow_body(message)?, caller, show).await
    }

    /// `Allow` of the service without a package. Its answer has no id by which a slot could be released, so it takes none.
    async fn allow_unpackaged(
        &self,
        message: &[u8],
        caller: CallerId<'_>,
    ) -> Result<Vec<u8>, ApiError> {
        let body = allow_body(message)?;
        let rules = self.engine.rules();
        let prepared = Prepared::new(&body)?;
        let request = self.resolved(prepared.request(&body, caller), &rules);
        let request = Request { refuses_slots: true, ..request };
        Ok(self.engine.decide_once(&rules, &request, unpackaged::framed).await?)
    }

    async fn decide_body<T>(
        &self,
        rules: &Guard<Arc<ActiveRules>>,
        body: &AllowBody<'_>,
        caller: CallerId<'_>,
        show: impl FnOnce(&Decision<'_>) -> T,
    ) -> Result<T, ApiError> {
        let prepared = Prepared::new(body)?;
        let request = self.resolved(prepared.request(body, caller), rules);
        Ok(self.engine.decide_once(rules, &request, show).await?)
    }

    /// `Peek`.
    pub(crate) async fn peek(
        &self,
        message: &[u8],
        caller: CallerId<'_>,
    ) -> Result<Vec<u8>, ApiError> {
        let body = wrapped(message, |_, _| Ok(()))?;
        let rules = self.engine.rules();
        let prepared = Prepared::new(&body)?;
        let request = self.resolved(prepared.request(&body, caller), &rules);
        let decision = self.engine.decide(&rules, &request, Mode::Peek).await?;
        Ok(framed(&decision, Some(1)))
    }

    /// `AllowBatch`.
    pub(crate) async fn allow_batch(
        &self,
        message: &[u8],
        caller: CallerId<'_>,
    ) -> Result<Bytes, ApiError> {
        let requests = batch(message)?;
        let room = AnswerRoom::reserve(caller.peer, requests.len()).ok_or(ApiError::Busy)?;
        let mut out = Vec::with_capacity(requests.len() * BYTES_PER_DECISION);
        let start = open(&mut out);
        let write = |decided: Result<&Decision<'_>, ApiError>| {
            write_decided(&mut Message(&mut out), 1, decided);
        };
        self.decide_each(&requests, caller, write).await;
        close(&mut out, start);
        Ok(room.fill(out))
    }

    /// Decides requests in order, each for itself; one that is wrong gets an error in its place.
    pub(crate) async fn decide_each(
        &self,
        requests: &[&[u8]],
        caller: CallerId<'_>,
        mut show: impl FnMut(Result<&Decision<'_>, ApiError>),
    ) {
        let rules = self.engine.rules();
        if self.engine.answers_now() {
            // No round trip is saved by asking together; one by one they stay in the cache.
            for bytes in requests {
                let show_one = |decision: &Decision<'_>| show(Ok(decision));
                if let Err(error) = self.decide_one(&rules, bytes, caller, show_one).await {
                    show(Err(error));
                }
            }
            return;
        }
        let mut faults: Vec<(usize, ApiError)> = Vec::new();
        let mut bodies = Vec::with_capacity(requests.len());
        for (index, bytes) in requests.iter().enumerate() {
            bodies.push(match allow_body(bytes) {
                Ok(body) => Some(body),
                Err(error) => {
                    faults.push((index, error.into()));
                    None
                }
            });
        }
        let mut prepared = Vec::with_capacity(bodies.len());
        for (index, body) in bodies.iter().enumerate() {
            let Some(body) = body else { continue };
            match Prepared::new(body) {
                Ok(ready) => prepared.push((ready, body)),
                Err(error) => faults.push((index, error)),
            }
        }
        faults.sort_unstable_by_key(|(index, _)| *index);
        let sound: Vec<_> = prepared
            .iter()
            .map(|(ready, body)| self.resolved(ready.request(body, caller), &rules))
            .collect();
        let mut faults = faults.into_iter().peekable();
        let mut at = 0;
        self.engine
            .decide_batch(&rules, &sound, |decided| {
                while let Some((_, error)) = faults.next_if(|(index, _)| *index == at) {
                    show(Err(error));
                    at += 1;
                }
                show(decided.map_err(ApiError::from));
                at += 1;
            })
            .await;
        for (_, error) in faults {
            show(Err(error));
        }
    }

    /// `Reset`.
    pub(crate) async fn reset(
        &self,
        message: &[u8],
        headers: &HeaderMap,
        auth: Option<&dyn ResetAuth>,
    ) -> Result<Vec<u8>, Status> {
        let (body, rule_ids) = read_reset(message).map_err(status)?;
        let rules = self.engine.rules();
        let prepared = Prepared::new(&body).map_err(status)?;
        let request = prepared.request(&body, "");
        let asked = ResetAsked { attributes: request.attributes.clone(), rule_ids: &rule_ids };
        let is_allowed = match auth {
            Some(auth) => auth.may_reset(headers, asked).await,
            None => false,
        };
        if !is_allowed {
            let message = "only an operator may reset: authorization: Bearer <operator's token>";
            return Err(Status::permission_denied(message));
        }
        // Others count in a counter without an identity, too: only the name of its rule resets it.
        let wanted = |rule: &Rule| {
            if rule_ids.is_empty() {
                rule.is_keyed_by_identity()
            } else {
                rule_ids.contains(&rule.id)
            }
        };
        let reset = self.engine.reset(&rules, &request, wanted).await;
        let rule_ids = reset.map_err(|error| status(error.into()))?;
        Ok(framed_message(&v1::ResetResponse { rule_ids }))
    }
}

fn read_reset(message: &[u8]) -> Result<(AllowBody<'_>, Vec<String>), ApiError> {
    let mut rule_ids = Vec::new();
    let body = wrapped(message, |number, value| {
        if number == 2 {
            rule_ids.push(value.text()?.unwrap_or_default().into_owned());
        }
        Ok(())
    })?;
    Ok((body, rule_ids))
}

/// A decision as a whole answer, or as a field of one.
fn framed(decision: &Decision<'_>, field: Option<u32>) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES_PER_DECISION);
    let start = open(&mut out);
    let mut message = Message(&mut out);
    match field {
        None => write_decision(&mut message, decision),
        Some(field) => {
            let size = super::write::Size::Medium;
            message.message(field, size, |message| write_decision(message, decision));
        }
    }
    close(&mut out, start);
    out
}

/// A generated message with its head.
pub(crate) fn framed_message(message: &impl prost::Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(super::frame::HEAD_BYTES + message.encoded_len());
    let start = open(&mut out);
    // A vector grows; there is nothing to fail.
    let _ = message.encode(&mut out);
    close(&mut out, start);
    out
}

/// A call that is answered with one message.
pub(crate) enum Call {
    Allow,
    AllowUnpackaged,
    AllowBatch,
    Peek,
    Reserve,
    Settle,
    Release,
    Renew,
}

impl Call {
    pub(crate) const fn operation(&self) -> Operation {
        match self {
            Self::Allow | Self::AllowUnpackaged => Operation::GrpcAllow,
            Self::AllowBatch => Operation::GrpcBatch,
            Self::Peek => Operation::GrpcPeek,
            Self::Reserve => Operation::GrpcReserve,
            Self::Settle => Operation::GrpcSettle,
            Self::Release => Operation::GrpcRelease,
            Self::Renew => Operation::GrpcRenew,
        }
    }

    pub(crate) async fn answer<S: Store + 'static>(
        self,
        service: GrpcService<S>,
        bytes: Bytes,
        caller: String,
        peer: Option<IpAddr>,
    ) -> Result<Bytes, Status> {
        let message = super::frame::only_message(&bytes)?;
        let caller = CallerId { name: &caller, peer };
        if let Self::AllowBatch = self {
            return service.allow_batch(message, caller).await.map_err(status);
        }
        let room = super::frame::room(peer)?;
        let decided = match self {
            Self::Allow | Self::AllowBatch => service.allow(message, caller).await,
            Self::AllowUnpackaged => service.allow_unpackaged(message, caller).await,
            Self::Peek => service.peek(message, caller).await,
            Self::Reserve => service.reserve(message, caller).await,
            Self::Settle => service.settle(message).await,
            Self::Release => service.release(message).await,
            Self::Renew => service.renew(message).await,
        };
        Ok(room.fill(decided.map_err(status)?))
    }
}
