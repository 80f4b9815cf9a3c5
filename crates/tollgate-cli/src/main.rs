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

use failure::Outcome;

/// Small allocations from many threads are most of what a decision costs beside the decision.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Clap exits by itself with 2 on wrong usage, and with 0 after help and version.
    let args = args::Args::parse();
    match commands::run(args) {
        Ok(outcome) => outcome.into(),
        // The reader of our output has closed it early, as `head` does.
        Err(failure) if failure.is_closed_pipe() => Outcome::Done.into(),
        Err(failure) => {
            failure.print();
            failure.into()
        }
    }
}
