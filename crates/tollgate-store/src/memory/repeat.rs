//! The same counter more than once in one request.

use smallvec::SmallVec;
use tollgate_core::{Algorithm, Ask, Examination, Limit, Nanos, Outcome, SlotId};

use super::decide::Step;
use super::fingerprint::Fingerprint;
use super::shard::{Found, Shard};
use crate::{Request, Role};

/// Examines a charge to a counter that earlier charges of the request go to as well: they must fit
/// together. Of those that may be left out, the ones that do not fit are.
#[cold]
pub(super) fn examine_repeat(
    shard: &Shard,
    (step, found): (&Step, &Found),
    earlier: &[Step],
    decided: &[Outcome],
    request: &Request<'_>,
    now: Nanos,
) -> Examination {
    let Some(charge) = request.charges.get(earlier.len()) else {
        return Examination::Refuse { retry_at: None };
    };
    let limit = charge.limit;
    let mut ask = charge.ask;
    let mut slots = SmallVec::<[SlotId; 8]>::new();
    for ((before, other), outcome) in earlier.iter().zip(request.charges).zip(decided) {
        let goes_with = request.mode.owes(other.role)
            || other.role == Role::Must
            || outcome.examination.admits();
        if before.fingerprint == step.fingerprint && goes_with {
            ask.cost = ask.cost.saturating_add(other.ask.cost);
            slots.push(other.ask.slot);
        }
    }
    if limit.algorithm() == Algorithm::Concurrency {
        return examine_slots(shard, step.fingerprint, limit, &slots, ask.slot, now);
    }
    shard.examine(found, step.fingerprint, limit, &ask, now)
}

/// Examines a slot beside others that the same request would take.
fn examine_slots(
    shard: &Shard,
    fingerprint: Fingerprint,
    limit: &Limit,
    others: &[SlotId],
    slot: SlotId,
    now: Nanos,
) -> Examination {
    let mut state = match shard.rest.large.get(fingerprint) {
        Some(large) => large.state.clone(),
        None => limit.fresh(),
    };
    let mut named: Vec<SlotId> = others.iter().copied().chain([slot]).collect();
    named.sort_unstable();
    named.dedup();
    if named.len() as u64 > limit.quota() {
        return Examination::Refuse { retry_at: None };
    }
    for other in others {
        limit.charge(&mut state, &Ask::slot(*other), now);
    }
    limit.examine(&state, &Ask::slot(slot), now)
}
