//! `POST /rate-limit/{reserve, settle, release, renew}`.

use axum::body::Body;
use http::{Response, StatusCode};
use tollgate_core::Nanos;
use tollgate_engine::{Actual, DEFAULT_RESERVATION_TTL, Decision, MAX_COST, MAX_RESERVATION_TTL};
use tollgate_policy::Unit;
use tollgate_store::Store;

use super::Api;
use super::read::Prepared;
use super::respond::{ApiError, json};
use super::time::Rfc3339;
use super::wire::{
    AllowBody, ReleaseBody, ReleasedBody, RenewBody, RenewedBody, SettleBody, SettledBody,
};
use crate::callers::CallerId;

const MILLISECOND: Nanos = 1_000_000;

/// The digits of a reservation's id.
const ID_DIGITS: usize = 32;

impl<S: Store + 'static> Api<S> {
    pub(super) async fn reserve(
        &self,
        body: &AllowBody<'_>,
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let rules = self.engine.rules();
        let ttl = ttl(body.ttl_ms)?.unwrap_or(DEFAULT_RESERVATION_TTL);
        let prepared = Prepared::new(body)?;
        let mut request = prepared.request(body, caller);
        request.reserve = Some(ttl);
        request.only = only(body)?;
        let opening = self.reservations.admit(&self.engine, body, caller).await?;
        let show = |decision: &Decision<'_>| {
            if let Some(reservation) = &decision.reservation {
                self.reservations.opened(&opening, reservation, self.engine.clock().now());
            }
            self.answer_decision(decision)
        };
        Ok(self.engine.decide_once(&rules, &request, show).await?)
    }

    pub(super) async fn settle(&self, body: SettleBody<'_>) -> Result<Response<Body>, ApiError> {
        let id = id(&body.reservation_id)?;
        let actual = actual(body.tokens, body.cost)?;
        let settled = self.engine.settle_reservation(id, actual).await?;
        self.reservations.ended(id);
        Ok(json(StatusCode::OK, &SettledBody::new(&settled)))
    }

    pub(super) async fn release(&self, body: ReleaseBody<'_>) -> Result<Response<Body>, ApiError> {
        let id = id(&body.reservation_id)?;
        let released = self.engine.release_reservation(id).await?;
        self.reservations.ended(id);
        Ok(json(StatusCode::OK, &ReleasedBody::new(&released)))
    }

    pub(super) async fn renew(&self, body: RenewBody<'_>) -> Result<Response<Body>, ApiError> {
        let (id, ttl) = (id(&body.reservation_id)?, ttl(body.ttl_ms)?);
        let renewed = self.engine.renew_reservation(id, ttl).await?;
        self.reservations.renewed(id, renewed.expires_at);
        let expires_at = Rfc3339(renewed.expires_at);
        let answer = RenewedBody { renewed: renewed.is_held, expires_at };
        Ok(json(StatusCode::OK, &answer))
    }
}

/// An id as it was answered.
pub(crate) fn id(text: &str) -> Result<u128, ApiError> {
    let is_digits = text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = is_digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    id.ok_or_else(|| {
        let message = "must be the 32 hex digits that reserve or allow answered";
        ApiError::invalid("reservationId", message)
    })
}

/// Which limits are asked, where it is more of a request that was let pass before.
pub(crate) fn only(body: &AllowBody<'_>) -> Result<Option<Unit>, ApiError> {
    let is_more = body.more.unwrap_or(false);
    if is_more && body.tokens.is_none() {
        return Err(ApiError::invalid("tokens", "must say how many more there are to be"));
    }
    Ok(is_more.then_some(Unit::Tokens))
}

/// A lifetime within its bounds.
pub(crate) fn ttl(millis: Option<u64>) -> Result<Option<Nanos>, ApiError> {
    let most = MAX_RESERVATION_TTL / MILLISECOND;
    match millis {
        None => Ok(None),
        Some(millis) if (1..=most).contains(&millis) => Ok(Some(millis * MILLISECOND)),
        Some(_) => Err(ApiError::invalid("ttlMs", format!("must be from 1 to {most}"))),
    }
}

/// The truth within its bounds.
pub(crate) fn actual(tokens: Option<u64>, cost: Option<u64>) -> Result<Actual, ApiError> {
    for (field, value) in [("tokens", tokens), ("cost", cost)] {
        if value.is_some_and(|value| value > MAX_COST) {
            return Err(ApiError::invalid(field, format!("must not be above {MAX_COST}")));
        }
    }
    Ok(Actual { tokens, cost })
}
