//! What the tests against real servers share.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tollgate_core::{Nanos, SECOND};
use tollgate_store::conformance::Harness;
use tollgate_store::redis::{RedisOptions, RedisStore};
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
const CLOCK: &str = "redis.call('MGET', 'clock:seconds', 'clock:micros')";

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
