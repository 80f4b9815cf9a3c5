//! `tollgate usage`

use serde_json::{Value, json};

use crate::args::{Client, KnownArgs, UsageCommand};
use crate::ask::confirm;
use crate::failure::{Ended, Outcome};
use crate::output;
use crate::server::{Server, escaped, query};
use crate::value::{instant, list, shown};
use crate::when;

pub(super) fn run(command: UsageCommand) -> Ended {
    match command {
        UsageCommand::Show { client, known, rule, json, reach } => {
            let path = path(&client, "", &known, rule.as_deref());
            show(&Server::new(&reach).get(&path)?, json)
        }
        UsageCommand::Reset { client, known, rule, yes, reach } => {
            let of = rule.as_ref().map(|rule| format!(" of rule {rule:?}")).unwrap_or_default();
            if !confirm(&format!("Reset the counters{of} of this {}?", client.kind), yes)? {
                output::note("nothing was done")?;
                return Ok(Outcome::Refused);
            }
            let path = path(&client, "/reset", &known, rule.as_deref());
            let done = Server::new(&reach).post(&path, &json!({}))?;
            let reset: Vec<String> = list(&done, "reset").iter().map(crate::value::plain).collect();
            if reset.is_empty() {
                output::note("nothing to reset: no rule counts requests of this client")?;
            } else {
                output::note(&format!("reset: {}", reset.join(", ")))?;
            }
            Ok(Outcome::Done)
        }
    }
}

fn path(client: &Client, end: &str, known: &KnownArgs, rule: Option<&str>) -> String {
    let more = query(&[
        ("rule_id", rule),
        ("model_id", known.model.as_deref()),
        ("tenant_id", known.tenant.as_deref()),
        ("endpoint", known.endpoint.as_deref()),
        ("method", known.method.as_deref()),
    ]);
    format!("usage/{}/{}{end}{more}", escaped(&client.kind), escaped(&client.name))
}

fn show(usage: &Value, json: bool) -> Ended {
    if json {
        output::print_json(usage)?;
        return Ok(Outcome::Done);
    }
    let (kind, name) = (shown(usage, "identifier_type"), shown(usage, "identifier"));
    let (tier, reason) = (shown(usage, "tier"), shown(usage, "reason"));
    output::print(&format!("{kind}:{name}  tier: {tier}  next request: {reason}\n"))?;
    let row = |limit: &Value| {
        let seconds = limit.get("window_seconds").and_then(Value::as_u64).unwrap_or_default();
        [
            shown(limit, "rule_id"),
            shown(limit, "scope"),
            shown(limit, "limit"),
            shown(limit, "current"),
            shown(limit, "remaining"),
            if seconds == 0 { "-".to_owned() } else { when::span(seconds) },
            instant(limit, "reset_at"),
        ]
    };
    let rows: Vec<_> = list(usage, "limits").iter().map(row).collect();
    if rows.is_empty() {
        output::print("no limit applies\n")?;
    } else {
        let head = ["RULE", "SCOPE", "LIMIT", "USED", "REMAINING", "WINDOW", "RESETS"];
        output::print_table(head, &rows)?;
    }
    Ok(Outcome::Done)
}
