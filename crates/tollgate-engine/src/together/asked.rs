//! The parts of a call on their way, and what follows from their outcomes.

use smallvec::SmallVec;
use tollgate_core::{Algorithm, Examination, Limit, Nanos, Outcome, Receipt, SlotId};
use tollgate_policy::{Rule, Unit};
use tollgate_store::{Charge, Decided, Degraded, GiveBack, Mode, Role};

use super::{Hits, Part};
use crate::decide::rebase_to_clock;
use crate::decision::Decision;
use crate::limit_checks::{LimitCheck, LimitChecks};
use crate::verdict::Verdict;

/// Which part and which of its checks a charge is of.
pub(super) type Places = Vec<(usize, usize)>;

/// A part on its way.
pub(super) struct Asked<'r> {
    pub(super) decision: Decision<'r>,
    pub(super) checks: LimitChecks<'r>,
    pub(super) slot: Option<SlotId>,
    pub(super) hits: Hits,
    /// It is limited by what it brought along, which replaces nothing and is not replaced.
    pub(super) has_override: bool,
    pub(super) outcomes: SmallVec<[Option<(Outcome, Nanos)>; 4]>,
}

/// What holds for all parts of a call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Call {
    /// Limits of imported rules are charged whether or not they have room.
    pub(super) owes_imported: bool,
    /// Members of the quota group refuse nothing: one of them is only reported, and counts as one that
    /// has room.
    pub(super) has_open_group: bool,
}

impl Call {
    pub(super) fn of(parts: &[Part<'_>], asked: &[Asked<'_>]) -> Self {
        let owes = |(part, one): (&Part<'_>, &Asked<'_>)| {
            part.has_own_hits
                && matches!(part.hits, Hits::Charge(_))
                && one.checks.iter().any(charges_above_limit)
        };
        let is_open = |line: &LimitCheck<'_>| {
            line.role == Role::Watch && line.rule.quota_mode && line.rule.envoy.is_some()
        };
        Self {
            owes_imported: parts.iter().zip(asked).any(owes),
            has_open_group: asked.iter().flat_map(|one| &one.checks).any(is_open),
        }
    }
}

pub(super) fn charges_above_limit(line: &LimitCheck<'_>) -> bool {
    line.rule.envoy.as_ref().is_some_and(|envoy| envoy.charge_above_limit)
}

/// In which step a line is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Look,
    Pay,
    Owe,
}

impl Asked<'_> {
    pub(super) fn step(&self, line: &LimitCheck<'_>, call: Call) -> Step {
        match (self.hits, line.rule.unit) {
            (Hits::Check | Hits::GiveBack(_), _) => Step::Look,
            (Hits::Charge(_), Unit::Requests)
                if call.owes_imported && charges_above_limit(line) =>
            {
                Step::Owe
            }
            (Hits::Charge(_), Unit::Requests | Unit::Concurrency) => Step::Pay,
            (Hits::Charge(_), _) => Step::Owe,
        }
    }

    /// Whether one of its limits that stand alone has no room.
    pub(super) fn refuses(&self) -> bool {
        let checks = self.checks.iter().zip(&self.outcomes);
        let refuses = |(line, outcome): (&LimitCheck<'_>, &Option<(Outcome, Nanos)>)| {
            line.role == Role::Must
                && outcome.as_ref().is_some_and(|(outcome, _)| !outcome.examination.admits())
        };
        checks.into_iter().any(refuses) && !matches!(self.hits, Hits::GiveBack(_))
    }
}

impl Asked<'_> {
    pub(super) fn checked_member_has_room(&self) -> bool {
        let mut members = self
            .checks
            .iter()
            .zip(&self.outcomes)
            .filter(|(line, _)| line.role == Role::AnyOf && matches!(self.hits, Hits::Check));
        members.any(|(_, outcome)| outcome.as_ref().is_some_and(|(it, _)| it.examination.admits()))
    }
}

/// Puts each outcome at the line that it is of.
pub(super) fn take_answer(
    asked: &mut [Asked<'_>],
    places: &Places,
    decided: &Decided,
    outcomes: &[Outcome],
    steps: usize,
) -> Option<Degraded> {
    for (index, ((number, at), outcome)) in places.iter().zip(outcomes).enumerate() {
        let place = asked.get_mut(*number).and_then(|one| one.outcomes.get_mut(*at));
        if let Some(place) = place {
            *place = Some((*outcome, decided.of(index)));
        }
    }
    (0..steps).find_map(|request| decided.degraded_of(request))
}

/// What is asked after the look: charges are made only where nothing was refused by it.
pub(super) fn steps_after_look(asked: &[Asked<'_>], call: &mut Call) -> [(Step, Mode); 2] {
    let is_refused = asked.iter().any(|one| {
        one.refuses() || (one.decision.verdict == Verdict::Denied && one.checks.is_empty())
    }) || (!call.has_open_group && is_group_spent(asked));
    // Room that was found by a check is room of the whole group.
    call.has_open_group |= asked.iter().any(Asked::checked_member_has_room);
    let pay = if is_refused { Mode::Peek } else { Mode::Charge };
    [(Step::Pay, pay), (Step::Owe, Mode::Owe)]
}

/// What a part gives back of hits that were charged by earlier calls, of which there is no receipt: at most what is
/// counted now. Logs and slots do not know which of their entries is meant and stay as they are.
pub(super) fn returns<'c>(
    part: &Part<'_>,
    one: &Asked<'_>,
    made: &[Option<Charge<'c>>],
) -> Vec<GiveBack<'c>> {
    let Hits::GiveBack(hits) = part.hits else { return Vec::new() };
    let returned = |(made, outcome): (&Option<Charge<'c>>, &Option<(Outcome, Nanos)>)| {
        let (made, (outcome, at)) = (made.as_ref()?, outcome.as_ref()?);
        let receipt = receipt_of(made.limit, outcome, hits, *at)?;
        Some(GiveBack { counter: made.counter, limit: made.limit, receipt })
    };
    made.iter().zip(&one.outcomes).filter_map(returned).collect()
}

pub(super) fn settle(one: &mut Asked<'_>, degraded: Option<Degraded>, passes: bool) {
    let Asked { decision, checks, outcomes, .. } = one;
    let first = outcomes.iter().flatten().next();
    decision.now = first.map_or(decision.now, |(_, at)| *at);
    decision.degraded = degraded;
    for (line, outcome) in checks.iter().zip(outcomes.iter()) {
        let Some((mut outcome, at)) = *outcome else { continue };
        if at != decision.now {
            rebase_to_clock(&mut outcome, at, decision.now);
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
pub(super) fn replace(asked: &mut [Asked<'_>]) {
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
        one.checks.retain(|line| {
            let mut others = replacing.iter().filter(|(other, _)| *other != number);
            !others.any(|(_, rule)| rule.replaces(line.rule))
        });
    }
}

/// Whether the quota group is only checked in this call, and has no room left.
pub(super) fn is_group_spent(asked: &[Asked<'_>]) -> bool {
    let mut is_spent = false;
    for one in asked {
        for (line, outcome) in one.checks.iter().zip(&one.outcomes) {
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
pub(super) fn allows_check_at_limit(line: &LimitCheck<'_>) -> bool {
    let allows = line.rule.envoy.as_ref().is_some_and(|envoy| envoy.allow_check_at_limit);
    allows && line.quota.quota() > 0
}

/// What a charge of so much, made just now, would have returned.
pub(super) fn receipt_of(
    limit: &Limit,
    outcome: &Outcome,
    hits: u64,
    at: Nanos,
) -> Option<Receipt> {
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
