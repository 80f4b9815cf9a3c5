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

use smallvec::SmallVec;
use tollgate_core::{Algorithm, Examination, Limit, Nanos, Outcome, Receipt, SlotId};
use tollgate_policy::{Known, Rule, Unit};
use tollgate_store::{
    Charge, Degraded, GiveBack, Mode, Outcomes, Role, Store, check_outcomes, report_broken,
};
use tracing::Instrument as _;

use crate::decide::{no_charge, tell_by};
use crate::decision::Decision;
use crate::limit_override::{LimitOverride, put_override, share_counter};
use crate::lines::{Line, Lines, Stores, charge, new_slot};
use crate::observer::TRACE_TARGET;
use crate::request::Request;
use crate::verdict::{Reason, Verdict};
use crate::{ActiveRules, Engine, EngineError};

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

/// A part on its way.
struct Asked<'r> {
    decision: Decision<'r>,
    lines: Lines<'r>,
    slot: Option<SlotId>,
    hits: Hits,
    /// It is limited by what it brought along, which replaces nothing and is not replaced.
    has_override: bool,
    outcomes: SmallVec<[Option<(Outcome, Nanos)>; 4]>,
}

/// What holds for all parts of a call.
#[derive(Debug, Clone, Copy, Default)]
struct Call {
    /// Limits of imported rules are charged whether or not they have room.
    owes_imported: bool,
    /// Members of the quota group refuse nothing: one of them is only reported, and counts as one that
    /// has room.
    has_open_group: bool,
}

impl Call {
    fn of(parts: &[Part<'_>], asked: &[Asked<'_>]) -> Self {
        let owes = |(part, one): (&Part<'_>, &Asked<'_>)| {
            part.has_own_hits
                && matches!(part.hits, Hits::Charge(_))
                && one.lines.iter().any(charges_above_limit)
        };
        let is_open = |line: &Line<'_>| {
            line.role == Role::Watch && line.rule.quota_mode && line.rule.envoy.is_some()
        };
        Self {
            owes_imported: parts.iter().zip(asked).any(owes),
            has_open_group: asked.iter().flat_map(|one| &one.lines).any(is_open),
        }
    }
}

fn charges_above_limit(line: &Line<'_>) -> bool {
    line.rule.envoy.as_ref().is_some_and(|envoy| envoy.charge_above_limit)
}

/// In which step a line is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Look,
    Pay,
    Owe,
}

impl Asked<'_> {
    fn step(&self, line: &Line<'_>, call: Call) -> Step {
        match (self.hits, line.rule.unit) {
            (Hits::Check | Hits::GiveBack(_), _) => Step::Look,
            (Hits::Charge(_), Unit::Tokens | Unit::Cost) => Step::Owe,
            (Hits::Charge(_), Unit::Requests)
                if call.owes_imported && charges_above_limit(line) =>
            {
                Step::Owe
            }
            (Hits::Charge(_), _) => Step::Pay,
        }
    }

    /// Whether one of its limits that stand alone has no room.
    fn refuses(&self) -> bool {
        let lines = self.lines.iter().zip(&self.outcomes);
        let refuses = |(line, outcome): (&Line<'_>, &Option<(Outcome, Nanos)>)| {
            line.role == Role::Must
                && outcome.as_ref().is_some_and(|(outcome, _)| !outcome.examination.admits())
        };
        lines.into_iter().any(refuses) && !matches!(self.hits, Hits::GiveBack(_))
    }
}

impl Asked<'_> {
    fn checked_member_has_room(&self) -> bool {
        let mut members = self
            .lines
            .iter()
            .zip(&self.outcomes)
            .filter(|(line, _)| line.role == Role::AnyOf && matches!(self.hits, Hits::Check));
        members.any(|(_, outcome)| outcome.as_ref().is_some_and(|(it, _)| it.examination.admits()))
    }
}

impl<S: Store> Engine<S> {
    /// Decides several requests as one. Where no rule applies, nothing is refused.
    pub async fn decide_together<'r>(
        &self,
        rules: &'r ActiveRules,
        parts: &[Part<'r>],
    ) -> Result<Together<'r>, EngineError> {
        let mut asked: Vec<Asked<'r>> = parts.iter().map(|part| self.ask(rules, part)).collect();
        replace(&mut asked);
        for one in &mut asked {
            one.slot = new_slot(&one.lines, false);
            one.outcomes = SmallVec::from_elem(None, one.lines.len());
        }
        let mut call = Call::of(parts, &asked);
        let mut degraded = self.step(parts, &mut asked, call, &[(Step::Look, Mode::Peek)]).await?;
        let is_refused = asked.iter().any(|one| {
            one.refuses() || (one.decision.verdict == Verdict::Denied && one.lines.is_empty())
        }) || (!call.has_open_group && is_group_spent(&asked));
        // Room that was found by a check is room of the whole group.
        call.has_open_group |= asked.iter().any(Asked::checked_member_has_room);
        let pay = if is_refused { Mode::Peek } else { Mode::Charge };
        let steps = [(Step::Pay, pay), (Step::Owe, Mode::Owe)];
        degraded = self.step(parts, &mut asked, call, &steps).await?.or(degraded);
        self.give_hits_back(parts, &asked).await?;
        let is_over = self.settle_together(parts, &mut asked, call, degraded);
        Ok(Together { parts: asked.into_iter().map(|one| one.decision).collect(), is_over })
    }

    /// A part with the limits that it meets by itself.
    fn ask<'r>(&self, rules: &'r ActiveRules, part: &Part<'r>) -> Asked<'r> {
        let hits = match part.hits {
            Hits::Charge(hits) | Hits::GiveBack(hits) => hits,
            Hits::Check => 1,
        };
        let mut request = part.request.clone();
        (request.cost, request.tokens) = (Some(hits), Some(hits));
        let mut decision = Decision::pending(rules.version);
        let mut lines = Lines::new();
        self.prepare(rules, &request, &mut decision, &mut lines);
        if decision.reason == Reason::NoMatch {
            decision.verdict = Verdict::Allowed;
        }
        let is_open = matches!(decision.reason, Reason::NoMatch | Reason::WithinLimits);
        let mut has_override = false;
        if let Some(with) = part.limit_override.filter(|_| is_open) {
            let domain = request.attributes.get(Known::Domain).unwrap_or_default();
            if !lines.is_empty() || rules.set.knows_domain(domain) {
                has_override = true;
                if !share_counter(with, &mut lines) {
                    let options = rules.set.envoy_options(domain);
                    put_override(with, options, &request, hits, &mut decision, &mut lines);
                }
            }
        }
        if part.hits == Hits::Check {
            lines
                .iter_mut()
                .filter(|line| allows_check_at_limit(line))
                .for_each(|line| line.cost = 0);
        }
        let outcomes = SmallVec::new();
        Asked { decision, lines, slot: None, hits: part.hits, has_override, outcomes }
    }

    /// Asks the store about the lines of these steps, in one call.
    async fn step<'r>(
        &self,
        parts: &[Part<'r>],
        asked: &mut [Asked<'r>],
        call: Call,
        steps: &[(Step, Mode)],
    ) -> Result<Option<Degraded>, EngineError> {
        let mut places: Vec<(usize, usize)> = Vec::new();
        let mut outcomes = Outcomes::new();
        let decided = {
            let mut groups: SmallVec<[(Vec<Charge<'_>>, Mode); 2]> = SmallVec::new();
            for (step, mode) in steps {
                let mut charges = Vec::new();
                for (number, (part, one)) in parts.iter().zip(&*asked).enumerate() {
                    let stores = Stores::new(&self.store, &part.request);
                    let slot = one.slot.unwrap_or_default();
                    for (at, line) in one.lines.iter().enumerate() {
                        if one.step(line, call) != *step {
                            continue;
                        }
                        let made = charge(&one.decision.resolution, line, slot, &stores);
                        let mut made = made.ok_or_else(no_charge)?;
                        if call.has_open_group && made.role == Role::AnyOf {
                            made.role = Role::Watch;
                        }
                        charges.push(made);
                        places.push((number, at));
                    }
                }
                if !charges.is_empty() {
                    groups.push((charges, *mode));
                }
            }
            if groups.is_empty() {
                return Ok(None);
            }
            let requests: SmallVec<[tollgate_store::Request<'_>; 2]> = groups
                .iter()
                .map(|(charges, mode)| tollgate_store::Request { charges, mode: *mode })
                .collect();
            let span = tracing::trace_span!(target: TRACE_TARGET, "store", parts = requests.len());
            let decided = self.store.decide(&requests, self.clock.now(), &mut outcomes);
            let decided = decided.instrument(span).await?;
            check_outcomes(&requests, 0, &mut outcomes)?;
            if let Some(failure) = (0..requests.len()).find_map(|one| decided.failed_of(one)) {
                return Err(EngineError::Store(failure.into()));
            }
            decided
        };
        for (index, ((number, at), outcome)) in places.into_iter().zip(&outcomes).enumerate() {
            let place = asked.get_mut(number).and_then(|one| one.outcomes.get_mut(at));
            if let Some(place) = place {
                *place = Some((*outcome, decided.of(index)));
            }
        }
        let degraded = (0..steps.len()).find_map(|request| decided.degraded_of(request));
        Ok(degraded)
    }

    /// Gives hits back that were charged by earlier calls, of which there is no receipt: at most what is
    /// counted now. Logs and slots cannot tell which of their entries is meant and stay as they are.
    async fn give_hits_back(
        &self,
        parts: &[Part<'_>],
        asked: &[Asked<'_>],
    ) -> Result<(), EngineError> {
        for (part, one) in parts.iter().zip(asked) {
            let Hits::GiveBack(hits) = part.hits else { continue };
            let stores = Stores::new(&self.store, &part.request);
            let made: Vec<_> = one
                .lines
                .iter()
                .map(|line| charge(&one.decision.resolution, line, SlotId::default(), &stores))
                .collect();
            let returns: Vec<GiveBack<'_>> = made
                .iter()
                .zip(&one.outcomes)
                .filter_map(|(made, outcome)| {
                    let (made, (outcome, at)) = (made.as_ref()?, outcome.as_ref()?);
                    let receipt = receipt_of(made.limit, outcome, hits, *at)?;
                    Some(GiveBack { counter: made.counter, limit: made.limit, receipt })
                })
                .collect();
            if !returns.is_empty() {
                self.store.give_back(&returns, self.clock.now()).await?;
            }
        }
        Ok(())
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
                one.lines.iter().zip(&one.outcomes).any(|(line, outcome)| {
                    let admits = |(outcome, _): &(Outcome, Nanos)| outcome.examination.admits();
                    line.role == Role::AnyOf && outcome.as_ref().is_some_and(admits)
                })
            });
        let mut is_over = false;
        for (part, one) in parts.iter().zip(asked) {
            if !one.lines.is_empty() {
                let in_group = one.lines.iter().any(|line| line.role == Role::AnyOf);
                // Every limit was asked about by now: one that has no answer has not admitted anything.
                let is_answered = one.outcomes.len() == one.lines.len()
                    && one.outcomes.iter().all(Option::is_some);
                if !is_answered {
                    report_broken("a limit of a descriptor has no outcome");
                }
                let passes = is_answered && !one.refuses() && (!in_group || group_has_room);
                settle(one, degraded, passes || matches!(part.hits, Hits::GiveBack(_)));
            }
            self.relax(&mut one.decision);
            is_over |= !one.decision.is_allowed();
            if matches!(part.hits, Hits::Charge(_)) {
                self.tell(&part.request, &one.decision);
            }
        }
        is_over
    }
}

fn settle(one: &mut Asked<'_>, degraded: Option<Degraded>, passes: bool) {
    let Asked { decision, lines, outcomes, .. } = one;
    let first = outcomes.iter().flatten().next();
    decision.now = first.map_or(decision.now, |(_, at)| *at);
    decision.degraded = degraded;
    for (line, outcome) in lines.iter().zip(outcomes.iter()) {
        let Some((mut outcome, at)) = *outcome else { continue };
        if at != decision.now {
            tell_by(&mut outcome, at, decision.now);
        }
        if matches!(one.hits, Hits::GiveBack(_)) {
            // It asks for nothing.
            outcome.examination = Examination::Admit { wait: 0 };
        }
        let figures = (line.quota, line.cost);
        let (rule, limit, role) = (line.rule, line.limit, line.role);
        decision.scopes.push(Decision::scope(rule, limit, figures, role, outcome, line.applied));
    }
    decision.settle(passes);
    if passes {
        decision.slot = one.slot;
    }
}

/// Takes away the rules that a rule of another part replaces.
fn replace(asked: &mut [Asked<'_>]) {
    let replacing: Vec<(usize, &Rule)> = asked
        .iter()
        .enumerate()
        .filter(|(_, one)| !one.has_override)
        .flat_map(|(number, one)| {
            // A rule that limits nothing has no line, and replaces others all the same.
            let enforced = one.decision.resolution.enforced.iter();
            enforced.map(move |applied| (number, applied.rule))
        })
        .filter(|(_, rule)| !rule.overrides.is_empty())
        .collect();
    if replacing.is_empty() {
        return;
    }
    for (number, one) in asked.iter_mut().enumerate().filter(|(_, one)| !one.has_override) {
        one.lines.retain(|line| {
            let mut others = replacing.iter().filter(|(other, _)| *other != number);
            !others.any(|(_, rule)| rule.replaces(line.rule))
        });
    }
}

/// Whether the quota group is only checked in this call, and has no room left.
fn is_group_spent(asked: &[Asked<'_>]) -> bool {
    let mut is_spent = false;
    for one in asked {
        for (line, outcome) in one.lines.iter().zip(&one.outcomes) {
            match outcome {
                _ if line.role != Role::AnyOf || matches!(one.hits, Hits::GiveBack(_)) => {}
                Some((outcome, _)) if !outcome.examination.admits() => is_spent = true,
                // It has room, or is charged in the next step, which finds out.
                _ => return false,
            }
        }
    }
    is_spent
}

/// Whether a check of this limit asks for no more than that it is not exceeded yet. A limit of 0 suspends,
/// and never lets anything pass.
fn allows_check_at_limit(line: &Line<'_>) -> bool {
    let allows = line.rule.envoy.as_ref().is_some_and(|envoy| envoy.allow_check_at_limit);
    allows && line.quota.quota() > 0
}

/// What a charge of so much, made just now, would have returned.
fn receipt_of(limit: &Limit, outcome: &Outcome, hits: u64, at: Nanos) -> Option<Receipt> {
    let status = &outcome.status;
    let cost = hits.min(status.used);
    if cost == 0 {
        return None;
    }
    match limit.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => {
            Some(Receipt::Window { end: limit.window_bounds(at).1, at, cost })
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => {
            Some(Receipt::LatestOfBucket { cost })
        }
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => None,
    }
}
