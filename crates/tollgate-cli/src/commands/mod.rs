//! What the binary does, one module for each command.

mod check;
mod config;
mod rules;
mod serve;

use clap::CommandFactory as _;

use crate::args::{Args, Command};
use crate::failure::{Ended, Outcome};
use crate::{output, reference};

/// Carries out a command.
pub(crate) fn run(args: Args) -> Ended {
    match args.command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Rules(command) => rules::run(command),
        Command::Config(command) => config::run(command),
        Command::Completions { shell } => completions(shell),
        Command::HelpMarkdown => print(&reference::commands()),
        Command::ConfigMarkdown => print(&reference::config()),
    }
}

fn completions(shell: clap_complete::Shell) -> Ended {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "tollgate", &mut script);
    print(&String::from_utf8_lossy(&script))
}

fn print(text: &str) -> Ended {
    output::print(text)?;
    Ok(Outcome::Done)
}
