//! How a command ends, and its exit code: 0 done, 1 refused or failed, 2 wrong usage or
//! configuration.

use std::io;
use std::process::ExitCode;

use crate::output::{self, Colour};

/// How a command ended that did what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All is well.
    Done,
    /// The answer is no.
    Refused,
    /// What it was given to check is wrong, and it has said how.
    Wrong,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Refused => Self::from(1),
            Outcome::Wrong => Self::from(2),
        }
    }
}

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was given is wrong: flags, configuration, rules.
    Usage(anyhow::Error),
    /// Something else went wrong.
    Failed(anyhow::Error),
}

/// How every command ends.
pub(crate) type Ended = Result<Outcome, Failure>;

impl Failure {
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::Usage(error.into())
    }

    pub(crate) const fn error(&self) -> &anyhow::Error {
        match self {
            Self::Usage(error) | Self::Failed(error) => error,
        }
    }

    pub(crate) fn is_closed_pipe(&self) -> bool {
        let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        self.error().downcast_ref().is_some_and(is_closed)
    }

    /// Says on standard error what went wrong, with all its causes.
    pub(crate) fn print(&self) {
        let label = output::coloured("error:", Colour::Red, &io::stderr());
        // Nothing is left to say it to if standard error is closed too.
        let _ = output::print_to(&mut io::stderr(), &format!("{label} {:#}\n", self.error()));
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Usage(_) => Self::from(2),
            Failure::Failed(_) => Self::from(1),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.into())
    }
}
