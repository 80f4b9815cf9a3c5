//! The `tollgate` binary: flags as typed ([`args`]) become something ready ([`ready`]), which a
//! command carries out.

mod args;
mod ask;
mod client;
mod commands;
mod failure;
mod logging;
mod output;
mod ready;
mod reference;
mod server;
mod value;
mod when;
mod yaml;

use std::process::ExitCode;

use clap::Parser as _;

use failure::{Failure, Outcome};
use tollgate_server::EarlySignals;

/// Small allocations from many threads are most of what a decision costs beside the decision.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything else, so that a signal ends a node with exit code 0 however early it comes.
    let signals = is_service().then(EarlySignals::install).transpose();
    // Clap exits by itself with 2 on wrong usage, and with 0 after help and version.
    let args = args::Args::parse();
    let ended = signals.map_err(|error| Failure::Failed(error.into()));
    match ended.and_then(|signals| commands::run(args, signals)) {
        Ok(outcome) => outcome.into(),
        // The reader of our output has closed it early, as `head` does.
        Err(failure) if failure.is_closed_pipe() => Outcome::Done.into(),
        Err(failure) => {
            failure.print();
            failure.into()
        }
    }
}

/// Whether the command is one that serves until a signal comes; the others end as the system ends them.
fn is_service() -> bool {
    let services = ["serve", "gateway", "demo"];
    std::env::args_os().nth(1).is_some_and(|command| services.iter().any(|one| command == *one))
}
