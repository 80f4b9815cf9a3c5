//! The log of decisions.

use std::borrow::Cow;

use super::audit_bound::{self, RETURNING};
use super::batch::{Batch, Cell, Column, int, text};
use super::driver::Dialect;
use super::entries::number;
use super::query::{Columns, Query};
use super::search;
use super::session::{Session, fetch_all};
use crate::{DecisionFilter, DecisionRecord, Millis, Page, RepositoryError, StoredDecision};

/// The longest text of a record. Clients choose much of it, and PostgreSQL's indexes take rows of up to
/// 2.7 kB.
const MAX_TEXT_BYTES: usize = 1024;

pub(super) const COLUMNS: [Column; 28] = [
    text("event_id"),
    int("timestamp"),
    text("action"),
    text("reason"),
    text("client_id"),
    text("rule_id"),
    text("scope"),
    int("request_count"),
    int("limit_count"),
    int("retry_after_ms"),
    int("window_seconds"),
    text("would_deny"),
    text("endpoint"),
    text("method"),
    text("ip_address"),
    text("user_id"),
    text("tenant_id"),
    text("api_key_id"),
    text("model_id"),
    text("request_id"),
    int("cost"),
    text("node"),
    int("revision"),
    int("repeat_count"),
    int("kept_count"),
    int("first_at"),
    text("caller"),
    int("bytes"),
];

pub(super) async fn record(
    session: &mut dyn Session,
    dialect: &Dialect,
    decisions: &[DecisionRecord],
) -> Result<u64, RepositoryError> {
    let mut rows = Batch::new();
    for decision in decisions {
        write_row(&mut rows, decision)?;
    }
    if rows.is_empty() {
        return Ok(0);
    }
    let conflict = format!("ON CONFLICT (event_id) DO NOTHING {RETURNING}");
    let insert = rows.insert(dialect, "rate_limit_audit_log", &COLUMNS, &conflict);
    let added = audit_bound::run(session, insert).await?;
    audit_bound::count(session, dialect, &added, 1).await?;
    Ok(added.count)
}

fn write_row(rows: &mut Batch, decision: &DecisionRecord) -> Result<(), RepositoryError> {
    let needed = [
        &decision.event_id,
        &decision.action,
        &decision.reason,
        &decision.client_id,
        &decision.node,
        &decision.caller,
    ]
    .map(|text| cut(text));
    let [event_id, action, reason, client_id, node, caller] = &needed;
    let optional = [
        &decision.rule_id,
        &decision.scope,
        &decision.endpoint,
        &decision.method,
        &decision.ip_address,
        &decision.user_id,
        &decision.tenant_id,
        &decision.api_key_id,
        &decision.model_id,
        &decision.request_id,
    ]
    .map(|text| text.as_deref().map(cut));
    let [rule, scope, endpoint, method, address, user, tenant, api_key, model, request] = &optional;
    let would_deny = would_deny_text(&decision.would_deny);
    let would_deny = would_deny.as_deref().map(cut);
    let cells: [Cell<'_>; 28] = [
        (&**event_id).into(),
        decision.at.into(),
        (&**action).into(),
        (&**reason).into(),
        (&**client_id).into(),
        rule.as_deref().into(),
        scope.as_deref().into(),
        decision.request_count.into(),
        decision.limit_count.into(),
        decision.retry_after_ms.into(),
        decision.window_seconds.into(),
        would_deny.as_deref().into(),
        endpoint.as_deref().into(),
        method.as_deref().into(),
        address.as_deref().into(),
        user.as_deref().into(),
        tenant.as_deref().into(),
        api_key.as_deref().into(),
        model.as_deref().into(),
        request.as_deref().into(),
        decision.cost.into(),
        (&**node).into(),
        decision.revision.into(),
        decision.repeat_count.into(),
        decision.kept_count.into(),
        decision.first_at.into(),
        (&**caller).into(),
        decision.estimated_bytes().into(),
    ];
    rows.row(&cells)
}

/// Rules as one text: each on a line, which no id of a rule contains.
fn would_deny_text(rules: &[String]) -> Option<String> {
    (!rules.is_empty()).then(|| rules.join("\n"))
}

fn would_deny_rules(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Text for a log. What is too long is cut and what cannot be kept is replaced: a record that was
/// refused would take its whole batch with it.
pub(super) fn cut(text: &str) -> Cow<'_, str> {
    let mut ends = (0..=MAX_TEXT_BYTES.min(text.len())).rev();
    // Not within a character.
    let short = ends.find_map(|end| text.get(..end)).unwrap_or_default();
    if short.contains('\0') { short.replace('\0', "?").into() } else { short.into() }
}

pub(super) async fn decisions(
    session: &mut dyn Session,
    filter: &DecisionFilter,
    page: &Page,
) -> Result<Vec<StoredDecision>, RepositoryError> {
    let mut query = search::select(filter);
    query.push_if(" AND id < ", number(page)?);
    query.push_bind(" ORDER BY id DESC LIMIT ", i64::from(page.limit));
    search::within(search::SEARCH, fetch_all(session, query, read_decision)).await
}

pub(super) fn read_decision(row: &mut Columns<'_>) -> Result<StoredDecision, RepositoryError> {
    let id = row.int()?;
    let record = DecisionRecord {
        event_id: row.text()?,
        at: row.int()?,
        action: row.text()?,
        reason: row.text()?,
        client_id: row.text()?,
        rule_id: row.optional_text()?,
        scope: row.optional_text()?,
        request_count: row.optional_int()?,
        limit_count: row.optional_int()?,
        retry_after_ms: row.optional_int()?,
        window_seconds: row.optional_int()?,
        would_deny: row.optional_text()?.as_deref().map(would_deny_rules).unwrap_or_default(),
        endpoint: row.optional_text()?,
        method: row.optional_text()?,
        ip_address: row.optional_text()?,
        user_id: row.optional_text()?,
        tenant_id: row.optional_text()?,
        api_key_id: row.optional_text()?,
        model_id: row.optional_text()?,
        request_id: row.optional_text()?,
        cost: row.int()?,
        node: row.text()?,
        revision: row.int()?,
        repeat_count: row.optional_int()?,
        kept_count: row.optional_int()?,
        first_at: row.optional_int()?,
        caller: row.text()?,
    };
    Ok(StoredDecision { id, record })
}

pub(super) async fn prune(
    session: &mut dyn Session,
    dialect: &Dialect,
    before: Millis,
    most: u32,
) -> Result<u64, RepositoryError> {
    let query = Query::new(format!(
        "DELETE FROM rate_limit_audit_log WHERE id IN (SELECT id FROM rate_limit_audit_log \
         WHERE timestamp < $1 ORDER BY timestamp LIMIT $2) {RETURNING}"
    ));
    let removed = audit_bound::run(session, query.bind(before).bind(i64::from(most))).await?;
    audit_bound::count(session, dialect, &removed, -1).await?;
    Ok(removed.count)
}
