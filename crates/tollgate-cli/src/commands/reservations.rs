//! `tollgate reserve`, `settle`, `release`, `renew` and `slots`

use serde_json::{Map, Value, json};

use super::check::{body, decision};
use crate::args::{HeldArgs, Reach, RenewArgs, ReserveArgs, SettleArgs, SlotsCommand};
use crate::failure::{Ended, Outcome};
use crate::output;
use crate::server::{Server, query};
use crate::value::{instant, shown};

pub(super) fn reserve(args: &ReserveArgs) -> Ended {
    let mut body = body(&args.request);
    if let (Some(ttl), Some(fields)) = (args.ttl_ms, body.as_object_mut()) {
        fields.insert("ttlMs".to_owned(), ttl.into());
    }
    let answer = ask(&args.reach, "reserve", &body)?;
    output::print_json(&answer)?;
    let is_allowed = answer.get("allowed").and_then(Value::as_bool) == Some(true);
    Ok(if is_allowed { Outcome::Done } else { Outcome::Refused })
}

pub(super) fn settle(args: &SettleArgs) -> Ended {
    let mut body = Map::new();
    body.insert("reservationId".to_owned(), args.id.as_str().into());
    for (name, figure) in [("tokens", args.tokens), ("cost", args.cost)] {
        if let Some(figure) = figure {
            body.insert(name.to_owned(), figure.into());
        }
    }
    args.usage.put_into(&mut body);
    print(&args.reach, "settle", &Value::Object(body))
}

pub(super) fn release(args: &HeldArgs) -> Ended {
    print(&args.reach, "release", &json!({ "reservationId": args.id }))
}

pub(super) fn renew(args: &RenewArgs) -> Ended {
    let mut body = json!({ "reservationId": args.held.id });
    if let (Some(ttl), Some(fields)) = (args.ttl_ms, body.as_object_mut()) {
        fields.insert("ttlMs".to_owned(), ttl.into());
    }
    print(&args.held.reach, "renew", &body)
}

fn print(reach: &Reach, call: &str, body: &Value) -> Ended {
    output::print_json(&ask(reach, call, body)?)?;
    Ok(Outcome::Done)
}

fn ask(reach: &Reach, call: &str, body: &Value) -> Result<Value, crate::failure::Failure> {
    let path = format!("/rate-limit/{call}");
    decision(&Server::new(reach).ask("POST", &path, Some(&body.to_string()))?)
}

pub(super) fn slots(command: SlotsCommand) -> Ended {
    let SlotsCommand::List { rule, limit, json, reach } = command;
    let limit = limit.to_string();
    let parameters = query(&[("rule_id", rule.as_deref()), ("limit", Some(&limit))]);
    let page = Server::new(&reach).get(&format!("slots{parameters}"))?;
    if json {
        output::print_json(&page)?;
        return Ok(Outcome::Done);
    }
    let items = page.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    let row = |item: &Value| {
        let key = item.get("key").and_then(Value::as_array).cloned().unwrap_or_default();
        let key: Vec<&str> = key.iter().filter_map(Value::as_str).collect();
        let first = item.get("slots").and_then(|slots| slots.get(0)).cloned().unwrap_or_default();
        [
            shown(item, "rule_id"),
            key.join(", "),
            shown(item, "held"),
            shown(item, "limit"),
            instant(&first, "expires_at"),
        ]
    };
    let rows: Vec<_> = items.iter().map(row).collect();
    if rows.is_empty() {
        output::note("no slots are held")?;
    } else {
        output::print_table(["RULE", "KEY", "HELD", "LIMIT", "FIRST EXPIRES"], &rows)?;
    }
    Ok(Outcome::Done)
}
