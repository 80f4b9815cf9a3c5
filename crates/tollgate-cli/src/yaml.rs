//! Reads YAML, and writes it in the order in which people write rules.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use tollgate_policy::terminal::quoted_yaml;

/// The fields that say what a thing is come first; others by name.
const FIRST: [&str; 11] = [
    "rule_id",
    "name",
    "description",
    "is_active",
    "scope",
    "priority",
    "identifier_type",
    "key_by",
    "limit",
    "window",
    "window_seconds",
];

/// A value as YAML 1.2 has it, in which `on`, `off`, `yes` and `no` are words.
pub(crate) fn read(text: &str) -> Result<Value, serde_saphyr::Error> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options)
}

/// Anything as a block.
pub(crate) fn block(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => map(&mut text, fields, 0),
        other => {
            let _ = writeln!(text, "{}", inline(other));
        }
    }
    text
}

fn ordered(fields: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let rank = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
    let mut all: Vec<_> = fields.iter().collect();
    all.sort_by(|(one, _), (other, _)| (rank(one), one).cmp(&(rank(other), other)));
    all
}

fn map(text: &mut String, fields: &Map<String, Value>, indent: usize) {
    for (name, value) in ordered(fields) {
        let name = scalar(name);
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                let _ = writeln!(text, "{:indent$}{name}:", "");
                map(text, inner, indent + 2);
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                let _ = writeln!(text, "{:indent$}{name}:", "");
                for item in items {
                    let _ = writeln!(text, "{:indent$}  - {}", "", inline(item));
                }
            }
            other => {
                let _ = writeln!(text, "{:indent$}{name}: {}", "", inline(other));
            }
        }
    }
}

/// Anything on one line.
pub(crate) fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let pair =
                |(name, value): (&String, &Value)| format!("{}: {}", scalar(name), inline(value));
            let fields: Vec<String> = ordered(fields).into_iter().map(pair).collect();
            format!("{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// A string bare where nobody can read anything else in it, else quoted.
fn scalar(text: &str) -> String {
    let begins = |letter: char| letter.is_ascii_alphabetic() || letter == '/' || letter == '_';
    let goes_on = |letter: char| letter.is_ascii_alphanumeric() || "/_-.*".contains(letter);
    let is_word = text.starts_with(begins) && text.chars().all(goes_on);
    let has_meaning = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    // Lengths of time begin with a digit and are not numbers; `1e5` would be one.
    let is_span = text
        .strip_suffix(['s', 'm', 'h', 'd', 'w'])
        .is_some_and(|count| !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()));
    if (is_word && !has_meaning) || is_span {
        return text.to_owned();
    }
    quoted_yaml(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let rule = json!({
            "limit": 5, "rule_id": "a", "window": "1h", "name": "Don't: \"x\" # y\n", "on": "on",
            "description": "1e5", "applies_to": {"endpoints": ["/api/*", "*"], "attributes": {}},
            "costs": [{"cost": 2, "endpoint": "/x{id}"}], "is_active": false, "soft_limit": 0.8,
        });
        let text = block(&rule);
        assert!(text.starts_with("rule_id: a\nname: \"Don't"), "{text}");
        assert!(text.contains("\nwindow: 1h\n"), "{text}");
        let back = read(&text).unwrap();
        assert_eq!(back, rule, "{text}");
        assert_eq!(block(&json!(false)), "false\n");
        assert_eq!(inline(&json!("\u{7f}")), "\"\\u007f\"");
        let hidden = json!({"name": "\u{202e}a\u{e0041}\u{2028}"});
        assert_eq!(block(&hidden), "name: \"\\u202ea\\U000e0041\\u2028\"\n");
        assert_eq!(read(&block(&hidden)).unwrap(), hidden);
    }
}
