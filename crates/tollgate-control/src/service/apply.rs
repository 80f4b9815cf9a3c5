//! A whole document at once: what it says is made so, in one change.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::entries::{Act, action, own_rule};
use super::{Changed, Control, Current, Precondition};
use crate::document::{ENFORCEMENT, SETTINGS};
use crate::draft::{self, Draft};
use crate::{Actor, ControlError, Entry, Kind, Millis, Write};

/// The parts of a document, and what they are.
const PARTS: [(&str, Kind); 5] = [
    ("rules", Kind::Rule),
    ("allow_list", Kind::Allow),
    ("deny_list", Kind::Deny),
    ("tiers", Kind::Tier),
    ("grants", Kind::Grant),
];

/// What applying a document does to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// It is made.
    Create,
    /// It is changed.
    Update,
    /// It is taken away.
    Delete,
}

/// One step of applying a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// What happens.
    pub step: StepKind,
    /// To what kind of entry.
    pub kind: Kind,
    /// To which.
    pub id: String,
    /// What it was.
    pub before: Option<Value>,
    /// What it will be.
    pub after: Option<Value>,
}

/// What applying a document did, or would do.
#[derive(Debug)]
pub struct Applied {
    /// Step by step, by kind and id.
    pub steps: Vec<Step>,
    /// How many entries are as they should be.
    pub unchanged: usize,
    /// The change.
    pub changed: Changed,
}

impl Control {
    /// Makes the set as the document says. Entries that it does not name stay, unless `prune` takes away
    /// those of the kinds that it has a part for. Rules of tenants' own admins are never pruned.
    pub async fn apply(
        &self,
        actor: &Actor,
        document: Value,
        prune: bool,
        is_dry: bool,
        precondition: &Precondition,
        now: Millis,
    ) -> Result<Applied, ControlError> {
        let wanted = self.read(document, now)?;
        let plan = |current: &Current| {
            precondition.check(Some(current.revision()))?;
            self.plan(current, &wanted, prune)
        };
        let changed = self.change(actor, is_dry, plan).await?;
        let writes = self.plan(&changed.before, &wanted, prune)?;
        let unchanged = wanted.drafts.len()
            - writes.iter().filter(|write| write.body.is_some()).count().min(wanted.drafts.len());
        let old = |write: &Write| {
            changed.before.entry(write.kind, &write.id).map(|entry| entry.body.clone())
        };
        let steps = writes.iter().map(|write| {
            let before = old(write);
            let step = match (&before, &write.body) {
                (_, None) => StepKind::Delete,
                (None, Some(_)) => StepKind::Create,
                (Some(_), Some(_)) => StepKind::Update,
            };
            Step { step, kind: write.kind, id: write.id.clone(), before, after: write.body.clone() }
        });
        Ok(Applied { steps: steps.collect(), unchanged, changed })
    }

    fn read(&self, document: Value, now: Millis) -> Result<Wanted, ControlError> {
        let Value::Object(mut parts) = document else {
            return Err(ControlError::invalid("body", "must be a rule file: a JSON object"));
        };
        let mut wanted = Wanted::default();
        for (name, kind) in PARTS {
            let Some(part) = parts.remove(name) else { continue };
            wanted.kinds.push(kind);
            let Value::Array(items) = part else {
                return Err(ControlError::invalid(name, "must be a list"));
            };
            for (number, item) in items.into_iter().enumerate() {
                let draft = self
                    .draft(kind, item, now)
                    .map_err(|error| placed(error, &format!("{name}[{number}]")))?;
                let place = (kind, draft.id.clone());
                if wanted.drafts.insert(place, draft).is_some() {
                    let field = format!("{name}[{number}]");
                    return Err(ControlError::invalid(&field, "is there twice"));
                }
            }
        }
        for name in SETTINGS {
            if let Some(body) = parts.remove(name) {
                if name == ENFORCEMENT && !matches!(body.as_str(), Some("on" | "shadow" | "off")) {
                    return Err(ControlError::invalid(name, "must be on, shadow or off"));
                }
                let draft = Draft { kind: Kind::Setting, id: name.to_owned(), body };
                wanted.drafts.insert((Kind::Setting, name.to_owned()), draft);
            }
        }
        match parts.keys().next() {
            Some(name) if name == "client_tiers" => {
                let message = "are put apart, for there may be many: POST client-tiers";
                Err(ControlError::invalid(name, message))
            }
            Some(name) => {
                let known: Vec<&str> =
                    PARTS.iter().map(|(name, _)| *name).chain(SETTINGS).collect();
                let message = format!("there is no such part; there are {}", known.join(", "));
                Err(ControlError::invalid(name, message))
            }
            None => Ok(wanted),
        }
    }

    /// An item of a part, in the words of rule files or in those of the API.
    fn draft(&self, kind: Kind, item: Value, now: Millis) -> Result<Draft, ControlError> {
        let hide = |key: &str| self.hide_key(key);
        match kind {
            Kind::Rule => draft::rule(item),
            Kind::Tier => match item {
                Value::String(name) => draft::tier(serde_json::json!({ "name": name })),
                item => draft::tier(item),
            },
            Kind::Grant => draft::grant(renamed(item), now),
            _ => draft::listed(kind, renamed(item), now, &hide),
        }
    }

    fn plan(
        &self,
        current: &Current,
        wanted: &Wanted,
        prune: bool,
    ) -> Result<Vec<Write>, ControlError> {
        let mut writes = Vec::new();
        for ((kind, id), draft) in &wanted.drafts {
            let old = current.entry(*kind, id).map(|old| &**old);
            let mut draft = draft.clone();
            let tenant = match kind {
                Kind::Rule => own_rule(&mut draft, old, None)?,
                _ => None,
            };
            if old.is_some_and(|old| old.body == draft.body) {
                continue;
            }
            let act = if old.is_some() { Act::Update } else { Act::Create };
            let place = (*kind, id.clone());
            writes.push(self.write(action(*kind, act), place, old, Some(draft.body), tenant));
        }
        if prune {
            let is_spare = |entry: &&Arc<Entry>| {
                wanted.kinds.contains(&entry.kind)
                    && entry.tenant.is_none()
                    && !wanted.drafts.contains_key(&(entry.kind, entry.id.clone()))
            };
            for entry in current.entries.values().filter(is_spare) {
                let place = (entry.kind, entry.id.clone());
                let action = action(entry.kind, Act::Delete);
                writes.push(self.write(action, place, Some(entry), None, None));
            }
        }
        Ok(writes)
    }
}

/// What a document asks for.
#[derive(Default)]
struct Wanted {
    drafts: BTreeMap<(Kind, String), Draft>,
    /// The kinds that it has a part for.
    kinds: Vec<Kind>,
}

/// `type` and `value`, or both in one string, as rule files have them, in the words of the API.
fn renamed(item: Value) -> Value {
    match item {
        Value::String(both) => match both.split_once(':') {
            Some((kind, name)) => {
                serde_json::json!({ "identifier_type": kind, "identifier": name })
            }
            None => serde_json::json!({ "identifier": both }),
        },
        Value::Object(fields) => {
            let rename = |(name, value): (String, Value)| {
                let name = match name.as_str() {
                    "type" => "identifier_type".to_owned(),
                    "value" => "identifier".to_owned(),
                    _ => name,
                };
                (name, value)
            };
            Value::Object(fields.into_iter().map(rename).collect::<Map<_, _>>())
        }
        other => other,
    }
}

fn placed(error: ControlError, place: &str) -> ControlError {
    match error {
        ControlError::Invalid(mut problems) => {
            for problem in &mut problems {
                problem.field = Some(match problem.field.take() {
                    Some(field) if field != "body" => format!("{place}.{field}"),
                    _ => place.to_owned(),
                });
            }
            ControlError::Invalid(problems)
        }
        other => other,
    }
}
