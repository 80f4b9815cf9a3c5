//! A store that nodes share, in memory and on a virtual clock: what [`SharedStore`] asks for, told as
//! plainly as it can be, so that every interleaving can be tried. The real one is tested beside it.

#![allow(dead_code, unreachable_pub, reason = "every test uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tollgate_core::{
    Algorithm, Ask, Limit, LimitSpec, Nanos, Receipt, SECOND, SlotId, Status, Window,
};
use tollgate_store::{
    Applied, Charge, Consistency, Counter, Decided, Failure, GiveBack, Home, LeaseAsk, LeaseGrant,
    Membership, MemoryStore, Mode, OnFailure, Outcomes, RecordAnswer, RecordAsk, Request, Role,
    Settlement, SharedStore, Store, StoreError,
};

/// Not on the edge of any window.
pub const START: Nanos = 1_789_000_000 * SECOND + 123_456_000;

/// How much every node holds of a counter, and until when.
type Holdings = HashMap<String, (u64, Nanos)>;

/// What is behind all nodes.
pub struct World {
    pub memory: MemoryStore,
    pub now: AtomicU64,
    /// The store does not answer.
    pub is_down: AtomicBool,
    records: Mutex<HashMap<u128, Holdings>>,
    members: Mutex<HashMap<String, Nanos>>,
    pub calls: AtomicU64,
}

impl World {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::new(100_000),
            now: AtomicU64::new(START),
            is_down: AtomicBool::new(false),
            records: Mutex::default(),
            members: Mutex::default(),
            calls: AtomicU64::new(0),
        })
    }

    pub fn now(&self) -> Nanos {
        self.now.load(Ordering::SeqCst)
    }

    pub fn advance(&self, by: Nanos) {
        self.now.fetch_add(by, Ordering::SeqCst);
    }

    pub fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    /// What is on lease of a counter over all nodes.
    pub fn on_lease(&self, counter: &Counter<'_>) -> u64 {
        let now = self.now();
        let records = self.records.lock().unwrap();
        let of_counter = records.get(&identity(counter)).into_iter().flat_map(HashMap::values);
        of_counter.filter(|(_, until)| *until > now).map(|(held, _)| held).sum()
    }

    pub fn status(&self, counter: Counter<'_>, limit: &Limit) -> Status {
        let charge = Charge { counter, limit, ask: Ask::cost(1), role: Role::Must };
        self.memory.decide_single(&charge, Mode::Peek, self.now()).status
    }
}

fn identity(counter: &Counter<'_>) -> u128 {
    let mut bytes = Vec::new();
    for part in counter.key {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    xxh(&bytes) ^ counter.salt
}

fn xxh(bytes: &[u8]) -> u128 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    u128::from(hasher.finish())
}

/// One node's connection to the world.
#[derive(Clone)]
pub struct Remote(pub Arc<World>);

impl Remote {
    /// A call takes a moment, in which others get their turn.
    async fn call(&self) -> Result<Nanos, StoreError> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        if self.0.is_down.load(Ordering::SeqCst) {
            return Err(Failure::Connection.into());
        }
        Ok(self.0.now())
    }
}

impl Store for Remote {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        _: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        let now = self.call().await?;
        self.0.memory.decide(requests, now, outcomes).await
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], _: Nanos) -> Result<(), StoreError> {
        let now = self.call().await?;
        self.0.memory.give_back(returns, now).await
    }

    async fn reset(&self, counters: &[Counter<'_>], _: Nanos) -> Result<(), StoreError> {
        let now = self.call().await?;
        self.0.memory.reset(counters, now).await
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        _: Nanos,
    ) -> Result<bool, StoreError> {
        let now = self.call().await?;
        self.0.memory.renew(counter, limit, slot, now).await
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        _: Nanos,
    ) -> Result<bool, StoreError> {
        let now = self.call().await?;
        self.0.memory.release(counter, slot, now).await
    }

    async fn settle(&self, settlement: &Settlement<'_>, _: Nanos) -> Result<Applied, StoreError> {
        let now = self.call().await?;
        self.0.memory.settle(settlement, now).await
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        _: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        let now = self.call().await?;
        self.0.memory.record(id, ask, now).await
    }
}

impl SharedStore for Remote {
    async fn lease(&self, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, StoreError> {
        let now = self.call().await?;
        let mut records = self.0.records.lock().unwrap();
        let record = records.entry(identity(&ask.counter)).or_default();
        if ask.returned > 0 {
            let receipt = match ask.receipt {
                Receipt::Window { end, .. } => Receipt::Window { end, cost: ask.returned },
                Receipt::Log { at, .. } => Receipt::Log { at, cost: ask.returned },
                Receipt::Bucket { nominal_end, .. } => {
                    Receipt::Bucket { nominal_end, cost: ask.returned }
                }
                other => other,
            };
            let give_back = GiveBack { counter: ask.counter, limit: ask.limit, receipt };
            self.0.memory.give_back_now(&give_back, now);
        }
        let others: u64 = record
            .iter()
            .filter(|(node, (_, until))| *node != ask.node && *until > now)
            .map(|(_, (held, _))| held)
            .sum();
        let charge = |cost, mode| {
            let (counter, limit) = (ask.counter, ask.limit);
            let charge = Charge { counter, limit, ask: Ask::cost(cost), role: Role::Must };
            self.0.memory.decide_single(&charge, mode, now)
        };
        let mut amount = ask.want.max(ask.least);
        let outcome = loop {
            let fits = others + ask.held + (amount - ask.least) <= ask.pool;
            if amount <= ask.least || (fits && charge(amount, Mode::Peek).examination.admits()) {
                let mode = if amount == 0 { Mode::Peek } else { Mode::Charge };
                break charge(amount, mode);
            }
            amount = (amount / 2).max(ask.least);
        };
        let granted = if outcome.receipt == Receipt::Nothing { 0 } else { amount };
        let held = ask.held + granted.saturating_sub(ask.least);
        let expires_at = now + ask.ttl;
        if held > 0 {
            record.insert(ask.node.to_owned(), (held, expires_at));
        } else {
            record.remove(ask.node);
        }
        Ok(LeaseGrant { at: now, granted, expires_at, others, outcome })
    }

    async fn announce(&self, node: &str, ttl: Nanos) -> Result<Membership, StoreError> {
        let now = self.call().await?;
        let mut members = self.0.members.lock().unwrap();
        members.retain(|_, until| *until > now);
        if ttl == 0 {
            members.remove(node);
        } else {
            members.insert(node.to_owned(), now + ttl);
        }
        let rank = members.keys().filter(|name| name.as_str() < node).count() as u32;
        Ok(Membership { nodes: members.len().max(1) as u32, rank })
    }

    fn clock(&self, _: Nanos) -> Nanos {
        self.0.now()
    }
}

/// Everything but slots.
pub const COSTS: [Algorithm; 6] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowLog,
    Algorithm::SlidingWindowCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::Gcra,
];

pub fn limit(algorithm: Algorithm, quota: u64, window: Nanos) -> Limit {
    let burst = (algorithm.is_bucket() && quota > 0).then_some(quota);
    let window = Window::Every(window);
    Limit::new(LimitSpec { algorithm, quota, window, burst, slot_ttl: 60 * SECOND }).expect("sound")
}

/// A home that leases so many millionths.
pub fn leased(max_overshoot_ppm: u32) -> Home {
    let consistency = Consistency::Leased { max_overshoot_ppm };
    Home { partition: Some(0), consistency, ..Home::default() }
}

/// A home with this policy.
pub fn failing(on_failure: OnFailure) -> Home {
    Home { partition: Some(0), on_failure, ..Home::default() }
}

/// A counter of a rule; the salt follows from the names.
pub fn counter<'a>(rule_id: &'a str, key: &'a [&'a str], home: Home) -> Counter<'a> {
    let salt = xxh(rule_id.as_bytes()) | 1 << 127;
    Counter { rule_id, tag: "t", salt, key, home }
}

/// Charges one counter, and says whether it passed and with which outcome.
pub async fn charge(
    store: &impl Store,
    counter: Counter<'_>,
    limit: &Limit,
    cost: u64,
    now: Nanos,
) -> Result<tollgate_core::Outcome, StoreError> {
    let charges = [Charge { counter, limit, ask: Ask::cost(cost), role: Role::Must }];
    let mut outcomes = Outcomes::new();
    store.decide(&[Request { charges: &charges, mode: Mode::Charge }], now, &mut outcomes).await?;
    Ok(outcomes[0])
}
