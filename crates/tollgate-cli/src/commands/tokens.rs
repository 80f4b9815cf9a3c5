//! `tollgate token`

use anyhow::anyhow;
use serde_json::{Value, json};

use crate::args::TokenCommand;
use crate::ask::confirm;
use crate::failure::{Ended, Outcome};
use crate::output;
use crate::server::{Server, escaped};
use crate::value::{instant, shown, text};
use crate::when::{self, Direction};

pub(super) fn run(command: TokenCommand) -> Ended {
    match command {
        TokenCommand::List { json, reach } => list(&Server::new(&reach), json),
        TokenCommand::Create { name, role, tenant, expires, json, reach } => {
            let expires = expires.as_deref();
            let expires = expires
                .map(|text| when::instant("expires", text, Direction::Future))
                .transpose()?;
            let body = json!({ "name": name, "role": role, "tenant_id": tenant,
                "expires_at": expires });
            let made = Server::new(&reach).post("tokens", &body)?;
            secret(&made, json, "made")
        }
        TokenCommand::Rotate { id, json, reach } => {
            let path = format!("tokens/{}/rotate", escaped(&id));
            let made = Server::new(&reach).post(&path, &json!({}))?;
            secret(&made, json, "has a new secret; the old one has ended")
        }
        TokenCommand::Revoke { id, yes, reach } => {
            if !confirm(&format!("Revoke {id}? Its users lose access at once."), yes)? {
                output::note("nothing was done")?;
                return Ok(Outcome::Refused);
            }
            let ended = Server::new(&reach).delete(&format!("tokens/{}", escaped(&id)))?;
            output::note(&format!("{id} ({}) is revoked", shown(&ended, "name")))?;
            Ok(Outcome::Done)
        }
    }
}

/// The secret alone on standard output, so that a script can take it; the rest on standard error.
fn secret(made: &Value, json: bool, what: &str) -> Ended {
    if json {
        output::print_json(made)?;
        return Ok(Outcome::Done);
    }
    let token = text(made, "token").ok_or_else(|| anyhow!("the answer has no token"))?;
    let (id, name, role) = (shown(made, "token_id"), shown(made, "name"), shown(made, "role"));
    let until = match text(made, "expires_at") {
        Some(at) => format!("until {}", when::shown(at)),
        None => "until it is revoked".to_owned(),
    };
    output::note(&format!("{id} ({name}, {role}, {until}) {what}"))?;
    output::note("keep it safe: it is shown this once, and cannot be shown again")?;
    output::print(&format!("{}\n", crate::value::plain(&token.into())))?;
    Ok(Outcome::Done)
}

fn list(server: &Server, json: bool) -> Ended {
    let tokens = server.list("tokens", &[])?;
    if json {
        output::print_json(&Value::Array(tokens))?;
        return Ok(Outcome::Done);
    }
    let row = |token: &Value| {
        [
            shown(token, "token_id"),
            shown(token, "name"),
            shown(token, "role"),
            shown(token, "tenant_id"),
            shown(token, "status"),
            instant(token, "expires_at"),
            instant(token, "created_at"),
            shown(token, "created_by"),
        ]
    };
    let rows: Vec<_> = tokens.iter().map(row).collect();
    let head = ["TOKEN", "NAME", "ROLE", "TENANT", "STATUS", "EXPIRES", "CREATED", "BY"];
    output::print_table(head, &rows)?;
    Ok(Outcome::Done)
}
