//! What an admitted request holds is written down, so that a later call can settle or release it.

use tollgate_core::Nanos;
use tollgate_store::{RecordAnswer, RecordAsk, Store, StoreError, SyncStore};

use crate::decision::Decision;
use crate::receipts::Receipts;
use crate::reservations::{Reservation, marked, new_reservation_id};
use crate::{Engine, EngineError, Refunds, Request, encode};

/// What is to be written down of an admitted request.
struct Holding {
    id: u128,
    /// All that was charged.
    all: Receipts,
    /// What the record holds.
    content: Vec<u8>,
    ttl: Nanos,
    is_here: bool,
}

impl Holding {
    const fn ask(&self) -> RecordAsk<'_> {
        RecordAsk::Keep { content: self.content.as_slice(), ttl: self.ttl, is_here: self.is_here }
    }
}

/// Until when a record is kept, by the store's answer.
fn kept_until(answer: Result<RecordAnswer, StoreError>) -> Result<Nanos, EngineError> {
    match answer? {
        RecordAnswer::Open { expires_at, .. } => Ok(expires_at),
        _ => Err(EngineError::ReservationsFull),
    }
}

impl<S: Store> Engine<S> {
    /// What an admitted request holds, to be written down: all that was charged if it is to be settled later, its slots
    /// if it holds any.
    fn holding(&self, request: &Request<'_>, decision: &Decision<'_>) -> Option<Holding> {
        if !decision.is_allowed() {
            return None;
        }
        let all = self.receipts(request, decision);
        let (kept, ttl) = if let Some(ttl) = request.reserve {
            (all.clone(), ttl)
        } else {
            // A caller that keeps the receipts gives slots back by them: nobody would end the record.
            if request.refunds != Refunds::Never {
                return None;
            }
            let slots = all.clone().slots();
            let ttl = slots.slot_ttl()?;
            (slots, ttl)
        };
        let id = decision.slot.map_or_else(|| marked(new_reservation_id(), true), |slot| slot.0);
        let content = encode::encode(&kept, self.instance, &self.store);
        Some(Holding { id, all, content, ttl, is_here: kept.is_here })
    }

    /// The record was made: the request holds a reservation, where it asked for one.
    fn held(
        &self,
        request: &Request<'_>,
        decision: &mut Decision<'_>,
        holding: &Holding,
        expires_at: Nanos,
    ) {
        if request.reserve.is_some() {
            decision.reservation = Some(Reservation { id: holding.id, expires_at });
            self.reserved.made(&holding.all);
        }
    }

    /// Writes down what an admitted request holds. Without a record it could not be given back, so it is given back
    /// now.
    pub(crate) async fn hold(
        &self,
        request: &Request<'_>,
        decision: &mut Decision<'_>,
    ) -> Result<(), EngineError> {
        let Some(holding) = self.holding(request, decision) else { return Ok(()) };
        let answer = self.store.record(holding.id, &holding.ask(), self.clock().now()).await;
        match kept_until(answer) {
            Ok(expires_at) => {
                self.held(request, decision, &holding, expires_at);
                Ok(())
            }
            Err(error) => {
                // If that fails too, it stays charged until its window passes, as if it had expired.
                let _ = self.undo(holding.id, &holding.all).await;
                Err(error)
            }
        }
    }

    /// [`Engine::hold`] on a store that answers at once.
    pub(crate) fn hold_now(
        &self,
        store: &dyn SyncStore,
        request: &Request<'_>,
        decision: &mut Decision<'_>,
    ) -> Result<(), EngineError> {
        let Some(holding) = self.holding(request, decision) else { return Ok(()) };
        let answer = store.record_sync(holding.id, &holding.ask(), self.clock().now());
        match kept_until(answer) {
            Ok(expires_at) => {
                self.held(request, decision, &holding, expires_at);
                Ok(())
            }
            Err(error) => {
                // As in `hold`.
                let _ = self.undo_now(store, holding.id, &holding.all);
                Err(error)
            }
        }
    }
}
