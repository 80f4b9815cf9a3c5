//! Counters that many processes share in Redis.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Limit, Nanos, Slot, SlotId};
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_store::{
    Adjusted, Claim, Counter, Decided, GiveBack, Home, MemoryStore, Outcomes, RecordAnswer,
    RecordAsk, Request, RequestClaim, Settlement, Store, StoreError, SyncStore,
};

use super::Opened;
use crate::Error;

/// What API keys are hashed with unless [`Redis::api_key_secret`] states another: the same as in the service, so that both
/// count on the same counters.
const KNOWN_SECRET: &[u8] = b"tollgate: no api_key_secret_file is configured";

/// Counters that many processes share, in Redis 6.2 or later. Needs a tokio runtime.
///
/// Every decision is one atomic script on the shared counters, dated by the server's clock. A Redis that does not answer in
/// time makes the check an [`Error::Store`](crate::Error::Store), and the program decides what then. `consistency` and
/// `on_store_failure` of rule files are for the service, and do not change this.
///
/// ```no_run
/// use tollgate::{Client, Gate, Quota, Redis, Rule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let gate = Gate::builder()
///     .rule(Rule::per("user_id").quota(Quota::per_minute(60)))
///     .store(Redis::url("redis://127.0.0.1"))
///     .build()?;
/// let verdict = gate.check(&Client::user("ann")).await?;
/// # let _ = verdict;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redis {
    options: RedisOptions,
}

impl Redis {
    /// A server: `redis://`, `rediss://` (TLS) or `unix://`. A user and a password may be part of the address.
    ///
    /// ```
    /// # use tollgate::Redis;
    /// let redis = Redis::url("redis://127.0.0.1:6379");
    /// # let _ = redis;
    /// ```
    pub fn url(url: impl Into<String>) -> Self {
        Self::with(RedisKind::Single, vec![url.into()])
    }

    /// A cluster, by some of its nodes.
    ///
    /// ```
    /// # use tollgate::Redis;
    /// let redis = Redis::cluster(["redis://10.0.0.1", "redis://10.0.0.2"]);
    /// # let _ = redis;
    /// ```
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::with(RedisKind::Cluster, urls.into_iter().map(Into::into).collect())
    }

    /// Servers under Sentinel, by the addresses of some sentinels and the name that they give the master.
    ///
    /// ```
    /// # use tollgate::Redis;
    /// let redis = Redis::sentinel(["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"], "mymaster");
    /// # let _ = redis;
    /// ```
    pub fn sentinel(
        urls: impl IntoIterator<Item = impl Into<String>>,
        master_name: impl Into<String>,
    ) -> Self {
        let kind = RedisKind::Sentinel { master_name: master_name.into() };
        Self::with(kind, urls.into_iter().map(Into::into).collect())
    }

    /// How long an attempt may take; 20 ms if not stated. A decision takes at most twice as long and 10 ms more.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::Redis;
    /// let redis = Redis::url("redis://127.0.0.1").timeout(Duration::from_millis(50));
    /// # let _ = redis;
    /// ```
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// What all keys start with; `tg` if not stated.
    ///
    /// ```
    /// # use tollgate::Redis;
    /// let redis = Redis::url("redis://127.0.0.1").prefix("billing");
    /// # let _ = redis;
    /// ```
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// Keys the hash that API keys are kept as. Processes that share counters share it.
    ///
    /// ```
    /// # use tollgate::Redis;
    /// let redis = Redis::url("redis://127.0.0.1").api_key_secret(b"from a secret store");
    /// # let _ = redis;
    /// ```
    #[must_use]
    pub fn api_key_secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.options.api_key_secret = secret.as_ref().to_vec();
        self
    }

    fn with(kind: RedisKind, urls: Vec<String>) -> Self {
        let api_key_secret = KNOWN_SECRET.to_vec();
        Self { options: RedisOptions { urls, kind, api_key_secret, ..RedisOptions::default() } }
    }

    pub(crate) fn open(self) -> Result<GateStore, Error> {
        let opened = RedisStore::new(&self.options);
        let store = opened.map_err(|error| Error::Store(error.to_string()))?;
        Ok(GateStore::Redis(store))
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Redis").field(&self.options).finish()
    }
}

/// One of the stores that a gate may have.
#[expect(clippy::large_enum_variant, reason = "there is one for each gate")]
pub(crate) enum GateStore {
    Memory(MemoryStore),
    Redis(RedisStore),
}

impl Opened for GateStore {
    fn memory(max_counters: usize) -> Self {
        Self::Memory(MemoryStore::new(max_counters))
    }

    fn tidy_round(&self, round: usize, now: Nanos) {
        match self {
            Self::Memory(store) => store.tidy_round(round, now),
            // Its keys expire by themselves.
            Self::Redis(_) => {}
        }
    }
}

/// Passes a call on.
macro_rules! on {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Memory($store) => $call,
            Self::Redis($store) => $call,
        }
    };
}

impl Store for GateStore {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        on!(self, store => store.decide(requests, now, outcomes).await)
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        on!(self, store => store.give_back(returns, now).await)
    }

    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        on!(self, store => store.reset(counters, now).await)
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        on!(self, store => store.renew(counter, limit, slot, now).await)
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        on!(self, store => store.release(counter, slot, now).await)
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        on!(self, store => store.slots(counter, now).await)
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        on!(self, store => store.settle(settlement, now).await)
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        on!(self, store => store.record(id, ask, now).await)
    }

    fn conceal(&self, home: &Home, secret: &str) -> Option<String> {
        on!(self, store => store.conceal(home, secret))
    }

    fn is_in_process(&self) -> bool {
        on!(self, store => store.is_in_process())
    }

    fn as_sync(&self) -> Option<&dyn SyncStore> {
        on!(self, store => store.as_sync())
    }

    async fn claim(&self, claim: &RequestClaim) -> Result<Claim, StoreError> {
        on!(self, store => store.claim(claim).await)
    }

    async fn publish(&self, claim: &RequestClaim, answer: Option<&[u8]>) -> Result<(), StoreError> {
        on!(self, store => store.publish(claim, answer).await)
    }
}
