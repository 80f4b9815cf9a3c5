//! What a store does beside deciding.

use std::sync::Arc;

use futures_util::future::join_all;
use tollgate_core::{MAX_MICROS, MICRO, Nanos, Receipt, Slot, SlotId};

use super::call::{Call, Reply, Sent};
use super::encode::push_receipt;
use super::hub::Hub;
use super::key::{Keys, slot_of};
use super::metrics::Operation;
use super::msgpack::{Element, Elements};
use super::script::Script;
use crate::{
    Announcement, Claim, Counter, Failure, GiveBack, MAX_REPORTED_SLOTS, MAX_ROLL, Membership,
    Request, RequestClaim, Roll, RollEntry,
};

/// How long an id is being answered before another node may try, and how long the answer is known, in
/// milliseconds.
const CLAIM_MILLIS: u64 = 5_000;
const ANSWER_MILLIS: u64 = 60_000;

/// The most counters of one call.
pub(super) const MAX_KEYS: usize = 512;

/// Receipts of one slot.
#[derive(Default)]
pub(super) struct Returns {
    pub(super) keys: Keys,
    pub(super) body: Elements,
    slot: u16,
}

impl Returns {
    pub(super) fn of_slot(slot: u16) -> Self {
        Self { slot, ..Self::default() }
    }
}

impl Hub {
    pub(super) async fn run(
        self: &Arc<Self>,
        operation: Operation,
        script: &Script,
        keys: &Keys,
        body: &Elements,
    ) -> Result<Reply, Failure> {
        self.run_as(operation, script, keys, body, &mut self.unsent()).await
    }

    /// The same under the id of `sent`: repeated under the same id it has one effect, while the server
    /// remembers it.
    async fn run_as(
        self: &Arc<Self>,
        operation: Operation,
        script: &Script,
        keys: &Keys,
        body: &Elements,
        sent: &mut Sent,
    ) -> Result<Reply, Failure> {
        let slot = self.slot_of(keys.get(0).unwrap_or_default());
        let deadline = self.deadline();
        let call = Call {
            operation,
            script,
            keys,
            body,
            remember: true,
            slot,
            deadline,
            timeout: self.timeout,
            may_split: false,
        };
        self.call_as(&call, None, sent).await?.ok_or(Failure::Protocol)
    }

    pub(super) async fn give_back(
        self: &Arc<Self>,
        returns: &[GiveBack<'_>],
    ) -> Result<(), Failure> {
        let mut groups: Vec<Returns> = Vec::new();
        for returned in returns {
            let (mut key, mut body) = (Keys::default(), Elements::default());
            if !push_receipt(&mut body, returned.limit, &returned.receipt) {
                continue;
            }
            self.speller.push_counter(&returned.counter, &mut key);
            let slot = self.slot_of(key.get(0).unwrap_or_default());
            let room = |group: &&mut Returns| group.slot == slot && group.keys.len() < MAX_KEYS;
            if let Some(group) = groups.iter_mut().find(room) {
                group.keys.append(&key);
                group.body.append(&body);
            } else {
                groups.push(Returns { keys: key, body, slot });
            }
        }
        // One that fails does not keep the others from being given back.
        let returned =
            groups.iter().map(async |group| self.give_back_slot(group, &mut self.unsent()).await);
        let returned = join_all(returned).await;
        returned.into_iter().collect()
    }

    pub(super) async fn give_back_slot(
        self: &Arc<Self>,
        group: &Returns,
        sent: &mut Sent,
    ) -> Result<(), Failure> {
        let keys = group.keys.with_reset_marks(0);
        let script = &self.scripts.give_back;
        let reply = self.run_as(Operation::GiveBack, script, &keys, &group.body, sent).await?;
        match reply.number(0) {
            Some(0) => Ok(()),
            Some(_) => Err(Failure::ForeignKey),
            None => Err(Failure::Protocol),
        }
    }

    pub(super) async fn reset(self: &Arc<Self>, counters: &[Counter<'_>]) -> Result<(), Failure> {
        let mut groups: Vec<(u16, Keys)> = Vec::new();
        for counter in counters {
            let mut key = Keys::default();
            self.speller.push_counter(counter, &mut key);
            let slot = self.slot_of(key.get(0).unwrap_or_default());
            let room = |(of, keys): &&mut (u16, Keys)| *of == slot && keys.len() < MAX_KEYS;
            match groups.iter_mut().find(room) {
                Some((_, keys)) => keys.append(&key),
                None => groups.push((slot, key)),
            }
        }
        let script = &self.scripts.reset;
        for (_, keys) in &groups {
            let keys = keys.with_reset_marks(0);
            self.run(Operation::Reset, script, &keys, &Elements::default()).await?;
        }
        Ok(())
    }

    /// Holds a slot for `ttl` longer, or with a `ttl` of 0 gives it back. Whether it was held.
    pub(super) async fn slots(
        self: &Arc<Self>,
        counter: &Counter<'_>,
        slot: SlotId,
        ttl: Nanos,
    ) -> Result<bool, Failure> {
        let (mut keys, mut body) = (Keys::default(), Elements::default());
        self.speller.push_counter(counter, &mut keys);
        body.text(format!("{:032x}", { slot.0 }).as_bytes());
        body.number((ttl / MICRO).min(MAX_MICROS));
        let reply = self.run(Operation::Slots, &self.scripts.slots, &keys, &body).await?;
        match reply.number(0) {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(_) => Err(Failure::ForeignKey),
            None => Err(Failure::Protocol),
        }
    }

    pub(super) async fn held_slots(
        self: &Arc<Self>,
        counter: &Counter<'_>,
    ) -> Result<Vec<Slot>, Failure> {
        let (mut keys, mut body) = (Keys::default(), Elements::default());
        self.speller.push_counter(counter, &mut keys);
        body.number(MAX_REPORTED_SLOTS as u64);
        let reply = self.run(Operation::Slots, &self.scripts.held, &keys, &body).await?;
        match reply.number(0) {
            Some(0) => {}
            Some(_) => return Err(Failure::ForeignKey),
            None => return Err(Failure::Protocol),
        }
        let pairs = reply.elements.get(1..).unwrap_or_default().chunks_exact(2);
        let slot = |pair: &[Element]| match pair {
            [Element::Text(name), Element::Number(expires)] => {
                let name = std::str::from_utf8(name).ok()?;
                let id = SlotId(u128::from_str_radix(name, 16).ok()?);
                Some(Slot { id, expires_at: expires.saturating_mul(MICRO) })
            }
            _ => None,
        };
        pairs.map(slot).collect::<Option<_>>().ok_or(Failure::Protocol)
    }

    pub(super) async fn announce(
        self: &Arc<Self>,
        announcement: &Announcement<'_>,
    ) -> Result<Roll, Failure> {
        let (mut keys, mut body) = (Keys::default(), Elements::default());
        keys.push(&self.speller.own("nodes", "live"));
        keys.push(&self.speller.own("nodes", "reported"));
        body.text(announcement.node.as_bytes());
        body.number((announcement.ttl / MICRO).min(MAX_MICROS / 2));
        body.number(u64::from(announcement.has_reported));
        body.number(MAX_ROLL as u64);
        let reply = self.run(Operation::Nodes, &self.scripts.nodes, &keys, &body).await?;
        roll(&reply).ok_or(Failure::Protocol)
    }

    pub(super) async fn claim(self: &Arc<Self>, claim: &RequestClaim) -> Result<Claim, Failure> {
        let mut reply = self.answers(1, claim, CLAIM_MILLIS, b"").await?;
        match (reply.number(0), reply.elements.pop()) {
            (Some(0), _) => Ok(Claim::Yours),
            (Some(1), _) => Ok(Claim::Pending),
            (Some(2), _) => Ok(Claim::OtherContent),
            (Some(3), Some(Element::Text(answer))) => Ok(Claim::Answered(answer)),
            _ => Err(Failure::Protocol),
        }
    }

    pub(super) async fn publish(
        self: &Arc<Self>,
        claim: &RequestClaim,
        answer: Option<&[u8]>,
    ) -> Result<(), Failure> {
        let what = if answer.is_some() { 2 } else { 3 };
        self.answers(what, claim, ANSWER_MILLIS, answer.unwrap_or_default()).await?;
        Ok(())
    }

    async fn answers(
        self: &Arc<Self>,
        what: u64,
        claim: &RequestClaim,
        millis: u64,
        answer: &[u8],
    ) -> Result<Reply, Failure> {
        let (mut keys, mut body) = (Keys::default(), Elements::default());
        keys.push(&self.speller.own(&format!("{:032x}", claim.id), "answer"));
        body.number(what);
        body.text(format!("{:032x}", claim.content).as_bytes());
        body.number(millis);
        body.text(answer);
        body.text(format!("{:016x}", claim.owner).as_bytes());
        self.run(Operation::Answers, &self.scripts.answers, &keys, &body).await
    }

    /// Says once for a key that it holds something that is not ours.
    pub(super) fn report_foreign(&self, request: &Request<'_>) {
        let mut keys = Keys::default();
        for charge in request.charges {
            self.speller.push_counter(&charge.counter, &mut keys);
        }
        self.strangers.report(&keys);
    }
}

/// The roll of nodes, as `scripts/nodes.lua` writes it.
fn roll(reply: &Reply) -> Option<Roll> {
    let bounded = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let [nodes, rank, is_cut_short] = [reply.number(0)?, reply.number(1)?, reply.number(2)?];
    let entry = |entry: &[Element]| match entry {
        [Element::Text(name), Element::Number(is_alive), Element::Number(reported)] => {
            Some(RollEntry {
                name: String::from_utf8_lossy(name).into_owned(),
                is_alive: *is_alive == 1,
                reported_at: reported.saturating_mul(MICRO),
            })
        }
        _ => None,
    };
    let entries = reply.elements.get(3..).unwrap_or_default().chunks_exact(3);
    Some(Roll {
        at: reply.now.saturating_mul(MICRO),
        membership: Membership { nodes: bounded(nodes).max(1), rank: bounded(rank) },
        nodes: entries.map(entry).collect::<Option<_>>()?,
        is_cut_short: is_cut_short == 1,
    })
}

/// Keys that were reported, so that each is reported once.
#[derive(Default)]
pub(super) struct ForeignKeyReports(parking_lot::Mutex<Vec<u16>>);

/// So many reports are enough.
const MAX_REPORTS: usize = 64;

impl ForeignKeyReports {
    pub(super) fn report(&self, keys: &Keys) {
        // A rough mark of the request: a collision costs a line in the log.
        let mark = keys.iter().fold(0u16, |mark, key| mark.rotate_left(3) ^ slot_of(key));
        let mut reported = self.0.lock();
        if reported.len() >= MAX_REPORTS || reported.contains(&mark) {
            return;
        }
        reported.push(mark);
        let keys: Vec<_> = keys.iter().map(String::from_utf8_lossy).collect();
        tracing::error!(
            ?keys,
            "one of these keys holds something that is not ours; nothing is \
            charged until it is removed: give counters a Redis or a prefix of their own"
        );
    }
}

/// What a receipt is worth giving back.
pub(super) const fn is_charged(receipt: &Receipt) -> bool {
    !matches!(receipt, Receipt::Nothing)
}
