//! What the admin API shows of things.

use serde_json::{Map, Value, json};
use tollgate_control::draft::{instant, rfc3339};
use tollgate_control::{ChangeRecord, Checkpoint, Entry, Identity, Kind, Millis, StoredDecision};

/// An entry.
pub(crate) fn entry(entry: &Entry, now: Millis) -> Value {
    let mut view = match (entry.kind, &entry.body) {
        (Kind::Rule, body) => {
            let mut view = Map::new();
            view.insert("rule_id".to_owned(), entry.id.clone().into());
            view.insert("status".to_owned(), status(body).into());
            view.insert("tenant_id".to_owned(), entry.tenant.clone().into());
            view.insert("rule".to_owned(), body.clone());
            view
        }
        (Kind::Setting, body) => {
            let mut view = Map::new();
            view.insert("name".to_owned(), entry.id.clone().into());
            view.insert("value".to_owned(), body.clone());
            view
        }
        (_, Value::Object(body)) => body.clone(),
        _ => Map::new(),
    };
    match entry.kind {
        Kind::Allow | Kind::Deny | Kind::ClientTier => {
            view.insert("id".to_owned(), entry.id.clone().into());
        }
        Kind::Key => super::keys::view_key(&mut view, &entry.body, now),
        Kind::Token => {
            view.remove("digest");
            view.remove("retired");
            let status = token_status(&entry.body, now);
            view.insert("status".to_owned(), status.into());
        }
        _ => {}
    }
    if matches!(entry.kind, Kind::Allow | Kind::Deny | Kind::Grant) {
        let ends = entry.body.get("expires_at").and_then(Value::as_str).and_then(instant);
        let is_over = ends.is_some_and(|ends| ends <= now);
        view.insert("is_expired".to_owned(), is_over.into());
    }
    view.insert("version".to_owned(), entry.version.into());
    view.insert("created_at".to_owned(), rfc3339(entry.created.at).into());
    view.insert("created_by".to_owned(), entry.created.by.clone().into());
    view.insert("updated_at".to_owned(), rfc3339(entry.updated.at).into());
    view.insert("updated_by".to_owned(), entry.updated.by.clone().into());
    Value::Object(view)
}

/// A version of a rule; one without a rule is its deletion.
pub(crate) fn version(entry: &Entry) -> Value {
    json!({
        "rule_id": entry.id,
        "version": entry.version,
        "status": if entry.body.is_null() { "deleted" } else { status(&entry.body) },
        "rule": entry.body,
        "created_at": rfc3339(entry.created.at),
        "created_by": entry.created.by,
    })
}

/// `active` or `inactive`.
pub(crate) fn status(rule: &Value) -> &'static str {
    match rule.get("is_active") {
        Some(Value::Bool(false)) => "inactive",
        _ => "active",
    }
}

fn token_status(token: &Value, now: Millis) -> &'static str {
    let text = |name: &str| token.get(name).and_then(Value::as_str);
    if text("revoked_at").is_some() {
        "revoked"
    } else if text("expires_at").and_then(instant).is_some_and(|at| at <= now) {
        "expired"
    } else {
        "active"
    }
}

/// Who asks.
pub(crate) fn identity(identity: &Identity) -> Value {
    json!({
        "token_id": identity.token_id,
        "name": identity.name,
        "role": identity.role.name(),
        "tenant_id": identity.tenant,
        "expires_at": identity.expires_at.map(rfc3339),
    })
}

/// A change in the audit log.
pub(crate) fn change(record: &ChangeRecord) -> Value {
    json!({
        "id": record.id,
        "timestamp": rfc3339(record.at),
        "actor": record.actor,
        "token_id": record.token_id,
        "action": record.action,
        "kind": record.kind.name(),
        "entry_id": record.entry_id,
        "tenant_id": record.tenant,
        "version": record.version,
        "revision": record.revision,
        "before": record.before,
        "after": record.after,
        "request_id": record.request_id,
        "address": record.address,
    })
}

/// A decision in the audit log.
pub(crate) fn decision(stored: &StoredDecision) -> Value {
    let record = &stored.record;
    json!({
        "id": stored.id,
        "timestamp": rfc3339(record.at),
        "action": record.action,
        "reason": record.reason,
        "client_id": record.client_id,
        "rule_id": record.rule_id,
        "scope": record.scope,
        "request_count": record.request_count,
        "limit_count": record.limit_count,
        "retry_after_ms": record.retry_after_ms,
        "window_seconds": record.window_seconds,
        "would_deny": record.would_deny,
        "endpoint": record.endpoint,
        "method": record.method,
        "ip_address": record.ip_address,
        "user_id": record.user_id,
        "tenant_id": record.tenant_id,
        "api_key_id": record.api_key_id,
        "model_id": record.model_id,
        "request_id": record.request_id,
        "cost": record.cost,
        "node": record.node,
        "revision": record.revision,
        "count": record.repeat_count.unwrap_or(1),
        "kept": record.kept_count,
        "first_at": record.first_at.map(rfc3339),
    })
}

/// A page of decisions: how many are there in full, and how many there were.
pub(crate) fn decisions(found: &[StoredDecision], next_cursor: Option<&str>) -> Value {
    let items: Vec<Value> = found.iter().map(decision).collect();
    let (kept, of) = completeness(found);
    json!({ "items": items, "next_cursor": next_cursor, "kept": kept, "of": of })
}

/// How many of these are kept in full, and how many decisions they stand for.
pub(crate) fn completeness(found: &[StoredDecision]) -> (usize, i64) {
    let in_full = found.iter().filter(|one| one.record.repeat_count.is_none()).count();
    let stands_for = |one: &StoredDecision| match one.record.repeat_count {
        None => 1,
        Some(count) => count.saturating_sub(one.record.kept_count.unwrap_or(0)),
    };
    (in_full, found.iter().map(stands_for).sum())
}

/// What is known of records that were removed to keep a bound.
pub(crate) fn checkpoint(checkpoint: &Checkpoint) -> Value {
    json!({
        "tenant_id": checkpoint.tenant,
        "count": checkpoint.removed,
        "first": checkpoint.first,
        "last": checkpoint.last,
        "from": rfc3339(checkpoint.from),
        "until": rfc3339(checkpoint.until),
        "digest": checkpoint.digest,
    })
}

/// A page of a list.
pub(crate) fn page(items: &[Value], next_cursor: Option<&str>) -> Value {
    json!({ "items": items, "next_cursor": next_cursor })
}

/// A page of a list that is bounded, with what was removed of it.
pub(crate) fn bounded_page(items: &[Value], next_cursor: Option<&str>, removed: &Value) -> Value {
    json!({ "items": items, "next_cursor": next_cursor, "removed": removed })
}
