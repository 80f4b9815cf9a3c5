//! Answers on their way to the requests that asked for them.
//!
//! A request may be given up at any moment: also when its answer has been sent to it and it has not yet
//! seen it. So an answer is accepted by the request, as its last step; one that is dropped instead is
//! undone.

use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::call::{Call, Sent};
use super::encode::Encoded;
use super::hub::Hub;
use super::metrics::Operation;
use super::undo::Fate;

/// A call that was answered, for as long as any of its requests may still be given up.
pub(super) struct AnsweredCall {
    pub(super) hub: Arc<Hub>,
    pub(super) encoded: Encoded,
    pub(super) slot: u16,
    pub(super) deadline: Instant,
    pub(super) sent: Sent,
    /// The first and the number of the requests that were given up.
    given_up: Mutex<SmallVec<[(usize, usize); 1]>>,
}

/// The call of these requests.
pub(super) fn call<'a>(
    hub: &'a Hub,
    encoded: &'a Encoded,
    slot: u16,
    deadline: Instant,
    may_split: bool,
) -> Call<'a> {
    Call {
        operation: Operation::Decide,
        script: &hub.scripts.decide,
        keys: &encoded.keys,
        body: &encoded.elements,
        remember: encoded.charges,
        slot,
        deadline,
        timeout: hub.timeout,
        may_split,
    }
}

impl AnsweredCall {
    pub(super) fn new(
        hub: &Arc<Hub>,
        encoded: Encoded,
        slot: u16,
        deadline: Instant,
        sent: Sent,
    ) -> Arc<Self> {
        let (hub, given_up) = (Arc::clone(hub), Mutex::default());
        Arc::new(Self { hub, encoded, slot, deadline, sent, given_up })
    }

    /// The duty to accept the answer to the requests from `first` on.
    pub(super) fn acceptance(self: &Arc<Self>, first: usize, requests: usize) -> Acceptance {
        if !self.encoded.charges {
            return Acceptance::needless();
        }
        Acceptance(Pending::Call { call: Arc::clone(self), first, requests })
    }
}

impl Drop for AnsweredCall {
    fn drop(&mut self) {
        let given_up = mem::take(self.given_up.get_mut());
        if given_up.is_empty() {
            return;
        }
        let mut fates = vec![Fate::Keep; self.encoded.replies.len()];
        for (first, requests) in given_up {
            fates.iter_mut().skip(first).take(requests).for_each(|fate| *fate = Fate::Undo);
        }
        let call = call(&self.hub, &self.encoded, self.slot, self.deadline, false);
        self.hub.undo_later(&call, &self.sent.unheard(), fates);
    }
}

/// The duty to accept an answer. Dropping it undoes what the answer reports.
#[must_use = "an answer that is not accepted is undone"]
pub(super) struct Acceptance(Pending);

enum Pending {
    /// The answer stays whether or not anybody receives it.
    Nothing,
    /// So many requests of a call, from the first on.
    Call { call: Arc<AnsweredCall>, first: usize, requests: usize },
    /// The task that holds the charges refunds them when this is dropped.
    Hold(oneshot::Sender<()>),
}

impl Acceptance {
    /// Of an answer that stays whether or not anybody receives it.
    pub(super) const fn needless() -> Self {
        Self(Pending::Nothing)
    }

    /// Of charges that a task holds, and the task's end of it.
    pub(super) fn of_hold() -> (Self, oneshot::Receiver<()>) {
        let (accepts, accepted) = oneshot::channel();
        (Self(Pending::Hold(accepts)), accepted)
    }

    pub(super) fn accept(mut self) {
        if let Pending::Hold(accepts) = mem::replace(&mut self.0, Pending::Nothing) {
            let _ = accepts.send(());
        }
    }
}

impl Drop for Acceptance {
    fn drop(&mut self) {
        if let Pending::Call { call, first, requests } = &self.0 {
            call.given_up.lock().push((*first, *requests));
        }
    }
}
