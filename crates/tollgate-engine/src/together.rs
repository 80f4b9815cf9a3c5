//! Several requests decided as one: the descriptors of an Envoy request.
//!
//! Each part resolves by itself; then all their limits are checked in one atomic step, and all are
//! charged or none is. Three kinds of limits stand apart from that step: those that are only looked
//! at come before it, so that one without room keeps the others from being charged; costs and tokens
//! that were spent already are owed whatever the others say; and hits that are given back are no
//! charge at all.

use std::sync::LazyLock;

use smallvec::SmallVec;
use tollgate_core::{
    Algorithm, Limit, LimitSpec, Nanos, Outcome, Receipt, SECOND, SlotId, Span, Window,
};
use tollgate_policy::{Applied, Known, RuleSet, Unit};
use tollgate_store::{Charge, Degraded, GiveBack, Mode, Outcomes, Role, Store};
use tracing::Instrument as _;

use crate::decide::tell_by;
use crate::decision::Decision;
use crate::lines::{Line, Lines, Stores, charge, max_delay, new_slot};
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

/// A limit that a part brings along, instead of those of its rules.
#[derive(Debug, Clone)]
pub struct LimitOverride {
    limit: Limit,
    window_seconds: u64,
}

/// The windows that an override may have, in seconds: a second to a year.
pub const OVERRIDE_WINDOWS: [u64; 7] = [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000];

impl LimitOverride {
    /// So much per window, which must be one of [`OVERRIDE_WINDOWS`].
    pub fn new(quota: u64, window_seconds: u64) -> Option<Self> {
        let limit = Limit::new(LimitSpec {
            algorithm: Algorithm::FixedWindow,
            quota,
            window: Window::Every(window_seconds.checked_mul(SECOND)?),
            burst: None,
            slot_ttl: 0,
        });
        let is_known = OVERRIDE_WINDOWS.contains(&window_seconds);
        limit.ok().filter(|_| is_known).map(|limit| Self { limit, window_seconds })
    }
}

/// One of several requests that are decided as one.
#[derive(Debug, Clone)]
pub struct Part<'r> {
    /// What is known of it. Its costs are set by `hits`.
    pub request: Request<'r>,
    /// What it asks.
    pub hits: Hits,
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

/// The rules whose counters overrides are counted on, one for each window.
static OVERRIDE_RULES: LazyLock<RuleSet> = LazyLock::new(|| {
    let rules = OVERRIDE_WINDOWS.map(|seconds| {
        format!(
            "- {{rule_id: descriptor-override-{seconds}, key_by: [domain, descriptor], limit: 1, \
             window_seconds: {seconds}, algorithm: fixed_window}}\n"
        )
    });
    let text = format!("default: false\nrules:\n{}", rules.concat());
    // A unit test holds that these compile.
    RuleSet::from_yaml(&text, "overrides").unwrap_or_else(|_| RuleSet::builtin())
});

/// A part on its way.
struct Asked<'r> {
    decision: Decision<'r>,
    lines: Lines<'r>,
    slot: Option<SlotId>,
    hits: Hits,
    outcomes: SmallVec<[Option<(Outcome, Nanos)>; 4]>,
}

/// In which step a line is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Look,
    Pay,
    Owe,
}

impl Asked<'_> {
    fn step(&self, line: &Line<'_>) -> Step {
        match (self.hits, line.rule.unit) {
            (Hits::Check | Hits::GiveBack(_), _) => Step::Look,
            (Hits::Charge(_), Unit::Tokens | Unit::Cost) => Step::Owe,
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
        let mut degraded = self.step(parts, &mut asked, &[(Step::Look, Mode::Peek)]).await?;
        let is_refused = asked.iter().any(|one| {
            one.refuses() || (one.decision.verdict == Verdict::Denied && one.lines.is_empty())
        });
        let pay = if is_refused { Mode::Peek } else { Mode::Charge };
        let steps = [(Step::Pay, pay), (Step::Owe, Mode::Owe)];
        degraded = self.step(parts, &mut asked, &steps).await?.or(degraded);
        self.give_hits_back(parts, &asked).await?;
        let is_over = self.settle_together(parts, &mut asked, degraded);
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
        if let Some(with) = part.limit_override.filter(|_| is_open) {
            let domain = request.attributes.get(Known::Domain).unwrap_or_default();
            if !lines.is_empty() || rules.set.knows_domain(domain) {
                put_override(with, &request, hits, &mut decision, &mut lines);
            }
        }
        let outcomes = SmallVec::new();
        Asked { decision, lines, slot: None, hits: part.hits, outcomes }
    }

    /// Asks the store about the lines of these steps, in one call.
    async fn step<'r>(
        &self,
        parts: &[Part<'r>],
        asked: &mut [Asked<'r>],
        steps: &[(Step, Mode)],
    ) -> Result<Option<Degraded>, EngineError> {
        let mut places: Vec<(usize, usize)> = Vec::new();
        let mut outcomes = Outcomes::new();
        let decided = {
            let mut groups: SmallVec<[(Vec<Charge<'_>>, Mode); 2]> = SmallVec::new();
            for (step, mode) in steps {
                let mut charges = Vec::new();
                for (number, (part, one)) in parts.iter().zip(&*asked).enumerate() {
                    let stores = Stores::new(self.store.names(), &part.request);
                    let slot = one.slot.unwrap_or_default();
                    for (at, line) in one.lines.iter().enumerate() {
                        if one.step(line) != *step {
                            continue;
                        }
                        let made = charge(&one.decision.resolution, line, slot, &stores);
                        if let Some(made) = made {
                            charges.push(made);
                            places.push((number, at));
                        }
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
            let stores = Stores::new(self.store.names(), &part.request);
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

    /// Turns outcomes into decisions, and tells of those that charge. True if any refuses.
    fn settle_together(
        &self,
        parts: &[Part<'_>],
        asked: &mut [Asked<'_>],
        degraded: Option<Degraded>,
    ) -> bool {
        let group_has_room = asked.iter().any(|one| {
            one.lines.iter().zip(&one.outcomes).any(|(line, outcome)| {
                let admits = |(outcome, _): &(Outcome, Nanos)| outcome.examination.admits();
                line.role == Role::AnyOf && outcome.as_ref().is_some_and(admits)
            })
        });
        let mut is_over = false;
        for (part, one) in parts.iter().zip(asked) {
            if !one.lines.is_empty() {
                let in_group = one.lines.iter().any(|line| line.role == Role::AnyOf);
                let passes = !one.refuses() && (!in_group || group_has_room);
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
    let replacing: Vec<(usize, &tollgate_policy::Rule)> = asked
        .iter()
        .enumerate()
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
    for (number, one) in asked.iter_mut().enumerate() {
        one.lines.retain(|line| {
            let mut others = replacing.iter().filter(|(other, _)| *other != number);
            !others.any(|(_, rule)| rule.replaces(line.rule))
        });
    }
}

/// Counts a part on the limit that it brings along instead of those of its rules.
fn put_override<'r>(
    with: &'r LimitOverride,
    request: &Request<'r>,
    cost: u64,
    decision: &mut Decision<'r>,
    lines: &mut Lines<'r>,
) {
    let id = format!("descriptor-override-{}", with.window_seconds);
    let Some(rule) = OVERRIDE_RULES.rule(&id) else { return };
    let Some(limit) = rule.limits.first() else { return };
    lines.clear();
    decision.resolution = tollgate_policy::Resolution::default();
    let mut key = SmallVec::new();
    key.push(request.attributes.get(Known::Domain).unwrap_or_default());
    key.extend(request.attributes.extras().iter().flat_map(|(name, value)| [*name, *value]));
    decision.resolution.enforced.push(Applied { rule, key, listed_cost: None });
    let role = Role::Must;
    let (quota, max_delay) = (&with.limit, max_delay(rule));
    lines.push(Line {
        applied: 0,
        rule,
        limit,
        quota,
        role,
        cost,
        max_delay,
        max_slot_ttl: Nanos::MAX,
    });
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
            Some(Receipt::Window { end: limit.window_bounds(at).1, cost })
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => {
            Some(Receipt::Bucket { nominal_end: Span::whole(status.reset_at), cost })
        }
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => None,
    }
}
