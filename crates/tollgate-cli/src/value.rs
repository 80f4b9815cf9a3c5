//! Fields of answers, for people.

use serde_json::Value;

use crate::when;

/// A text in a field.
pub(crate) fn text<'v>(value: &'v Value, field: &str) -> Option<&'v str> {
    value.get(field).and_then(Value::as_str)
}

/// An instant in a field, to the second.
pub(crate) fn instant(value: &Value, field: &str) -> String {
    text(value, field).map_or_else(|| "-".to_owned(), when::shown)
}

/// A list in a field; empty if there is none.
pub(crate) fn list<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A field for people; a dash if there is none.
pub(crate) fn shown(value: &Value, field: &str) -> String {
    value.get(field).map_or_else(|| "-".to_owned(), plain)
}

/// A value without quotes. What a terminal would obey must not reach it from a foreign server.
pub(crate) fn plain(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    crate::output::visible(&text)
}
