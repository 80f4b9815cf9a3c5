//! `tollgate spend`

use serde_json::Value;

use crate::args::SpendArgs;
use crate::failure::{Ended, Outcome};
use crate::output;
use crate::server::{Server, query};
use crate::value::{list, plain, shown, text};

/// The columns of what a report is grouped by, with their heads.
const DIMENSIONS: [(&str, &str, &str); 5] = [
    ("day", "day", "DAY"),
    ("tenant", "tenant_id", "TENANT"),
    ("key", "api_key_id", "KEY"),
    ("user", "user_id", "USER"),
    ("model", "model_id", "MODEL"),
];

/// The columns of figures, with their heads.
const FIGURES: [(&str, &str); 6] = [
    ("requests", "REQUESTS"),
    ("refusals", "REFUSED"),
    ("input_tokens", "INPUT"),
    ("output_tokens", "OUTPUT"),
    ("tokens", "TOKENS"),
    ("money", "MONEY"),
];

pub(super) fn run(args: &SpendArgs) -> Ended {
    let limit = args.limit.to_string();
    let parameters = [
        ("group_by", Some(args.by.as_str())),
        ("from", args.since.as_deref()),
        ("until", args.until.as_deref()),
        ("tenant_id", args.tenant.as_deref()),
        ("api_key_id", args.api_key_id.as_deref()),
        ("user_id", args.user.as_deref()),
        ("model_id", args.model.as_deref()),
        ("limit", Some(limit.as_str())),
    ];
    let report = Server::new(&args.reach).get(&format!("usage/report{}", query(&parameters)))?;
    if args.json {
        output::print_json(&report)?;
        return Ok(Outcome::Done);
    }
    let rows = list(&report, "items");
    if rows.is_empty() {
        let (from, until) = (shown(&report, "from"), shown(&report, "until"));
        output::note(&format!("nothing was used from {from} until {until}"))?;
        return Ok(Outcome::Done);
    }
    let by: Vec<&str> = list(&report, "group_by").iter().filter_map(Value::as_str).collect();
    let grouped: Vec<_> = DIMENSIONS.iter().filter(|(name, ..)| by.contains(name)).collect();
    let heads = grouped.iter().map(|(_, _, head)| *head);
    let head: Vec<&str> = heads.chain(FIGURES.map(|(_, head)| head)).collect();
    let row = |item: &Value| -> Vec<String> {
        let names = grouped.iter().map(|(_, column, _)| shown(item, column));
        names.chain(FIGURES.map(|(name, _)| figure(item, name))).collect()
    };
    let table: Vec<Vec<String>> = rows.iter().map(row).collect();
    output::print_columns(&head, &table)?;
    if report.get("truncated").and_then(Value::as_bool).unwrap_or(false) {
        output::note(&format!("only the first {} rows are shown", rows.len()))?;
    }
    Ok(Outcome::Done)
}

fn figure(item: &Value, name: &str) -> String {
    match (name, text(item, "currency")) {
        ("money", Some(currency)) => {
            format!("{} {}", shown(item, name), plain(&Value::from(currency)))
        }
        _ => shown(item, name),
    }
}
