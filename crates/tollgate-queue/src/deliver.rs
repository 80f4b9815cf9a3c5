//! One claimed request: may it pass, and what became of it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{MissedTickBehavior, interval_at, sleep};
use tollgate_tower::{Decide, Pass, Rejection, Ruling, Sent};

use super::line::Queue;
use super::request::{StoredRequest, StoredResponse};
use super::store::{Claim, QueueError};

/// How soon a request that may not pass yet is looked at again, at the latest: its rules may have changed,
/// or others may have given back what they took.
pub const LONGEST_RECHECK: Duration = Duration::from_secs(30);

/// And at the soonest.
const SHORTEST_RECHECK: Duration = Duration::from_millis(5);

/// How soon a request is looked at again that could not be decided, because the counters' store is away.
const UNDECIDED_RECHECK: Duration = Duration::from_secs(1);

/// A claim is renewed so many times before it would end.
const RENEWALS_PER_LEASE: u32 = 3;

/// How often it is tried to note what became of a request. Not noted, it is sent again.
const NOTE_TRIES: u32 = 5;

/// The pause before the second try; it doubles with each further one.
const FIRST_NOTE_PAUSE: Duration = Duration::from_millis(100);

/// Why a request was not sent, or its answer not received.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ForwardError {
    /// Whether it may go better another time.
    pub retryable: bool,
    /// What went wrong. Clients see it on their tickets.
    pub message: String,
}

/// Sends queued requests to their upstreams.
pub trait Forward: Send + Sync + 'static {
    /// Sends one, and waits for the whole answer. The ticket goes with it as its idempotency key: the same
    /// request may be sent more than once. `sent` shows that its charge is kept.
    fn forward(
        &self,
        request: &StoredRequest,
        ticket: &str,
        sent: &Sent,
    ) -> impl Future<Output = Result<StoredResponse, ForwardError>> + Send;
}

impl<F: Forward> Forward for Arc<F> {
    async fn forward(
        &self,
        request: &StoredRequest,
        ticket: &str,
        sent: &Sent,
    ) -> Result<StoredResponse, ForwardError> {
        F::forward(self, request, ticket, sent).await
    }
}

/// How a claim ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Noted.
    Noted,
    /// Somebody else has the entry, or it is gone.
    Lost,
}

/// Does with a claim what its rules say.
pub(super) async fn deliver(
    queue: &Queue,
    decide: &impl Decide,
    forward: &impl Forward,
    claim: Claim,
) {
    let request = match StoredRequest::decode(&claim.request) {
        Ok(request) => request,
        Err(error) => {
            note(&claim, || queue.store().fail(&claim, "it cannot be read", None)).await;
            tracing::warn!(ticket = short(&claim.id), %error, "a queued request cannot be read");
            return;
        }
    };
    let ended = match decide.decide(&request.asked).await {
        Ruling::Pass(pass) => send(queue, forward, &claim, &request, pass).await,
        Ruling::Queue(postponed) => later(queue, &claim, postponed.retry_after).await,
        Ruling::Refuse(refusal) => {
            if let Some(wait) = recheck_in(&refusal) {
                later(queue, &claim, wait).await
            } else {
                let status = refusal.status.as_u16();
                let why = format!("refused with {status}: {}", refusal.message);
                note(&claim, || queue.store().fail(&claim, &why, None)).await
            }
        }
    };
    if ended == Ending::Lost {
        tracing::debug!(ticket = short(&claim.id), "a claim on a queued request was lost");
    }
}

async fn later(queue: &Queue, claim: &Claim, wait: Duration) -> Ending {
    let wait = wait.clamp(SHORTEST_RECHECK, LONGEST_RECHECK);
    note(claim, || queue.store().postpone(claim, wait)).await
}

/// Sends it, and holds the claim meanwhile.
async fn send(
    queue: &Queue,
    forward: &impl Forward,
    claim: &Claim,
    request: &StoredRequest,
    pass: Pass,
) -> Ending {
    let Pass { wait, held, charge, .. } = pass;
    let forwarded = async {
        if !wait.is_zero() {
            sleep(wait).await;
        }
        // From here on the upstream may serve it: the charge is kept, whatever becomes of it. A claim
        // that is lost while the request waits drops the charge, which refunds it.
        let sent = charge.sent();
        forward.forward(request, &claim.id, &sent).await
    };
    let Some(forwarded) = while_held(queue, claim, forwarded).await else { return Ending::Lost };
    let options = queue.store().options();
    let ended = match forwarded {
        Ok(response) => {
            let response = response.bounded(options.max_response_bytes);
            note(claim, || queue.store().complete(claim, &response)).await
        }
        Err(error) => {
            let is_tried_again = error.retryable && claim.attempts < options.max_attempts;
            let pause = is_tried_again.then(|| options.back_off(claim.attempts));
            note(claim, || queue.store().fail(claim, &error.message, pause)).await
        }
    };
    drop(held);
    ended
}

/// Renews the claim until `work` is done. Nothing if the claim was lost: somebody else sends it now.
async fn while_held<T>(queue: &Queue, claim: &Claim, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let period = (queue.store().options().lease / RENEWALS_PER_LEASE).max(SHORTEST_RECHECK);
    let mut renewals = interval_at(tokio::time::Instant::now() + period, period);
    renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            done = &mut work => return Some(done),
            _ = renewals.tick() => {
                // The work goes on while the store is asked: it must not wait for it.
                let renewed = tokio::select! {
                    done = &mut work => return Some(done),
                    renewed = queue.store().renew(claim) => renewed,
                };
                if renewed == Ok(false) {
                    return None;
                }
            }
        }
    }
}

/// Notes what became of a claim; a store that is away for a moment is tried again.
async fn note<F, N>(claim: &Claim, mut noted: N) -> Ending
where
    N: FnMut() -> F,
    F: Future<Output = Result<bool, QueueError>>,
{
    let mut pause = FIRST_NOTE_PAUSE;
    for attempt in 1..=NOTE_TRIES {
        match noted().await {
            Ok(true) => return Ending::Noted,
            Ok(false) => return Ending::Lost,
            Err(error) if attempt == NOTE_TRIES => {
                tracing::warn!(ticket = short(&claim.id), %error,
                    "what became of a queued request could not be noted; it is tried again");
            }
            Err(_) => {
                sleep(pause).await;
                pause *= 2;
            }
        }
    }
    Ending::Lost
}

/// When a refused request is worth another look, if ever: a limit that says when, or a store that does not answer.
fn recheck_in(refusal: &Rejection) -> Option<Duration> {
    match refusal.status {
        status if status.is_server_error() => Some(UNDECIDED_RECHECK),
        StatusCode::TOO_MANY_REQUESTS => refusal.retry_after,
        _ => None,
    }
}

/// As much of a ticket as a log may show: a reader that knows all of it may read the answer.
pub(super) fn short(ticket: &str) -> &str {
    ticket.get(..8).unwrap_or_default()
}
