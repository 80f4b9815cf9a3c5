//! A decision, and why.

use std::fmt::Write as _;

use smallvec::SmallVec;
use tollgate_core::{Examination, Limit, Nanos, Outcome, SlotId, StateKind};
use tollgate_policy::prices::{Currency, Price};
use tollgate_policy::{Action, Applied, KeyPart, Known, Resolution, Rule, RuleLimit};
use tollgate_store::{Degraded, Fallback, Role};

use crate::reservations::Reservation;
use crate::verdict::{Reason, Verdict};

/// One limit of one applying rule, as it is after the decision.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// Which of its limits.
    pub limit: &'r RuleLimit,
    /// The quota for this request's tier.
    pub quota: u64,
    /// The most that can be used at once: the quota, or the burst of a bucket.
    pub capacity: u64,
    /// What was asked of it.
    pub cost: u64,
    /// What its refusal means.
    pub role: Role,
    /// How it stands.
    pub outcome: Outcome,
    /// The limit as it holds for this request.
    pub(crate) exact: &'r Limit,
    /// Which applied rule it belongs to, in the decision's list.
    applied: u32,
}

impl Scope<'_> {
    pub(crate) const fn applied(&self) -> u32 {
        self.applied
    }

    /// Whether this limit had no room.
    pub const fn refuses(&self) -> bool {
        !self.outcome.examination.admits()
    }

    /// When the same request passes this limit, from `now` on; `None` if never, 0 if at once.
    pub fn retry_after(&self, now: Nanos) -> Option<Nanos> {
        match self.outcome.examination {
            Examination::Admit { .. } => Some(0),
            Examination::Refuse { retry_at } => retry_at.map(|at| at.saturating_sub(now)),
        }
    }

    /// When the present window ends, for limits that count by aligned windows; one window from `now` for all others.
    pub fn window_end(&self, now: Nanos) -> Nanos {
        match self.exact.algorithm().state_kind() {
            StateKind::FixedWindow | StateKind::SlidingCounter => self.exact.window_bounds(now).1,
            StateKind::SlidingLog | StateKind::Bucket | StateKind::Slots => {
                now.saturating_add(self.exact.window_nanos())
            }
        }
    }

    /// A soft limit that is reached.
    pub fn is_past_soft_limit(&self) -> bool {
        self.rule.soft_limit_ppm.is_some_and(|ppm| {
            u128::from(self.outcome.status.used) * 1_000_000
                >= u128::from(self.capacity) * u128::from(ppm)
        })
    }

    /// True if a smaller share of this limit is left than of the other.
    fn is_tighter_than(&self, other: &Self) -> bool {
        let share = |one: &Self, of: &Self| {
            u128::from(one.outcome.status.remaining) * u128::from(of.capacity.max(1))
        };
        share(self, other) < share(other, self)
    }
}

/// A soft limit that is reached.
#[derive(Debug, Clone, Copy)]
pub struct Warning<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// How much is used.
    pub used: u64,
    /// Of how much.
    pub capacity: u64,
}

pub(crate) type Scopes<'r> = SmallVec<[Scope<'r>; 8]>;

/// What was decided about a request, and why.
#[derive(Debug, Clone)]
pub struct Decision<'r> {
    /// What becomes of it.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// The instant it was decided at.
    pub now: Nanos,
    /// How long the request waits before it goes on.
    pub wait: Nanos,
    /// A fallback answered, and why.
    pub degraded: Option<Degraded>,
    /// True when enforcement is off or in shadow, so that a refusal is only reported.
    pub is_shadow: bool,
    /// True when the request would have been refused and passes because enforcement is in shadow.
    pub is_refusal_ignored: bool,
    /// The slot that was taken, where a concurrency rule applies and the request passed.
    pub slot: Option<SlotId>,
    /// The reservation that was made, where one was asked for and the request passed.
    pub reservation: Option<Reservation>,
    /// The version of the rule set that decided.
    pub rules_version: u64,
    pub(crate) resolution: Resolution<'r, 'r>,
    pub(crate) scopes: Scopes<'r>,
    /// Which scope decided.
    pub(crate) deciding: Option<u32>,
    /// What was said of a deny- or allow-listed caller.
    pub(crate) note: Option<&'r str>,
    /// What the model costs, where a rule counts money.
    pub(crate) price: Option<&'r Price>,
    /// When it was asked for, by this node's clock.
    pub(crate) asked_at: Nanos,
    /// Links receipts that the caller keeps to this decision; 0 where it keeps none.
    pub(crate) link: u64,
}

impl<'r> Decision<'r> {
    /// A decision yet to be made.
    #[inline]
    pub(crate) fn pending(rules_version: u64) -> Self {
        Self {
            verdict: Verdict::Allowed,
            reason: Reason::WithinLimits,
            now: 0,
            wait: 0,
            degraded: None,
            is_shadow: false,
            is_refusal_ignored: false,
            slot: None,
            reservation: None,
            rules_version,
            resolution: Resolution::default(),
            scopes: Scopes::new(),
            deciding: None,
            note: None,
            price: None,
            asked_at: 0,
            link: 0,
        }
    }

    /// Whether the request goes on.
    pub const fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allowed | Verdict::Throttled)
    }

    /// What callers name the reservation or the slot by that this request holds.
    pub fn reservation_id(&self) -> Option<u128> {
        let slot = self.slot.map(|slot| slot.0);
        self.reservation.map(|reservation| reservation.id).or(slot)
    }

    /// Names what this request holds to the [`crate::Observer`]; 0 if it holds nothing that can change later.
    pub fn hold_link(&self) -> u64 {
        match self.reservation_id() {
            _ if self.link != 0 => self.link,
            Some(id) => crate::observer::link_of(id),
            None => 0,
        }
    }

    /// Every enforced limit, one entry each.
    pub fn scopes(&self) -> impl Iterator<Item = &Scope<'r>> {
        self.scopes.iter().filter(|scope| scope.role.can_refuse())
    }

    /// The limits of `log_only` rules, and those of candidates and their rules that do not enforce.
    pub fn observed(&self) -> impl Iterator<Item = &Scope<'r>> {
        self.scopes.iter().filter(|scope| !scope.role.can_refuse())
    }

    /// The limits that would have refused it, had they been enforced.
    pub fn would_deny(&self) -> impl Iterator<Item = &Scope<'r>> {
        self.scopes.iter().filter(|scope| self.would_refuse(scope))
    }

    /// Whether this limit would have refused the request, had it been enforced. In shadow a quota group would only
    /// where none of its members has room.
    pub fn would_refuse(&self, scope: &Scope<'r>) -> bool {
        scope.refuses()
            && match scope.role {
                Role::Watch | Role::Alongside => true,
                Role::Must => self.is_shadow,
                Role::AnyOf => {
                    let mut group = self.scopes.iter().filter(|one| one.role == Role::AnyOf);
                    self.is_shadow && group.all(Scope::refuses)
                }
            }
    }

    /// Whether anything would have refused the request, had it been enforced: a limit, a list, or a request without
    /// a rule or a key.
    #[inline]
    pub fn has_would_deny(&self) -> bool {
        self.is_refusal_ignored || self.would_deny().next().is_some()
    }

    /// The limit that decided: on refusal the one with the longest retry-after, else the one with
    /// the least share remaining.
    pub fn deciding(&self) -> Option<&Scope<'r>> {
        self.deciding.and_then(|index| self.scopes.get(index as usize))
    }

    /// The limit that a caller should know as its own: of the first standard scope present, else the
    /// deciding one.
    pub fn effective_limit(&self) -> Option<u64> {
        let standard = self.scopes().find(|scope| scope.rule.standard_scope_rank.is_some());
        standard.or_else(|| self.deciding()).map(|scope| scope.quota)
    }

    /// When the same request would pass; `None` if allowed, or if it never would.
    pub fn retry_after(&self) -> Option<Nanos> {
        match self.verdict {
            Verdict::Denied | Verdict::Queued => {
                self.deciding().and_then(|scope| scope.retry_after(self.now))
            }
            Verdict::Allowed | Verdict::Throttled => None,
        }
    }

    /// The reason as callers see it.
    pub fn reason_code(&self) -> &str {
        match (self.reason, self.deciding()) {
            (Reason::HitLimit, Some(scope)) => &scope.rule.reason,
            (reason, _) => reason.code(),
        }
    }

    /// When it was asked, by the engine's clock. [`Decision::now`] is by the clock of the store.
    pub const fn asked_at(&self) -> Nanos {
        self.asked_at
    }

    /// The soft limits that are reached, where the request goes on.
    pub fn warnings(&self) -> impl Iterator<Item = Warning<'r>> {
        let allowed = self.is_allowed();
        self.scopes().filter(move |scope| allowed && scope.is_past_soft_limit()).map(|scope| {
            Warning { rule: scope.rule, used: scope.outcome.status.used, capacity: scope.capacity }
        })
    }

    /// The key of a scope's counter as name=value pairs; API keys are not shown.
    pub fn describe_key(&self, scope: &Scope<'r>) -> String {
        applied(&self.resolution, scope.applied).map(describe_key).unwrap_or_default()
    }

    /// The parts of the key of a scope's counter, name and value. API keys are among them.
    pub fn key_parts(&self, scope: &Scope<'r>) -> impl Iterator<Item = (&'r str, &'r str)> {
        let applied = applied(&self.resolution, scope.applied);
        applied.into_iter().flat_map(key_parts)
    }

    /// The values that name a scope's counter, in the rule's order. API keys are among them.
    pub fn key_values(&self, scope: &Scope<'r>) -> &[&'r str] {
        applied(&self.resolution, scope.applied).map(|one| one.key.as_slice()).unwrap_or_default()
    }

    /// What happened, in a sentence for people.
    pub fn explain(&self) -> String {
        let mut text = self.explain_figures();
        if let Some(how) = self.degraded_reason() {
            let _ = write!(text, "; {how}");
        }
        text
    }

    /// Why a fallback decided, and which.
    pub fn degraded_reason(&self) -> Option<String> {
        let Degraded { failure, fallback } = self.degraded?;
        Some(match fallback {
            Fallback::Local { nodes: 1 } => format!("{failure}: decided by this node alone"),
            Fallback::Local { nodes } => {
                format!("{failure}: decided on this node's share, one of {nodes}")
            }
            Fallback::Open => format!("{failure}: passed uncounted, as the rules say"),
            Fallback::Closed => format!("{failure}: refused, as the rules say"),
        })
    }

    fn explain_figures(&self) -> String {
        let Some(scope) = self.deciding() else { return self.explain_without_scope() };
        let status = &scope.outcome.status;
        let key = self.describe_key(scope);
        let whose = if key.is_empty() { "for everyone".to_owned() } else { format!("for {key}") };
        let mut text = format!(
            "rule {:?} (scope {}) {whose}: {} of {} {} used{}",
            scope.rule.id,
            scope.rule.scope,
            scope.rule.figure(status.used),
            scope.rule.figure(scope.capacity),
            unit_name(scope.rule),
            window_text(scope.limit),
        );
        if self.is_allowed() {
            let _ = write!(text, ", {} remaining", scope.rule.figure(status.remaining));
            return text;
        }
        if self.reason == Reason::StoreUnavailable {
            let _ = write!(text, " when last known");
        } else if scope.quota == 0 {
            text.push_str("; a limit of 0 suspends");
        } else if self.reason == Reason::CostExceedsLimit {
            let cost = scope.rule.figure(scope.cost);
            let _ = write!(text, "; this request costs {cost}, which can never pass");
        } else if let Some(after) = self.retry_after() {
            // Rounded up, as everywhere: at that time it passes, not just before.
            let millis = after.div_ceil(1_000_000);
            let (seconds, millis) = (millis / 1_000, millis % 1_000);
            let cost = scope.rule.figure(scope.cost);
            let _ =
                write!(text, "; this request costs {cost} and passes in {seconds}.{millis:03} s");
        }
        text
    }

    fn explain_without_scope(&self) -> String {
        match (self.reason, self.note) {
            (Reason::DenyListed, Some(note)) => format!("the caller is on the deny list: {note}"),
            (Reason::DenyListed, None) => "the caller is on the deny list".to_owned(),
            (Reason::AllowListed, _) => {
                "the caller is on the allow list; nothing was counted".to_owned()
            }
            (Reason::EnforcementOff, _) => "enforcement is off; nothing was counted".to_owned(),
            (Reason::MissingKey, attribute) => format!(
                "the request has no {}, which names the counter of a rule that applies to it",
                attribute.unwrap_or("key")
            ),
            (Reason::InvalidApiKey, _) => {
                "this API key is not valid: it is unknown, disabled or expired".to_owned()
            }
            (Reason::ModelNotAllowed, _) => "this API key may not use this model".to_owned(),
            (Reason::NoMatch, _) if !self.is_allowed() => {
                "no rule applies to this request, and no_match says deny".to_owned()
            }
            _ => "no limit applies to this request".to_owned(),
        }
    }

    /// Chooses the deciding scope, the verdict and the reason from the outcomes.
    pub(crate) fn settle(&mut self, passes: bool) {
        let is_closed = |degraded: Degraded| degraded.fallback == Fallback::Closed;
        if self.degraded.is_some_and(is_closed) {
            self.settle_refused();
            (self.verdict, self.reason) = (Verdict::Denied, Reason::StoreUnavailable);
        } else if passes {
            self.settle_allowed();
        } else {
            self.settle_refused();
        }
    }

    fn settle_allowed(&mut self) {
        // Of a quota group the member with the most room speaks: it is the one that pays last.
        let group = self.pick(Role::AnyOf, |_| true, |one, other| other.is_tighter_than(one));
        let alone = self.pick(Role::Must, |_| true, Scope::is_tighter_than);
        self.deciding = self.better(alone, group, Scope::is_tighter_than);
        let waits = self
            .scopes
            .iter()
            .filter(|scope| scope.rule.action == Action::Throttle && scope.role.can_refuse());
        let wait_of = |scope: &Scope<'_>| match scope.outcome.examination {
            Examination::Admit { wait } => wait,
            Examination::Refuse { .. } => 0,
        };
        let longest = waits.map(wait_of).max().unwrap_or(0);
        self.wait = longest;
        (self.verdict, self.reason) = if longest > 0 {
            (Verdict::Throttled, Reason::Throttled)
        } else {
            (Verdict::Allowed, Reason::WithinLimits)
        };
    }

    fn settle_refused(&mut self) {
        // Never is longer than any wait.
        let rank = |scope: &Scope<'_>| match scope.outcome.examination {
            Examination::Admit { .. } => 0,
            Examination::Refuse { retry_at } => retry_at.unwrap_or(Nanos::MAX),
        };
        let longer = |one: &Scope<'_>, other: &Scope<'_>| rank(one) > rank(other);
        let alone = self.pick(Role::Must, Scope::refuses, longer);
        // A quota group refuses until the first of its members has room, and only if none has.
        let mut any_of = self.scopes.iter().filter(|scope| scope.role == Role::AnyOf);
        let group = if any_of.all(Scope::refuses) {
            self.pick(Role::AnyOf, Scope::refuses, |one, other| rank(one) < rank(other))
        } else {
            None
        };
        self.deciding = self.better(alone, group, longer);
        let refused_by = |action: Action| {
            self.scopes().any(|scope| scope.refuses() && scope.rule.action == action)
        };
        let queues = refused_by(Action::Queue) && !refused_by(Action::Reject);
        let never = self.deciding().is_some_and(|scope| scope.retry_after(self.now).is_none());
        self.reason = if never { Reason::CostExceedsLimit } else { Reason::HitLimit };
        // What can never pass is not worth a place in a queue.
        self.verdict = if queues && !never { Verdict::Queued } else { Verdict::Denied };
    }

    /// The scope of this role that fits and that no other beats.
    fn pick(
        &self,
        role: Role,
        fits: impl Fn(&Scope<'r>) -> bool,
        beats: impl Fn(&Scope<'r>, &Scope<'r>) -> bool,
    ) -> Option<u32> {
        let mut best: Option<(usize, &Scope<'r>)> = None;
        for (index, scope) in self.scopes.iter().enumerate() {
            if scope.role != role || !fits(scope) {
                continue;
            }
            if best.is_none_or(|(_, known)| beats(scope, known)) {
                best = Some((index, scope));
            }
        }
        best.and_then(|(index, _)| u32::try_from(index).ok())
    }

    /// The second scope if it beats the first, else the first.
    fn better(
        &self,
        first: Option<u32>,
        second: Option<u32>,
        beats: impl Fn(&Scope<'r>, &Scope<'r>) -> bool,
    ) -> Option<u32> {
        let scope = |index: Option<u32>| self.scopes.get(index? as usize);
        match (scope(first), scope(second)) {
            (Some(one), Some(other)) if beats(other, one) => second,
            (None, Some(_)) => second,
            _ => first,
        }
    }

    pub(crate) fn scope(
        rule: &'r Rule,
        limit: &'r RuleLimit,
        (exact, cost): (&'r Limit, u64),
        role: Role,
        outcome: Outcome,
        applied: u32,
    ) -> Scope<'r> {
        let (quota, capacity) = (exact.quota(), exact.capacity());
        Scope { rule, limit, quota, capacity, cost, role, outcome, exact, applied }
    }
}

/// An applying rule by its number: those that are enforced first, then those that are observed.
pub(crate) fn applied<'a, 'r>(
    resolution: &'a Resolution<'r, 'r>,
    number: u32,
) -> Option<&'a Applied<'r, 'r>> {
    let (enforced, observed) = (&resolution.enforced, &resolution.observed);
    let number = number as usize;
    enforced.get(number).or_else(|| observed.get(number.checked_sub(enforced.len())?))
}

fn unit_name(rule: &Rule) -> &'static str {
    rule.currency.map_or(rule.unit.name(), Currency::code)
}

fn window_text(limit: &RuleLimit) -> String {
    match limit.window_seconds {
        0 => " at the same time".to_owned(),
        seconds => format!(" in {seconds} s"),
    }
}

fn describe_key<'r>(applied: &Applied<'r, 'r>) -> String {
    let mut text = String::new();
    for (name, value) in key_parts(applied) {
        let separator = if text.is_empty() { "" } else { ", " };
        let shown = if name == Known::ApiKey.name() { "(hidden)" } else { value };
        let _ = write!(text, "{separator}{name}={shown}");
    }
    text
}

/// A key as names and values. A client's key says first which of its attributes it is.
fn key_parts<'r>(applied: &Applied<'r, 'r>) -> impl Iterator<Item = (&'r str, &'r str)> {
    let mut values = applied.key.iter().copied();
    applied.rule.key.iter().map_while(move |part| match part {
        KeyPart::Client => Some((values.next()?, values.next()?)),
        named => Some((named.name(), values.next()?)),
    })
}
