//! Searching decisions: by time and by every attribute, and the newest as they are written.

use serde_json::{Value, json};
use tollgate_control::draft::rfc3339;
use tollgate_control::{
    DecisionFilter, DecisionPlace, Millis, Page, Revision, RuleVersionAt, StoredDecision,
};

use super::read::Query;
use super::respond::{AdminError, Answer};
use super::sentence::sentence;
use super::{Admin, Asked, view};

/// Records that were left out are counted up to this.
const MAX_SKIPPED: u32 = 100_000;

/// The versions of rules that are looked up for a page. Rows of further rules and revisions have none.
const MAX_VERSIONS: usize = 100;

/// Results as callers name them, and as the log does.
const RESULTS: [(&str, &str); 7] = [
    ("allowed", "allowed"),
    ("denied", "rejected"),
    ("refused", "rejected"),
    ("rejected", "rejected"),
    ("throttled", "throttled"),
    ("queued", "queued"),
    ("would_deny", "would_deny"),
];

impl Admin {
    /// `GET decisions`.
    pub(super) async fn search_decisions(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let page = query.page()?;
        let mut filter = filter(&mut query, asked.now)?;
        query.end()?;
        filter.tenant_id = asked.filtered_tenant(filter.tenant_id)?;
        let oldest = self.check_range(&filter, asked.now)?;
        let searching = self.tenant_searches.enter(asked.tenant());
        let _searching = searching.ok_or(AdminError::TooManySearches)?;
        let repository = self.control.repository();
        // Read first: all records up to this one are part of the answer.
        let newest = self.newest_decision(asked.tenant()).await?;
        let (found, skipped) = if filter.written_after.is_some() {
            if page.after.is_some() {
                let message = "cannot be given together with written_after";
                return Err(AdminError::invalid("cursor", message));
            }
            let found = repository.decisions(&filter, &page).await?;
            let skipped = self.count_skipped(&filter, &page, found.len()).await?;
            (found, Some(skipped))
        } else {
            let before = page.after.as_deref().map(place).transpose()?;
            (repository.search_decisions(&filter, before, page.limit).await?, None)
        };
        let is_full = skipped.is_none() && found.len() >= page.limit as usize;
        let next = found.last().filter(|_| is_full);
        let next = next.map(|last| format!("{}-{}", last.record.at, last.id));
        let versions = self.versions_of(&found).await?;
        let is_tenant = asked.tenant().is_some();
        let items: Vec<Value> = found
            .iter()
            .map(|one| {
                let version = key(one).and_then(|key| versions.iter().find(|(of, _)| *of == key));
                row(one, version.and_then(|(_, version)| version.as_ref()), is_tenant)
            })
            .collect();
        let (kept, of) = view::completeness(&found);
        Ok(Answer::ok(json!({
            "items": items,
            "next_cursor": next,
            "kept": kept,
            "of": of,
            "from": filter.from.map(rfc3339),
            "until": filter.until.map(rfc3339),
            "retained_from": rfc3339(oldest),
            "skipped": skipped,
            "newest_id": newest,
        })))
    }

    /// The id of the newest record. Tenants see no number of others.
    pub(super) async fn newest_decision(&self, tenant: Option<&str>) -> Result<i64, AdminError> {
        let own =
            DecisionFilter { tenant_id: tenant.map(str::to_owned), ..DecisionFilter::default() };
        let page = Page { after: None, limit: 1 };
        let newest = self.control.repository().decisions(&own, &page).await?;
        Ok(newest.first().map_or(0, |newest| newest.id))
    }

    /// Refuses a range in which there cannot be a decision. Returns the time from which on decisions are kept.
    fn check_range(&self, filter: &DecisionFilter, now: Millis) -> Result<Millis, AdminError> {
        let retention = self.config.control.audit.retention;
        let oldest = now - i64::try_from(retention.as_millis()).unwrap_or(i64::MAX).min(now);
        if let (Some(from), Some(until)) = (filter.from, filter.until)
            && from >= until
        {
            let message = format!("must be before until, which is {}", rfc3339(until));
            return Err(AdminError::invalid("from", message));
        }
        if filter.from.is_some_and(|from| from > now) {
            let message = format!("is in the future: it is {} now", rfc3339(now));
            return Err(AdminError::invalid("from", message));
        }
        if filter.until.is_some_and(|until| until <= oldest) {
            let message = format!(
                "is before {}: decisions are kept for {} days (control.audit.retention_days)",
                rfc3339(oldest),
                retention.as_secs() / 86_400
            );
            return Err(AdminError::invalid("until", message));
        }
        Ok(oldest)
    }

    /// How many records of a full page are left out.
    pub(super) async fn count_skipped(
        &self,
        filter: &DecisionFilter,
        page: &Page,
        found: usize,
    ) -> Result<i64, AdminError> {
        if found < page.limit as usize {
            return Ok(0);
        }
        let count = self.control.repository().count_decisions(filter, MAX_SKIPPED).await?;
        Ok(count.saturating_sub(i64::from(page.limit)).max(0))
    }

    /// The versions of the rules of these decisions that were in force then. Rules of a file have none.
    async fn versions_of(&self, found: &[StoredDecision]) -> Result<Versions, AdminError> {
        if self.config.rules.is_some() {
            return Ok(Versions::new());
        }
        let mut keys: Vec<(String, Revision)> = found.iter().filter_map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.truncate(MAX_VERSIONS);
        let versions = self.control.repository().rule_versions_at(&keys).await?;
        Ok(keys.into_iter().zip(versions).collect())
    }
}

type Versions = Vec<((String, Revision), Option<RuleVersionAt>)>;

fn key(stored: &StoredDecision) -> Option<(String, Revision)> {
    Some((stored.record.rule_id.clone()?, stored.record.revision))
}

pub(super) fn filter(query: &mut Query<'_>, now: Millis) -> Result<DecisionFilter, AdminError> {
    let action = match query.take("result") {
        None => None,
        Some(name) => {
            let known = RESULTS.iter().find(|(known, _)| *known == name);
            let wrong = || {
                let message = "must be one of allowed, denied, throttled, queued, would_deny";
                AdminError::invalid("result", message)
            };
            Some(known.ok_or_else(wrong)?.1.to_owned())
        }
    };
    let written_after = match query.take("written_after") {
        None => None,
        Some(text) => {
            let wrong = |_| AdminError::invalid("written_after", "must be the id of a decision");
            Some(text.parse().map_err(wrong)?)
        }
    };
    Ok(DecisionFilter {
        action,
        client_id: query.take("client_id"),
        rule_id: query.take("rule_id"),
        user_id: query.take("user_id"),
        tenant_id: query.take("tenant_id"),
        api_key_id: query.take("api_key_id"),
        ip_address: query.take("ip"),
        scope: query.take("scope"),
        model_id: query.take("model_id"),
        endpoint: query.take("endpoint"),
        reason: query.take("reason"),
        request_id: query.take("request_id"),
        from: query.time("from", now)?,
        until: query.time("until", now)?,
        written_after,
    })
}

/// The place that a cursor names.
fn place(cursor: &str) -> Result<DecisionPlace, AdminError> {
    let parsed = cursor
        .rsplit_once('-')
        .and_then(|(at, id)| Some(DecisionPlace { at: at.parse().ok()?, id: id.parse().ok()? }));
    parsed.ok_or_else(|| AdminError::invalid("cursor", "must be a next_cursor of this call"))
}

/// A decision with its sentence and the version of its rule. Who changed a rule is not for tenants.
pub(super) fn row(
    stored: &StoredDecision,
    version: Option<&RuleVersionAt>,
    is_tenant: bool,
) -> Value {
    let mut view = view::decision(stored);
    let Some(fields) = view.as_object_mut() else { return view };
    let result = if stored.record.action == "rejected" { "denied" } else { &stored.record.action };
    fields.insert("result".to_owned(), result.into());
    fields.insert("sentence".to_owned(), sentence(&stored.record).into());
    fields.insert("rule_version".to_owned(), version.map(|one| one.version).into());
    let change = version.filter(|_| !is_tenant).map(
        |one| json!({ "id": one.change_id, "timestamp": rfc3339(one.at), "actor": one.actor }),
    );
    fields.insert("rule_change".to_owned(), change.into());
    view
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_767_225_600_000;

    fn read(text: &str) -> Result<DecisionFilter, AdminError> {
        filter(&mut Query::new(text).unwrap(), NOW)
    }

    #[test]
    fn times_are_relative_or_absolute() {
        let found = read("from=15m&until=2026-01-01T00:00:00Z").unwrap();
        assert_eq!((found.from, found.until), (Some(NOW - 900_000), Some(NOW)));
        for wrong in ["from=15", "from=m", "until=-1h", "from=yesterday", "from=99999999999999d"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_have_the_names_of_metrics_and_of_the_log() {
        for name in ["denied", "refused", "rejected"] {
            let found = read(&format!("result={name}")).unwrap();
            assert_eq!(found.action.as_deref(), Some("rejected"));
        }
        assert!(read("result=maybe").is_err() && read("written_after=x").is_err());
    }

    #[test]
    fn cursors_name_a_place() {
        assert_eq!(place("12-34").unwrap(), DecisionPlace { at: 12, id: 34 });
        for wrong in ["", "12", "12-", "a-1"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }
}
