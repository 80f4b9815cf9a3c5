//! `POST /rate-limit/{reserve, settle, release, renew}`.

use axum::body::Body;
use http::{Response, StatusCode};
use tollgate_core::Nanos;
use tollgate_engine::{DEFAULT_RESERVATION_TTL, Decision, MAX_RESERVATION_TTL};
use tollgate_policy::prices::Usage;
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
        let mut request = self.resolved(prepared.request(body, caller), &rules);
        request.reserve = Some(ttl);
        (request.is_more, request.usage) = more_of(body, request.usage)?;
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
        let actual = body.amounts().check()?;
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

/// Whether it is more of a request that was let pass before, and its usage, which then counts no request again.
pub(crate) fn more_of(
    body: &AllowBody<'_>,
    usage: Option<Usage>,
) -> Result<(bool, Option<Usage>), ApiError> {
    let is_more = body.more.unwrap_or(false);
    if is_more && body.amounts.tokens.is_none() && usage.is_none() {
        return Err(ApiError::invalid("tokens", "must say how many more there are to be"));
    }
    Ok((is_more, usage.map(|usage| usage.with_requests(u64::from(!is_more)))))
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
