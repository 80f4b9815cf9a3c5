//! What the binary does, one module for each command.

mod audit;
mod audit_chain;
mod backtest;
mod bench;
mod check;
mod config;
mod decisions;
mod demo;
mod grants;
mod keys;
mod lists;
mod queue;
mod reservations;
mod rules;
mod serve;
mod settings;
mod spend;
mod tiers;
mod tokens;
mod top;
mod usage;

use clap::CommandFactory as _;
use tollgate_server::EarlySignals;

use crate::args::{Args, Command};
use crate::failure::{Ended, Outcome};
use crate::{output, reference};

/// Carries out a command.
pub(crate) fn run(args: Args, signals: Option<EarlySignals>) -> Ended {
    match args.command {
        Command::Serve(args) => serve::run(&args, signals),
        Command::Gateway(args) => serve::run_gateway(&args, signals),
        Command::Demo(args) => demo::run(&args, signals),
        Command::Check(args) => check::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Backtest(args) => backtest::run(&args),
        Command::Rules(command) => rules::run(command),
        Command::Lists(command) => lists::run(command),
        Command::Tiers(command) => tiers::run(command),
        Command::Grants(command) => grants::run(command),
        Command::Keys(command) => keys::run(command),
        Command::Usage(command) => usage::run(command),
        Command::Spend(args) => spend::run(&args),
        Command::Slots(command) => reservations::slots(command),
        Command::Reserve(args) => reservations::reserve(&args),
        Command::Settle(args) => reservations::settle(&args),
        Command::Release(args) => reservations::release(&args),
        Command::Renew(args) => reservations::renew(&args),
        Command::Queue(command) => queue::run(command),
        Command::Health(args) => top::health(&args),
        Command::Top(args) => top::run(&args),
        Command::LogLevel(args) => top::log_level(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Decisions(args) => decisions::run(&args),
        Command::Token(command) => tokens::run(command),
        Command::Settings(command) => settings::run(command),
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
