//! Decisions of the store, after this node has reported what the store missed.
//!
//! A counter whose report waits is not decided on the store before the report has arrived: the
//! store would admit again what was admitted here.

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tollgate_core::{Nanos, Outcome};

use super::Resilient;
use super::outage::{Extent, extent};
use super::report::Telling;
use crate::{Decided, Degraded, Failure, Outcomes, Request, SharedStore, check_outcomes};

/// How often a counter is reported before a decision. More waits after that only while other
/// requests keep failing to reach the store: then this decision does not reach it either.
const ROUNDS: usize = 3;

/// The store's answer to one request.
pub(super) struct Answer {
    pub(super) outcomes: Outcomes,
    pub(super) decided: Decided,
}

/// What became of every request of a call; `None`: not asked yet.
pub(super) type Answers = SmallVec<[Option<Result<Answer, Failure>>; 4]>;

/// The places of requests in a call.
type Places = SmallVec<[usize; 8]>;

impl<S: SharedStore> Resilient<S> {
    /// Decides requests that do not all fare alike: each on the store if that can be, or without it.
    pub(super) async fn decide_apart(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Decided {
        let answers = self.ask_each(requests, now).await;
        self.put_together(requests, answers, now, outcomes)
    }

    /// What the store says to every request, after what it missed of that request's counters was reported.
    pub(super) async fn ask_each(&self, requests: &[Request<'_>], now: Nanos) -> Answers {
        let mut answers: Answers = requests.iter().map(|_| None).collect();
        let waiting: SmallVec<[bool; 8]> =
            requests.iter().map(|request| !self.unreported(request).is_empty()).collect();
        let places = |is_waiting: bool| -> Places {
            let at = waiting.iter().enumerate().filter(|(_, waits)| **waits == is_waiting);
            at.map(|(place, _)| place).collect()
        };
        let (held, free) = (places(true), places(false));
        // At the same time, so that nobody waits twice for a store that does not answer.
        let (held, free) =
            join(self.tell_and_ask(requests, &held, now), self.ask(requests, &free, now)).await;
        for (place, answer) in held.into_iter().chain(free) {
            if let Some(slot) = answers.get_mut(place) {
                *slot = Some(answer);
            }
        }
        answers
    }

    /// The counters of a request that have charges which the store does not know yet.
    fn unreported(&self, request: &Request<'_>) -> SmallVec<[u128; 4]> {
        let counters = request.charges.iter().map(|charge| self.fingerprints.of(&charge.counter));
        counters.filter(|fingerprint| self.reports.has(*fingerprint)).collect()
    }

    /// Reports to the store what it missed of these requests' counters, and only then asks it.
    async fn tell_and_ask(
        &self,
        requests: &[Request<'_>],
        held: &[usize],
        now: Nanos,
    ) -> Vec<(usize, Result<Answer, Failure>)> {
        let mut answers = Vec::new();
        let mut left: Places = held.into();
        for _ in 0..ROUNDS {
            let of = |place: &usize| requests.get(*place).map(|it| self.unreported(it));
            let unreported: SmallVec<[SmallVec<[u128; 4]>; 4]> =
                left.iter().filter_map(of).collect();
            let mut counters: Vec<u128> = unreported.iter().flatten().copied().collect();
            if counters.is_empty() {
                break;
            }
            counters.sort_unstable();
            counters.dedup();
            let results = self.tell(&counters, now).await;
            let failure = |of: &SmallVec<[u128; 4]>| {
                let failed = results.iter().find(|(counter, _)| of.contains(counter));
                failed.and_then(|(_, result)| result.err())
            };
            let mut unreported = unreported.iter();
            left.retain(|place| match unreported.next().and_then(failure) {
                Some(failure) => {
                    answers.push((*place, Err(failure)));
                    false
                }
                None => true,
            });
        }
        left.retain(|place| {
            let is_reported = requests.get(*place).is_none_or(|it| self.unreported(it).is_empty());
            if !is_reported {
                answers.push((*place, Err(Failure::Timeout)));
            }
            is_reported
        });
        answers.extend(self.ask(requests, &left, now).await);
        answers
    }

    /// Reports to the store what it missed of some counters, or waits until other tasks have.
    /// Returns the failures first.
    pub(super) async fn tell(
        &self,
        counters: &[u128],
        now: Nanos,
    ) -> Vec<(u128, Result<(), Failure>)> {
        let at = self.inner.clock(now);
        let (mut sendings, mut trips) = (Vec::new(), Vec::new());
        for counter in counters {
            match self.reports.tell(*counter, at) {
                Telling::Nothing => {}
                Telling::Send(sending) => sendings.push(sending),
                Telling::Wait(trip) => trips.push((*counter, trip)),
            }
        }
        let sent = sendings.into_iter().map(async |sending| {
            let counter = sending.fingerprint;
            (counter, self.report(sending, now).await)
        });
        // What is ours to send goes first: others may be waiting for it while we wait for theirs.
        let mut results = join_all(sent).await;
        for (counter, trip) in trips {
            results.push((counter, trip.wait().await));
        }
        results.sort_by_key(|(_, result)| result.is_ok());
        results
    }

    /// Asks the store. If a call fails for a reason that concerns some counter only, each of its
    /// requests is asked for alone: one bad key is no reason to decide all others without the store.
    async fn ask(
        &self,
        requests: &[Request<'_>],
        places: &[usize],
        now: Nanos,
    ) -> Vec<(usize, Result<Answer, Failure>)> {
        let asked: SmallVec<[(usize, Request<'_>); 4]> =
            places.iter().filter_map(|place| Some((*place, *requests.get(*place)?))).collect();
        if asked.is_empty() {
            return Vec::new();
        }
        let together: SmallVec<[Request<'_>; 4]> = asked.iter().map(|(_, it)| *it).collect();
        let failure = match self.ask_together(&together, now).await {
            Ok(answers) => {
                let each = asked.iter().zip(answers);
                return each.map(|((place, _), answer)| (*place, answer)).collect();
            }
            Err(failure) => failure,
        };
        let mut lost = (asked.len() == 1 || extent(failure) == Extent::Store).then_some(failure);
        let mut answers = Vec::with_capacity(asked.len());
        for (place, request) in &asked {
            let answer = match lost {
                Some(failure) => Err(failure),
                None => self.ask_together(std::slice::from_ref(request), now).await,
            };
            let answer = answer.and_then(|mut it| it.pop().unwrap_or(Err(Failure::Protocol)));
            // The store is gone altogether: the rest need not wait for it.
            lost =
                lost.or(answer.as_ref().err().copied().filter(|it| extent(*it) == Extent::Store));
            answers.push((*place, answer));
        }
        answers
    }

    /// Asks the store once, and takes its answer apart.
    async fn ask_together(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let mut outcomes = Outcomes::new();
        let decided = self.inner.decide(requests, now, &mut outcomes).await;
        let decided = decided.map_err(|error| error.failure)?;
        check_outcomes(requests, 0, &mut outcomes).map_err(|error| error.failure)?;
        Ok(self.apart(requests, &decided, outcomes))
    }

    /// The answer to every request of a call.
    fn apart(
        &self,
        requests: &[Request<'_>],
        decided: &Decided,
        outcomes: impl IntoIterator<Item = Outcome>,
    ) -> Vec<Result<Answer, Failure>> {
        let (mut rest, mut first) = (outcomes.into_iter(), 0);
        let apart = requests.iter().enumerate().map(|(place, request)| {
            let count = request.charges.len();
            let outcomes: Outcomes = rest.by_ref().take(count).collect();
            let each = decided.each.as_ref();
            let each = each.and_then(|each| each.get(first..first + count)).map(Box::from);
            let (at, degraded) = (decided.of(first), decided.degraded_of(place));
            first += count;
            if let Some(failure) = decided.failed_of(place) {
                return Err(failure);
            }
            let decided = Decided { each, degraded, ..Decided::at(at) };
            self.remember(std::slice::from_ref(request), &outcomes, |charge| decided.of(charge));
            Ok(Answer { outcomes, decided })
        });
        apart.collect()
    }

    /// The store decided some requests of a call: the others are decided without it. `first`: where the
    /// outcomes of the call begin.
    #[cold]
    pub(super) fn complete(
        &self,
        requests: &[Request<'_>],
        decided: &Decided,
        first: usize,
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Decided {
        let returned: Outcomes = outcomes.drain(first.min(outcomes.len())..).collect();
        let answers = self.apart(requests, decided, returned).into_iter().map(Some).collect();
        self.put_together(requests, answers, now, outcomes)
    }

    /// The answers of a call in its order; what the store did not decide is decided here.
    pub(super) fn put_together(
        &self,
        requests: &[Request<'_>],
        answers: Answers,
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Decided {
        let mut instants = SmallVec::<[Nanos; 8]>::new();
        let mut degraded = SmallVec::<[Option<Degraded>; 4]>::new();
        for (request, answer) in requests.iter().zip(answers) {
            let decided = match answer.unwrap_or(Err(Failure::Protocol)) {
                Ok(answer) => {
                    outcomes.extend(answer.outcomes);
                    answer.decided
                }
                Err(failure) => {
                    self.fall_back(std::slice::from_ref(request), failure, now, outcomes)
                }
            };
            instants.extend((0..request.charges.len()).map(|charge| decided.of(charge)));
            degraded.push(decided.degraded);
        }
        let at = instants.first().copied().unwrap_or_else(|| self.inner.clock(now));
        let is_one_instant = instants.iter().all(|instant| *instant == at);
        let any = degraded.iter().flatten().next().copied();
        let is_one_fate = degraded.iter().all(|each| *each == any);
        Decided {
            at,
            each: (!is_one_instant).then(|| instants.into_vec().into_boxed_slice()),
            degraded: any,
            degraded_each: (!is_one_fate).then(|| degraded.into_vec().into_boxed_slice()),
            failed: None,
        }
    }
}
