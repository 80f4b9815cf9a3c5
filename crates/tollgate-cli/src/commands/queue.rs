//! `tollgate queue`

use serde_json::{Value, json};

use crate::args::QueueCommand;
use crate::failure::{Ended, Outcome};
use crate::output;
use crate::server::{Server, escaped, query};
use crate::value::{instant, shown};

pub(super) fn run(command: QueueCommand) -> Ended {
    match command {
        QueueCommand::List { state, limit, json, reach } => {
            list(&Server::new(&reach), &state, limit, json)
        }
        QueueCommand::Retry { tickets, reach } => {
            let server = Server::new(&reach);
            for ticket in &tickets {
                server.post(&format!("queue/{}/retry", escaped(ticket)), &json!({}))?;
                output::note(&format!("{ticket} waits for its turn again"))?;
            }
            Ok(Outcome::Done)
        }
        QueueCommand::Drop { tickets, reach } => {
            let server = Server::new(&reach);
            for ticket in &tickets {
                server.delete(&format!("queue/{}", escaped(ticket)))?;
                output::note(&format!("{ticket} is gone"))?;
            }
            Ok(Outcome::Done)
        }
    }
}

fn list(server: &Server, state: &str, limit: u32, json: bool) -> Ended {
    let limit = limit.to_string();
    let parameters = query(&[("state", Some(state)), ("limit", Some(&limit))]);
    let page = server.get(&format!("queue{parameters}"))?;
    if json {
        output::print_json(&page)?;
        return Ok(Outcome::Done);
    }
    let items = page.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    let row = |item: &Value| {
        [
            shown(item, "ticket"),
            shown(item, "state"),
            shown(item, "request"),
            instant(item, "enqueued_at"),
            shown(item, "attempts"),
            shown(item, "error"),
        ]
    };
    let rows: Vec<_> = items.iter().map(row).collect();
    if !rows.is_empty() {
        output::print_table(["TICKET", "STATE", "REQUEST", "SINCE", "TRIES", "ERROR"], &rows)?;
    }
    output::note(&format!(
        "{} waiting for {} keys, {} answered, {} dead letters",
        shown(&page, "waiting"),
        shown(&page, "keys"),
        shown(&page, "done"),
        shown(&page, "dead"),
    ))?;
    Ok(Outcome::Done)
}
