//! The store that all nodes share: what Redis and its scripts do, in memory and in virtual time.
//!
//! Counters are a real [`MemoryStore`]. Every call that changes something carries an id, and its answer
//! is remembered under it for a while: a call that arrives twice is answered, not executed again.

use std::collections::BTreeMap;

use futures_util::FutureExt;
use tollgate_core::{Ask, Limit, Nanos, Outcome, Receipt, SECOND, Slot};
use tollgate_store::{
    Adjusted, Adjustment, Change, Charge, GiveBack, LeaseGrant, Membership, MemoryStore, Mode,
    Outcomes, Role, Roll, RollEntry, Settlement, Store,
};

use crate::owned::{Op, OwnedCharge, OwnedCounter, OwnedLeaseAsk, OwnedRequest};

/// For how long a call that was undone is kept from running.
const FORBIDDEN: Nanos = 60 * SECOND;

/// What the store answers.
#[derive(Debug, Clone)]
pub enum Reply {
    Decided(Vec<Outcome>),
    Done,
    Was(bool),
    Slots(Vec<Slot>),
    Applied(Adjusted),
    Lease(Box<LeaseGrant>),
    Roll(Roll),
    /// Whether the call was known that was to be undone.
    Undone(bool),
    /// The call arrived after its deadline, and nothing was done.
    Late,
}

/// A call that was executed.
struct Executed {
    reply: Reply,
    /// From then on the id is forgotten.
    until: Nanos,
    charged: Vec<Charged>,
}

/// A charge that a call has made.
#[derive(Clone)]
struct Charged {
    counter: OwnedCounter,
    limit: Limit,
    receipt: Receipt,
    cost: u64,
}

/// A node that has announced itself.
#[derive(Debug, Default)]
struct Member {
    alive_until: Nanos,
    reported_at: Nanos,
}

/// How much every node has on lease of a counter, and until when.
type Holdings = BTreeMap<String, (u64, Nanos)>;

pub struct Server {
    memory: MemoryStore,
    leases: BTreeMap<String, Holdings>,
    members: BTreeMap<String, Member>,
    executed: BTreeMap<u64, Executed>,
    /// Calls whose callers have given up, and what they have charged that was not undone.
    abandoned: BTreeMap<u64, Vec<Charged>>,
    /// What was charged, by rule, by calls that could not be undone: leases, and decisions that the store
    /// had forgotten.
    unanswered: BTreeMap<String, u64>,
    /// What was undone, by rule.
    undone: BTreeMap<String, u64>,
}

impl Server {
    pub fn new() -> Self {
        Self {
            memory: MemoryStore::new(10_000),
            leases: BTreeMap::new(),
            members: BTreeMap::new(),
            executed: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            undone: BTreeMap::new(),
        }
    }

    /// Executes a call that arrives now, unless it was executed before or is too late.
    pub fn receive(
        &mut self,
        id: u64,
        op: &Op,
        deadline: Option<Nanos>,
        remember: Nanos,
        now: Nanos,
    ) -> Reply {
        if deadline.is_some_and(|deadline| now > deadline) {
            return Reply::Late;
        }
        self.executed.retain(|_, it| it.until > now);
        if let Some(before) = self.executed.get(&id) {
            return before.reply.clone();
        }
        let reply = self.execute(op, now);
        if op.is_change() {
            let charged = charged(op, &reply);
            if let Some(abandoned) = self.abandoned.get_mut(&id) {
                abandoned.clone_from(&charged);
            }
            let until = now + remember;
            self.executed.insert(id, Executed { reply: reply.clone(), until, charged });
        }
        reply
    }

    /// The caller of this call has given up.
    pub fn abandon(&mut self, id: u64, op: &Op) {
        let executed = self.executed.get(&id);
        let charged = executed.map_or_else(Vec::new, |executed| executed.charged.clone());
        self.abandoned.insert(id, charged);
        if matches!(op, Op::Lease(_)) {
            self.forget(id);
        }
    }

    /// What an abandoned call has charged stays.
    pub fn forget(&mut self, id: u64) {
        for it in self.abandoned.remove(&id).unwrap_or_default() {
            *self.unanswered.entry(it.counter.rule_id).or_default() += it.cost;
        }
    }

    /// What was charged on a counter by calls that could not be undone.
    pub fn unanswered(&self, rule_id: &str) -> u64 {
        self.unanswered.get(rule_id).copied().unwrap_or(0)
    }

    /// What was charged on a counter and undone.
    pub fn undone(&self, rule_id: &str) -> u64 {
        self.undone.get(rule_id).copied().unwrap_or(0)
    }

    /// What is used of a counter.
    pub fn used(&self, request: &OwnedRequest, now: Nanos) -> u64 {
        let mut outcomes = Outcomes::new();
        request.with(|request| self.memory.decide_now(request, now, &mut outcomes));
        outcomes.first().map_or(0, |outcome| outcome.status.used)
    }

    /// What is on lease of a counter over all nodes.
    pub fn on_lease(&self, rule_id: &str, now: Nanos) -> u64 {
        let holdings = self.leases.get(rule_id).into_iter().flat_map(BTreeMap::values);
        holdings.filter(|(_, until)| *until > now).map(|(held, _)| held).sum()
    }

    fn execute(&mut self, op: &Op, now: Nanos) -> Reply {
        match op {
            Op::Decide(requests) => {
                let mut outcomes = Outcomes::new();
                for request in requests {
                    request.with(|request| self.memory.decide_now(request, now, &mut outcomes));
                }
                Reply::Decided(outcomes.to_vec())
            }
            Op::GiveBack(returns) => {
                for it in returns {
                    self.give_back(&it.counter, &it.limit, it.receipt, now);
                }
                Reply::Done
            }
            Op::Settle(settlement) => {
                Reply::Applied(settlement.with(|it| self.memory.settle_now(it, now)))
            }
            Op::Reset(counters) => {
                for counter in counters {
                    counter.with(|it| self.memory.reset(&[it], now).now_or_never().is_some());
                }
                Reply::Done
            }
            Op::Renew(counter, limit, slot) => Reply::Was(counter.with(|it| {
                self.memory.renew(&it, limit, *slot, now).now_or_never() == Some(Ok(true))
            })),
            Op::Release(counter, slot) => {
                Reply::Was(counter.with(|it| {
                    self.memory.release(&it, *slot, now).now_or_never() == Some(Ok(true))
                }))
            }
            Op::Slots(counter) => {
                let slots = counter.with(|it| self.memory.slots(&it, now).now_or_never());
                Reply::Slots(slots.and_then(Result::ok).unwrap_or_default())
            }
            Op::Lease(ask) => Reply::Lease(Box::new(self.lease(ask, now))),
            Op::Announce { node, ttl, has_reported } => {
                Reply::Roll(self.announce(node, *ttl, *has_reported, now))
            }
            Op::Undo(id) => Reply::Undone(self.undo(*id, now)),
        }
    }

    fn give_back(&self, counter: &OwnedCounter, limit: &Limit, receipt: Receipt, now: Nanos) {
        counter.with(|counter| {
            self.memory.give_back_now(&GiveBack { counter, limit, receipt }, now);
        });
    }

    /// As [`tollgate_store::LeaseAsk`] says.
    fn lease(&mut self, ask: &OwnedLeaseAsk, now: Nanos) -> LeaseGrant {
        if ask.returned > 0 {
            let change = Change::GiveBack(ask.receipt.part(ask.returned));
            let OwnedLeaseAsk { return_id: id, remember, .. } = *ask;
            ask.counter.with(|counter| {
                let (limit, closes, is_here) = (&ask.limit, Receipt::Nothing, false);
                let adjustments = [Adjustment { counter, limit, change, closes }];
                let settlement = Settlement { id, remember, is_here, adjustments: &adjustments };
                self.memory.settle_now(&settlement, now);
            });
        }
        for receipt in &ask.closes {
            ask.counter.with(|counter| {
                let (limit, receipt) = (&ask.limit, *receipt);
                self.memory.close_now(&GiveBack { counter, limit, receipt }, now);
            });
        }
        let holdings = self.leases.entry(ask.counter.rule_id.clone()).or_default();
        holdings.retain(|_, (_, until)| *until > now);
        let of_others = holdings.iter().filter(|(node, _)| **node != ask.node);
        let others: u64 = of_others.map(|(_, (held, _))| held).sum();
        let charge = |cost: u64, mode: Mode| -> Outcome {
            ask.counter.with(|counter| {
                let limit = &ask.limit;
                let ask = Ask::cost(cost).on_lease();
                let charge = Charge { counter, limit, ask, role: Role::Must };
                self.memory.decide_single(&charge, mode, now)
            })
        };
        let mut amount = ask.want.max(ask.least);
        let outcome = loop {
            let fits = others + ask.held + (amount - ask.least) <= ask.pool;
            if amount <= ask.least || (fits && charge(amount, Mode::Peek).examination.admits()) {
                break charge(amount, if amount == 0 { Mode::Peek } else { Mode::Charge });
            }
            amount = (amount / 2).max(ask.least);
        };
        let granted = if outcome.receipt == Receipt::Nothing { 0 } else { amount };
        let held = ask.held + granted.saturating_sub(ask.least);
        let expires_at = now + ask.ttl;
        if held > 0 {
            holdings.insert(ask.node.clone(), (held, expires_at));
        } else {
            holdings.remove(&ask.node);
        }
        LeaseGrant { at: now, granted, expires_at, others, outcome }
    }

    fn announce(&mut self, node: &str, ttl: Nanos, has_reported: bool, now: Nanos) -> Roll {
        let member = self.members.entry(node.to_owned()).or_default();
        member.alive_until = if ttl == 0 { 0 } else { now + ttl };
        if has_reported {
            member.reported_at = now;
        }
        let entry = |(name, member): (&String, &Member)| RollEntry {
            name: name.clone(),
            is_alive: member.alive_until > now,
            reported_at: member.reported_at,
        };
        let nodes: Vec<RollEntry> = self.members.iter().map(entry).collect();
        let alive = nodes.iter().filter(|entry| entry.is_alive);
        let rank = alive.clone().filter(|entry| entry.name.as_str() < node).count() as u32;
        let membership = Membership { nodes: alive.count().max(1) as u32, rank };
        Roll { at: now, membership, nodes, is_cut_short: false }
    }

    /// Refunds what a call has charged, and keeps it from running later. False if it is not known: it
    /// has not run, or was forgotten.
    fn undo(&mut self, id: u64, now: Nanos) -> bool {
        let until = now + FORBIDDEN;
        let undone = Executed { reply: Reply::Late, until, charged: Vec::new() };
        let Some(executed) = self.executed.insert(id, undone) else {
            self.forget(id);
            return false;
        };
        for Charged { counter, limit, receipt, cost } in &executed.charged {
            self.give_back(counter, limit, *receipt, now);
            *self.undone.entry(counter.rule_id.clone()).or_default() += cost;
        }
        self.abandoned.remove(&id);
        true
    }
}

/// What a call has charged.
fn charged(op: &Op, reply: &Reply) -> Vec<Charged> {
    match (op, reply) {
        (Op::Decide(requests), Reply::Decided(outcomes)) => {
            let charges = requests.iter().flat_map(|request| &request.charges);
            let charged = |(it, outcome): (&OwnedCharge, &Outcome)| Charged {
                counter: it.counter.clone(),
                limit: it.limit.clone(),
                receipt: outcome.receipt,
                cost: it.ask.cost,
            };
            let each = charges.zip(outcomes).filter(|(_, it)| it.receipt != Receipt::Nothing);
            each.map(charged).collect()
        }
        (Op::Lease(ask), Reply::Lease(grant)) => vec![Charged {
            counter: ask.counter.clone(),
            limit: ask.limit.clone(),
            receipt: grant.outcome.receipt,
            cost: grant.granted,
        }],
        _ => Vec::new(),
    }
}
