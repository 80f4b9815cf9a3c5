//! Sessions of people who signed in at a provider of identities. A session is a token that nobody reads, with the name
//! of the person, that ends by itself.

use serde_json::{Value, json};

use super::tokens::no_random;
use super::{Control, NewToken};
use crate::draft::instant;
use crate::token::{digest, new_id, new_session_token};
use crate::{Actor, ControlError, Entry, EntryFilter, Kind, Millis, Page, RepositoryError};

/// What the id of every session begins with.
const PREFIX: &str = "session_";

/// Sessions of one person at the same time; a further one ends the oldest.
pub const MAX_SESSIONS_PER_PERSON: usize = 10;

/// Sessions of all people at the same time, including those that have ended and were not removed yet.
pub const MAX_SESSIONS: usize = 10_000;

/// Sessions that one sign-in removes. More remain for the next.
const MAX_REMOVED: usize = 100;

const PAGE_ENTRIES: u32 = 1_000;

/// Whether the token of this id is a session.
pub fn is_session(token_id: &str) -> bool {
    token_id.starts_with(PREFIX)
}

impl Control {
    /// Begins a session of a person, whom the provider calls `subject`. Returns the token of it.
    pub async fn begin_session(
        &self,
        actor: &Actor,
        new: &NewToken,
        subject: &str,
        now: Millis,
    ) -> Result<String, ControlError> {
        new.check(now)?;
        if new.expires_at.is_none() {
            return Err(ControlError::invalid("expires_at", "is missing: a session ends"));
        }
        self.make_room(actor, subject, now).await?;
        let token = new_session_token().map_err(no_random)?;
        let id = new_id(PREFIX).map_err(no_random)?;
        let body = json!({
            "token_id": id, "name": new.name, "role": new.role.name(), "tenant_id": new.tenant,
            "digest": digest(&token), "expires_at": new.expires_at, "subject": subject,
        });
        let place = (Kind::Token, id);
        let write = self.write("session.begin", place, None, Some(body), new.tenant.clone());
        let committed = self.repository().commit(None, &[write], actor).await;
        self.tokens.invalidate().await;
        committed?;
        Ok(token)
    }

    /// Ends a session. Ending it twice is harmless; other tokens stay.
    pub async fn end_session(&self, actor: &Actor, id: &str) -> Result<(), ControlError> {
        if !is_session(id) {
            return Ok(());
        }
        match self.repository().get(Kind::Token, id).await? {
            Some(entry) => self.remove_session(actor, &entry).await,
            None => Ok(()),
        }
    }

    async fn remove_session(&self, actor: &Actor, entry: &Entry) -> Result<(), ControlError> {
        let place = (Kind::Token, entry.id.clone());
        let write = self.write("session.end", place, Some(entry), None, entry.tenant.clone());
        match self.repository().commit(None, &[write], actor).await {
            // Somebody else removed or revoked it meanwhile: it has ended either way.
            Ok(_) | Err(RepositoryError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes sessions that have ended, and the oldest of a person who has too many.
    async fn make_room(
        &self,
        actor: &Actor,
        subject: &str,
        now: Millis,
    ) -> Result<(), ControlError> {
        let (over, current): (Vec<Entry>, Vec<Entry>) =
            self.all_sessions().await?.into_iter().partition(|entry| has_ended(entry, now));
        let mut own: Vec<&Entry> =
            current.iter().filter(|entry| subject_of(entry) == Some(subject)).collect();
        own.sort_by_key(|entry| entry.created.at);
        let spare = (own.len() + 1).saturating_sub(MAX_SESSIONS_PER_PERSON);
        let spare = own.into_iter().take(spare);
        let system = Actor { name: "expiry".to_owned(), ..Actor::default() };
        let expired = over.iter().take(MAX_REMOVED);
        let mut left = over.len() + current.len();
        for (actor, entry) in
            spare.map(|entry| (actor, entry)).chain(expired.map(|entry| (&system, entry)))
        {
            self.remove_session(actor, entry).await?;
            left -= 1;
        }
        if left >= MAX_SESSIONS {
            let message = "too many people are signed in; sign in with a token, or try later";
            return Err(ControlError::Conflict(message.to_owned()));
        }
        Ok(())
    }

    async fn all_sessions(&self) -> Result<Vec<Entry>, ControlError> {
        let filter = EntryFilter { prefix: Some(PREFIX.to_owned()), ..EntryFilter::default() };
        let (mut all, mut page) = (Vec::new(), Page { after: None, limit: PAGE_ENTRIES });
        loop {
            let entries = self.repository().list(Kind::Token, &filter, &page).await?;
            let is_last = entries.len() < PAGE_ENTRIES as usize;
            page.after = entries.last().map(|last| last.id.clone());
            all.extend(entries);
            if is_last || all.len() >= MAX_SESSIONS {
                return Ok(all);
            }
        }
    }
}

fn subject_of(entry: &Entry) -> Option<&str> {
    entry.body.get("subject").and_then(Value::as_str)
}

/// Whether nobody can use it any more. An end that cannot be read has come.
fn has_ended(entry: &Entry, now: Millis) -> bool {
    let text = |name: &str| entry.body.get(name).and_then(Value::as_str);
    text("revoked_at").is_some()
        || text("expires_at").and_then(instant).is_none_or(|ends| ends <= now)
}
