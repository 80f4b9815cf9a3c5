//! The road from a request to its decision.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Ask, SlotId};
use tollgate_policy::{Action, Known, Listed, NoMatch, Quota, Resolution, Rule, Unit};
use tollgate_store::{Charge, Counter, Mode, Outcomes, Role, Store, passes};

use crate::decision::{Decision, Reason, Verdict, applied};
use crate::request::Request;
use crate::{ActiveRules, Enforcement, Engine, EngineError};

/// One limit on its way to the store.
struct Line<'r> {
    applied: u32,
    rule: &'r Rule,
    limit: &'r tollgate_policy::RuleLimit,
    quota: &'r tollgate_core::Limit,
    role: Role,
    cost: u64,
}

type Lines<'r> = SmallVec<[Line<'r>; 8]>;

impl<S: Store> Engine<S> {
    /// Decides a request by these rules, and charges it if `mode` says so and it passes.
    #[inline]
    pub async fn decide<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mode: Mode,
    ) -> Result<Decision<'r>, EngineError> {
        // A decision is large: it is made where it stays.
        let mut decision = Decision::pending(rules.version);
        self.decide_into(rules, request, mode, &mut decision).await?;
        Ok(decision)
    }

    async fn decide_into<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mode: Mode,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        decision.now = self.clock.now();
        let enforcement = self.enforcement();
        if enforcement == Enforcement::Off {
            decision.reason = Reason::EnforcementOff;
            return Ok(());
        }
        match rules.set.listed(&request.attributes, decision.now) {
            Some(Listed::Denied(entry)) => {
                (decision.verdict, decision.reason) = (Verdict::Denied, Reason::DenyListed);
                decision.note = entry.reason.as_deref();
            }
            Some(Listed::Allowed(_)) => decision.reason = Reason::AllowListed,
            None => self.decide_by_rules(rules, request, mode, decision).await?,
        }
        if enforcement == Enforcement::Shadow {
            decision.is_shadow = true;
            if !decision.is_allowed() {
                decision.verdict = Verdict::Allowed;
            }
        }
        Ok(())
    }

    async fn decide_by_rules<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        mode: Mode,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        let tier = rules.set.tier_of(&request.attributes);
        let now = decision.now;
        if tier == request.attributes.get(Known::Tier) {
            rules.set.resolve_into(&request.attributes, now, &mut decision.resolution);
        } else {
            let mut attributes = request.attributes.clone();
            attributes.set(Known::Tier, tier.unwrap_or_default());
            rules.set.resolve_into(&attributes, now, &mut decision.resolution);
        }
        if decision.resolution.enforced.is_empty() && decision.resolution.observed.is_empty() {
            decision.reason = Reason::NoMatch;
            if rules.set.no_match() == NoMatch::Deny {
                decision.verdict = Verdict::Denied;
            }
            return Ok(());
        }
        let mut lines = Lines::new();
        collect_lines(&decision.resolution, request, tier, &mut lines);
        if lines.is_empty() {
            return Ok(());
        }
        self.check(&lines, mode, decision).await
    }

    /// Checks all limits in one atomic step and settles the decision.
    async fn check<'r>(
        &self,
        lines: &Lines<'r>,
        mode: Mode,
        decision: &mut Decision<'r>,
    ) -> Result<(), EngineError> {
        let slot = new_slot(lines);
        let mut charges = SmallVec::<[Charge<'_>; 8]>::new();
        for line in lines {
            charges.extend(charge(&decision.resolution, line, slot.unwrap_or_default()));
        }
        let mut outcomes = Outcomes::new();
        let request = tollgate_store::Request { charges: &charges, mode };
        decision.now = self.store.decide(&[request], decision.now, &mut outcomes).await?;
        let passes = passes(&charges, &outcomes);
        drop(charges);
        for (line, outcome) in lines.iter().zip(&outcomes) {
            let figures = (line.quota.quota(), line.quota.capacity(), line.cost);
            let (rule, limit, role) = (line.rule, line.limit, line.role);
            let scope = Decision::scope(rule, limit, figures, role, *outcome, line.applied);
            decision.scopes.push(scope);
        }
        decision.settle(passes);
        if passes && mode == Mode::Charge {
            decision.slot = slot;
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
        let mut decision = Decision::pending(rules.version);
        let Some(id) = request.request_id else {
            self.decide_into(rules, request, Mode::Charge, &mut decision).await?;
            return Ok(show(&decision));
        };
        let now = self.clock.now();
        let mut place = self.remembered.lock(request.caller, id).await;
        match place.find(request, now) {
            Some(Ok(remembered)) => return Ok(show(&remembered.decision())),
            Some(Err(())) => return Err(EngineError::RequestIdReused),
            None => {}
        }
        self.decide_into(rules, request, Mode::Charge, &mut decision).await?;
        if decision.is_allowed() {
            place.remember(request, Arc::clone(rules), &decision, now);
        }
        Ok(show(&decision))
    }
}

/// The limits of the applying rules that hold for this tier, with their costs.
fn collect_lines<'r>(
    resolution: &Resolution<'r, 'r>,
    request: &Request<'_>,
    tier: Option<&str>,
    lines: &mut Lines<'r>,
) {
    let applied = resolution.enforced.iter().chain(&resolution.observed);
    for (number, one) in (0..).zip(applied) {
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
                lines.push(Line { applied: number, rule, limit, quota, role, cost });
            }
        }
    }
}

fn charge<'c, 'r: 'c>(
    resolution: &'c Resolution<'r, 'r>,
    line: &Line<'r>,
    slot: SlotId,
) -> Option<Charge<'c>> {
    let one = applied(resolution, line.applied)?;
    let max_delay = match line.rule.action {
        Action::Throttle => Some(line.rule.max_delay.unwrap_or(0)),
        _ => None,
    };
    let counter = Counter {
        rule_id: &line.rule.id,
        tag: &line.limit.tag,
        salt: line.limit.salt,
        key: &one.key,
    };
    let ask = Ask { cost: line.cost, max_delay, slot };
    Some(Charge { counter, limit: line.quota, ask, role: line.role })
}

/// A name for the slot that a concurrency rule would hold.
fn new_slot(lines: &Lines<'_>) -> Option<SlotId> {
    if lines.iter().all(|line| line.rule.unit != Unit::Concurrency) {
        return None;
    }
    let mut bytes = [0; 16];
    // Without random bytes the slot still expires; only its name could be guessed.
    let _ = getrandom::fill(&mut bytes);
    Some(SlotId(u128::from_le_bytes(bytes)))
}
