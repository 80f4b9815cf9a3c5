//! Deciding without the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use smallvec::SmallVec;
use tollgate_core::{Ask, Examination, Limit, Nanos, Outcome, Receipt, SECOND, SlotId, Status};

use super::Resilient;
use super::known::Carry;
use crate::{
    Charge, Decided, Degraded, Failure, Fallback, Membership, MemoryStore, Mode, OnFailure,
    Outcomes, Request, Role, SharedStore, Store, passes_as,
};

/// After how long a caller that was refused because the store is unavailable may retry.
pub(super) const ASK_AGAIN: Nanos = SECOND;

/// The share of every charge that is decided here.
type Shares = SmallVec<[Limit; 4]>;

impl<S: SharedStore> Resilient<S> {
    /// Decides requests without the store.
    pub(super) fn fall_back(
        &self,
        requests: &[Request<'_>],
        failure: Failure,
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Decided {
        let at = self.inner.clock(now);
        if failure == Failure::Contract {
            return self.refuse(requests, failure, at, outcomes);
        }
        let each: SmallVec<[Fallback; 4]> = requests
            .iter()
            .map(|request| self.decide_without(request, failure, at, outcomes))
            .collect();
        for fallback in &each {
            self.figures.count(*fallback);
        }
        let degraded = |fallback| Degraded { failure, fallback };
        let gravest = each.iter().copied().max_by_key(|fallback| match fallback {
            Fallback::Open => 0,
            Fallback::Local { .. } => 1,
            Fallback::Closed => 2,
        });
        let is_one = each.iter().all(|fallback| Some(*fallback) == gravest);
        Decided {
            degraded: gravest.map(degraded),
            degraded_each: (!is_one)
                .then(|| each.into_iter().map(|fallback| Some(degraded(fallback))).collect()),
            ..Decided::at(at)
        }
    }

    /// Refuses requests whose store broke its contract, whatever their rules say about failures: it is
    /// not known what was charged, and no outage that ends.
    #[cold]
    fn refuse(
        &self,
        requests: &[Request<'_>],
        failure: Failure,
        at: Nanos,
        outcomes: &mut Outcomes,
    ) -> Decided {
        for request in requests {
            outcomes.extend(request.charges.iter().map(|_| closed(at)));
            self.figures.count(Fallback::Closed);
        }
        let degraded = Some(Degraded { failure, fallback: Fallback::Closed });
        Decided { degraded, ..Decided::at(at) }
    }

    fn decide_without(
        &self,
        request: &Request<'_>,
        failure: Failure,
        at: Nanos,
        outcomes: &mut Outcomes,
    ) -> Fallback {
        let Membership { nodes, rank } = self.membership();
        let is_closed = is_closed(request);
        let is_local = |charge: &&Charge<'_>| policy(charge) == OnFailure::Local;
        let local = request.charges.iter().filter(is_local);
        let shares: Shares = local.clone().map(|charge| charge.limit.share(rank, nodes)).collect();
        for (charge, share) in local.clone().zip(&shares) {
            self.carry(charge, share, at);
        }
        // Until all of it is noted: code that recounts what is known must find it there, and who
        // ends the outage must find it reported.
        let memory = self.memory.read();
        self.lose(request, failure, at);
        let share_outcomes = {
            let shared = local.zip(&shares).map(|(charge, limit)| Charge { limit, ..*charge });
            let shared: SmallVec<[Charge<'_>; 4]> = shared.collect();
            decide_shares(request, &shared, &memory, is_closed, at)
        };
        self.answer_without(request, share_outcomes.into_iter().zip(&shares), at, outcomes)
    }

    /// Notes what was charged to the shares, and answers a request that is decided on them. `on_shares` has
    /// the outcome and the share of every charge that falls to this node. The caller has locked the memory
    /// for reading.
    pub(super) fn answer_without<'s>(
        &self,
        request: &Request<'_>,
        on_shares: impl IntoIterator<Item = (Outcome, &'s Limit)>,
        at: Nanos,
        outcomes: &mut Outcomes,
    ) -> Fallback {
        let is_closed = is_closed(request);
        let mut on_shares = on_shares.into_iter();
        for charge in request.charges {
            let outcome = match policy(charge) {
                OnFailure::Local => {
                    let decided = on_shares.next();
                    let (outcome, share) = decided.unwrap_or_else(|| (closed(at), charge.limit));
                    if outcome.receipt != Receipt::Nothing {
                        self.note(charge, share, outcome.status.reset_at, at);
                    }
                    if is_closed && charge.role == Role::AnyOf {
                        Outcome { receipt: outcome.receipt, ..closed(at) }
                    } else {
                        soon_instead_of_never(charge, outcome, at)
                    }
                }
                other => {
                    if request.mode == Mode::Owe {
                        // It was spent already, whatever the policy: the store learns of it.
                        self.note(charge, charge.limit, self.owed_until(charge, at), at);
                    }
                    let refuses = match charge.role {
                        Role::Watch | Role::Alongside => false,
                        Role::Must => other == OnFailure::Closed,
                        Role::AnyOf => is_closed,
                    };
                    if refuses { self.refused(charge, at) } else { passed(charge, at) }
                }
            };
            outcomes.push(outcome);
        }
        if is_closed {
            Fallback::Closed
        } else if request.charges.iter().any(|charge| policy(charge) == OnFailure::Local) {
            Fallback::Local { nodes: self.membership().nodes }
        } else {
            Fallback::Open
        }
    }

    /// Charges this node's part of what was last known to be used, before a decision on a counter: once
    /// instead of what is counted, and when more is known, so that at least its part of that is.
    pub(super) fn carry(&self, charge: &Charge<'_>, share: &Limit, at: Nanos) {
        let (counter, limit) = (&charge.counter, charge.limit);
        let fingerprint = self.fingerprints.of(counter);
        self.known.begin(fingerprint);
        if !self.known.is_news(fingerprint) {
            return;
        }
        // Nobody decides meanwhile what is not yet noted.
        let memory = self.memory.write();
        self.known.hand_on(fingerprint, |then, carry| {
            let used = limit.used_later(&then, at);
            let carried = part_of(used, share.capacity(), limit.capacity());
            // What was counted here in an outage before this one is in what is known, except for
            // what could not be reported yet.
            let (unreported, slots) = self.reports.unreported(fingerprint, at);
            let decide = |ask: Ask, mode: Mode| {
                let charge = Charge { counter: *counter, limit: share, ask, role: Role::Must };
                memory.decide_single(&charge, mode, at)
            };
            let owe = |ask: Ask| {
                decide(ask, Mode::Owe);
            };
            if carry == Carry::Raise {
                let counted = decide(Ask::cost(1), Mode::Peek).status.used;
                let missing = carried.saturating_add(unreported).saturating_sub(counted);
                // Slots are held here by name, and those of others come and go.
                if missing > 0 && !limit.holds_slots() {
                    owe(Ask::cost(missing));
                }
                return;
            }
            memory.reset(std::slice::from_ref(counter), at).now_or_never();
            if limit.holds_slots() {
                let others = (0..carried.min(share.capacity())).map(|number| {
                    // Nobody's: they come back by expiry only.
                    SlotId(fingerprint ^ u128::from(number) << 64)
                });
                slots.into_iter().chain(others).for_each(|slot| owe(Ask::slot(slot)));
            } else if carried > 0 || unreported > 0 {
                owe(Ask::cost(carried.saturating_add(unreported)));
            }
        });
    }

    /// Refused for want of the store, with what was last known.
    fn refused(&self, charge: &Charge<'_>, at: Nanos) -> Outcome {
        let known = self.known.get(self.fingerprints.of(&charge.counter));
        let used = known.map_or(0, |then| charge.limit.used_later(&then, at));
        let Outcome { examination, status, receipt } = closed(at);
        Outcome { examination, status: Status { used, ..status }, receipt }
    }

    /// When the store's bucket is empty after a charge that no share was asked for.
    fn owed_until(&self, charge: &Charge<'_>, at: Nanos) -> Nanos {
        let known = self.known.get(self.fingerprints.of(&charge.counter));
        let from = known.map_or(at, |then| then.reset_at.max(at));
        from.saturating_add(charge.limit.time_of(charge.ask.cost))
    }

    /// Keeps a charge, to report it when the store is back. `empty_at`: when the share's bucket is empty
    /// after it.
    pub(super) fn note(&self, charge: &Charge<'_>, share: &Limit, empty_at: Nanos, at: Nanos) {
        let fingerprint = self.fingerprints.of(&charge.counter);
        // A share of nothing has no bucket.
        let empty_at = if share.quota() > 0 { empty_at } else { at };
        if !self.reports.add(fingerprint, charge, share, empty_at, at) {
            self.figures.dropped_reports.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The memory that decides.
    pub(super) fn memory(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.memory.read())
    }
}

const fn policy(charge: &Charge<'_>) -> OnFailure {
    charge.counter.home.on_failure
}

/// Whether a request is refused for want of the store, whatever the shares say.
pub(super) fn is_closed(request: &Request<'_>) -> bool {
    let can_refuse = |charge: &&Charge<'_>| charge.role.can_refuse();
    request.charges.iter().filter(can_refuse).any(|charge| policy(charge) == OnFailure::Closed)
}

/// Decides the charges of a request that fall to this node, all or none.
fn decide_shares(
    request: &Request<'_>,
    shared: &[Charge<'_>],
    memory: &MemoryStore,
    is_closed: bool,
    at: Nanos,
) -> Outcomes {
    let mut outcomes = Outcomes::new();
    if shared.is_empty() {
        return outcomes;
    }
    let has_open_member = (request.charges.iter()).any(|charge| {
        charge.role == Role::AnyOf && charge.counter.home.on_failure == OnFailure::Open
    });
    let mode = match request.mode {
        // Refused already: only for its figures.
        Mode::Charge | Mode::Hold if is_closed => Mode::Peek,
        // The group passes by a member that is not counted.
        Mode::Charge if has_open_member => Mode::Hold,
        mode => mode,
    };
    memory.decide_now(&Request { charges: shared, mode }, at, &mut outcomes);
    debug_assert!(
        mode.charges(passes_as(mode, shared, &outcomes)) || outcomes.iter().all(is_nothing)
    );
    outcomes
}

fn is_nothing(outcome: &Outcome) -> bool {
    outcome.receipt == Receipt::Nothing
}

/// `amount * part / whole`, rounded up.
fn part_of(amount: u64, part: u64, whole: u64) -> u64 {
    let scaled = (u128::from(amount) * u128::from(part)).div_ceil(u128::from(whole.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Refused for want of the store.
pub(super) fn closed(at: Nanos) -> Outcome {
    let retry_at = at.saturating_add(ASK_AGAIN);
    Outcome {
        examination: Examination::Refuse { retry_at: Some(retry_at) },
        status: Status { used: 0, remaining: 0, reset_at: retry_at },
        receipt: Receipt::Nothing,
    }
}

/// Passes uncounted.
fn passed(charge: &Charge<'_>, at: Nanos) -> Outcome {
    Outcome {
        examination: Examination::Admit { wait: 0 },
        status: charge.limit.status(&charge.limit.fresh(), at),
        receipt: Receipt::Nothing,
    }
}

/// What does not fit into this node's share may fit into the whole, once the store is back.
fn soon_instead_of_never(charge: &Charge<'_>, outcome: Outcome, at: Nanos) -> Outcome {
    let cost = if charge.limit.holds_slots() { 1 } else { charge.ask.cost };
    let is_never = outcome.examination == Examination::Refuse { retry_at: None };
    if is_never && cost <= charge.limit.capacity() {
        let retry_at = Some(at.saturating_add(ASK_AGAIN));
        Outcome { examination: Examination::Refuse { retry_at }, ..outcome }
    } else {
        outcome
    }
}
