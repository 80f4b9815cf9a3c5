//! `tollgate grants`

use serde_json::{Value, json};

use crate::args::GrantsCommand;
use crate::failure::{Ended, Outcome};
use crate::output;
use crate::server::{Server, escaped};
use crate::value::{instant, shown};
use crate::when::{self, Direction};

pub(super) fn run(command: GrantsCommand) -> Ended {
    match command {
        GrantsCommand::List { json, reach } => list(&Server::new(&reach), json),
        GrantsCommand::Add { client, rule, extra, until, reason, reach } => {
            let until = when::instant("until", &until, Direction::Future)?;
            let body = json!({ "rule_id": rule, "identifier_type": client.kind,
                "identifier": client.name, "extra": extra, "expires_at": until,
                "reason": reason });
            let granted = Server::new(&reach).post("grants", &body)?;
            let (id, until) = (shown(&granted, "grant_id"), instant(&granted, "expires_at"));
            output::note(&format!("{id}: {extra} more on rule {rule:?} until {until}"))?;
            Ok(Outcome::Done)
        }
        GrantsCommand::Remove { ids, reach } => {
            let server = Server::new(&reach);
            for id in &ids {
                server.delete(&format!("grants/{}", escaped(id)))?;
                output::note(&format!("{id} has ended"))?;
            }
            Ok(Outcome::Done)
        }
    }
}

fn list(server: &Server, json: bool) -> Ended {
    let grants = server.list("grants", &[])?;
    if json {
        output::print_json(&Value::Array(grants))?;
        return Ok(Outcome::Done);
    }
    if grants.is_empty() {
        output::note("no grants")?;
        return Ok(Outcome::Done);
    }
    let row = |grant: &Value| {
        let over = match grant.get("is_expired").and_then(Value::as_bool) {
            Some(true) => " (over)",
            _ => "",
        };
        // Grants name API keys as they are; tables are shown around.
        let client = match grant.get("identifier_type").and_then(Value::as_str) {
            Some("api_key") => "api_key:…".to_owned(),
            _ => format!("{}:{}", shown(grant, "identifier_type"), shown(grant, "identifier")),
        };
        [
            shown(grant, "grant_id"),
            client,
            shown(grant, "rule_id"),
            format!("+{}", shown(grant, "extra")),
            format!("{}{over}", instant(grant, "expires_at")),
            shown(grant, "reason"),
        ]
    };
    let rows: Vec<_> = grants.iter().map(row).collect();
    output::print_table(["GRANT", "CLIENT", "RULE", "EXTRA", "UNTIL", "REASON"], &rows)?;
    Ok(Outcome::Done)
}
