//! Which table holds which kind of entry, and how an entry becomes a row and a row an entry.

use serde_json::{Value, json};

use super::batch::{Cell, Column, boolean, int, text};
use super::query::Columns;
use crate::{Entry, Kind, RepositoryError, Stamp, tier_bucket};

/// The longest id. PostgreSQL's indexes take rows of up to 2.7 kB.
pub(crate) const MAX_ID_BYTES: usize = 1024;

/// The table of a kind.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The column of the id.
    pub(crate) id: &'static str,
    /// Whether there is a column `body`. If not, the columns say it all.
    pub(crate) has_body: bool,
    /// Columns that repeat fields of the body, of the same name, for people and for indexes.
    pub(crate) fields: &'static [Column],
}

/// Columns that every table has, after the id and the body.
const COMMON: [Column; 6] = [
    int("version"),
    text("tenant_id"),
    int("created_at"),
    text("created_by"),
    int("updated_at"),
    text("updated_by"),
];

const TIER: &[Column] = &[boolean("is_default")];
const RULE: &[Column] = &[text("name"), boolean("is_active"), int("priority")];
const LIST: &[Column] =
    &[text("identifier_type"), text("identifier"), text("reason"), text("expires_at")];
const CLIENT_TIER: &[Column] = &[text("identifier_type"), text("identifier"), text("tier")];
const GRANT: &[Column] =
    &[text("rule_id"), text("identifier_type"), text("identifier"), text("expires_at")];
const KEY: &[Column] =
    &[text("name"), text("owner"), text("digest"), text("expires_at"), text("disabled_at")];
const TOKEN: &[Column] = &[text("name"), text("role"), text("digest")];

impl Table {
    pub(crate) const fn of(kind: Kind) -> Self {
        let (name, id, fields) = match kind {
            Kind::Tier => ("user_tiers", "name", TIER),
            Kind::Rule => ("rate_limit_rules", "rule_id", RULE),
            Kind::Allow => ("rate_limit_whitelist", "id", LIST),
            Kind::Deny => ("rate_limit_blacklist", "id", LIST),
            Kind::ClientTier => ("client_tiers", "id", CLIENT_TIER),
            Kind::Grant => ("rate_limit_grants", "grant_id", GRANT),
            Kind::Setting => ("settings", "name", &[] as &[Column]),
            Kind::Key => ("api_keys", "id", KEY),
            Kind::Token => ("admin_tokens", "token_id", TOKEN),
            // Only records of it are kept.
            Kind::Usage => ("admin_audit_log", "id", &[] as &[Column]),
        };
        Self { name, id, has_body: !matches!(kind, Kind::ClientTier), fields }
    }

    /// `SELECT` of entries, for [`read_entry`].
    pub(crate) fn select(&self) -> String {
        let mut names = vec![self.id];
        if self.has_body {
            names.push("body");
        } else {
            names.extend(self.fields.iter().map(|column| column.name));
        }
        names.extend(COMMON.iter().map(|column| column.name));
        format!("SELECT {} FROM {}", names.join(", "), self.name)
    }

    /// The columns that [`cells`](Self::cells) fills.
    pub(crate) fn columns(&self) -> Vec<Column> {
        let mut columns = vec![text(self.id)];
        columns.push(if self.has_body { text("body") } else { int("bucket") });
        columns.extend(COMMON);
        columns.extend(self.fields);
        columns
    }

    /// The row of an entry.
    pub(crate) fn cells<'a>(&self, row: &NewRow<'a>) -> Result<Vec<Cell<'a>>, RepositoryError> {
        let NewRow { id, body, json, version, tenant, at, by } = *row;
        let second = if self.has_body {
            json.into()
        } else {
            let unnamed = || RepositoryError::Invalid(format!("{id:?} names no client in {body}"));
            client_bucket(body).ok_or_else(unnamed)?.into()
        };
        let (at, by): (Cell<'a>, Cell<'a>) = (at.into(), by.into());
        let mut cells = vec![id.into(), second, version.into(), tenant.into(), at, by, at, by];
        cells.extend(self.fields.iter().map(|column| field(column, body)));
        Ok(cells)
    }

    /// What `INSERT` does where there is such an entry: everything is new but its making.
    pub(crate) fn on_conflict(&self) -> String {
        let columns = self.columns();
        let is_new = |column: &&Column| {
            column.name != self.id && !matches!(column.name, "created_at" | "created_by")
        };
        let sets: Vec<String> = columns
            .iter()
            .filter(is_new)
            .map(|column| format!("{0} = excluded.{0}", column.name))
            .collect();
        format!("ON CONFLICT ({}) DO UPDATE SET {}", self.id, sets.join(", "))
    }
}

/// An entry that is to be written.
#[derive(Clone, Copy)]
pub(crate) struct NewRow<'a> {
    pub(crate) id: &'a str,
    pub(crate) body: &'a Value,
    /// The body as text.
    pub(crate) json: &'a str,
    pub(crate) version: i64,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) at: i64,
    pub(crate) by: &'a str,
}

/// A field of a body, if it is of its column's type.
fn field<'a>(column: &Column, body: &'a Value) -> Cell<'a> {
    match (column.of_type, body.get(column.name)) {
        ("TEXT", Some(Value::String(value))) => value.as_str().into(),
        ("TEXT" | "BIGINT", Some(Value::Number(value))) => value.as_i64().into(),
        ("BOOLEAN", Some(Value::Bool(value))) => i64::from(*value).into(),
        _ => Cell::Null,
    }
}

/// The bucket of a client.
pub(crate) fn client_bucket(body: &Value) -> Option<i64> {
    let part = |name: &str| body.get(name).and_then(Value::as_str);
    Some(i64::from(tier_bucket(part("identifier_type")?, part("identifier")?)))
}

/// The entry in a row of [`Table::select`].
pub(crate) fn read_entry(kind: Kind, row: &mut Columns<'_>) -> Result<Entry, RepositoryError> {
    let id = row.text()?;
    let body = if Table::of(kind).has_body {
        row.optional_json()?.unwrap_or_default()
    } else {
        json!({"identifier_type": row.text()?, "identifier": row.text()?, "tier": row.text()?})
    };
    Ok(Entry {
        kind,
        id,
        body,
        version: row.int()?,
        tenant: row.optional_text()?,
        created: Stamp { at: row.int()?, by: row.text()? },
        updated: Stamp { at: row.int()?, by: row.text()? },
    })
}
