//! A request over several counters: reserved on all leases, the rest decided on the shared store, all
//! or none.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use smallvec::SmallVec;
use tollgate_core::{Examination, Limit, Nanos, Outcome, Receipt, Status};

use super::Shared;
use super::figures::LeaseFigures;
use super::flight::{Flight, Landing};
use super::key::Owned;
use super::lease::{Reserved, Wanted};
use super::{is_leased, wanted};
use crate::{
    Charge, Decided, Degraded, Failure, Mode, Outcomes, Request, SharedStore, StoreError,
    check_outcomes, passes_as,
};

/// How far one charge of a request has come.
#[derive(Debug)]
enum Step {
    /// The shared store decides it.
    PassOn,
    /// It is charged on the lease with this fingerprint.
    Spent(u128, Outcome),
    /// The counter has no room.
    Refused(Outcome),
    /// A fetch was started for it.
    Fetches(u128, Arc<Flight>),
    /// A fetch is on its way that should bring enough for it.
    Waits(u128, Arc<Flight>),
}

/// The steps of one request. What is reserved is put back when this is dropped, for whatever reason:
/// also when nobody wants the answer any more.
pub(super) struct Steps<'a, S: SharedStore + 'static> {
    shared: &'a Arc<Shared<S>>,
    charges: &'a [Charge<'a>],
    each: SmallVec<[Step; 8]>,
}

impl<S: SharedStore + 'static> Drop for Steps<'_, S> {
    fn drop(&mut self) {
        for (charge, step) in self.charges.iter().zip(self.each.drain(..)) {
            let (fingerprint, receipt) = match step {
                Step::Spent(fingerprint, outcome) => (fingerprint, Some(outcome.receipt)),
                Step::Fetches(fingerprint, flight) => (fingerprint, flight.abandon()),
                Step::PassOn | Step::Refused(_) | Step::Waits(..) => continue,
            };
            if let Some(receipt) = receipt {
                let owned = || Arc::new(Owned::new(&charge.counter, charge.limit));
                self.shared.put_back(fingerprint, charge.limit, receipt, owned);
            }
        }
    }
}

impl<S: SharedStore + 'static> Steps<'_, S> {
    /// The request has passed: what is spent stays so.
    fn keep(&mut self, mode: Mode) {
        for (charge, step) in self.charges.iter().zip(self.each.drain(..)) {
            if let Step::Spent(fingerprint, outcome) = step
                && wanted(charge, mode).is_some_and(|wanted| wanted.is_final)
            {
                self.shared.table.with(fingerprint, |lease| lease.keep(&outcome.receipt));
            }
        }
    }
}

/// Collects what a call returns besides the outcomes.
#[derive(Default)]
struct DecidedBuilder {
    /// The instants of its charges.
    instants: SmallVec<[Nanos; 8]>,
    /// What became of its requests.
    failed: SmallVec<[Option<Failure>; 8]>,
    degraded: Option<Degraded>,
}

impl DecidedBuilder {
    fn add(&mut self, requests: &[Request<'_>], decided: &Decided) {
        let charges = requests.iter().map(|request| request.charges.len()).sum();
        self.instants.extend((0..charges).map(|charge| decided.of(charge)));
        self.failed.extend((0..requests.len()).map(|request| decided.failed_of(request)));
        self.degraded = self.degraded.or(decided.degraded);
    }

    fn fail(
        &mut self,
        requests: &[Request<'_>],
        failure: Failure,
        at: Nanos,
        outcomes: &mut Outcomes,
    ) {
        for request in requests {
            outcomes.extend(request.charges.iter().map(|charge| unheard_of(charge, at)));
            self.instants.extend(request.charges.iter().map(|_| at));
            self.failed.push(Some(failure));
        }
    }

    /// `otherwise`: the instant of a call without charges.
    fn decided(self, otherwise: Nanos) -> Result<Decided, StoreError> {
        let mut failures = self.failed.iter().flatten();
        let first = failures.next().copied();
        if let Some(failure) = first
            && self.failed.iter().all(Option::is_some)
        {
            return Err(failure.into());
        }
        let at = self.instants.first().copied().unwrap_or(otherwise);
        let is_one = self.instants.iter().all(|each| *each == at);
        Ok(Decided {
            each: (!is_one).then(|| self.instants.into_vec().into_boxed_slice()),
            degraded: self.degraded,
            failed: first.map(|_| self.failed.into_vec().into_boxed_slice()),
            ..Decided::at(at)
        })
    }
}

/// Whether it took no time to fail, so that others of the call can be tried.
const fn is_quick(failure: Failure) -> bool {
    matches!(failure, Failure::CircuitOpen | Failure::ForeignKey | Failure::Protocol)
}

impl<S: SharedStore + 'static> Shared<S> {
    /// Serves a charge from its lease, and starts the fetch that it needs.
    #[inline]
    fn reserve(self: &Arc<Self>, charge: &Charge<'_>, wanted: &Wanted<'_>, at: Nanos) -> Step {
        let fingerprint = self.fingerprints.of(&charge.counter);
        let about = (&self.terms(), &self.figures);
        let due = |owned, receipt| self.return_later(owned, receipt);
        match self.table.reserve(fingerprint, charge, wanted, at, about, due) {
            Reserved::Spent(outcome, None) => Step::Spent(fingerprint, outcome),
            Reserved::Spent(outcome, Some(fetch)) => {
                self.start(fingerprint, fetch);
                Step::Spent(fingerprint, outcome)
            }
            Reserved::Refused(outcome) => Step::Refused(outcome),
            Reserved::Wait(flight) => Step::Waits(fingerprint, flight),
            Reserved::Fetch(fetch) => {
                let flight = Arc::clone(&fetch.flight);
                if self.start(fingerprint, fetch) {
                    Step::Fetches(fingerprint, flight)
                } else {
                    Step::PassOn
                }
            }
            Reserved::PassOn => {
                LeaseFigures::add(&self.figures.passed_on, 1);
                Step::PassOn
            }
        }
    }

    /// Undoes a reservation: on the lease, or, where that has moved on, on the shared store.
    pub(super) fn put_back(
        &self,
        fingerprint: u128,
        limit: &Limit,
        receipt: Receipt,
        owned: impl FnOnce() -> Arc<Owned>,
    ) {
        if receipt == Receipt::Nothing {
            return;
        }
        let put_back = self.table.with(fingerprint, |lease| lease.put_back(limit, &receipt));
        if put_back != Some(true) {
            self.return_later(owned(), receipt);
        }
    }

    /// Decides a request if its leases have enough for it, and appends its outcomes. Otherwise it is
    /// begun, and these are its first steps.
    #[inline]
    pub(super) fn decide_at_once<'a>(
        self: &'a Arc<Self>,
        request: &Request<'a>,
        at: Nanos,
        outcomes: &mut Outcomes,
    ) -> Option<Steps<'a, S>> {
        // Most requests meet one limit.
        if let [charge] = request.charges
            && let Some(wanted) = wanted(charge, request.mode)
        {
            return match self.reserve(charge, &wanted, at) {
                Step::Spent(_, outcome) | Step::Refused(outcome) => {
                    outcomes.push(outcome);
                    None
                }
                step => {
                    let each = SmallVec::from_iter([step]);
                    Some(Steps { shared: self, charges: request.charges, each })
                }
            };
        }
        let mut steps = self.begin(request, at);
        let spent = |step: &Step| match step {
            Step::Spent(_, outcome) => Some(*outcome),
            _ => None,
        };
        if !steps.each.iter().all(|step| spent(step).is_some()) {
            return Some(steps);
        }
        outcomes.extend(steps.each.iter().filter_map(spent));
        steps.keep(request.mode);
        None
    }

    /// Decides several requests one after another. `begun` are the first steps of the only one, if
    /// it was begun. A request that the store does not decide is returned as failed: what was spent
    /// for the other requests of the call stays spent.
    pub(super) async fn decide(
        self: &Arc<Self>,
        requests: &[Request<'_>],
        mut begun: Option<Steps<'_, S>>,
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        let mut builder = DecidedBuilder::default();
        let mut rest = requests;
        while let Some(request) = rest.first() {
            // Consecutive requests without leases are decided in one call.
            let plain = rest.iter().position(is_leased).unwrap_or(rest.len());
            let (these, others) = rest.split_at_checked(plain.max(1)).unwrap_or((rest, &[]));
            let decided = if plain == 0 {
                let steps = match begun.take() {
                    Some(steps) => steps,
                    None => self.begin(request, self.inner.clock(now)),
                };
                self.decide_one(request, steps, now, outcomes).await
            } else {
                let first = outcomes.len();
                let decided = self.inner.decide(these, now, outcomes).await;
                let checked = decided
                    .and_then(|decided| check_outcomes(these, first, outcomes).map(|()| decided));
                if checked.is_err() {
                    outcomes.truncate(first);
                }
                checked
            };
            rest = others;
            match decided {
                Ok(decided) => builder.add(these, &decided),
                Err(error) => {
                    builder.fail(these, error.failure, self.inner.clock(now), outcomes);
                    // Nobody waits again and again for a store that does not answer.
                    if !is_quick(error.failure) {
                        let rest = std::mem::take(&mut rest);
                        builder.fail(rest, error.failure, self.inner.clock(now), outcomes);
                    }
                }
            }
        }
        builder.decided(self.inner.clock(now))
    }

    fn begin<'a>(self: &'a Arc<Self>, request: &Request<'a>, at: Nanos) -> Steps<'a, S> {
        // What others of its charges may refuse is final only when all have passed.
        let step = |charge: &Charge<'_>| match wanted(charge, request.mode) {
            Some(wanted) => self.reserve(charge, &Wanted { is_final: false, ..wanted }, at),
            None => Step::PassOn,
        };
        let each = request.charges.iter().map(step).collect();
        Steps { shared: self, charges: request.charges, each }
    }

    async fn decide_one(
        &self,
        request: &Request<'_>,
        mut steps: Steps<'_, S>,
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        let at = self.inner.clock(now);
        for (charge, step) in request.charges.iter().zip(&mut steps.each) {
            self.arrive(charge, request.mode, step, now).await?;
        }
        let is_refused = steps.each.iter().any(|step| matches!(step, Step::Refused(_)));
        let rest: SmallVec<[Charge<'_>; 8]> = (request.charges.iter().zip(&steps.each))
            .filter(|(_, step)| matches!(step, Step::PassOn))
            .map(|(charge, _)| *charge)
            .collect();
        // Once refused, the rest is only looked at, for its figures.
        let mode = if is_refused { Mode::Peek } else { request.mode };
        let mut rest_outcomes = Outcomes::new();
        let decided = if rest.is_empty() {
            Decided::at(at)
        } else {
            let requests = [Request { charges: &rest, mode }];
            let departed = self.inner.clock(now);
            let decided = self.inner.decide(&requests, now, &mut rest_outcomes).await?;
            self.distance.observe(departed, self.inner.clock(0));
            check_outcomes(&requests, 0, &mut rest_outcomes)?;
            decided
        };
        if let Some(failure) = decided.failed_of(0) {
            return Err(failure.into());
        }
        let mut instants = SmallVec::<[Nanos; 8]>::new();
        let passes = !is_refused && passes_as(request.mode, &rest, &rest_outcomes);
        let mut passed_on = rest_outcomes.into_iter().enumerate();
        for (charge, step) in request.charges.iter().zip(&steps.each) {
            let (outcome, at) = match step {
                Step::Spent(_, outcome) if passes => (*outcome, at),
                Step::Spent(_, outcome) => (undone(outcome, charge), at),
                Step::Refused(outcome) => (*outcome, at),
                Step::PassOn | Step::Fetches(..) | Step::Waits(..) => match passed_on.next() {
                    Some((place, outcome)) => (outcome, decided.of(place)),
                    None => (unheard_of(charge, at), at),
                },
            };
            outcomes.push(outcome);
            instants.push(at);
        }
        if passes {
            steps.keep(request.mode);
        } else {
            drop(steps);
            self.send_returns(now).await;
        }
        let each = Some(instants.into_vec().into_boxed_slice());
        Ok(Decided { each, degraded: decided.degraded, ..Decided::at(at) })
    }

    /// Waits for the fetch that a charge needs.
    async fn arrive(
        &self,
        charge: &Charge<'_>,
        mode: Mode,
        step: &mut Step,
        now: Nanos,
    ) -> Result<(), StoreError> {
        *step = match step {
            Step::PassOn | Step::Spent(..) | Step::Refused(_) => return Ok(()),
            Step::Fetches(fingerprint, flight) => {
                self.wait_for(flight).await?;
                match flight.landing() {
                    Some(Landing::Granted(outcome)) => Step::Spent(*fingerprint, outcome),
                    Some(Landing::Refused(outcome)) => Step::Refused(outcome),
                    Some(Landing::Failed(error)) => return Err(error),
                    Some(Landing::Nothing) | None => Step::PassOn,
                }
            }
            Step::Waits(fingerprint, flight) => {
                self.wait_for(flight).await?;
                if let Some(error) = flight.failure() {
                    return Err(error);
                }
                let at = self.inner.clock(now);
                let reserved = wanted(charge, mode)
                    .map(|wanted| Wanted { is_final: false, ..wanted })
                    .map(|wanted| self.table.reserve_after_wait(*fingerprint, &wanted, at));
                match reserved {
                    Some(Reserved::Spent(outcome, _)) => Step::Spent(*fingerprint, outcome),
                    Some(Reserved::Refused(outcome)) => Step::Refused(outcome),
                    _ => Step::PassOn,
                }
            }
        };
        Ok(())
    }
}

impl<S: SharedStore + 'static> Shared<S> {
    /// Waits for a flight, but no longer than a request may: a fetch in the background is given more
    /// time than that.
    async fn wait_for(&self, flight: &Flight) -> Result<(), StoreError> {
        let (landed, timeout) = (pin!(flight.wait()), pin!(self.inner.request_timeout()));
        match select(landed, timeout).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => Err(Failure::Timeout.into()),
        }
    }
}

/// A charge that fits, of a request that was refused: the figures without it. No more remains than the
/// limit holds, also where the lease last heard of the counter so long ago that it counts as empty.
fn undone(outcome: &Outcome, charge: &Charge<'_>) -> Outcome {
    let Outcome { examination, status, .. } = *outcome;
    let used = status.used.saturating_sub(charge.ask.cost);
    let remaining = status.remaining.saturating_add(charge.ask.cost);
    let status = Status { used, remaining: remaining.min(charge.limit.capacity()), ..status };
    Outcome { examination, status, receipt: Receipt::Nothing }
}

/// A store that answers with too few outcomes has not admitted the rest.
fn unheard_of(charge: &Charge<'_>, at: Nanos) -> Outcome {
    let status = charge.limit.status(&charge.limit.fresh(), at);
    let examination = Examination::Refuse { retry_at: Some(at) };
    Outcome { examination, status, receipt: Receipt::Nothing }
}
