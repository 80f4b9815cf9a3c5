//! The references under `docs/reference`, generated from what the binary really knows.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};
use tollgate_server::config::{DEFAULT_FILE, variables};

use crate::args::Args;

const HEADER: &str = "<!-- Generated: UPDATE_GOLDEN=1 cargo test -p tollgate-cli -->\n\n";

/// Every command with its help.
pub(crate) fn commands() -> String {
    let mut text = format!("{HEADER}# Command line\n");
    // The width of the terminal must not show in the reference.
    let mut command = Args::command().term_width(100);
    command.build();
    add(&mut text, &mut command, "");
    text
}

fn add(text: &mut String, command: &mut Command, parent: &str) {
    let name = if parent.is_empty() {
        command.get_name().to_owned()
    } else {
        format!("{parent} {}", command.get_name())
    };
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(text, "\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    for inner in command.get_subcommands_mut() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            add(text, inner, &name);
        }
    }
}

/// The default file, and the variable of every key.
pub(crate) fn config() -> String {
    let mut text = format!(
        "{HEADER}# Configuration\n\nThe default file, which is the defaults \
         (`tollgate config default` prints it):\n\n```yaml\n{DEFAULT_FILE}```\n\n\
         ## Environment variables\n\n| variable | key |\n|---|---|\n"
    );
    for (variable, key) in variables() {
        let _ = writeln!(text, "| `{variable}` | `{key}` |");
    }
    text.push_str(
        "\nThese are no settings: `TOLLGATE_CONFIG` names the configuration file, \
         `TOLLGATE_URL`, `TOLLGATE_TOKEN`,\n`TOLLGATE_CA`, `TOLLGATE_CERT` and `TOLLGATE_KEY` are \
         for commands that ask a server, and\n`TOLLGATE_ADMIN_TOKEN` is the first admin token. Any \
         other `TOLLGATE_` variable gets a warning.\n",
    );
    text
}
