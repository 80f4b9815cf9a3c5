//! One request over several slots of a cluster.
//!
//! Every slot holds its part first, all in parallel; when one has no room, the others are given back by
//! their receipts. That is never more than the limits admit, but for a moment it may be less: a hold may
//! refuse a request that would have fitted. The whole of it runs in a task of its own, which goes on when
//! the caller does not.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_core::{Ask, Limit, Nanos, Outcome, Refundable};

use super::call::answer_retention;
use super::decide::{Judged, NOTHING, Verdict, Waiting, passes, verdict, wait};
use super::delivery::Acceptance;
use super::encode::{Encoded, Lines, push_close, push_receipt};
use super::figures::{self, Line, Seen};
use super::hub::Hub;
use super::key::Keys;
use super::metrics::Operation;
use super::node_connection::Answer;
use super::operations::{Returns, is_charged};
use crate::{Failure, Mode, Request, Role};

/// How long after a give-back that failed it is tried again; twice as long each time.
const RETURN_PAUSE: Duration = Duration::from_millis(20);

/// How long before its deadline a caller receives a refusal in any case.
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
    /// It is refundable only until the request has passed.
    is_hold: bool,
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

    /// What is given back where the request does not pass. A slot that was held before stays held.
    fn returns(&self, outcomes: &[Outcome], seen: &[Seen]) -> Returns {
        let mut returns = Returns::of_slot(self.slot);
        let seen = seen.iter().map(Some).chain(std::iter::repeat(None));
        let charged = self.charges.iter().zip(outcomes).zip(seen).enumerate();
        for (index, ((charge, outcome), seen)) in charged {
            let was_held = seen.is_some_and(Seen::is_own_slot);
            if is_charged(&outcome.receipt)
                && !was_held
                && push_receipt(&mut returns.body, &charge.limit, &outcome.receipt)
            {
                returns.keys.push(self.keys.get(index).unwrap_or_default());
            }
        }
        returns
    }

    /// The holds that become final where the request passes. A few are left to expire, which costs no call; of many, each
    /// would soon push out one whose request is not decided yet.
    fn closes(&self, outcomes: &[Outcome], seen: &[Seen]) -> Returns {
        let mut closes = Returns::of_slot(self.slot);
        if !seen.iter().any(Seen::has_many_holds) {
            return closes;
        }
        for (index, (charge, outcome)) in self.charges.iter().zip(outcomes).enumerate() {
            if charge.is_hold && push_close(&mut closes.body, &charge.limit, &outcome.receipt) {
                closes.keys.push(self.keys.get(index).unwrap_or_default());
            }
        }
        closes
    }
}

/// What became of a request whose parts are held in several slots.
pub(super) struct HeldParts {
    /// Outcome and instant of every charge, by its place in the request.
    pub(super) outcomes: Vec<(Outcome, Nanos)>,
    pub(super) acceptance: Acceptance,
}

impl Hub {
    /// Begins to decide a request; a task of its own continues.
    pub(super) fn hold_several(
        self: &Arc<Self>,
        request: &Request<'_>,
        clock: Nanos,
        deadline: Instant,
    ) -> Waiting<HeldParts> {
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
            let (limit, role) = (charge.limit.clone(), charge.role);
            // If another part refuses, it is refunded, however many others were charged meanwhile.
            let ask = charge.ask.refundable_as_hold();
            let is_hold = charge.ask.refundable == Refundable::No;
            part.charges.push(Owned { place, counter, limit, ask, role, is_hold });
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
        reply: oneshot::Sender<Result<HeldParts, Failure>>,
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
                Ok(judged) => outcomes_of(part, part_mode, judged, judged.charged),
                Err(_) => Vec::new(),
            });
        }
        let answer = match failure {
            Some(failure) => Err(failure),
            None => Ok(in_order(&parts, &judged, &outcomes, part_mode, keeps)),
        };
        let held = |acceptance| answer.map(|outcomes| HeldParts { outcomes, acceptance });
        let (mut refused, mut is_kept) = (None, false);
        if mode == Mode::Owe && keeps {
            let _ = reply.send(held(Acceptance::needless()));
            is_kept = true;
        } else if keeps {
            // A request that is given up before it has seen its answer is not charged.
            let (acceptance, accepted) = Acceptance::of_hold();
            let _ = reply.send(held(acceptance));
            is_kept = accepted.await.is_ok();
        } else {
            refused = Some((reply, held(Acceptance::needless())));
        }
        if is_kept {
            return self.close_holds(&parts, &outcomes, &judged).await;
        }
        let mut returning = tokio::task::JoinSet::new();
        for ((part, outcomes), judged) in parts.iter().zip(&outcomes).zip(&judged) {
            let seen = judged.as_ref().map_or(&[][..], |judged| &judged.seen);
            let returns = part.returns(outcomes, seen);
            if returns.keys.len() > 0 {
                returning.spawn(Arc::clone(&self).return_surely(returns));
            }
        }
        let mut returned = async || while returning.join_next().await.is_some() {};
        if let Some((reply, answer)) = refused {
            // The refusal is sent once all parts are given back, if that is before the deadline.
            let soon = deadline.checked_sub(MARGIN).unwrap_or(deadline);
            let _ = tokio::time::timeout_at(soon, returned()).await;
            let _ = reply.send(answer);
        }
        returned().await;
    }

    /// Makes the holds of a request that has passed final. One that fails is left to expire.
    async fn close_holds(
        self: &Arc<Self>,
        parts: &[Part],
        outcomes: &[Vec<Outcome>],
        judged: &[Result<Judged, Failure>],
    ) {
        let held = parts.iter().zip(outcomes).zip(judged);
        let closes = held.map(|((part, outcomes), judged)| {
            part.closes(outcomes, judged.as_ref().map_or(&[][..], |judged| &judged.seen))
        });
        let closes: Vec<Returns> = closes.filter(|closes| closes.keys.len() > 0).collect();
        let closed = closes.iter().map(async |closes| {
            let _ = self.give_back_slot(closes, &mut self.unsent()).await;
        });
        join_all(closed).await;
    }

    /// What a script made of a part, asked again where no calendar window fitted.
    async fn judge(
        self: &Arc<Self>,
        part: &Part,
        mode: Mode,
        answer: Result<Answer, Failure>,
        deadline: Instant,
    ) -> Result<Judged, Failure> {
        let mut answer = answer?;
        for _ in 0..3 {
            let Answer { now, numbers, acceptance } = answer;
            // This task refunds what it does not keep.
            acceptance.accept();
            let clock = match verdict(&part.lines(), now, &mut numbers.into_iter()) {
                Some(Verdict::Judged(judged)) => {
                    if judged.charged {
                        self.metrics.finalized(figures::finalized(
                            mode,
                            &part.lines(),
                            &judged.seen,
                        ));
                    }
                    return Ok(judged);
                }
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

    /// Gives back, and tries again while the server is sure to remember an attempt that ran: what stays
    /// held is lost to others until its window ends, and what is given back twice is admitted twice.
    async fn return_surely(self: Arc<Self>, returns: Returns) {
        let mut sent = self.unsent();
        let until = Instant::now() + answer_retention(Operation::GiveBack, self.timeout);
        let mut pause = RETURN_PAUSE;
        loop {
            match self.give_back_slot(&returns, &mut sent).await {
                Ok(()) | Err(Failure::ForeignKey) => return,
                Err(_) if sent.is_bare() => break,
                Err(_) => {}
            }
            // The last try ends before the first is forgotten.
            if Instant::now() + pause + self.request_timeout() >= until {
                break;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.metrics.forgot(1);
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

fn outcomes_of(part: &Part, mode: Mode, judged: &Judged, charged: bool) -> Vec<Outcome> {
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
            without = outcomes_of(part, mode, judged, false);
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "these are tests: a panic is how they fail")]
mod tests {
    use tollgate_core::{Algorithm, LimitSpec, SECOND, Window};
    use tollgate_testkit::{FaultProxy, Redis};

    use super::*;
    use crate::redis::{RedisOptions, RedisStore};
    use crate::{Charge, Counter, Home, Outcomes, Store as _};

    /// The answer to a give-back is lost, and so are those of the next attempts.
    #[tokio::test]
    async fn a_give_back_whose_answers_are_lost_has_one_effect() {
        let server = Redis::start();
        let proxy = FaultProxy::start(server.addr());
        let timeout = Duration::from_millis(300);
        let options =
            RedisOptions { urls: vec![proxy.url("redis")], timeout, ..Default::default() };
        let store = RedisStore::new(&options).unwrap();
        let window = Window::Every(30 * 24 * 3600 * SECOND);
        let spec = LimitSpec {
            algorithm: Algorithm::FixedWindow,
            quota: 100,
            window,
            burst: None,
            slot_ttl: SECOND,
        };
        let limit = Limit::new(spec).unwrap();
        let home = Home { partition: Some(0), ..Home::default() };
        let counter = Counter { rule_id: "rule", tag: "t", salt: 0, key: &["k"], home };
        let charge =
            |cost| Charge { counter, limit: &limit, ask: Ask::cost(cost), role: Role::Must };
        let decide = async |cost, mode| {
            let (charges, mut outcomes) = ([charge(cost)], Outcomes::new());
            let request = Request { charges: &charges, mode };
            store.decide(&[request], 0, &mut outcomes).await.unwrap();
            outcomes.first().unwrap().status.used
        };
        assert_eq!(decide(50, Mode::Charge).await, 50);
        let hold = async || {
            let held = Request { charges: &[charge(5)], mode: Mode::Charge };
            let mut outcomes = Outcomes::new();
            store.decide(&[held], 0, &mut outcomes).await.unwrap();
            store.hub.parts(&held).pop().unwrap().returns(&outcomes, &[])
        };
        // The server has the script from here on.
        Arc::clone(&store.hub).return_surely(hold().await).await;
        assert_eq!(decide(1, Mode::Peek).await, 50);
        let returns = hold().await;
        let before = proxy.accepted();
        proxy.hold_replies();
        let returning = tokio::spawn(Arc::clone(&store.hub).return_surely(returns));
        // One connection for the second attempt, the next for the second try.
        while proxy.accepted() < before + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        proxy.heal();
        returning.await.unwrap();
        assert_eq!(decide(1, Mode::Peek).await, 50);
    }
}
