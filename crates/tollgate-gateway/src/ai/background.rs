//! Responses that an upstream makes in the background (`background: true`): who may ask for them, and what is reserved
//! for them until it is known what they used.
//!
//! A reservation that is not settled within [`Background::new`]'s time stays charged as it was estimated.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_policy::prices::Usage;
use tollgate_tower::{Identity, PendingCharge};

use super::ask::{Ask, Call};
use super::meter::pay;
use crate::places::{Party, Places};

/// The most responses that are remembered, over all callers.
const MAX_RESPONSES: usize = 10_000;

/// The longest id of a response.
pub(crate) const MAX_ID_BYTES: usize = 128;

/// Whose a response is: only the same caller may ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    party: Party,
    user_id: Option<String>,
}

impl Owner {
    pub(crate) fn of(identity: &Identity) -> Self {
        Self { party: Party::of(identity), user_id: identity.user_id.clone() }
    }
}

/// What is needed to ask for a response again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// The pool's place.
    pub(crate) pool: usize,
    /// What its prompt was estimated at.
    pub(crate) prompt: u64,
    pub(crate) max_usage: u64,
    pub(crate) shown_name: Option<String>,
}

#[derive(Debug)]
struct Response {
    owner: Owner,
    source: Source,
    /// What is reserved for it; nothing once it is settled.
    pending_charges: Vec<PendingCharge>,
    expires: Instant,
    is_deleted: bool,
}

/// What is known of an id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing.
    Unknown,
    /// It is another caller's, or was deleted.
    Hidden,
    /// It is this caller's.
    Own(Source),
}

/// Responses that are made in the background.
#[derive(Debug)]
pub(crate) struct Background {
    ttl: Duration,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    responses: HashMap<Box<str>, Response>,
    places: Places,
    /// By when they expire: all live equally long.
    ages: VecDeque<(Instant, Box<str>)>,
}

impl Known {
    /// Forgets what has expired. Its charges are left as they are.
    fn expire(&mut self, now: Instant) -> Vec<PendingCharge> {
        let mut pending_charges = Vec::new();
        while let Some((expires, id)) = self.ages.pop_front() {
            if expires > now {
                self.ages.push_front((expires, id));
                break;
            }
            if self.responses.get(&id).is_some_and(|it| it.expires == expires)
                && let Some(response) = self.responses.remove(&id)
            {
                self.places.give_back(&response.owner.party);
                pending_charges.extend(response.pending_charges);
            }
        }
        pending_charges
    }
}

impl Background {
    /// Remembers each for so long.
    pub(crate) fn new(ttl: Duration) -> Self {
        let known = Known {
            responses: HashMap::new(),
            places: Places::new(MAX_RESPONSES),
            ages: VecDeque::new(),
        };
        Self { ttl, known: Mutex::new(known) }
    }

    /// Whether one more of this caller's can be remembered.
    pub(crate) fn has_room(&self, owner: &Owner) -> bool {
        let mut known = self.known.lock();
        let expired = known.expire(Instant::now());
        let has_room = known.places.has_room(&owner.party);
        drop(known);
        drop(expired);
        has_room
    }

    /// Remembers a response and what is reserved for it. Where there is no room the charges stay as they are, and nobody
    /// may ask for it.
    pub(crate) fn keep(
        &self,
        id: &str,
        owner: Owner,
        source: Source,
        pending_charges: Vec<PendingCharge>,
    ) {
        let now = Instant::now();
        let expires = now + self.ttl;
        let mut known = self.known.lock();
        let expired = known.expire(now);
        // An id is never handed over, not even by an upstream that states it twice.
        let is_new = !known.responses.contains_key(id);
        if is_new && id.len() <= MAX_ID_BYTES && known.places.has_room(&owner.party) {
            known.places.take(owner.party.clone());
            known.ages.push_back((expires, id.into()));
            let response = Response { owner, source, pending_charges, expires, is_deleted: false };
            known.responses.insert(id.into(), response);
        } else {
            tracing::debug!(
                id,
                "a background response is not remembered: its estimate stays charged"
            );
        }
        drop(known);
        drop(expired);
    }

    /// What is known of an id, for this caller.
    pub(crate) fn find(&self, id: &str, owner: &Owner) -> Found {
        let mut known = self.known.lock();
        let expired = known.expire(Instant::now());
        let found = match known.responses.get(id) {
            None => Found::Unknown,
            Some(it) if it.owner != *owner || it.is_deleted => Found::Hidden,
            Some(it) => Found::Own(it.source.clone()),
        };
        drop(known);
        drop(expired);
        found
    }

    /// Settles what is reserved for a response, once.
    pub(crate) fn settle(&self, id: &str, used: Usage) {
        let mut known = self.known.lock();
        let pending_charges =
            known.responses.get_mut(id).map(|it| std::mem::take(&mut it.pending_charges));
        drop(known);
        pay(pending_charges.unwrap_or_default(), used);
    }

    /// Nobody may ask for it any more. What is reserved for it stays charged.
    pub(crate) fn delete(&self, id: &str) {
        if let Some(response) = self.known.lock().responses.get_mut(id) {
            response.is_deleted = true;
        }
    }
}

/// Whether a request asks for a response in the background. What some upstream could take for a yes is one.
pub(crate) fn is_wanted(ask: &Ask<'_>) -> bool {
    let is_it = |name: &str| name.eq_ignore_ascii_case("background");
    ask.call == Call::Responses
        && ask.whole.members().any(|member| {
            is_it(&member.name) && !member.value.is_null() && member.value.boolean() != Some(false)
        })
}

/// How far a response is, by its `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It is being made, or about to be.
    UnderWay,
    /// It ended, and its usage is all that it used.
    Ended,
    /// It failed: nothing of it can be read.
    Failed,
    /// Nothing is stated, or nothing that is known here.
    Unknown,
}

impl Progress {
    pub(crate) fn of(status: &[u8]) -> Self {
        match status {
            b"queued" | b"in_progress" => Self::UnderWay,
            b"completed" | b"incomplete" => Self::Ended,
            b"failed" => Self::Failed,
            _ => Self::Unknown,
        }
    }
}

/// What a response used, where it is known to be over.
pub(crate) fn used(progress: Progress, usage: Option<Usage>, prompt: u64) -> Option<Usage> {
    match (progress, usage) {
        // It is not over, or nobody says what it used: the estimate stays.
        (Progress::UnderWay, _) | (Progress::Ended | Progress::Unknown, None) => None,
        (_, Some(usage)) => Some(usage),
        (Progress::Failed, None) => Some(Usage::new(prompt, 0)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_tower::Account;

    use super::*;

    /// What became of a charge, each time something did.
    #[derive(Clone, Default)]
    struct Book(Arc<Mutex<Vec<Option<u64>>>>);

    impl Account for Book {
        fn settle(self: Box<Self>, used: Usage, _: Vec<PendingCharge>) {
            self.0.lock().push(Some(used.total()));
        }

        fn release(self: Box<Self>) {
            self.0.lock().push(None);
        }
    }

    fn owner(tenant: &str, user: Option<&str>) -> Owner {
        let (tenant_id, user_id) = (Some(tenant.to_owned()), user.map(str::to_owned));
        Owner::of(&Identity { tenant_id, user_id, ..Identity::default() })
    }

    fn source() -> Source {
        Source { pool: 1, prompt: 10, max_usage: 1_000, shown_name: None }
    }

    fn pending_charges(book: &Book) -> Vec<PendingCharge> {
        vec![PendingCharge::new(book.clone(), 30)]
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_is_settled_once_or_stays() {
        let known = Background::new(Duration::from_secs(60));
        let (book, ann) = (Book::default(), owner("acme", Some("ann")));
        known.keep("r1", ann.clone(), source(), pending_charges(&book));
        assert_eq!(known.find("r1", &ann), Found::Own(source()));
        assert!(book.0.lock().is_empty());
        known.settle("r1", Usage::new(10, 7));
        known.settle("r1", Usage::new(10, 8));
        assert_eq!(*book.0.lock(), [Some(17)]);
        assert_eq!(known.find("r1", &ann), Found::Own(source()), "it can still be read");
        known.keep("r2", ann.clone(), source(), pending_charges(&book));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(known.find("r2", &ann), Found::Unknown);
        known.settle("r2", Usage::new(1, 0));
        assert_eq!(*book.0.lock(), [Some(17)], "an estimate that expired stays charged");
        let left = known.known.lock();
        assert_eq!((left.places.taken(), left.responses.len(), left.ages.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_else_may_ask_for_a_response() {
        let known = Background::new(Duration::from_secs(60));
        let (book, ann) = (Book::default(), owner("acme", Some("ann")));
        known.keep("r1", ann.clone(), source(), pending_charges(&book));
        for other in [owner("acme", Some("bob")), owner("other", Some("ann")), owner("acme", None)]
        {
            assert_eq!(known.find("r1", &other), Found::Hidden);
        }
        // Not even where an upstream gives the same id to another.
        known.keep("r1", owner("other", None), source(), pending_charges(&book));
        assert_eq!(known.find("r1", &owner("other", None)), Found::Hidden);
        assert_eq!(known.find("r1", &ann), Found::Own(source()));
        known.delete("r1");
        assert_eq!(known.find("r1", &ann), Found::Hidden);
        assert_eq!(known.find("r3", &ann), Found::Unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn no_caller_has_them_all() {
        let known = Background::new(Duration::from_secs(60));
        let (loud, good) = (owner("loud", None), owner("good", None));
        let mut kept = 0;
        while known.has_room(&loud) {
            known.keep(&format!("l{kept}"), loud.clone(), source(), Vec::new());
            kept += 1;
        }
        assert!(kept < MAX_RESPONSES / 2, "{kept}");
        assert!(known.has_room(&good));
        known.keep(&"x".repeat(MAX_ID_BYTES + 1), good.clone(), source(), Vec::new());
        assert_eq!(known.find(&"x".repeat(MAX_ID_BYTES + 1), &good), Found::Unknown);
    }

    #[test]
    fn what_may_be_taken_for_a_yes_is_one() {
        for (body, expected) in [
            (r#"{"model":"m"}"#, false),
            (r#"{"model":"m","background":false}"#, false),
            (r#"{"model":"m","background":null}"#, false),
            (r#"{"model":"m","background":true}"#, true),
            (r#"{"model":"m","background":1}"#, true),
            (r#"{"model":"m","background":"true"}"#, true),
            (r#"{"model":"m","background":false,"background":true}"#, true),
            (r#"{"model":"m","Background":true}"#, true),
        ] {
            let ask = Ask::read(Call::Responses, body.as_bytes(), None).unwrap();
            assert_eq!(is_wanted(&ask), expected, "{body}");
        }
        let chat = Ask::read(Call::Chat, br#"{"model":"m","background":true}"#, None).unwrap();
        assert!(!is_wanted(&chat));
    }

    #[test]
    fn only_what_has_ended_is_settled() {
        let usage = Some(Usage::new(5, 2));
        for (status, stated, expected) in [
            ("queued", None, None),
            ("in_progress", usage, None),
            ("completed", usage, usage),
            ("completed", None, None),
            ("incomplete", usage, usage),
            ("failed", None, Some(Usage::new(10, 0))),
            ("cancelled", None, None),
            ("cancelled", usage, usage),
        ] {
            let found = used(Progress::of(status.as_bytes()), stated, 10);
            assert_eq!(found, expected, "{status}");
        }
    }
}
