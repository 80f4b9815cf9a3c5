//! One request whose charges live in several stores.
//!
//! Every part is held, all at the same time. If one refuses, the others are given back by their receipts. If all pass,
//! what is held in this node's memory becomes final, so that it takes no place of a hold whose request is not decided yet.
//! On a shared store that would cost a further call: there a hold expires, and counts as one of the bucket's 64 until then.

use futures_util::future::join_all;
use smallvec::SmallVec;
use tollgate_core::{Nanos, Outcome, Receipt, Refundable};

use super::{Member, Part, Placed};
use crate::{
    Charge, Decided, Degraded, Fallback, GiveBack, Mode, Outcomes, Request, StoreError, passes,
};

/// What a part of a request came to: its instants, and the outcomes of its charges in its own order.
struct Held {
    part: Part,
    places: SmallVec<[usize; 8]>,
    decided: Decided,
    outcomes: Outcomes,
}

impl<S: Member> Placed<S> {
    /// Decides one request whose charges live in several stores.
    pub(super) async fn decide_spread(
        &self,
        request: &Request<'_>,
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        let mut parts = SmallVec::<[(Part, SmallVec<[usize; 8]>); 4]>::new();
        for (place, charge) in request.charges.iter().enumerate() {
            let part = self.part_of(&charge.counter.home);
            match parts.iter_mut().find(|(known, _)| *known == part) {
                Some((_, places)) => places.push(place),
                None => parts.push((part, SmallVec::from_slice(&[place]))),
            }
        }
        let mode = if request.mode == Mode::Charge { Mode::Hold } else { request.mode };
        let decide = |(part, places): (Part, SmallVec<[usize; 8]>)| async move {
            let held = |place: &usize| request.charges.get(*place).map(Charge::as_hold);
            let charges: SmallVec<[Charge<'_>; 8]> = places.iter().filter_map(held).collect();
            let part_of_request = Request { charges: &charges, mode };
            let mut outcomes = Outcomes::new();
            let decided = self.decide_on(part, &[part_of_request], now, &mut outcomes).await?;
            Ok::<Held, StoreError>(Held { part, places, decided, outcomes })
        };
        let mut held = Vec::with_capacity(parts.len());
        let mut failure = None;
        for result in join_all(parts.into_iter().map(decide)).await {
            match result {
                Ok(part) => {
                    failure = failure.or(part.decided.failed_of(0).map(StoreError::from));
                    held.push(part);
                }
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            self.undo(request, &mut held, now).await;
            return Err(error);
        }
        let mut all = Outcomes::new();
        gather(&held, request.charges.len(), now, &mut all);
        match request.mode {
            Mode::Charge if !passes(request.charges, &all) => {
                self.undo(request, &mut held, now).await;
            }
            Mode::Charge | Mode::Owe => self.close(request, &mut held, now),
            Mode::Peek | Mode::Hold => {}
        }
        gather(&held, request.charges.len(), now, outcomes);
        Ok(combine(&held, request.charges.len(), now))
    }

    /// Makes final what was held in memory only until the request has passed.
    fn close(&self, request: &Request<'_>, held: &mut [Held], now: Nanos) {
        for held in held.iter_mut().filter(|held| held.part == Part::Memory) {
            for (place, outcome) in held.places.iter().zip(&mut held.outcomes) {
                let Some(charge) = request.charges.get(*place) else { continue };
                let Receipt::Open { at, cost } = outcome.receipt else { continue };
                if charge.ask.refundable != Refundable::No {
                    continue;
                }
                let (counter, receipt) = (charge.counter, outcome.receipt);
                let share = self.share_of(&charge.counter.home, charge.limit);
                let limit = share.as_ref().unwrap_or(charge.limit);
                self.memory.close_now(&GiveBack { counter, limit, receipt }, now);
                // As of a charge that was never held: it can be undone at once.
                outcome.receipt = Receipt::Bucket { at, cost };
            }
        }
    }

    /// Gives back what was held.
    async fn undo(&self, request: &Request<'_>, held: &mut [Held], now: Nanos) {
        if request.mode != Mode::Charge {
            return;
        }
        let give_back = held.iter_mut().map(|held| async move {
            let mut returns = SmallVec::<[GiveBack<'_>; 8]>::new();
            for (place, outcome) in held.places.iter().zip(&mut held.outcomes) {
                let Some(charge) = request.charges.get(*place) else { continue };
                if outcome.receipt != Receipt::Nothing {
                    let (counter, limit) = (charge.counter, charge.limit);
                    returns.push(GiveBack { counter, limit, receipt: outcome.receipt });
                    take_off(outcome, charge);
                }
            }
            if !returns.is_empty() {
                // Where the store has gone meanwhile, what is held stays until its window passes.
                let _ = self.give_back_on(held.part, &returns, now).await;
            }
        });
        join_all(give_back).await;
    }
}

/// The figures of a counter without a charge that was taken back.
fn take_off(outcome: &mut Outcome, charge: &Charge<'_>) {
    let cost = if matches!(outcome.receipt, Receipt::Slot(_)) { 1 } else { charge.ask.cost };
    outcome.receipt = Receipt::Nothing;
    outcome.status.used = outcome.status.used.saturating_sub(cost);
    outcome.status.remaining = charge.limit.capacity().saturating_sub(outcome.status.used);
}

/// The outcomes of all parts in the order of the request's charges.
fn gather(held: &[Held], charges: usize, now: Nanos, outcomes: &mut Outcomes) {
    let mut placed: SmallVec<[Option<Outcome>; 8]> = SmallVec::from_elem(None, charges);
    for part in held {
        for (place, outcome) in part.places.iter().zip(&part.outcomes) {
            if let Some(slot) = placed.get_mut(*place) {
                *slot = Some(*outcome);
            }
        }
    }
    let never = Outcome {
        examination: tollgate_core::Examination::Refuse { retry_at: Some(now) },
        status: tollgate_core::Status::default(),
        receipt: Receipt::Nothing,
    };
    outcomes.extend(placed.into_iter().map(|outcome| outcome.unwrap_or(never)));
}

fn combine(held: &[Held], charges: usize, now: Nanos) -> Decided {
    let mut each = vec![now; charges].into_boxed_slice();
    for part in held {
        for (index, place) in part.places.iter().enumerate() {
            if let Some(at) = each.get_mut(*place) {
                *at = part.decided.of(index);
            }
        }
    }
    let degraded = held.iter().filter_map(|part| part.decided.degraded);
    let weight = |degraded: &Degraded| match degraded.fallback {
        Fallback::Closed => 2,
        Fallback::Local { .. } => 1,
        Fallback::Open => 0,
    };
    let at = each.first().copied().unwrap_or(now);
    let degraded = degraded.max_by_key(weight);
    Decided { at, each: Some(each), degraded, degraded_each: None, failed: None }
}
