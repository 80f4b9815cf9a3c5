//! Tokens: created, rotated, revoked. A secret is shown once, to the caller that created the token.

use http::StatusCode;
use serde_json::Value;
use tollgate_control::{Entry, NewToken, Role};

use super::read::{Query, body, precondition};
use super::respond::{AdminError, Answer};
use super::routes::PREFIX;
use super::{Admin, Asked, view};

/// The longest name of a token, or of its tenant.
const MAX_NAME: usize = 256;

impl Admin {
    pub(super) async fn create_token(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        let new = new_token(body(&asked.body)?)?;
        let (entry, token) = self.control.create_token(&asked.actor, &new, asked.now).await?;
        let mut answer = with_secret(asked, &entry, token);
        answer.status = StatusCode::CREATED;
        answer.location = Some(format!("{PREFIX}tokens/{}", entry.id));
        Ok(answer)
    }

    pub(super) async fn rotate_token(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        self.check_version(asked).await?;
        let (entry, token) = self.control.rotate_token(&asked.actor, asked.id()).await?;
        Ok(with_secret(asked, &entry, token))
    }

    pub(super) async fn revoke_token(&self, asked: &Asked) -> Result<Answer, AdminError> {
        Query::new(&asked.query)?.end()?;
        self.check_version(asked).await?;
        let entry = self.control.revoke_token(&asked.actor, asked.id(), asked.now).await?;
        Ok(Answer::ok(view::entry(&entry, asked.now)).tagged(entry.version))
    }
}

impl Admin {
    /// `If-Match`, if the caller has sent it. What changes after this is a conflict.
    async fn check_version(&self, asked: &Asked) -> Result<(), AdminError> {
        let condition = precondition(&asked.headers)?;
        if condition == tollgate_control::Precondition::None {
            return Ok(());
        }
        let found =
            self.control.repository().get(tollgate_control::Kind::Token, asked.id()).await?;
        Ok(condition.check(found.map(|entry| entry.version))?)
    }
}

fn with_secret(asked: &Asked, entry: &Entry, token: String) -> Answer {
    let mut view = view::entry(entry, asked.now);
    if let Some(view) = view.as_object_mut() {
        view.insert("token".to_owned(), token.into());
    }
    Answer::ok(view).tagged(entry.version)
}

fn new_token(body: Value) -> Result<NewToken, AdminError> {
    let Value::Object(mut fields) = body else {
        return Err(AdminError::invalid("body", "must be a JSON object"));
    };
    let mut text = |name: &str| match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() > MAX_NAME => {
            Err(AdminError::invalid(name, format!("is longer than {MAX_NAME} bytes")))
        }
        Some(Value::String(text)) if text.chars().any(char::is_control) => {
            Err(AdminError::invalid(name, "must not have control characters"))
        }
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(AdminError::invalid(name, "must be a string")),
    };
    let (name, role) = (text("name")?, text("role")?);
    let (tenant, expires_at) = (text("tenant_id")?, text("expires_at")?);
    if let Some(unknown) = fields.keys().next() {
        let shown: String = unknown.chars().take(64).collect();
        let message = "is not a field of this; there are name, role, tenant_id, expires_at";
        return Err(AdminError::invalid(&shown, message));
    }
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Err(AdminError::invalid("name", "is missing: say whose token it is"));
    };
    let Some(role) = role.as_deref().and_then(Role::from_name) else {
        let known = Role::ALL.map(Role::name).join(", ");
        return Err(AdminError::invalid("role", format!("must be one of {known}")));
    };
    Ok(NewToken { name, role, tenant, expires_at })
}
