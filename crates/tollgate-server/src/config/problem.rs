//! What is wrong with a configuration, and where it was said.

use std::fmt;

/// Where a setting was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In a file.
    File {
        /// The path as given.
        name: String,
        /// The line, from 1; 0 where the whole file is meant.
        line: u64,
        /// The column, from 1.
        column: u64,
    },
    /// By an environment variable.
    Variable(String),
    /// By a flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line, column } if *line > 0 => {
                write!(f, "{name}:{line}:{column}")
            }
            Self::File { name, .. } | Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One thing that is wrong, with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Where it was said.
    pub origin: Origin,
    /// The key, such as `limits.max_body_bytes`.
    pub key: Option<String>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigProblems(pub Vec<ConfigProblem>);

impl ConfigProblems {
    pub(super) fn add(&mut self, origin: &Origin, key: Option<&str>, message: impl Into<String>) {
        self.0.push(ConfigProblem {
            origin: origin.clone(),
            key: key.map(str::to_owned),
            message: message.into(),
        });
    }
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigProblems {}
