//! What the tests against real servers share.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tollgate_core::{Algorithm, Ask, Limit, LimitSpec, Nanos, Outcome, SECOND, SlotId, Window};
use tollgate_store::conformance::Harness;
use tollgate_store::redis::{RedisOptions, RedisStore};
use tollgate_store::{Charge, Counter, Failure, Home, Mode, Outcomes, Request, Role, Store};
use tollgate_testkit::Redis;

/// Options for these addresses, patient enough for a machine that does other things as well.
pub fn options(urls: &[String]) -> RedisOptions {
    let timeout = Duration::from_secs(5);
    RedisOptions { urls: urls.to_vec(), timeout, ..RedisOptions::default() }
}

/// A store by the clock of its server, which is this machine's.
pub struct RealClock {
    pub store: RedisStore,
}

impl RealClock {
    pub async fn new(options: RedisOptions) -> Arc<Self> {
        let store = RedisStore::connect(options).await.unwrap();
        store.ping().await.unwrap();
        Arc::new(Self { store })
    }
}

/// This machine's clock.
#[expect(clippy::disallowed_methods, reason = "the servers under test go by it")]
pub fn now() -> Nanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}

impl Harness for RealClock {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    async fn now(&self) -> Nanos {
        now()
    }

    async fn advance(&self, by: Nanos) {
        let goal = now() + by;
        while now() < goal {
            tokio::time::sleep(Duration::from_nanos(goal.saturating_sub(now()))).await;
        }
    }
}

/// What the scripts read instead of the server's clock.
pub const CLOCK: &str = "redis.call('MGET', 'clock:seconds', 'clock:micros')";

/// A store on a clock that stands still until it is set.
pub struct VirtualClock {
    pub store: RedisStore,
    server: Redis,
    now: AtomicU64,
}

impl VirtualClock {
    pub fn new() -> Arc<Self> {
        let server = Redis::start();
        let store = RedisStore::on_clock(&options(&[server.url()]), CLOCK).unwrap();
        let clock = Self { store, server, now: AtomicU64::new(0) };
        // Not on the edge of any window.
        clock.set(1_789_000_000 * SECOND + 123_456_000);
        Arc::new(clock)
    }

    pub fn get(&self) -> Nanos {
        self.now.load(Ordering::Relaxed)
    }

    pub fn set(&self, now: Nanos) {
        self.now.store(now, Ordering::Relaxed);
        let (seconds, micros) = (now / SECOND, now % SECOND / 1_000);
        let words = ["clock:seconds", &seconds.to_string(), "clock:micros", &micros.to_string()];
        self.server.call(&[&["MSET"], &words[..]].concat()).unwrap().ok().unwrap();
    }

    pub fn server(&self) -> &Redis {
        &self.server
    }
}

impl Harness for VirtualClock {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    async fn now(&self) -> Nanos {
        self.get()
    }

    async fn advance(&self, by: Nanos) {
        if by > 0 {
            // The grain of the clock.
            self.set((self.get() + by).next_multiple_of(1_000));
        }
    }
}

/// One counter of a quota in a long window, to see what is charged.
pub struct Probe {
    pub name: &'static str,
    pub limit: Limit,
}

impl Probe {
    pub fn new(name: &'static str, quota: u64) -> Self {
        Self::of(name, Algorithm::FixedWindow, quota)
    }

    pub fn of(name: &'static str, algorithm: Algorithm, quota: u64) -> Self {
        let month = 30 * 24 * 3600 * SECOND;
        let window = Window::Every(month);
        let burst = algorithm.is_bucket().then_some(quota);
        let spec = LimitSpec { algorithm, quota, window, burst, slot_ttl: month };
        Self { name, limit: Limit::new(spec).unwrap() }
    }

    pub fn counter<'a>(&'a self, key: &'a [&'a str]) -> Counter<'a> {
        let home = Home { partition: Some(0), ..Home::default() };
        Counter { rule_id: self.name, tag: "t", salt: 0, key, home }
    }

    pub fn charge<'a>(&'a self, key: &'a [&'a str], ask: Ask, role: Role) -> Charge<'a> {
        Charge { counter: self.counter(key), limit: &self.limit, ask, role }
    }

    pub async fn decide(&self, store: &RedisStore, mode: Mode) -> Result<Outcome, Failure> {
        let ask = Ask::slot(SlotId(1)).refundable();
        let charges = [self.charge(&["k"], ask, Role::Must)];
        let request = Request { charges: &charges, mode };
        let mut outcomes = Outcomes::new();
        let decided = store.decide(&[request], now(), &mut outcomes).await;
        decided.map(|_| outcomes[0]).map_err(|error| error.failure)
    }

    pub async fn pay(&self, store: &RedisStore) -> Result<Outcome, Failure> {
        self.decide(store, Mode::Charge).await
    }

    pub async fn used(&self, store: &RedisStore) -> u64 {
        self.decide(store, Mode::Peek).await.unwrap().status.used
    }
}

/// Tries until the store answers again.
pub async fn until_it_answers(store: &RedisStore) {
    for _ in 0..3_000 {
        if Probe::new("heals", 1).decide(store, Mode::Peek).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store does not recover");
}
