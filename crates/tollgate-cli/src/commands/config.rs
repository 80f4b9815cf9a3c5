//! `tollgate config`

use serde_json::{Value, json};
use tollgate_server::config::{ConfigProblem, ConfigProblems, DEFAULT_FILE, Origin};

use crate::args::{ConfigArgs, ConfigCommand};
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::ready::{Ready, warnings};

pub(super) fn run(command: ConfigCommand) -> Ended {
    match command {
        ConfigCommand::Check { config, skip_files, json } => check(&config, skip_files, json),
        ConfigCommand::Show { config, json } => show(&config, json),
        ConfigCommand::Migrate { config } => migrate(&config),
        ConfigCommand::Default => {
            output::print(DEFAULT_FILE)?;
            Ok(Outcome::Done)
        }
    }
}

fn check(args: &ConfigArgs, skip_files: bool, json: bool) -> Ended {
    let mut warnings = warnings();
    let problems = match Ready::load(args) {
        Err(problems) => problems,
        Ok(_) if skip_files => ConfigProblems::default(),
        Ok(ready) => {
            let found = tollgate_server::check_files(&ready.config);
            warnings.extend(found.warnings);
            ConfigProblems(found.problems)
        }
    };
    let is_fine = problems.0.is_empty();
    if json {
        let problems: Vec<Value> = problems.0.iter().map(problem_json).collect();
        let found = json!({ "ok": is_fine, "problems": problems, "warnings": warnings });
        output::print_json(&found)?;
    } else {
        say(&problems, &warnings)?;
    }
    Ok(if is_fine { Outcome::Done } else { Outcome::Wrong })
}

fn say(problems: &ConfigProblems, warnings: &[String]) -> std::io::Result<()> {
    for warning in warnings {
        output::warn(warning)?;
    }
    if problems.0.is_empty() {
        output::print("ok\n")
    } else {
        output::print(&format!("{problems}\n"))
    }
}

fn show(args: &ConfigArgs, json: bool) -> Ended {
    let Ready { config, warnings } = Ready::require(args)?;
    for warning in warnings {
        output::warn(&warning)?;
    }
    if json {
        output::print_json(&config.to_json())?;
    } else {
        output::print(&config.to_yaml())?;
    }
    Ok(Outcome::Done)
}

fn migrate(args: &ConfigArgs) -> Ended {
    let Ready { config, warnings } = Ready::require(args)?;
    for warning in warnings {
        output::warn(&warning)?;
    }
    let version = tollgate_server::migrate(&config).map_err(anyhow::Error::from)?;
    let none = || anyhow::anyhow!("the configuration gives this node no database");
    let version = version.ok_or_else(none).map_err(Failure::Usage)?;
    output::print(&format!("the schema is up to date: version {version}\n"))?;
    Ok(Outcome::Done)
}

fn problem_json(problem: &ConfigProblem) -> Value {
    let place = match &problem.origin {
        Origin::File { line, column, .. } if *line > 0 => Some((line, column)),
        _ => None,
    };
    json!({
        "origin": problem.origin.to_string(),
        "line": place.map(|(line, _)| line),
        "column": place.map(|(_, column)| column),
        "key": problem.key,
        "message": problem.message,
    })
}
