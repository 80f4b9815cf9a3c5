//! Asks the one at the terminal.

use std::io::{self, BufRead as _, IsTerminal as _};

use anyhow::anyhow;

use crate::failure::Failure;
use crate::output;

/// Whether to go on: yes if that was said by a flag, else what is answered.
pub(crate) fn confirm(question: &str, yes: bool) -> Result<bool, Failure> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(anyhow!(
            "there is no terminal to ask at; pass --yes to go on without asking"
        )));
    }
    output::print_to(&mut io::stderr(), &format!("{question} [y/N] "))?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
