//! What a change would do, as a diff.

use std::fmt::Write as _;
use std::io;

use serde_json::Value;

use super::entries::limits;
use crate::output::{self, Colour};
use crate::value::{plain, shown, text};
use crate::yaml;

/// Steps, each with what it changes: `+` create, `~` update, `-` delete.
pub(super) fn render(steps: &[Value]) -> String {
    let mut text = String::new();
    for step in steps {
        let name = format!("{} {}", kind(step), shown(step, "id"));
        let (before, after) = (step.get("before"), step.get("after"));
        let _ = match action(step) {
            "create" => {
                let line = format!("+ {name}{}", summary(step, after));
                writeln!(text, "{}", paint(&line, Colour::Green))
            }
            "delete" => {
                let line = format!("- {name}{}", summary(step, before));
                writeln!(text, "{}", paint(&line, Colour::Red))
            }
            _ => {
                let line = format!("~ {name}");
                let _ = writeln!(text, "{}", paint(&line, Colour::Yellow));
                let mut changes = Vec::new();
                let nothing = Value::Null;
                compare("", before.unwrap_or(&nothing), after.unwrap_or(&nothing), &mut changes);
                let width = changes.iter().map(|(field, ..)| field.chars().count()).max();
                let width = width.unwrap_or_default();
                changes.iter().try_for_each(|(field, old, new)| {
                    writeln!(text, "    {field:width$}  {old} → {new}")
                })
            }
        };
    }
    text
}

/// How many of which: `2 to create, 1 to delete`.
pub(super) fn count(steps: &[Value]) -> String {
    let of = |wanted: &str| steps.iter().filter(|step| action(step) == wanted).count();
    let parts = [("create", of("create")), ("update", of("update")), ("delete", of("delete"))];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{count} to {name}"))
        .collect();
    parts.join(", ")
}

fn action(step: &Value) -> &str {
    text(step, "action").unwrap_or_default()
}

fn paint(line: &str, colour: Colour) -> String {
    output::coloured(line, colour, &io::stdout())
}

/// What people call the kinds of entries.
fn kind(step: &Value) -> String {
    match text(step, "kind") {
        Some("whitelist" | "allow") => "allow list".to_owned(),
        Some("blacklist" | "deny") => "deny list".to_owned(),
        _ => shown(step, "kind"),
    }
}

/// What matters most of an entry that comes or goes.
fn summary(step: &Value, body: Option<&Value>) -> String {
    let short = in_short(text(step, "kind").unwrap_or_default(), body);
    if short.is_empty() { short } else { format!("  ({short})") }
}

/// The same, of an entry of this kind.
pub(in crate::commands) fn in_short(kind: &str, body: Option<&Value>) -> String {
    let Some(body) = body.filter(|body| !body.is_null()) else { return String::new() };
    match kind {
        "rule" => {
            let by = text(body, "identifier_type").map(|by| format!(" by {by}"));
            let key = body.get("key_by").map(|key| format!(" by {}", yaml::inline(key)));
            format!("{}{}", limits(body), by.or(key).unwrap_or_default())
        }
        "setting" => yaml::inline(body),
        "grant" => {
            let (kind, name) = (shown(body, "identifier_type"), shown(body, "identifier"));
            let (extra, rule) = (shown(body, "extra"), shown(body, "rule_id"));
            format!("{kind}:{name} +{extra} on {rule} until {}", shown(body, "expires_at"))
        }
        _ => ["reason", "description"]
            .iter()
            .find_map(|field| text(body, field))
            .map_or_else(String::new, |reason| plain(&Value::from(reason))),
    }
}

/// The fields that differ, by their path, with what they were and are to be.
fn compare(path: &str, before: &Value, after: &Value, changes: &mut Vec<(String, String, String)>) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let of = |fields: &serde_json::Map<String, Value>| {
                    fields.get(name).cloned().unwrap_or_default()
                };
                compare(&inner, &of(old), &of(new), changes);
            }
        }
        (old, new) if old == new => {}
        (old, new) => {
            let show = |value: &Value| match value {
                Value::Null => "(none)".to_owned(),
                value => yaml::inline(value),
            };
            let path = if path.is_empty() { "value" } else { path };
            changes.push((plain(&Value::from(path)), show(old), show(new)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_diff_shows_fields_before_and_after() {
        let steps = [
            json!({"action": "create", "kind": "rule", "id": "a", "before": null,
                "after": {"rule_id": "a", "limit": 5, "window": "1h", "identifier_type": "user_id"}}),
            json!({"action": "update", "kind": "rule", "id": "b",
                "before": {"limit": 5, "applies_to": {"methods": ["GET"]}, "name": "x y"},
                "after": {"limit": 9, "applies_to": {"methods": ["GET", "PUT"]}}}),
            json!({"action": "update", "kind": "setting", "id": "no_match",
                "before": "allow", "after": "deny"}),
            json!({"action": "delete", "kind": "tier", "id": "trial",
                "before": {"name": "trial"}, "after": null}),
        ];
        let expected = "\
+ rule a  (5/1h by user_id)
~ rule b
    applies_to.methods  [GET] → [GET, PUT]
    limit               5 → 9
    name                \"x y\" → (none)
~ setting no_match
    value  allow → deny
- tier trial
";
        assert_eq!(render(&steps), expected);
        assert_eq!(count(&steps), "1 to create, 2 to update, 1 to delete");
    }
}
