//! `GET /api/v1/rate-limits/status`: the limits of a client now. Charges nothing.

use std::borrow::Cow;

use axum::body::Body;
use http::{Response, StatusCode};
use tollgate_policy::Known;
use tollgate_store::{Mode, Store};

use super::Api;
use super::read::Prepared;
use super::respond::{ApiError, json};
use super::time::Rfc3339;
use super::wire::{AllowBody, StatusBody, StatusLimit};
use crate::callers::CallerId;

/// Names and values of a query, decoded.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    form_urlencoded::parse(query.as_bytes())
}

impl<S: Store + 'static> Api<S> {
    pub(crate) async fn status(
        &self,
        query: &str,
        caller: CallerId<'_>,
    ) -> Result<Response<Body>, ApiError> {
        let rules = self.engine.rules();
        let mut body = AllowBody::default();
        for (name, value) in pairs(query) {
            let Some(known) = Known::from_name(&name) else {
                let message = "give an identity: api_key, user_id, tenant_id or ip, and further attributes \
                               by their names in rules";
                return Err(ApiError::invalid(&name, message));
            };
            if body.set(known, Some(value)).is_some() {
                return Err(ApiError::invalid(&name, "is given twice"));
            }
        }
        let prepared = Prepared::new(&body)?;
        let identity = [Known::ApiKey, Known::UserId, Known::TenantId, Known::Ip];
        let given = |known| Some((known, body.get(known).filter(|value| !value.is_empty())?));
        let client_id = match identity.into_iter().find_map(given) {
            // The key itself is not repeated.
            Some((Known::ApiKey, _)) => "api_key".to_owned(),
            Some((_, client)) => client.to_owned(),
            None => {
                let message = "an identity is needed: api_key, user_id, tenant_id or ip";
                return Err(ApiError::invalid("user_id", message));
            }
        };
        let request = self.resolved(prepared.request(&body, caller), &rules);
        let decision = self.engine.decide(&rules, &request, Mode::Peek).await?;
        let limits = decision.scopes().map(|scope| StatusLimit {
            rule_id: scope.rule.id.clone(),
            limit: scope.quota,
            remaining: scope.outcome.status.remaining,
            reset_at: Rfc3339(scope.outcome.status.reset_at),
            window_seconds: scope.limit.window_seconds,
        });
        Ok(json(StatusCode::OK, &StatusBody { client_id, limits: limits.collect() }))
    }
}
