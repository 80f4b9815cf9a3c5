//! A store that nodes share, in memory and on a virtual clock: the simplest implementation of
//! [`SharedStore`], so that every interleaving can be tried. The real one has tests of its own.

#![allow(dead_code, unreachable_pub, reason = "every test uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use tollgate_core::{
    Algorithm, Ask, Limit, LimitSpec, Nanos, Receipt, SECOND, Slot, SlotId, Status, Window,
};
use tollgate_store::{
    Adjusted, Adjustment, Announcement, Change, Charge, Consistency, Counter, Decided, Failure,
    GiveBack, Home, LeaseAsk, LeaseGrant, Membership, MemoryStore, Mode, OnFailure, Outcomes,
    RecordAnswer, RecordAsk, Request, Role, Roll, RollEntry, Settlement, SharedStore, Store,
    StoreError,
};

/// Not on the edge of any window.
pub const START: Nanos = 1_789_000_000 * SECOND + 123_456_000;

/// How much every node holds of a counter, and until when.
type Holdings = HashMap<String, (u64, Nanos)>;

/// A node that announced itself.
#[derive(Default)]
struct Member {
    alive_until: Nanos,
    reported_at: Nanos,
}

/// What is behind all nodes.
pub struct World {
    pub memory: MemoryStore,
    pub now: AtomicU64,
    /// The store does not answer.
    pub is_down: AtomicBool,
    /// The store does what it is asked, and its answers are lost.
    pub loses_answers: AtomicBool,
    records: Mutex<HashMap<u128, Holdings>>,
    members: Mutex<HashMap<String, Member>>,
    pub calls: AtomicU64,
    /// How long a call takes in each direction, on the virtual clock.
    pub one_way: AtomicU64,
    /// How long a request waits for the store; 0: for ever.
    pub request_timeout: AtomicU64,
    /// Who sleeps until when; the number keeps those of one instant in order.
    sleepers: Mutex<BTreeMap<(Nanos, u64), oneshot::Sender<()>>>,
    sleeps: AtomicU64,
}

impl World {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::new(100_000),
            now: AtomicU64::new(START),
            is_down: AtomicBool::new(false),
            loses_answers: AtomicBool::new(false),
            records: Mutex::default(),
            members: Mutex::default(),
            calls: AtomicU64::new(0),
            one_way: AtomicU64::new(0),
            request_timeout: AtomicU64::new(0),
            sleepers: Mutex::default(),
            sleeps: AtomicU64::new(0),
        })
    }

    /// The same, with a store that is this far from every node.
    pub fn far(round_trip: Nanos) -> Arc<Self> {
        let world = Self::new();
        world.one_way.store(round_trip / 2, Ordering::SeqCst);
        world
    }

    /// Sleeps on the virtual clock. Somebody must drive it: [`World::run_until`].
    pub async fn sleep_until(&self, at: Nanos) {
        if at <= self.now() {
            return;
        }
        let (wake, woken) = oneshot::channel();
        let number = self.sleeps.fetch_add(1, Ordering::SeqCst);
        self.sleepers.lock().unwrap().insert((at, number), wake);
        let _ = woken.await;
    }

    /// Lets time pass, from sleeper to sleeper, and calls `check` after each instant at which
    /// something happened.
    pub async fn run_until(&self, end: Nanos, mut check: impl FnMut()) {
        loop {
            // Tasks that were woken run until they sleep again.
            for _ in 0..24 {
                tokio::task::yield_now().await;
            }
            check();
            let mut woken = Vec::new();
            {
                let mut sleepers = self.sleepers.lock().unwrap();
                let Some(next) = sleepers.keys().next().map(|(at, _)| *at) else { break };
                if next > end {
                    break;
                }
                self.now.fetch_max(next, Ordering::SeqCst);
                while let Some(first) = sleepers.first_entry().filter(|e| e.key().0 <= next) {
                    woken.push(first.remove());
                }
            }
            for wake in woken {
                let _ = wake.send(());
            }
        }
        self.now.fetch_max(end, Ordering::SeqCst);
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
        self.travel().await;
        if self.0.is_down.load(Ordering::SeqCst) {
            return Err(Failure::Connection.into());
        }
        Ok(self.0.now())
    }
}

impl Remote {
    /// The way back of an answer.
    async fn answer<T>(&self, answer: T) -> Result<T, StoreError> {
        self.travel().await;
        if self.0.loses_answers.load(Ordering::SeqCst) {
            return Err(Failure::Timeout.into());
        }
        Ok(answer)
    }

    /// One way to the store or back.
    async fn travel(&self) {
        let one_way = self.0.one_way.load(Ordering::SeqCst);
        if one_way > 0 {
            self.0.sleep_until(self.0.now() + one_way).await;
        }
    }

    fn grant(&self, ask: &LeaseAsk<'_>, now: Nanos) -> LeaseGrant {
        let mut records = self.0.records.lock().unwrap();
        let record = records.entry(identity(&ask.counter)).or_default();
        if ask.returned > 0 {
            let change = Change::GiveBack(ask.receipt.part(ask.returned));
            let (counter, limit, closes) = (ask.counter, ask.limit, Receipt::Nothing);
            let adjustments = [Adjustment { counter, limit, change, closes }];
            let (id, remember, is_here) = (ask.return_id, ask.remember, false);
            let settlement = Settlement { id, remember, is_here, adjustments: &adjustments };
            self.0.memory.settle_now(&settlement, now);
        }
        for receipt in ask.closes {
            let closed = GiveBack { counter: ask.counter, limit: ask.limit, receipt: *receipt };
            self.0.memory.close_now(&closed, now);
        }
        let others: u64 = record
            .iter()
            .filter(|(node, (_, until))| *node != ask.node && *until > now)
            .map(|(_, (held, _))| held)
            .sum();
        let charge = |cost, mode| {
            let (counter, limit) = (ask.counter, ask.limit);
            let ask = Ask::cost(cost).on_lease();
            let charge = Charge { counter, limit, ask, role: Role::Must };
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
        LeaseGrant { at: now, granted, expires_at, others, outcome }
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
        let decided = self.0.memory.decide(requests, now, outcomes).await;
        self.travel().await;
        decided
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], _: Nanos) -> Result<(), StoreError> {
        let now = self.call().await?;
        let given_back = self.0.memory.give_back(returns, now).await;
        self.travel().await;
        given_back
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

    async fn slots(&self, counter: &Counter<'_>, _: Nanos) -> Result<Vec<Slot>, StoreError> {
        let now = self.call().await?;
        self.0.memory.slots(counter, now).await
    }

    async fn settle(&self, settlement: &Settlement<'_>, _: Nanos) -> Result<Adjusted, StoreError> {
        let now = self.call().await?;
        let settled = self.0.memory.settle(settlement, now).await?;
        self.answer(settled).await
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
        let grant = self.grant(ask, now);
        self.answer(grant).await
    }

    async fn announce(&self, announcement: &Announcement<'_>) -> Result<Roll, StoreError> {
        let now = self.call().await?;
        let Announcement { node, ttl, has_reported } = *announcement;
        let mut members = self.0.members.lock().unwrap();
        let member = members.entry(node.to_owned()).or_default();
        member.alive_until = if ttl == 0 { 0 } else { now + ttl };
        if has_reported {
            member.reported_at = now;
        }
        let is_alive = |member: &Member| member.alive_until > now;
        let alive: Vec<&str> =
            members.iter().filter(|(_, it)| is_alive(it)).map(|(name, _)| name.as_str()).collect();
        let rank = alive.iter().filter(|name| **name < node).count() as u32;
        let entry = |(name, member): (&String, &Member)| RollEntry {
            name: name.clone(),
            is_alive: is_alive(member),
            reported_at: member.reported_at,
        };
        let membership = Membership { nodes: alive.len().max(1) as u32, rank };
        let nodes = members.iter().map(entry).collect();
        Ok(Roll { at: now, membership, nodes, is_cut_short: false })
    }

    fn clock(&self, _: Nanos) -> Nanos {
        self.0.now()
    }

    async fn request_timeout(&self) {
        match self.0.request_timeout.load(Ordering::SeqCst) {
            0 => std::future::pending().await,
            timeout => self.0.sleep_until(self.0.now() + timeout).await,
        }
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
    let ask = Ask::cost(cost).refundable();
    let charges = [Charge { counter, limit, ask, role: Role::Must }];
    let mut outcomes = Outcomes::new();
    store.decide(&[Request { charges: &charges, mode: Mode::Charge }], now, &mut outcomes).await?;
    Ok(outcomes[0])
}
