//! The road from a request to its decision.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Examination, Nanos, Outcome, SlotId};
use tollgate_policy::{KeyRefusal, Known, ListMatch, NoMatch, SECRET_PREFIX};
use tollgate_store::{
    Charge, Decided, Failure, Mode, Outcomes, Store, check_outcomes, passes, report_broken,
};
use tracing::{Instrument as _, trace_span};

use crate::answer::{Answer, shape};
use crate::claims::Claimed;
use crate::decision::Decision;
use crate::limit_checks::{LimitChecks, Stores, charge, check_slots, collect, new_slot};
use crate::observer::{TRACE_TARGET, is_traced, new_link};
use crate::request::{Refunds, Request};
use crate::verdict::{Reason, Verdict};
use crate::{ActiveRules, Enforcement, Engine, EngineError};

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
        if let Some(decided) = self.decide_now(rules, request, mode) {
            return decided;
        }
        // A decision is large: it is made where it stays.
        let mut decision = Decision::pending(rules.version);
        match mode {
            Mode::Charge => self.decide_and_reserve(rules, request, None, &mut decision).await?,
            Mode::Owe | Mode::Hold if request.reserve.is_some() => {
                return Err(EngineError::NotReservable);
            }
            Mode::Peek | Mode::Owe | Mode::Hold => {
                self.decide_into(rules, request, mode, None, &mut decision).await?;
            }
        }
        if mode != Mode::Peek {
            self.notify_observer(request, &decision);
        }
        Ok(decision)
    }

    pub(crate) async fn decide_into<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mode: Mode,
        answered: Option<&Answer>,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        let mut checks = LimitChecks::new();
        self.resolve(rules, request, decision, &mut checks)?;
        check_slots(request, &checks, mode)?;
        if !checks.is_empty() {
            self.check(request, &checks, mode, answered, decision).await?;
        }
        self.apply_shadow_mode(decision);
        Ok(())
    }

    /// Which limits the request meets: they are left in `checks`.
    #[inline]
    pub(crate) fn resolve<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        decision: &mut Decision<'r>,
        checks: &mut LimitChecks<'r>,
    ) -> Result<(), EngineError> {
        let _resolve = is_traced().then(|| trace_span!(target: TRACE_TARGET, "resolve").entered());
        self.prepare(rules, request, decision, checks);
        self.check_keys(rules, request, decision, checks)?;
        self.check_prices(rules, request, decision, checks)
    }

    /// All that can be said without the store; what is to be asked of it is left in `checks`.
    pub(crate) fn prepare<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        decision: &mut Decision<'r>,
        checks: &mut LimitChecks<'r>,
    ) {
        decision.now = self.clock.now();
        decision.asked_at = decision.now;
        if request.refunds != Refunds::Never && self.observer.is_some() {
            decision.link = new_link(self.instance);
        }
        // Who may call at all does not depend on whether limits are enforced.
        if let Some(refusal) = rules.set.refused_key(&request.attributes, decision.now)
            && !is_under_way(request)
        {
            decision.verdict = Verdict::Denied;
            decision.reason = match refusal {
                KeyRefusal::Invalid => Reason::InvalidApiKey,
                KeyRefusal::Model => Reason::ModelNotAllowed,
            };
            return;
        }
        if self.enforcement() == Enforcement::Off {
            decision.reason = Reason::EnforcementOff;
            return;
        }
        match rules.set.listed(&request.attributes, decision.now) {
            Some(ListMatch::Denied(entry)) => {
                (decision.verdict, decision.reason) = (Verdict::Denied, Reason::DenyListed);
                decision.note = entry.reason.as_deref();
                return;
            }
            Some(ListMatch::Allowed(_)) => {
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
        collect(&decision.resolution, request, tier, now, checks);
    }

    /// In shadow a refusal is only reported.
    pub(crate) fn apply_shadow_mode(&self, decision: &mut Decision<'_>) {
        if self.enforcement() == Enforcement::Shadow {
            decision.is_shadow = true;
            if !decision.is_allowed() && !decision.reason.is_unauthorized() {
                decision.is_refusal_ignored = true;
                decision.verdict = Verdict::Allowed;
            }
        }
    }

    /// Checks all limits in one atomic step and settles the decision. What was answered before is
    /// taken from there.
    async fn check<'r>(
        &self,
        request: &Request<'_>,
        checks: &LimitChecks<'r>,
        mode: Mode,
        answered: Option<&Answer>,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        let slot = answered
            .map_or_else(|| new_slot(checks, request.reserve.is_some()), |answer| answer.slot);
        let place = match slot.filter(|_| mode == Mode::Charge && answered.is_none()) {
            // Few requests take a slot: what that needs is kept apart.
            Some(slot) => {
                Box::pin(self.take_place(request, checks, slot, decision.now, true)).await?
            }
            None => None,
        };
        let stores = Stores::new(&self.store, request);
        let mut charges = Charges::new();
        build_charges(decision, checks, slot, &stores, &mut charges)?;
        let mut outcomes = Outcomes::new();
        let decided = match answered {
            Some(answer)
                if answer.outcomes.len() == charges.len()
                    && answer.shape == shape(checks.iter().map(|line| line.limit.salt)) =>
            {
                outcomes.extend(answer.outcomes.iter().copied());
                Decided::at(answer.at)
            }
            _ => {
                // Rules have changed since it was answered: it stays allowed, and is not charged
                // again; the figures are those of now.
                let mode = if answered.is_some() { Mode::Peek } else { mode };
                let asked = [tollgate_store::Request { charges: &charges, mode }];
                let decided = self.store.decide(&asked, decision.now, &mut outcomes);
                let decided = if is_traced() {
                    let span = trace_span!(target: TRACE_TARGET, "store", limits = charges.len());
                    Box::pin(decided).instrument(span).await?
                } else {
                    decided.await?
                };
                check_answer(&asked, &decided, &mut outcomes)?;
                decided
            }
        };
        let passes = answered.is_some() || passes(&charges, &outcomes);
        drop(charges);
        let slot = slot.filter(|_| passes && mode == Mode::Charge);
        if let Some(place) = place.filter(|_| slot.is_some()) {
            place.keep();
        }
        self.conclude(decision, checks, &stores, (&decided, &outcomes), passes, slot);
        Ok(())
    }

    /// Puts the store's answer into a decision, and notes the slot that it took.
    #[inline]
    pub(crate) fn conclude<'r>(
        &self,
        decision: &mut Decision<'r>,
        checks: &LimitChecks<'r>,
        stores: &Stores<'_>,
        (decided, outcomes): (&Decided, &[Outcome]),
        passes: bool,
        slot: Option<SlotId>,
    ) {
        decision.degraded = decided.degraded;
        settle(decision, checks, outcomes, (decided, 0), passes);
        if slot.is_some() {
            decision.slot = slot;
            self.slot_book.note(checks, decision, stores);
        }
    }

    /// Decides and charges a request, and stores a record of what it holds. If another node has
    /// answered the request, its answer is used and nothing is stored again.
    async fn decide_and_reserve<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        answered: Option<&Answer>,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        if answered.is_none()
            && let Some(store) = self.store.as_sync()
        {
            return self.decide_into_now(store, rules, request, Mode::Charge, decision);
        }
        self.decide_into(rules, request, Mode::Charge, answered, decision).await?;
        match answered {
            Some(answer) => {
                (decision.slot, decision.reservation) = (answer.slot, answer.reservation);
            }
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
            if let Some(store) = self.store.as_sync() {
                return self.show_now(store, rules, request, show);
            }
            let mut decision = Decision::pending(rules.version);
            self.decide_and_reserve(rules, request, None, &mut decision).await?;
            self.notify_observer(request, &decision);
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
            Some(Ok(remembered)) => {
                if let Some(made_by) = remembered.rules() {
                    let api_key = request.attributes.get(Known::ApiKey);
                    return Ok(show(&remembered.decision(&made_by, api_key)));
                }
                let answer = Some(remembered.answer());
                self.decide_and_reserve(rules, request, answer.as_ref(), &mut decision).await?;
                return Ok(show(&decision));
            }
            Some(Err(())) => return Err(EngineError::RequestIdReused),
            None => {}
        }
        let claimed = self.claim(&place, request).await?;
        if let Claimed::Unknown(error) = claimed
            && Box::pin(self.refuse_unclaimed(rules, request, error, &mut decision)).await?
        {
            self.notify_observer(request, &decision);
            return Ok(show(&decision));
        }
        let answer = claimed.answer();
        let charged = self.decide_and_reserve(rules, request, answer, &mut decision).await;
        if matches!(claimed, Claimed::Ours | Claimed::Unknown(_)) {
            let allowed = charged.is_ok() && decision.is_allowed();
            let made = allowed.then(|| Answer::of(&decision).encode());
            self.publish(&place, request, made.as_deref()).await;
        }
        charged?;
        // If another node answered, its own observer has seen the decision.
        if answer.is_none() {
            self.notify_observer(request, &decision);
        }
        if decision.is_allowed() {
            place.remember(request, rules, &decision, now);
        }
        Ok(show(&decision))
    }
}

/// Whether a request with a known key runs already: a key that ends meanwhile does not interrupt it.
fn is_under_way(request: &Request<'_>) -> bool {
    let api_key = request.attributes.get(Known::ApiKey).unwrap_or_default();
    request.is_more && !api_key.starts_with(SECRET_PREFIX)
}

/// The charges of one request.
pub(crate) type Charges<'c> = SmallVec<[Charge<'c>; 8]>;

/// Every line as a charge, in order.
#[inline]
pub(crate) fn build_charges<'c, 'r: 'c>(
    decision: &'c Decision<'r>,
    checks: &LimitChecks<'r>,
    slot: Option<SlotId>,
    stores: &Stores<'_>,
    charges: &mut Charges<'c>,
) -> Result<(), EngineError> {
    for line in checks {
        let slot = slot.unwrap_or_default();
        if let Some(charge) = charge(&decision.resolution, line, slot, stores) {
            charges.push(charge);
        }
    }
    if charges.len() == checks.len() { Ok(()) } else { Err(no_charge()) }
}

/// Checks what a store answered to one request: an outcome for every charge, and no failure.
#[inline]
pub(crate) fn check_answer(
    asked: &[tollgate_store::Request<'_>; 1],
    decided: &Decided,
    outcomes: &mut Outcomes,
) -> Result<(), EngineError> {
    check_outcomes(asked, 0, outcomes)?;
    match decided.failed_of(0) {
        Some(failure) => Err(EngineError::Store(failure.into())),
        None => Ok(()),
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
pub(crate) fn settle<'r>(
    decision: &mut Decision<'r>,
    checks: &LimitChecks<'r>,
    outcomes: &[Outcome],
    (decided, first): (&Decided, usize),
    passes: bool,
) {
    decision.now = decided.of(first);
    for (index, (line, outcome)) in checks.iter().zip(outcomes).enumerate() {
        let mut outcome = *outcome;
        if decided.each.is_some() {
            rebase_to_clock(&mut outcome, decided.of(first + index), decision.now);
        }
        let figures = (line.quota, line.cost);
        let (rule, limit, role) = (line.rule, line.limit, line.role);
        decision.scopes.push(Decision::scope(rule, limit, figures, role, outcome, line.applied));
    }
    decision.settle(passes);
}

/// Converts instants from one clock to another, keeping their distance from now.
pub(crate) fn rebase_to_clock(outcome: &mut Outcome, from: Nanos, to: Nanos) {
    let rebased = |at: Nanos| at.saturating_sub(from).saturating_add(to);
    outcome.status.reset_at = rebased(outcome.status.reset_at);
    if let Examination::Refuse { retry_at: Some(at) } = &mut outcome.examination {
        *at = rebased(*at);
    }
}
