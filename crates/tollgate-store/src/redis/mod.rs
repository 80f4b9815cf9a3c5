//! Counters in Redis: single server, Sentinel or Cluster.
//!
//! State changes only inside scripts on the server, by the server's clock. A script reads counters,
//! examines and charges; the figures that callers see are worked out here from the state before
//! (`figures.rs`), so that they are the core's own. Decisions that wait at the same time go as one call
//! (`lane.rs`); a call that must be repeated is not charged twice, and one that the server comes to too
//! late is not charged at all (`hub.rs`, `scripts/common.lua`).

mod board;
mod breaker;
mod call;
mod clock;
mod cluster;
mod connect;
mod credentials;
mod decide;
mod delivery;
mod encode;
mod figures;
mod health;
mod hub;
mod key;
mod lease;
mod metrics;
mod msgpack;
mod node;
mod node_connection;
mod operations;
mod options;
mod script;
mod sentinel;
mod settle;
mod several;
mod slot_connection;
mod trouble;
mod turns;
mod undo;

use std::sync::Arc;

use tollgate_core::{Limit, Nanos, Slot, SlotId};

use crate::{
    Adjusted, Announcement, Claim, Counter, Decided, Failure, GiveBack, Home, LeaseAsk, LeaseGrant,
    Outcomes, RecordAnswer, RecordAsk, Request, RequestClaim, Roll, Settlement, SharedStore, Store,
    StoreError, report_broken,
};
use cluster::Cluster;
use connect::Endpoint;
use hub::{Hub, Topology};
use key::KeyEncoder;
use node::Node;
use script::Scripts;
use sentinel::Sentinels;

pub use board::{
    Board, BoardListener, BoardSet, MAX_FIGURE_NODES, MAX_FIGURES, MAX_NODE_STATE, Published,
};
#[doc(hidden)]
pub use breaker::Breaker;
pub use breaker::BreakerState;
#[doc(hidden)]
pub use clock::Estimate;
pub use credentials::Password;
pub use metrics::{BATCH_BOUNDS, Histogram, LATENCY_BOUNDS, Operation, RedisMetrics};
pub use options::{RedisKind, RedisOptions, RedisOptionsError};
pub use slot_connection::{Repeat, SlotConnection, SlotScript};

/// Counters in Redis, which any number of nodes share.
#[derive(Clone)]
pub struct RedisStore {
    hub: Arc<Hub>,
}

impl RedisStore {
    /// A store as the options say. A Redis that is away is no error: the log says so, and the store works
    /// as soon as it is back.
    pub async fn connect(options: RedisOptions) -> Result<Self, RedisOptionsError> {
        let store = Self::new(&options)?;
        // Whatever is wrong is in the log by now.
        let _ = store.ping().await;
        Ok(store)
    }

    /// The same without a first look at the server, and without a runtime.
    pub fn new(options: &RedisOptions) -> Result<Self, RedisOptionsError> {
        Self::on_clock(options, script::CLOCK)
    }

    /// Whether nothing is under way in the background, undoing included: for tests that must see the end of it.
    /// Everything that is holds the hub; so do clones of the store, which such a test does not make.
    #[doc(hidden)]
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.hub) == 1
    }

    /// The same on a clock that the Lua expression `clock` reads, as seconds and microseconds: for tests
    /// that must hit an instant.
    #[doc(hidden)]
    pub fn on_clock(options: &RedisOptions, clock: &str) -> Result<Self, RedisOptionsError> {
        options.check()?;
        let metrics = Arc::new(RedisMetrics::default());
        let seeds = options.seeds()?;
        let topology = match &options.kind {
            RedisKind::Cluster => {
                let cluster = Cluster::new(seeds, options, Arc::clone(&metrics));
                Topology::Cluster(Arc::new(cluster.ok_or(RedisOptionsError::NoUrl)?))
            }
            RedisKind::Single => {
                let seed = seeds.into_iter().next().ok_or(RedisOptionsError::NoUrl)?;
                let (info, credentials) = (Box::new(seed), options.credentials());
                let endpoint = Endpoint::Fixed { info, expects_cluster: false, credentials };
                Topology::One(Arc::new(Node::new(endpoint, Arc::clone(&metrics))))
            }
            RedisKind::Sentinel { master_name } => {
                let sentinels = Sentinels::new(seeds, master_name, options);
                let endpoint = Endpoint::Sentinel(Arc::new(sentinels));
                Topology::One(Arc::new(Node::new(endpoint, Arc::clone(&metrics))))
            }
        };
        let speller = KeyEncoder::new(&options.prefix, &options.api_key_secret);
        let scripts = Scripts::on(clock);
        Ok(Self { hub: Arc::new(Hub::new(topology, speller, scripts, metrics, options.timeout)) })
    }

    /// Whether Redis answers, every node of it.
    pub async fn ping(&self) -> Result<(), StoreError> {
        Ok(self.hub.ping().await?)
    }

    /// What happened between this process and Redis.
    pub fn metrics(&self) -> &Arc<RedisMetrics> {
        &self.hub.metrics
    }
}

impl Store for RedisStore {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        Ok(self.hub.decide(requests, now, outcomes).await?)
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], _now: Nanos) -> Result<(), StoreError> {
        Ok(self.hub.give_back(returns).await?)
    }

    async fn reset(&self, counters: &[Counter<'_>], _now: Nanos) -> Result<(), StoreError> {
        Ok(self.hub.reset(counters).await?)
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        _now: Nanos,
    ) -> Result<bool, StoreError> {
        if !limit.fits_micros() {
            return Err(Failure::Protocol.into());
        }
        Ok(self.hub.slots(counter, slot, limit.slot_ttl()).await?)
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        _now: Nanos,
    ) -> Result<bool, StoreError> {
        Ok(self.hub.slots(counter, slot, 0).await?)
    }

    async fn slots(&self, counter: &Counter<'_>, _now: Nanos) -> Result<Vec<Slot>, StoreError> {
        Ok(self.hub.held_slots(counter).await?)
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        _now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        self.hub.settle_once(settlement).await
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        _now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        if let RecordAsk::Keep { is_here: true, .. } = ask {
            // It may hold API keys, and everybody could read it there.
            report_broken("a record of one process was to be kept in Redis");
            return Err(Failure::Contract.into());
        }
        Ok(self.hub.record(id, ask).await?)
    }

    fn conceal(&self, _home: &Home, secret: &str) -> Option<String> {
        Some(self.hub.speller.conceal(secret))
    }

    async fn claim(&self, claim: &RequestClaim) -> Result<Claim, StoreError> {
        Ok(self.hub.claim(claim).await?)
    }

    async fn publish(&self, claim: &RequestClaim, answer: Option<&[u8]>) -> Result<(), StoreError> {
        Ok(self.hub.publish(claim, answer).await?)
    }
}

impl SharedStore for RedisStore {
    async fn lease(&self, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, StoreError> {
        Ok(self.hub.lease(ask).await?)
    }

    async fn announce(&self, announcement: &Announcement<'_>) -> Result<Roll, StoreError> {
        Ok(self.hub.announce(announcement).await?)
    }

    fn has_parts(&self) -> bool {
        matches!(self.hub.topology, Topology::Cluster(_))
    }

    fn clock(&self, now: Nanos) -> Nanos {
        self.hub.clock().unwrap_or(now)
    }

    async fn request_timeout(&self) {
        tokio::time::sleep(self.hub.request_timeout() + hub::GRACE * 2).await;
    }
}
