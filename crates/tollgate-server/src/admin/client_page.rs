//! A client as it really calls: the limits that its recent requests meet, its tier and its list entry.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value, json};
use tollgate_control::draft::rfc3339;
use tollgate_control::{DecisionFilter, DecisionRecord, Millis, StoredDecision};
use tollgate_engine::{Decision, Scope};
use tollgate_policy::Known;
use tollgate_store::Mode;

use super::clients::{client, is_visible, limit, listed};
use super::respond::{AdminError, Answer};
use super::{Admin, Asked};
use crate::http::read::Prepared;
use crate::http::wire::AllowBody;

/// Decisions of the client that are looked at.
const MAX_RECENT: u32 = 200;
/// Different requests among them whose limits are looked up.
const MAX_REQUESTS: usize = 8;

/// Attributes by which two requests of a client differ.
const DISTINCT: [Known; 5] =
    [Known::UserId, Known::TenantId, Known::ModelId, Known::Endpoint, Known::Method];

/// A kind of request that the client sent lately.
#[derive(Debug, Default)]
struct RecentRequest {
    /// The rule that decided about it.
    rule_id: Option<String>,
    values: Vec<(Known, String)>,
    last_at: Millis,
    decisions: i64,
}

impl RecentRequest {
    fn get(&self, known: Known) -> Option<&str> {
        self.values.iter().find(|(one, _)| *one == known).map(|(_, value)| value.as_str())
    }

    fn is_like(&self, other: &Self) -> bool {
        DISTINCT.into_iter().all(|known| self.get(known) == other.get(known))
    }
}

impl Admin {
    /// `GET clients/{identifier_type}/{identifier}`. Charges nothing.
    pub(super) async fn client_page(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let (given, rule_id) = client(asked)?;
        let found = self.recent_decisions(asked).await?;
        let refused_by = found.iter().find(|one| one.record.action == "rejected");
        let refused_by = refused_by.and_then(|one| one.record.rule_id.as_deref());
        let recent = recent_requests(&found, &given);
        let rules = self.engine.rules();
        let is_all = asked.tenant().is_none();
        let (mut known, mut limits, mut requests) = (HashSet::new(), Vec::new(), Vec::new());
        let alone = RecentRequest::default();
        // Last the client alone: it meets the limits for which a name is enough.
        for (place, one) in recent.iter().chain([&alone]).enumerate() {
            let body = with(&given, one);
            // What was recorded was once accepted, by bounds that may have changed.
            let Ok(prepared) = Prepared::new(&body) else { continue };
            let request = prepared.request(&body, "");
            let decision = self.engine.decide(&rules, &request, Mode::Peek).await?;
            let is_real = place < recent.len();
            if is_real {
                requests.push(request_view(one, is_all.then_some(&decision)));
            }
            for scope in decision.scopes() {
                let is_wanted = rule_id.as_ref().is_none_or(|id| scope.rule.id == *id);
                let counter = (
                    scope.rule.id.clone(),
                    scope.limit.window_seconds,
                    decision.key_values(scope).join("\0"),
                );
                if is_wanted && is_visible(asked, scope) && known.insert(counter) {
                    let request = is_real.then(|| requests.len() - 1);
                    limits.push(self.limit_view(&decision, scope, request));
                }
            }
        }
        let prepared = Prepared::new(&given)?;
        let attributes = prepared.request(&given, "").attributes;
        let explained = rules.set.explain(&attributes, self.engine.clock().now(), 0);
        Ok(Answer::ok(json!({
            "identifier_type": asked.id(),
            "identifier": self.shown(asked),
            "tier": rules.set.tier_of(&attributes).filter(|_| is_all),
            "listed": explained.listed.filter(|_| is_all).map(listed),
            "refused_by": refused_by,
            "requests": requests,
            "limits": limits,
        })))
    }

    /// The newest decisions of the client.
    async fn recent_decisions(&self, asked: &Asked) -> Result<Vec<StoredDecision>, AdminError> {
        let name = Some(asked.second().to_owned());
        let mut filter = DecisionFilter::default();
        match asked.id() {
            "user_id" => filter.user_id = name,
            "tenant_id" => filter.tenant_id = name,
            "ip" => filter.ip_address = name,
            _ => filter.api_key_id = Some(self.shown(asked)),
        }
        if let Some(own) = asked.tenant() {
            filter.tenant_id = Some(own.to_owned());
        }
        let searching = self.tenant_searches.enter(asked.tenant());
        let _searching = searching.ok_or(AdminError::TooManySearches)?;
        Ok(self.control.repository().search_decisions(&filter, None, MAX_RECENT).await?)
    }

    fn limit_view<'r>(
        &self,
        decision: &Decision<'r>,
        scope: &Scope<'r>,
        request: Option<usize>,
    ) -> Value {
        let mut view = limit(scope);
        let Some(fields) = view.as_object_mut() else { return view };
        let key: Map<String, Value> = decision
            .key_parts(scope)
            .map(|(name, value)| match name {
                "api_key" => ("api_key_id".to_owned(), self.control.hide_key(value).into()),
                _ => (name.to_owned(), value.into()),
            })
            .collect();
        fields.insert("unit".to_owned(), scope.rule.unit.name().into());
        fields.insert("key".to_owned(), key.into());
        fields.insert("request".to_owned(), request.into());
        view
    }
}

/// The different requests among these decisions that fit what was asked for, the latest first. Records that stand
/// for repeats have no endpoint, so they only add to the numbers of those that are kept in full.
fn recent_requests(found: &[StoredDecision], given: &AllowBody<'_>) -> Vec<RecentRequest> {
    let (full, repeats): (Vec<_>, Vec<_>) =
        found.iter().map(|one| &one.record).partition(|record| record.repeat_count.is_none());
    let mut all: Vec<RecentRequest> = Vec::new();
    let is_known = !full.is_empty();
    for record in if is_known { &full } else { &repeats } {
        let one = RecentRequest {
            rule_id: record.rule_id.clone(),
            values: values(record),
            last_at: record.at,
            decisions: stands_for(record),
        };
        let fits =
            |(known, value): &(Known, String)| given.get(*known).is_none_or(|it| it == value);
        if !one.values.iter().all(fits) {
            continue;
        }
        if let Some(known) = all.iter_mut().find(|known| known.is_like(&one)) {
            known.decisions = known.decisions.saturating_add(one.decisions);
        } else if all.len() < MAX_REQUESTS {
            all.push(one);
        }
    }
    for record in repeats.iter().filter(|_| is_known) {
        if let Some(known) = all.iter_mut().find(|known| known.rule_id == record.rule_id) {
            known.decisions = known.decisions.saturating_add(stands_for(record));
            known.last_at = known.last_at.max(record.at);
        }
    }
    all
}

/// How many decisions a record stands for beyond those that are kept in full.
fn stands_for(record: &DecisionRecord) -> i64 {
    let repeats = record.repeat_count.map(|of| of - record.kept_count.unwrap_or(0));
    repeats.unwrap_or(1).max(0)
}

fn values(record: &DecisionRecord) -> Vec<(Known, String)> {
    let all = [
        (Known::UserId, &record.user_id),
        (Known::TenantId, &record.tenant_id),
        (Known::Ip, &record.ip_address),
        (Known::ModelId, &record.model_id),
        (Known::Endpoint, &record.endpoint),
        (Known::Method, &record.method),
    ];
    all.into_iter().filter_map(|(known, value)| Some((known, value.clone()?))).collect()
}

/// What was asked for, with what the recent request had.
fn with<'a>(given: &'a AllowBody<'_>, recent: &'a RecentRequest) -> AllowBody<'a> {
    let mut body = AllowBody::default();
    for known in Known::ALL {
        let value = given.get(known).or_else(|| recent.get(known));
        body.set(known, value.map(Cow::Borrowed));
    }
    body
}

/// Whether it would pass now is only for those who may see all rules.
fn request_view(recent: &RecentRequest, decision: Option<&Decision<'_>>) -> Value {
    json!({
        "user_id": recent.get(Known::UserId),
        "tenant_id": recent.get(Known::TenantId),
        "ip": recent.get(Known::Ip),
        "model_id": recent.get(Known::ModelId),
        "endpoint": recent.get(Known::Endpoint),
        "method": recent.get(Known::Method),
        "last_at": rfc3339(recent.last_at),
        "decisions": recent.decisions,
        "allowed": decision.map(Decision::is_allowed),
        "reason": decision.map(Decision::reason_code),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(id: i64, endpoint: Option<&str>, ip: &str, repeats: Option<i64>) -> StoredDecision {
        let record = DecisionRecord {
            at: 1_000 - id,
            user_id: Some("ann".to_owned()),
            endpoint: endpoint.map(str::to_owned),
            ip_address: Some(ip.to_owned()),
            repeat_count: repeats,
            kept_count: repeats.map(|_| 5),
            ..DecisionRecord::default()
        };
        StoredDecision { id, record }
    }

    #[test]
    fn requests_that_differ_only_by_address_are_one_and_repeats_count() {
        let found = [
            stored(0, None, "192.0.2.2", Some(105)),
            stored(1, Some("/chat"), "192.0.2.1", None),
            stored(2, Some("/chat"), "192.0.2.2", None),
            stored(3, Some("/login"), "192.0.2.2", None),
        ];
        let all = recent_requests(&found, &AllowBody::default());
        let seen: Vec<_> =
            all.iter().map(|one| (one.get(Known::Endpoint).unwrap(), one.decisions)).collect();
        assert_eq!(seen, [("/chat", 102), ("/login", 1)]);
        assert_eq!(all[0].get(Known::Ip), Some("192.0.2.1"), "of the latest");
        let mut given = AllowBody::default();
        given.set(Known::Endpoint, Some("/login".into()));
        assert_eq!(recent_requests(&found, &given).len(), 1, "those that were asked for");
        let repeats = recent_requests(&found[..1], &AllowBody::default());
        assert_eq!(repeats.len(), 1, "better than nothing");
    }

    #[test]
    fn a_client_with_many_endpoints_is_bounded() {
        let found: Vec<_> =
            (0..50).map(|id| stored(id, Some(&format!("/{id}")), "192.0.2.1", None)).collect();
        assert_eq!(recent_requests(&found, &AllowBody::default()).len(), MAX_REQUESTS);
    }
}
