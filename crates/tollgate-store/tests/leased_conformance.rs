//! Leases with an overshoot of 0 are not noticed: the suite passes as it does on the store behind
//! them, in memory and on a real server. So it does through what answers when that does not.

mod leased_support;
mod redis_support;

use std::sync::Arc;
use std::time::Duration;

use leased_support::{Remote, World};
use redis_support::{now, options};
use tollgate_core::Nanos;
use tollgate_store::conformance::Harness;
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::redis::RedisStore;
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_testkit::Redis;

struct Virtual {
    store: Resilient<Leased<Remote>>,
    world: Arc<World>,
}

impl Harness for Virtual {
    type Store = Resilient<Leased<Remote>>;

    fn store(&self) -> &Self::Store {
        &self.store
    }

    async fn now(&self) -> Nanos {
        self.world.now()
    }

    async fn advance(&self, by: Nanos) {
        self.world.advance(by);
    }
}

async fn make() -> Virtual {
    let world = World::new();
    let leased = Leased::new(Remote(Arc::clone(&world)), LeaseOptions::new("a".to_owned()));
    Virtual { store: Resilient::new(leased, ResilientOptions::new("a".to_owned())), world }
}

mod in_memory {
    use super::make;

    tollgate_store::conformance_tests!(make);
}

struct Real {
    store: Leased<RedisStore>,
}

impl Harness for Real {
    type Store = Leased<RedisStore>;

    fn store(&self) -> &Self::Store {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_a_real_server() {
    let server = Redis::start();
    let redis = RedisStore::connect(options(&[server.url()])).await.expect("sound options");
    redis.ping().await.expect("it answers");
    let store = Leased::new(redis, LeaseOptions::new("a".to_owned()));
    let harness = Arc::new(Real { store });
    tollgate_store::conformance_in_order!(&harness);
}
