//! A shared store that can be cut off: calls fail before they are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_core::{Limit, Nanos, Slot, SlotId};
use tollgate_store::{
    Adjusted, Announcement, Counter, Decided, Failure, GiveBack, LeaseAsk, LeaseGrant, Outcomes,
    RecordAnswer, RecordAsk, Request, Roll, Settlement, SharedStore, Store, StoreError,
};

/// One node's way to a store.
#[derive(Clone)]
pub struct Cut<S> {
    inner: S,
    is_cut: Arc<AtomicBool>,
}

impl<S> Cut<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, is_cut: Arc::default() }
    }

    pub fn set(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    fn reach(&self) -> Result<&S, StoreError> {
        if self.is_cut() { Err(Failure::Connection.into()) } else { Ok(&self.inner) }
    }
}

impl<S: Store> Store for Cut<S> {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        self.reach()?.decide(requests, now, outcomes).await
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        self.reach()?.give_back(returns, now).await
    }

    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        self.reach()?.reset(counters, now).await
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.reach()?.renew(counter, limit, slot, now).await
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.reach()?.release(counter, slot, now).await
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        self.reach()?.slots(counter, now).await
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        self.reach()?.settle(settlement, now).await
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        self.reach()?.record(id, ask, now).await
    }
}

impl<S: SharedStore> SharedStore for Cut<S> {
    async fn lease(&self, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, StoreError> {
        self.reach()?.lease(ask).await
    }

    async fn announce(&self, announcement: &Announcement<'_>) -> Result<Roll, StoreError> {
        self.reach()?.announce(announcement).await
    }

    fn clock(&self, now: Nanos) -> Nanos {
        self.inner.clock(now)
    }
}
