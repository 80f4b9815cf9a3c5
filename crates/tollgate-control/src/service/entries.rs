//! Putting, deleting and rolling back single entries.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Changed, Control, Current};
use crate::document::SETTINGS;
use crate::draft::Draft;
use crate::tenant::{MAX_TENANT_RULES, TENANT_SCOPE, confine, tenant_scope};
use crate::{
    Actor, ChangeNote, Checkpoint, ControlError, Entry, EntryFilter, Expected, Kind, Write,
};

/// Clients whose former tiers are looked up for the audit log, when many are put at once.
const MAX_LOOKED_UP: usize = 1_000;

/// What the caller says about the version that is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    #[default]
    None,
    /// `If-Match: *`: something is there.
    Exists,
    /// `If-None-Match: *`: nothing is there.
    Absent,
    /// `If-Match: "3", "4"`: one of these is there.
    OneOf(Vec<i64>),
}

impl Precondition {
    /// Whether it holds for what is there.
    pub fn check(&self, have: Option<i64>) -> Result<(), ControlError> {
        let holds = match (self, have) {
            (Self::None, _) | (Self::Exists, Some(_)) | (Self::Absent, None) => true,
            (Self::OneOf(versions), Some(have)) => versions.contains(&have),
            _ => false,
        };
        if holds {
            return Ok(());
        }
        let have = have.map_or_else(|| "none".to_owned(), |have| format!("\"{have}\""));
        Err(ControlError::PreconditionFailed { have })
    }
}

/// How a draft is put.
#[derive(Debug, Clone, Default)]
pub struct Put {
    /// What the caller says about the version that is there.
    pub precondition: Precondition,
    /// Only tried, not written.
    pub is_dry: bool,
    /// It must be there already.
    pub must_exist: bool,
    /// On behalf of this tenant's admin.
    pub tenant: Option<String>,
}

impl Control {
    /// Makes or replaces an entry.
    pub async fn put(
        &self,
        actor: &Actor,
        draft: Draft,
        how: &Put,
    ) -> Result<Changed, ControlError> {
        if draft.kind == Kind::ClientTier {
            return self.put_client_tiers(actor, vec![draft], how).await;
        }
        let plan = |current: &Current| self.plan_put(current, &draft, how);
        self.change(actor, how.is_dry, plan).await
    }

    fn plan_put(
        &self,
        current: &Current,
        draft: &Draft,
        how: &Put,
    ) -> Result<Vec<Write>, ControlError> {
        let old = current.entry(draft.kind, &draft.id).map(|old| &**old);
        let mut draft = draft.clone();
        let tenant = match draft.kind {
            Kind::Rule => own_rule(&mut draft, old, how.tenant.as_deref())?,
            _ => None,
        };
        if let Some(tenant) = tenant.as_deref().filter(|_| old.is_none()) {
            let is_its = |entry: &&Arc<Entry>| entry.tenant.as_deref() == Some(tenant);
            if current.of(Kind::Rule).filter(is_its).count() >= MAX_TENANT_RULES {
                let message = format!("a tenant has at most {MAX_TENANT_RULES} rules of its own");
                return Err(ControlError::Conflict(message));
            }
        }
        if how.must_exist && old.is_none() {
            return Err(ControlError::NotFound(draft.kind.name(), draft.id));
        }
        how.precondition.check(old.map(|old| old.version))?;
        let action = action(draft.kind, if old.is_some() { Act::Update } else { Act::Create });
        let mut writes = Vec::new();
        if draft.kind == Kind::Tier && draft.body.get("is_default") == Some(&json!(true)) {
            writes.extend(self.former_default_tiers(current, &draft.id));
        }
        let place = (draft.kind, draft.id);
        writes.push(self.write(action, place, old, Some(draft.body), tenant));
        Ok(writes)
    }

    /// There is one default tier: another one makes way.
    fn former_default_tiers(&self, current: &Current, next: &str) -> Vec<Write> {
        let is_former = |entry: &&Arc<Entry>| {
            entry.id != next && entry.body.get("is_default") == Some(&json!(true))
        };
        let make_way = |entry: &Arc<Entry>| {
            let mut body = entry.body.clone();
            if let Some(body) = body.as_object_mut() {
                body.remove("is_default");
            }
            self.write("tier.update", (Kind::Tier, entry.id.clone()), Some(entry), Some(body), None)
        };
        current.of(Kind::Tier).filter(is_former).map(make_way).collect()
    }

    /// Puts the tiers of many clients at once: all of them or none.
    pub async fn put_client_tiers(
        &self,
        actor: &Actor,
        drafts: Vec<Draft>,
        how: &Put,
    ) -> Result<Changed, ControlError> {
        let olds = match how.precondition {
            // Whatever was there is replaced; for the record of so many it is not looked up.
            _ if drafts.len() > MAX_LOOKED_UP => vec![None; drafts.len()],
            _ => {
                let mut olds = Vec::new();
                for draft in &drafts {
                    olds.push(self.repository().get(Kind::ClientTier, &draft.id).await?);
                }
                olds
            }
        };
        let is_many = drafts.len() > 1;
        let plan = |current: &Current| {
            let mut writes = Vec::with_capacity(drafts.len());
            for (number, (draft, old)) in drafts.iter().zip(&olds).enumerate() {
                let tier = draft.body.get("tier").and_then(Value::as_str).unwrap_or_default();
                if current.entry(Kind::Tier, tier).is_none() {
                    let field = if is_many {
                        format!("client_tiers[{number}].tier")
                    } else {
                        "tier".to_owned()
                    };
                    let message = format!("there is no tier {tier:?}: make it first");
                    return Err(ControlError::invalid(&field, message));
                }
                if !is_many {
                    how.precondition.check(old.as_ref().map(|old| old.version))?;
                }
                let place = (Kind::ClientTier, draft.id.clone());
                let body = Some(draft.body.clone());
                let mut write = self.write("client_tier.put", place, old.as_ref(), body, None);
                if how.precondition == Precondition::None {
                    write.expected = Expected::Any;
                }
                writes.push(write);
            }
            Ok(writes)
        };
        self.change(actor, how.is_dry, plan).await
    }

    /// Takes an entry away, and what cannot be without it.
    pub async fn delete(
        &self,
        actor: &Actor,
        kind: Kind,
        id: &str,
        how: &Put,
    ) -> Result<Changed, ControlError> {
        let apart = match kind {
            Kind::ClientTier => self.repository().get(kind, id).await?,
            Kind::Tier => {
                let of_tier = EntryFilter { tier: Some(id.to_owned()), ..EntryFilter::default() };
                let clients = self.repository().count(Kind::ClientTier, &of_tier).await?;
                if clients > 0 {
                    let message = format!("{clients} clients have the tier {id:?}");
                    return Err(ControlError::Conflict(message));
                }
                None
            }
            _ => None,
        };
        let plan = |current: &Current| {
            let old = match kind {
                Kind::ClientTier => apart.as_ref(),
                _ => current.entry(kind, id).map(|old| &**old),
            };
            let old = old.filter(|old| is_own(old, how.tenant.as_deref()));
            let Some(old) = old else {
                return Err(ControlError::NotFound(kind.name(), id.to_owned()));
            };
            how.precondition.check(Some(old.version))?;
            let mut writes = Vec::new();
            if kind == Kind::Rule {
                let is_of_it = |grant: &&Arc<Entry>| {
                    grant.body.get("rule_id").and_then(Value::as_str) == Some(id)
                };
                for grant in current.of(Kind::Grant).filter(is_of_it) {
                    let place = (Kind::Grant, grant.id.clone());
                    writes.push(self.write("grant.delete", place, Some(grant), None, None));
                }
            }
            let tenant = old.tenant.clone();
            let place = (kind, id.to_owned());
            writes.push(self.write(action(kind, Act::Delete), place, Some(old), None, tenant));
            Ok(writes)
        };
        self.change(actor, how.is_dry, plan).await
    }

    /// Puts a rule back to what it was in an earlier version, also one that was deleted.
    pub async fn roll_back(
        &self,
        actor: &Actor,
        id: &str,
        version: i64,
        how: &Put,
    ) -> Result<Changed, ControlError> {
        let found = self.repository().rule_version(id, version).await?;
        let found = found.filter(|found| is_own(found, how.tenant.as_deref()));
        let Some(then) = found else {
            return Err(self.no_version(id, version, how.tenant.as_deref()).await?);
        };
        if then.body.is_null() {
            let message = format!("version {version} is the deletion of the rule: choose another");
            return Err(ControlError::invalid("version", message));
        }
        let plan = |current: &Current| {
            let old = current.entry(Kind::Rule, id).map(|old| &**old);
            if old.is_some_and(|old| !is_own(old, how.tenant.as_deref())) {
                return Err(ControlError::NotFound("rule", id.to_owned()));
            }
            how.precondition.check(old.map(|old| old.version))?;
            let place = (Kind::Rule, id.to_owned());
            let (body, tenant) = (Some(then.body.clone()), then.tenant.clone());
            Ok(vec![self.write("rule.rollback", place, old, body, tenant)])
        };
        self.change(actor, how.is_dry, plan).await
    }

    /// Why there is no such version of a rule: it never was, it is another tenant's, or it was removed.
    pub async fn no_version(
        &self,
        id: &str,
        version: i64,
        tenant: Option<&str>,
    ) -> Result<ControlError, ControlError> {
        let checkpoint = self.repository().rule_checkpoint(id).await?;
        let is_removed = |checkpoint: &Checkpoint| {
            let is_own = tenant.is_none() || checkpoint.tenant.as_deref() == tenant;
            is_own && (checkpoint.first..=checkpoint.last).contains(&version)
        };
        Ok(match checkpoint.filter(is_removed) {
            Some(Checkpoint { first, last, .. }) => ControlError::Removed(format!(
                "version {version} of rule {id:?} was removed, with versions {first} to {last}: \
                 only so many are kept; put the rule back from a backup or the log of changes"
            )),
            None => ControlError::NotFound("rule version", format!("{id}/{version}")),
        })
    }

    /// Records that what a client had used was forgotten. `id` names the client, API keys hidden.
    pub async fn note_reset(
        &self,
        actor: &Actor,
        id: String,
        tenant: Option<String>,
        rules: &[String],
    ) -> Result<(), ControlError> {
        let action = action(Kind::Usage, Act::Update);
        let after = Some(json!({ "rules": rules }));
        let note = ChangeNote { action, before: None, after };
        let (kind, expected) = (Kind::Usage, Expected::Any);
        let write = Write { kind, id, body: None, tenant, expected, note };
        self.repository().commit(None, &[write], actor).await?;
        Ok(())
    }

    /// Changes a setting, or with `None` takes it away.
    pub async fn set(
        &self,
        actor: &Actor,
        name: &str,
        value: Option<Value>,
        how: &Put,
    ) -> Result<Changed, ControlError> {
        if !SETTINGS.contains(&name) {
            return Err(ControlError::NotFound("setting", name.to_owned()));
        }
        if name == crate::document::ENFORCEMENT
            && let Some(mode) = &value
            && !matches!(mode.as_str(), Some("on" | "shadow" | "off"))
        {
            return Err(ControlError::invalid(name, "must be on, shadow or off"));
        }
        match value {
            Some(body) => {
                let draft = Draft { kind: Kind::Setting, id: name.to_owned(), body };
                self.put(actor, draft, how).await
            }
            None => self.delete(actor, Kind::Setting, name, how).await,
        }
    }
}

/// Whether an entry is for the eyes of this tenant's admin; everything is, for nobody's.
pub(super) fn is_own(entry: &Entry, tenant: Option<&str>) -> bool {
    tenant.is_none() || entry.tenant.as_deref() == tenant
}

/// Makes sure that a rule stays with its tenant. Says whose it is.
pub(super) fn own_rule(
    draft: &mut Draft,
    old: Option<&Entry>,
    tenant: Option<&str>,
) -> Result<Option<String>, ControlError> {
    let Some(rule) = draft.body.as_object_mut() else {
        return Err(ControlError::invalid("body", "must be a rule: a JSON object"));
    };
    if let Some(tenant) = tenant {
        let own = old.filter(|old| is_own(old, Some(tenant)));
        // First whether the id could be its own: who asks for others' does not learn whether they are there.
        confine(rule, tenant, own.is_some())?;
        if old.is_some() && own.is_none() {
            let message = "is taken: choose another";
            return Err(ControlError::invalid("rule_id", message));
        }
        return Ok(Some(tenant.to_owned()));
    }
    if let Some(owner) = old.and_then(|old| old.tenant.as_ref()) {
        let message = format!(
            "rule {:?} is one of the tenant {owner}'s own: delete it first, or choose another id",
            draft.id
        );
        return Err(ControlError::Conflict(message));
    }
    let scope = rule.get("scope").or_else(|| rule.get("rule_id")).and_then(Value::as_str);
    if scope.is_some_and(|scope| scope.starts_with(TENANT_SCOPE)) {
        let example = tenant_scope("acme", "acme.rule");
        let message = format!("scopes such as {example} are those of tenants' own rules");
        return Err(ControlError::invalid("scope", message));
    }
    Ok(None)
}

/// What is done to an entry.
#[derive(Clone, Copy)]
pub(super) enum Act {
    Create,
    Update,
    Delete,
}

/// The name of an action in the audit log.
pub(super) const fn action(kind: Kind, act: Act) -> &'static str {
    match (kind, act) {
        (Kind::Rule, Act::Create) => "rule.create",
        (Kind::Rule, Act::Update) => "rule.update",
        (Kind::Rule, Act::Delete) => "rule.delete",
        (Kind::Allow, Act::Create) => "whitelist.create",
        (Kind::Allow, Act::Update) => "whitelist.update",
        (Kind::Allow, Act::Delete) => "whitelist.delete",
        (Kind::Deny, Act::Create) => "blacklist.create",
        (Kind::Deny, Act::Update) => "blacklist.update",
        (Kind::Deny, Act::Delete) => "blacklist.delete",
        (Kind::Tier, Act::Create) => "tier.create",
        (Kind::Tier, Act::Update) => "tier.update",
        (Kind::Tier, Act::Delete) => "tier.delete",
        (Kind::ClientTier, Act::Delete) => "client_tier.delete",
        (Kind::ClientTier, _) => "client_tier.put",
        (Kind::Grant, Act::Create) => "grant.create",
        (Kind::Grant, Act::Update) => "grant.update",
        (Kind::Grant, Act::Delete) => "grant.delete",
        (Kind::Setting, Act::Delete) => "setting.delete",
        (Kind::Setting, _) => "setting.put",
        (Kind::Key, Act::Create) => "key.create",
        (Kind::Key, Act::Update) => "key.update",
        (Kind::Key, Act::Delete) => "key.delete",
        (Kind::Token, Act::Create) => "token.create",
        (Kind::Token, Act::Update) => "token.rotate",
        (Kind::Token, Act::Delete) => "token.revoke",
        (Kind::Usage, _) => "usage.reset",
    }
}
