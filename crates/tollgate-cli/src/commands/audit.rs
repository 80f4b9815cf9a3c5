//! `tollgate audit`

use std::time::Duration;

use serde_json::Value;

use crate::args::AuditArgs;
use crate::commands::rules::in_short;
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::server::Server;
use crate::value::{instant, shown, text};
use crate::when::{self, Direction};
use crate::yaml;

/// How often new records are asked for.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Records that are asked for each time: mostly few are new.
const FOLLOW_FEW: usize = 50;
/// New records that are shown at once; of more the oldest are left out.
const FOLLOW_MOST: usize = 1_000;

pub(super) fn run(args: &AuditArgs) -> Ended {
    if let Some(command) = &args.command {
        return super::audit_chain::run(command);
    }
    let server = Server::new(&args.reach);
    let mut records = fetch(&server, args, args.limit as usize)?;
    if !args.follow {
        if args.json {
            output::print_json(&Value::Array(records))?;
        } else if records.is_empty() {
            output::note("nothing in the log fits")?;
        } else {
            table(args, &records)?;
        }
        return Ok(Outcome::Done);
    }
    let mut last = None;
    loop {
        records.retain(|record| last.is_none_or(|last| id(record) > last));
        if let Some(newest) = records.last() {
            last = Some(id(newest));
            lines(args, &records)?;
        }
        std::thread::sleep(FOLLOW_INTERVAL);
        records = fetch(&server, args, FOLLOW_FEW)?;
        let is_all_new = |first: &Value| last.is_none_or(|last| id(first) > last);
        if records.len() == FOLLOW_FEW && records.first().is_some_and(is_all_new) {
            records = fetch(&server, args, FOLLOW_MOST)?;
        }
    }
}

fn id(record: &Value) -> i64 {
    record.get("id").and_then(Value::as_i64).unwrap_or_default()
}

/// The newest records that fit, the newest last.
fn fetch(server: &Server, args: &AuditArgs, most: usize) -> Result<Vec<Value>, Failure> {
    let past = |flag: &str, given: &Option<String>| {
        let given = given.as_deref();
        given.map(|text| when::instant(flag, text, Direction::Past)).transpose()
    };
    let (since, until) = (past("since", &args.since)?, past("until", &args.until)?);
    let entry = args.entry.as_deref().map(|entry| entry.split_once('/').unwrap_or((entry, "")));
    let parameters = [
        ("kind", args.decisions.then_some("decisions")),
        ("from", since.as_deref()),
        ("until", until.as_deref()),
        ("tenant_id", args.tenant.as_deref()),
        ("request_id", args.request_id.as_deref()),
        ("actor", args.actor.as_deref()),
        ("entry_kind", entry.map(|(kind, _)| kind)),
        ("entry_id", entry.map(|(_, id)| id).filter(|id| !id.is_empty())),
        ("user_id", args.user.as_deref()),
        ("rule_id", args.rule.as_deref()),
        ("client_id", args.client.as_deref()),
        ("action", args.action.as_deref()),
    ];
    let mut records = server.list_some("audit", &parameters, most)?;
    records.reverse();
    Ok(records)
}

const CHANGE_HEAD: [&str; 5] = ["TIME", "BY", "ACTION", "ENTRY", "CHANGE"];
const DECISION_HEAD: [&str; 7] = ["TIME", "ACTION", "CLIENT", "RULE", "USED", "REQUEST", "REASON"];

fn table(args: &AuditArgs, records: &[Value]) -> std::io::Result<()> {
    if args.decisions {
        let rows: Vec<_> = records.iter().map(decision).collect();
        output::print_table(DECISION_HEAD, &rows)
    } else {
        let rows: Vec<_> = records.iter().map(change).collect();
        output::print_table(CHANGE_HEAD, &rows)
    }
}

/// What comes bit by bit has no table around it.
fn lines(args: &AuditArgs, records: &[Value]) -> std::io::Result<()> {
    let mut text = String::new();
    for record in records {
        let line = match (args.json, args.decisions) {
            (true, _) => output::without_controls(&record.to_string()),
            (false, true) => decision(record).join("  "),
            (false, false) => change(record).join("  "),
        };
        text.push_str(line.trim_end());
        text.push('\n');
    }
    output::print(&text)
}

fn change(record: &Value) -> [String; 5] {
    [
        instant(record, "timestamp"),
        shown(record, "actor"),
        shown(record, "action"),
        shown(record, "entry_id"),
        difference(record),
    ]
}

/// The first level of what changed: `limit 5 → 9, name (none) → x`.
fn difference(record: &Value) -> String {
    let nothing = Value::Null;
    let (before, after) =
        (record.get("before").unwrap_or(&nothing), record.get("after").unwrap_or(&nothing));
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
            names.sort_unstable();
            names.dedup();
            let show =
                |value: Option<&Value>| value.map_or_else(|| "(none)".to_owned(), yaml::inline);
            let changed = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
            let changed: Vec<String> = changed
                .map(|name| format!("{name} {} → {}", show(old.get(name)), show(new.get(name))))
                .collect();
            changed.join(", ")
        }
        (Value::Null, one) | (one, Value::Null) => {
            in_short(text(record, "kind").unwrap_or_default(), Some(one))
        }
        (old, new) => format!("{} → {}", yaml::inline(old), yaml::inline(new)),
    }
}

fn decision(record: &Value) -> [String; 7] {
    let used = match (record.get("request_count"), record.get("limit_count")) {
        (Some(used), Some(limit)) if !limit.is_null() => format!("{used}/{limit}"),
        _ => "-".to_owned(),
    };
    let number = |field: &str| record.get(field).and_then(Value::as_i64);
    let request = match (text(record, "method"), text(record, "endpoint")) {
        // One record for many.
        _ if number("count").is_some_and(|count| count > 1) => {
            let kept = number("kept").unwrap_or(0);
            format!("kept {kept} of {}", number("count").unwrap_or(0))
        }
        (None, None) => text(record, "request_id").map_or("-", |id| id).to_owned(),
        (method, endpoint) => {
            format!("{} {}", method.unwrap_or_default(), endpoint.unwrap_or_default())
        }
    };
    [
        instant(record, "timestamp"),
        shown(record, "action"),
        shown(record, "client_id"),
        shown(record, "rule_id"),
        used,
        crate::value::plain(&Value::from(request.trim())),
        shown(record, "reason"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_reported_in_short() {
        let record = json!({"before": {"limit": 5, "window": "1h"},
            "after": {"limit": 9, "window": "1h", "name": "x"}});
        assert_eq!(difference(&record), "limit 5 → 9, name (none) → x");
        assert_eq!(difference(&json!({"before": "on", "after": "shadow"})), "\"on\" → shadow");
        assert_eq!(
            difference(&json!({"before": null, "after": {"limit": 1}, "kind": "rule"})),
            "1"
        );
    }
}
