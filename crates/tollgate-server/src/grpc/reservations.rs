//! `Reserve`, `Settle`, `Release` and `Renew`.

use prost_types::Timestamp;
use tollgate_core::{Nanos, SECOND};
use tollgate_engine::{Amounts, DEFAULT_RESERVATION_TTL, Decision};
use tollgate_policy::Unit;
use tollgate_policy::prices::format_nanos;
use tollgate_proto::v1;
use tollgate_store::Store;

use super::frame::{close, open};
use super::read::wrapped;
use super::service::{BYTES_PER_DECISION, GrpcService, framed_message};
use super::write::{Message, Size, write_decision};
use crate::callers::CallerId;
use crate::http::amounts_body::{AmountsBody, MoneyBody, UsageBody};
use crate::http::read::Prepared;
use crate::http::reservations::{id, more_of, ttl};
use crate::http::respond::ApiError;

impl<S: Store + 'static> GrpcService<S> {
    /// `Reserve`: the decision, and until when it is held.
    pub(super) async fn reserve(
        &self,
        message: &[u8],
        caller: CallerId<'_>,
    ) -> Result<Vec<u8>, ApiError> {
        let (mut ttl_ms, mut more) = (None, false);
        let mut body = wrapped(message, |number, value| {
            match number {
                2 => ttl_ms = Some(value.number()?),
                3 => more = value.number()? != 0,
                _ => {}
            }
            Ok(())
        })?;
        body.more = Some(more);
        let ttl = ttl(ttl_ms)?.unwrap_or(DEFAULT_RESERVATION_TTL);
        let rules = self.engine.rules();
        let prepared = Prepared::new(&body)?;
        let mut request = self.resolved(prepared.request(&body, caller), &rules);
        request.reserve = Some(ttl);
        (request.is_more, request.usage) = more_of(&body, request.usage)?;
        let opening = self.reservations.admit(&self.engine, &body, caller).await?;
        let show = |decision: &Decision<'_>| {
            if let Some(reservation) = &decision.reservation {
                self.reservations.opened(&opening, reservation, self.engine.clock().now());
            }
            reserved(decision)
        };
        Ok(self.engine.decide_once(&rules, &request, show).await?)
    }

    /// `Settle`.
    pub(super) async fn settle(&self, message: &[u8]) -> Result<Vec<u8>, ApiError> {
        let asked: v1::SettleRequest = read(message)?;
        let actual = amounts(&asked).check()?;
        let id = id(&asked.reservation_id)?;
        let settled = self.engine.settle_reservation(id, actual).await?;
        self.reservations.ended(id);
        Ok(framed_message(&v1::SettleResponse {
            settled: true,
            refunded_cost: settled.refunded.of(Unit::Cost),
            extra_cost: settled.extra.of(Unit::Cost),
            refunded_tokens: settled.refunded.of(Unit::Tokens),
            extra_tokens: settled.extra.of(Unit::Tokens),
            refunded: other_units(&settled.refunded),
            extra: other_units(&settled.extra),
        }))
    }

    /// `Release`.
    pub(super) async fn release(&self, message: &[u8]) -> Result<Vec<u8>, ApiError> {
        let asked: v1::ReleaseRequest = read(message)?;
        let id = id(&asked.reservation_id)?;
        let released = self.engine.release_reservation(id).await?;
        self.reservations.ended(id);
        Ok(framed_message(&v1::ReleaseResponse {
            released: true,
            refunded_cost: released.refunded.of(Unit::Cost),
            refunded_tokens: released.refunded.of(Unit::Tokens),
            refunded: other_units(&released.refunded),
        }))
    }

    /// `Renew`.
    pub(super) async fn renew(&self, message: &[u8]) -> Result<Vec<u8>, ApiError> {
        let asked: v1::RenewRequest = read(message)?;
        let (id, ttl) = (id(&asked.reservation_id)?, ttl(asked.ttl_ms)?);
        let renewed = self.engine.renew_reservation(id, ttl).await?;
        self.reservations.renewed(id, renewed.expires_at);
        let expires_at = Some(timestamp(renewed.expires_at));
        Ok(framed_message(&v1::RenewResponse { renewed: renewed.is_held, expires_at }))
    }
}

/// What a settlement states.
fn amounts(asked: &v1::SettleRequest) -> AmountsBody<'_> {
    let usage = |usage: v1::Usage| UsageBody {
        input: Some(usage.input),
        output: Some(usage.output),
        cached_read: Some(usage.cached_read),
        cached_write: Some(usage.cached_write),
        reasoning: Some(usage.reasoning),
        audio_input: Some(usage.audio_input),
        audio_output: Some(usage.audio_output),
        images: Some(usage.images),
    };
    let money = asked.money.as_ref().map(|money| MoneyBody {
        currency: money.currency.as_str().into(),
        amount: money.amount.as_str().into(),
    });
    AmountsBody {
        cost: asked.cost,
        tokens: asked.tokens,
        input_tokens: asked.input_tokens,
        output_tokens: asked.output_tokens,
        cached_tokens: asked.cached_tokens,
        money,
        usage: asked.usage.map(usage),
    }
}

/// Amounts of the units that came with money; none if all are 0.
fn other_units(amounts: &Amounts) -> Option<v1::OtherUnits> {
    let units = v1::OtherUnits {
        input_tokens: amounts.of(Unit::InputTokens),
        output_tokens: amounts.of(Unit::OutputTokens),
        cached_tokens: amounts.of(Unit::CachedTokens),
        money: amounts.money.map(|money| v1::Money {
            currency: money.currency.code().to_owned(),
            amount: format_nanos(money.nanos),
        }),
    };
    (units != v1::OtherUnits::default()).then_some(units)
}

/// A small message of generated code.
fn read<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, ApiError> {
    M::decode(bytes).map_err(|error| ApiError::Invalid { message: error.to_string(), field: None })
}

fn reserved(decision: &Decision<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES_PER_DECISION);
    let start = open(&mut out);
    let mut message = Message(&mut out);
    message.message(1, Size::Medium, |message| write_decision(message, decision));
    if let Some(held) = decision.reservation {
        message.instant(2, held.expires_at);
    }
    close(&mut out, start);
    out
}

fn timestamp(at: Nanos) -> Timestamp {
    Timestamp {
        seconds: i64::try_from(at / SECOND).unwrap_or(i64::MAX),
        nanos: i32::try_from(at % SECOND).unwrap_or(0),
    }
}
