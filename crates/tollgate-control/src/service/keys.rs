//! Virtual keys: created, changed, rotated, disabled, deleted. A secret is shown once, to the caller that gets it.
//!
//! A tenant's admins manage the keys of their tenant. What the installation's admins have set on such a key they can
//! only tighten: they may rotate, disable and delete it, and neither change nor enable it.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};
use tollgate_policy::{LABELS_ONLY, MAX_KEY_NAME_BYTES, SECRET_PREFIX, VirtualKey, check_key};

use super::{Control, Current};
use crate::draft::{instant, rfc3339};
use crate::service::entries::{Precondition, is_own};
use crate::token::{digest, hex, new_id};
use crate::{Actor, Changed, ControlError, Entry, Expected, Kind, Millis, Write};

/// The most virtual keys of an installation.
pub const MAX_KEYS: usize = 250_000;
/// The most virtual keys of one tenant.
pub const MAX_KEYS_PER_TENANT: usize = 50_000;
/// The longest that the secret before a rotation stays valid: 30 days.
pub const MAX_OVERLAP_SECONDS: u64 = 30 * 86_400;
/// The most bytes of one key, in JSON. All keys are in the memory of every node.
const MAX_KEY_BYTES: usize = 8 << 10;

/// What a caller may set.
const FIELDS: [&str; 8] =
    ["name", "owner", "tenant_id", "tags", "models", "limits", "budget", "expires_at"];

/// Who set the limits of a key: a tenant's own admin, or one of the installation.
const MANAGED_BY: &str = "managed_by";

/// A key that was created.
#[derive(Debug)]
pub struct CreatedKey {
    /// Its id.
    pub id: String,
    /// Its secret; none where the caller gave the digest of one.
    pub secret: Option<String>,
}

/// A change of a key that is there.
enum Act<'a> {
    Update(&'a Map<String, Value>),
    Rotate { digest: &'a str, overlap_ms: Millis },
    Disable,
    Enable,
}

impl Control {
    /// Creates keys, all of them or none, on behalf of this tenant's admin or of nobody's.
    pub async fn create_keys(
        &self,
        actor: &Actor,
        drafts: Vec<Value>,
        tenant: Option<&str>,
        now: Millis,
    ) -> Result<(Changed, Vec<CreatedKey>), ControlError> {
        let (mut bodies, mut created) = (Vec::new(), Vec::new());
        let (mut seen, is_many) = (HashSet::new(), drafts.len() > 1);
        for (number, draft) in drafts.into_iter().enumerate() {
            let (body, key) =
                new_key(draft, tenant, now).map_err(|error| at(error, number, is_many))?;
            let digest = text(&body, "digest").unwrap_or_default().to_owned();
            if !seen.insert(digest) {
                return Err(at(ControlError::invalid("sha256", "is there twice"), number, is_many));
            }
            bodies.push(body);
            created.push(key);
        }
        let plan = |current: &Current| {
            check_room(current, &bodies)?;
            let mut writes = Vec::with_capacity(bodies.len());
            for body in &bodies {
                let id = text(body, "id").unwrap_or_default().to_owned();
                let tenant = text(body, "tenant_id").map(str::to_owned);
                let place = (Kind::Key, id);
                writes.push(self.write("key.create", place, None, Some(body.clone()), tenant));
            }
            Ok(writes)
        };
        let changed = self.change(actor, false, plan).await?;
        Ok((changed, created))
    }

    /// Replaces what a caller may set of a key.
    pub async fn update_key(
        &self,
        actor: &Actor,
        id: &str,
        draft: Value,
        (tenant, condition): (Option<&str>, &Precondition),
    ) -> Result<Entry, ControlError> {
        let Value::Object(fields) = draft else {
            return Err(ControlError::invalid("body", "must be a JSON object"));
        };
        self.change_key(actor, id, &Act::Update(&fields), (tenant, condition), 0).await
    }

    /// Gives a key a new secret. The one before stays valid for so long.
    pub async fn rotate_key(
        &self,
        actor: &Actor,
        id: &str,
        overlap_seconds: u64,
        who: (Option<&str>, &Precondition),
        now: Millis,
    ) -> Result<(Entry, String), ControlError> {
        if overlap_seconds > MAX_OVERLAP_SECONDS {
            let message = format!("must be at most {MAX_OVERLAP_SECONDS} seconds");
            return Err(ControlError::invalid("overlap", message));
        }
        let secret = new_secret()?;
        let digest = digest(&secret);
        let overlap_ms = i64::try_from(overlap_seconds * 1_000).unwrap_or(0);
        let act = Act::Rotate { digest: &digest, overlap_ms };
        Ok((self.change_key(actor, id, &act, who, now).await?, secret))
    }

    /// Disables a key, or enables it again.
    pub async fn switch_key(
        &self,
        actor: &Actor,
        id: &str,
        is_enabled: bool,
        who: (Option<&str>, &Precondition),
        now: Millis,
    ) -> Result<Entry, ControlError> {
        let act = if is_enabled { Act::Enable } else { Act::Disable };
        self.change_key(actor, id, &act, who, now).await
    }

    /// Deletes a key. Its secret is refused from then on.
    pub async fn delete_key(
        &self,
        actor: &Actor,
        id: &str,
        (tenant, condition): (Option<&str>, &Precondition),
    ) -> Result<Changed, ControlError> {
        let old = self.key_entry(id, tenant).await?;
        condition.check(Some(old.version))?;
        let plan = |_: &Current| {
            let place = (Kind::Key, id.to_owned());
            Ok(vec![self.write("key.delete", place, Some(&old), None, old.tenant.clone())])
        };
        self.change(actor, false, plan).await
    }

    async fn key_entry(&self, id: &str, tenant: Option<&str>) -> Result<Entry, ControlError> {
        let found = self.repository().get(Kind::Key, id).await?;
        let found = found.filter(|entry| is_own(entry, tenant));
        found.ok_or_else(|| ControlError::NotFound("key", id.to_owned()))
    }

    async fn change_key(
        &self,
        actor: &Actor,
        id: &str,
        act: &Act<'_>,
        (tenant, condition): (Option<&str>, &Precondition),
        now: Millis,
    ) -> Result<Entry, ControlError> {
        let old = self.key_entry(id, tenant).await?;
        condition.check(Some(old.version))?;
        let body = apply(&old, act, tenant, now)?;
        let action = match act {
            Act::Update(_) => "key.update",
            Act::Rotate { .. } => "key.rotate",
            Act::Disable => "key.disable",
            Act::Enable => "key.enable",
        };
        let plan = |_: &Current| -> Result<Vec<Write>, ControlError> {
            let (place, body) = ((Kind::Key, id.to_owned()), Some(body.clone()));
            let mut write = self.write(action, place, Some(&old), body, old.tenant.clone());
            write.expected = Expected::Version(old.version);
            Ok(vec![write])
        };
        self.change(actor, false, plan).await?;
        self.key_entry(id, tenant).await
    }
}

/// A problem of one of several keys names its place.
fn at(error: ControlError, number: usize, is_many: bool) -> ControlError {
    match error {
        ControlError::Invalid(mut problems) if is_many => {
            for problem in &mut problems {
                let field = problem.field.take().unwrap_or_default();
                problem.field = Some(format!("keys[{number}].{field}"));
            }
            ControlError::Invalid(problems)
        }
        other => other,
    }
}

fn text<'b>(body: &'b Value, name: &str) -> Option<&'b str> {
    body.get(name).and_then(Value::as_str)
}

fn new_secret() -> Result<String, ControlError> {
    let mut bytes = [0; 32];
    let no_random = |error: getrandom::Error| {
        ControlError::Internal(format!("the system has no random bytes: {error}"))
    };
    getrandom::fill(&mut bytes).map_err(no_random)?;
    Ok(format!("{SECRET_PREFIX}{}", hex(&bytes)))
}

/// A key as it is stored, and what its caller gets.
fn new_key(
    draft: Value,
    tenant: Option<&str>,
    now: Millis,
) -> Result<(Value, CreatedKey), ControlError> {
    let Value::Object(mut fields) = draft else {
        return Err(ControlError::invalid("body", "must be a JSON object"));
    };
    let (digest, secret) = match fields.remove("sha256") {
        None => {
            let secret = new_secret()?;
            (digest(&secret), Some(secret))
        }
        // A tenant could otherwise register secrets that are easy to guess.
        Some(_) if tenant.is_some() => {
            let message = "is for admins of the installation: leave it out, and a secret is made";
            return Err(ControlError::invalid("sha256", message));
        }
        Some(Value::String(given)) => (given.to_ascii_lowercase(), None),
        Some(_) => return Err(ControlError::invalid("sha256", "must be a string")),
    };
    let id = new_id(tollgate_policy::KEY_ID_PREFIX);
    let id = id.map_err(|error| ControlError::Internal(error.to_string()))?;
    if let Some(tenant) = tenant {
        let given = fields.entry("tenant_id").or_insert_with(|| tenant.into());
        if given.as_str() != Some(tenant) {
            return Err(ControlError::invalid("tenant_id", format!("must be {tenant:?}")));
        }
    }
    check_expiry(&fields, now)?;
    let mut body = Map::new();
    body.insert("id".to_owned(), id.clone().into());
    body.insert("digest".to_owned(), digest.into());
    set_fields(&mut body, &fields, tenant)?;
    Ok((Value::Object(body), CreatedKey { id, secret }))
}

fn check_expiry(fields: &Map<String, Value>, now: Millis) -> Result<(), ControlError> {
    let ends = fields.get("expires_at").and_then(Value::as_str).and_then(instant);
    match ends {
        Some(ends) if ends <= now => Err(ControlError::invalid("expires_at", "is in the past")),
        _ => Ok(()),
    }
}

/// Whether owner and tags of a key are labels only. What a tenant's admin wrote stays one until an admin of the
/// installation says otherwise: one who changes the name of a key has not looked at its tags.
fn are_labels(
    body: &Map<String, Value>,
    fields: &Map<String, Value>,
    tenant: Option<&str>,
) -> Result<bool, ControlError> {
    match fields.get(LABELS_ONLY).filter(|value| !value.is_null()) {
        None | Some(Value::Bool(true)) if tenant.is_some() => Ok(true),
        None => Ok(body.contains_key(LABELS_ONLY)),
        Some(Value::Bool(_)) if tenant.is_some() => {
            let message = "is for admins of the installation; leave it out";
            Err(ControlError::invalid(LABELS_ONLY, message))
        }
        Some(Value::Bool(are_labels)) => Ok(*are_labels),
        Some(_) => Err(ControlError::invalid(LABELS_ONLY, "must be true or false")),
    }
}

/// Puts what a caller may set into a body, and checks the whole.
fn set_fields(
    body: &mut Map<String, Value>,
    fields: &Map<String, Value>,
    tenant: Option<&str>,
) -> Result<(), ControlError> {
    let is_known = |name: &str| FIELDS.contains(&name) || name == LABELS_ONLY;
    if let Some(unknown) = fields.keys().find(|name| !is_known(name)) {
        let shown: String = unknown.chars().take(64).collect();
        let message = format!("is not a field of a key; there are {}, sha256", FIELDS.join(", "));
        return Err(ControlError::invalid(&shown, message));
    }
    let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() || name.len() > MAX_KEY_NAME_BYTES || name.chars().any(char::is_control) {
        let message = format!("is missing, or is not a text of 1 to {MAX_KEY_NAME_BYTES} bytes");
        return Err(ControlError::invalid("name", message));
    }
    for name in FIELDS {
        match fields.get(name).filter(|value| !value.is_null()) {
            Some(value) => body.insert(name.to_owned(), value.clone()),
            None => body.remove(name),
        };
    }
    let manager = if tenant.is_some() { "tenant" } else { "installation" };
    body.insert(MANAGED_BY.to_owned(), manager.into());
    if are_labels(body, fields, tenant)? {
        body.insert(LABELS_ONLY.to_owned(), true.into());
    } else {
        body.remove(LABELS_ONLY);
    }
    let whole = Value::Object(std::mem::take(body));
    if whole.to_string().len() > MAX_KEY_BYTES {
        let message = format!("must have at most {MAX_KEY_BYTES} bytes in JSON");
        return Err(ControlError::invalid("body", message));
    }
    check_key(&whole).map_err(|problem| {
        // Its digest is what the caller calls sha256.
        let field = if problem.field == "digest" { "sha256" } else { &problem.field };
        ControlError::invalid(field, problem.message)
    })?;
    if let Value::Object(whole) = whole {
        *body = whole;
    }
    Ok(())
}

/// The body of a key after a change.
fn apply(
    old: &Entry,
    act: &Act<'_>,
    tenant: Option<&str>,
    now: Millis,
) -> Result<Value, ControlError> {
    let mut body = old.body.as_object().cloned().unwrap_or_default();
    let is_installations = text(&old.body, MANAGED_BY) != Some("tenant");
    let loosens = matches!(act, Act::Update(_) | Act::Enable);
    if tenant.is_some() && is_installations && loosens {
        let message = "an admin of the installation set the limits of this key: only such an admin \
                       may change or enable it";
        return Err(ControlError::Conflict(message.to_owned()));
    }
    match act {
        Act::Update(fields) => {
            let mut fields = Map::clone(fields);
            let belongs = old.body.get("tenant_id").cloned().unwrap_or_default();
            let given = fields.entry("tenant_id").or_insert_with(|| belongs.clone());
            if *given != belongs {
                let message = "cannot be changed: create another key";
                return Err(ControlError::invalid("tenant_id", message));
            }
            set_fields(&mut body, &fields, tenant)?;
        }
        Act::Rotate { digest, overlap_ms } => {
            let former = body.insert("digest".to_owned(), (*digest).into());
            body.remove("previous");
            if *overlap_ms > 0 {
                let until = rfc3339(now.saturating_add(*overlap_ms));
                body.insert("previous".to_owned(), json!({ "digest": former, "until": until }));
            }
        }
        Act::Disable => {
            body.entry("disabled_at").or_insert_with(|| rfc3339(now).into());
            if tenant.is_none() {
                // Its tenant's admins cannot enable it.
                body.insert(MANAGED_BY.to_owned(), "installation".into());
            }
        }
        Act::Enable => {
            body.remove("disabled_at");
        }
    }
    Ok(Value::Object(body))
}

/// Whether there is room for more keys, and whether their secrets are new. The change is written only if the set is
/// still this one.
fn check_room(current: &Current, bodies: &[Value]) -> Result<(), ControlError> {
    let keys = current.compiled.rules.virtual_keys();
    if keys.len().saturating_add(bodies.len()) > MAX_KEYS {
        let message = format!("an installation has at most {MAX_KEYS} keys: delete some first");
        return Err(ControlError::Conflict(message));
    }
    let mut tenants = HashMap::new();
    for tenant in bodies.iter().filter_map(|body| text(body, "tenant_id")) {
        *tenants.entry(tenant).or_insert(0_usize) += 1;
    }
    if !tenants.is_empty() {
        for tenant in keys.all().filter_map(VirtualKey::tenant) {
            if let Some(count) = tenants.get_mut(tenant) {
                *count += 1;
            }
        }
    }
    if tenants.values().any(|count| *count > MAX_KEYS_PER_TENANT) {
        let message = format!("a tenant has at most {MAX_KEYS_PER_TENANT} keys");
        return Err(ControlError::Conflict(message));
    }
    let is_known = |body: &Value| {
        let digest = text(body, "digest").and_then(tollgate_policy::parse_digest);
        digest.is_some_and(|digest| keys.find(&digest, 0).is_some())
    };
    if bodies.iter().any(is_known) {
        return Err(ControlError::invalid(
            "sha256",
            "is the digest of a key that is there already",
        ));
    }
    Ok(())
}
