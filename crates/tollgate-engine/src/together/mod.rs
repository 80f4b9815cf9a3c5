//! Several requests decided as one: the descriptors of an Envoy request.
//!
//! Each part resolves by itself; then all their limits are checked in one atomic step, and all are
//! charged or none is. Three kinds of limits stand apart from that step: those that are only looked
//! at come before it, so that one without room keeps the others from being charged; costs and tokens
//! that were spent already are owed whatever the others say; and hits that are given back are no
//! charge at all.
//!
//! Rules that were imported from envoyproxy/ratelimit (`envoy` in the rule) owe more: Envoy charges what
//! a response cost when its stream has ended, and sends it as the descriptor's own hits. Nothing marks
//! such a call, so in every call that has such hits all limits of imported rules are owed.

mod asked;

use smallvec::SmallVec;
use tollgate_core::{Nanos, Outcome, SlotId};
use tollgate_policy::{Known, Unit};
use tollgate_store::{
    Charge, Decided, Degraded, Mode, Outcomes, Role, Store, SyncStore, check_outcomes,
    report_broken,
};
use tracing::Instrument as _;

use crate::debt::max_owed;
use crate::decide::no_charge;
use crate::decision::Decision;
use crate::limit_checks::{LimitChecks, Stores, charge, new_slot};
use crate::limit_override::{LimitOverride, put_override, share_counter};
use crate::observer::TRACE_TARGET;
use crate::request::Request;
use crate::verdict::{Reason, Verdict};
use crate::{ActiveRules, Amounts, Engine, EngineError};
use asked::{
    Asked, Call, Places, Step, allows_check_at_limit, replace, returns, settle, steps_after_look,
    take_answer,
};

/// What a part asks of its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hits {
    /// To be charged so much.
    Charge(u64),
    /// Whether a charge of 1 would pass.
    Check,
    /// To give so much back.
    GiveBack(u64),
}

/// One of several requests that are decided as one.
#[derive(Debug, Clone)]
pub struct Part<'r> {
    /// What is known of it. Its costs are set by `hits`.
    pub request: Request<'r>,
    /// What it asks.
    pub hits: Hits,
    /// Whether the hits are its own, rather than those of all parts.
    pub has_own_hits: bool,
    /// The limit it brings along.
    pub limit_override: Option<&'r LimitOverride>,
}

/// What was decided about all parts.
#[derive(Debug, Clone)]
pub struct Together<'r> {
    /// Each part for itself. One that had room of its own reads as allowed, charged or not.
    pub parts: Vec<Decision<'r>>,
    /// Whether any part is refused, so that nothing was charged but what is owed.
    pub is_over: bool,
}

impl<S: Store> Engine<S> {
    /// Decides several requests as one. Where no rule applies, nothing is refused.
    pub async fn decide_together<'r>(
        &self,
        rules: &'r ActiveRules,
        parts: &[Part<'r>],
    ) -> Result<Together<'r>, EngineError> {
        if let Some(decided) = self.decide_together_now(rules, parts) {
            return decided;
        }
        let (mut asked, mut call) = self.begin(rules, parts);
        let mut degraded = self.step(parts, &mut asked, call, &LOOK).await?;
        let steps = steps_after_look(&asked, &mut call);
        degraded = self.step(parts, &mut asked, call, &steps).await?.or(degraded);
        for (part, one) in parts.iter().zip(&asked) {
            let made = self.returned_charges(part, one);
            let returns = returns(part, one, &made);
            if !returns.is_empty() {
                self.store.give_back(&returns, self.clock.now()).await?;
            }
        }
        Ok(self.conclude_together(parts, asked, call, degraded))
    }

    /// [`Engine::decide_together`] without a future. `None`: the store has to be awaited, and nothing was decided.
    pub fn decide_together_now<'r>(
        &self,
        rules: &'r ActiveRules,
        parts: &[Part<'r>],
    ) -> Option<Result<Together<'r>, EngineError>> {
        let store = self.store.as_sync()?;
        Some(self.decide_together_on(store, rules, parts))
    }

    fn decide_together_on<'r>(
        &self,
        store: &dyn SyncStore,
        rules: &'r ActiveRules,
        parts: &[Part<'r>],
    ) -> Result<Together<'r>, EngineError> {
        let (mut asked, mut call) = self.begin(rules, parts);
        let mut degraded = self.step_now(store, parts, &mut asked, call, &LOOK)?;
        let steps = steps_after_look(&asked, &mut call);
        degraded = self.step_now(store, parts, &mut asked, call, &steps)?.or(degraded);
        for (part, one) in parts.iter().zip(&asked) {
            let made = self.returned_charges(part, one);
            let returns = returns(part, one, &made);
            if !returns.is_empty() {
                store.give_back_sync(&returns, self.clock.now())?;
            }
        }
        Ok(self.conclude_together(parts, asked, call, degraded))
    }

    /// Every part with its limits, and what holds for all of them.
    fn begin<'r>(&self, rules: &'r ActiveRules, parts: &[Part<'r>]) -> (Vec<Asked<'r>>, Call) {
        let mut asked: Vec<Asked<'r>> = parts.iter().map(|part| self.ask(rules, part)).collect();
        replace(&mut asked);
        for one in &mut asked {
            one.slot = new_slot(&one.checks, false);
            one.outcomes = SmallVec::from_elem(None, one.checks.len());
        }
        let call = Call::of(parts, &asked);
        (asked, call)
    }

    fn conclude_together<'r>(
        &self,
        parts: &[Part<'_>],
        mut asked: Vec<Asked<'r>>,
        call: Call,
        degraded: Option<Degraded>,
    ) -> Together<'r> {
        let is_over = self.settle_together(parts, &mut asked, call, degraded);
        Together { parts: asked.into_iter().map(|one| one.decision).collect(), is_over }
    }

    /// A part with the limits that it meets by itself.
    fn ask<'r>(&self, rules: &'r ActiveRules, part: &Part<'r>) -> Asked<'r> {
        let hits = match part.hits {
            Hits::Charge(hits) | Hits::GiveBack(hits) => hits,
            Hits::Check => 1,
        };
        let mut request = part.request.clone();
        let stated = Some(hits);
        request.amounts = Amounts {
            cost: stated,
            tokens: stated,
            input_tokens: stated,
            output_tokens: stated,
            cached_tokens: stated,
            money: None,
        };
        let mut decision = Decision::pending(rules.version);
        let mut checks = LimitChecks::new();
        self.prepare(rules, &request, &mut decision, &mut checks);
        // A hit on a rule of unit money is a nano of its currency.
        let priced = checks.iter_mut().filter(|line| line.rule.unit == Unit::Money);
        priced.for_each(|line| line.cost = hits);
        if decision.reason == Reason::NoMatch {
            decision.verdict = Verdict::Allowed;
        }
        let is_open = matches!(decision.reason, Reason::NoMatch | Reason::WithinLimits);
        let mut has_override = false;
        if let Some(with) = part.limit_override.filter(|_| is_open) {
            let domain = request.attributes.get(Known::Domain).unwrap_or_default();
            if !checks.is_empty() || rules.set.knows_domain(domain) {
                has_override = true;
                if !share_counter(with, &mut checks) {
                    let options = rules.set.envoy_options(domain);
                    put_override(with, options, &request, hits, &mut decision, &mut checks);
                }
            }
        }
        if part.hits == Hits::Check {
            checks
                .iter_mut()
                .filter(|line| allows_check_at_limit(line))
                .for_each(|line| line.cost = 0);
        }
        let outcomes = SmallVec::new();
        Asked { decision, checks, slot: None, hits: part.hits, has_override, outcomes }
    }

    /// Asks the store about the checks of these steps, in one call.
    async fn step<'r>(
        &self,
        parts: &[Part<'r>],
        asked: &mut [Asked<'r>],
        call: Call,
        steps: &[(Step, Mode)],
    ) -> Result<Option<Degraded>, EngineError> {
        let (mut places, mut outcomes) = (Places::new(), Outcomes::new());
        let decided = {
            let groups = self.groups(parts, asked, call, steps, &mut places)?;
            let requests = requests(&groups);
            if requests.is_empty() {
                return Ok(None);
            }
            let span = store_span(&requests);
            let decided = self.store.decide(&requests, self.clock.now(), &mut outcomes);
            let decided = decided.instrument(span).await?;
            check_answer(&requests, decided, &mut outcomes)?
        };
        Ok(take_answer(asked, &places, &decided, &outcomes, steps.len()))
    }

    /// The same on a store that answers at once.
    fn step_now<'r>(
        &self,
        store: &dyn SyncStore,
        parts: &[Part<'r>],
        asked: &mut [Asked<'r>],
        call: Call,
        steps: &[(Step, Mode)],
    ) -> Result<Option<Degraded>, EngineError> {
        let (mut places, mut outcomes) = (Places::new(), Outcomes::new());
        let decided = {
            let groups = self.groups(parts, asked, call, steps, &mut places)?;
            let requests = requests(&groups);
            if requests.is_empty() {
                return Ok(None);
            }
            let _store = store_span(&requests).entered();
            let decided = store.decide_sync(&requests, self.clock.now(), &mut outcomes)?;
            check_answer(&requests, decided, &mut outcomes)?
        };
        Ok(take_answer(asked, &places, &decided, &outcomes, steps.len()))
    }

    /// The charges of these steps, and which line each of them is of.
    fn groups<'c, 'r: 'c>(
        &self,
        parts: &[Part<'r>],
        asked: &'c [Asked<'r>],
        call: Call,
        steps: &[(Step, Mode)],
        places: &mut Places,
    ) -> Result<Groups<'c>, EngineError> {
        let mut groups = Groups::new();
        for (step, mode) in steps {
            let mut charges = Vec::new();
            for (number, (part, one)) in parts.iter().zip(asked).enumerate() {
                let stores = Stores::new(&self.store, &part.request);
                let slot = one.slot.unwrap_or_default();
                for (at, line) in one.checks.iter().enumerate() {
                    if one.step(line, call) != *step {
                        continue;
                    }
                    let made = charge(&one.decision.resolution, line, slot, &stores);
                    let mut made = made.ok_or_else(no_charge)?;
                    if call.has_open_group && made.role == Role::AnyOf {
                        made.role = Role::Watch;
                    }
                    if *mode == Mode::Owe {
                        made.ask.cost = made.ask.cost.min(max_owed(made.limit));
                    }
                    charges.push(made);
                    places.push((number, at));
                }
            }
            if !charges.is_empty() {
                groups.push((charges, *mode));
            }
        }
        Ok(groups)
    }

    /// The charges of a part that gives hits back, one for each line; none of any other part.
    fn returned_charges<'c, 'r: 'c>(
        &self,
        part: &Part<'_>,
        one: &'c Asked<'r>,
    ) -> Vec<Option<Charge<'c>>> {
        if !matches!(part.hits, Hits::GiveBack(_)) {
            return Vec::new();
        }
        let stores = Stores::new(&self.store, &part.request);
        let made = |line| charge(&one.decision.resolution, line, SlotId::default(), &stores);
        one.checks.iter().map(made).collect()
    }

    /// Turns outcomes into decisions, and reports those that charge to the observer. True if any
    /// refuses.
    fn settle_together(
        &self,
        parts: &[Part<'_>],
        asked: &mut [Asked<'_>],
        call: Call,
        degraded: Option<Degraded>,
    ) -> bool {
        let group_has_room = call.has_open_group
            || asked.iter().any(|one| {
                one.checks.iter().zip(&one.outcomes).any(|(line, outcome)| {
                    let admits = |(outcome, _): &(Outcome, Nanos)| outcome.examination.admits();
                    line.role == Role::AnyOf && outcome.as_ref().is_some_and(admits)
                })
            });
        let mut is_over = false;
        for (part, one) in parts.iter().zip(asked) {
            if !one.checks.is_empty() {
                let in_group = one.checks.iter().any(|line| line.role == Role::AnyOf);
                // Every limit was asked about by now: one that has no answer has not admitted anything.
                let is_answered = one.outcomes.len() == one.checks.len()
                    && one.outcomes.iter().all(Option::is_some);
                if !is_answered {
                    report_broken("a limit of a descriptor has no outcome");
                }
                let passes = is_answered && !one.refuses() && (!in_group || group_has_room);
                settle(one, degraded, passes || matches!(part.hits, Hits::GiveBack(_)));
            }
            self.apply_shadow_mode(&mut one.decision);
            is_over |= !one.decision.is_allowed();
            if matches!(part.hits, Hits::Charge(_)) {
                self.notify_observer(&part.request, &one.decision);
            }
        }
        is_over
    }
}

/// Limits that are only looked at.
const LOOK: [(Step, Mode); 1] = [(Step::Look, Mode::Peek)];

/// The charges of one call of the store, in groups that are decided one after the other.
type Groups<'c> = SmallVec<[(Vec<Charge<'c>>, Mode); 2]>;

fn requests<'c>(groups: &'c Groups<'_>) -> SmallVec<[tollgate_store::Request<'c>; 2]> {
    groups.iter().map(|(charges, mode)| tollgate_store::Request { charges, mode: *mode }).collect()
}

fn store_span(requests: &[tollgate_store::Request<'_>]) -> tracing::Span {
    tracing::trace_span!(target: TRACE_TARGET, "store", parts = requests.len())
}

fn check_answer(
    requests: &[tollgate_store::Request<'_>],
    decided: Decided,
    outcomes: &mut Outcomes,
) -> Result<Decided, EngineError> {
    check_outcomes(requests, 0, outcomes)?;
    match (0..requests.len()).find_map(|one| decided.failed_of(one)) {
        Some(failure) => Err(EngineError::Store(failure.into())),
        None => Ok(decided),
    }
}
