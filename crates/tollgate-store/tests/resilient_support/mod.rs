//! A store in memory that can lose some counters, and be stopped in the middle of a call.

#![allow(dead_code, unreachable_pub, reason = "every test uses its part")]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;
use tollgate_core::{Limit, Nanos, Slot, SlotId};
use tollgate_store::{
    Adjusted, Announcement, Counter, Decided, Failure, GiveBack, LeaseAsk, LeaseGrant, Mode,
    Outcomes, RecordAnswer, RecordAsk, Request, Roll, Settlement, SharedStore, Store, StoreError,
};

use crate::leased_support::{Remote, World};

/// A store that fails for some keys, and whose calls can be held up before they are made.
#[derive(Clone)]
pub struct Fussy(pub Arc<Inside>);

pub struct Inside {
    pub remote: Remote,
    /// By the first value of the key.
    pub failing: Mutex<HashMap<String, Failure>>,
    pub held: Mutex<Option<(Mode, Arc<Semaphore>)>>,
    pub charges: Mutex<Vec<Mode>>,
}

impl Fussy {
    pub fn new(world: &Arc<World>) -> Self {
        let remote = Remote(Arc::clone(world));
        let (failing, held, charges) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self(Arc::new(Inside { remote, failing, held, charges }))
    }

    pub fn fail(&self, key: &str, failure: Option<Failure>) {
        let mut failing = self.0.failing.lock().expect("sound");
        match failure {
            Some(failure) => failing.insert(key.to_owned(), failure),
            None => failing.remove(key),
        };
    }

    /// The next call of this mode waits for a permit.
    pub fn hold(&self, mode: Mode) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.0.held.lock().expect("sound") = Some((mode, Arc::clone(&gate)));
        gate
    }

    fn check(&self, counter: &Counter<'_>) -> Result<(), StoreError> {
        let failing = self.0.failing.lock().expect("sound");
        failing.get(counter.key[0]).map_or(Ok(()), |failure| Err((*failure).into()))
    }
}

impl Store for Fussy {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        let mode = requests.first().map(|request| request.mode);
        self.0.charges.lock().expect("sound").extend(mode);
        let gate = {
            let mut held = self.0.held.lock().expect("sound");
            let is_it = held.as_ref().is_some_and(|(held, _)| Some(*held) == mode);
            if is_it { held.take() } else { None }
        };
        if let Some((_, gate)) = gate {
            gate.acquire().await.expect("open").forget();
        }
        for charge in requests.iter().flat_map(|request| request.charges) {
            self.check(&charge.counter)?;
        }
        self.0.remote.decide(requests, now, outcomes).await
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        self.0.remote.give_back(returns, now).await
    }

    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        self.0.remote.reset(counters, now).await
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.0.remote.renew(counter, limit, slot, now).await
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.check(counter)?;
        self.0.remote.release(counter, slot, now).await
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        self.check(counter)?;
        self.0.remote.slots(counter, now).await
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        for adjustment in settlement.adjustments {
            self.check(&adjustment.counter)?;
        }
        self.0.remote.settle(settlement, now).await
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        self.0.remote.record(id, ask, now).await
    }
}

impl SharedStore for Fussy {
    async fn lease(&self, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, StoreError> {
        self.check(&ask.counter)?;
        self.0.remote.lease(ask).await
    }

    async fn announce(&self, announcement: &Announcement<'_>) -> Result<Roll, StoreError> {
        self.0.remote.announce(announcement).await
    }

    fn clock(&self, now: Nanos) -> Nanos {
        self.0.remote.clock(now)
    }
}
