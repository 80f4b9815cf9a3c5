//! What the YAML of envoyproxy/ratelimit has that rule files have not: merge keys, more ways to write
//! numbers and flags.

use serde_json::{Number, Value};

use crate::node::{Entry, Kind, Node};
use crate::problem::Report;

/// The field that takes over the fields of other maps.
const MERGE_KEY: &str = "<<";

/// Puts the fields of merged maps (`<<: *base`) where they count. A field of the map itself goes before a
/// merged one, and of several merged maps the first. How much aliases add is bounded where they are read.
pub(super) fn expand_merge_keys(node: &mut Node, report: &mut Report) {
    match &mut node.kind {
        Kind::Scalar { .. } => {}
        Kind::List(items) => items.iter_mut().for_each(|item| expand_merge_keys(item, report)),
        Kind::Map(entries) => {
            for entry in entries.iter_mut() {
                expand_merge_keys(&mut entry.value, report);
            }
            let is_merge = |entry: &Entry| entry.key == MERGE_KEY;
            let merged: Vec<Entry> = entries.extract_if(.., |entry| is_merge(entry)).collect();
            for entry in merged {
                merge(entry, entries, report);
            }
        }
    }
}

fn merge(merged: Entry, entries: &mut Vec<Entry>, report: &mut Report) {
    let maps = match merged.value.kind {
        Kind::List(items) => items,
        kind => vec![Node { at: merged.value.at, kind }],
    };
    for map in maps {
        let Kind::Map(fields) = map.kind else {
            let message = "merges something that is no map; name a map, or a list of maps";
            report.add(map.at, Some(MERGE_KEY), message);
            continue;
        };
        for field in fields {
            if entries.iter().all(|entry| entry.key != field.key) {
                entries.push(Entry { is_repeated: false, ..field });
            }
        }
    }
}

/// A flag; `yes`, `no`, `on` and `off` count, too.
pub(super) fn flag(node: &Node) -> Option<bool> {
    let Kind::Scalar { text, plain: true } = &node.kind else { return None };
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "y" | "on" => Some(true),
        "false" | "no" | "n" | "off" => Some(false),
        _ => None,
    }
}

/// A whole number from 0 on.
pub(super) fn whole_number(node: &Node) -> Option<u32> {
    let Kind::Scalar { text, plain: true } = &node.kind else { return None };
    integer(text).and_then(|number| u32::try_from(number).ok())
}

/// A whole number: decimal, `0x`, `0b`, octal with a leading 0, with `_` between digits.
fn integer(text: &str) -> Option<i64> {
    let text = text.replace('_', "");
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let is_number = |digits: &str| digits.starts_with(|first: char| first.is_ascii_hexdigit());
    let read = |digits: &str, radix| {
        let number = i64::from_str_radix(digits, radix).ok();
        number.filter(|_| is_number(digits))
    };
    let prefixed = [("0x", 16), ("0b", 2), ("0o", 8)];
    let prefixed = prefixed
        .iter()
        .find_map(|(prefix, radix)| digits.strip_prefix(prefix).map(|digits| read(digits, *radix)));
    let number = prefixed.unwrap_or_else(|| {
        let is_octal = digits.len() > 1 && digits.starts_with('0');
        read(digits, if is_octal { 8 } else { 10 })
    })?;
    Some(if is_negative { -number } else { number })
}

/// A number that is not a whole one of 64 bits.
fn fraction(text: &str) -> Option<f64> {
    let text = text.replace('_', "");
    let is_number = |text: &str| {
        let text = text.strip_prefix(['-', '+']).unwrap_or(text);
        text.starts_with(|first: char| first.is_ascii_digit() || first == '.')
            && text.contains(|one: char| one.is_ascii_digit())
    };
    let number = text.parse().ok().filter(|_| is_number(&text));
    let special = matches!(text.trim_start_matches(['-', '+']), ".inf" | ".Inf" | ".INF" | ".nan");
    number.or(special.then_some(f64::INFINITY))
}

/// Whether plain text is a number with a fraction or beyond 64 bits, which is no value of any field.
pub(super) fn is_fraction(node: &Node) -> bool {
    let Kind::Scalar { text, plain: true } = &node.kind else { return false };
    integer(text).is_none() && fraction(text).is_some()
}

/// A value of `metadata`. Plain text is what YAML 1.1 takes it for.
pub(super) fn to_json(node: &Node) -> Value {
    match &node.kind {
        Kind::List(items) => Value::Array(items.iter().map(to_json).collect()),
        Kind::Map(entries) => Value::Object(
            entries.iter().map(|entry| (entry.key.clone(), to_json(&entry.value))).collect(),
        ),
        Kind::Scalar { .. } if node.is_null() => Value::Null,
        Kind::Scalar { text, plain: false } => Value::String(text.clone()),
        Kind::Scalar { text, plain: true } => {
            let number = || {
                let fraction = || fraction(text).and_then(Number::from_f64);
                integer(text).map(Number::from).or_else(fraction).map(Value::Number)
            };
            let value = flag(node).map(Value::Bool).or_else(number);
            value.unwrap_or_else(|| Value::String(text.clone()))
        }
    }
}
