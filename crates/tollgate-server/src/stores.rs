//! The stores of this process, and who looks after them.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tollgate_core::Nanos;
use tollgate_engine::{Clock, Engine, SharedClock, SystemClock};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::placed::Placed;
use tollgate_store::redis::{RedisOptionsError, RedisStore};
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{Membership, MemoryStore, SharedStore};

use crate::config::Config;

/// A Redis, its leases, and what decides when it does not.
pub(crate) type Shared = Resilient<Leased<RedisStore>>;

/// This node's memory and every shared store.
pub(crate) type Stores = Placed<Shared>;

/// How often unspent quota is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// How often what was admitted without the store is tried to be reported to it.
const HEAL_INTERVAL: Duration = Duration::from_millis(250);

/// How often the files of passwords are looked at.
const PASSWORD_INTERVAL: Duration = Duration::from_secs(1);

/// How often a node says that it is alive.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// How long a node waits at its start for a word from its stores, and at its end for the last ones.
const PATIENCE: Duration = Duration::from_millis(500);

/// How many round trips the last calls take: fetches that are under way, what is returned, reports, and the
/// goodbye; and half as many again.
const FAREWELL_ROUND_TRIPS: u32 = 6;

/// What API keys are hashed with where no secret is configured: it hides them from those who look at
/// keys, not from those who can guess them.
const KNOWN_SECRET: &[u8] = b"tollgate: no api_key_secret_file is configured";

/// The stores that the configuration asks for.
pub(crate) fn build(
    config: &Config,
    memory: MemoryStore,
    node: &str,
) -> Result<Stores, RedisOptionsError> {
    let secret = api_key_secret(config);
    let mut shared = Vec::new();
    for store in config.shared_stores() {
        let redis = RedisStore::new(&store.options(&secret))?;
        let mut leases = LeaseOptions::new(node.to_owned());
        leases.ttl = nanos(store.lease_ttl);
        let mut resilience = ResilientOptions::new(node.to_owned());
        // Which of them this one is, is not known either: it takes the least share.
        let nodes = store.assumed_nodes;
        resilience.assumed = Membership { nodes, rank: nodes.saturating_sub(1) };
        shared.push(Resilient::new(Leased::new(redis, leases), resilience));
    }
    let names = config.shared_stores().map(|store| store.name.clone()).collect();
    Ok(Placed::new(memory, shared, names))
}

/// What API keys are hashed with.
pub(crate) fn api_key_secret(config: &Config) -> Arc<[u8]> {
    let given = config.api_key_secret.text.as_ref().map(String::as_bytes);
    given.unwrap_or(KNOWN_SECRET).into()
}

/// A name that no other node has.
pub(crate) fn node_name() -> String {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_err() {
        bytes = (u64::from(std::process::id()) << 32).to_le_bytes();
    }
    format!("{:016x}", u64::from_le_bytes(bytes))
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

/// The thread that keeps this node known to others, returns its leases, and reports to its stores what
/// was admitted without them.
pub(crate) struct StoreKeeper {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl StoreKeeper {
    /// Starts it, and waits a moment for a first word from the stores: so that a node that begins to
    /// serve knows their clock and how many it is one of.
    pub(crate) fn start(
        engine: Arc<Engine<Stores>>,
        system: Arc<SystemClock>,
        shared: Arc<SharedClock>,
        config: Arc<Config>,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let (first, heard) = std::sync::mpsc::channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let thread =
            std::thread::Builder::new().name("store-keeper".to_owned()).spawn(move || {
                let keeper = Keeper { engine, system, shared };
                runtime.block_on(async {
                    tokio::spawn(read_passwords(config));
                    keeper.heartbeat().await;
                    let _ = first.send(());
                    keeper.keep(stopped).await;
                });
                // A password file that cannot be read to its end keeps nobody.
                runtime.shutdown_background();
            })?;
        // Without a word the node serves by its fallback, and goes on trying.
        let _ = heard.recv_timeout(PATIENCE);
        Ok(Self { stop, thread })
    }

    /// Returns what is on lease, reports what is to be reported, and says goodbye.
    pub(crate) fn stop(self) {
        let _ = self.stop.send(true);
        if self.thread.join().is_err() {
            tracing::error!("the store keeper had panicked");
        }
    }
}

/// Reads the files of passwords again and again: a changed one needs no restart.
async fn read_passwords(config: Arc<Config>) {
    if !config.shared_stores().any(|store| store.password.file.is_some()) {
        return;
    }
    let mut problem: Option<String> = None;
    loop {
        tokio::time::sleep(PASSWORD_INTERVAL).await;
        let read = Arc::clone(&config);
        let done = tokio::task::spawn_blocking(move || {
            read.shared_stores().try_for_each(|store| {
                if store.read_password_again().map_err(|error| (store.name.clone(), error))? {
                    tracing::info!(store = store.name, "the password of Redis was read again");
                }
                Ok::<_, (String, std::io::Error)>(())
            })
        });
        let found = match done.await {
            Ok(Err((store, error))) => Some(format!("store {store}: {error}")),
            _ => None,
        };
        // What is wrong is said when it begins.
        if let Some(problem) = found.as_ref().filter(|_| problem != found) {
            tracing::warn!(problem, "the password of Redis cannot be read; the old one stays");
        }
        problem = found;
    }
}

struct Keeper {
    engine: Arc<Engine<Stores>>,
    system: Arc<SystemClock>,
    shared: Arc<SharedClock>,
}

impl Keeper {
    async fn keep(&self, mut stopped: watch::Receiver<bool>) {
        let [mut sweep, mut heal, mut beat] = [SWEEP_INTERVAL, HEAL_INTERVAL, HEARTBEAT_INTERVAL]
            .map(|every| {
                let mut interval = tokio::time::interval(every);
                interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
                interval
            });
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => break,
                _ = beat.tick() => self.heartbeat().await,
                _ = heal.tick() => self.heal().await,
                _ = sweep.tick() => self.sweep().await,
            }
        }
        let farewell = async {
            for store in self.engine.store().shared() {
                let now = self.system.now();
                store.leases().return_all(now).await;
                store.heal(now).await;
                // Without a word the others notice a few seconds later.
                let _ = store.goodbye().await;
            }
        };
        let shared = self.engine.store().shared();
        let round_trip = shared.iter().map(|store| store.leases().round_trip()).max().unwrap_or(0);
        let patience = PATIENCE.max(Duration::from_nanos(round_trip) * FAREWELL_ROUND_TRIPS);
        if tokio::time::timeout(patience, farewell).await.is_err() {
            tracing::warn!("a store did not answer at the end; what this node held there expires");
        }
    }

    async fn heartbeat(&self) {
        for store in self.engine.store().shared() {
            // What fails is logged where it fails.
            let _ = store.heartbeat(self.engine.clock().now()).await;
        }
        // Nodes agree by the clock of the store that rules without a name count in.
        if let Some(store) = self.engine.store().shared().first() {
            let now = self.system.now();
            self.shared.follow(now, store.remote().clock(now));
        }
    }

    async fn heal(&self) {
        for store in self.engine.store().shared() {
            store.heal(self.engine.clock().now()).await;
        }
    }

    async fn sweep(&self) {
        for store in self.engine.store().shared() {
            store.leases().sweep(self.engine.clock().now()).await;
        }
    }
}
