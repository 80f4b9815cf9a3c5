//! What the tests against real servers share.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tollgate_core::Nanos;
use tollgate_store::conformance::Harness;
use tollgate_store::redis::{RedisOptions, RedisStore};

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
