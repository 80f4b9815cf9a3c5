//! `tollgate rules`

mod apply;
mod entries;
mod explain;
mod files;
mod import_envoy;
mod steps;
mod validate;

use serde_json::json;
use tollgate_policy::ImportOptions;

use crate::args::RulesCommand;
use crate::failure::{Ended, Outcome};
use crate::output;
use crate::server::Server;

pub(super) use steps::in_short;
pub(super) use validate::read;

pub(super) fn run(command: RulesCommand) -> Ended {
    match command {
        RulesCommand::List { prefix, tenant, json, reach } => {
            entries::list(&Server::new(&reach), prefix.as_deref(), tenant.as_deref(), json)
        }
        RulesCommand::Get { id, version, json, reach } => {
            entries::get(&Server::new(&reach), &id, version, json)
        }
        RulesCommand::Versions { id, json, reach } => {
            entries::versions(&Server::new(&reach), &id, json)
        }
        RulesCommand::Delete { ids, yes, reach } => {
            entries::delete(&Server::new(&reach), &ids, yes)
        }
        RulesCommand::Candidate { id, percent, halt, promote, reach } => {
            let step = match (percent, halt, promote) {
                (Some(percent), ..) => Some(("advance", json!({ "percent": percent }))),
                (None, true, _) => Some(("halt", json!({}))),
                (None, _, true) => Some(("promote", json!({}))),
                (None, false, false) => None,
            };
            entries::candidate(&Server::new(&reach), &id, step)
        }
        RulesCommand::Rollback { id, to, dry_run, reach } => {
            entries::roll_back(&Server::new(&reach), &id, to, dry_run)
        }
        RulesCommand::Apply(args) => apply::apply(&args),
        RulesCommand::Diff { files, prune, json, reach } => {
            apply::diff(&Server::new(&reach), &files, prune, json)
        }
        RulesCommand::Explain(args) => explain::run(&args),
        RulesCommand::Validate { files, json } => validate::run(&files, json),
        RulesCommand::ImportEnvoy {
            files,
            merge_domains,
            all_or_nothing,
            refuse_check_at_limit,
            calendar_months,
        } => {
            let options = ImportOptions {
                merge_domains,
                all_or_nothing,
                refuse_check_at_limit,
                calendar_months,
            };
            import_envoy::run(&files, options)
        }
        RulesCommand::Schema => {
            output::print_json(&tollgate_policy::rule_file_schema())?;
            Ok(Outcome::Done)
        }
    }
}
