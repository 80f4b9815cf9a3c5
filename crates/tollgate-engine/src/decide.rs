//! The road from a request to its decision.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Examination, Nanos, Outcome, SlotId};
use tollgate_policy::{Known, Listed, NoMatch};
use tollgate_store::{
    Charge, Claim, Decided, Failure, Mode, Outcomes, Store, check_outcomes, passes, report_broken,
};
use tracing::{Instrument as _, trace_span};

use crate::answer::{Answer, shape};
use crate::decision::Decision;
use crate::idempotency::Place;
use crate::lines::{Lines, Stores, charge, collect, new_slot};
use crate::observer::{TRACE_TARGET, is_traced};
use crate::request::Request;
use crate::verdict::{Reason, Verdict};
use crate::{ActiveRules, Enforcement, Engine, EngineError};

/// Requests of a batch that are decided in one call of the store.
const BATCH_PART: usize = 64;

/// How often a node looks whether another one has answered a request id that both were given.
const LOOKS_FOR_ANSWER: u32 = 8;

/// The time between two looks.
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(5);

/// A request on its way through a batch.
struct Asked<'r> {
    decision: Decision<'r>,
    lines: Lines<'r>,
    slot: Option<SlotId>,
    /// Why it cannot be decided.
    wrong: Option<EngineError>,
}

impl<S: Store> Engine<S> {
    /// Decides a request by these rules, and charges it if `mode` says so and it passes. With
    /// [`Mode::Charge`] what it holds can be given back under [`Decision::reservation_id`]: a slot, or all
    /// that was charged where the request asks for a reservation ([`Request::reserve`]). A
    /// `request_id` is not looked at: [`Engine::decide_once`] does that.
    #[inline]
    pub async fn decide<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mode: Mode,
    ) -> Result<Decision<'r>, EngineError> {
        // A decision is large: it is made where it stays.
        let mut decision = Decision::pending(rules.version);
        match mode {
            Mode::Charge => self.decide_for_good(rules, request, None, &mut decision).await?,
            Mode::Owe | Mode::Hold if request.reserve.is_some() => {
                return Err(EngineError::NotReservable);
            }
            Mode::Peek | Mode::Owe | Mode::Hold => {
                self.decide_into(rules, request, mode, None, &mut decision).await?;
            }
        }
        if mode != Mode::Peek {
            self.tell(request, &decision);
        }
        Ok(decision)
    }

    async fn decide_into<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mode: Mode,
        answered: Option<&Answer>,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        let mut lines = Lines::new();
        {
            let _resolve =
                is_traced().then(|| trace_span!(target: TRACE_TARGET, "resolve").entered());
            self.prepare(rules, request, decision, &mut lines);
            self.check_keys(rules, request, decision, &mut lines)?;
        }
        if !lines.is_empty() {
            self.check(request, &lines, mode, answered, decision).await?;
        }
        self.relax(decision);
        Ok(())
    }

    /// All that can be said without the store; what is to be asked of it is left in `lines`.
    pub(crate) fn prepare<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        decision: &mut Decision<'r>,
        lines: &mut Lines<'r>,
    ) {
        decision.now = self.clock.now();
        decision.asked_at = decision.now;
        if self.enforcement() == Enforcement::Off {
            decision.reason = Reason::EnforcementOff;
            return;
        }
        match rules.set.listed(&request.attributes, decision.now) {
            Some(Listed::Denied(entry)) => {
                (decision.verdict, decision.reason) = (Verdict::Denied, Reason::DenyListed);
                decision.note = entry.reason.as_deref();
                return;
            }
            Some(Listed::Allowed(_)) => {
                decision.reason = Reason::AllowListed;
                return;
            }
            None => {}
        }
        let tier = rules.set.tier_of(&request.attributes);
        let now = decision.now;
        if tier == request.attributes.get(Known::Tier) {
            rules.set.resolve_into(&request.attributes, now, &mut decision.resolution);
        } else {
            let mut attributes = request.attributes.clone();
            attributes.set(Known::Tier, tier.unwrap_or_default());
            rules.set.resolve_into(&attributes, now, &mut decision.resolution);
        }
        let resolution = &decision.resolution;
        if rules.set.no_match() == NoMatch::Deny && resolution.has_unmatched_reading() {
            (decision.verdict, decision.reason) = (Verdict::Denied, Reason::NoMatch);
            return;
        }
        if resolution.enforced.is_empty() && resolution.observed.is_empty() {
            decision.reason = Reason::NoMatch;
            return;
        }
        collect(&decision.resolution, request, tier, now, lines);
    }

    /// In shadow a refusal is only reported.
    pub(crate) fn relax(&self, decision: &mut Decision<'_>) {
        if self.enforcement() == Enforcement::Shadow {
            decision.is_shadow = true;
            if !decision.is_allowed() {
                decision.verdict = Verdict::Allowed;
            }
        }
    }

    /// Checks all limits in one atomic step and settles the decision. What was answered before is
    /// taken from there.
    async fn check<'r>(
        &self,
        request: &Request<'_>,
        lines: &Lines<'r>,
        mode: Mode,
        answered: Option<&Answer>,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        let slot = answered
            .map_or_else(|| new_slot(lines, request.reserve.is_some()), |answer| answer.slot);
        let mut charges = SmallVec::<[Charge<'_>; 8]>::new();
        let stores = Stores::new(&self.store, request);
        for line in lines {
            let slot = slot.unwrap_or_default();
            if let Some(charge) = charge(&decision.resolution, line, slot, &stores) {
                charges.push(charge);
            }
        }
        if charges.len() != lines.len() {
            return Err(no_charge());
        }
        let mut outcomes = Outcomes::new();
        let decided = match answered {
            Some(answer)
                if answer.outcomes.len() == charges.len()
                    && answer.shape == shape(lines.iter().map(|line| line.limit.salt)) =>
            {
                outcomes.extend(answer.outcomes.iter().copied());
                Decided::at(answer.at)
            }
            _ => {
                // Rules have changed since it was answered: it stays allowed, and is not charged
                // again; the figures are those of now.
                let mode = if answered.is_some() { Mode::Peek } else { mode };
                let request = tollgate_store::Request { charges: &charges, mode };
                let asked = [request];
                let decided = self.store.decide(&asked, decision.now, &mut outcomes);
                let decided = if is_traced() {
                    let span = trace_span!(target: TRACE_TARGET, "store", limits = charges.len());
                    Box::pin(decided).instrument(span).await?
                } else {
                    decided.await?
                };
                check_outcomes(&asked, 0, &mut outcomes)?;
                if let Some(failure) = decided.failed_of(0) {
                    return Err(EngineError::Store(failure.into()));
                }
                decided
            }
        };
        let passes = answered.is_some() || passes(&charges, &outcomes);
        drop(charges);
        decision.degraded = decided.degraded;
        settle(decision, lines, &outcomes, (&decided, 0), passes);
        if passes && mode == Mode::Charge {
            decision.slot = slot;
            if slot.is_some() {
                self.slot_book.note(lines, decision, &stores);
            }
        }
        Ok(())
    }

    /// Decides and charges a request, and stores a record of what it holds. If another node has
    /// answered the request, its answer is used and nothing is stored again.
    async fn decide_for_good<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        answered: Option<&Answer>,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        self.decide_into(rules, request, Mode::Charge, answered, decision).await?;
        match answered {
            Some(answer) => decision.reservation = answer.reservation,
            None if request.reserve.is_some() || decision.slot.is_some() => {
                // Few requests hold anything: what that needs is kept apart.
                Box::pin(self.hold(request, decision)).await?;
            }
            None => {}
        }
        Ok(())
    }

    /// [`Engine::decide`], or, if the request carries an id that was answered before, that answer. A
    /// decision is large, so it is shown where it is rather than handed out.
    pub async fn decide_once<'r, T>(
        &self,
        rules: &'r arc_swap::Guard<Arc<ActiveRules>>,
        request: &Request<'r>,
        show: impl FnOnce(&Decision<'_>) -> T,
    ) -> Result<T, EngineError> {
        let Some(id) = request.request_id else {
            let mut decision = Decision::pending(rules.version);
            self.decide_for_good(rules, request, None, &mut decision).await?;
            self.tell(request, &decision);
            return Ok(show(&decision));
        };
        // Few requests have one: what they need is kept apart, so that the others do not carry it.
        Box::pin(self.decide_by_id(rules, request, id, show)).await
    }

    async fn decide_by_id<'r, T>(
        &self,
        rules: &'r arc_swap::Guard<Arc<ActiveRules>>,
        request: &Request<'r>,
        id: &str,
        show: impl FnOnce(&Decision<'_>) -> T,
    ) -> Result<T, EngineError> {
        let mut decision = Decision::pending(rules.version);
        let now = self.clock.now();
        let place = self.remembered.enter(request.caller, id).await;
        match place.find(request, now) {
            Some(Ok(remembered)) => return Ok(show(&remembered.decision())),
            Some(Err(())) => return Err(EngineError::RequestIdReused),
            None => {}
        }
        let (is_claimed, answer) = self.claim(&place, request).await?;
        let charged = self.decide_for_good(rules, request, answer.as_ref(), &mut decision).await;
        if is_claimed {
            let allowed = charged.is_ok() && decision.is_allowed();
            let made = allowed.then(|| Answer::of(&decision).encode());
            // If this fails, the claim expires, and a repeated call to another node is charged
            // again.
            let _ = self.store.publish(place.id(), place.content(request), made.as_deref()).await;
        }
        charged?;
        // If another node answered, its own observer has seen the decision.
        if answer.is_none() {
            self.tell(request, &decision);
        }
        if decision.is_allowed() {
            place.remember(request, Arc::clone(rules), &decision, now);
        }
        Ok(show(&decision))
    }

    /// Whether this node is to answer the request's id, and if another one did, what.
    async fn claim(
        &self,
        place: &Place<'_>,
        request: &Request<'_>,
    ) -> Result<(bool, Option<Answer>), EngineError> {
        for _ in 0..LOOKS_FOR_ANSWER {
            // A store that cannot tell leaves the id to this node's own memory.
            let claim = self.store.claim(place.id(), place.content(request)).await;
            match claim.unwrap_or(Claim::NotShared) {
                Claim::NotShared => return Ok((false, None)),
                Claim::Yours => return Ok((true, None)),
                Claim::OtherContent => return Err(EngineError::RequestIdReused),
                Claim::Answered(bytes) => match Answer::decode(&bytes) {
                    Some(answer) => return Ok((false, Some(answer))),
                    None => return Err(EngineError::RequestIdUnreadable),
                },
                Claim::Pending => tokio::time::sleep(LOOK_INTERVAL).await,
            }
        }
        Err(EngineError::RequestIdInUse)
    }

    /// Decides requests in order, each for itself, in few calls of the store, and shows each
    /// decision in turn. Requests with an id are answered once.
    pub async fn decide_batch<'r>(
        &self,
        rules: &'r arc_swap::Guard<Arc<ActiveRules>>,
        requests: &[Request<'r>],
        mut show: impl FnMut(Result<&Decision<'_>, EngineError>),
    ) {
        // A store in memory is no round trip away: what is decided and shown at once stays in the cache.
        let is_near = self.store.is_in_process();
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

    async fn decide_part<'r>(
        &self,
        rules: &'r ActiveRules,
        requests: &[Request<'r>],
        show: &mut impl FnMut(Result<&Decision<'_>, EngineError>),
    ) {
        let mut asked = Vec::with_capacity(requests.len());
        for request in requests {
            let (mut decision, mut lines) = (Decision::pending(rules.version), Lines::new());
            self.prepare(rules, request, &mut decision, &mut lines);
            let wrong = self.check_keys(rules, request, &mut decision, &mut lines).err();
            if wrong.is_some() {
                lines.clear();
            }
            let slot = new_slot(&lines, request.reserve.is_some());
            asked.push(Asked { decision, lines, slot, wrong });
        }
        let mut outcomes = Outcomes::new();
        let (decided, passed) = {
            let mut charges = Vec::new();
            for (request, one) in requests.iter().zip(&asked) {
                let stores = Stores::new(&self.store, request);
                let slot = one.slot.unwrap_or_default();
                let of = |line| charge(&one.decision.resolution, line, slot, &stores);
                charges.push(one.lines.iter().filter_map(of).collect::<Vec<_>>());
            }
            let is_whole =
                charges.iter().zip(&asked).all(|(made, one)| made.len() == one.lines.len());
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
            if !one.lines.is_empty() {
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
                        settle(&mut one.decision, &one.lines, own, (decided, at), passes);
                        one.decision.slot = one.slot.filter(|_| passes);
                    }
                    Err(error) => {
                        show(Err(EngineError::Store(*error)));
                        continue;
                    }
                }
            }
            at += length;
            self.relax(&mut one.decision);
            if one.decision.slot.is_some()
                || (request.reserve.is_some() && one.decision.is_allowed())
            {
                let stores = Stores::new(&self.store, request);
                self.slot_book.note(&one.lines, &one.decision, &stores);
                if let Err(error) = self.hold(request, &mut one.decision).await {
                    show(Err(error));
                    continue;
                }
            }
            self.tell(request, &one.decision);
            show(Ok(&one.decision));
        }
    }
}

/// Every limit that applies has a charge. One that had none would not be enforced, so nothing is decided.
#[cold]
pub(crate) fn no_charge() -> EngineError {
    report_broken("a limit that applies to a request has no charge");
    EngineError::Store(Failure::Contract.into())
}

/// Puts the outcomes of its limits into a decision. `decided` is what the store said about all of
/// them, and which of its charges is the first of this decision.
fn settle<'r>(
    decision: &mut Decision<'r>,
    lines: &Lines<'r>,
    outcomes: &[Outcome],
    (decided, first): (&Decided, usize),
    passes: bool,
) {
    decision.now = decided.of(first);
    for (index, (line, outcome)) in lines.iter().zip(outcomes).enumerate() {
        let mut outcome = *outcome;
        if decided.each.is_some() {
            tell_by(&mut outcome, decided.of(first + index), decision.now);
        }
        let figures = (line.quota, line.cost);
        let (rule, limit, role) = (line.rule, line.limit, line.role);
        decision.scopes.push(Decision::scope(rule, limit, figures, role, outcome, line.applied));
    }
    decision.settle(passes);
}

/// Converts instants from one clock to another, keeping their distance from now.
pub(crate) fn tell_by(outcome: &mut Outcome, from: Nanos, to: Nanos) {
    let rebased = |at: Nanos| at.saturating_sub(from).saturating_add(to);
    outcome.status.reset_at = rebased(outcome.status.reset_at);
    if let Examination::Refuse { retry_at: Some(at) } = &mut outcome.examination {
        *at = rebased(*at);
    }
}
