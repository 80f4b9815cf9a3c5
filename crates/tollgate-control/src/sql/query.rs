//! A statement with its parameters, and the columns of a row.

use std::fmt::Write;

use serde_json::Value;

use crate::RepositoryError;

/// A parameter.
#[derive(Debug, Clone)]
pub(crate) enum Bind {
    Int(i64),
    Text(String),
}

impl From<i64> for Bind {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<String> for Bind {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<&str> for Bind {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

/// A statement. Its text is made of this crate's own words; what comes from outside is a parameter.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub(crate) sql: String,
    pub(crate) binds: Vec<Bind>,
}

impl Query {
    pub(crate) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), binds: Vec::new() }
    }

    /// With the next parameter, which the text has a `$n` for already.
    pub(crate) fn bind(mut self, value: impl Into<Bind>) -> Self {
        self.binds.push(value.into());
        self
    }

    /// Adds text.
    pub(crate) fn push(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// Adds text that ends with a parameter.
    pub(crate) fn push_bind(&mut self, sql: &str, value: impl Into<Bind>) {
        self.binds.push(value.into());
        // Writing to a string does not fail.
        let _ = write!(self.sql, "{sql}${}", self.binds.len());
    }

    /// Adds a condition, if there is a value for it.
    pub(crate) fn push_if(&mut self, sql: &str, value: Option<impl Into<Bind>>) {
        if let Some(value) = value {
            self.push_bind(sql, value);
        }
    }

    /// PostgreSQL's text has no NUL; no database gets any, so that they agree.
    pub(crate) fn check(&self) -> Result<(), RepositoryError> {
        let has_nul = |bind: &Bind| matches!(bind, Bind::Text(text) if text.contains('\0'));
        if self.binds.iter().any(has_nul) { Err(nul()) } else { Ok(()) }
    }
}

/// Text with a NUL character in it.
pub(crate) fn nul() -> RepositoryError {
    RepositoryError::Invalid("text with a NUL character cannot be kept".to_owned())
}

/// A row as the database's driver has it.
pub(crate) trait Row {
    fn int(&self, column: usize) -> Result<Option<i64>, RepositoryError>;
    fn text(&self, column: usize) -> Result<Option<&str>, RepositoryError>;
}

/// Takes the columns of a row one after the other.
pub(crate) struct Columns<'r> {
    row: &'r dyn Row,
    next: usize,
}

impl<'r> Columns<'r> {
    pub(crate) fn new(row: &'r dyn Row) -> Self {
        Self { row, next: 0 }
    }

    fn step(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    fn needed<T>(&self, value: Option<T>) -> Result<T, RepositoryError> {
        let empty = || RepositoryError::Corrupt(format!("column {} is empty", self.next));
        value.ok_or_else(empty)
    }

    pub(crate) fn optional_int(&mut self) -> Result<Option<i64>, RepositoryError> {
        let column = self.step();
        self.row.int(column)
    }

    pub(crate) fn int(&mut self) -> Result<i64, RepositoryError> {
        let value = self.optional_int()?;
        self.needed(value)
    }

    pub(crate) fn optional_text(&mut self) -> Result<Option<String>, RepositoryError> {
        let column = self.step();
        Ok(self.row.text(column)?.map(str::to_owned))
    }

    pub(crate) fn text(&mut self) -> Result<String, RepositoryError> {
        let value = self.optional_text()?;
        self.needed(value)
    }

    pub(crate) fn optional_json(&mut self) -> Result<Option<Value>, RepositoryError> {
        let column = self.step();
        let Some(text) = self.row.text(column)? else { return Ok(None) };
        let value = serde_json::from_str(text);
        value.map(Some).map_err(|error| RepositoryError::Corrupt(format!("not JSON: {error}")))
    }
}
