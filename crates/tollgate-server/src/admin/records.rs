//! The audit log: what was changed, and what was decided.

use serde_json::json;
use tollgate_control::{ChainPlace, ChangeFilter, DecisionFilter, Kind};

use super::read::Query;
use super::respond::{AdminError, Answer};
use super::{Admin, Asked, view};

/// Changes of a page: each has up to two whole rules.
const MAX_CHANGES: u32 = 250;

impl Admin {
    pub(super) async fn audit(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        match query.take("kind").as_deref() {
            None | Some("changes") => self.changes(asked, query).await,
            Some("decisions") => self.decisions(asked, query).await,
            Some(_) => Err(AdminError::invalid("kind", "must be changes or decisions")),
        }
    }

    async fn changes(&self, asked: &Asked, mut query: Query<'_>) -> Result<Answer, AdminError> {
        let page = numbered(query.page()?)?;
        let kind = match query.take("entry_kind") {
            None => None,
            Some(name) => Some(Kind::from_name(&name).ok_or_else(|| {
                let known = Kind::ALL.map(Kind::name).join(", ");
                AdminError::invalid("entry_kind", format!("must be one of {known}"))
            })?),
        };
        let mut filter = ChangeFilter {
            kind,
            entry_id: query.take("entry_id"),
            actor: query.take("actor"),
            tenant: query.take("tenant_id"),
            request_id: query.take("request_id"),
            from: query.instant("from")?,
            until: query.instant("until")?,
        };
        query.end()?;
        filter.tenant = asked.filtered_tenant(filter.tenant)?;
        let page = tollgate_control::Page { limit: page.limit.min(MAX_CHANGES), ..page };
        let found = self.control.repository().changes(&filter, &page).await?;
        let is_full = found.len() >= page.limit as usize;
        let next = found.last().filter(|_| is_full).map(|last| last.id.to_string());
        let removed = self.control.repository().change_checkpoints(asked.tenant()).await?;
        let items: Vec<_> = found.iter().map(view::change).collect();
        let removed = removed.iter().map(view::checkpoint).collect();
        Ok(Answer::ok(view::bounded_page(&items, next.as_deref(), &removed)))
    }

    /// The signed history, link by link.
    pub(super) async fn audit_export(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let page = query.page()?;
        query.end()?;
        let wrong = || AdminError::invalid("cursor", "must be a next_cursor of this call");
        let after = match page.after.as_deref() {
            None => ChainPlace::Start,
            Some(cursor) => ChainPlace::parse(cursor).ok_or_else(wrong)?,
        };
        let limit = page.limit.min(MAX_CHANGES);
        let found = self.control.repository().chain(after, limit).await?;
        let next = found.next.map(ChainPlace::cursor);
        Ok(Answer::ok(json!({ "items": found.links, "next_cursor": next })))
    }

    /// The public key of this node.
    pub(super) fn audit_key(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let key = self.control.repository().public_key().map(|key| key.to_string());
        Ok(Answer::ok(json!({ "algorithm": "ed25519", "public_key": key })))
    }

    async fn decisions(&self, asked: &Asked, mut query: Query<'_>) -> Result<Answer, AdminError> {
        let page = numbered(query.page()?)?;
        let mut filter = DecisionFilter {
            action: query.take("action"),
            client_id: query.take("client_id"),
            rule_id: query.take("rule_id"),
            user_id: query.take("user_id"),
            tenant_id: query.take("tenant_id"),
            ip_address: query.take("ip_address"),
            request_id: query.take("request_id"),
            from: query.instant("from")?,
            until: query.instant("until")?,
            ..DecisionFilter::default()
        };
        query.end()?;
        let actions = ["allowed", "rejected", "throttled", "queued", "would_deny"];
        if filter.action.as_deref().is_some_and(|action| !actions.contains(&action)) {
            let message = format!("must be one of {}", actions.join(", "));
            return Err(AdminError::invalid("action", message));
        }
        filter.tenant_id = asked.filtered_tenant(filter.tenant_id)?;
        let searching = self.tenant_searches.enter(asked.tenant());
        let _searching = searching.ok_or(AdminError::TooManySearches)?;
        let found = self.control.repository().decisions(&filter, &page).await?;
        let is_full = found.len() >= page.limit as usize;
        let next = found.last().filter(|_| is_full).map(|last| last.id.to_string());
        Ok(Answer::ok(view::decisions(&found, next.as_deref())))
    }
}

/// A page of records: its cursor is the number of one.
fn numbered(page: tollgate_control::Page) -> Result<tollgate_control::Page, AdminError> {
    match page.after.as_ref().map(|after| after.parse::<i64>()) {
        Some(Err(_)) => Err(AdminError::invalid("cursor", "must be a next_cursor of this call")),
        _ => Ok(page),
    }
}
