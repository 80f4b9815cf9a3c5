//! Taking quota ahead.

use std::sync::Arc;

use tollgate_core::{Algorithm, Ask, MICRO, MOST_MICROS, Nanos, Outcome, Receipt};

use super::encode::{kind_of, push_parameters, push_receipt};
use super::figures::{self, Line};
use super::hub::{Call, Hub};
use super::key::{Keys, beside};
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
        let ledger = beside(keys.get(0).unwrap_or_default(), "leases");
        keys.push(&ledger);
        let slot = self.slot_of(&ledger);
        let deadline = self.deadline();
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
                may_split: false,
            };
            let reply = self.call(&call, None).await?.ok_or(Failure::Protocol)?;
            let at = reply.now.saturating_mul(MICRO);
            match reply.number(0) {
                Some(0) => {
                    let mut numbers = reply.elements.iter().skip(1).map_while(Element::number);
                    return grant(ask, at, &mut numbers).ok_or(Failure::Protocol);
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
        body.number(number.min(MOST_MICROS / 4));
    }
    let returned = returned(ask);
    if !returned.is_some_and(|receipt| push_receipt(&mut body, ask.limit, &receipt)) {
        body.number(0);
    }
    body.number(kind_of(ask.limit)?);
    for amount in amounts(ask.want.min(MOST_MICROS / 4), ask.least.min(MOST_MICROS / 4)) {
        body.number(amount);
        push_parameters(&mut body, ask.limit, &Ask::cost(amount), clock);
    }
    Ok(body)
}

/// The receipt of what is given back: of the whole chunk, with the cost of a part of it.
fn returned(ask: &LeaseAsk<'_>) -> Option<Receipt> {
    let part = |cost: u64| cost.min(ask.returned);
    let receipt = match ask.receipt {
        Receipt::Window { end, cost } => Receipt::Window { end, cost: part(cost) },
        Receipt::Log { at, cost } => Receipt::Log { at, cost: part(cost) },
        Receipt::Bucket { nominal_end, cost } => Receipt::Bucket { nominal_end, cost: part(cost) },
        Receipt::Nothing | Receipt::Slot(_) => return None,
    };
    (ask.returned > 0).then_some(receipt)
}

fn grant(
    ask: &LeaseAsk<'_>,
    at: Nanos,
    numbers: &mut impl Iterator<Item = u64>,
) -> Option<LeaseGrant> {
    let (granted, others, expires) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let seen = [figures::read(ask.limit, numbers)?];
    let cost = if granted > 0 { granted } else { ask.least };
    let line = Line { counter: 0, limit: ask.limit, ask: Ask::cost(cost), role: Role::Must };
    let mut outcome: Option<Outcome> = None;
    let push = |told| outcome = Some(told);
    figures::replay(Mode::Charge, &[line], &seen, granted > 0, at, push);
    Some(LeaseGrant {
        at,
        granted,
        expires_at: if expires == 0 { at } else { expires.saturating_mul(MICRO) },
        others,
        outcome: outcome?,
    })
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
