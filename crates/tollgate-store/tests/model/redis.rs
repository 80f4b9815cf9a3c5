//! Redis, a single server and a cluster: exact to the microsecond, on a clock that the history sets.
//!
//! The scripts are the product's; only the expression with which they read the server's clock is replaced.
//! On the cluster every slot has a clock of its own, and these differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Nanos, SECOND};
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_testkit::{Cluster, slot_of};

use crate::driver::{Ground, partition_name, play};
use crate::history::{History, MAX_PARTITIONS, SendOptions};
use crate::redis_support::{VirtualClock, options};
use crate::run::{check, seeds};

/// How many histories each kind of server plays.
const HISTORIES: u64 = 400;
const SHRINK_TRIES: u32 = 600;

pub const GRAIN: Nanos = 1_000;

/// What the scripts of the cluster read instead of the server's clock: the clock of their own slot.
const CLOCK_OF_SLOT: &str = "(function()
  local tag = string.match(KEYS[1], '{(.-)}')
  local shown = redis.call('MGET', 'clock:{' .. tag .. '}:seconds', 'clock:{' .. tag .. '}:micros')
  if shown[1] then return shown end
  return redis.call('TIME')
end)()";

/// By how much the clock of a partition's slot is ahead of the first one's.
const AHEAD: [Nanos; MAX_PARTITIONS as usize] = [0, 1_000, 37 * SECOND, 3 * 3600 * SECOND];

impl Ground for Arc<VirtualClock> {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn now(&self, _: u8) -> Nanos {
        self.get()
    }

    async fn set_now(&self, now: Nanos) {
        self.set(now);
    }

    fn is_idle(&self) -> bool {
        self.store.is_idle()
    }
}

/// A cluster of three masters.
struct ClusterGround {
    store: RedisStore,
    cluster: Cluster,
    /// Which node has each partition.
    masters: Vec<usize>,
    now: AtomicU64,
}

impl ClusterGround {
    fn new() -> Self {
        let cluster = Cluster::start(3, 0);
        let options = RedisOptions { kind: RedisKind::Cluster, ..options(&cluster.urls()) };
        let store = RedisStore::on_clock(&options, CLOCK_OF_SLOT).unwrap();
        let partitions = 0..MAX_PARTITIONS as u8;
        let slots: Vec<u16> = partitions.map(|one| slot_of(&partition_name(one))).collect();
        let masters: Vec<usize> = slots.iter().map(|slot| cluster.master_of(*slot)).collect();
        assert!(masters.iter().any(|master| *master != masters[0]), "several masters have a part");
        Self { store, cluster, masters, now: AtomicU64::new(0) }
    }
}

impl Ground for ClusterGround {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn now(&self, partition: u8) -> Nanos {
        self.now.load(Ordering::Relaxed) + AHEAD[usize::from(partition)]
    }

    fn is_idle(&self) -> bool {
        self.store.is_idle()
    }

    async fn set_now(&self, now: Nanos) {
        self.now.store(now, Ordering::Relaxed);
        for (partition, master) in (0..).zip(&self.masters) {
            let name = partition_name(partition);
            let now = self.now(partition);
            let (seconds, micros) = (now / SECOND, now % SECOND / 1_000);
            let words = [
                "MSET",
                &format!("clock:{{{name}}}:seconds"),
                &seconds.to_string(),
                &format!("clock:{{{name}}}:micros"),
                &micros.to_string(),
            ];
            self.cluster.nodes()[*master].call(&words).unwrap().ok().unwrap();
        }
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn redis() {
    let runtime = runtime();
    let ground = VirtualClock::new();
    let manner =
        SendOptions { grain: GRAIN, has_records: true, reuses_slots: true, gives_up: true };
    let mut plays = 0;
    check(
        seeds(HISTORIES),
        |seed| History::new(seed, manner),
        SHRINK_TRIES,
        |history| {
            plays += 1;
            runtime.block_on(play(&ground, history, &format!("h{plays}")))
        },
    );
}

#[test]
fn redis_cluster() {
    let runtime = runtime();
    let ground = ClusterGround::new();
    // The record of a reservation is in a slot of its own, whose clock nobody sets. A request over several slots
    // that is refused gives back the slot it named, also one that was held before.
    let manner =
        SendOptions { grain: GRAIN, has_records: false, reuses_slots: false, gives_up: false };
    let mut plays = 0;
    check(
        seeds(HISTORIES),
        |seed| History::new(seed, manner),
        SHRINK_TRIES,
        |history| {
            plays += 1;
            runtime.block_on(play(&ground, history, &format!("h{plays}")))
        },
    );
}
