//! The road from a request to its decision.

use smallvec::SmallVec;
use tollgate_core::{Ask, SlotId};
use tollgate_policy::{Action, Applied, Attributes, Known, Listed, NoMatch, Quota, Unit};
use tollgate_store::{Charge, Counter, Mode, Outcomes, Role, Store, passes};

use crate::decision::{AppliedRules, Decision, Reason, Verdict};
use crate::idempotency::Remembered;
use crate::request::Request;
use crate::{ActiveRules, Enforcement, Engine, EngineError};

/// One limit on its way to the store.
struct Line<'r> {
    applied: u8,
    limit: &'r tollgate_policy::RuleLimit,
    quota: &'r tollgate_core::Limit,
    role: Role,
    cost: u64,
}

type Lines<'r> = SmallVec<[Line<'r>; 8]>;

impl<S: Store> Engine<S> {
    /// Decides a request by these rules, and charges it if `mode` says so and it passes.
    pub async fn decide<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mode: Mode,
    ) -> Result<Decision<'r>, EngineError> {
        let now = self.clock.now();
        let enforcement = self.enforcement();
        let plain = |verdict, reason| Decision::plain(verdict, reason, now, rules.version);
        if enforcement == Enforcement::Off {
            return Ok(plain(Verdict::Allowed, Reason::EnforcementOff));
        }
        let mut attributes = request.attributes.clone();
        match rules.set.listed(&attributes, now) {
            Some(Listed::Denied(entry)) => {
                let mut decision = plain(Verdict::Denied, Reason::DenyListed);
                decision.note = entry.reason.as_deref();
                return Ok(decision.in_mode(enforcement));
            }
            Some(Listed::Allowed(_)) => return Ok(plain(Verdict::Allowed, Reason::AllowListed)),
            None => {}
        }
        set_tier(rules, &mut attributes);
        let resolution = rules.set.resolve(&attributes, now);
        let mut applied: AppliedRules<'r> = resolution.enforced;
        applied.extend(resolution.observed);
        if applied.is_empty() {
            let verdict = match rules.set.no_match() {
                NoMatch::Allow => Verdict::Allowed,
                NoMatch::Deny => Verdict::Denied,
            };
            return Ok(plain(verdict, Reason::NoMatch).in_mode(enforcement));
        }
        let lines = lines(&applied, request, attributes.get(Known::Tier));
        let mut decision = plain(Verdict::Allowed, Reason::WithinLimits);
        self.check(&applied, &lines, mode, &mut decision).await?;
        decision.applied = applied;
        Ok(decision.in_mode(enforcement))
    }

    /// Checks all limits in one atomic step and settles the decision.
    async fn check<'r>(
        &self,
        applied: &[Applied<'r, 'r>],
        lines: &Lines<'r>,
        mode: Mode,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        if lines.is_empty() {
            return Ok(());
        }
        let slot = new_slot(applied);
        let charges: SmallVec<[Charge<'_>; 8]> = lines
            .iter()
            .filter_map(|line| charge(applied, line, slot.unwrap_or_default()))
            .collect();
        let mut outcomes = Outcomes::new();
        let request = tollgate_store::Request { charges: &charges, mode };
        decision.now = self.store.decide(&[request], decision.now, &mut outcomes).await?;
        let passes = passes(&charges, &outcomes);
        for (line, outcome) in lines.iter().zip(&outcomes) {
            let Some(one) = applied.get(usize::from(line.applied)) else { continue };
            let figures = (line.quota.quota(), line.quota.capacity(), line.cost);
            let (role, index) = (line.role, line.applied);
            let scope = Decision::scope(one.rule, line.limit, figures, role, *outcome, index);
            decision.scopes.push(scope);
        }
        decision.settle(passes);
        if passes && mode == Mode::Charge {
            decision.slot = slot;
        }
        Ok(())
    }

    /// [`Engine::decide`], and if the request carries an id, the answer it got before.
    pub async fn decide_once<'r>(
        &self,
        rules: &'r arc_swap::Guard<std::sync::Arc<ActiveRules>>,
        request: &Request<'r>,
    ) -> Result<Answer<'r>, EngineError> {
        let Some(id) = request.request_id else {
            return Ok(Answer::Fresh(self.decide(rules, request, Mode::Charge).await?));
        };
        let now = self.clock.now();
        let mut place = self.remembered.lock(request.caller, id).await;
        match place.find(request, now) {
            Some(Ok(remembered)) => return Ok(Answer::Remembered(remembered)),
            Some(Err(())) => return Err(EngineError::RequestIdReused),
            None => {}
        }
        let decision = self.decide(rules, request, Mode::Charge).await?;
        if decision.is_allowed() {
            place.remember(request, std::sync::Arc::clone(rules), &decision, now);
        }
        Ok(Answer::Fresh(decision))
    }
}

/// A decision, made now or remembered.
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the common one, and stays on the stack"
)]
pub enum Answer<'r> {
    /// Made now.
    Fresh(Decision<'r>),
    /// Made before, for the same request id.
    Remembered(std::sync::Arc<Remembered>),
}

impl Answer<'_> {
    /// The decision itself.
    pub fn with<T>(&self, use_it: impl FnOnce(&Decision<'_>) -> T) -> T {
        match self {
            Self::Fresh(decision) => use_it(decision),
            Self::Remembered(remembered) => use_it(&remembered.decision()),
        }
    }
}

fn set_tier<'r>(rules: &'r ActiveRules, attributes: &mut Attributes<'r>) {
    if let Some(tier) = rules.set.tier_of(attributes) {
        attributes.set(Known::Tier, tier);
    }
}

/// The limits of the applying rules that hold for this tier, with their costs.
fn lines<'r>(applied: &[Applied<'r, 'r>], request: &Request<'_>, tier: Option<&str>) -> Lines<'r> {
    let mut lines = Lines::new();
    for (index, one) in applied.iter().enumerate().take(usize::from(u8::MAX)) {
        let rule = one.rule;
        let role = match rule.action {
            Action::LogOnly => Role::Watch,
            _ if rule.quota_mode => Role::AnyOf,
            _ => Role::Must,
        };
        let cost = match rule.unit {
            Unit::Requests | Unit::Cost => request.cost.or(one.listed_cost).unwrap_or(1),
            Unit::Tokens => request.tokens.unwrap_or(0),
            Unit::Concurrency => 1,
        };
        for limit in &rule.limits {
            if let Some(Quota::Limited(quota)) = limit.for_tier(tier) {
                lines.push(Line { applied: index as u8, limit, quota, role, cost });
            }
        }
    }
    lines
}

fn charge<'c>(applied: &'c [Applied<'_, '_>], line: &Line<'c>, slot: SlotId) -> Option<Charge<'c>> {
    let one = applied.get(usize::from(line.applied))?;
    let max_delay = match one.rule.action {
        Action::Throttle => Some(one.rule.max_delay.unwrap_or(0)),
        _ => None,
    };
    let counter = Counter {
        rule_id: &one.rule.id,
        tag: &line.limit.tag,
        salt: line.limit.salt,
        key: &one.key,
    };
    let ask = Ask { cost: line.cost, max_delay, slot };
    Some(Charge { counter, limit: line.quota, ask, role: line.role })
}

/// A name for the slot that a concurrency rule would hold.
fn new_slot(applied: &[Applied<'_, '_>]) -> Option<SlotId> {
    if applied.iter().all(|one| one.rule.unit != Unit::Concurrency) {
        return None;
    }
    let mut bytes = [0; 16];
    // Without random bytes the slot still expires; only its name could be guessed.
    let _ = getrandom::fill(&mut bytes);
    Some(SlotId(u128::from_le_bytes(bytes)))
}

impl Decision<'_> {
    fn in_mode(mut self, enforcement: Enforcement) -> Self {
        if enforcement == Enforcement::Shadow {
            self.is_shadow = true;
            if !self.is_allowed() {
                self.verdict = Verdict::Allowed;
            }
        }
        self
    }
}
