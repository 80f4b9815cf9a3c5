//! Virtual keys: created, listed, changed, rotated, disabled and deleted. A secret is shown once.

use http::StatusCode;
use serde_json::{Map, Value, json};
use tollgate_control::draft::instant;
use tollgate_control::{ControlError, Entry, EntryFilter, Kind, Millis, Precondition};

use super::read::{Query, body, precondition};
use super::respond::{AdminError, Answer};
use super::routes::{KeyCall, PREFIX};
use super::{Admin, Asked, view};

/// Keys that are created at once.
pub(super) const MAX_KEYS_AT_ONCE: usize = 10_000;

impl Admin {
    pub(super) async fn keys(&self, asked: &Asked, call: KeyCall) -> Result<Answer, AdminError> {
        match call {
            KeyCall::List => self.list_keys(asked).await,
            KeyCall::Get => self.get(asked, Kind::Key).await,
            KeyCall::Create => self.create_keys(asked).await,
            KeyCall::Update => {
                let (draft, condition) = (body(&asked.body)?, Self::condition(asked)?);
                let who = (asked.tenant(), &condition);
                let entry = self.control.update_key(&asked.actor, asked.id(), draft, who).await?;
                Ok(shown(&entry, asked.now))
            }
            KeyCall::Rotate => self.rotate_key(asked).await,
            KeyCall::Disable | KeyCall::Enable => {
                let condition = Self::condition(asked)?;
                let (who, is_enabled) = ((asked.tenant(), &condition), call == KeyCall::Enable);
                let (actor, now) = (&asked.actor, asked.now);
                let entry =
                    self.control.switch_key(actor, asked.id(), is_enabled, who, now).await?;
                Ok(shown(&entry, asked.now))
            }
            KeyCall::Delete => {
                let condition = Self::condition(asked)?;
                let who = (asked.tenant(), &condition);
                let changed = self.control.delete_key(&asked.actor, asked.id(), who).await?;
                let revision = changed.after.revision();
                Ok(Answer::ok(json!({
                    "id": asked.id(), "status": "deleted", "revision": revision,
                })))
            }
        }
    }

    fn condition(asked: &Asked) -> Result<Precondition, AdminError> {
        Query::new(&asked.query)?.end()?;
        precondition(&asked.headers)
    }

    async fn list_keys(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let page = query.page()?;
        let filter = EntryFilter {
            prefix: query.take("prefix"),
            tenant: query.take("tenant_id"),
            owner: query.take("owner"),
            name: query.take("name"),
            tier: None,
        };
        query.end()?;
        let own = asked.tenant().map(str::to_owned);
        let filter = EntryFilter { tenant: own.or(filter.tenant.clone()), ..filter };
        let found = self.control.repository().list(Kind::Key, &filter, &page).await?;
        let is_full = found.len() >= page.limit as usize;
        let next = found.last().filter(|_| is_full).map(|last| last.id.clone());
        let items: Vec<Value> = found.iter().map(|entry| view::entry(entry, asked.now)).collect();
        Ok(Answer::ok(view::page(&items, next.as_deref())))
    }

    async fn create_keys(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let mut body = body(&asked.body)?;
        let list = body.get_mut("keys").map(Value::take);
        let is_alone = body.as_object().is_some_and(|fields| fields.len() == 1);
        let (drafts, is_list) = match list {
            None => (vec![body], false),
            Some(Value::Array(list)) if is_alone => (list, true),
            Some(_) => {
                return Err(AdminError::invalid("keys", "must be a list, and the only field"));
            }
        };
        if drafts.is_empty() || drafts.len() > MAX_KEYS_AT_ONCE {
            let message = format!("must have 1 to {MAX_KEYS_AT_ONCE} entries");
            return Err(AdminError::invalid("keys", message));
        }
        let names: Vec<Option<String>> = drafts
            .iter()
            .map(|draft| draft.get("name").and_then(Value::as_str).map(str::to_owned))
            .collect();
        let (actor, tenant) = (&asked.actor, asked.tenant());
        let (changed, created) = self.control.create_keys(actor, drafts, tenant, asked.now).await?;
        let revision = changed.after.revision();
        if is_list {
            let keys: Vec<Value> = created
                .iter()
                .zip(names)
                .map(|(key, name)| json!({ "id": key.id, "name": name, "secret": key.secret }))
                .collect();
            let answer = Answer::ok(json!({ "keys": keys, "revision": revision }));
            return Ok(Answer { status: StatusCode::CREATED, ..answer });
        }
        let Some(key) = created.into_iter().next() else {
            return Err(ControlError::Internal("no key was created".to_owned()).into());
        };
        let found = self.control.repository().get(Kind::Key, &key.id).await?;
        let entry = found.ok_or_else(|| ControlError::NotFound("key", key.id.clone()))?;
        let mut answer = with_secret(&entry, key.secret, asked.now);
        answer.status = StatusCode::CREATED;
        answer.location = Some(format!("{PREFIX}keys/{}", key.id));
        Ok(answer)
    }

    async fn rotate_key(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let condition = Self::condition(asked)?;
        let overlap = if asked.body.is_empty() { 0 } else { overlap(&body(&asked.body)?)? };
        let (actor, who) = (&asked.actor, (asked.tenant(), &condition));
        let rotated = self.control.rotate_key(actor, asked.id(), overlap, who, asked.now).await?;
        Ok(with_secret(&rotated.0, Some(rotated.1), asked.now))
    }
}

/// How long the secret before stays valid: seconds, or a length of time such as `1h`.
fn overlap(body: &Value) -> Result<u64, AdminError> {
    let wrong = || {
        let message = "must be a number of seconds or a length of time such as 15m, 1h or 7d, and the \
                       only field";
        AdminError::invalid("overlap", message)
    };
    let fields = body.as_object().ok_or_else(wrong)?;
    if fields.keys().any(|name| name != "overlap") {
        return Err(wrong());
    }
    match fields.get("overlap") {
        None | Some(Value::Null) => Ok(0),
        Some(Value::Number(seconds)) => seconds.as_u64().ok_or_else(wrong),
        Some(Value::String(text)) => {
            let (number, unit) =
                text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
            let seconds: u64 = match unit {
                "s" => 1,
                "m" => 60,
                "h" => 3_600,
                "d" => 86_400,
                _ => return Err(wrong()),
            };
            let number: u32 = number.parse().map_err(|_| wrong())?;
            Ok(u64::from(number) * seconds)
        }
        Some(_) => Err(wrong()),
    }
}

fn shown(entry: &Entry, now: Millis) -> Answer {
    Answer::ok(view::entry(entry, now)).tagged(entry.version)
}

fn with_secret(entry: &Entry, secret: Option<String>, now: Millis) -> Answer {
    let mut view = view::entry(entry, now);
    if let (Some(view), Some(secret)) = (view.as_object_mut(), secret) {
        view.insert("secret".to_owned(), secret.into());
    }
    Answer::ok(view).tagged(entry.version)
}

/// A key as the admin API shows it: without what is known of its secrets.
pub(super) fn view_key(view: &mut Map<String, Value>, body: &Value, now: Millis) {
    view.remove("digest");
    let text = |name: &str| body.get(name).and_then(Value::as_str);
    let previous =
        view.remove("previous").and_then(|mut previous| previous.get_mut("until").map(Value::take));
    let is_over = |at: &Value| at.as_str().and_then(instant).is_none_or(|at| at <= now);
    if let Some(until) = previous.filter(|until| !is_over(until)) {
        view.insert("previous_secret_until".to_owned(), until);
    }
    let is_expired = text("expires_at").and_then(instant).is_some_and(|at| at <= now);
    let status = match text("disabled_at") {
        Some(_) => "disabled",
        None if is_expired => "expired",
        None => "active",
    };
    view.insert("status".to_owned(), status.into());
}
