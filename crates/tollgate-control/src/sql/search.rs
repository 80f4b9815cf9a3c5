//! Searching the log of decisions: by time and by every attribute.

use std::time::Duration;

use tokio::time::timeout;

use super::decisions::{COLUMNS, read_decision};
use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_int};
use crate::{
    DecisionFilter, DecisionPlace, RepositoryError, Revision, RuleVersionAt, StoredDecision,
};

/// How long a search may take. Shorter than the time after which a server gives up a statement, so that the caller gets
/// the reason.
pub(super) const SEARCH: Duration = Duration::from_secs(4);

/// The result of a search, unless it takes too long.
pub(super) async fn within<T>(
    limit: Duration,
    search: impl Future<Output = Result<T, RepositoryError>>,
) -> Result<T, RepositoryError> {
    let late = |_| {
        let message = format!("the search takes longer than {limit:?}: narrow the time range");
        RepositoryError::Invalid(message)
    };
    timeout(limit, search).await.map_err(late)?
}

/// A statement that finds these decisions, without its order.
pub(super) fn select(filter: &DecisionFilter) -> Query {
    let columns: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    let mut query = Query::new(format!(
        "SELECT id, {} FROM rate_limit_audit_log WHERE true",
        columns.join(", ")
    ));
    push_conditions(&mut query, filter);
    query
}

/// Adds the conditions. At most one of them may use the index of its attribute: that of the attribute that leaves the
/// fewest records, which a database without statistics does not know.
fn push_conditions(query: &mut Query, filter: &DecisionFilter) {
    // The newest records are found by their numbers.
    let mut is_indexed = filter.written_after.is_none();
    let by_selectivity = [
        ("request_id", &filter.request_id),
        // A tenant's search reads no more than the tenant has: others may have many records of the same address or endpoint.
        ("tenant_id", &filter.tenant_id),
        ("api_key_id", &filter.api_key_id),
        ("user_id", &filter.user_id),
        ("client_id", &filter.client_id),
        ("ip_address", &filter.ip_address),
        ("endpoint", &filter.endpoint),
        ("rule_id", &filter.rule_id),
        ("model_id", &filter.model_id),
        ("scope", &filter.scope),
        ("reason", &filter.reason),
        ("action", &filter.action),
    ];
    for (column, value) in by_selectivity {
        let Some(value) = value else { continue };
        // No index is of an expression.
        let column = if is_indexed { column.to_owned() } else { format!("({column} || '')") };
        query.push_bind(&format!(" AND {column} = "), value.as_str());
        is_indexed = false;
    }
    query.push_if(" AND timestamp >= ", filter.from);
    query.push_if(" AND timestamp < ", filter.until);
    query.push_if(" AND id > ", filter.written_after);
}

pub(super) async fn search(
    session: &mut dyn Session,
    filter: &DecisionFilter,
    before: Option<DecisionPlace>,
    limit: u32,
) -> Result<Vec<StoredDecision>, RepositoryError> {
    let mut query = select(filter);
    if let Some(before) = before {
        query.push_bind(" AND (timestamp, id) < (", before.at);
        query.push_bind(", ", before.id);
        query.push(")");
    }
    query.push_bind(" ORDER BY timestamp DESC, id DESC LIMIT ", i64::from(limit));
    within(SEARCH, fetch_all(session, query, read_decision)).await
}

pub(super) async fn count(
    session: &mut dyn Session,
    filter: &DecisionFilter,
    most: u32,
) -> Result<i64, RepositoryError> {
    let mut query =
        Query::new("SELECT COUNT(*) FROM (SELECT 1 FROM rate_limit_audit_log WHERE true");
    push_conditions(&mut query, filter);
    query.push_bind(" LIMIT ", i64::from(most));
    query.push(") AS found");
    within(SEARCH, fetch_int(session, query)).await
}

pub(super) async fn rule_versions_at(
    session: &mut dyn Session,
    rules: &[(String, Revision)],
) -> Result<Vec<Option<RuleVersionAt>>, RepositoryError> {
    let mut found = Vec::with_capacity(rules.len());
    for (rule, revision) in rules {
        let query = Query::new(
            "SELECT version, id, timestamp, actor FROM admin_audit_log \
             WHERE kind = 'rule' AND entry_id = $1 AND revision <= $2 ORDER BY id DESC LIMIT 1",
        );
        let read = |row: &mut Columns<'_>| {
            Ok(RuleVersionAt {
                version: row.int()?,
                change_id: row.int()?,
                at: row.int()?,
                actor: row.text()?,
            })
        };
        let query = query.bind(rule.as_str()).bind(*revision);
        found.push(fetch_all(session, query, read).await?.pop());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_search_that_takes_too_long_is_refused_with_the_way_out() {
        let error =
            within(Duration::ZERO, std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert!(
            matches!(&error, RepositoryError::Invalid(why) if why.contains("narrow the time range"))
        );
    }

    #[test]
    fn a_search_of_a_tenant_uses_the_index_of_the_tenant() {
        let filter = DecisionFilter {
            tenant_id: Some("acme".to_owned()),
            user_id: Some("ann".to_owned()),
            ip_address: Some("192.0.2.1".to_owned()),
            endpoint: Some("/".to_owned()),
            ..DecisionFilter::default()
        };
        let sql = select(&filter).sql;
        assert!(sql.contains(" AND tenant_id = $1 AND (user_id || '') = $2"), "{sql}");
    }
}
