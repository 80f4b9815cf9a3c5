//! Single rules of a server: seen, deleted, put back.

use serde_json::{Value, json};

use super::steps;
use crate::ask::confirm;
use crate::failure::{Ended, Outcome};
use crate::output;
use crate::server::{Server, escaped, query};
use crate::value::{instant, list as items, plain, shown, text};
use crate::{when, yaml};

pub(super) fn list(
    server: &Server,
    prefix: Option<&str>,
    tenant: Option<&str>,
    json: bool,
) -> Ended {
    let rules = server.list("rules", &[("prefix", prefix), ("tenant_id", tenant)])?;
    if json {
        output::print_json(&Value::Array(rules))?;
        return Ok(Outcome::Done);
    }
    if rules.is_empty() {
        output::note("no rules; `tollgate rules apply -f FILE` makes some")?;
        return Ok(Outcome::Done);
    }
    let row = |entry: &Value| {
        let rule = entry.get("rule").unwrap_or(&Value::Null);
        [
            shown(entry, "rule_id"),
            shown(entry, "status"),
            shown(rule, "scope"),
            limits(rule),
            shown(entry, "version"),
            instant(entry, "updated_at"),
            shown(entry, "updated_by"),
        ]
    };
    let head = ["RULE", "STATUS", "SCOPE", "LIMIT", "VERSION", "UPDATED", "BY"];
    let rows: Vec<_> = rules.iter().map(row).collect();
    output::print_table(head, &rows)?;
    Ok(Outcome::Done)
}

/// The limits of a rule in short: `1000/1h, 50/1s`.
pub(super) fn limits(rule: &Value) -> String {
    let all = items(rule, "limits");
    if all.is_empty() {
        return limit(rule);
    }
    all.iter().map(limit).collect::<Vec<_>>().join(", ")
}

fn limit(one: &Value) -> String {
    let quota = shown(one, "limit");
    let window = text(one, "window")
        .or_else(|| text(one, "calendar"))
        .map(str::to_owned)
        .or_else(|| one.get("window_seconds").and_then(Value::as_u64).map(when::span))
        .or_else(|| one.get("window_ms").map(|millis| format!("{}ms", plain(millis))));
    match window {
        Some(window) => format!("{quota}/{window}"),
        None => quota,
    }
}

pub(super) fn get(server: &Server, id: &str, version: Option<u64>, json: bool) -> Ended {
    let path = match version {
        Some(version) => format!("rules/{}/versions/{version}", escaped(id)),
        None => format!("rules/{}", escaped(id)),
    };
    let entry = server.get(&path)?;
    if json {
        output::print_json(&entry)?;
        return Ok(Outcome::Done);
    }
    let rule = entry.get("rule").unwrap_or(&Value::Null);
    if rule.is_null() {
        output::note("this version is the deletion of the rule")?;
        return Ok(Outcome::Refused);
    }
    // A rule file with one rule: what is printed can be changed and applied.
    let body = yaml::block(rule);
    let lines = body.lines().enumerate();
    let lines =
        lines.map(|(number, line)| format!("  {} {line}\n", if number == 0 { "-" } else { " " }));
    output::print(&format!("rules:\n{}", lines.collect::<String>()))?;
    Ok(Outcome::Done)
}

pub(super) fn versions(server: &Server, id: &str, json: bool) -> Ended {
    let versions = server.list(&format!("rules/{}/versions", escaped(id)), &[])?;
    if json {
        output::print_json(&Value::Array(versions))?;
        return Ok(Outcome::Done);
    }
    let row = |entry: &Value| {
        let rule = entry.get("rule").unwrap_or(&Value::Null);
        [
            shown(entry, "version"),
            shown(entry, "status"),
            limits(rule),
            instant(entry, "created_at"),
            shown(entry, "created_by"),
        ]
    };
    let rows: Vec<_> = versions.iter().map(row).collect();
    output::print_table(["VERSION", "STATUS", "LIMIT", "SINCE", "BY"], &rows)?;
    Ok(Outcome::Done)
}

pub(super) fn delete(server: &Server, ids: &[String], yes: bool) -> Ended {
    let question = match ids {
        [one] => format!("Delete rule {one:?}?"),
        many => format!("Delete {} rules: {}?", many.len(), many.join(", ")),
    };
    if !confirm(&question, yes)? {
        output::note("nothing was done")?;
        return Ok(Outcome::Refused);
    }
    for id in ids {
        server.delete(&format!("rules/{}", escaped(id)))?;
        output::note(&format!("rule {id:?} deleted"))?;
    }
    Ok(Outcome::Done)
}

pub(super) fn roll_back(server: &Server, id: &str, to: u64, dry_run: bool) -> Ended {
    let path = |dry_run: bool| {
        let flag = dry_run.then_some("true");
        format!("rules/{}/rollback{}", escaped(id), query(&[("dry_run", flag)]))
    };
    let body = json!({ "version": to });
    let mut step = server.post(&path(true), &body)?;
    if let Some(fields) = step.as_object_mut() {
        fields.insert("kind".to_owned(), "rule".into());
        fields.insert("id".to_owned(), id.into());
    }
    output::print(&steps::render(std::slice::from_ref(&step)))?;
    if !dry_run {
        let done = server.post(&path(false), &body)?;
        let version = shown(&done, "version");
        output::note(&format!("rule {id:?} is as in version {to} again, as version {version}"))?;
    }
    Ok(Outcome::Done)
}

/// Shows the candidate of a rule, or takes a step of its rollout.
pub(super) fn candidate(server: &Server, id: &str, step: Option<(&str, Value)>) -> Ended {
    let path = format!("rules/{}/candidate", escaped(id));
    let Some((name, body)) = step else {
        output::print_json(&server.get(&path)?)?;
        return Ok(Outcome::Done);
    };
    let done = server.post(&format!("{path}/{name}"), &body)?;
    output::note(&format!("rule {id:?} has version {} now", shown(&done, "version")))?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_in_short() {
        for (rule, expected) in [
            (json!({"limit": 1000, "window": "1h"}), "1000/1h"),
            (json!({"limit": 5, "window_seconds": 3600}), "5/1h"),
            (json!({"limit": 5, "window_ms": 250}), "5/250ms"),
            (json!({"limit": 5, "calendar": "day"}), "5/day"),
            (json!({"limit": 5}), "5"),
            (
                json!({"limits": [{"limit": 1, "window": "1s"}, {"limit": 9, "window": "1m"}]}),
                "1/1s, 9/1m",
            ),
        ] {
            assert_eq!(limits(&rule), expected);
        }
    }
}
