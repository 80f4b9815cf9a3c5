//! The calls for virtual keys described.

use serde_json::{Map, Value, json};
use tollgate_policy::{MAX_KEY_LIMITS, MAX_KEY_MODELS, MAX_KEY_TAGS};

use super::keys::MAX_KEYS_AT_ONCE;
use super::openapi::{Described, deleted, page, pages};
use super::routes::KeyCall;
use super::schemas::{reference, text};

fn name() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 128 })
}

/// What is said of the field.
const LABELS_ONLY: &str = "Owner and tags are labels and identify no request. True for keys that an admin of a tenant \
                           makes, until an admin of the installation states false";

/// What a caller may set of a key.
fn fields() -> Value {
    let value = || json!({ "type": ["string", "null"], "minLength": 1, "maxLength": 256 });
    json!({
        "name": name(), "owner": value(), "tenant_id": value(),
        "tags": { "type": ["object", "null"], "maxProperties": MAX_KEY_TAGS,
                  "additionalProperties": { "type": "string" } },
        "models": { "type": ["array", "null"], "minItems": 1, "maxItems": MAX_KEY_MODELS,
                    "items": { "type": "string" } },
        "limits": { "type": ["array", "null"], "maxItems": MAX_KEY_LIMITS,
                    "items": { "type": "object" } },
        "budget": { "type": ["object", "null"] },
        "expires_at": { "type": ["string", "null"], "format": "date-time" },
        "labels_only": { "type": ["boolean", "null"], "description": LABELS_ONLY },
    })
}

fn object(required: &Value, properties: &Value) -> Value {
    json!({ "type": "object", "additionalProperties": false, "required": required,
            "properties": properties })
}

fn example() -> Value {
    json!({ "name": "search team", "owner": "ann", "tenant_id": "acme", "models": ["gpt-4o*"],
            "limits": [{ "limit": 60, "window": "1m" }],
            "budget": { "amount": "5.00", "currency": "USD", "calendar": "month" } })
}

/// What a call takes and answers.
pub(super) fn describe(call: KeyCall) -> Described {
    let one = || reference("AdminKey");
    match call {
        KeyCall::List => {
            let mut query = page();
            let names = ["prefix", "tenant_id", "owner", "name"];
            query.extend(names.map(|name| (name, text())));
            Described {
                query,
                ..Described::plain("List keys, by id, page by page", pages("AdminKey"))
            }
        }
        KeyCall::Get => Described::plain("Get one key", one()),
        KeyCall::Create => {
            let mut single = fields();
            if let Some(single) = single.as_object_mut() {
                let digest = json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$",
                    "description": "The SHA-256 of a secret that exists already, to import it" });
                single.insert("sha256".to_owned(), digest);
            }
            let many = json!({ "keys": { "type": "array", "minItems": 1,
                "maxItems": MAX_KEYS_AT_ONCE, "items": { "type": "object" } } });
            let body = json!({ "anyOf": [object(&json!(["name"]), &single),
                                         object(&json!(["keys"]), &many)] });
            let secret = json!({ "type": ["string", "null"] });
            let created = json!({ "type": "object", "required": ["keys"], "properties": {
                "keys": { "type": "array", "items": { "type": "object", "required": ["id", "secret"],
                    "properties": { "id": text(), "name": text(), "secret": secret } } } } });
            let answer = json!({ "anyOf": [one(), created] });
            Described {
                body: Some((body, example())),
                creates: true,
                ..Described::plain("Create keys; a secret is shown once", answer)
            }
        }
        KeyCall::Update => Described {
            body: Some((object(&json!(["name"]), &fields()), example())),
            ..Described::plain("Replace what may be set of a key", one())
        },
        KeyCall::Rotate => {
            let overlap = json!({ "type": ["string", "integer", "null"],
                "description": "How long the secret before stays valid: seconds, or such as 1h" });
            Described {
                body: Some((
                    object(&json!([]), &json!({ "overlap": overlap })),
                    json!({ "overlap": "1h" }),
                )),
                ..Described::plain("Give a key a new secret, which is shown once", one())
            }
        }
        KeyCall::Disable => Described::plain("Refuse a key from now on", one()),
        KeyCall::Enable => Described::plain("Accept a disabled key again", one()),
        KeyCall::Delete => Described::plain("Delete a key", deleted()),
    }
}

/// The schema of a key.
pub(super) fn schema() -> Value {
    let mut properties = fields();
    if let Some(properties) = properties.as_object_mut() {
        let maybe = || json!({ "type": ["string", "null"] });
        let more: Map<String, Value> = [
            ("id", text()),
            ("secret", json!({ "type": "string", "description": "Only where it was just made" })),
            ("status", json!({ "enum": ["active", "disabled", "expired"] })),
            ("disabled_at", maybe()),
            ("previous_secret_until", maybe()),
            ("managed_by", json!({ "enum": ["installation", "tenant"] })),
            ("version", json!({ "type": "integer" })),
            ("created_at", text()),
            ("created_by", text()),
            ("updated_at", text()),
            ("updated_by", text()),
        ]
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
        properties.extend(more);
    }
    json!({ "type": "object", "required": ["id", "name", "status", "version"],
            "properties": properties })
}
