//! What is wrong with a rule file, and where.

use std::fmt;

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
