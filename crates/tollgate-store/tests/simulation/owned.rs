//! Calls as they travel: what the store's traits borrow, owned.

use tollgate_core::{Ask, Limit, Nanos, Receipt, SlotId};
use tollgate_store::{
    Adjustment, Change, Charge, Counter, GiveBack, Home, LeaseAsk, Mode, Request, Role, Settlement,
};

/// A counter's name. Its rule is enough to tell the counters of a simulation apart.
#[derive(Debug, Clone)]
pub struct OwnedCounter {
    pub rule_id: String,
    tag: String,
    salt: u128,
    key: Vec<String>,
    home: Home,
}

impl OwnedCounter {
    pub fn new(counter: &Counter<'_>) -> Self {
        Self {
            rule_id: counter.rule_id.to_owned(),
            tag: counter.tag.to_owned(),
            salt: counter.salt,
            key: counter.key.iter().map(|&part| part.to_owned()).collect(),
            home: counter.home,
        }
    }

    fn key(&self) -> Vec<&str> {
        self.key.iter().map(String::as_str).collect()
    }

    /// Lends the counter as the store takes it.
    pub fn with<T>(&self, act: impl FnOnce(Counter<'_>) -> T) -> T {
        let key = self.key();
        let Self { rule_id, tag, salt, home, .. } = self;
        act(Counter { rule_id, tag, salt: *salt, key: &key, home: *home })
    }
}

#[derive(Debug, Clone)]
pub struct OwnedCharge {
    pub counter: OwnedCounter,
    pub limit: Limit,
    pub ask: Ask,
    role: Role,
}

#[derive(Debug, Clone)]
pub struct OwnedRequest {
    pub charges: Vec<OwnedCharge>,
    pub mode: Mode,
}

impl OwnedRequest {
    pub fn new(request: &Request<'_>) -> Self {
        let own = |charge: &Charge<'_>| OwnedCharge {
            counter: OwnedCounter::new(&charge.counter),
            limit: charge.limit.clone(),
            ask: charge.ask,
            role: charge.role,
        };
        Self { charges: request.charges.iter().map(own).collect(), mode: request.mode }
    }

    pub fn with<T>(&self, act: impl FnOnce(&Request<'_>) -> T) -> T {
        let keys: Vec<Vec<&str>> = self.charges.iter().map(|charge| charge.counter.key()).collect();
        let charges: Vec<Charge<'_>> = self
            .charges
            .iter()
            .zip(&keys)
            .map(|(OwnedCharge { counter, limit, ask, role }, key)| {
                let OwnedCounter { rule_id, tag, salt, home, .. } = counter;
                let counter = Counter { rule_id, tag, salt: *salt, key, home: *home };
                Charge { counter, limit, ask: *ask, role: *role }
            })
            .collect();
        act(&Request { charges: &charges, mode: self.mode })
    }
}

#[derive(Debug, Clone)]
pub struct OwnedGiveBack {
    pub counter: OwnedCounter,
    pub limit: Limit,
    pub receipt: Receipt,
}

impl OwnedGiveBack {
    pub fn new(give_back: &GiveBack<'_>) -> Self {
        let GiveBack { counter, limit, receipt } = give_back;
        Self { counter: OwnedCounter::new(counter), limit: (*limit).clone(), receipt: *receipt }
    }
}

#[derive(Debug, Clone)]
pub struct OwnedSettlement {
    pub id: u128,
    remember: Nanos,
    is_here: bool,
    pub adjustments: Vec<(OwnedCounter, Limit, Change, Receipt)>,
}

impl OwnedSettlement {
    pub fn new(settlement: &Settlement<'_>) -> Self {
        let own = |it: &Adjustment<'_>| {
            (OwnedCounter::new(&it.counter), it.limit.clone(), it.change, it.closes)
        };
        let adjustments = settlement.adjustments.iter().map(own).collect();
        let Settlement { id, remember, is_here, .. } = *settlement;
        Self { id, remember, is_here, adjustments }
    }

    pub fn with<T>(&self, act: impl FnOnce(&Settlement<'_>) -> T) -> T {
        let keys: Vec<Vec<&str>> = self.adjustments.iter().map(|(it, ..)| it.key()).collect();
        let adjustments: Vec<Adjustment<'_>> = self
            .adjustments
            .iter()
            .zip(&keys)
            .map(|((counter, limit, change, closes), key)| {
                let OwnedCounter { rule_id, tag, salt, home, .. } = counter;
                let counter = Counter { rule_id, tag, salt: *salt, key, home: *home };
                Adjustment { counter, limit, change: *change, closes: *closes }
            })
            .collect();
        let Self { id, remember, is_here, .. } = *self;
        act(&Settlement { id, remember, is_here, adjustments: &adjustments })
    }
}

#[derive(Debug, Clone)]
pub struct OwnedLeaseAsk {
    pub counter: OwnedCounter,
    pub limit: Limit,
    pub node: String,
    pub want: u64,
    pub least: u64,
    pub returned: u64,
    pub receipt: Receipt,
    pub return_id: u128,
    pub remember: Nanos,
    pub closes: Vec<Receipt>,
    pub held: u64,
    pub pool: u64,
    pub ttl: Nanos,
}

impl OwnedLeaseAsk {
    pub fn new(ask: &LeaseAsk<'_>) -> Self {
        let LeaseAsk { want, least, returned, receipt, held, pool, ttl, .. } = *ask;
        let LeaseAsk { return_id, remember, .. } = *ask;
        Self {
            counter: OwnedCounter::new(&ask.counter),
            limit: ask.limit.clone(),
            node: ask.node.to_owned(),
            want,
            least,
            returned,
            receipt,
            return_id,
            remember,
            closes: ask.closes.to_vec(),
            held,
            pool,
            ttl,
        }
    }
}

/// One call to the store.
#[derive(Debug, Clone)]
pub enum Op {
    Decide(Vec<OwnedRequest>),
    GiveBack(Vec<OwnedGiveBack>),
    Reset(Vec<OwnedCounter>),
    Renew(OwnedCounter, Limit, SlotId),
    Release(OwnedCounter, SlotId),
    Slots(OwnedCounter),
    Settle(OwnedSettlement),
    Lease(OwnedLeaseAsk),
    Announce {
        node: String,
        ttl: Nanos,
        has_reported: bool,
    },
    /// Refunds what a call has charged whose answer was lost, and keeps it from running later.
    Undo(u64),
}

impl Op {
    /// Whether it changes something, so that it must not run twice.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Decide(requests) => requests.iter().any(|it| it.mode != Mode::Peek),
            Self::Slots(_) => false,
            _ => true,
        }
    }

    /// In a few words, for the trace.
    pub fn text(&self) -> String {
        let names = |charges: &[OwnedCharge]| {
            let each = charges.iter().map(|it| format!("{} {}", it.counter.rule_id, it.ask.cost));
            each.collect::<Vec<_>>().join(" + ")
        };
        match self {
            Self::Decide(requests) => {
                let each =
                    requests.iter().map(|it| format!("{:?} {}", it.mode, names(&it.charges)));
                each.collect::<Vec<_>>().join(", ")
            }
            Self::GiveBack(returns) => {
                let each =
                    returns.iter().map(|it| format!("{} {:?}", it.counter.rule_id, it.receipt));
                format!("GiveBack {}", each.collect::<Vec<_>>().join(", "))
            }
            Self::Settle(settlement) => {
                let each = settlement.adjustments.iter();
                let each = each.map(|(it, _, change, _)| format!("{} {change:?}", it.rule_id));
                format!("Settle {:x} {}", settlement.id, each.collect::<Vec<_>>().join(", "))
            }
            Self::Lease(ask) => format!(
                "Lease {} want {} least {} returned {} held {} pool {}",
                ask.counter.rule_id, ask.want, ask.least, ask.returned, ask.held, ask.pool
            ),
            Self::Announce { has_reported, .. } => {
                let reported = if *has_reported { ", has reported" } else { "" };
                format!("Announce{reported}")
            }
            Self::Undo(id) => format!("Undo {id:x}"),
            Self::Reset(_) => "Reset".to_owned(),
            Self::Renew(..) => "Renew".to_owned(),
            Self::Release(..) => "Release".to_owned(),
            Self::Slots(_) => "Slots".to_owned(),
        }
    }
}
