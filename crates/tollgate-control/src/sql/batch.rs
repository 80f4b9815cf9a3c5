//! Many rows as one parameter.

use std::fmt::Write;

use super::driver::Dialect;
use super::query::{Query, nul};
use crate::RepositoryError;

/// A column that is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// `TEXT`, `BIGINT` or `BOOLEAN`.
    pub(crate) of_type: &'static str,
}

pub(crate) const fn text(name: &'static str) -> Column {
    Column { name, of_type: "TEXT" }
}

pub(crate) const fn int(name: &'static str) -> Column {
    Column { name, of_type: "BIGINT" }
}

pub(crate) const fn boolean(name: &'static str) -> Column {
    Column { name, of_type: "BOOLEAN" }
}

/// A value of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cell<'a> {
    Null,
    Int(i64),
    Text(&'a str),
}

impl From<i64> for Cell<'_> {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(value)
    }
}

impl<'a, T: Into<Cell<'a>>> From<Option<T>> for Cell<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Rows as a JSON array of arrays.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    json: String,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self { json: "[".to_owned() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.json.len() == 1
    }

    pub(crate) fn row(&mut self, cells: &[Cell<'_>]) -> Result<(), RepositoryError> {
        if !self.is_empty() {
            self.json.push(',');
        }
        for (index, cell) in cells.iter().enumerate() {
            self.json.push(if index == 0 { '[' } else { ',' });
            match cell {
                Cell::Null => self.json.push_str("null"),
                // Writing to a string does not fail.
                Cell::Int(value) => drop(write!(self.json, "{value}")),
                Cell::Text(value) => quote(&mut self.json, value)?,
            }
        }
        self.json.push(']');
        Ok(())
    }

    /// The parameter.
    fn finish(mut self) -> String {
        self.json.push(']');
        self.json
    }

    /// `INSERT` of all rows. `conflict` is what follows.
    pub(crate) fn insert(
        self,
        dialect: &Dialect,
        table: &str,
        columns: &[Column],
        conflict: &str,
    ) -> Query {
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        let value = |(index, column): (usize, &Column)| {
            format!("CAST(rows.value->>{index} AS {})", column.of_type)
        };
        let values: Vec<String> = columns.iter().enumerate().map(value).collect();
        // Without a condition, SQLite takes `ON` for that of a join.
        let sql = format!(
            "INSERT INTO {table} ({}) SELECT {} FROM {} WHERE true {conflict}",
            names.join(", "),
            values.join(", "),
            dialect.rows,
        );
        Query::new(sql).bind(self.finish())
    }

    /// A statement that ends with those rows whose column is the first of one in the batch.
    pub(crate) fn select_in(
        self,
        dialect: &Dialect,
        statement: &str,
        column: Column,
        rest: &str,
    ) -> Query {
        let Column { name, of_type } = column;
        let rows = dialect.rows;
        let sql = format!(
            "{statement} WHERE {name} IN (SELECT CAST(rows.value->>0 AS {of_type}) FROM {rows}) {rest}"
        );
        Query::new(sql).bind(self.finish())
    }
}

fn quote(json: &mut String, text: &str) -> Result<(), RepositoryError> {
    if text.contains('\0') {
        return Err(nul());
    }
    let quoted = serde_json::to_string(text);
    json.push_str(&quoted.map_err(|error| RepositoryError::Invalid(error.to_string()))?);
    Ok(())
}
