//! One request over several slots of a cluster.
//!
//! Every slot holds its part first, all in parallel; when one has no room, the others are given back by
//! their receipts. That is never more than the limits admit, but for a moment it may be less: a hold may
//! refuse a request that would have fitted. The whole of it runs in a task of its own, which goes on when
//! the caller does not.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_core::{Ask, Limit, Nanos, Outcome};

use super::decide::{Judged, NOTHING, Verdict, Waiting, passes, verdict, wait};
use super::encode::{Encoded, Lines, push_receipt};
use super::figures::{self, Line, Seen};
use super::hub::Hub;
use super::key::Keys;
use super::operations::{Returns, is_charged};
use crate::{Failure, Mode, Request, Role};

/// How often a give-back is tried that must not be left out.
const TRIES: u32 = 5;

/// How long before its deadline a caller is told of a refusal in any case.
const MARGIN: Duration = Duration::from_millis(2);

/// A charge that belongs to the task.
#[derive(Clone)]
struct Owned {
    /// Its place in the request.
    place: usize,
    /// The place in the part of the first charge that goes to the same counter.
    counter: usize,
    limit: Limit,
    ask: Ask,
    role: Role,
}

impl Owned {
    fn line(&self) -> Line<'_> {
        let Self { counter, limit, ask, role, .. } = self;
        Line { counter: *counter, limit, ask: *ask, role: *role }
    }
}

/// The charges of one slot.
struct Part {
    slot: u16,
    keys: Keys,
    charges: Vec<Owned>,
}

impl Part {
    fn lines(&self) -> Lines<'_> {
        self.charges.iter().map(Owned::line).collect()
    }

    fn encoded(&self, mode: Mode, clock: Nanos) -> Result<Encoded, Failure> {
        let mut encoded = Encoded::default();
        encoded.begin(mode, self.charges.len());
        for charge in &self.charges {
            encoded.charge(&charge.limit, &charge.ask, charge.role, clock)?;
        }
        encoded.keys = self.keys.clone();
        Ok(encoded)
    }

    /// What was charged, for a give-back.
    fn returns(&self, outcomes: &[Outcome]) -> Returns {
        let mut returns = Returns::of_slot(self.slot);
        for (index, (charge, outcome)) in self.charges.iter().zip(outcomes).enumerate() {
            if is_charged(&outcome.receipt)
                && push_receipt(&mut returns.body, &charge.limit, &outcome.receipt)
            {
                returns.keys.push(self.keys.get(index).unwrap_or_default());
            }
        }
        returns
    }
}

/// Outcome and instant of every charge, by its place in the request.
type Told = Vec<(Outcome, Nanos)>;

impl Hub {
    /// Begins to decide a request; it goes on by itself.
    pub(super) fn hold_several(
        self: &Arc<Self>,
        request: &Request<'_>,
        clock: Nanos,
        deadline: Instant,
    ) -> Waiting<Told> {
        let parts = self.parts(request);
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(Arc::clone(self).hold(request.mode, parts, clock, deadline, sender));
        receiver
    }

    fn parts(&self, request: &Request<'_>) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for (place, charge) in request.charges.iter().enumerate() {
            let mut key = Keys::default();
            self.speller.push_counter(&charge.counter, &mut key);
            let slot = self.slot_of(key.get(0).unwrap_or_default());
            let known = parts.iter().position(|part| part.slot == slot).unwrap_or(parts.len());
            if known == parts.len() {
                parts.push(Part { slot, keys: Keys::default(), charges: Vec::new() });
            }
            let Some(part) = parts.get_mut(known) else { continue };
            let index = part.keys.len();
            part.keys.append(&key);
            let counter = part.keys.first_like(0, index);
            let (limit, ask, role) = (charge.limit.clone(), charge.ask, charge.role);
            part.charges.push(Owned { place, counter, limit, ask, role });
        }
        parts
    }

    /// Holds all parts, and gives back if the request does not pass, or nobody wants to know any more.
    async fn hold(
        self: Arc<Self>,
        mode: Mode,
        parts: Vec<Part>,
        clock: Nanos,
        deadline: Instant,
        reply: oneshot::Sender<Result<Told, Failure>>,
    ) {
        let part_mode = if mode == Mode::Charge { Mode::Hold } else { mode };
        let mut waiting = Vec::new();
        for part in &parts {
            let submitted = match part.encoded(part_mode, clock) {
                Ok(encoded) => self.submit(encoded, part.slot, deadline).await,
                Err(failure) => Err(failure),
            };
            waiting.push(submitted);
        }
        let mut judged = Vec::new();
        for (part, waiting) in parts.iter().zip(waiting) {
            judged.push(match waiting {
                Ok(waiting) => {
                    self.judge(part, part_mode, wait(waiting, deadline).await, deadline).await
                }
                Err(failure) => Err(failure),
            });
        }
        let failure = judged.iter().find_map(|judged| judged.as_ref().err()).copied();
        let keeps = failure.is_none()
            && (!part_mode.charges(true) || mode == Mode::Owe || all_pass(mode, &parts, &judged));
        let mut outcomes: Vec<Vec<Outcome>> = Vec::new();
        for (part, judged) in parts.iter().zip(&judged) {
            outcomes.push(match judged {
                Ok(judged) => told(part, part_mode, judged, judged.charged),
                Err(_) => Vec::new(),
            });
        }
        let answer = match failure {
            Some(failure) => Err(failure),
            None => Ok(in_order(&parts, &judged, &outcomes, part_mode, keeps)),
        };
        let mut untold = Some((reply, answer));
        if keeps && let Some((reply, answer)) = untold.take() {
            // If nobody wants to know any more, nobody is served, and nobody pays.
            if reply.send(answer).is_ok() || mode == Mode::Owe {
                return;
            }
        }
        let mut returning = tokio::task::JoinSet::new();
        for (part, outcomes) in parts.iter().zip(&outcomes) {
            let returns = part.returns(outcomes);
            if returns.keys.len() > 0 {
                returning.spawn(Arc::clone(&self).return_surely(returns));
            }
        }
        let mut returned = async || while returning.join_next().await.is_some() {};
        if let Some((reply, answer)) = untold {
            // A refusal is told when it has left no trace, if that is soon.
            let soon = deadline.checked_sub(MARGIN).unwrap_or(deadline);
            let _ = tokio::time::timeout_at(soon, returned()).await;
            let _ = reply.send(answer);
        }
        returned().await;
    }

    /// What a script made of a part, asked again where no calendar window fitted.
    async fn judge(
        self: &Arc<Self>,
        part: &Part,
        mode: Mode,
        answer: Result<super::lane::Answer, Failure>,
        deadline: Instant,
    ) -> Result<Judged, Failure> {
        let mut answer = answer?;
        for _ in 0..3 {
            let numbers = &mut answer.numbers.into_iter();
            let clock = match verdict(&part.lines(), answer.now, numbers) {
                Some(Verdict::Judged(judged)) => return Ok(judged),
                Some(Verdict::Outside(clock)) => clock,
                Some(Verdict::Foreign) => {
                    self.strangers.report(&part.keys);
                    return Err(Failure::ForeignKey);
                }
                None => return Err(Failure::Protocol),
            };
            let waiting = self.submit(part.encoded(mode, clock)?, part.slot, deadline).await?;
            answer = wait(waiting, deadline).await?;
        }
        Err(Failure::Protocol)
    }

    /// Gives back, and tries again for a while: what stays held is lost to others until its window ends.
    async fn return_surely(self: Arc<Self>, returns: Returns) {
        for attempt in 1..=TRIES {
            match self.give_back_slot(&returns).await {
                Ok(()) | Err(Failure::ForeignKey) => return,
                Err(_) => tokio::time::sleep(self.timeout * attempt * 2).await,
            }
        }
    }
}

fn all_pass(mode: Mode, parts: &[Part], judged: &[Result<Judged, Failure>]) -> bool {
    let (mut lines, mut seen) = (Lines::new(), SmallVec::<[Seen; 8]>::new());
    for (part, judged) in parts.iter().zip(judged) {
        let Ok(judged) = judged else { return false };
        lines.extend(part.lines());
        seen.extend(judged.seen.iter().copied());
    }
    passes(mode, &lines, &seen)
}

fn told(part: &Part, mode: Mode, judged: &Judged, charged: bool) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(part.charges.len());
    let push = |outcome| outcomes.push(outcome);
    figures::replay(mode, &part.lines(), &judged.seen, charged, judged.at, push);
    outcomes
}

/// The outcomes in the order of the request. Where it does not pass, they show the counters without our
/// own hold.
fn in_order(
    parts: &[Part],
    judged: &[Result<Judged, Failure>],
    outcomes: &[Vec<Outcome>],
    mode: Mode,
    keeps: bool,
) -> Vec<(Outcome, Nanos)> {
    let charges = parts.iter().map(|part| part.charges.len()).sum();
    let mut ordered = vec![(NOTHING, 0); charges];
    for ((part, judged), outcomes) in parts.iter().zip(judged).zip(outcomes) {
        let Ok(judged) = judged else { continue };
        let without;
        let outcomes = if keeps {
            outcomes
        } else {
            without = told(part, mode, judged, false);
            &without
        };
        for (charge, outcome) in part.charges.iter().zip(outcomes) {
            if let Some(entry) = ordered.get_mut(charge.place) {
                *entry = (*outcome, judged.at);
            }
        }
    }
    ordered
}
