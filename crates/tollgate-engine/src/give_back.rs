//! Charges that are given back, and slots that are held for longer.

use tollgate_core::{MICRO, Nanos, Receipt};
use tollgate_store::{Applied, Store};

use crate::observer::HoldChanged;
use crate::receipts::Settled;
use crate::{Amounts, Engine, EngineError, Receipts};

impl<S: Store> Engine<S> {
    /// Gives back what was charged.
    pub async fn give_back(&self, receipts: &Receipts) -> Result<(), EngineError> {
        if receipts.is_empty() {
            return Ok(());
        }
        let (keys, now) = (receipts.keys(), self.clock().now());
        self.store.give_back(&receipts.returns(&keys), now).await?;
        self.notify_change(|| receipts.change(0, now, HoldChanged::Released));
        Ok(())
    }

    /// [`Engine::give_back`] without a future. `None`: the store has to be awaited, and nothing was given back.
    pub fn give_back_now(&self, receipts: &Receipts) -> Option<Result<(), EngineError>> {
        let store = self.store.as_sync()?;
        if receipts.is_empty() {
            return Some(Ok(()));
        }
        let (keys, now) = (receipts.keys(), self.clock().now());
        let given_back = store.give_back_sync(&receipts.returns(&keys), now);
        if given_back.is_ok() {
            self.notify_change(|| receipts.change(0, now, HoldChanged::Released));
        }
        Some(given_back.map_err(EngineError::from))
    }

    /// [`Engine::release`] without a future. `None`: the store has to be awaited, and nothing was released.
    pub fn release_now(
        &self,
        id: u128,
        receipts: &Receipts,
    ) -> Option<Result<Settled, EngineError>> {
        let store = self.store.as_sync()?;
        self.note_released(id, receipts);
        if receipts.is_empty() {
            return Some(Ok(Settled::default()));
        }
        Some(self.undo_now(store, id, receipts).map(|adjusted| {
            let released = receipts.settled(&Amounts::NONE, &adjusted.refunded);
            if adjusted.applied != Applied::Before {
                self.reserved.released(&released);
            }
            released
        }))
    }

    /// Holds the slots among it for another lifetime. False if one is no longer held.
    pub async fn renew(&self, receipts: &Receipts) -> Result<bool, EngineError> {
        let now = self.clock().now();
        let held = self.renew_for(receipts, Nanos::MAX).await?;
        self.notify_change(|| receipts.change(0, now, HoldChanged::Renewed(None)));
        Ok(held)
    }

    /// The same, for at most so long.
    pub(crate) async fn renew_for(
        &self,
        receipts: &Receipts,
        most: Nanos,
    ) -> Result<bool, EngineError> {
        let most = most.max(MICRO).div_ceil(MICRO).saturating_mul(MICRO);
        let mut held = true;
        for part in receipts.parts.iter().filter(|part| !part.is_remote) {
            let Receipt::Slot(slot) = part.receipt else { continue };
            let key = part.parts();
            let counter = part.counter(&key);
            let limit = part.limit.clone().with_max_slot_ttl(most);
            held &= self.store.renew(&counter, &limit, slot, self.clock().now()).await?;
        }
        Ok(held)
    }
}
