//! Several stores as one: every counter is kept where its home says.
//!
//! A request whose counters all live in one store is that store's business. One whose counters are spread is held part
//! by part, at the same time, and given back by its receipts where another part refuses: never over-admitted; while it
//! is held, it may make a concurrent request be refused that would have fitted.

mod spread;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tollgate_core::{Limit, Nanos, Slot, SlotId};

use crate::{
    Adjusted, Adjustment, Charge, Claim, Consistency, Counter, Decided, Failure, GiveBack, Home,
    Membership, MemoryStore, Outcomes, RecordAnswer, RecordAsk, Request, RequestClaim, Settlement,
    Store, StoreError, SyncStore, check_outcomes, report_broken,
};

/// A shared store that knows how many nodes share it.
pub trait Member: Store {
    /// The nodes that are alive.
    fn membership(&self) -> Membership;
}

/// This node's memory, and the stores it shares with others.
pub struct Placed<S> {
    memory: MemoryStore,
    shared: Vec<S>,
    names: Vec<String>,
}

/// Which store has a part of a request: this node's memory, or a shared one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Memory,
    Shared(usize),
}

impl<S: Member> Placed<S> {
    /// Without shared stores everything is kept in memory. The first shared store is that of counters that name none.
    pub const fn new(memory: MemoryStore, shared: Vec<S>, names: Vec<String>) -> Self {
        Self { memory, shared, names }
    }

    /// This node's memory.
    pub const fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    /// The shared stores, in the order of their names.
    pub fn shared(&self) -> &[S] {
        &self.shared
    }

    fn part_of(&self, home: &Home) -> Part {
        if home.consistency == Consistency::Local || self.shared.is_empty() {
            Part::Memory
        } else {
            Part::Shared(usize::from(home.store))
        }
    }

    /// The one part that has all charges, if there is one.
    fn only_part(&self, requests: &[Request<'_>]) -> Option<Part> {
        let mut charges = requests.iter().flat_map(|request| request.charges);
        let first = self.part_of(&charges.next()?.counter.home);
        charges.all(|charge| self.part_of(&charge.counter.home) == first).then_some(first)
    }

    async fn decide_on(
        &self,
        part: Part,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        match part {
            Part::Memory => {
                for request in requests {
                    self.decide_alone(request, now, outcomes);
                }
                Ok(Decided::at(now))
            }
            Part::Shared(index) => {
                let Some(store) = self.shared.get(index) else {
                    report_broken("a counter names a store that does not exist");
                    return Err(Failure::Contract.into());
                };
                let first = outcomes.len();
                let decided = store.decide(requests, now, outcomes).await?;
                check_outcomes(requests, first, outcomes).map(|()| decided)
            }
        }
    }

    /// The nodes that share a counter which each of them counts alone.
    fn membership(&self, home: &Home) -> Membership {
        self.shared.get(usize::from(home.store)).map_or(Membership::ALONE, Member::membership)
    }

    /// This node's share of a limit that each node counts alone, unless it is the only node.
    fn share_of(&self, home: &Home, limit: &Limit) -> Option<Limit> {
        let Membership { nodes, rank } = self.membership(home);
        (nodes > 1).then(|| limit.share(rank, nodes))
    }

    /// Decides in memory, each counter on this node's share of its limit.
    fn decide_alone(&self, request: &Request<'_>, now: Nanos, outcomes: &mut Outcomes) {
        let is_shared = |charge: &Charge<'_>| self.membership(&charge.counter.home).nodes > 1;
        if !request.charges.iter().any(is_shared) {
            return self.memory.decide_now(request, now, outcomes);
        }
        let limits: SmallVec<[Limit; 4]> = request
            .charges
            .iter()
            .map(|charge| {
                let Membership { nodes, rank } = self.membership(&charge.counter.home);
                charge.limit.share(rank, nodes)
            })
            .collect();
        let charges: SmallVec<[Charge<'_>; 4]> = request
            .charges
            .iter()
            .zip(&limits)
            .map(|(charge, limit)| Charge { limit, ..*charge })
            .collect();
        self.memory.decide_now(&Request { charges: &charges, mode: request.mode }, now, outcomes);
    }

    async fn decide_shared(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        if requests.iter().all(|request| request.charges.is_empty()) {
            return Ok(Decided::at(now));
        }
        if let Some(part) = self.only_part(requests) {
            return self.decide_on(part, requests, now, outcomes).await;
        }
        let mut all = Decided::at(now);
        let mut each = Vec::with_capacity(outcomes.len());
        let mut degraded_each = Vec::with_capacity(requests.len());
        let mut failed = Vec::with_capacity(requests.len());
        for request in requests {
            let one = std::slice::from_ref(request);
            let decided = match self.only_part(one) {
                Some(part) => self.decide_on(part, one, now, outcomes).await?,
                None if request.charges.is_empty() => Decided::at(now),
                None => self.decide_spread(request, now, outcomes).await?,
            };
            each.extend((0..request.charges.len()).map(|charge| decided.of(charge)));
            all.degraded = all.degraded.or(decided.degraded);
            degraded_each.push(decided.degraded);
            failed.push(decided.failed_of(0));
        }
        all.at = each.first().copied().unwrap_or(now);
        all.each = Some(each.into_boxed_slice());
        all.degraded_each = Some(degraded_each.into_boxed_slice());
        if failed.iter().any(Option::is_some) {
            all.failed = Some(failed.into_boxed_slice());
        }
        Ok(all)
    }

    async fn give_back_on(
        &self,
        part: Part,
        returns: &[GiveBack<'_>],
        now: Nanos,
    ) -> Result<(), StoreError> {
        if let Part::Shared(index) = part
            && let Some(store) = self.shared.get(index)
        {
            return store.give_back(returns, now).await;
        }
        for one in returns {
            // It was charged on this node's share of the limit.
            let share = self.share_of(&one.counter.home, one.limit);
            let limit = share.as_ref().unwrap_or(one.limit);
            self.memory.give_back_now(&GiveBack { limit, ..*one }, now);
        }
        Ok(())
    }

    /// The part of a settlement that is about this node's memory: charged on its share of the limits.
    fn settle_here(&self, settlement: &Settlement<'_>, now: Nanos) -> Adjusted {
        let of = |adjustment: &Adjustment<'_>| {
            let Membership { nodes, rank } = self.membership(&adjustment.counter.home);
            adjustment.limit.share(rank, nodes)
        };
        let limits: SmallVec<[Limit; 4]> = settlement.adjustments.iter().map(of).collect();
        let adjustments: SmallVec<[Adjustment<'_>; 4]> = settlement
            .adjustments
            .iter()
            .zip(&limits)
            .map(|(adjustment, limit)| Adjustment { limit, ..*adjustment })
            .collect();
        self.memory.settle_now(&Settlement { adjustments: &adjustments, ..*settlement }, now)
    }

    /// Settles where the charges are, everywhere at the same time.
    async fn settle_spread(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        let of = |part| settlement.select(|_, it| self.part_of(&it.counter.home) == part);
        let (places, here) = of(Part::Memory);
        let here = (!here.is_empty())
            .then(|| self.settle_here(&Settlement { adjustments: &here, ..*settlement }, now));
        let here = here.map(|adjusted| (places, Ok(adjusted)));
        let parts = self.shared.iter().enumerate().map(|(index, store)| async move {
            let (places, adjustments) = of(Part::Shared(index));
            if adjustments.is_empty() {
                return None;
            }
            let settlement = Settlement { adjustments: &adjustments, ..*settlement };
            Some((places, store.settle(&settlement, now).await))
        });
        let shared = join_all(parts).await.into_iter().flatten();
        Adjusted::of_parts(settlement.adjustments.len(), here.into_iter().chain(shared))
    }

    async fn on_home<T>(
        &self,
        home: &Home,
        memory: impl AsyncFnOnce(&MemoryStore) -> T,
        shared: impl AsyncFnOnce(&S) -> T,
    ) -> T {
        match self.part_of(home) {
            Part::Shared(index) => match self.shared.get(index) {
                Some(store) => shared(store).await,
                None => memory(&self.memory).await,
            },
            Part::Memory => memory(&self.memory).await,
        }
    }
}

impl<S: Member> Store for Placed<S> {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        if self.shared.is_empty() {
            return self.memory.decide_sync(requests, now, outcomes);
        }
        // What talks to other servers is large, and a node that is alone does not carry it.
        Box::pin(self.decide_shared(requests, now, outcomes)).await
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        for one in returns {
            let part = self.part_of(&one.counter.home);
            self.give_back_on(part, std::slice::from_ref(one), now).await?;
        }
        Ok(())
    }

    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        self.memory.reset(counters, now).await?;
        for (index, store) in self.shared.iter().enumerate() {
            let own: SmallVec<[Counter<'_>; 8]> = counters
                .iter()
                .filter(|counter| self.part_of(&counter.home) == Part::Shared(index))
                .copied()
                .collect();
            if !own.is_empty() {
                store.reset(&own, now).await?;
            }
        }
        Ok(())
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.on_home(
            &counter.home,
            async |memory| memory.renew(counter, limit, slot, now).await,
            async |shared| shared.renew(counter, limit, slot, now).await,
        )
        .await
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.on_home(
            &counter.home,
            async |memory| memory.release(counter, slot, now).await,
            async |shared| shared.release(counter, slot, now).await,
        )
        .await
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        self.on_home(
            &counter.home,
            async |memory| memory.slots(counter, now).await,
            async |shared| shared.slots(counter, now).await,
        )
        .await
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        if self.shared.is_empty() {
            return Ok(self.memory.settle_now(settlement, now));
        }
        Box::pin(self.settle_spread(settlement, now)).await
    }

    /// What concerns this node alone is kept here, the rest where all nodes find it.
    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        let is_here = match ask {
            RecordAsk::Keep { is_here, .. } => *is_here,
            _ => self.memory.has_record(id),
        };
        match self.shared.first() {
            Some(store) if !is_here => store.record(id, ask, now).await,
            _ => Ok(self.memory.record_now(id, ask, now)),
        }
    }

    fn conceal(&self, home: &Home, secret: &str) -> Option<String> {
        self.shared.get(usize::from(home.store))?.conceal(home, secret)
    }

    fn is_in_process(&self) -> bool {
        self.shared.is_empty()
    }

    fn as_sync(&self) -> Option<&dyn SyncStore> {
        self.shared.is_empty().then_some(&self.memory)
    }

    fn names(&self) -> &[String] {
        &self.names
    }

    async fn claim(&self, claim: &RequestClaim) -> Result<Claim, StoreError> {
        match self.shared.first() {
            Some(store) => store.claim(claim).await,
            None => Ok(Claim::NotShared),
        }
    }

    async fn publish(&self, claim: &RequestClaim, answer: Option<&[u8]>) -> Result<(), StoreError> {
        match self.shared.first() {
            Some(store) => store.publish(claim, answer).await,
            None => Ok(()),
        }
    }
}
