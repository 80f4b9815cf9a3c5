//! `tollgate lists`

use anyhow::anyhow;
use serde_json::{Value, json};

use crate::args::{Client, ListName, ListedArgs, ListsCommand};
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::server::{Server, escaped};
use crate::value::{instant, shown, text};
use crate::when::{self, Direction};

impl ListName {
    /// What the API calls it.
    const fn path(self) -> &'static str {
        match self {
            Self::Allow => "whitelist",
            Self::Deny => "blacklist",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

pub(super) fn run(command: ListsCommand) -> Ended {
    match command {
        ListsCommand::Show { list, json, reach } => show(&Server::new(&reach), list, json),
        ListsCommand::Allow(args) => put(&args, ListName::Allow),
        ListsCommand::Deny(args) => put(&args, ListName::Deny),
        ListsCommand::Remove { list, clients, reach } => {
            remove(&Server::new(&reach), list, &clients)
        }
    }
}

fn show(server: &Server, list: Option<ListName>, json: bool) -> Ended {
    let lists = match list {
        Some(one) => vec![one],
        None => vec![ListName::Allow, ListName::Deny],
    };
    let mut all = serde_json::Map::new();
    let mut rows = Vec::new();
    for list in lists {
        let entries = server.list(list.path(), &[])?;
        rows.extend(entries.iter().map(|entry| {
            let until = match entry.get("is_expired").and_then(Value::as_bool) {
                Some(true) => format!("{} (over)", instant(entry, "expires_at")),
                _ => instant(entry, "expires_at"),
            };
            [
                list.name().to_owned(),
                client_name(entry),
                until,
                shown(entry, "reason"),
                shown(entry, "updated_by"),
            ]
        }));
        all.insert(list.name().to_owned(), Value::Array(entries));
    }
    if json {
        output::print_json(&Value::Object(all))?;
    } else if rows.is_empty() {
        output::note("nobody is listed")?;
    } else {
        output::print_table(["LIST", "CLIENT", "UNTIL", "REASON", "BY"], &rows)?;
    }
    Ok(Outcome::Done)
}

/// The client of an entry. API keys by their hash, since tables are shown around.
pub(super) fn client_name(entry: &Value) -> String {
    match (text(entry, "identifier_type"), text(entry, "id")) {
        (Some("api_key"), Some(_)) => shown(entry, "id"),
        _ => format!("{}:{}", shown(entry, "identifier_type"), shown(entry, "identifier")),
    }
}

fn put(args: &ListedArgs, list: ListName) -> Ended {
    let server = Server::new(&args.reach);
    let until = args.until.as_deref();
    let until = until.map(|text| when::instant("until", text, Direction::Future)).transpose()?;
    for client in &args.clients {
        let mut body = json!({ "identifier_type": client.kind, "identifier": client.name });
        if let Some(fields) = body.as_object_mut() {
            let given = [("reason", args.reason.as_ref()), ("expires_at", until.as_ref())];
            for (name, value) in given {
                fields.extend(value.map(|value| (name.to_owned(), value.as_str().into())));
            }
        }
        let listed = server.post(list.path(), &body)?;
        let until = text(&listed, "expires_at").map(|at| format!(" until {}", when::shown(at)));
        let (name, until) = (client_name(&listed), until.unwrap_or_default());
        output::note(&format!("{name} is on the {} list{until}", list.name()))?;
    }
    Ok(Outcome::Done)
}

fn remove(server: &Server, list: ListName, clients: &[Client]) -> Ended {
    for client in clients {
        let id = id_of(server, list.path(), client)?;
        server.delete(&format!("{}/{}", list.path(), escaped(&id)))?;
        output::note(&format!("{id} is no longer on the {} list", list.name()))?;
    }
    Ok(Outcome::Done)
}

/// The id of a client's entry. Only the server can hash API keys, so those are looked for; their hash
/// will do too.
pub(super) fn id_of(server: &Server, path: &str, client: &Client) -> Result<String, Failure> {
    if client.kind != "api_key" {
        return Ok(client.to_string());
    }
    let wanted = client.to_string();
    let is_it = |entry: &&Value| {
        text(entry, "identifier") == Some(client.name.as_str())
            || text(entry, "id") == Some(wanted.as_str())
    };
    let entries = server.list(path, &[("prefix", Some("api_key:"))])?;
    let found = entries.iter().find(is_it).and_then(|entry| text(entry, "id"));
    found.map(str::to_owned).ok_or_else(|| {
        Failure::Failed(anyhow!("there is no such API key; it is compared as a whole"))
    })
}
