//! `tollgate decisions`

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::args::DecisionsArgs;
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::server::{Server, query};
use crate::value::{instant, list, plain, shown, text};

/// How often new decisions are asked for.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// New decisions that are shown at once; of more the oldest are left out and counted.
const MAX_FOLLOWED: u32 = 200;
/// Decisions of one page.
const PAGE: usize = 1_000;

const HEAD: [&str; 4] = ["TIME", "RESULT", "REQUEST", "DECISION"];

pub(super) fn run(args: &DecisionsArgs) -> Ended {
    let server = Server::new(&args.reach);
    let found = search(&server, args)?;
    if found.items.is_empty() && !args.follow && !args.json {
        output::note("no decision fits")?;
    } else if args.follow || args.json {
        lines(args, &found.items)?;
    } else {
        output::print_table(HEAD, &found.items.iter().map(row).collect::<Vec<_>>())?;
    }
    if args.follow {
        return follow(&server, args, found.newest);
    }
    Ok(Outcome::Done)
}

struct Found {
    /// The newest last.
    items: Vec<Value>,
    /// The number of the newest record of the log when it was asked.
    newest: i64,
}

/// The newest decisions that fit.
fn search(server: &Server, args: &DecisionsArgs) -> Result<Found, Failure> {
    let mut found = Found { items: Vec::new(), newest: 0 };
    let mut cursor: Option<String> = None;
    let wanted = args.limit as usize;
    loop {
        let limit = (wanted - found.items.len()).min(PAGE).to_string();
        let more = [("limit", Some(limit.as_str())), ("cursor", cursor.as_deref())];
        let page = ask(server, args, &more)?;
        if cursor.is_none() {
            found.newest = number(&page, "newest_id");
            note_retention(args, &page)?;
        }
        let items = list(&page, "items");
        found.items.extend_from_slice(items);
        cursor = text(&page, "next_cursor").map(str::to_owned);
        if cursor.is_none() || items.is_empty() || found.items.len() >= wanted {
            found.items.reverse();
            return Ok(found);
        }
    }
}

/// Shows decisions as they are written, until it is interrupted.
fn follow(server: &Server, args: &DecisionsArgs, mut last: i64) -> Ended {
    loop {
        std::thread::sleep(FOLLOW_INTERVAL);
        let (after, limit) = (last.to_string(), MAX_FOLLOWED.to_string());
        let more = [("written_after", Some(after.as_str())), ("limit", Some(limit.as_str()))];
        let page = ask(server, args, &more)?;
        let skipped = number(&page, "skipped");
        if skipped > 0 && args.json {
            output::print(&format!("{}\n", json!({ "skipped": skipped })))?;
        } else if skipped > 0 {
            output::print(&format!("… {skipped} more were skipped\n"))?;
        }
        let mut items = list(&page, "items").to_vec();
        items.reverse();
        lines(args, &items)?;
        let ids = items.iter().map(|item| number(item, "id"));
        last = ids.chain([last, number(&page, "newest_id")]).max().unwrap_or(last);
    }
}

fn ask(
    server: &Server,
    args: &DecisionsArgs,
    more: &[(&str, Option<&str>)],
) -> Result<Value, Failure> {
    let mut parameters = vec![
        ("from", args.since.as_deref()),
        ("until", args.until.as_deref()),
        ("user_id", args.user.as_deref()),
        ("tenant_id", args.tenant.as_deref()),
        ("api_key_id", args.api_key_id.as_deref()),
        ("ip", args.ip.as_deref()),
        ("rule_id", args.rule.as_deref()),
        ("scope", args.scope.as_deref()),
        ("model_id", args.model.as_deref()),
        ("endpoint", args.endpoint.as_deref()),
        ("reason", args.reason.as_deref()),
        ("result", args.result.as_deref()),
        ("request_id", args.request_id.as_deref()),
    ];
    parameters.extend_from_slice(more);
    server.get(&format!("decisions{}", query(&parameters)))
}

/// Says where a range begins before decisions are kept.
fn note_retention(args: &DecisionsArgs, page: &Value) -> std::io::Result<()> {
    let at = |field: &str| text(page, field).and_then(|text| text.parse::<Timestamp>().ok());
    match (at("from"), at("retained_from")) {
        (Some(from), Some(oldest)) if from < oldest && !args.json => {
            let oldest = instant(page, "retained_from");
            output::note(&format!("decisions from before {oldest} are no longer kept"))
        }
        _ => Ok(()),
    }
}

fn number(value: &Value, field: &str) -> i64 {
    value.get(field).and_then(Value::as_i64).unwrap_or_default()
}

/// What comes bit by bit has no table around it.
fn lines(args: &DecisionsArgs, items: &[Value]) -> std::io::Result<()> {
    let mut text = String::new();
    for item in items {
        let line = if args.json {
            output::without_controls(&item.to_string())
        } else {
            row(item).join("  ")
        };
        text.push_str(line.trim_end());
        text.push('\n');
    }
    output::print(&text)
}

fn row(item: &Value) -> [String; 4] {
    let request = match (text(item, "method"), text(item, "endpoint")) {
        (None, None) => "-".to_owned(),
        (method, endpoint) => {
            format!("{} {}", method.unwrap_or_default(), endpoint.unwrap_or_default())
        }
    };
    [
        instant(item, "timestamp"),
        shown(item, "result"),
        plain(&Value::from(request.trim())),
        shown(item, "sentence"),
    ]
}
