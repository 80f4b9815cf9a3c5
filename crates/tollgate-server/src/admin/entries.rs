//! Rules, lists, tiers, grants and settings.

use http::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};
use tollgate_control::draft::{self, Draft};
use tollgate_control::{
    Changed, ControlError, Entry, EntryFilter, Kind, Page, Put, Step, StepKind, document,
};

use super::file_entries::page_of;
use super::read::{Query, body, precondition};
use super::respond::{AdminError, Answer};
use super::routes::PREFIX;
use super::{Admin, Asked, view};

/// Versions of a page: each is a whole rule.
const MAX_VERSIONS: u32 = 100;

/// Clients whose tiers are put at once.
const MAX_CLIENT_TIERS: usize = 10_000;

impl Admin {
    pub(super) async fn list(&self, asked: &Asked, kind: Kind) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let page = query.page()?;
        let mut filter = EntryFilter { prefix: query.take("prefix"), ..EntryFilter::default() };
        if kind == Kind::ClientTier {
            filter.tier = query.take("tier");
        }
        if kind == Kind::Rule {
            filter.tenant = query.take("tenant_id");
        }
        query.end()?;
        filter.tenant = asked.filtered_tenant(filter.tenant)?;
        let found = match self.file_entries(asked, kind).await? {
            Some(entries) => page_of(entries, &filter, &page),
            None => self.control.repository().list(kind, &filter, &page).await?,
        };
        let is_full = found.len() >= page.limit as usize;
        let next = found.last().filter(|_| is_full).map(|last| last.id.clone());
        let items: Vec<Value> = found.iter().map(|entry| view::entry(entry, asked.now)).collect();
        let mut answer = Answer::ok(view::page(&items, next.as_deref()));
        if kind.is_in_set() {
            answer = answer.tagged(self.control.repository().revision().await?);
        }
        Ok(answer)
    }

    pub(super) async fn get(&self, asked: &Asked, kind: Kind) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let found = match self.file_entries(asked, kind).await? {
            Some(entries) => entries.into_iter().find(|entry| entry.id == asked.id()),
            None => self.control.repository().get(kind, asked.id()).await?,
        };
        let found = found
            .filter(|entry| asked.tenant().is_none_or(|own| entry.tenant.as_deref() == Some(own)));
        let Some(entry) = found else {
            return Err(ControlError::NotFound(kind.name(), asked.id().to_owned()).into());
        };
        Ok(Answer::ok(view::entry(&entry, asked.now)).tagged(entry.version))
    }

    /// What the caller says about how to put: conditions, `?dry_run=true`, whose it is.
    pub(super) fn how(asked: &Asked) -> Result<Put, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let is_dry = query.flag("dry_run")?;
        query.end()?;
        Ok(Put {
            precondition: precondition(&asked.headers)?,
            is_dry,
            must_exist: asked.route.method == Method::PUT,
            tenant: asked.tenant().map(str::to_owned),
        })
    }

    pub(super) async fn put(&self, asked: &Asked, kind: Kind) -> Result<Answer, AdminError> {
        let how = Self::how(asked)?;
        let mut body = body(&asked.body)?;
        if kind == Kind::ClientTier && body.get("client_tiers").is_some() {
            return self.put_client_tiers(asked, body, &how).await;
        }
        if how.must_exist {
            name_as_path(
                &mut body,
                if kind == Kind::Rule { "rule_id" } else { "name" },
                asked.id(),
            )?;
        }
        let draft = self.draft(kind, body, asked)?;
        let (kind, id) = (draft.kind, draft.id.clone());
        let changed = self.control.put(&asked.actor, draft, &how).await?;
        if how.is_dry {
            return Ok(Answer::ok(dry_run(&changed, kind, &id)));
        }
        self.answer_put(asked, &changed, kind, &id).await
    }

    fn draft(&self, kind: Kind, body: Value, asked: &Asked) -> Result<Draft, AdminError> {
        let hide = |key: &str| self.control.hide_key(key);
        Ok(match kind {
            Kind::Rule => draft::rule(body),
            Kind::Tier => draft::tier(body),
            Kind::ClientTier => draft::client_tier(body, &hide),
            Kind::Grant => draft::grant(body, asked.now),
            _ => draft::listed(kind, body, asked.now, &hide),
        }?)
    }

    pub(super) async fn answer_put(
        &self,
        asked: &Asked,
        changed: &Changed,
        kind: Kind,
        id: &str,
    ) -> Result<Answer, AdminError> {
        let entry = if let Some(entry) = changed.after.entry(kind, id) {
            Entry::clone(entry)
        } else {
            let found = self.control.repository().get(kind, id).await?;
            found.ok_or_else(|| ControlError::NotFound(kind.name(), id.to_owned()))?
        };
        let mut body = view::entry(&entry, asked.now);
        if let Some(body) = body.as_object_mut() {
            body.insert("revision".to_owned(), changed.after.revision().into());
        }
        let is_new = entry.created == entry.updated
            && changed.before.entry(kind, id).is_none()
            && entry.version == 1
            || (kind == Kind::Rule && changed.before.entry(kind, id).is_none());
        let mut answer = Answer::ok(body).tagged(entry.version);
        if is_new {
            answer.status = StatusCode::CREATED;
            let path = asked.route.path.split('/').next().unwrap_or_default();
            let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
            answer.location = Some(format!("{PREFIX}{path}/{id}"));
        }
        Ok(answer)
    }

    async fn put_client_tiers(
        &self,
        asked: &Asked,
        mut body: Value,
        how: &Put,
    ) -> Result<Answer, AdminError> {
        let list = body.get_mut("client_tiers").map(Value::take);
        let is_alone = body.as_object().is_some_and(|fields| fields.len() == 1);
        let (Some(Value::Array(list)), true) = (list, is_alone) else {
            let message = "must be a list, and the only field";
            return Err(AdminError::invalid("client_tiers", message));
        };
        if list.is_empty() || list.len() > MAX_CLIENT_TIERS {
            let message = format!("must have 1 to {MAX_CLIENT_TIERS} entries");
            return Err(AdminError::invalid("client_tiers", message));
        }
        if how.precondition != tollgate_control::Precondition::None {
            return Err(AdminError::invalid("if-match", "is for one client at a time"));
        }
        let mut drafts: Vec<Draft> = Vec::with_capacity(list.len());
        let mut seen = std::collections::HashSet::with_capacity(list.len());
        for (number, item) in list.into_iter().enumerate() {
            let place = format!("client_tiers[{number}]");
            let draft = match self.draft(Kind::ClientTier, item, asked) {
                Err(AdminError::Control(ControlError::Invalid(mut problems))) => {
                    for problem in &mut problems {
                        let field = problem.field.take().unwrap_or_default();
                        problem.field = Some(format!("{place}.{field}"));
                    }
                    return Err(ControlError::Invalid(problems).into());
                }
                other => other?,
            };
            if !seen.insert(draft.id.clone()) {
                return Err(AdminError::invalid(&place, "names a client that is there twice"));
            }
            drafts.push(draft);
        }
        let count = drafts.len();
        let changed = self.control.put_client_tiers(&asked.actor, drafts, how).await?;
        let revision = changed.after.revision();
        Ok(Answer::ok(json!({ "put": count, "dry_run": how.is_dry, "revision": revision })))
    }

    pub(super) async fn delete(&self, asked: &Asked, kind: Kind) -> Result<Answer, AdminError> {
        let how = Self::how(asked)?;
        let changed = self.control.delete(&asked.actor, kind, asked.id(), &how).await?;
        if how.is_dry {
            return Ok(Answer::ok(dry_run(&changed, kind, asked.id())));
        }
        Ok(Answer::ok(json!({
            "id": asked.id(), "status": "deleted", "revision": changed.after.revision(),
        })))
    }

    pub(super) async fn versions(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let page = query.page()?;
        query.end()?;
        let page = Page { limit: page.limit.min(MAX_VERSIONS), ..page };
        let found = self.control.repository().rule_versions(asked.id(), &page).await?;
        let own =
            |entry: &&Entry| asked.tenant().is_none_or(|own| entry.tenant.as_deref() == Some(own));
        let items: Vec<Value> = found.iter().filter(own).map(view::version).collect();
        if items.is_empty() && page.after.is_none() {
            return Err(ControlError::NotFound("rule", asked.id().to_owned()).into());
        }
        let is_full = found.len() >= page.limit as usize;
        let next = found.last().filter(|_| is_full).map(|last| last.version.to_string());
        let removed = self.control.repository().rule_checkpoint(asked.id()).await?;
        let removed = removed.as_ref().map(view::checkpoint).into();
        Ok(Answer::ok(view::bounded_page(&items, next.as_deref(), &removed)))
    }

    pub(super) async fn version(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let wrong = |_| AdminError::invalid("version", "must be a whole number");
        let number: i64 = asked.second().parse().map_err(wrong)?;
        let found = self.control.repository().rule_version(asked.id(), number).await?;
        let found = found
            .filter(|entry| asked.tenant().is_none_or(|own| entry.tenant.as_deref() == Some(own)));
        let Some(entry) = found else {
            return Err(self.control.no_version(asked.id(), number, asked.tenant()).await?.into());
        };
        Ok(Answer::ok(view::version(&entry)).tagged(entry.version))
    }

    pub(super) async fn roll_back(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let how = Self::how(asked)?;
        let body = body(&asked.body)?;
        let version = body.get("version").and_then(Value::as_i64);
        let is_alone = body.as_object().is_some_and(|fields| fields.len() == 1);
        let (Some(version), true) = (version, is_alone) else {
            let message = "must be the number of a version, and the only field";
            return Err(AdminError::invalid("version", message));
        };
        let id = asked.id();
        let changed = self.control.roll_back(&asked.actor, id, version, &how).await?;
        if how.is_dry {
            return Ok(Answer::ok(dry_run(&changed, Kind::Rule, id)));
        }
        let mut answer = self.answer_put(asked, &changed, Kind::Rule, id).await?;
        (answer.status, answer.location) = (StatusCode::OK, None);
        Ok(answer)
    }

    pub(super) async fn apply(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut query = Query::new(&asked.query)?;
        let (is_dry, prune) = (query.flag("dry_run")?, query.flag("prune")?);
        query.end()?;
        let (document, condition) = (body(&asked.body)?, precondition(&asked.headers)?);
        let control = &self.control;
        let applied =
            control.apply(&asked.actor, document, prune, is_dry, &condition, asked.now).await?;
        let steps: Vec<Value> = applied.steps.iter().map(step).collect();
        // What was only tried has no revision of its own.
        let set = if is_dry { &applied.changed.before } else { &applied.changed.after };
        Ok(Answer::ok(json!({
            "dry_run": is_dry, "steps": steps, "unchanged": applied.unchanged,
            "revision": set.revision(),
        }))
        .tagged(set.revision()))
    }

    pub(super) async fn document(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let current = self.control.current().await?;
        let exported = document::export(&current.entries, asked.now);
        Ok(Answer::ok(exported).tagged(current.revision()))
    }

    pub(super) async fn settings(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let current = self.control.current().await?;
        let items: Vec<Value> =
            current.of(Kind::Setting).map(|entry| view::entry(entry, asked.now)).collect();
        Ok(Answer::ok(view::page(&items, None)).tagged(current.revision()))
    }

    pub(super) async fn set(&self, asked: &Asked) -> Result<Answer, AdminError> {
        let mut how = Self::how(asked)?;
        how.must_exist = false;
        let name = asked.id();
        let value = match asked.route.method {
            &Method::PUT => {
                let mut body = body(&asked.body)?;
                let is_alone = body.as_object().is_some_and(|fields| fields.len() == 1);
                match body.get_mut("value").map(Value::take) {
                    Some(value) if is_alone => Some(value),
                    _ => return Err(AdminError::invalid("value", "must be the only field")),
                }
            }
            _ => None,
        };
        let is_put = value.is_some();
        let changed = self.control.set(&asked.actor, name, value, &how).await?;
        if how.is_dry {
            return Ok(Answer::ok(dry_run(&changed, Kind::Setting, name)));
        }
        if is_put {
            let mut answer = self.answer_put(asked, &changed, Kind::Setting, name).await?;
            (answer.status, answer.location) = (StatusCode::OK, None);
            return Ok(answer);
        }
        let revision = changed.after.revision();
        Ok(Answer::ok(json!({ "id": name, "status": "deleted", "revision": revision })))
    }
}

/// What a body calls itself must be what the path calls it; it may leave it out.
fn name_as_path(body: &mut Value, field: &str, id: &str) -> Result<(), AdminError> {
    let Some(fields) = body.as_object_mut() else {
        return Err(AdminError::invalid("body", "must be a JSON object"));
    };
    let name = fields.entry(field).or_insert_with(|| Value::String(id.to_owned()));
    if name.as_str() == Some(id) {
        return Ok(());
    }
    Err(AdminError::invalid(field, format!("must be {id:?}, as in the path")))
}

/// What a change would do.
pub(super) fn dry_run(changed: &Changed, kind: Kind, id: &str) -> Value {
    let (before, after) = (changed.before.entry(kind, id), changed.after.entry(kind, id));
    let action = match (before, after) {
        (None, Some(_)) => "create",
        (Some(_), Some(_)) => "update",
        (Some(_), None) => "delete",
        (None, None) => "put",
    };
    let mut view = Map::new();
    view.insert("dry_run".to_owned(), true.into());
    view.insert("action".to_owned(), action.into());
    view.insert("before".to_owned(), before.map(|entry| entry.body.clone()).into());
    view.insert("after".to_owned(), after.map(|entry| entry.body.clone()).into());
    if kind == Kind::Rule && after.is_some() {
        let effect = changed.after.compiled.rules.effect_of(id);
        let effect = json!({
            "displaces": effect.displaces,
            "displaced_by": effect.displaced_by,
            "replaces": effect.replaces,
            "replaced_by": effect.replaced_by,
        });
        view.insert("shadows".to_owned(), effect);
    }
    Value::Object(view)
}

fn step(step: &Step) -> Value {
    let action = match step.step {
        StepKind::Create => "create",
        StepKind::Update => "update",
        StepKind::Delete => "delete",
    };
    json!({
        "action": action, "kind": step.kind.name(), "id": step.id,
        "before": step.before, "after": step.after,
    })
}
