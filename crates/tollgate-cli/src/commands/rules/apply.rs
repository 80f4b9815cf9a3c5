//! `tollgate rules apply` and `diff`

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::files::{self, Document, api_client_tier};
use super::steps;
use crate::args::ApplyArgs;
use crate::ask::confirm;
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::server::{Server, query};
use crate::value::{list, text};

/// Clients whose tiers are sent at once: as many as a server takes.
const CLIENT_TIERS_AT_ONCE: usize = 10_000;

pub(super) fn diff(server: &Server, files: &[PathBuf], prune: bool, json: bool) -> Ended {
    let document = files::read(files)?;
    let plan = try_out(server, &document, prune)?;
    let steps = list(&plan, "steps");
    if json {
        output::print_json(&plan)?;
    } else {
        output::print(&steps::render(steps))?;
    }
    if !document.client_tiers.is_empty() {
        let what = tiers_of(document.client_tiers.len());
        output::note(&format!("not compared: {what}"))?;
    }
    Ok(if steps.is_empty() { Outcome::Done } else { Outcome::Refused })
}

pub(super) fn apply(args: &ApplyArgs) -> Ended {
    let document = files::read(&args.files)?;
    let server = Server::new(&args.reach);
    let plan = try_out(&server, &document, args.prune)?;
    let steps = list(&plan, "steps");
    let clients = document.client_tiers.len();
    if !args.json {
        output::print(&steps::render(steps))?;
    }
    if steps.is_empty() && clients == 0 {
        output::note("nothing to change: the server has it all as the files say")?;
        return done(args, &plan);
    }
    let mut what = Vec::new();
    if !steps.is_empty() {
        what.push(steps::count(steps));
    }
    if clients > 0 {
        what.push(tiers_of(clients) + " to set");
    }
    let what = what.join(", ");
    if args.dry_run {
        output::note(&format!("{what}; nothing was done (dry run)"))?;
        return done(args, &plan);
    }
    if !confirm(&format!("{what}. Apply to {}?", server.url()), args.yes)? {
        output::note("nothing was done")?;
        return Ok(Outcome::Refused);
    }
    let mut revision = plan.get("revision").and_then(Value::as_i64);
    // Clients have their tiers before rules count on them; but a tier must be there to be had.
    let is_new_tier =
        |step: &Value| (text(step, "action"), text(step, "kind")) == (Some("create"), Some("tier"));
    let come_first = clients > 0 && !steps.iter().any(is_new_tier);
    if come_first {
        revision = send_client_tiers(&server, &document.client_tiers, revision)?;
    }
    let mut applied = plan.clone();
    if !steps.is_empty() {
        applied = server.post_many(&path(args.prune, false), &body(&document), revision)?;
    }
    if clients > 0 && !come_first {
        send_client_tiers(&server, &document.client_tiers, None)?;
    }
    report(&server, &what)?;
    done(args, &applied)
}

/// Reports where the change takes effect: not on every node, if nodes have their rules from different
/// owners. Owners that started within the last seconds may not be known yet, so nothing is claimed about
/// nodes that do not follow this server.
fn report(server: &Server, what: &str) -> Result<(), Failure> {
    let incidents = server.incidents();
    let differs = incidents.iter().any(|incident| incident.kind == "rule_owners");
    let effect = if differs {
        format!("in force on {}, and NOT on every node", server.url())
    } else {
        "in force within a second on every node that has its rules from this server".to_owned()
    };
    output::note(&format!("applied: {what}; {effect}"))?;
    for incident in incidents {
        output::warn(&incident.message)?;
    }
    Ok(())
}

fn tiers_of(clients: usize) -> String {
    let things = if clients == 1 { "client" } else { "clients" };
    format!("tiers of {clients} {things}")
}

fn done(args: &ApplyArgs, plan: &Value) -> Ended {
    if args.json {
        output::print_json(plan)?;
    }
    Ok(Outcome::Done)
}

fn path(prune: bool, dry_run: bool) -> String {
    let flag = |is_set: bool| is_set.then_some("true");
    format!("apply{}", query(&[("prune", flag(prune)), ("dry_run", flag(dry_run))]))
}

fn body(document: &Document) -> Value {
    Value::Object(document.body.clone())
}

/// What applying would do.
fn try_out(server: &Server, document: &Document, prune: bool) -> Result<Value, Failure> {
    server.post_many(&path(prune, true), &body(document), None)
}

/// Sends the tiers of clients in parts. Gives the revision after them, if nobody else changed anything
/// in between, as far as the numbers tell; else none that could match.
fn send_client_tiers(
    server: &Server,
    clients: &[Value],
    mut revision: Option<i64>,
) -> Result<Option<i64>, Failure> {
    let is_terminal = io::stderr().is_terminal();
    let mut sent = 0;
    for part in clients.chunks(CLIENT_TIERS_AT_ONCE) {
        let part: Vec<Value> = part.iter().map(api_client_tier).collect();
        sent += part.len();
        let answer = server.post_many("client-tiers", &json!({ "client_tiers": part }), None)?;
        let now = answer.get("revision").and_then(Value::as_i64);
        // One step, or none if all had their tiers already. More is somebody else's change.
        revision = match (revision, now) {
            (Some(before), Some(now)) if now - before > 1 => Some(before),
            (_, now) => now,
        };
        if is_terminal {
            let share = sent * 100 / clients.len();
            let line = format!("tiers of clients: {sent} of {} ({share} %)", clients.len());
            output::print_over(&mut io::stderr(), &line)?;
        }
    }
    if is_terminal {
        output::print_to(&mut io::stderr(), "\n")?;
    }
    Ok(revision)
}
