//! The `envoy` section of a rule: how the rule answers calls of Envoy's rate limit protocol. Imported
//! rules have one, so that they mean there what they meant to envoyproxy/ratelimit.

use serde_json::{Map, Number, Value, json};

use crate::check::{MAX_DESCRIPTION_BYTES, MAX_VALUE_BYTES, plain};
use crate::fields::Fields;
use crate::node::{Kind, Node};
use crate::problem::Report;
use crate::raw::{At, Int, Text, Texts};

pub(crate) const ENVOY_FIELDS: &[&str] = &[
    "name",
    "charge_above_limit",
    "allow_check_at_limit",
    "stats_key",
    "stats_values",
    "metadata",
];

/// The longest `metadata` of a rule, as JSON.
pub const MAX_METADATA_BYTES: usize = 4_096;

/// The most entries that a descriptor may have.
pub const MAX_DESCRIPTOR_ENTRIES: usize = 16;

/// How a rule answers Envoy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EnvoyOptions {
    /// What `current_limit.name` says.
    pub name: Option<String>,
    /// Whether a descriptor that carries its own `hits_addend` above 0 is charged above the limit, too.
    pub charge_above_limit: bool,
    /// Whether a descriptor that only checks (`hits_addend: 0`) is still within a limit that is used up
    /// exactly.
    pub allow_check_at_limit: bool,
    /// What statistics are kept under: one part for each entry of the descriptor.
    pub stats_key: Vec<String>,
    /// The entries, from 1, whose value stands in that key as it was sent.
    pub stats_values: Vec<usize>,
    /// Fields of the dynamic metadata of answers in which the descriptor is within the limit.
    pub metadata: Map<String, Value>,
}

/// The section as typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct RawEnvoy {
    name: Text,
    charge_above_limit: bool,
    allow_check_at_limit: bool,
    stats_key: Texts,
    stats_values: Vec<Int>,
    metadata: Option<At<Map<String, Value>>>,
}

/// Reads the section, where there is one.
pub(crate) fn read_envoy(fields: &Fields<'_>, report: &mut Report) -> Option<Box<RawEnvoy>> {
    let node = fields.node("envoy")?;
    let inner = Fields::open(node, &fields.path("envoy"), ENVOY_FIELDS, report)?;
    let flag =
        |name: &str, report: &mut Report| inner.flag(name, report).is_some_and(|flag| flag.value);
    let metadata = inner.map("metadata", report).map(|map| {
        let entries = map.value.iter().map(|entry| (entry.key.clone(), to_json(&entry.value)));
        At { at: map.at, value: entries.collect() }
    });
    let places = inner.list("stats_values", report).unwrap_or_default();
    Some(Box::new(RawEnvoy {
        name: inner.text("name", report),
        charge_above_limit: flag("charge_above_limit", report),
        allow_check_at_limit: flag("allow_check_at_limit", report),
        stats_key: inner.texts("stats_key", report),
        stats_values: places
            .iter()
            .map(|place| inner.int_of(place, "stats_values", report))
            .collect(),
        metadata,
    }))
}

/// Checks the section.
pub(crate) fn compile_envoy(raw: &RawEnvoy, report: &mut Report) -> EnvoyOptions {
    if let Some(name) = &raw.name {
        plain(name, "envoy.name", MAX_DESCRIPTION_BYTES, report);
    }
    let parts = raw.stats_key.iter().flat_map(|list| &list.value);
    for part in parts.clone() {
        plain(part, "envoy.stats_key", 2 * MAX_VALUE_BYTES + 1, report);
    }
    if let Some(list) = &raw.stats_key
        && list.value.len() > MAX_DESCRIPTOR_ENTRIES
    {
        let message = format!("must not have more than {MAX_DESCRIPTOR_ENTRIES} parts");
        report.add(list.at, Some("envoy.stats_key"), message);
    }
    let mut stats_values = Vec::new();
    for place in raw.stats_values.iter().flatten() {
        if let Ok(number @ 1..=MAX_DESCRIPTOR_ENTRIES) = usize::try_from(place.value) {
            stats_values.push(number);
        } else {
            let message = format!("must be from 1 to {MAX_DESCRIPTOR_ENTRIES}");
            report.add(place.at, Some("envoy.stats_values"), message);
        }
    }
    if let Some(metadata) = &raw.metadata
        && serde_json::to_string(&metadata.value).map_or(usize::MAX, |text| text.len())
            > MAX_METADATA_BYTES
    {
        let message = format!("must not be longer than {MAX_METADATA_BYTES} bytes as JSON");
        report.add(metadata.at, Some("envoy.metadata"), message);
    }
    EnvoyOptions {
        name: raw.name.as_ref().map(|name| name.value.clone()),
        charge_above_limit: raw.charge_above_limit,
        allow_check_at_limit: raw.allow_check_at_limit,
        stats_key: parts.map(|part| part.value.clone()).collect(),
        stats_values,
        metadata: raw.metadata.as_ref().map(|map| map.value.clone()).unwrap_or_default(),
    }
}

/// A value of a file as JSON. Plain text is what YAML takes it for.
pub(crate) fn to_json(node: &Node) -> Value {
    match &node.kind {
        Kind::List(items) => Value::Array(items.iter().map(to_json).collect()),
        Kind::Map(entries) => Value::Object(
            entries.iter().map(|entry| (entry.key.clone(), to_json(&entry.value))).collect(),
        ),
        Kind::Scalar { .. } if node.is_null() => Value::Null,
        Kind::Scalar { text, plain: false } => Value::String(text.clone()),
        Kind::Scalar { text, plain: true } => match text.as_str() {
            "true" | "True" | "TRUE" => Value::Bool(true),
            "false" | "False" | "FALSE" => Value::Bool(false),
            _ => {
                let whole = text.parse::<i64>().ok().map(Number::from);
                let number = whole.or_else(|| text.parse::<f64>().ok().and_then(Number::from_f64));
                number.map_or_else(|| Value::String(text.clone()), Value::Number)
            }
        },
    }
}

/// The section in the JSON Schema of rule files.
pub(crate) fn envoy_schema() -> Value {
    json!({
        "description": "How the rule answers calls of Envoy's rate limit protocol; `rules import-envoy` writes it.",
        "type": "object", "additionalProperties": false,
        "properties": {
            "name": {"description": "What current_limit.name says. Without it the name is empty.", "type": "string"},
            "charge_above_limit": {"description": "Charge a descriptor that carries its own hits_addend above 0 above the limit, too.", "type": "boolean"},
            "allow_check_at_limit": {"description": "Answer OK to a descriptor that only checks (hits_addend 0) when the limit is used up exactly.", "type": "boolean"},
            "stats_key": {"description": "What statistics are kept under: one part for each entry of the descriptor.", "$ref": "#/$defs/texts"},
            "stats_values": {
                "description": "The entries, from 1, whose value stands in stats_key as it was sent.",
                "type": "array", "maxItems": MAX_DESCRIPTOR_ENTRIES,
                "items": {"type": "integer", "minimum": 1, "maximum": MAX_DESCRIPTOR_ENTRIES}
            },
            "metadata": {"description": "Fields of the dynamic metadata of answers within the limit.", "type": "object"}
        }
    })
}
