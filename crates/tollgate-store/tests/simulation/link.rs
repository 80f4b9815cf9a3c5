//! A node's view of the store: the traits, over the network.

use std::sync::Arc;

use tollgate_core::{Limit, Nanos, Slot, SlotId};
use tollgate_store::{
    Adjusted, Announcement, Counter, Decided, Failure, GiveBack, LeaseAsk, LeaseGrant, Outcomes,
    RecordAnswer, RecordAsk, Request, Roll, Settlement, SharedStore, Store, StoreError,
};

use crate::network::Network;
use crate::owned::{Op, OwnedCounter, OwnedGiveBack, OwnedLeaseAsk, OwnedRequest, OwnedSettlement};
use crate::server::Reply;

/// One node's connection to the store.
pub struct Link {
    pub network: Arc<Network>,
    pub node: usize,
}

impl Link {
    async fn call(&self, op: Op) -> Result<(Reply, Nanos), StoreError> {
        Ok(self.network.call(self.node, op).await?)
    }
}

/// The store has answered something else.
fn nonsense<T>() -> Result<T, StoreError> {
    Err(Failure::Protocol.into())
}

impl Store for Link {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        _: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        let op = Op::Decide(requests.iter().map(OwnedRequest::new).collect());
        let (Reply::Decided(decided), at) = self.call(op).await? else { return nonsense() };
        outcomes.extend(decided);
        Ok(Decided::at(at))
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], _: Nanos) -> Result<(), StoreError> {
        let op = Op::GiveBack(returns.iter().map(OwnedGiveBack::new).collect());
        self.call(op).await.map(|_| ())
    }

    async fn reset(&self, counters: &[Counter<'_>], _: Nanos) -> Result<(), StoreError> {
        let op = Op::Reset(counters.iter().map(OwnedCounter::new).collect());
        self.call(op).await.map(|_| ())
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        _: Nanos,
    ) -> Result<bool, StoreError> {
        let op = Op::Renew(OwnedCounter::new(counter), limit.clone(), slot);
        let (Reply::Was(was), _) = self.call(op).await? else { return nonsense() };
        Ok(was)
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        _: Nanos,
    ) -> Result<bool, StoreError> {
        let op = Op::Release(OwnedCounter::new(counter), slot);
        let (Reply::Was(was), _) = self.call(op).await? else { return nonsense() };
        Ok(was)
    }

    async fn slots(&self, counter: &Counter<'_>, _: Nanos) -> Result<Vec<Slot>, StoreError> {
        let op = Op::Slots(OwnedCounter::new(counter));
        let (Reply::Slots(slots), _) = self.call(op).await? else { return nonsense() };
        Ok(slots)
    }

    async fn settle(&self, settlement: &Settlement<'_>, _: Nanos) -> Result<Adjusted, StoreError> {
        let op = Op::Settle(OwnedSettlement::new(settlement));
        let (Reply::Applied(applied), _) = self.call(op).await? else { return nonsense() };
        Ok(applied)
    }

    /// The simulation keeps no records of reservations: its clients remember their charges.
    async fn record(
        &self,
        _: u128,
        _: &RecordAsk<'_>,
        _: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        nonsense()
    }
}

impl SharedStore for Link {
    async fn lease(&self, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, StoreError> {
        let op = Op::Lease(OwnedLeaseAsk::new(ask));
        let (Reply::Lease(grant), _) = self.call(op).await? else { return nonsense() };
        Ok(*grant)
    }

    async fn announce(&self, announcement: &Announcement<'_>) -> Result<Roll, StoreError> {
        let Announcement { node, ttl, has_reported } = *announcement;
        let op = Op::Announce { node: node.to_owned(), ttl, has_reported };
        let (Reply::Roll(roll), _) = self.call(op).await? else { return nonsense() };
        Ok(roll)
    }

    async fn request_timeout(&self) {
        self.network.request_timeout().await;
    }

    fn clock(&self, now: Nanos) -> Nanos {
        self.network.clock(self.node).unwrap_or(now)
    }
}
