//! The JSON Schema of rule files. Written out, because the reader is; a test keeps them in step.

use serde_json::{Map, Value, json};
use tollgate_core::{Algorithm, CalendarUnit};

use crate::schedule::DAYS;
use crate::{
    Action, BudgetMode, IdentifierType, Known, ListKind, MAX_ACTIVE_WINDOWS, MAX_DELAY_MS,
    MAX_GENERATION, MAX_GRANTS, MAX_KEY_PARTS, MAX_LIMITS, MAX_PATTERNS, MAX_QUOTA,
    MAX_ROLLOUT_STEPS, MAX_ROLLOUT_TENANTS, MAX_RULES, NoMatch, OnStoreFailure, Unit,
};

/// The JSON Schema (draft 2020-12) of rule files, for editors.
pub fn rule_file_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tollgate rule file",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "rules": {
                "description": "The rules. Rules that share a scope are alternatives; scopes are enforced together.",
                "type": "array", "maxItems": MAX_RULES, "items": {"$ref": "#/$defs/rule"}
            },
            "allow_list": {
                "description": "Who is always allowed; nothing is counted.",
                "type": "array", "items": {"$ref": "#/$defs/entry"}
            },
            "deny_list": {
                "description": "Who is always refused. It comes before allow_list.",
                "type": "array", "items": {"$ref": "#/$defs/entry"}
            },
            "tiers": {
                "description": "The plans. Where they are given, rules may name no others.",
                "type": "array", "items": {"$ref": "#/$defs/tier"}
            },
            "client_tiers": {
                "description": "Which plan a key, user or tenant has.",
                "type": "array", "items": {"$ref": "#/$defs/client_tier"}
            },
            "grants": {
                "description": "Extra quota of clients on single rules, until a date.",
                "type": "array", "maxItems": MAX_GRANTS, "items": {"$ref": "#/$defs/grant"}
            },
            "default": {
                "description": "The system default (100 requests per hour per user_id and model_id): false or none switches it off, a map replaces parts of it.",
                "anyOf": [
                    {"enum": [false, true, "none"]},
                    {"type": "object", "additionalProperties": false, "properties": merged(&[limit_fields(), default_fields()])}
                ]
            },
            "no_match": described("What happens to a request that nothing applies to; default allow.", names(NoMatch::ALL, NoMatch::name))
        },
        "$defs": {
            "rule": {
                "type": "object", "additionalProperties": false, "required": ["rule_id"],
                "properties": merged(&[rule_fields(), default_fields(), limit_fields()])
            },
            "limit": {"type": "object", "additionalProperties": false, "properties": limit_fields()},
            "candidate": candidate(),
            "quota": {"anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_QUOTA},
                {"const": "unlimited"},
                {"$ref": "#/$defs/money"}
            ]},
            "money": {
                "description": "An amount of a rule of unit money, such as \"5.00\"; at most 9007199.254740991.",
                "type": "string", "pattern": "^[0-9]+(\\.[0-9]{1,9}0*)?$"
            },
            "texts": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "number", "boolean"]}}]},
            "applies_to": applies_to(),
            "cost": {
                "type": "object", "additionalProperties": false, "required": ["cost"],
                "properties": {
                    "endpoint": text("An endpoint pattern."),
                    "method": text("An HTTP method."),
                    "cost": {"description": "What such a request charges.", "type": "integer", "minimum": 0}
                }
            },
            "entry": {
                "anyOf": [
                    {"type": "string", "pattern": "^(api_key|user_id|tenant_id|ip):.+"},
                    {
                        "type": "object", "additionalProperties": false, "required": ["type", "value"],
                        "properties": {
                            "type": names(ListKind::ALL, ListKind::name),
                            "value": text("The value; for ip an address or a network."),
                            "reason": text("Why it is listed."),
                            "expires_at": instant("From then on it is as if absent.")
                        }
                    }
                ]
            },
            "tier": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "object", "additionalProperties": false, "required": ["name"],
                        "properties": {
                            "name": text("The name."),
                            "description": text("What it is for."),
                            "is_default": {"description": "The plan of everyone who has no other.", "type": "boolean"}
                        }
                    }
                ]
            },
            "client_tier": client_tier(),
            "grant": grant(),
            "active_window": active_window()
        }
    })
}

fn client_tier() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["type", "value", "tier"],
        "properties": {
            "type": {"enum": ["api_key", "user_id", "tenant_id"]},
            "value": text("The key, user or tenant."),
            "tier": text("Its plan.")
        }
    })
}

fn grant() -> Value {
    json!({
        "type": "object", "additionalProperties": false,
        "required": ["rule_id", "type", "value", "extra", "expires_at"],
        "properties": {
            "rule_id": text("The rule."),
            "type": names(ListKind::ALL, ListKind::name),
            "value": text("The key, user, tenant or address; it must be a part of the rule's key."),
            "extra": {"description": "How much more every limit of the rule gives.", "type": "integer", "minimum": 1, "maximum": MAX_QUOTA},
            "expires_at": instant("From then on it is as if absent."),
            "reason": text("Why it was given.")
        }
    })
}

fn text(description: &str) -> Value {
    json!({"description": description, "type": "string"})
}

fn instant(description: &str) -> Value {
    json!({"description": description, "type": "string", "format": "date-time"})
}

fn texts(description: &str) -> Value {
    json!({"description": description, "$ref": "#/$defs/texts"})
}

fn share(description: &str) -> Value {
    json!({"description": description, "type": "number", "exclusiveMinimum": 0, "maximum": 1})
}

fn names<T: Copy>(all: &[T], name: impl Fn(T) -> &'static str) -> Value {
    json!({"enum": all.iter().map(|one| name(*one)).collect::<Vec<_>>()})
}

fn described(description: &str, mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.insert("description".into(), description.into());
    }
    schema
}

fn merged(parts: &[Value]) -> Value {
    let objects = parts.iter().filter_map(Value::as_object).flatten();
    Value::Object(objects.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
}

fn rule_fields() -> Value {
    json!({
        "rule_id": text("Its unique id."),
        "scope": text("Rules that share a scope are alternatives: the most specific applies. Default: rule_id."),
        "priority": {"description": "Decides between equally specific rules; higher wins. Default 0.", "type": "integer"},
        "is_active": {"description": "false: as if it were not there.", "type": "boolean"},
        "applies_to": {"$ref": "#/$defs/applies_to"},
        "overrides": texts("Scopes that this rule, where it applies, replaces; rule:<rule_id> replaces that rule alone."),
        "envoy": crate::envoy::envoy_schema(),
        "starts_at": instant("It applies from then on."),
        "ends_at": instant("It applies until then."),
        "candidate": {"$ref": "#/$defs/candidate"},
        "generation": {"description": "Which of its counters the rule uses: promoting a candidate raises it. Default 0.", "type": "integer", "minimum": 0, "maximum": MAX_GENERATION}
    })
}

fn default_fields() -> Value {
    json!({
        "name": text("A name for people."),
        "description": text("What it is for."),
        "identifier_type": described("Whose counter it is. Default: composite with key_by, else global.", names(IdentifierType::ALL, IdentifierType::name)),
        "key_by": {
            "description": "The attributes that make up the key, with identifier_type composite.",
            "type": "array", "minItems": 1, "maxItems": MAX_KEY_PARTS, "items": {"type": "string"}
        },
        "limits": {
            "description": "Several limits at once, instead of limit.",
            "type": "array", "minItems": 1, "maxItems": MAX_LIMITS, "items": {"$ref": "#/$defs/limit"}
        },
        "unit": described("What is counted. Default requests.", names(Unit::ALL, Unit::name)),
        "currency": text("The currency of unit money, by its code of ISO 4217, such as USD."),
        "budget_mode": described("How firmly a limit of unit money holds: hard reserves the most that a request can use, with consistency strict and on_store_failure closed. Default soft.", names(BudgetMode::ALL, BudgetMode::name)),
        "slot_ttl": {"description": "How long a slot of unit concurrency is held unless renewed: seconds, or such as 30s. Default 60 s.", "type": ["integer", "string"]},
        "costs": {
            "description": "What requests cost by endpoint and method.",
            "type": "array", "maxItems": MAX_PATTERNS, "items": {"$ref": "#/$defs/cost"}
        },
        "soft_limit": share("Warn from this share on, still allow."),
        "action": described("What happens when a limit is exceeded. Default reject.", names(Action::ALL, Action::name)),
        "max_delay_ms": {"description": "The longest wait of action throttle.", "type": "integer", "minimum": 1, "maximum": MAX_DELAY_MS},
        "quota_mode": {"description": "Member of the quota group, which refuses only when all members are exhausted.", "type": "boolean"},
        "consistency": {"description": "How exact the shared counter is. Default strict.", "enum": ["strict", "leased", "local"]},
        "max_overshoot": share("How much of the quota may be out on lease, for consistency leased. Default 0.01."),
        "store": text("Which store it counts in. Default: the only one."),
        "on_store_failure": described("What happens when the store does not answer.", names(OnStoreFailure::ALL, OnStoreFailure::name))
    })
}

fn limit_fields() -> Value {
    json!({
        "limit": {"description": "How much per window, or \"unlimited\"; 0 suspends.", "$ref": "#/$defs/quota"},
        "window_seconds": {"description": "The window in seconds.", "type": "integer", "minimum": 1},
        "window_ms": {"description": "The window in milliseconds.", "type": "integer", "minimum": 1},
        "window": {"description": "The window, such as 500ms, 5s, 1m, 1h, 1d or 1w.", "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d|w)$"},
        "calendar": described("A calendar window (algorithm fixed_window).", names(&CalendarUnit::ALL, CalendarUnit::name)),
        "timezone": text("The IANA time zone of the calendar. Default UTC."),
        "anchor_day": {"description": "The day a calendar month starts at. Default 1.", "type": "integer", "minimum": 1, "maximum": 31},
        "algorithm": described("How it counts. Default token_bucket; fixed_window with calendar; concurrency with unit concurrency.", names(&Algorithm::ALL, Algorithm::name)),
        "burst": {"description": "How much may pass at once (token_bucket, leaky_bucket, gcra). Default: the limit; 1 for gcra.", "anyOf": [{"type": "integer", "minimum": 1}, {"$ref": "#/$defs/money"}]},
        "tier_limits": {
            "description": "The limits of single tiers.",
            "type": "object", "additionalProperties": {"$ref": "#/$defs/quota"}
        },
        "active_when": {
            "description": "Recurring windows: it holds in any of them, and its counter keeps what was counted between them. Default: always.",
            "type": "array", "minItems": 1, "maxItems": MAX_ACTIVE_WINDOWS, "items": {"$ref": "#/$defs/active_window"}
        }
    })
}

fn candidate() -> Value {
    let percent = json!({"description": "The share of keys that it enforces for.", "type": "number", "minimum": 0, "maximum": 100});
    let mut fields = limit_fields();
    // The rule says when it holds.
    if let Some(fields) = fields.as_object_mut() {
        fields.remove("active_when");
    }
    let own = json!({
        "limits": {
            "description": "Several limits at once, instead of limit.",
            "type": "array", "minItems": 1, "maxItems": MAX_LIMITS, "items": {"$ref": "#/$defs/limit"}
        },
        "rollout": {
            "description": "For whom it enforces; one of percent, tenants and schedule. Default: nobody.",
            "type": "object", "additionalProperties": false,
            "properties": {
                "percent": percent,
                "tenants": {"description": "The tenants that it enforces for.", "type": "array", "minItems": 1, "maxItems": MAX_ROLLOUT_TENANTS, "items": {"type": "string"}},
                "schedule": {
                    "description": "Shares of keys, each from an instant on.",
                    "type": "array", "minItems": 1, "maxItems": MAX_ROLLOUT_STEPS,
                    "items": {
                        "type": "object", "additionalProperties": false, "required": ["percent", "from"],
                        "properties": {"percent": percent, "from": instant("When the step begins.")}
                    }
                },
                "salt": text("Chooses which keys come first. Default: by the rule and the candidate's limits.")
            }
        }
    });
    json!({
        "description": "Other limits that are tried next to those in force. What it does not state is as in the rule.",
        "type": "object", "additionalProperties": false,
        "properties": merged(&[fields, own])
    })
}

fn active_window() -> Value {
    let day = json!({"enum": DAYS});
    let time = |description: &str| json!({"description": description, "type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$"});
    json!({
        "type": "object", "additionalProperties": false, "minProperties": 1,
        "properties": {
            "days": {
                "description": "The days that it begins on. Default: every day.",
                "anyOf": [day, {"type": "array", "minItems": 1, "items": day}]
            },
            "from": time("When it begins, by the wall clock. Default 00:00."),
            "to": time("When it ends; not after from: on the next day. Default 24:00."),
            "timezone": text("The IANA time zone. Default UTC.")
        }
    })
}

fn applies_to() -> Value {
    let lists = Known::ALL.into_iter().filter_map(Known::applies_to);
    let mut properties: Map<String, Value> =
        lists.map(|list| (list.list.to_owned(), texts(list.help))).collect();
    properties.insert(
        "attributes".to_owned(),
        json!({
            "description": "Further attributes; * in a value stands for any text.",
            "type": "object", "additionalProperties": {"$ref": "#/$defs/texts"}
        }),
    );
    json!({
        "description": "What the rule applies to; a field that is absent or empty constrains nothing.",
        "type": "object", "additionalProperties": false,
        "properties": properties
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::read;

    fn properties(schema: &Value, pointer: &str) -> BTreeSet<String> {
        schema.pointer(pointer).unwrap().as_object().unwrap().keys().cloned().collect()
    }

    fn set(parts: &[&[&str]]) -> BTreeSet<String> {
        parts.concat().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn in_step_with_the_reader() {
        use read::*;
        let schema = rule_file_schema();
        for (pointer, fields) in [
            ("/properties", set(&[FILE_FIELDS])),
            ("/properties/default/anyOf/1/properties", set(&[DEFAULT_FIELDS, LIMIT_FIELDS])),
            ("/$defs/rule/properties", set(&[RULE_ONLY_FIELDS, DEFAULT_FIELDS, LIMIT_FIELDS])),
            ("/$defs/rule/properties/envoy/properties", set(&[crate::envoy::ENVOY_FIELDS])),
            ("/$defs/limit/properties", set(&[LIMIT_FIELDS])),
            ("/$defs/candidate/properties", set(&[crate::candidate::CANDIDATE_FIELDS])),
            (
                "/$defs/candidate/properties/rollout/properties",
                set(&[crate::candidate::ROLLOUT_FIELDS]),
            ),
            ("/$defs/cost/properties", set(&[COST_FIELDS])),
            ("/$defs/entry/anyOf/1/properties", set(&[ENTRY_FIELDS])),
            ("/$defs/tier/anyOf/1/properties", set(&[TIER_FIELDS])),
            ("/$defs/client_tier/properties", set(&[CLIENT_TIER_FIELDS])),
            ("/$defs/grant/properties", set(&[GRANT_FIELDS])),
            ("/$defs/active_window/properties", set(&[crate::schedule::WINDOW_FIELDS])),
        ] {
            assert_eq!(properties(&schema, pointer), fields, "{pointer}");
        }
    }
}
