//! Several nodes on one Redis, and the oracle's list of what they admitted.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::{Ask, Limit, Nanos, Outcome, Receipt, SECOND};
use tollgate_store::redis::RedisStore;
use tollgate_store::{
    Adjustment, Change, Charge, Consistency, Counter, Decided, GiveBack, Home, Mode, Outcomes,
    Request, Role, Settlement, Store, StoreError,
};
use xxhash_rust::xxh3::xxh3_128;

use crate::nodes::{NodeHistory, SharedMeter};
use crate::oracle::{Account, Wanted};
use crate::redis_support::{CLOCK, VirtualClock, options};

/// For how long settlements are remembered.
const REMEMBERED: Nanos = 86_400 * SECOND;

/// The numbers of debts that settlements make, apart from those of charges.
const DEBTS: u32 = 1 << 31;

/// A charge of the last request of an operation.
#[derive(Clone)]
pub struct Made {
    pub place: usize,
    pub counter: usize,
    pub cost: u64,
    pub receipt: Receipt,
    /// The node that made it without the store: only that one can settle it.
    pub local_to: Option<usize>,
}

/// Nodes that play one history.
pub struct Fleet<'a, S> {
    pub history: &'a NodeHistory,
    pub clock: Arc<VirtualClock>,
    pub nodes: Vec<S>,
    pub accounts: Vec<Account>,
    pub now: Nanos,
    limits: Vec<Limit>,
    names: Vec<String>,
    last: HashMap<u32, Vec<Made>>,
    charged: usize,
}

/// A server, and a connection to it for each node.
pub struct Shared {
    pub clock: Arc<VirtualClock>,
    pub redis: Vec<RedisStore>,
    played: u64,
}

impl Shared {
    pub fn new(nodes: u64) -> Self {
        let clock = VirtualClock::new();
        let url = clock.server().url();
        let connect =
            |_| RedisStore::on_clock(&options(std::slice::from_ref(&url)), CLOCK).unwrap();
        Self { redis: (0..nodes).map(connect).collect(), clock, played: 0 }
    }

    /// A name for another history.
    pub fn next_name(&mut self) -> String {
        self.played += 1;
        format!("h{}", self.played)
    }
}

pub fn failed(error: StoreError) -> String {
    format!("the store failed: {error}")
}

impl<'a, S: Store> Fleet<'a, S> {
    pub fn new(
        history: &'a NodeHistory,
        clock: Arc<VirtualClock>,
        nodes: Vec<S>,
        name: &str,
    ) -> Self {
        clock.set(history.start);
        Self {
            history,
            clock,
            nodes,
            accounts: history.meters.iter().map(|meter| Account::new(meter.shape)).collect(),
            now: history.start,
            limits: history.meters.iter().map(SharedMeter::limit).collect(),
            names: (0..history.meters.len()).map(|number| format!("{name}-{number}")).collect(),
            last: HashMap::new(),
            charged: 0,
        }
    }

    pub fn advance(&mut self, by: Nanos) {
        self.now += by;
        self.clock.set(self.now);
    }

    fn home(&self, counter: usize) -> Home {
        let max_overshoot_ppm = self.history.meters[counter].overshoot_ppm;
        let consistency = match max_overshoot_ppm {
            0 => Consistency::Strict,
            _ => Consistency::Leased { max_overshoot_ppm },
        };
        Home { partition: Some(0), consistency, ..Home::default() }
    }

    /// Asks a store about some counters.
    pub async fn ask(
        &self,
        store: &impl Store,
        costs: &[(usize, u64)],
        mode: Mode,
    ) -> Result<(Outcomes, Decided), String> {
        let keys: Vec<[&str; 1]> = self.names.iter().map(|name| [name.as_str()]).collect();
        let charges: Vec<Charge<'_>> = (costs.iter())
            .map(|(at, cost)| Charge {
                counter: counter(&keys[*at], self.home(*at)),
                limit: &self.limits[*at],
                ask: refundable(*cost),
                role: Role::Must,
            })
            .collect();
        let mut outcomes = Outcomes::new();
        let request = Request { charges: &charges, mode };
        let decided = store.decide(&[request], self.now, &mut outcomes).await.map_err(failed)?;
        Ok((outcomes, decided))
    }

    /// Looks at every counter.
    pub async fn look(&self, store: &impl Store) -> Result<Outcomes, String> {
        let all: Vec<(usize, u64)> = (0..self.limits.len()).map(|counter| (counter, 1)).collect();
        Ok(self.ask(store, &all, Mode::Peek).await?.0)
    }

    /// Notes what a request charged.
    pub fn note(
        &mut self,
        (id, node): (u32, usize),
        costs: &[(usize, u64)],
        outcomes: &[Outcome],
        decided: &Decided,
    ) {
        let mut made = Vec::new();
        let local_to = decided.degraded.is_some().then_some(node);
        for (index, ((counter, cost), outcome)) in costs.iter().zip(outcomes).enumerate() {
            self.charged += 1;
            // A node takes its own idea of the store's clock for a decision of its own, which runs ahead while
            // that clock stands still.
            let (place, at) = (self.charged, decided.of(index).min(self.now));
            let wanted = Wanted { cost: *cost, max_delay: None, slot: 0 };
            let terms = self.history.meters[*counter].terms;
            self.accounts[*counter].charge((id, place), terms, wanted, 0, at);
            let (counter, cost, receipt) = (*counter, *cost, outcome.receipt);
            made.push(Made { place, counter, cost, receipt, local_to });
        }
        self.last.insert(id, made);
    }

    /// The charges of an operation's last request, if they were not ended before.
    pub fn take(&mut self, of: u32) -> Vec<Made> {
        self.last.remove(&of).unwrap_or_default()
    }

    pub async fn give_back(&mut self, node: usize, of: u32) -> Result<(), String> {
        let made = self.take(of);
        for one in &made {
            self.accounts[one.counter].refund((of, one.place), one.cost, self.now);
        }
        let keys: Vec<[&str; 1]> =
            made.iter().map(|one| [self.names[one.counter].as_str()]).collect();
        let returns: Vec<GiveBack<'_>> = (made.iter().zip(&keys))
            .map(|(one, key)| GiveBack {
                counter: counter(key, self.home(one.counter)),
                limit: &self.limits[one.counter],
                receipt: one.receipt,
            })
            .collect();
        self.nodes[node].give_back(&returns, self.now).await.map_err(failed)
    }

    pub async fn settle(&mut self, node: usize, of: u32, less: i64) -> Result<(), String> {
        let made = self.take(of);
        let changes: Vec<Change> = made.iter().map(|one| self.change(of, one, less)).collect();
        let keys: Vec<[&str; 1]> =
            made.iter().map(|one| [self.names[one.counter].as_str()]).collect();
        let adjustments: Vec<Adjustment<'_>> = (made.iter().zip(&keys).zip(changes))
            .map(|((one, key), change)| Adjustment {
                counter: counter(key, self.home(one.counter)),
                limit: &self.limits[one.counter],
                change,
                closes: Self::rest(one, less),
            })
            .collect();
        if adjustments.is_empty() {
            return Ok(());
        }
        let id = xxh3_128(format!("{} {of}", self.names[0]).as_bytes());
        let local_to = made.first().and_then(|one| one.local_to);
        let (remember, is_here) = (REMEMBERED, local_to.is_some());
        let settlement = Settlement { id, remember, is_here, adjustments: &adjustments };
        self.nodes[local_to.unwrap_or(node)]
            .settle(&settlement, self.now)
            .await
            .map(|_| ())
            .map_err(failed)
    }
}

impl<S> Fleet<'_, S> {
    /// What is left of a charge that was settled, and is not refunded any more.
    fn rest(one: &Made, less: i64) -> Receipt {
        let back = if less > 0 { less.unsigned_abs().min(one.cost) } else { 0 };
        one.receipt.part(one.cost - back)
    }

    /// Settles a charge on the oracle's side. What the store is to do.
    fn change(&mut self, of: u32, one: &Made, less: i64) -> Change {
        let account = &mut self.accounts[one.counter];
        match less {
            0 => Change::Keep,
            1.. => {
                let back = less.unsigned_abs().min(one.cost);
                account.refund((of, one.place), back, self.now);
                Change::GiveBack(one.receipt.part(back))
            }
            _ => {
                let wanted = Wanted { cost: less.unsigned_abs(), max_delay: None, slot: 0 };
                let terms = self.history.meters[one.counter].terms;
                account.charge((DEBTS, one.place), terms, wanted, 0, self.now);
                Change::Owe(less.unsigned_abs())
            }
        }
    }
}

fn refundable(cost: u64) -> Ask {
    Ask::cost(cost).refundable()
}

fn counter<'a>(key: &'a [&'a str; 1], home: Home) -> Counter<'a> {
    Counter { rule_id: "rule", tag: "tag", salt: xxh3_128(b"rule"), key, home }
}
