//! `tollgate keys`

use std::path::Path;

use anyhow::{Context as _, anyhow};
use serde_json::{Map, Value, json};

use crate::args::{KeyFields, KeysCommand};
use crate::ask::confirm;
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::server::{Server, escaped};
use crate::value::{instant, list, shown, text};
use crate::when::{self, Direction};
use crate::yaml;

/// The keys of one call of an import.
const IMPORTED_AT_ONCE: usize = 5_000;

/// What a caller may set of a key, as the server shows it.
const FIELDS: [&str; 8] =
    ["name", "owner", "tenant_id", "tags", "models", "limits", "budget", "expires_at"];

pub(super) fn run(command: KeysCommand) -> Ended {
    match command {
        KeysCommand::Create { name, tenant, fields, json, reach } => {
            let mut body = Map::new();
            body.insert("name".to_owned(), name.into());
            body.insert("tenant_id".to_owned(), tenant.into());
            set(&mut body, &fields)?;
            let made = Server::new(&reach).post("keys", &Value::Object(body))?;
            secret(&made, json, "is created")
        }
        KeysCommand::List { tenant, owner, name, json, reach } => {
            let parameters = [
                ("tenant_id", tenant.as_deref()),
                ("owner", owner.as_deref()),
                ("name", name.as_deref()),
            ];
            show(&Server::new(&reach).list("keys", &parameters)?, json)
        }
        KeysCommand::Get { id, json, reach } => one(&Server::new(&reach).get(&path(&id))?, json),
        KeysCommand::Update { id, name, fields, json, reach } => {
            let server = Server::new(&reach);
            let now = server.get(&path(&id))?;
            let mut body: Map<String, Value> = FIELDS
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), now.get(name)?.clone())))
                .collect();
            if let Some(name) = name {
                body.insert("name".to_owned(), name.into());
            }
            set(&mut body, &fields)?;
            one(&server.put(&path(&id), &Value::Object(body))?, json)
        }
        KeysCommand::Rotate { id, overlap, json, reach } => {
            let path = format!("{}/rotate", path(&id));
            let made = Server::new(&reach).post(&path, &json!({ "overlap": overlap }))?;
            secret(&made, json, "has a new secret")
        }
        KeysCommand::Disable { id, reach } => switch(&Server::new(&reach), &id, "disable"),
        KeysCommand::Enable { id, reach } => switch(&Server::new(&reach), &id, "enable"),
        KeysCommand::Delete { id, yes, reach } => {
            if !confirm(&format!("Delete {id}? Its holder is refused at once."), yes)? {
                output::note("nothing was done")?;
                return Ok(Outcome::Refused);
            }
            Server::new(&reach).delete(&path(&id))?;
            output::note(&format!("{id} is deleted"))?;
            Ok(Outcome::Done)
        }
        KeysCommand::Import { file, json, reach } => import(&Server::new(&reach), &file, json),
    }
}

fn path(id: &str) -> String {
    format!("keys/{}", escaped(id))
}

fn switch(server: &Server, id: &str, act: &str) -> Ended {
    let key = server.post(&format!("{}/{act}", path(id)), &json!({}))?;
    output::note(&format!("{id} ({}) is {}", shown(&key, "name"), shown(&key, "status")))?;
    Ok(Outcome::Done)
}

/// Puts the given flags into the body of a key.
fn set(body: &mut Map<String, Value>, fields: &KeyFields) -> Result<(), Failure> {
    let KeyFields { owner, tags, models, limits, budget, expires } = fields;
    if let Some(owner) = owner {
        body.insert("owner".to_owned(), owner.clone().into());
    }
    if !tags.is_empty() {
        let pair = |tag: &String| {
            let wrong = || Failure::usage(anyhow!("--tag {tag:?} must be NAME=VALUE"));
            let (name, value) = tag.split_once('=').ok_or_else(wrong)?;
            Ok((name.to_owned(), Value::String(value.to_owned())))
        };
        let tags: Result<Map<String, Value>, Failure> = tags.iter().map(pair).collect();
        body.insert("tags".to_owned(), Value::Object(tags?));
    }
    if !models.is_empty() {
        body.insert("models".to_owned(), json!(models));
    }
    if !limits.is_empty() {
        let limits: Result<Vec<Value>, Failure> = limits.iter().map(|text| limit(text)).collect();
        body.insert("limits".to_owned(), Value::Array(limits?));
    }
    if let Some(text) = budget {
        let parts: Vec<&str> = text.split('/').collect();
        let [amount, currency, calendar] = parts.as_slice() else {
            let message = anyhow!("--budget {text:?} must be such as 5.00/USD/month");
            return Err(Failure::usage(message));
        };
        let budget = json!({ "amount": amount, "currency": currency, "calendar": calendar });
        body.insert("budget".to_owned(), budget);
    }
    if let Some(text) = expires {
        let at = when::instant("expires", text, Direction::Future)?;
        body.insert("expires_at".to_owned(), json!(at));
    }
    Ok(())
}

/// `60/1m`, or with a unit `tokens:100000/1d`. Units that count slots have no window.
fn limit(text: &str) -> Result<Value, Failure> {
    let wrong =
        || Failure::usage(anyhow!("--limit {text:?} must be such as 60/1m or tokens:100000/1d"));
    let (unit, rest) = text.split_once(':').unwrap_or(("requests", text));
    let (count, window) = match rest.split_once('/') {
        Some((count, window)) => (count, Some(window)),
        None => (rest, None),
    };
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let mut limit = json!({ "unit": unit, "limit": count });
    if let (Some(window), Some(limit)) = (window, limit.as_object_mut()) {
        limit.insert("window".to_owned(), window.into());
    }
    Ok(limit)
}

/// The secret alone on standard output, so that a script can take it; the rest on standard error.
fn secret(made: &Value, json: bool, what: &str) -> Ended {
    if json {
        output::print_json(made)?;
        return Ok(Outcome::Done);
    }
    let secret = text(made, "secret").ok_or_else(|| anyhow!("the answer has no secret"))?;
    let (id, name) = (shown(made, "id"), shown(made, "name"));
    output::note(&format!("{id} ({name}) {what}"))?;
    if let Some(until) = text(made, "previous_secret_until") {
        output::note(&format!("the secret before stays valid until {}", when::shown(until)))?;
    }
    output::note("keep it safe: it is shown this once, and cannot be shown again")?;
    output::print(&format!("{}\n", crate::value::plain(&secret.into())))?;
    Ok(Outcome::Done)
}

fn one(key: &Value, json: bool) -> Ended {
    if json {
        output::print_json(key)?;
    } else {
        output::print(&crate::server::printable(&yaml::block(key)))?;
    }
    Ok(Outcome::Done)
}

fn show(keys: &[Value], json: bool) -> Ended {
    if json {
        output::print_json(&Value::Array(keys.to_vec()))?;
        return Ok(Outcome::Done);
    }
    let row = |key: &Value| {
        [
            shown(key, "id"),
            shown(key, "name"),
            shown(key, "owner"),
            shown(key, "tenant_id"),
            shown(key, "status"),
            instant(key, "expires_at"),
            instant(key, "created_at"),
        ]
    };
    let rows: Vec<_> = keys.iter().map(row).collect();
    let head = ["KEY", "NAME", "OWNER", "TENANT", "STATUS", "EXPIRES", "CREATED"];
    output::print_table(head, &rows)?;
    Ok(Outcome::Done)
}

fn import(server: &Server, file: &Path, json: bool) -> Ended {
    let read = std::fs::read_to_string(file).with_context(|| file.display().to_string());
    let text = read.map_err(Failure::Usage)?;
    let parsed = serde_json::from_str(&text).or_else(|_| yaml::read(&text));
    let parsed = parsed.with_context(|| file.display().to_string()).map_err(Failure::Usage)?;
    let keys = match parsed {
        Value::Array(keys) => keys,
        Value::Object(mut fields) => match fields.remove("keys") {
            Some(Value::Array(keys)) if fields.is_empty() => keys,
            _ => return Err(Failure::usage(anyhow!("the file must be a list of keys"))),
        },
        _ => return Err(Failure::usage(anyhow!("the file must be a list of keys"))),
    };
    let mut created = Vec::with_capacity(keys.len());
    for part in keys.chunks(IMPORTED_AT_ONCE) {
        let made = server.post_many("keys", &json!({ "keys": part }), None);
        if made.is_err() && !created.is_empty() {
            // Their secrets are shown only now.
            output::note(&format!("{} of {} keys are created", created.len(), keys.len()))?;
            print_created(&created, json)?;
        }
        let made = made?;
        created.extend(list(&made, "keys").iter().cloned());
    }
    output::note(&format!("{} keys are created", created.len()))?;
    print_created(&created, json)?;
    Ok(Outcome::Done)
}

fn print_created(created: &[Value], json: bool) -> std::io::Result<()> {
    if json {
        return output::print_json(&Value::Array(created.to_vec()));
    }
    let row = |key: &Value| [shown(key, "id"), shown(key, "name"), shown(key, "secret")];
    let rows: Vec<_> = created.iter().map(row).collect();
    output::print_table(["KEY", "NAME", "SECRET"], &rows)
}
