//! Rules, lists and plans of a node that has them from a file, in the form of those of a database.

use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::{Map, Value, json};
use tollgate_control::draft::{self, Draft};
use tollgate_control::{Entry, EntryFilter, Kind, Millis, Page, Stamp};
use tollgate_policy::RuleSet;

use super::respond::{AdminError, Obstacle};
use super::{Admin, Asked};
use crate::reload;

impl Admin {
    /// The entries of the rule file that this node goes by, by id; none if its rules are in the database.
    pub(super) async fn file_entries(
        &self,
        asked: &Asked,
        kind: Kind,
    ) -> Result<Option<Vec<Entry>>, AdminError> {
        let Some(path) =
            self.config.rules.clone().filter(|_| kind.is_in_set() && kind != Kind::Key)
        else {
            return Ok(None);
        };
        let (file, in_force) = (path.clone(), self.engine.rules().set.digest());
        // A large file takes a while to read and to check.
        let read = tokio::task::spawn_blocking(move || read(&file, in_force)).await;
        let Some((document, changed_at)) = read.ok().flatten() else {
            let message = format!(
                "{} cannot be read as it is now; the rules in force are those of its last good content",
                path.display()
            );
            return Err(AdminError::Conflict(Obstacle::RulesFromFile, message));
        };
        let stamp = Stamp { at: changed_at, by: "file".to_owned() };
        let drafts = drafts(&document, kind, asked.now, &|key: &str| self.control.hide_key(key));
        let mut entries: Vec<Entry> = drafts
            .into_iter()
            .map(|Draft { kind, id, body }| Entry {
                kind,
                id,
                body,
                version: 1,
                tenant: None,
                created: stamp.clone(),
                updated: stamp.clone(),
            })
            .collect();
        entries.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        Ok(Some(entries))
    }
}

/// The file as JSON and when it was changed, if its rules are those in force.
fn read(path: &Path, in_force: u64) -> Option<(Value, Millis)> {
    let text = reload::read_again(path).ok()?;
    let set = RuleSet::from_yaml(&text, &path.display().to_string()).ok()?;
    if set.digest() != in_force {
        return None;
    }
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let document = serde_saphyr::from_str_with_options(&text, options).ok()?;
    let changed = std::fs::metadata(path).and_then(|file| file.modified()).ok()?;
    let changed = changed.duration_since(UNIX_EPOCH).ok()?.as_millis();
    Some((document, i64::try_from(changed).ok()?))
}

/// What the file has of a kind. An entry that the admin API could not hold is left out.
fn drafts(
    document: &Value,
    kind: Kind,
    now: Millis,
    hide_key: &dyn Fn(&str) -> String,
) -> Vec<Draft> {
    let part = match kind {
        Kind::Rule => "rules",
        Kind::Allow => "allow_list",
        Kind::Deny => "deny_list",
        Kind::Tier => "tiers",
        Kind::ClientTier => "client_tiers",
        Kind::Grant => "grants",
        Kind::Setting | Kind::Key | Kind::Token | Kind::Usage => return Vec::new(),
    };
    let items = document.get(part).and_then(Value::as_array);
    let draft = |item: &Value| match kind {
        Kind::Rule => draft::rule(item.clone()),
        Kind::Tier => draft::tier(named(item)),
        Kind::ClientTier => draft::client_tier(client(item), hide_key),
        Kind::Grant => draft::grant(client(item), now),
        _ => draft::listed(kind, client(item), now, hide_key),
    };
    items.into_iter().flatten().filter_map(|item| draft(item).ok()).collect()
}

/// A tier can be its name alone.
fn named(item: &Value) -> Value {
    match item {
        Value::String(name) => json!({ "name": name }),
        other => other.clone(),
    }
}

/// `type` and `value` of a file are `identifier_type` and `identifier`; a text is both: `ip:10.0.0.0/8`.
fn client(item: &Value) -> Value {
    match item {
        Value::String(text) => {
            let (kind, name) = text.split_once(':').unwrap_or(("", text));
            json!({ "identifier_type": kind, "identifier": name })
        }
        Value::Object(fields) => {
            let renamed = fields.iter().map(|(name, value)| {
                let name = match name.as_str() {
                    "type" => "identifier_type",
                    "value" => "identifier",
                    other => other,
                };
                (name.to_owned(), value.clone())
            });
            Value::Object(renamed.collect::<Map<String, Value>>())
        }
        other => other.clone(),
    }
}

/// A page of entries, as a database would select it.
pub(super) fn page_of(entries: Vec<Entry>, filter: &EntryFilter, page: &Page) -> Vec<Entry> {
    let tier = |entry: &Entry| entry.body.get("tier").and_then(Value::as_str).map(str::to_owned);
    entries
        .into_iter()
        .filter(|entry| page.after.as_ref().is_none_or(|after| entry.id > *after))
        .filter(|entry| filter.prefix.as_ref().is_none_or(|start| entry.id.starts_with(start)))
        .filter(|entry| filter.tenant.is_none() || entry.tenant == filter.tenant)
        .filter(|entry| filter.tier.is_none() || tier(entry) == filter.tier)
        .take(page.limit as usize)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_file_is_read() {
        let document = json!({
            "rules": [{ "rule_id": "a", "identifier_type": "ip", "limit": 1, "window": "1s" }],
            "tiers": ["pro", { "name": "free", "is_default": true }],
            "client_tiers": [{ "type": "user_id", "value": "ann", "tier": "pro" }],
            "deny_list": ["ip:10.0.0.0/8", { "type": "user_id", "value": "m", "reason": "r" }],
        });
        let ids = |kind: Kind| -> Vec<String> {
            drafts(&document, kind, 0, &str::to_owned).into_iter().map(|one| one.id).collect()
        };
        assert_eq!(ids(Kind::Rule), ["a"]);
        assert_eq!(ids(Kind::Tier), ["pro", "free"]);
        assert_eq!(ids(Kind::ClientTier), ["user_id:ann"]);
        assert_eq!(ids(Kind::Deny), ["ip:10.0.0.0/8", "user_id:m"]);
        assert!(ids(Kind::Allow).is_empty());
    }
}
