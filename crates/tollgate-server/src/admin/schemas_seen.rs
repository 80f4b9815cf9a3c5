//! The answers that tell what this node sees, described.

use serde_json::{Map, Value, json};

use tollgate_control::{UsageAmounts, UsageDimension};
use tollgate_policy::Unit;

use super::schemas::{reference, text};

/// An object with all of these.
fn object(properties: &Value) -> Value {
    let names = properties.as_object().into_iter().flat_map(Map::keys);
    let required: Vec<&String> = names.collect();
    json!({ "type": "object", "required": required, "properties": properties })
}

fn number() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn or_null(kind: &str) -> Value {
    json!({ "type": [kind, "null"] })
}

fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn instant() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

fn by_result() -> Value {
    object(
        &json!({ "allowed": number(), "denied": number(), "throttled": number(), "queued": number(),
            "would_deny": number() }),
    )
}

/// Usage, grouped. What a report is not grouped by is absent.
fn usage_report() -> Value {
    let mut figures = Map::new();
    for name in UsageAmounts::NAMES.into_iter().filter(|name| *name != "nanos") {
        figures.insert(name.to_owned(), number());
    }
    figures.insert("currency".to_owned(), or_null("string"));
    figures.insert(
        "money".to_owned(),
        json!({ "type": ["string", "null"], "description": "A decimal" }),
    );
    let mut item = object(&Value::Object(figures));
    if let Some(properties) = item.get_mut("properties").and_then(Value::as_object_mut) {
        for dimension in UsageDimension::ALL {
            properties.insert(dimension.column().to_owned(), or_null("string"));
        }
    }
    object(
        &json!({ "from": text(), "until": text(), "group_by": list(&text()), "items": list(&item),
        "truncated": { "type": "boolean" } }),
    )
}

/// Schemas by name.
pub(super) fn schemas() -> Map<String, Value> {
    let mut schemas = Map::new();
    let mut add = |name: &str, schema: Value| schemas.insert(name.to_owned(), schema);
    add(
        "AdminLimit",
        object(
            &json!({ "rule_id": text(), "scope": text(), "limit": number(), "current": number(),
            "remaining": number(), "reset_at": instant(), "window_seconds": number() }),
        ),
    );
    add(
        "AdminUsage",
        object(
            &json!({ "identifier_type": text(), "identifier": text(), "tier": or_null("string"),
            "allowed": or_null("boolean"), "reason": or_null("string"),
            "limits": list(&reference("AdminLimit")) }),
        ),
    );
    let mut limit = json!({ "unit": { "enum": Unit::ALL.iter().map(|unit| unit.name()).collect::<Vec<_>>() },
        "key": { "type": "object", "additionalProperties": text() },
        "request": { "type": ["integer", "null"], "description":
            "The place in requests of the first one that met it; null if the client alone meets it" } });
    limit = json!({ "allOf": [reference("AdminLimit"), object(&limit)] });
    let request = object(&json!({ "user_id": or_null("string"), "tenant_id": or_null("string"),
        "ip": or_null("string"), "model_id": or_null("string"), "endpoint": or_null("string"),
        "method": or_null("string"), "last_at": instant(), "decisions": number(),
        "allowed": or_null("boolean"), "reason": or_null("string") }));
    let entry = object(&json!({ "list": { "enum": ["blacklist", "whitelist"] },
        "identifier_type": text(), "reason": or_null("string") }));
    add(
        "AdminClient",
        object(
            &json!({ "identifier_type": text(), "identifier": text(), "tier": or_null("string"),
            "listed": { "anyOf": [entry, { "type": "null" }] }, "refused_by": or_null("string"),
            "requests": list(&request), "limits": list(&limit) }),
        ),
    );
    add("AdminUsageReport", usage_report());
    add(
        "AdminReset",
        object(&json!({ "identifier_type": text(), "identifier": text(), "reset": list(&text()),
            "skipped": list(&text()) })),
    );
    add(
        "AdminExplained",
        object(&json!({ "allowed": { "type": "boolean" }, "reason": text(), "explanation": text(),
            "listed": { "type": ["object", "null"] }, "tier": or_null("string"),
            "tier_from": or_null("string"), "rules_left_out": number(),
            "rules": list(&object(&json!({ "rule_id": text(), "scope": text(),
                "verdict": { "enum": ["applies", "less_specific", "replaced", "default_yields", "misses"] },
                "because": or_null("string"),
                "key": { "type": "object", "additionalProperties": text() } }))),
            "limits": list(&reference("AdminLimit")) })),
    );
    add(
        "AdminTried",
        object(&json!({ "status": number(), "decision": reference("DecisionBody"),
            "headers": { "type": "object", "additionalProperties": text() } })),
    );
    decisions(&mut schemas);
    seen(&mut schemas);
    schemas
}

/// What a search of decisions answers.
fn decisions(schemas: &mut Map<String, Value>) {
    let (texts, numbers) = (|| or_null("string"), || or_null("integer"));
    let decision = object(&json!({ "id": number(), "timestamp": instant(), "action": text(),
        "result": { "enum": ["allowed", "denied", "throttled", "queued", "would_deny"] },
        "sentence": text(), "reason": text(), "client_id": text(), "rule_id": texts(),
        "rule_version": numbers(), "rule_change": { "type": ["object", "null"] },
        "scope": texts(), "request_count": numbers(), "limit_count": numbers(),
        "window_seconds": numbers(), "retry_after_ms": numbers(), "would_deny": list(&text()),
        "endpoint": texts(), "method": texts(), "ip_address": texts(), "user_id": texts(),
        "tenant_id": texts(), "api_key_id": texts(), "model_id": texts(), "request_id": texts(),
        "cost": { "type": "integer" }, "node": text(), "revision": { "type": "integer" },
        "count": number(), "kept": numbers(), "first_at": texts() }));
    let page = object(&json!({ "items": list(&reference("AdminDecision")), "next_cursor": texts(),
        "kept": number(), "of": number(), "from": texts(), "until": texts(),
        "retained_from": instant(),
        "newest_id": { "type": "integer", "description": "The id of the newest record of the log; for a tenant's admin, of the tenant's" },
        "skipped": { "type": ["integer", "null"], "description":
            "With written_after: how many further records fit, which are left out" } }));
    schemas.insert("AdminDecision".to_owned(), decision);
    schemas.insert("AdminDecisions".to_owned(), page);
}

fn seen(schemas: &mut Map<String, Value>) {
    let mut add = |name: &str, schema: Value| schemas.insert(name.to_owned(), schema);
    let mut counted = object(&json!({ "key": text(), "count": number(), "at_least": number() }));
    // Tenants and models are known by their names alone.
    if let Some(properties) = counted.pointer_mut("/properties").and_then(Value::as_object_mut) {
        let attributes = json!({ "type": "object", "additionalProperties": text() });
        properties.insert("attributes".to_owned(), attributes);
    }
    add("AdminCounted", counted);
    let counted = || list(&reference("AdminCounted"));
    add(
        "AdminTop",
        object(&json!({ "node": text(), "since": instant(), "seconds": number(),
            "sampled_one_in": number(), "tenants": counted(), "models": counted(),
            "nodes": number(), "nodes_unread": number(), "problem": or_null("string"),
            "rules_left_out": number(), "rules": list(&object(&json!({ "rule_id": text(), "consumed": number(),
                "refused": number(), "would_deny": number(), "top_allowed": counted(),
                "top_refused": counted(), "top_would_deny": counted(),
                "allowed_keys": number(), "refused_keys": number(), "would_deny_keys": number(),
                "allowed_floor": number(), "refused_floor": number(),
                "would_deny_floor": number() }))) })),
    );
    let millis = || list(&or_null("number"));
    let mut history = object(&json!({ "node": text(), "until": or_null("string"),
        "step_seconds": number(), "steps": number(), "nodes": number(), "nodes_unread": number(),
        "problem": or_null("string"), "values_left_out": number(), "values": list(&object(&json!({ "name": text(), "allowed": list(&number()),
            "refused": list(&number()), "would_deny": list(&number()) }))) }));
    // Tenants' admins do not see what all do together.
    if let Some(properties) = history.pointer_mut("/properties").and_then(Value::as_object_mut) {
        let mut all = object(&json!({ "allowed": list(&number()), "denied": list(&number()),
            "throttled": list(&number()), "queued": list(&number()), "would_deny": list(&number()),
            "p50_ms": millis(), "p95_ms": millis(), "p99_ms": millis() }));
        if let Some(properties) = all.pointer_mut("/properties").and_then(Value::as_object_mut) {
            let calls = list(&list(&number()));
            properties.insert("calls_by_latency".to_owned(), calls);
        }
        properties.insert("all".to_owned(), all);
        let bounds = json!({ "type": "array", "items": { "type": "number" }, "description":
            "The upper ends of the rows of calls_by_latency; the last row has none" });
        properties.insert("latency_bounds_ms".to_owned(), bounds);
    }
    add("AdminHistory", history);
    add(
        "AdminNodes",
        object(
            &json!({ "node": text(), "problem": or_null("string"), "items": list(&object(&json!({
            "node": text(), "host": text(), "version": text(), "role": text(),
            "uptime_seconds": { "type": "integer" }, "enforcement": text(),
            "is_live": { "type": "boolean" }, "is_stopped": { "type": "boolean" },
            "last_seen": instant(), "gone_since": or_null("string"), "decisions": by_result(),
            "decisions_per_second": { "type": "number" }, "cpu": { "type": "number" },
            "p50_ms": or_null("number"), "p95_ms": or_null("number"), "p99_ms": or_null("number"),
            "rules": object(&json!({ "count": number(), "source": text(),
                "revision": { "type": "integer" }, "owner": or_null("string") })),
            "stores": list(&object(&json!({ "name": text(), "is_lost": { "type": "boolean" } }))),
        }))) }),
        ),
    );
    add(
        "AdminOverview",
        object(&json!({ "node": text(), "live_nodes": number(), "gone_nodes": number(),
            "decisions": by_result(), "decisions_per_second": { "type": "number" },
            "stores_lost": list(&text()), "problem": or_null("string") })),
    );
    add(
        "AdminIncidents",
        object(&json!({ "items": list(&object(&json!({ "kind": text(), "title": text(),
            "text": text(), "next_step": text(), "since": instant(),
            "until": or_null("string") }))) })),
    );
    add(
        "AdminNode",
        object(&json!({ "node": text(), "version": text(), "role": text(),
            "uptime_seconds": { "type": "integer" },
            "enforcement": { "enum": ["on", "shadow", "off"] }, "log_level": text(),
            "rules": object(&json!({ "count": number(), "source": text(),
                "revision": { "type": "integer" }, "load_failures": number() })),
            "memory": object(&json!({ "counters": number(), "bytes": number(), "evicted": number() })),
            "stores": list(&object(&json!({ "name": text(), "is_lost": { "type": "boolean" },
                "open_breakers": number(), "nodes": number(), "waiting_reports": number() }))),
            "decisions": by_result(),
            "incidents": list(&object(&json!({ "kind": text(), "message": text() }))) })),
    );
}
