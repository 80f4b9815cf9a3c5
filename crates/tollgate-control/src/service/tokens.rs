//! Who may do what.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;

use super::Control;
use super::sessions::is_session;
use crate::draft::instant;
use crate::token::{Identity, MAX_TOKEN_BYTES, MIN_TOKEN_BYTES, Role, digest, new_id, new_token};
use crate::{
    Actor, ControlError, Entry, EntryFilter, Expected, Kind, Millis, Page, RepositoryError,
};

/// Former secrets of a token that are remembered, so that none comes back.
const MAX_RETIRED: usize = 50;

/// What the id of every token begins with that is no session.
const TOKEN_PREFIX: &str = "token_";

/// The id of the token that is made at the first start, or given in the environment.
pub const FIRST_TOKEN: &str = "token_first";

/// A token to be made.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The tenant of a tenant admin.
    pub tenant: Option<String>,
    /// When it ends, in RFC 3339.
    pub expires_at: Option<String>,
}

impl NewToken {
    pub(super) fn check(&self, now: Millis) -> Result<(), ControlError> {
        let invalid = |field: &str, message: &str| Err(ControlError::invalid(field, message));
        match (self.role, &self.tenant) {
            (Role::TenantAdmin, None) => {
                return invalid("tenant_id", "is missing: a tenant admin is one of a tenant");
            }
            (Role::TenantAdmin, Some(tenant)) if tenant.is_empty() => {
                return invalid("tenant_id", "must not be empty");
            }
            // It becomes part of scopes, where a colon ends it.
            (Role::TenantAdmin, Some(tenant)) if tenant.contains(':') => {
                return invalid("tenant_id", "of a tenant admin must not have a colon");
            }
            (Role::TenantAdmin, Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                return invalid("tenant_id", "is for the role tenant_admin: leave it out");
            }
        }
        match self.expires_at.as_deref().map(instant) {
            Some(None) => invalid("expires_at", "must be an instant such as 2027-01-31T12:00:00Z"),
            Some(Some(at)) if at <= now => invalid("expires_at", "is in the past"),
            _ => Ok(()),
        }
    }
}

impl Control {
    /// Whose token this is; `None`: nobody's, or one that has ended.
    pub async fn authenticate(
        &self,
        token: &str,
        now: Millis,
    ) -> Result<Option<Identity>, ControlError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Ok(None);
        }
        if !self.is_open.load(Ordering::Relaxed) {
            let why = "it has not been opened yet".to_owned();
            return Err(RepositoryError::Unavailable(why).into());
        }
        let given = digest(token);
        let found = self.repository().token(&given).await?;
        Ok(found.and_then(|entry| bearer(&entry, &given, now)))
    }

    /// Whether a token is still what it was when its bearer was identified: not revoked, and with the same secret.
    pub async fn is_still(&self, identity: &Identity) -> Result<bool, ControlError> {
        let found = self.repository().get(Kind::Token, &identity.token_id).await?;
        Ok(found.is_some_and(|entry| entry.version == identity.version && !is_revoked(&entry)))
    }

    /// Makes a token. It is shown to the caller, and never again.
    pub async fn create_token(
        &self,
        actor: &Actor,
        new: &NewToken,
        now: Millis,
    ) -> Result<(Entry, String), ControlError> {
        new.check(now)?;
        let token = new_token().map_err(no_random)?;
        let id = new_id(TOKEN_PREFIX).map_err(no_random)?;
        self.put_token(actor, "token.create", id.clone(), new, &token, Expected::Absent).await?;
        Ok((self.token_entry(&id).await?, token))
    }

    async fn put_token(
        &self,
        actor: &Actor,
        action: &'static str,
        id: String,
        new: &NewToken,
        token: &str,
        expected: Expected,
    ) -> Result<(), ControlError> {
        let body = json!({
            "token_id": id, "name": new.name, "role": new.role.name(), "tenant_id": new.tenant,
            "digest": digest(token), "expires_at": new.expires_at,
        });
        let mut write = self.write(action, (Kind::Token, id), None, Some(body), new.tenant.clone());
        write.expected = expected;
        let committed = self.repository().commit(None, &[write], actor).await;
        self.tokens.invalidate().await;
        committed?;
        Ok(())
    }

    pub(super) async fn token_entry(&self, id: &str) -> Result<Entry, ControlError> {
        let found = self.repository().get(Kind::Token, id).await?;
        found.ok_or_else(|| ControlError::NotFound("token", id.to_owned()))
    }

    /// Gives a token a new secret; the old one ends at once.
    pub async fn rotate_token(
        &self,
        actor: &Actor,
        id: &str,
    ) -> Result<(Entry, String), ControlError> {
        let old = self.token_entry(id).await?;
        if is_session(id) {
            let message = "it is the session of a person, who signs in again: revoke it instead";
            return Err(ControlError::Conflict(message.to_owned()));
        }
        if is_revoked(&old) {
            let message = format!("token {id:?} is revoked: make another one");
            return Err(ControlError::Conflict(message));
        }
        let token = new_token().map_err(no_random)?;
        let mut body = old.body.clone();
        if let Some(body) = body.as_object_mut() {
            let former = body.insert("digest".to_owned(), Value::String(digest(&token)));
            let retired = body.entry("retired").or_insert_with(|| json!([]));
            if let (Some(retired), Some(former)) = (retired.as_array_mut(), former) {
                retired.push(former);
                let spare = retired.len().saturating_sub(MAX_RETIRED);
                retired.drain(..spare);
            }
        }
        self.change_token(actor, "token.rotate", &old, body).await?;
        Ok((self.token_entry(id).await?, token))
    }

    /// Ends a token. Ending it twice is harmless. The last one that may give tokens cannot be ended.
    pub async fn revoke_token(
        &self,
        actor: &Actor,
        id: &str,
        now: Millis,
    ) -> Result<Entry, ControlError> {
        let old = self.token_entry(id).await?;
        if is_revoked(&old) {
            return Ok(old);
        }
        if role_of(&old) == Some(Role::Admin) && !is_session(id) {
            let page = Page { after: None, limit: 10_000 };
            // Sessions end by themselves, and need a provider: none of them is the one that is left.
            let tokens =
                EntryFilter { prefix: Some(TOKEN_PREFIX.to_owned()), ..EntryFilter::default() };
            let all = self.repository().list(Kind::Token, &tokens, &page).await?;
            let is_left = |entry: &&Entry| {
                let digest = entry.body.get("digest").and_then(Value::as_str).unwrap_or_default();
                let bearer = bearer(entry, digest, now);
                entry.id != id && bearer.is_some_and(|bearer| bearer.role == Role::Admin)
            };
            if !all.iter().any(|entry| is_left(&entry)) {
                let message = "it is the last admin token: make another one first";
                return Err(ControlError::Conflict(message.to_owned()));
            }
        }
        let mut body = old.body.clone();
        if let Some(body) = body.as_object_mut() {
            let at = crate::draft::rfc3339(now);
            body.insert("revoked_at".to_owned(), Value::String(at));
        }
        self.change_token(actor, "token.revoke", &old, body).await?;
        self.token_entry(id).await
    }

    async fn change_token(
        &self,
        actor: &Actor,
        action: &'static str,
        old: &Entry,
        body: Value,
    ) -> Result<(), ControlError> {
        let place = (Kind::Token, old.id.clone());
        let write = self.write(action, place, Some(old), Some(body), old.tenant.clone());
        match self.repository().commit(None, &[write], actor).await {
            Ok(_) => Ok(()),
            Err(RepositoryError::Conflict { .. }) => {
                let message = "the token was changed meanwhile; look again";
                Err(ControlError::Conflict(message.to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes sure that there is an admin token: the given one, or at the very first start a new one,
    /// which is returned to be shown once.
    pub async fn first_token(&self, given: Option<&str>) -> Result<Option<String>, ControlError> {
        let actor = Actor { name: "first start".to_owned(), ..Actor::default() };
        let new = NewToken {
            name: "first".to_owned(),
            role: Role::Admin,
            tenant: None,
            expires_at: None,
        };
        let id = FIRST_TOKEN.to_owned();
        if let Some(token) = given {
            if !(MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&token.len()) {
                let message = format!("must have {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} bytes");
                return Err(ControlError::invalid("TOLLGATE_ADMIN_TOKEN", message));
            }
            let digest = digest(token);
            // One that was revoked stays so: the environment does not bring it back.
            if self.repository().token(&digest).await?.is_some() {
                return Ok(None);
            }
            let old = self.repository().get(Kind::Token, FIRST_TOKEN).await?;
            let retired = old.as_ref().and_then(|old| old.body.get("retired")?.as_array());
            if retired.into_iter().flatten().any(|former| former.as_str() == Some(&digest)) {
                tracing::warn!("TOLLGATE_ADMIN_TOKEN is a token that was rotated: it is not used");
                return Ok(None);
            }
            let action = if old.is_some() { "token.rotate" } else { "token.create" };
            let put = self.put_token(&actor, action, id, &new, token, Expected::Any).await;
            return put.map(|()| None);
        }
        let page = Page { after: None, limit: 1 };
        let any = self.repository().list(Kind::Token, &EntryFilter::default(), &page).await?;
        if !any.is_empty() {
            return Ok(None);
        }
        let token = new_token().map_err(no_random)?;
        let put = self.put_token(&actor, "token.create", id, &new, &token, Expected::Absent).await;
        match put {
            Ok(()) => Ok(Some(token)),
            // Another node was faster, and shows it.
            Err(ControlError::Repository(RepositoryError::Conflict { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_revoked(entry: &Entry) -> bool {
    entry.body.get("revoked_at").is_some_and(|at| !at.is_null())
}

fn role_of(entry: &Entry) -> Option<Role> {
    entry.body.get("role").and_then(Value::as_str).and_then(Role::from_name)
}

/// Who bears this token, if it still holds.
fn bearer(entry: &Entry, given: &str, now: Millis) -> Option<Identity> {
    let text = |name: &str| entry.body.get(name).and_then(Value::as_str);
    let is_same = text("digest")?.as_bytes().ct_eq(given.as_bytes());
    let expires_at = match text("expires_at") {
        // An end that cannot be read has come.
        Some(at) => Some(instant(at)?),
        None => None,
    };
    let is_over = expires_at.is_some_and(|at| at <= now);
    if !bool::from(is_same) || is_over || is_revoked(entry) {
        return None;
    }
    let role = role_of(entry)?;
    let tenant = text("tenant_id").map(str::to_owned);
    // A tenant admin without a tenant would be one of all tenants.
    if (role == Role::TenantAdmin) != tenant.is_some() {
        return None;
    }
    let name = text("name").unwrap_or_default().to_owned();
    let (token_id, version) = (entry.id.clone(), entry.version);
    Some(Identity { token_id, name, role, tenant, expires_at, version })
}

pub(super) fn no_random(error: impl std::fmt::Display) -> ControlError {
    ControlError::Internal(format!("the system has no random bytes: {error}"))
}
