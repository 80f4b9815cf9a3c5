//! Settlements and the records of reservations.

use std::sync::Arc;

use futures_util::future::join_all;
use tollgate_core::{Ask, MAX_MICROS, MICRO, Nanos, Receipt, smallest_part};

use super::call::Call;
use super::encode::{kind_of, push_open_charge, push_parameters, push_receipt};
use super::hub::Hub;
use super::key::{Keys, settled};
use super::metrics::Operation;
use super::msgpack::{Element, Elements};
use super::operations::MAX_KEYS;
use crate::{
    Adjusted, Adjustment, Applied, Change, Failure, MAX_RECORD_BYTES, RecordAnswer, RecordAsk,
    Refunds, Settlement, StoreError,
};

/// How often a settlement is sent again because no calendar window fitted.
const LOOKS_AT_THE_CALENDAR: u32 = 3;

/// The adjustments of one slot, with the key of the counter of each after that which remembers it.
struct Group<'a> {
    slot: u16,
    keys: Keys,
    adjustments: Vec<&'a Adjustment<'a>>,
    /// Their places in the settlement.
    places: Vec<usize>,
}

impl Group<'_> {
    /// `clock` is what we take the server's clock for.
    fn body(&self, remember: Nanos, clock: Nanos) -> Result<Elements, Failure> {
        let mut body = Elements::default();
        body.number((remember / (1_000 * MICRO)).clamp(1, MAX_MICROS));
        for adjustment in &self.adjustments {
            match adjustment.change {
                Change::Keep => body.number(0),
                Change::GiveBack(receipt) => {
                    let mut encoded = Elements::default();
                    if push_receipt(&mut encoded, adjustment.limit, &receipt) {
                        body.number(1);
                        body.append(&encoded);
                    } else {
                        body.number(0);
                    }
                }
                Change::Owe(cost) => {
                    body.number(2);
                    body.number(kind_of(adjustment.limit)?);
                    push_parameters(&mut body, adjustment.limit, &Ask::cost(cost), clock);
                }
            }
            if let Receipt::Open { at, cost } = adjustment.closes
                && adjustment.limit.algorithm().is_bucket()
            {
                body.number(1);
                push_open_charge(&mut body, adjustment.limit, at, cost);
            } else {
                body.number(0);
            }
        }
        Ok(body)
    }
}

impl Group<'_> {
    /// What was given back of each charge, by the script's answer.
    fn refunded(&self, elements: &[Element]) -> Refunds {
        let mut figures = elements.iter().skip(2).map_while(Element::number);
        let mut of = |adjustment: &&Adjustment<'_>| {
            let asked = adjustment.asked();
            // A node of the version before did it, and has not written down what it came to.
            let Some((amount, part)) = figures.next().zip(figures.next()) else { return asked };
            if !adjustment.limit.algorithm().is_bucket() {
                return amount.min(asked);
            }
            let (returned, pace) = ((amount, part), adjustment.limit.micro_pace());
            smallest_part(asked, |cost| {
                let span = pace.span_of(cost.min(MAX_MICROS));
                (span.micros, span.part) >= returned
            })
        };
        self.adjustments.iter().map(&mut of).collect()
    }
}

impl Hub {
    pub(super) async fn settle_once(
        self: &Arc<Self>,
        settlement: &Settlement<'_>,
    ) -> Result<Adjusted, StoreError> {
        let groups = self.groups(settlement);
        let settled = groups.iter().map(|group| self.settle_slot(settlement.remember, group));
        // One that fails does not keep the others from being settled.
        let settled = join_all(settled).await.into_iter().map(|one| one.map_err(StoreError::from));
        let places = groups.iter().map(|group| group.places.clone());
        Adjusted::of_parts(settlement.adjustments.len(), places.zip(settled))
    }

    /// Every slot has a place of its own that remembers the settlement, beside its first counter. A
    /// slot with more counters than fit into a call has several.
    fn groups<'a>(&self, settlement: &Settlement<'a>) -> Vec<Group<'a>> {
        let mut groups: Vec<Group<'a>> = Vec::new();
        for (place, adjustment) in settlement.adjustments.iter().enumerate() {
            let mut key = Keys::default();
            self.speller.push_counter(&adjustment.counter, &mut key);
            let first = key.get(0).unwrap_or_default();
            let slot = self.slot_of(first);
            let room = |group: &&mut Group<'_>| group.slot == slot && group.keys.len() <= MAX_KEYS;
            if let Some(group) = groups.iter_mut().find(room) {
                group.keys.append(&key);
                group.adjustments.push(adjustment);
                group.places.push(place);
            } else {
                let number = groups.iter().filter(|group| group.slot == slot).count();
                let mut keys = Keys::default();
                keys.push(&settled(first, settlement.id, number));
                keys.append(&key);
                let (adjustments, places) = (vec![adjustment], vec![place]);
                groups.push(Group { slot, keys, adjustments, places });
            }
        }
        groups
    }

    async fn settle_slot(
        self: &Arc<Self>,
        remember: Nanos,
        group: &Group<'_>,
    ) -> Result<Adjusted, Failure> {
        let deadline = self.deadline();
        let keys = group.keys.with_reset_marks(1);
        let mut clock = self.clock().unwrap_or(0);
        for _ in 0..LOOKS_AT_THE_CALENDAR {
            let body = group.body(remember, clock)?;
            let call = Call {
                operation: Operation::Settle,
                script: &self.scripts.settle,
                keys: &keys,
                body: &body,
                remember: true,
                slot: group.slot,
                deadline,
                timeout: self.timeout,
                may_split: false,
            };
            let reply = self.call(&call, None).await?.ok_or(Failure::Protocol)?;
            match (reply.number(0), reply.number(1)) {
                (Some(3), _) => clock = reply.now.saturating_mul(MICRO),
                (_, Some(1..)) => {
                    self.strangers.report(&group.keys);
                    return Err(Failure::ForeignKey);
                }
                (Some(done @ (0 | 1)), Some(0)) => {
                    let applied = if done == 0 { Applied::Now } else { Applied::Before };
                    return Ok(Adjusted { applied, refunded: group.refunded(&reply.elements) });
                }
                _ => return Err(Failure::Protocol),
            }
        }
        Err(Failure::Protocol)
    }

    pub(super) async fn record(
        self: &Arc<Self>,
        id: u128,
        ask: &RecordAsk<'_>,
    ) -> Result<RecordAnswer, Failure> {
        let (what, text, ttl): (u64, &[u8], Nanos) = match *ask {
            RecordAsk::Keep { content, ttl, .. } => (1, content, ttl),
            RecordAsk::End { how, ttl } => (2, how, ttl),
            RecordAsk::Complete { answer } => (3, answer, 0),
            RecordAsk::Renew { ttl } => (4, b"", ttl.unwrap_or(0)),
        };
        if text.len() > MAX_RECORD_BYTES {
            return Ok(RecordAnswer::Full);
        }
        let (mut keys, mut body) = (Keys::default(), Elements::default());
        keys.push(&self.speller.own(&format!("{id:032x}"), "reservation"));
        body.number(what);
        body.text(text);
        body.number((ttl / MICRO).min(MAX_MICROS / 2));
        let reply = self.run(Operation::Records, &self.scripts.records, &keys, &body).await?;
        read(reply.elements).ok_or(Failure::Protocol)
    }
}

/// The stage of a record, as the script returns it.
fn read(elements: Vec<Element>) -> Option<RecordAnswer> {
    let mut elements = elements.into_iter();
    let (stage, expires) = (elements.next()?.number()?, elements.next()?.number()?);
    let mut text = || match elements.next()? {
        Element::Text(text) => Some(text),
        Element::Number(_) => None,
    };
    let (how, content) = (text()?, text()?);
    Some(match stage {
        0 => RecordAnswer::Absent,
        1 => RecordAnswer::Open { content, expires_at: expires.saturating_mul(MICRO) },
        2 => RecordAnswer::Ending { content, how },
        3 => RecordAnswer::Ended { answer: content },
        _ => return None,
    })
}
