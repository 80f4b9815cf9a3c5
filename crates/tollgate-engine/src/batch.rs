//! Several requests in a row, each decided for itself, in few calls of the store.

use std::sync::Arc;

use tollgate_core::SlotId;
use tollgate_store::{Failure, Mode, Outcomes, Store, check_outcomes, passes};
use tracing::{Instrument as _, trace_span};

use crate::decide::{no_charge, settle};
use crate::decision::Decision;
use crate::holding::SlotPlace;
use crate::limit_checks::{LimitChecks, Stores, charge, new_slot};
use crate::observer::{TRACE_TARGET, is_traced};
use crate::request::Request;
use crate::{ActiveRules, Engine, EngineError};

/// Requests of a batch that are decided in one call of the store.
const BATCH_PART: usize = 64;

/// A request on its way through a batch.
struct Asked<'e, 'r> {
    decision: Decision<'r>,
    checks: LimitChecks<'r>,
    slot: Option<SlotId>,
    place: Option<SlotPlace<'e>>,
    /// Why it cannot be decided.
    wrong: Option<EngineError>,
}

impl<S: Store> Engine<S> {
    /// Decides requests in order, each for itself, in few calls of the store, and shows each
    /// decision in turn. Requests with an id are answered once.
    pub async fn decide_batch<'r>(
        &self,
        rules: &'r arc_swap::Guard<Arc<ActiveRules>>,
        requests: &[Request<'r>],
        mut show: impl FnMut(Result<&Decision<'_>, EngineError>),
    ) {
        // A store that answers at once is no round trip away: what is decided and shown at once stays in the cache.
        let is_near = self.store.as_sync().is_some();
        let mut rest = requests;
        while let Some(first) = rest.first() {
            if is_near || first.request_id.is_some() {
                let shown = self.decide_once(rules, first, |decision| show(Ok(decision))).await;
                if let Err(error) = shown {
                    show(Err(error));
                }
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let plain = rest.iter().take(BATCH_PART).take_while(|one| one.request_id.is_none());
            let (part, later) = rest.split_at(plain.count());
            self.decide_part(rules, part, &mut show).await;
            rest = later;
        }
    }

    /// What one request asks, with a place among the reservations where it takes a slot.
    async fn prepare_one<'e, 'r>(
        &'e self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        may_look_up: &mut bool,
    ) -> Asked<'e, 'r> {
        let (mut decision, mut checks) = (Decision::pending(rules.version), LimitChecks::new());
        self.prepare(rules, request, &mut decision, &mut checks);
        let keyed = self.check_keys(rules, request, &mut decision, &mut checks);
        let priced =
            keyed.and_then(|()| self.check_prices(rules, request, &mut decision, &mut checks));
        let mut wrong = priced.err();
        if wrong.is_some() {
            checks.clear();
        }
        let slot = new_slot(&checks, request.reserve.is_some());
        let mut place = None;
        if let Some(slot) = slot {
            match self.take_place(request, &checks, slot, decision.now, *may_look_up).await {
                Ok(taken) => place = taken,
                Err(error) => {
                    *may_look_up = false;
                    checks.clear();
                    wrong = Some(error);
                }
            }
        }
        Asked { decision, checks, slot, place, wrong }
    }

    async fn decide_part<'r>(
        &self,
        rules: &'r ActiveRules,
        requests: &[Request<'r>],
        show: &mut impl FnMut(Result<&Decision<'_>, EngineError>),
    ) {
        let mut asked = Vec::with_capacity(requests.len());
        // Once for all of them.
        let mut may_look_up = true;
        for request in requests {
            asked.push(self.prepare_one(rules, request, &mut may_look_up).await);
        }
        let mut outcomes = Outcomes::new();
        let (decided, passed) = {
            let mut charges = Vec::new();
            for (request, one) in requests.iter().zip(&asked) {
                let stores = Stores::new(&self.store, request);
                let slot = one.slot.unwrap_or_default();
                let of = |line| charge(&one.decision.resolution, line, slot, &stores);
                charges.push(one.checks.iter().filter_map(of).collect::<Vec<_>>());
            }
            let is_whole =
                charges.iter().zip(&asked).all(|(made, one)| made.len() == one.checks.len());
            if !is_whole || charges.len() != asked.len() {
                return requests.iter().for_each(|_| show(Err(no_charge())));
            }
            let mode = Mode::Charge;
            let together: Vec<_> =
                charges.iter().map(|charges| tollgate_store::Request { charges, mode }).collect();
            let decided = self.store.decide(&together, self.clock.now(), &mut outcomes);
            let decided = if is_traced() {
                let span = trace_span!(target: TRACE_TARGET, "store", requests = together.len());
                Box::pin(decided).instrument(span).await
            } else {
                decided.await
            };
            let decided = decided
                .and_then(|decided| check_outcomes(&together, 0, &mut outcomes).map(|()| decided));
            let mut at = 0;
            let passed = charges.iter().map(|charges| {
                let own = outcomes.get(at..at + charges.len()).unwrap_or_default();
                at += charges.len();
                (own.len(), passes(charges, own))
            });
            (decided, passed.collect::<Vec<_>>())
        };
        let mut at = 0;
        let all = requests.iter().zip(&mut asked).zip(passed);
        for (number, ((request, one), (length, passes))) in all.enumerate() {
            if let Some(error) = one.wrong.take() {
                show(Err(error));
                continue;
            }
            if !one.checks.is_empty() {
                match &decided {
                    Ok(decided) if decided.failed_of(number).is_some() => {
                        let failure = decided.failed_of(number).unwrap_or(Failure::Contract);
                        show(Err(EngineError::Store(failure.into())));
                        at += length;
                        continue;
                    }
                    Ok(decided) => {
                        let own = outcomes.get(at..at + length).unwrap_or_default();
                        one.decision.degraded = decided.degraded_of(number);
                        settle(&mut one.decision, &one.checks, own, (decided, at), passes);
                        one.decision.slot = one.slot.filter(|_| passes);
                        if let Some(place) = one.place.take().filter(|_| passes) {
                            place.keep();
                        }
                    }
                    Err(error) => {
                        show(Err(EngineError::Store(*error)));
                        continue;
                    }
                }
            }
            at += length;
            self.apply_shadow_mode(&mut one.decision);
            if one.decision.slot.is_some()
                || (request.reserve.is_some() && one.decision.is_allowed())
            {
                let stores = Stores::new(&self.store, request);
                self.slot_book.note(&one.checks, &one.decision, &stores);
                if let Err(error) = self.hold(request, &mut one.decision).await {
                    show(Err(error));
                    continue;
                }
            }
            self.notify_observer(request, &one.decision);
            show(Ok(&one.decision));
        }
    }
}
