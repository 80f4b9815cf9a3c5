//! From the rules that apply to what is asked of the store.

use smallvec::SmallVec;
use tollgate_core::{Ask, BRIEF, MICRO, Nanos, Refundable, SECOND, SlotId};
use tollgate_policy::{
    Action, Consistency, Known, OnStoreFailure, Quota, Resolution, Rule, RuleLimit, Unit,
};
use tollgate_store::{Charge, Counter, Home, Mode, OnFailure, Role, Store};

use crate::EngineError;
use crate::decision::applied;
use crate::request::{Refunds, Request};
use crate::reservations::marked;

/// How long it takes at most until a request that hung up while it waited is refunded.
const SENT_BACK_WITHIN: Nanos = 2 * SECOND;

/// One limit on its way to the store.
pub(crate) struct LimitCheck<'r> {
    pub(crate) applied: u32,
    pub(crate) rule: &'r Rule,
    pub(crate) limit: &'r RuleLimit,
    pub(crate) quota: &'r tollgate_core::Limit,
    pub(crate) role: Role,
    pub(crate) cost: u64,
    /// How long it may wait for room, where its rule lets it.
    pub(crate) max_delay: Option<Nanos>,
    /// How long it may hold a slot unless renewed.
    pub(crate) max_slot_ttl: Nanos,
    /// Whether its receipt is kept for a refund.
    pub(crate) refundable: Refundable,
}

/// A slot ends with the reservation that it is part of. In whole microseconds, which all stores count in.
fn max_slot_ttl(request: &Request<'_>) -> Nanos {
    request.reserve.map_or(Nanos::MAX, |ttl| ttl.div_ceil(MICRO).max(1) * MICRO)
}

/// How long requests may wait for room under this rule.
pub(crate) fn max_delay(rule: &Rule) -> Option<Nanos> {
    (rule.action == Action::Throttle).then(|| rule.max_delay.unwrap_or(0))
}

pub(crate) type LimitChecks<'r> = SmallVec<[LimitCheck<'r>; 8]>;

/// The limits of the applying rules that hold for this tier, with what is granted to the client, and
/// their costs.
pub(crate) fn collect<'r>(
    resolution: &Resolution<'r, 'r>,
    request: &Request<'_>,
    tier: Option<&str>,
    now: Nanos,
    checks: &mut LimitChecks<'r>,
) {
    let is_refundable = request.reserve.is_some() || request.refunds == Refunds::Always;
    let refundable = if is_refundable { Refundable::UntilClosed } else { Refundable::No };
    let mut longest_wait = None;
    let applied = resolution.enforced.iter().chain(&resolution.observed);
    for (number, one) in (0..).zip(applied) {
        let rule = one.rule;
        let counts_usage = rule.unit.counts_usage();
        if request.is_more && !counts_usage || request.uses_nothing && counts_usage {
            continue;
        }
        let max_slot_ttl = max_slot_ttl(request);
        // What is under way already is not held up.
        let max_delay = if request.is_more { None } else { max_delay(rule) };
        longest_wait = longest_wait.max(max_delay);
        let role = match rule.action {
            Action::LogOnly => Role::Watch,
            _ if rule.quota_mode && !resolution.is_quota_enforced_alone() => Role::AnyOf,
            _ => Role::Must,
        };
        let cost = match rule.unit {
            Unit::Requests | Unit::Cost => request.amounts.cost.or(one.listed_cost).unwrap_or(1),
            Unit::Concurrency => 1,
            // Money that is not stated is priced later (`Engine::check_prices`).
            unit => request.amounts.of(unit),
        };
        let enforced = rule.candidate.as_ref().map(|candidate| {
            let tenant = request.attributes.get(Known::TenantId);
            candidate.enforces(&one.key, tenant, now)
        });
        for limit in rule.limits_for(&request.attributes, now) {
            if let Some(Quota::Limited(quota)) = limit.for_tier(tier)
                && limit.is_active(now)
            {
                let (role, max_delay) = match enforced {
                    Some(enforced) if enforced != limit.is_candidate => (alongside(quota), None),
                    _ => (role, max_delay),
                };
                checks.push(LimitCheck {
                    applied: number,
                    rule,
                    limit,
                    quota,
                    role,
                    cost,
                    max_delay,
                    max_slot_ttl,
                    refundable,
                });
            }
        }
    }
    if let Some(wait) = longest_wait
        && request.refunds == Refunds::WhileWaiting
    {
        let is_brief = wait <= BRIEF - SENT_BACK_WITHIN;
        let refundable = if is_brief { Refundable::Briefly } else { Refundable::UntilClosed };
        checks.iter_mut().for_each(|line| line.refundable = refundable);
    }
}

/// The role of a limit next to the one that enforces: it counts all that passes. A bucket takes no debts, which it would pay
/// off for as long as they were made: it is charged where it has room, as if it enforced.
fn alongside(quota: &tollgate_core::Limit) -> Role {
    if quota.algorithm().is_bucket() { Role::Watch } else { Role::Alongside }
}

/// What the store is asked about one line.
#[expect(clippy::inline_always, reason = "it is large: made where it stays, it is not moved")]
#[inline(always)]
pub(crate) fn charge<'c, 'r: 'c>(
    resolution: &'c Resolution<'r, 'r>,
    line: &LimitCheck<'r>,
    slot: SlotId,
    stores: &Stores<'_>,
) -> Option<Charge<'c>> {
    let one = applied(resolution, line.applied)?;
    let counter = Counter {
        rule_id: &line.rule.id,
        tag: &line.limit.tag,
        salt: line.limit.salt,
        key: &one.key,
        home: stores.home(line.rule, &one.key),
    };
    let LimitCheck { cost, max_delay, max_slot_ttl, refundable, .. } = *line;
    let ask = Ask { cost, max_delay, slot, max_slot_ttl, refundable };
    Some(Charge { counter, limit: line.quota, ask, role: line.role })
}

/// Where the counters of one request are kept.
pub(crate) struct Stores<'a> {
    names: &'a [String],
    is_in_process: bool,
    by_client_type: OnFailure,
}

/// The place of a store that does not exist: whatever counts there is refused.
const NO_STORE: u8 = u8::MAX;

impl<'a> Stores<'a> {
    /// Where everything is in this process, there is nothing to say about it.
    #[inline]
    pub(crate) fn new<S: Store>(store: &'a S, request: &Request<'_>) -> Self {
        let (names, is_in_process) = (store.names(), store.is_in_process());
        if is_in_process {
            return Self { names, is_in_process, by_client_type: OnFailure::Local };
        }
        let by_client_type = match request.attributes.get(Known::ClientType) {
            Some("EXTERNAL" | "PARTNER") => OnFailure::Closed,
            Some("INTERNAL") => OnFailure::Open,
            _ => OnFailure::Local,
        };
        Self { names, is_in_process, by_client_type }
    }

    #[inline]
    pub(crate) fn home(&self, rule: &Rule, key: &[&str]) -> Home {
        if self.is_in_process {
            return Home::default();
        }
        let store = match &rule.store {
            Some(store) if !self.names.is_empty() => {
                let place = self.names.iter().position(|name| name == store);
                place.and_then(|place| u8::try_from(place).ok()).unwrap_or(NO_STORE)
            }
            _ => 0,
        };
        Home {
            store,
            partition: rule.key_places.partition,
            secret_parts: rule.key_places.secrets_of(key),
            concealed_parts: 0,
            consistency: match rule.consistency {
                Consistency::Strict => tollgate_store::Consistency::Strict,
                Consistency::Leased { max_overshoot_ppm } => {
                    tollgate_store::Consistency::Leased { max_overshoot_ppm }
                }
                Consistency::Local => tollgate_store::Consistency::Local,
            },
            on_failure: match rule.on_store_failure {
                Some(OnStoreFailure::Local) => OnFailure::Local,
                Some(OnStoreFailure::Open) => OnFailure::Open,
                Some(OnStoreFailure::Closed) => OnFailure::Closed,
                None => self.by_client_type,
            },
        }
    }
}

/// Fails a request that would take a slot where nobody would release it.
#[inline]
pub(crate) fn check_slots(
    request: &Request<'_>,
    checks: &LimitChecks<'_>,
    mode: Mode,
) -> Result<(), EngineError> {
    if !request.refuses_slots || mode == Mode::Peek {
        return Ok(());
    }
    match checks.iter().find(|line| line.rule.unit == Unit::Concurrency) {
        Some(line) => Err(EngineError::SlotNotHeld { rule_id: line.rule.id.clone() }),
        None => Ok(()),
    }
}

/// A name for the slot that a concurrency rule would hold.
pub(crate) fn new_slot(checks: &LimitChecks<'_>, is_reservation: bool) -> Option<SlotId> {
    if checks.iter().all(|line| line.rule.unit != Unit::Concurrency) {
        return None;
    }
    let mut bytes = [0; 16];
    // Without random bytes the slot still expires; only its name could be guessed.
    let _ = getrandom::fill(&mut bytes);
    Some(SlotId(marked(u128::from_le_bytes(bytes), is_reservation)))
}
