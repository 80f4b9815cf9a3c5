//! What a tenant's own admins may do with rules: tighten, for their tenant, and nothing else.
//!
//! Their rules are scopes of their own, so that they come on top of what the installation enforces:
//! they replace nothing, displace nothing, and do not make the system default yield.

use serde_json::{Map, Value};

use crate::ControlError;

/// What the scopes of tenants' own rules begin with; no other rule may use it.
pub const TENANT_SCOPE: &str = "tenant:";

/// Fields that could loosen, or touch what belongs to the installation.
const FORBIDDEN: [&str; 7] = [
    "scope",
    "overrides",
    "on_store_failure",
    "consistency",
    "max_overshoot",
    "store",
    "quota_mode",
];

/// Rules that a tenant's admins may have: each of its requests may meet all of them.
pub(crate) const MAX_TENANT_RULES: usize = 50;

/// Limits of one of those.
pub(crate) const MAX_TENANT_LIMITS: usize = 4;

/// What the ids of a tenant's own rules begin with, so that nobody can take an id that others want.
pub(crate) fn tenant_prefix(tenant: &str) -> String {
    format!("{tenant}.")
}

/// The scope of a tenant's own rule.
pub fn tenant_scope(tenant: &str, rule_id: &str) -> String {
    format!("{TENANT_SCOPE}{tenant}:{rule_id}")
}

/// A rule as its tenant's admin sent it, made safe; or why it cannot be.
pub(crate) fn confine(rule: &mut Map<String, Value>, tenant: &str) -> Result<(), ControlError> {
    let rule_id = rule.get("rule_id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let prefix = tenant_prefix(tenant);
    if !rule_id.starts_with(&prefix) {
        let message = format!("must begin with {prefix:?}: ids are shared by all tenants");
        return Err(ControlError::invalid("rule_id", message));
    }
    if rule.get("limits").and_then(Value::as_array).is_some_and(|it| it.len() > MAX_TENANT_LIMITS) {
        let message = format!("a tenant's own rule has at most {MAX_TENANT_LIMITS}");
        return Err(ControlError::invalid("limits", message));
    }
    let own = tenant_scope(tenant, &rule_id);
    for field in FORBIDDEN {
        // What a tenant admin got from us can be sent back as it is.
        let is_ours = field == "scope" && rule.get(field).and_then(Value::as_str) == Some(&own);
        if rule.contains_key(field) && !is_ours {
            return Err(ControlError::invalid(
                field,
                "is not for a tenant's own rules: leave it out",
            ));
        }
    }
    let applies = rule.entry("applies_to").or_insert_with(|| Value::Object(Map::new()));
    if applies.is_null() {
        *applies = Value::Object(Map::new());
    }
    let Some(applies) = applies.as_object_mut() else {
        return Err(ControlError::invalid("applies_to", "must be a map"));
    };
    let only_own = Value::Array(vec![Value::String(tenant.to_owned())]);
    match applies.get("tenants") {
        None | Some(Value::Null) => {}
        Some(Value::Array(none)) if none.is_empty() => {}
        Some(tenants) if *tenants == only_own || *tenants == Value::String(tenant.to_owned()) => {}
        Some(_) => {
            let message = format!("can only be {tenant:?}, your own: leave it out");
            return Err(ControlError::invalid("applies_to.tenants", message));
        }
    }
    applies.insert("tenants".to_owned(), only_own);
    rule.insert("scope".to_owned(), Value::String(own));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn confined(rule: Value) -> Result<Value, String> {
        let Value::Object(mut rule) = rule else { unreachable!() };
        match confine(&mut rule, "acme") {
            Ok(()) => Ok(Value::Object(rule)),
            Err(ControlError::Invalid(problems)) => Err(problems[0].field.clone().unwrap()),
            Err(other) => Err(other.to_string()),
        }
    }

    #[test]
    fn a_rule_is_bound_to_its_tenant_and_scope() {
        let rule =
            confined(json!({"rule_id": "acme.a", "limit": 5, "applies_to": {"models": ["m"]}}));
        let expected = json!({"rule_id": "acme.a", "limit": 5, "scope": "tenant:acme:acme.a",
            "applies_to": {"models": ["m"], "tenants": ["acme"]}});
        assert_eq!(rule.as_ref(), Ok(&expected));
        assert_eq!(confined(rule.unwrap()), Ok(expected), "what was got can be sent back");
    }

    #[test]
    fn what_could_loosen_is_refused() {
        for field in FORBIDDEN {
            let rule = json!({"rule_id": "acme.a", field: "x"});
            assert_eq!(confined(rule), Err(field.to_owned()));
        }
        for tenants in [json!(["other"]), json!(["acme", "other"]), json!("other"), json!(5)] {
            let rule = json!({"rule_id": "acme.a", "applies_to": {"tenants": tenants}});
            assert_eq!(confined(rule), Err("applies_to.tenants".to_owned()));
        }
        assert_eq!(confined(json!({"rule_id": "per-user"})), Err("rule_id".to_owned()));
        let many = json!({"rule_id": "acme.a", "limits": [1, 2, 3, 4, 5]});
        assert_eq!(confined(many), Err("limits".to_owned()));
        let rule = json!({"rule_id": "acme.a", "applies_to": 7});
        assert_eq!(confined(rule), Err("applies_to".to_owned()));
    }
}
