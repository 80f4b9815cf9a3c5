//! From a key's JSON to the key, checked.

use std::sync::{Arc, Weak};

use serde_json::{Map, Value, json};
use tollgate_core::{LATEST, Nanos};

use super::{KEY_RULE_PREFIX, KeyDigest, LimitSets, Tags, VirtualKey, key_bucket};
use crate::check::MAX_VALUE_BYTES;
use crate::matcher::Wanted;
use crate::{BudgetMode, Known, Rule};

/// The most limits of one key, besides its budget.
pub const MAX_KEY_LIMITS: usize = 8;
/// The most model names or patterns of one key.
pub const MAX_KEY_MODELS: usize = 64;
/// The most tags of one key.
pub const MAX_KEY_TAGS: usize = 8;
/// The longest name of a key or of a tag.
pub const MAX_KEY_NAME_BYTES: usize = 128;

/// The field of a key whose owner and tags are labels for people: its requests get neither a user nor attributes from
/// them. A tenant's admin could otherwise name a user or an attribute that rules of the installation favour.
pub const LABELS_ONLY: &str = "labels_only";

/// The fields of a limit of a key. What names its counter and its failure policy is not among them.
const LIMIT_FIELDS: [&str; 12] = [
    "unit",
    "currency",
    "limit",
    "window",
    "window_seconds",
    "window_ms",
    "calendar",
    "timezone",
    "anchor_day",
    "algorithm",
    "burst",
    "slot_ttl",
];

/// The fields of a budget.
const BUDGET_FIELDS: [&str; 8] =
    ["amount", "currency", "calendar", "timezone", "anchor_day", "window", "mode", "prepaid"];

/// What is wrong with a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct KeyProblem {
    /// The field.
    pub field: String,
    /// What is wrong, and what to do.
    pub message: String,
}

impl KeyProblem {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

type Read<T> = Result<T, KeyProblem>;

fn wrong<T>(field: &str, message: impl Into<String>) -> Read<T> {
    Err(KeyProblem::new(field, message))
}

/// Checks a key as it is stored.
pub fn check_key(body: &Value) -> Result<(), KeyProblem> {
    read_key(body, &mut LimitSets::default()).map(drop)
}

pub(super) fn read_key(body: &Value, limit_sets: &mut LimitSets) -> Read<VirtualKey> {
    let id = text(body, "id", MAX_KEY_NAME_BYTES)?.unwrap_or_default();
    if key_bucket(id).is_none() {
        return wrong("id", "is not the id of a key");
    }
    let (owner, tags) = (text(body, "owner", MAX_VALUE_BYTES)?, tags(body)?);
    let identifies = field(body, LABELS_ONLY).is_none();
    Ok(VirtualKey {
        id: id.into(),
        owner: owner.filter(|_| identifies).map(Into::into),
        tenant: text(body, "tenant_id", MAX_VALUE_BYTES)?.map(Into::into),
        tags: if identifies { tags } else { Tags::default() },
        models: models(body)?,
        rules: rules(body, limit_sets)?,
        digest: digest(body, "digest")?,
        previous: previous(body)?,
        expires_at: instant(body, "expires_at")?,
        is_disabled: text(body, "disabled_at", MAX_KEY_NAME_BYTES)?.is_some(),
    })
}

fn field<'b>(body: &'b Value, name: &str) -> Option<&'b Value> {
    body.get(name).filter(|value| !value.is_null())
}

fn text<'b>(body: &'b Value, name: &str, most: usize) -> Read<Option<&'b str>> {
    match field(body, name) {
        None => Ok(None),
        Some(Value::String(text)) => {
            check_text(text, name, most)?;
            Ok(Some(text))
        }
        Some(_) => wrong(name, "must be a string"),
    }
}

fn check_text(text: &str, name: &str, most: usize) -> Read<()> {
    if text.is_empty() || text.len() > most {
        return wrong(name, format!("must have 1 to {most} bytes"));
    }
    if text.chars().any(char::is_control) {
        return wrong(name, "must not have control characters");
    }
    Ok(())
}

fn instant(body: &Value, name: &str) -> Read<Option<Nanos>> {
    let Some(text) = text(body, name, MAX_KEY_NAME_BYTES)? else { return Ok(None) };
    let Ok(at) = text.parse::<jiff::Timestamp>() else {
        return wrong(name, "must be an instant with its offset, such as 2027-01-31T08:00:00Z");
    };
    let nanos = u64::try_from(at.as_nanosecond()).ok().filter(|nanos| *nanos <= LATEST);
    match nanos {
        Some(nanos) => Ok(Some(nanos)),
        None => wrong(name, "is out of range"),
    }
}

/// A SHA-256 from its 64 hexadecimal digits.
pub fn parse_digest(hex: &str) -> Option<KeyDigest> {
    let is_hex = hex.len() == 64 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hex {
        return None;
    }
    let mut digest = [0; 32];
    for (place, pair) in digest.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *place = u8::from_str_radix(pair, 16).unwrap_or_default();
    }
    Some(digest)
}

fn digest(body: &Value, name: &str) -> Read<KeyDigest> {
    let hex = field(body, name).and_then(Value::as_str).unwrap_or_default();
    match parse_digest(hex) {
        Some(digest) => Ok(digest),
        None => wrong(name, "must be a SHA-256 in 64 hexadecimal digits"),
    }
}

fn previous(body: &Value) -> Read<Option<(KeyDigest, Nanos)>> {
    let Some(previous) = field(body, "previous") else { return Ok(None) };
    let Some(until) = instant(previous, "until")? else {
        return wrong("previous", "must say until when it is accepted");
    };
    Ok(Some((digest(previous, "digest")?, until)))
}

fn tags(body: &Value) -> Read<Tags> {
    let Some(tags) = field(body, "tags") else { return Ok(Box::default()) };
    let Value::Object(tags) = tags else { return wrong("tags", "must map names to strings") };
    if tags.len() > MAX_KEY_TAGS {
        return wrong("tags", format!("must have at most {MAX_KEY_TAGS} entries"));
    }
    let mut read = Vec::with_capacity(tags.len());
    for (name, value) in tags {
        let Some(value) = value.as_str() else { return wrong("tags", "must map names to strings") };
        check_text(name, "tags", MAX_KEY_NAME_BYTES)?;
        check_text(value, "tags", MAX_VALUE_BYTES)?;
        if Known::from_name(name).is_some() {
            return wrong(
                "tags",
                format!("{name} is an attribute of its own; choose another name"),
            );
        }
        read.push((name.as_str().into(), value.into()));
    }
    Ok(read.into())
}

fn models(body: &Value) -> Read<Box<[Wanted]>> {
    let Some(models) = field(body, "models") else { return Ok(Box::default()) };
    let shape = "must be a list of model names, in which * stands for any text";
    let Value::Array(models) = models else { return wrong("models", shape) };
    // An empty list could mean all or none.
    if models.is_empty() || models.len() > MAX_KEY_MODELS {
        return wrong(
            "models",
            format!("must have 1 to {MAX_KEY_MODELS} entries; leave it out for all"),
        );
    }
    let mut read = Vec::with_capacity(models.len());
    for model in models {
        let Some(model) = model.as_str() else { return wrong("models", shape) };
        check_text(model, "models", MAX_VALUE_BYTES)?;
        read.push(Wanted::parse(model));
    }
    Ok(read.into())
}

/// The rules of a key's limits. Keys with equal limits have the same ones.
fn rules(body: &Value, limit_sets: &mut LimitSets) -> Read<Arc<[Rule]>> {
    let (limits, budget) = (field(body, "limits"), field(body, "budget"));
    let text = json!([limits, budget]).to_string();
    if let Some(known) = limit_sets.get(text.as_str()).and_then(Weak::upgrade) {
        return Ok(known);
    }
    let mut raw = limits.map(limit_rules).transpose()?.unwrap_or_default();
    raw.extend(budget.map(budget_rule).transpose()?);
    let rules: Arc<[Rule]> = if raw.is_empty() { Arc::new([]) } else { compile(&raw)? };
    limit_sets.insert(text.into(), Arc::downgrade(&rules));
    Ok(rules)
}

fn compile(raw: &[Value]) -> Read<Arc<[Rule]>> {
    let text = json!({ "default": false, "rules": raw }).to_string();
    let compiled = crate::compile::compile_key_rules(&text);
    compiled.map(Into::into).map_err(|problems| {
        let Some(first) = problems.0.into_iter().next() else {
            return KeyProblem::new("limits", "are wrong");
        };
        let is_budget = first.rule.is_some_and(|rule| rule.ends_with("budget"));
        let place = if is_budget { "budget" } else { "limits" };
        let inner = first.field.as_deref().unwrap_or_default();
        let inner = inner.rsplit('.').next().unwrap_or_default();
        let inner = if is_budget && inner == "limit" { "amount" } else { inner };
        let is_part = !inner.is_empty() && !inner.starts_with("limits");
        let field = if is_part { format!("{place}.{inner}") } else { place.to_owned() };
        KeyProblem::new(field, first.message)
    })
}

fn known_fields<'b>(value: &'b Value, place: &str, known: &[&str]) -> Read<&'b Map<String, Value>> {
    let Some(fields) = value.as_object() else { return wrong(place, "must be an object") };
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        None => Ok(fields),
        Some(name) => {
            let short: String = name.chars().take(64).collect();
            let message =
                format!("there is no field {short:?} here; there are {}", known.join(", "));
            wrong(place, message)
        }
    }
}

/// One rule for each unit and currency, whose limits keep their counters when others are added or removed.
fn limit_rules(limits: &Value) -> Read<Vec<Value>> {
    let Some(limits) = limits.as_array() else { return wrong("limits", "must be a list") };
    if limits.len() > MAX_KEY_LIMITS {
        return wrong("limits", format!("must have at most {MAX_KEY_LIMITS} entries"));
    }
    let mut rules: Vec<(String, Map<String, Value>)> = Vec::new();
    for limit in limits {
        let mut fields = known_fields(limit, "limits", &LIMIT_FIELDS)?.clone();
        let mut take = |name: &str| match fields.remove(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() && text.len() <= MAX_KEY_NAME_BYTES => {
                Ok(Some(text))
            }
            Some(_) => wrong(&format!("limits.{name}"), "must be a short string"),
        };
        let unit = take("unit")?.unwrap_or_else(|| "requests".to_owned());
        let (currency, slot_ttl) = (take("currency")?, take("slot_ttl")?);
        let id = match &currency {
            Some(currency) => format!("{KEY_RULE_PREFIX}{unit}.{currency}"),
            None => format!("{KEY_RULE_PREFIX}{unit}"),
        };
        if !rules.iter().any(|(known, _)| *known == id) {
            rules.push((id.clone(), rule(&id, &unit)));
        }
        let Some((_, rule)) = rules.iter_mut().find(|(known, _)| *known == id) else { continue };
        for (name, value) in [("currency", currency), ("slot_ttl", slot_ttl)] {
            if let Some(value) = value {
                rule.insert(name.to_owned(), value.into());
            }
        }
        if let Some(Value::Array(list)) = rule.get_mut("limits") {
            list.push(Value::Object(fields));
        }
    }
    Ok(rules.into_iter().map(|(_, rule)| Value::Object(rule)).collect())
}

fn rule(id: &str, unit: &str) -> Map<String, Value> {
    let mut rule = Map::new();
    rule.insert("rule_id".to_owned(), id.into());
    let scope = id.replace('.', "_").to_ascii_uppercase();
    rule.insert("scope".to_owned(), scope.into());
    rule.insert("identifier_type".to_owned(), "api_key".into());
    rule.insert("unit".to_owned(), unit.into());
    rule.insert("limits".to_owned(), json!([]));
    rule
}

fn budget_rule(budget: &Value) -> Read<Value> {
    let mut fields = known_fields(budget, "budget", &BUDGET_FIELDS)?.clone();
    if fields.remove("prepaid").is_some_and(|value| !value.is_null() && value != json!(false)) {
        return wrong("budget.prepaid", "is not available in this version; use calendar or window");
    }
    let mode = match fields.remove("mode").as_ref().map(Value::as_str) {
        None | Some(Some("hard")) => BudgetMode::Hard,
        Some(Some("soft")) => BudgetMode::Soft,
        Some(_) => return wrong("budget.mode", "must be hard or soft"),
    };
    let Some(amount) = fields.remove("amount") else { return wrong("budget.amount", "is missing") };
    let Some(currency) = fields.remove("currency") else {
        return wrong("budget.currency", "is missing");
    };
    fields.insert("limit".to_owned(), amount);
    let mut rule = rule(&format!("{KEY_RULE_PREFIX}budget"), "money");
    rule.insert("currency".to_owned(), currency);
    rule.insert("limits".to_owned(), json!([fields]));
    rule.insert("budget_mode".to_owned(), mode.name().into());
    Ok(Value::Object(rule))
}
