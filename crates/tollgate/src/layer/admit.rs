//! Whether a request passes, and what it holds then.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use tollgate_engine::Receipts;
use tollgate_policy::Known;
use tollgate_store::Store as _;
use tollgate_tower::{
    Dialect, EdgeRequest, HeaderFamilies, HeaderLines, Held, Rejection, edge_request,
};

use super::Shared;
use crate::hold::{Hold, Unsettled};
use crate::{Denial, Verdict};

/// A request that passes.
pub(super) struct Admitted {
    pub(super) headers: HeaderLines,
    /// What was charged, without slots. Dropped before the request was passed on, it is released.
    pub(super) hold: Hold,
    /// The slots, until the body of the response has ended.
    pub(super) slots: Option<Held>,
    wait: Duration,
}

/// A request that does not pass.
pub(super) struct Rejected {
    pub(super) rejection: Box<Rejection>,
    /// None: it could not be decided.
    pub(super) denial: Option<Denial>,
}

impl From<Box<Rejection>> for Rejected {
    fn from(rejection: Box<Rejection>) -> Self {
        Self { rejection, denial: None }
    }
}

impl<R> Shared<R> {
    /// Lets a request through, after its wait, or says why not.
    pub(super) async fn admit(&self, head: &Parts) -> Result<Admitted, Rejected>
    where
        R: 'static,
    {
        let asked = self.asked(head)?;
        let mut admitted = self.decide(asked).await?;
        if !admitted.wait.is_zero() {
            let Ok(_place) = self.waiting.try_acquire() else {
                return Err(Box::new(Rejection::too_many_waiting()).into());
            };
            // A client that leaves drops the future, and with it the hold, which refunds the charge.
            tokio::time::sleep(admitted.wait).await;
        }
        // A handler that takes the hold decides what becomes of it. One that nobody takes stays charged.
        admitted.hold.set_unsettled(Unsettled::Keep);
        Ok(admitted)
    }

    fn asked(&self, head: &Parts) -> Result<EdgeRequest, Box<Rejection>> {
        let identity = self.identifier.identify(&head.headers, (self.find_peer)(head))?;
        let mut asked = edge_request(head, identity)?;
        for refine in &self.refine {
            refine(head, &mut asked);
        }
        asked.tokens = self.counts_tokens.then(|| asked.tokens.unwrap_or(0));
        Ok(asked)
    }

    async fn decide(&self, asked: EdgeRequest) -> Result<Admitted, Rejected>
    where
        R: 'static,
    {
        if self.gate.engine.store().is_in_process() {
            return self.rule(&asked).await;
        }
        // A client that hangs up must not stop a decision that the store has begun to count.
        let own = self.clone();
        let decided = tokio::spawn(async move { own.rule(&asked).await });
        decided.await.unwrap_or_else(|_| {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(Box::new(Rejection::new(status, "INTERNAL", "something went wrong here")).into())
        })
    }

    async fn rule(&self, asked: &EdgeRequest) -> Result<Admitted, Rejected> {
        let families = HeaderFamilies::default();
        let ruled = self.engine.decide_with(asked, |request, decision| {
            self.gate.tidy(decision.asked_at());
            let verdict = match Verdict::of(decision).into_result() {
                Ok(verdict) => verdict,
                Err(denial) => {
                    let rejection = Rejection::of(decision, None, Dialect::Plain, families);
                    return Err(Rejected { rejection: Box::new(rejection), denial: Some(denial) });
                }
            };
            let receipts = self.gate.engine.receipts(request, decision);
            let slots = self.engine.hold(receipts.clone().slots());
            let wait = Duration::from_nanos(decision.wait);
            // What cannot be settled and does not wait is not refunded.
            let is_kept = asked.tokens.is_some() || !wait.is_zero();
            let charged = if is_kept { receipts.without_slots() } else { Receipts::default() };
            let mut hold = Hold::new(Arc::clone(&self.gate), charged, verdict);
            hold.set_unsettled(Unsettled::Release);
            let headers = HeaderLines::describing(decision, Dialect::Plain, families);
            Ok(Admitted { headers, hold, slots, wait })
        });
        ruled.await.map_err(Rejected::from)?
    }
}

/// Sets an attribute by its name.
pub(super) fn set_attribute(asked: &mut EdgeRequest, name: &str, value: String) {
    let identity = &mut asked.identity;
    let place = match Known::from_name(name) {
        Some(Known::UserId) => &mut identity.user_id,
        Some(Known::TenantId) => &mut identity.tenant_id,
        Some(Known::ApiKey) => &mut identity.api_key,
        Some(Known::Tier) => &mut identity.tier,
        Some(Known::ClientType) => &mut identity.client_type,
        Some(Known::Ip) => &mut identity.ip,
        Some(Known::ModelId) => &mut asked.model_id,
        Some(Known::Method) => &mut asked.method,
        Some(Known::Domain) => &mut asked.domain,
        Some(Known::Endpoint) => {
            // One that cannot be read leaves the path that was sent.
            let _ = asked.set_path(&value);
            return;
        }
        Some(_) | None => {
            identity.extra.push((name.to_owned(), value));
            return;
        }
    };
    *place = Some(value);
}
