//! Taking quota ahead.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{Algorithm, Ask, MAX_MICROS, MICRO, Nanos, Outcome, Receipt};

use super::call::{Call, two_attempts};
use super::encode::{kind_of, push_open_charge, push_parameters, push_receipt};
use super::figures::{self, Line};
use super::hub::Hub;
use super::key::{Keys, beside, reset_mark, settled};
use super::metrics::Operation;
use super::msgpack::{Element, Elements};
use crate::{Failure, LeaseAsk, LeaseGrant, Mode, Role};

/// How often a lease is asked for again because no calendar window fitted.
const LOOKS_AT_THE_CALENDAR: u32 = 3;

impl Hub {
    pub(super) async fn lease(self: &Arc<Self>, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, Failure> {
        if ask.limit.algorithm() == Algorithm::Concurrency {
            // A slot is held by name; there is nothing to take ahead.
            return Err(Failure::Protocol);
        }
        let mut keys = Keys::default();
        self.speller.push_counter(&ask.counter, &mut keys);
        let counter = keys.get(0).unwrap_or_default();
        let (ledger, mark) = (beside(counter, "leases"), reset_mark(counter));
        keys.push(&ledger);
        keys.push(&mark);
        if returned(ask).is_some() {
            keys.push(&settled(keys.get(0).unwrap_or_default(), ask.return_id, 0));
        }
        let slot = self.slot_of(&ledger);
        // A request that waits has its own time; a fetch ahead of need has what the distance takes.
        let timeout = if ask.least > 0 { self.timeout } else { self.background_timeout() };
        let deadline = Instant::now() + two_attempts(timeout);
        let mut clock = self.clock().unwrap_or(0);
        for _ in 0..LOOKS_AT_THE_CALENDAR {
            let body = body(ask, clock)?;
            let call = Call {
                operation: Operation::Lease,
                script: &self.scripts.lease,
                keys: &keys,
                body: &body,
                remember: true,
                slot,
                deadline,
                timeout,
                may_split: false,
            };
            let reply = self.call(&call, None).await?.ok_or(Failure::Protocol)?;
            let at = reply.now.saturating_mul(MICRO);
            match reply.number(0) {
                Some(0) => {
                    let mut numbers = reply.elements.iter().skip(1).map_while(Element::number);
                    let (grant, finalized) =
                        grant(ask, at, &mut numbers).ok_or(Failure::Protocol)?;
                    self.metrics.finalized(finalized);
                    return Ok(grant);
                }
                Some(3) => clock = at,
                Some(_) => {
                    self.strangers.report(&keys);
                    return Err(Failure::ForeignKey);
                }
                None => return Err(Failure::Protocol),
            }
        }
        Err(Failure::Protocol)
    }
}

/// What would do: what is wanted, a half, a quarter, …, and at the end what is needed at once.
fn amounts(want: u64, least: u64) -> impl Iterator<Item = u64> {
    let halves = std::iter::successors(Some(want), |amount| Some(amount / 2));
    halves.take_while(move |amount| *amount > least).chain([least])
}

fn body(ask: &LeaseAsk<'_>, clock: Nanos) -> Result<Elements, Failure> {
    let mut body = Elements::default();
    body.text(ask.node.as_bytes());
    for number in [ask.held, ask.least, ask.pool, ask.ttl / MICRO] {
        body.number(number.min(MAX_MICROS / 4));
    }
    body.number((ask.remember / (1_000 * MICRO)).clamp(1, MAX_MICROS));
    let returned = returned(ask);
    if !returned.is_some_and(|receipt| push_receipt(&mut body, ask.limit, &receipt)) {
        body.number(0);
    }
    push_closed(&mut body, ask);
    body.number(kind_of(ask.limit)?);
    for amount in amounts(ask.want.min(MAX_MICROS / 4), ask.least.min(MAX_MICROS / 4)) {
        body.number(amount);
        push_parameters(&mut body, ask.limit, &Ask::cost(amount).on_lease(), clock);
    }
    Ok(body)
}

fn push_closed(body: &mut Elements, ask: &LeaseAsk<'_>) {
    let is_bucket = ask.limit.algorithm().is_bucket();
    let open = |receipt: &Receipt| match *receipt {
        Receipt::Open { at, cost } if is_bucket => Some((at, cost)),
        _ => None,
    };
    let closed: SmallVec<[(Nanos, u64); 4]> = ask.closes.iter().filter_map(open).collect();
    body.number(closed.len() as u64);
    for (at, cost) in closed {
        push_open_charge(body, ask.limit, at, cost);
    }
}

/// The receipt of what is given back: of the whole chunk, with the cost of a part of it.
fn returned(ask: &LeaseAsk<'_>) -> Option<Receipt> {
    let cost = ask.returned.min(ask.receipt.cost());
    (cost > 0).then(|| ask.receipt.part(cost))
}

/// What was granted, and how many open charges became final for it.
fn grant(
    ask: &LeaseAsk<'_>,
    at: Nanos,
    numbers: &mut impl Iterator<Item = u64>,
) -> Option<(LeaseGrant, u64)> {
    let (granted, others, expires) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let seen = [figures::read(ask.limit, numbers)?];
    let cost = if granted > 0 { granted } else { ask.least };
    let charged = Ask::cost(cost).on_lease();
    let line = Line { counter: 0, limit: ask.limit, ask: charged, role: Role::Must };
    let mut outcome: Option<Outcome> = None;
    let push = |replayed| outcome = Some(replayed);
    figures::replay(Mode::Charge, &[line], &seen, granted > 0, at, push);
    let finalized = if granted > 0 { figures::finalized(Mode::Charge, &[line], &seen) } else { 0 };
    let grant = LeaseGrant {
        at,
        granted,
        expires_at: if expires == 0 { at } else { expires.saturating_mul(MICRO) },
        others,
        outcome: outcome?,
    };
    Some((grant, finalized))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_halve_down_to_what_is_needed() {
        let all = |want, least| amounts(want, least).collect::<Vec<_>>();
        assert_eq!(all(10, 1), [10, 5, 2, 1]);
        assert_eq!(all(10, 3), [10, 5, 3]);
        assert_eq!(all(3, 3), [3]);
        assert_eq!(all(1, 3), [3]);
        assert_eq!(all(0, 0), [0]);
        assert_eq!(all(4, 0), [4, 2, 1, 0]);
    }
}
