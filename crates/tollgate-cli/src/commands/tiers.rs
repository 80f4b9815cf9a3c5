//! `tollgate tiers`

use serde_json::{Value, json};

use super::lists::{client_name, id_of};
use crate::args::{Client, TiersCommand};
use crate::failure::{Ended, Outcome};
use crate::output;
use crate::server::{Server, escaped};
use crate::value::{instant, plain, shown, text};

pub(super) fn run(command: TiersCommand) -> Ended {
    match command {
        TiersCommand::List { json, reach } => list(&Server::new(&reach), json),
        TiersCommand::Set { name, description, default, reach } => {
            let mut body = json!({ "name": name, "is_default": default });
            if let (Some(text), Some(fields)) = (description, body.as_object_mut()) {
                fields.insert("description".to_owned(), text.into());
            }
            Server::new(&reach).post("tiers", &body)?;
            let more = if default { ", which clients without a tier have" } else { "" };
            said(&format!("tier {name:?} is set{more}"))
        }
        TiersCommand::Delete { name, reach } => {
            Server::new(&reach).delete(&format!("tiers/{}", escaped(&name)))?;
            said(&format!("tier {name:?} deleted"))
        }
        TiersCommand::Assign { clients, tier, reach } => {
            assign(&Server::new(&reach), &clients, &tier)
        }
        TiersCommand::Unassign { clients, reach } => {
            let server = Server::new(&reach);
            for client in &clients {
                let id = id_of(&server, "client-tiers", client)?;
                server.delete(&format!("client-tiers/{}", escaped(&id)))?;
                output::note(&format!("{id} has no tier of its own any more"))?;
            }
            Ok(Outcome::Done)
        }
        TiersCommand::Of { client, reach } => of(&Server::new(&reach), &client),
    }
}

fn said(text: &str) -> Ended {
    output::note(text)?;
    Ok(Outcome::Done)
}

fn list(server: &Server, json: bool) -> Ended {
    let tiers = server.list("tiers", &[])?;
    if json {
        output::print_json(&Value::Array(tiers))?;
        return Ok(Outcome::Done);
    }
    if tiers.is_empty() {
        return said("no tiers");
    }
    let row = |tier: &Value| {
        let is_default = tier.get("is_default").and_then(Value::as_bool) == Some(true);
        [
            shown(tier, "name"),
            if is_default { "yes" } else { "" }.to_owned(),
            shown(tier, "description"),
            instant(tier, "updated_at"),
            shown(tier, "updated_by"),
        ]
    };
    let rows: Vec<_> = tiers.iter().map(row).collect();
    output::print_table(["TIER", "DEFAULT", "DESCRIPTION", "UPDATED", "BY"], &rows)?;
    Ok(Outcome::Done)
}

fn assign(server: &Server, clients: &[Client], tier: &str) -> Ended {
    for client in clients {
        let body = json!({ "identifier_type": client.kind, "identifier": client.name,
            "tier": tier });
        let put = server.post("client-tiers", &body)?;
        output::note(&format!("{} has tier {tier:?}", client_name(&put)))?;
    }
    Ok(Outcome::Done)
}

/// By the rules in force: its own tier, or the default.
fn of(server: &Server, client: &Client) -> Ended {
    let path = format!("usage/{}/{}", escaped(&client.kind), escaped(&client.name));
    let usage = server.get(&path)?;
    let Some(tier) = text(&usage, "tier") else {
        output::note("none: it has no tier of its own, and there is no default tier")?;
        return Ok(Outcome::Refused);
    };
    output::print(&format!("{}\n", plain(&tier.into())))?;
    Ok(Outcome::Done)
}
