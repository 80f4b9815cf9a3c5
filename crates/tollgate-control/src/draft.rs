//! What callers send, checked as far as it can be without the rest of the set.

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use tollgate_policy::Problems;

use crate::error::FieldProblem;
use crate::token::hex;
use crate::{ControlError, Kind, Millis};

/// An entry as a caller wants it.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// What it is.
    pub kind: Kind,
    /// Which one.
    pub id: String,
    /// Its content.
    pub body: Value,
}

/// The kinds of clients that lists know.
const LIST_TYPES: [&str; 4] = ["api_key", "user_id", "tenant_id", "ip"];
/// The kinds of clients that have tiers.
const TIER_TYPES: [&str; 3] = ["api_key", "user_id", "tenant_id"];

/// The largest rule, in JSON. Every version of it is kept.
pub const MAX_RULE_BYTES: usize = 128 << 10;

/// What a rule without an id is called while the rest of it is checked.
const UNNAMED: &str = "unnamed";

/// The longest id or name.
const MAX_NAME: usize = 256;
/// The longest reason or description.
const MAX_TEXT: usize = 4_096;

/// Names the line of a client: API keys by their hash, since ids stand in URLs and logs.
pub fn client_line(
    identifier_type: &str,
    identifier: &str,
    hide_key: &dyn Fn(&str) -> String,
) -> String {
    match identifier_type {
        "api_key" => format!("api_key:{}", hide_key(identifier)),
        _ => format!("{identifier_type}:{identifier}"),
    }
}

/// A rule. Its fields are checked with the whole set.
pub fn rule(body: Value) -> Result<Draft, ControlError> {
    let Value::Object(mut body) = body else {
        return Err(ControlError::invalid("body", "must be a rule: a JSON object"));
    };
    let id = match body.get("rule_id") {
        Some(Value::String(id)) if !id.is_empty() => id.clone(),
        Some(Value::String(_)) => return Err(without_id(body, "must not be empty")),
        Some(_) => return Err(without_id(body, "must be a string")),
        None => return Err(without_id(body, "is missing")),
    };
    bounded("rule_id", &id, MAX_NAME)?;
    lower_algorithms(&mut body);
    let bytes = |value: &Value| value.to_string().len();
    if body.values().map(bytes).sum::<usize>() > MAX_RULE_BYTES {
        let largest = body.iter().max_by_key(|(_, value)| bytes(value));
        let field = largest.map_or("body", |(name, _)| name.as_str());
        let shown: String = field.chars().take(64).collect();
        let message = format!("is too large: a rule has at most {MAX_RULE_BYTES} bytes");
        return Err(ControlError::invalid(&shown, message));
    }
    Ok(Draft { kind: Kind::Rule, id, body: Value::Object(body) })
}

/// What is wrong with a rule whose id is: that, and everything else that is wrong with it.
fn without_id(mut body: Map<String, Value>, message: &str) -> ControlError {
    let mut problems =
        vec![FieldProblem { field: Some("rule_id".to_owned()), message: message.to_owned() }];
    body.insert("rule_id".to_owned(), UNNAMED.into());
    let text = json!({ "rules": [body] }).to_string();
    // A rule that is too large is not read.
    if text.len() <= MAX_RULE_BYTES
        && let Err(Problems(found)) = crate::document::compile(&text)
    {
        let each =
            found.into_iter().map(|one| FieldProblem { field: one.field, message: one.message });
        problems.extend(each);
    }
    ControlError::Invalid(problems)
}

/// Algorithms in the spelling that every version knows: some write them as constants.
fn lower_algorithms(rule: &mut Map<String, Value>) {
    let lower = |limit: &mut Map<String, Value>| {
        if let Some(Value::String(name)) = limit.get_mut("algorithm") {
            name.make_ascii_lowercase();
        }
    };
    lower(rule);
    for limit in rule.get_mut("limits").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(limit) = limit.as_object_mut() {
            lower(limit);
        }
    }
}

/// A line of the allow or the deny list.
pub fn listed(
    kind: Kind,
    body: Value,
    now: Millis,
    hide_key: &dyn Fn(&str) -> String,
) -> Result<Draft, ControlError> {
    let mut fields = Fields::new(body, &["identifier", "identifier_type", "reason", "expires_at"])?;
    let (kind_of, identifier) = fields.client(&LIST_TYPES)?;
    let mut line = json!({ "identifier_type": kind_of, "identifier": identifier });
    if let Some(reason) = fields.text("reason", MAX_TEXT)? {
        add(&mut line, "reason", reason);
    }
    if let Some(until) = fields.future("expires_at", now)? {
        add(&mut line, "expires_at", until);
    }
    Ok(Draft { kind, id: client_line(&kind_of, &identifier, hide_key), body: line })
}

/// A tier.
pub fn tier(body: Value) -> Result<Draft, ControlError> {
    // The seed of the table calls it tier_name.
    let mut fields = Fields::new(body, &["name", "description", "is_default"])?;
    let name = fields.need("name", MAX_NAME)?;
    let mut tier = json!({ "name": name });
    if let Some(description) = fields.text("description", MAX_TEXT)? {
        add(&mut tier, "description", description);
    }
    match fields.take("is_default") {
        None | Some(Value::Null | Value::Bool(false)) => {}
        Some(Value::Bool(true)) => add(&mut tier, "is_default", true),
        Some(_) => return Err(ControlError::invalid("is_default", "must be true or false")),
    }
    Ok(Draft { kind: Kind::Tier, id: name, body: tier })
}

/// The tier of a client.
pub fn client_tier(body: Value, hide_key: &dyn Fn(&str) -> String) -> Result<Draft, ControlError> {
    let mut fields = Fields::new(body, &["identifier", "identifier_type", "tier"])?;
    let (kind_of, identifier) = fields.client(&TIER_TYPES)?;
    let tier = fields.need("tier", MAX_NAME)?;
    let body = json!({ "identifier_type": kind_of, "identifier": identifier, "tier": tier });
    Ok(Draft { kind: Kind::ClientTier, id: client_line(&kind_of, &identifier, hide_key), body })
}

/// Extra quota of a client.
pub fn grant(body: Value, now: Millis) -> Result<Draft, ControlError> {
    let known = ["rule_id", "identifier", "identifier_type", "extra", "expires_at", "reason"];
    let mut fields = Fields::new(body, &known)?;
    let rule_id = fields.need("rule_id", MAX_NAME)?;
    let (kind_of, identifier) = fields.client(&LIST_TYPES)?;
    let extra = match fields.take("extra").and_then(|value| value.as_u64()) {
        Some(extra) if extra > 0 => extra,
        _ => return Err(ControlError::invalid("extra", "must be a whole number, 1 or more")),
    };
    let Some(until) = fields.future("expires_at", now)? else {
        return Err(ControlError::invalid("expires_at", "is missing: a grant ends"));
    };
    let name = Sha256::digest(format!("{rule_id}\0{kind_of}\0{identifier}"));
    let id = format!("grant_{}", hex(name.get(..8).unwrap_or_default()));
    let mut body = json!({
        "grant_id": id, "rule_id": rule_id, "identifier_type": kind_of, "identifier": identifier,
        "extra": extra, "expires_at": until,
    });
    if let Some(reason) = fields.text("reason", MAX_TEXT)? {
        add(&mut body, "reason", reason);
    }
    Ok(Draft { kind: Kind::Grant, id, body })
}

/// An instant in RFC 3339.
pub fn instant(text: &str) -> Option<Millis> {
    text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond)
}

/// An instant as the API writes it.
pub fn rfc3339(at: Millis) -> String {
    jiff::Timestamp::from_millisecond(at).map_or_else(|_| String::new(), |at| at.to_string())
}

fn add(body: &mut Value, name: &str, value: impl Into<Value>) {
    if let Some(fields) = body.as_object_mut() {
        fields.insert(name.to_owned(), value.into());
    }
}

fn bounded(field: &str, text: &str, most: usize) -> Result<(), ControlError> {
    if text.len() > most {
        return Err(ControlError::invalid(field, format!("is longer than {most} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(ControlError::invalid(field, "must not have control characters"));
    }
    Ok(())
}

/// The fields of a body, of which only known ones may be there.
struct Fields(Map<String, Value>);

impl Fields {
    fn new(body: Value, known: &[&str]) -> Result<Self, ControlError> {
        let Value::Object(fields) = body else {
            return Err(ControlError::invalid("body", "must be a JSON object"));
        };
        match fields.keys().find(|name| !known.contains(&name.as_str())) {
            Some(unknown) => {
                let shown: String = unknown.chars().take(64).collect();
                let message = format!("is not a field of this; there are {}", known.join(", "));
                Err(ControlError::invalid(&shown, message))
            }
            None => Ok(Self(fields)),
        }
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    fn text(&mut self, name: &str, most: usize) -> Result<Option<String>, ControlError> {
        match self.take(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => {
                bounded(name, &text, most)?;
                Ok(Some(text))
            }
            Some(_) => Err(ControlError::invalid(name, "must be a string")),
        }
    }

    fn need(&mut self, name: &str, most: usize) -> Result<String, ControlError> {
        match self.text(name, most)? {
            Some(text) if !text.is_empty() => Ok(text),
            Some(_) => Err(ControlError::invalid(name, "must not be empty")),
            None => Err(ControlError::invalid(name, "is missing")),
        }
    }

    /// The kind and the name of a client; addresses in their one spelling.
    fn client(&mut self, types: &[&str]) -> Result<(String, String), ControlError> {
        let kind = self.need("identifier_type", MAX_NAME)?;
        if !types.contains(&kind.as_str()) {
            let message = format!("must be one of {}", types.join(", "));
            return Err(ControlError::invalid("identifier_type", message));
        }
        let name = self.need("identifier", MAX_NAME)?;
        if kind != "ip" {
            return Ok((kind, name));
        }
        let address = name.parse::<std::net::IpAddr>().map(|address| address.to_string());
        let network = || name.parse::<IpNet>().map(|network| network.trunc().to_string());
        let wrong = |_| {
            let message = "must be an address or a network, such as 10.0.0.0/8 or 2001:db8::/32";
            ControlError::invalid("identifier", message)
        };
        Ok((kind, address.or_else(|_| network()).map_err(wrong)?))
    }

    /// An instant that is still to come, in its one spelling.
    fn future(&mut self, name: &str, now: Millis) -> Result<Option<String>, ControlError> {
        let Some(text) = self.text(name, MAX_NAME)? else { return Ok(None) };
        match instant(&text) {
            Some(at) if at > now => Ok(Some(rfc3339(at))),
            Some(_) => Err(ControlError::invalid(name, "is in the past")),
            None => {
                let message = "must be an instant such as 2027-01-31T12:00:00Z";
                Err(ControlError::invalid(name, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_705_314_600_000;

    fn hide(key: &str) -> String {
        format!("#{}", key.len())
    }

    fn field(result: Result<Draft, ControlError>) -> String {
        match result {
            Err(ControlError::Invalid(problems)) => problems[0].field.clone().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn everything_wrong_with_a_rule_is_reported_at_once() {
        let body = json!({"limit": -1, "window": "soon", "algorithm": "GUESS", "colour": "red"});
        let ControlError::Invalid(problems) = rule(body).unwrap_err() else { panic!() };
        let fields: Vec<_> = problems.iter().filter_map(|one| one.field.as_deref()).collect();
        for field in ["rule_id", "limit", "window", "algorithm", "colour"] {
            assert!(fields.iter().any(|one| one.ends_with(field)), "{field}: {fields:?}");
        }
    }

    #[test]
    fn algorithms_may_be_written_as_constants() {
        let limits = json!([{"limit": 1, "window": "1s", "algorithm": "Fixed_Window"}]);
        let body = json!({"rule_id": "r", "algorithm": "TOKEN_BUCKET", "limits": limits});
        let draft = rule(body).unwrap();
        assert_eq!(draft.body["algorithm"], "token_bucket");
        assert_eq!(draft.body["limits"][0]["algorithm"], "fixed_window");
    }

    #[test]
    fn lines_of_lists() {
        let line = |body: Value| listed(Kind::Deny, body, NOW, &hide);
        let draft = line(json!({"identifier": "192.168.1.100", "identifier_type": "ip",
            "reason": "Detected abuse pattern", "expires_at": "2024-01-16T10:30:00Z"}));
        let draft = draft.unwrap();
        assert_eq!(draft.id, "ip:192.168.1.100");
        assert_eq!(draft.body["expires_at"], "2024-01-16T10:30:00Z");
        let key = line(json!({"identifier": "secret", "identifier_type": "api_key"})).unwrap();
        assert_eq!(key.id, "api_key:#6", "ids stand in logs");
        let network = line(json!({"identifier": "10.1.2.3/8", "identifier_type": "ip"})).unwrap();
        assert_eq!(network.body["identifier"], "10.0.0.0/8");
        let network = line(json!({"identifier": "2001:DB8::1", "identifier_type": "ip"})).unwrap();
        assert_eq!(network.id, "ip:2001:db8::1");

        let wrong = [
            (json!([]), "body"),
            (json!({"identifier": "x", "identifier_type": "ip"}), "identifier"),
            (json!({"identifier": "10.0.0.0/33", "identifier_type": "ip"}), "identifier"),
            (json!({"identifier": "", "identifier_type": "user_id"}), "identifier"),
            (json!({"identifier": 5, "identifier_type": "user_id"}), "identifier"),
            (json!({"identifier": "x".repeat(257), "identifier_type": "user_id"}), "identifier"),
            (json!({"identifier": "a\0b", "identifier_type": "user_id"}), "identifier"),
            (json!({"identifier": "x", "identifier_type": "mac"}), "identifier_type"),
            (json!({"identifier": "x"}), "identifier_type"),
            (json!({"identifier": "x", "identifier_type": "user_id", "extra": 1}), "extra"),
            (
                json!({"identifier": "x", "identifier_type": "user_id",
                    "expires_at": "2024-01-15T10:30:00Z"}),
                "expires_at",
            ),
            (
                json!({"identifier": "x", "identifier_type": "user_id", "expires_at": "soon"}),
                "expires_at",
            ),
        ];
        for (body, expected) in wrong {
            assert_eq!(field(line(body.clone())), expected, "{body}");
        }
    }

    #[test]
    fn tiers_and_grants() {
        let free = tier(json!({"name": "free", "is_default": true})).unwrap();
        assert_eq!(free.body, json!({"name": "free", "is_default": true}));
        assert_eq!(field(tier(json!({"name": "free", "is_default": 1}))), "is_default");
        let tiered = json!({"identifier": "ann", "identifier_type": "user_id", "tier": "pro"});
        assert_eq!(client_tier(tiered, &hide).unwrap().id, "user_id:ann");
        let ip = json!({"identifier": "10.0.0.1", "identifier_type": "ip", "tier": "pro"});
        assert_eq!(field(client_tier(ip, &hide)), "identifier_type");
        let body = json!({"rule_id": "a", "identifier": "ann", "identifier_type": "user_id",
            "extra": 5, "expires_at": "2030-01-01T00:00:00Z"});
        let (one, again) = (grant(body.clone(), NOW).unwrap(), grant(body.clone(), NOW).unwrap());
        assert_eq!(one, again, "one grant for a rule and a client");
        for extra in [json!(0), json!(-1), json!(1.5), json!("5"), json!(1e30)] {
            let mut body = body.clone();
            body["extra"] = extra;
            assert_eq!(field(grant(body, NOW)), "extra");
        }
        let mut endless = body;
        endless["expires_at"] = Value::Null;
        assert_eq!(field(grant(endless, NOW)), "expires_at");
    }

    #[test]
    fn rules_have_an_id() {
        assert_eq!(field(rule(json!({}))), "rule_id");
        assert_eq!(field(rule(json!({"rule_id": 5}))), "rule_id");
        assert_eq!(field(rule(json!({"rule_id": "x".repeat(1 << 20)}))), "rule_id");
        assert_eq!(field(rule(json!("x"))), "body");
        assert_eq!(rule(json!({"rule_id": "a", "limit": 5})).unwrap().id, "a");
    }
}
