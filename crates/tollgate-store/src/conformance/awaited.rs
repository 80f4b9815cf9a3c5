//! A store that is really awaited, for tests of what takes any store.

use tollgate_core::{Limit, Nanos, Slot, SlotId};

use crate::{
    Adjusted, Counter, Decided, GiveBack, MemoryStore, Outcomes, RecordAnswer, RecordAsk, Request,
    Settlement, Store, StoreError,
};

/// The memory store as a third party might wrap it: no call is answered when it is first polled.
pub struct Awaited {
    store: MemoryStore,
    is_in_process: bool,
}

impl Awaited {
    /// A store that says so of its counters: in this process, or not.
    pub fn new(is_in_process: bool) -> Self {
        Self { store: MemoryStore::new(10_000), is_in_process }
    }
}

impl Store for Awaited {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        tokio::task::yield_now().await;
        self.store.decide(requests, now, outcomes).await
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        self.store.give_back(returns, now).await
    }

    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        self.store.reset(counters, now).await
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        self.store.renew(counter, limit, slot, now).await
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        tokio::task::yield_now().await;
        self.store.release(counter, slot, now).await
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        tokio::task::yield_now().await;
        self.store.slots(counter, now).await
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        tokio::task::yield_now().await;
        self.store.settle(settlement, now).await
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        tokio::task::yield_now().await;
        self.store.record(id, ask, now).await
    }

    fn is_in_process(&self) -> bool {
        self.is_in_process
    }
}
