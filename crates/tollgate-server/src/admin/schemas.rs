//! The bodies and answers of the admin API described.

use serde_json::{Map, Value, json};
use tollgate_control::{Kind, Role};

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

pub(super) fn rule_example() -> Value {
    json!({
        "rule_id": "api_default", "name": "Default API Rate Limit", "limit": 1000,
        "window_seconds": 3600, "identifier_type": "api_key",
        "applies_to": { "endpoints": ["/api/*"], "methods": ["GET", "POST", "PUT", "DELETE"] },
        "action": "reject", "priority": 10,
    })
}

pub(super) fn body_of(kind: Kind) -> (Value, Value) {
    let object = |required: Value, properties: Value| {
        json!({ "type": "object", "additionalProperties": false, "required": required,
                "properties": properties })
    };
    let name = || json!({ "type": "string", "minLength": 1, "maxLength": 256 });
    let client = |types: &[&str]| json!({ "enum": types });
    let listed = ["api_key", "user_id", "tenant_id", "ip"];
    let instant = || json!({ "type": ["string", "null"], "format": "date-time" });
    let reason = || json!({ "type": ["string", "null"], "maxLength": 4096 });
    match kind {
        Kind::Rule => (reference("rules.rule"), rule_example()),
        Kind::Tier => (
            object(
                json!(["name"]),
                json!({ "name": name(), "description": reason(),
                        "is_default": { "type": ["boolean", "null"] } }),
            ),
            json!({ "name": "premium", "description": "Paying customers" }),
        ),
        Kind::ClientTier => (
            json!({ "anyOf": [
                object(
                    json!(["identifier", "identifier_type", "tier"]),
                    json!({ "identifier": name(), "tier": name(),
                            "identifier_type": client(&["api_key", "user_id", "tenant_id"]) }),
                ),
                object(
                    json!(["client_tiers"]),
                    json!({ "client_tiers": { "type": "array", "minItems": 1, "maxItems": 10_000,
                                              "items": { "type": "object" } } }),
                ),
            ] }),
            json!({ "identifier": "acme", "identifier_type": "tenant_id", "tier": "premium" }),
        ),
        Kind::Grant => (
            object(
                json!(["rule_id", "identifier", "identifier_type", "extra", "expires_at"]),
                json!({ "rule_id": name(), "identifier": name(),
                        "identifier_type": client(&listed), "reason": reason(),
                        "extra": { "type": "integer", "minimum": 1 },
                        "expires_at": { "type": "string", "format": "date-time" } }),
            ),
            json!({ "rule_id": "api_default", "identifier": "key-1", "identifier_type": "api_key",
                    "extra": 500, "expires_at": "2099-01-01T00:00:00Z", "reason": "launch week" }),
        ),
        Kind::Token => (
            object(
                json!(["name", "role"]),
                json!({ "name": name(), "role": { "enum": Role::ALL.map(Role::name) },
                        "tenant_id": { "type": ["string", "null"] }, "expires_at": instant() }),
            ),
            json!({ "name": "dashboard", "role": "viewer" }),
        ),
        _ => (
            object(
                json!(["identifier", "identifier_type"]),
                json!({ "identifier": name(), "identifier_type": client(&listed),
                        "reason": reason(), "expires_at": instant() }),
            ),
            json!({ "identifier": "203.0.113.0/24", "identifier_type": "ip",
                    "reason": "abuse", "expires_at": "2099-01-01T00:00:00Z" }),
        ),
    }
}

/// What every entry has: its version, and who made and changed it.
fn stamped(required: &[&str], properties: Value) -> Value {
    let mut all = json!({
        "version": { "type": "integer" },
        "created_at": { "type": "string", "format": "date-time" },
        "created_by": text(),
        "updated_at": { "type": "string", "format": "date-time" },
        "updated_by": text(),
    });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), properties) {
        all.extend(more);
    }
    let always = ["version", "created_at", "created_by", "updated_at", "updated_by"];
    let required: Vec<&str> = required.iter().copied().chain(always).collect();
    json!({ "type": "object", "required": required, "properties": all })
}

pub(super) fn schemas() -> Map<String, Value> {
    let mut schemas = rule_schemas();
    schemas.extend(super::schemas_seen::schemas());
    schemas.extend(record_schemas());
    let mut add = |name: &str, schema: Value| schemas.insert(name.to_owned(), schema);
    add(
        "AdminRule",
        stamped(
            &["rule_id", "status", "rule"],
            json!({ "rule_id": text(), "status": { "enum": ["active", "inactive"] },
                    "tenant_id": { "type": ["string", "null"] }, "rule": reference("rules.rule") }),
        ),
    );
    add(
        "AdminVersion",
        json!({ "type": "object",
                "required": ["rule_id", "version", "status", "rule", "created_at", "created_by"],
                "properties": { "rule_id": text(), "version": { "type": "integer" },
                    "status": { "enum": ["active", "inactive", "deleted"] },
                    "created_at": { "type": "string", "format": "date-time" },
                    "created_by": text(),
                    "rule": { "anyOf": [reference("rules.rule"), { "type": "null" }] } } }),
    );
    let maybe = || json!({ "type": ["string", "null"] });
    let flag = || json!({ "type": "boolean" });
    add(
        "AdminListEntry",
        stamped(
            &["id", "identifier_type", "identifier", "is_expired"],
            json!({ "id": text(), "identifier_type": text(), "identifier": text(),
                    "reason": maybe(), "expires_at": maybe(), "is_expired": flag() }),
        ),
    );
    add(
        "AdminClientTier",
        stamped(
            &["id", "identifier_type", "identifier", "tier"],
            json!({ "id": text(), "identifier_type": text(), "identifier": text(), "tier": text() }),
        ),
    );
    add(
        "AdminTier",
        stamped(
            &["name"],
            json!({ "name": text(), "description": maybe(),
                    "is_default": { "type": ["boolean", "null"] } }),
        ),
    );
    add(
        "AdminGrant",
        stamped(
            &["grant_id", "rule_id", "identifier_type", "identifier", "extra", "expires_at"],
            json!({ "grant_id": text(), "rule_id": text(), "identifier_type": text(),
                    "identifier": text(), "extra": { "type": "integer" }, "expires_at": text(),
                    "reason": maybe(), "is_expired": flag() }),
        ),
    );
    add("AdminSetting", stamped(&["name", "value"], json!({ "name": text(), "value": {} })));
    let token = json!({ "token_id": text(), "name": text(), "role": text(),
        "tenant_id": maybe(), "expires_at": maybe(), "revoked_at": maybe(),
        "status": { "enum": ["active", "expired", "revoked"] } });
    let fields = ["token_id", "name", "role", "status"];
    add("AdminToken", stamped(&fields, token.clone()));
    let mut secret = stamped(&["token_id", "name", "role", "status", "token"], token);
    if let Some(properties) = secret.pointer_mut("/properties").and_then(Value::as_object_mut) {
        properties.insert("token".to_owned(), text());
    }
    add("AdminSecret", secret);
    add("AdminKey", super::openapi_keys::schema());
    add("AdminHistoryLink", super::openapi_audit::link_schema());
    add("AdminCandidate", super::candidates::schema());
    add(
        "AdminIdentity",
        json!({ "type": "object", "required": ["token_id", "name", "role", "tenant_id"],
                "properties": { "token_id": text(), "name": text(),
                    "role": { "enum": Role::ALL.map(Role::name) },
                    "tenant_id": maybe(), "expires_at": maybe() } }),
    );
    add(
        "AdminSignInOptions",
        json!({ "type": "object", "required": ["is_configured", "provider"],
                "properties": { "is_configured": { "type": "boolean" }, "provider": maybe() } }),
    );
    add(
        "AdminDryRun",
        json!({ "type": "object", "required": ["dry_run", "action"],
                "properties": { "dry_run": { "const": true }, "action": text(),
                    "shadows": { "type": "object",
                        "additionalProperties": { "type": "array", "items": text() } } } }),
    );
    schemas
}

/// What the logs of changes and decisions answer.
fn record_schemas() -> [(String, Value); 2] {
    let record = json!({ "type": "object", "required": ["id", "timestamp", "action"],
                "properties": { "id": { "type": "integer" },
                    "timestamp": { "type": "string", "format": "date-time" },
                    "action": text(),
                    "count": { "type": "integer", "description": "How many decisions it stands for" },
                    "kept": { "type": ["integer", "null"],
                        "description": "How many of those are also kept in full" },
                    "first_at": { "type": ["string", "null"], "format": "date-time",
                        "description": "When the first of those was made" } },
                "additionalProperties": true });
    let checkpoint = json!({ "type": "object",
                "required": ["tenant_id", "count", "first", "last", "from", "until", "digest"],
                "properties": { "tenant_id": { "type": ["string", "null"] },
                    "count": { "type": "integer" }, "first": { "type": "integer" },
                    "last": { "type": "integer" },
                    "from": { "type": "string", "format": "date-time" },
                    "until": { "type": "string", "format": "date-time" },
                    "digest": text() } });
    [("AdminRecord".to_owned(), record), ("AdminCheckpoint".to_owned(), checkpoint)]
}

/// The schemas of rule files, under names that cannot meet others.
fn rule_schemas() -> Map<String, Value> {
    let text = tollgate_policy::rule_file_schema().to_string();
    let text = text.replace("#/$defs/", "#/components/schemas/rules.");
    let mut file: Value = serde_json::from_str(&text).unwrap_or_default();
    let parts = file.as_object_mut().and_then(|file| {
        file.remove("$schema");
        file.remove("$defs")
    });
    let mut schemas = Map::new();
    for (name, schema) in parts.as_ref().and_then(Value::as_object).into_iter().flatten() {
        schemas.insert(format!("rules.{name}"), schema.clone());
    }
    schemas.insert("rules.file".to_owned(), file);
    schemas
}
