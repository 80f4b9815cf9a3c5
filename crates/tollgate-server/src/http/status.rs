//! `GET /api/v1/rate-limits/status`: the limits of a client now. Charges nothing.

use std::borrow::Cow;

use axum::body::Body;
use http::{Response, StatusCode};
use tollgate_store::{Mode, Store};

use super::Api;
use super::read::Prepared;
use super::respond::{ApiError, json};
use super::time::Rfc3339;
use super::wire::{AllowBody, StatusBody, StatusLimit};

/// Names and values of a query, decoded.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    form_urlencoded::parse(query.as_bytes())
}

impl<S: Store + 'static> Api<S> {
    pub(crate) async fn status(
        &self,
        query: &str,
        caller: &str,
    ) -> Result<Response<Body>, ApiError> {
        let rules = self.engine.rules();
        let mut body = AllowBody::default();
        for (name, value) in pairs(query) {
            let field = match &*name {
                "user_id" => &mut body.user_id,
                "model_id" => &mut body.model_id,
                "api_key" => &mut body.api_key,
                "tenant_id" => &mut body.tenant_id,
                "model_tier" => &mut body.model_tier,
                "client_type" => &mut body.client_type,
                "endpoint" => &mut body.endpoint,
                "method" => &mut body.method,
                "ip" => &mut body.ip,
                "tier" => &mut body.tier,
                "domain" => &mut body.domain,
                _ => {
                    let message = "give an identity: api_key, user_id, tenant_id or ip, and \
                                   further attributes by their names in rules";
                    return Err(ApiError::invalid(&name, message));
                }
            };
            if field.replace(value).is_some() {
                return Err(ApiError::invalid(&name, "is given twice"));
            }
        }
        let prepared = Prepared::new(&body)?;
        let identity = [&body.api_key, &body.user_id, &body.tenant_id, &body.ip];
        let client = identity.into_iter().flatten().find(|value| !value.is_empty());
        let Some(client) = client else {
            let message = "an identity is needed: api_key, user_id, tenant_id or ip";
            return Err(ApiError::invalid("user_id", message));
        };
        let client_id = match &body.api_key {
            // The key itself is not repeated.
            Some(key) if !key.is_empty() => "api_key".to_owned(),
            _ => client.clone().into_owned(),
        };
        let request = prepared.request(&body, caller);
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
