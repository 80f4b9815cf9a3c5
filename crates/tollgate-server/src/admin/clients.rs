//! What a client has used, and which rules a request meets.

use serde_json::{Map, Value, json};
use tollgate_control::TENANT_SCOPE;
use tollgate_engine::Scope;
use tollgate_policy::{Explained, KeyPart, Known, ListMatch, Rule, RuleVerdict, TierSource};
use tollgate_store::Mode;

use super::read::Query;
use super::respond::{AdminError, Answer};
use super::{Admin, Asked};
use crate::http::read::{Prepared, parse};
use crate::http::time::Rfc3339;
use crate::http::wire::AllowBody;

/// Rules that an explanation speaks of at most.
const MAX_EXPLAINED: usize = 200;

impl Admin {
    /// The limits of a client now. Charges nothing.
    pub(super) async fn usage(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let (body, rule_id) = client(asked)?;
        let rules = self.engine.rules();
        let prepared = Prepared::new(&body)?;
        let request = prepared.request(&body, "");
        let decision = self.engine.decide(&rules, &request, Mode::Peek).await?;
        let is_wanted = |scope: &&Scope<'_>| {
            rule_id.as_ref().is_none_or(|id| scope.rule.id == *id) && is_visible(asked, scope)
        };
        let limits: Vec<Value> = decision.scopes().filter(is_wanted).map(limit).collect();
        // What others than its tenant do to a client is not for a tenant admin to see.
        let is_all = asked.tenant().is_none();
        Ok(Answer::ok(json!({
            "identifier_type": asked.id(),
            "identifier": self.shown(asked),
            "tier": rules.set.tier_of(&request.attributes).filter(|_| is_all),
            "allowed": is_all.then(|| decision.is_allowed()),
            "reason": is_all.then(|| decision.reason_code()),
            "limits": limits,
        })))
    }

    /// Resets the counters of a client, and returns the rules that they belong to. A counter that others count in, too, is
    /// skipped, unless the call names its rule.
    pub(super) async fn reset_usage(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let (body, rule_id) = client(asked)?;
        let rules = self.engine.rules();
        let prepared = Prepared::new(&body)?;
        let request = prepared.request(&body, "");
        let mut skipped = std::collections::BTreeSet::new();
        let is_wanted = |rule: &Rule| {
            // What a tenant admin did not make it does not undo.
            if asked.tenant().is_some_and(|own| !is_own_scope(&rule.scope, own)) {
                return false;
            }
            if let Some(id) = &rule_id {
                return rule.id == *id;
            }
            let is_of_client = counts_by_named(rule, asked);
            if !is_of_client {
                skipped.insert(rule.id.clone());
            }
            is_of_client
        };
        // First the record: what cannot be recorded is not done.
        let id = format!("{}:{}", asked.id(), self.shown(asked));
        let tenant = asked.tenant().map(str::to_owned);
        let asked_for: Vec<String> = rule_id.iter().cloned().collect();
        self.control.note_reset(&asked.actor, id, tenant, &asked_for).await?;
        let reset = self.engine.reset(&rules, &request, is_wanted).await?;
        tracing::info!(by = %asked.actor.name, kind = asked.id(), counters = reset.len(),
            "a client's counters were reset");
        Ok(Answer::ok(json!({
            "identifier_type": asked.id(),
            "identifier": self.shown(asked),
            "reset": reset,
            "skipped": skipped,
        })))
    }

    /// Which rules a request would meet, and why.
    pub(super) async fn explain(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let rules = self.engine.rules();
        let body: AllowBody<'_> = parse(&asked.body)?;
        let prepared = Prepared::new(&body)?;
        let request = prepared.request(&body, "");
        let now = self.engine.clock().now();
        let explained = rules.set.explain(&request.attributes, now, MAX_EXPLAINED);
        let decision = self.engine.decide(&rules, &request, Mode::Peek).await?;
        let each: Vec<Value> = explained.rules.iter().map(|one| self.rule(one)).collect();
        let (tier, source) = explained.tier.unzip();
        Ok(Answer::ok(json!({
            "allowed": decision.is_allowed(),
            "reason": decision.reason_code(),
            "explanation": decision.explain(),
            "listed": explained.listed.map(listed),
            "tier": tier,
            "tier_from": source.map(tier_source),
            "rules": each,
            "rules_left_out": explained.left_out,
            "limits": decision.scopes().map(limit).collect::<Vec<_>>(),
        })))
    }

    /// What a client is called in an answer: its name, or what its key is known by.
    pub(super) fn shown(&self, asked: &Asked) -> String {
        match asked.id() {
            "api_key" => self.control.hide_key(asked.second()),
            _ => asked.second().to_owned(),
        }
    }

    /// A rule and how it stands to a request.
    fn rule(&self, explained: &Explained<'_>) -> Value {
        let (verdict, because) = match explained.verdict {
            RuleVerdict::Applies => ("applies", None),
            RuleVerdict::LessSpecific { than } => ("less_specific", Some(than)),
            RuleVerdict::Replaced { by } => ("replaced", Some(by)),
            RuleVerdict::DefaultYields { to } => ("default_yields", Some(to)),
            RuleVerdict::Misses { field } => ("misses", Some(field)),
        };
        let key: Map<String, Value> = explained
            .key
            .iter()
            .map(|(name, value)| {
                let value = match *name {
                    "api_key" => self.control.hide_key(value),
                    _ => (*value).to_owned(),
                };
                ((*name).to_owned(), value.into())
            })
            .collect();
        json!({
            "rule_id": explained.rule.id,
            "scope": explained.rule.scope,
            "verdict": verdict,
            "because": because,
            "key": key,
        })
    }
}

/// The request of a client, from the path and the query; and the one rule that is asked about.
pub(super) fn client(asked: &Asked) -> Result<(AllowBody<'_>, Option<String>), AdminError> {
    let mut query = Query::new(&asked.query)?;
    let rule_id = query.take("rule_id");
    let mut body = AllowBody::default();
    let own = asked.tenant().map(|own| ("tenant_id".into(), own.into()));
    let named = (asked.id().into(), asked.second().into());
    for (name, value) in std::iter::once(named).chain(query.rest()).chain(own) {
        let known = Known::from_name(&name);
        if *name == *asked.id() && !known.is_some_and(Known::is_identity) {
            let message = "must be api_key, user_id, tenant_id or ip";
            return Err(AdminError::invalid("identifier_type", message));
        }
        let Some(known) = known else {
            let shown: String = name.chars().take(64).collect();
            return Err(AdminError::invalid(&shown, "is not a parameter of this call"));
        };
        if body.get(known).is_some_and(|before| *before != *value) {
            return Err(AdminError::invalid(&name, "is given twice"));
        }
        body.set(known, Some(value));
    }
    Ok((body, rule_id))
}

/// Whether the counter of a rule that applies is of an identity that the call names. The tenant of a tenant admin is added to
/// every call of it, and is named only where the call says so.
fn counts_by_named(rule: &Rule, asked: &Asked) -> bool {
    let names_tenant = asked.tenant().is_none()
        || asked.id() == Known::TenantId.name()
        || Query::new(&asked.query).is_ok_and(|mut query| query.take("tenant_id").is_some());
    let is_named = |part: &&KeyPart| names_tenant || **part != KeyPart::Known(Known::TenantId);
    rule.key.iter().filter(is_named).any(KeyPart::is_identity)
}

fn is_own_scope(scope: &str, tenant: &str) -> bool {
    let rest = scope.strip_prefix(TENANT_SCOPE).and_then(|rest| rest.strip_prefix(tenant));
    rest.is_some_and(|rest| rest.starts_with(':'))
}

/// Tenant admins see limits of their tenant, not those that other tenants' requests count in too.
pub(super) fn is_visible(asked: &Asked, scope: &Scope<'_>) -> bool {
    let Some(own) = asked.tenant() else { return true };
    let is_by_tenant =
        scope.rule.key.iter().any(|part| matches!(part, KeyPart::Known(Known::TenantId)));
    is_by_tenant || is_own_scope(&scope.rule.scope, own)
}

pub(super) fn limit(scope: &Scope<'_>) -> Value {
    let status = &scope.outcome.status;
    json!({
        "rule_id": scope.rule.id,
        "scope": scope.rule.scope,
        "limit": scope.quota,
        "current": status.used,
        "remaining": status.remaining,
        "reset_at": Rfc3339(status.reset_at).to_string(),
        "window_seconds": scope.limit.window_seconds,
    })
}

pub(super) fn listed(listed: ListMatch<'_>) -> Value {
    let (list, entry) = match listed {
        ListMatch::Denied(entry) => ("blacklist", entry),
        ListMatch::Allowed(entry) => ("whitelist", entry),
    };
    json!({ "list": list, "identifier_type": entry.kind.name(), "reason": entry.reason })
}

const fn tier_source(source: TierSource) -> &'static str {
    match source {
        TierSource::Stated => "stated",
        TierSource::ClientTiers(_) => "client_tiers",
        TierSource::Default => "default",
    }
}
