//! Rules as they are recorded: JSON without API keys.

use serde_json::Value;
use tollgate_policy::Known;
use tollgate_store::api_key_id;

/// Rules that came into force.
pub(super) struct InForce {
    pub(super) at: u64,
    pub(super) enforcement: &'static str,
    pub(super) text: String,
}

/// The text of a rule file in JSON, with API keys as ids. Too long ones are empty.
pub(super) fn text_of(mut document: Value, secret: &[u8]) -> String {
    hide_keys(&mut document, secret);
    let text = document.to_string();
    if text.len() > tollgate_recording::MAX_RULES_BYTES { String::new() } else { text }
}

/// Replaces API keys wherever a rule file may name them. Its depth is bounded where it was read.
fn hide_keys(value: &mut Value, secret: &[u8]) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| hide_keys(item, secret)),
        Value::Object(fields) => {
            let kind = fields.get("type").and_then(Value::as_str);
            let is_key = kind == Some(Known::ApiKey.name());
            for (name, value) in fields.iter_mut() {
                match name.as_str() {
                    "api_keys" => hide_all(value, secret),
                    "value" if is_key => hide_all(value, secret),
                    _ => hide_keys(value, secret),
                }
            }
        }
        // The short form of a line of a list, such as `api_key:sk-1`.
        Value::String(text) => {
            let key = text.split_once(':').filter(|(kind, _)| *kind == Known::ApiKey.name());
            if let Some((kind, key)) = key {
                *text = format!("{kind}:{}", api_key_id(secret, key));
            }
        }
        _ => {}
    }
}

fn hide_all(value: &mut Value, secret: &[u8]) {
    match value {
        Value::String(key) => *key = api_key_id(secret, key),
        Value::Array(keys) => keys.iter_mut().for_each(|key| hide_all(key, secret)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_recorded_without_api_keys() {
        let document = json!({
            "rules": [{ "rule_id": "a", "applies_to": { "api_keys": ["sk-one"] } }],
            "default": { "limit": 3, "applies_to": { "api_keys": "sk-two" } },
            "deny_list": ["api_key:sk-three", { "type": "api_key", "value": "sk-four" }],
            "client_tiers": [{ "value": "sk-five", "type": "api_key", "tier": "gold" }],
            "allow_list": [{ "type": "user_id", "value": "ann" }, "ip:10.0.0.0/8"],
        });
        let text = text_of(document, b"secret");
        assert!(!text.contains("sk-"), "{text}");
        for key in ["sk-one", "sk-two", "sk-three", "sk-four", "sk-five"] {
            assert!(text.contains(&api_key_id(b"secret", key)), "{key}: {text}");
        }
        assert!(text.contains("\"ann\"") && text.contains("ip:10.0.0.0/8"));
        assert_eq!(text_of(json!({ "rules": "x".repeat(2 << 20) }), b"secret"), "");
    }
}
