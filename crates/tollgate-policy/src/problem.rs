//! What is wrong with a rule file, and where.

use std::fmt;

use crate::node::Spot;

/// One thing that is wrong, with its place and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The name of the file or other source.
    pub source: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// The rule: its id, or `#n` (counted from 1) where it has none.
    pub rule: Option<String>,
    /// The field, as a path such as `limits[1].window`.
    pub field: Option<String>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.source, self.line, self.column)?;
        match &self.rule {
            Some(rule) if rule.starts_with('#') => write!(f, "rule {rule} ")?,
            Some(rule) => write!(f, "rule {rule:?} ")?,
            None => {}
        }
        match &self.field {
            Some(field) => write!(f, "field {field}: {}", self.message),
            None if self.rule.is_some() => write!(f, "{}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Everything that is wrong with a rule file, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
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

impl std::error::Error for Problems {}

/// The most problems that are kept: a file of another kind altogether would have one per line.
pub const MAX_PROBLEMS: usize = 1_000;

/// Collects problems while a file is read and checked.
#[derive(Debug)]
pub(crate) struct Report {
    source: String,
    /// The rule that is being read or checked.
    pub(crate) rule: Option<String>,
    problems: Vec<Problem>,
    /// How many of them are values of a wrong type, which leave nothing to check.
    pub(crate) wrong_types: usize,
}

impl Report {
    pub(crate) fn new(source: &str) -> Self {
        Self { source: source.to_owned(), rule: None, problems: Vec::new(), wrong_types: 0 }
    }

    pub(crate) fn add(&mut self, at: Spot, field: Option<&str>, message: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem {
                source: self.source.clone(),
                line: at.line as usize,
                column: at.column as usize,
                rule: self.rule.clone(),
                field: field.map(str::to_owned),
                message: message.into(),
            });
        }
    }

    /// A problem in another file than the one that the report is about.
    pub(crate) fn add_in(&mut self, source: &str, at: Spot, message: impl Into<String>) {
        let own = std::mem::replace(&mut self.source, source.to_owned());
        self.add(at, None, message);
        self.source = own;
    }

    /// A problem of a value that has the wrong type.
    pub(crate) fn add_wrong_type(&mut self, at: Spot, field: Option<&str>, message: String) {
        self.wrong_types += 1;
        self.add(at, field, message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// The problems in the order of the file.
    pub(crate) fn finish(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        self.problems
    }
}
