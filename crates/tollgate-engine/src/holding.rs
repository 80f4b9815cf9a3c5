//! What an admitted request holds is written down, so that a later call can settle or release it.

use std::sync::Arc;

use futures_util::future::join_all;
use tollgate_core::{Nanos, SlotId};
use tollgate_policy::Unit;
use tollgate_store::{RecordAnswer, RecordAsk, Store, StoreError, SyncStore};

use crate::decision::Decision;
use crate::limit_checks::LimitChecks;
use crate::receipts::Receipts;
use crate::reservations::{Reservation, marked, new_reservation_id};
use crate::{Engine, EngineError, Refunds, Request, encode};

/// Bounds what slots of admitted requests take of the records that all share. Reservations are admitted before they are
/// decided.
pub trait SlotShares: Send + Sync {
    /// Whether there is room for the record of a request, before anything is charged.
    fn has_room(&self, request: &Request<'_>, now: Nanos) -> bool;

    /// Counts the record of an admitted request; false if there is no room for it.
    fn open(&self, request: &Request<'_>, id: u128, expires_at: Nanos, now: Nanos) -> bool;

    /// The record was not made, or it has ended.
    fn close(&self, id: u128);

    /// Some of the records that are counted, others with each call: any node may have ended them.
    fn next_look_ups(&self) -> Vec<u128>;
}

/// The place that a request has among the records before it is decided. Dropped, the place is free again.
pub(crate) struct SlotPlace<'e> {
    shares: &'e dyn SlotShares,
    id: Option<u128>,
}

impl SlotPlace<'_> {
    /// The request took a slot, whose record needs the place.
    pub(crate) fn keep(mut self) {
        self.id = None;
    }
}

impl Drop for SlotPlace<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shares.close(id);
        }
    }
}

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

/// Whether a record is made of the slot of a request, if it takes one. A caller that keeps the receipts gives slots back
/// by them.
fn needs_record(request: &Request<'_>) -> bool {
    request.reserve.is_none() && request.refunds == Refunds::Never
}

/// Until when a record is kept, by the store's answer.
fn kept_until(answer: Result<RecordAnswer, StoreError>) -> Result<Nanos, EngineError> {
    match answer? {
        RecordAnswer::Open { expires_at, .. } => Ok(expires_at),
        _ => Err(EngineError::ReservationsFull),
    }
}

/// How long the slots last that a request would hold, where it passed uncounted because the store does not answer: until
/// then it can be released as if it held them.
fn uncounted_slot_ttl(decision: &Decision<'_>) -> Option<Nanos> {
    decision.degraded?;
    decision.slot?;
    let slots = decision.scopes.iter().filter(|scope| scope.exact.holds_slots());
    slots.map(|scope| scope.exact.slot_ttl()).max()
}

impl<S: Store> Engine<S> {
    /// The same engine, whose slots have shares of the records that all share.
    #[must_use]
    pub fn with_slot_shares(mut self, shares: Arc<dyn SlotShares>) -> Self {
        self.slot_shares = Some(shares);
        self
    }

    /// Fails a request whose slot would find no room among the records, before anything is charged. A request that takes
    /// the last place meanwhile is found after the charge, which is then undone as far as the counters can.
    #[inline]
    pub(crate) fn check_room(
        &self,
        request: &Request<'_>,
        checks: &LimitChecks<'_>,
        now: Nanos,
    ) -> Result<(), EngineError> {
        let Some(shares) = &self.slot_shares else { return Ok(()) };
        let takes_slot = checks.iter().any(|check| check.rule.unit == Unit::Concurrency);
        if takes_slot && needs_record(request) && !shares.has_room(request, now) {
            return Err(EngineError::ReservationsFull);
        }
        Ok(())
    }

    /// Takes a place among the records for the slot of a request, before anything is charged, on a store that has to be
    /// awaited. Where there is none, and `may_look_up`, some records are looked up first: any node may have ended them.
    pub(crate) async fn take_place(
        &self,
        request: &Request<'_>,
        checks: &LimitChecks<'_>,
        SlotId(id): SlotId,
        now: Nanos,
        may_look_up: bool,
    ) -> Result<Option<SlotPlace<'_>>, EngineError> {
        let shares = self.slot_shares.as_deref().filter(|_| needs_record(request));
        let Some(shares) = shares else { return Ok(None) };
        let slots = checks.iter().filter(|check| check.quota.holds_slots());
        let ttl = slots.map(|check| check.quota.slot_ttl()).max().unwrap_or(0);
        let open = || shares.open(request, id, now.saturating_add(ttl), now);
        let mut is_open = open();
        if !is_open && may_look_up {
            self.look_up(shares).await;
            is_open = open();
        }
        if is_open {
            Ok(Some(SlotPlace { shares, id: Some(id) }))
        } else {
            Err(EngineError::ReservationsFull)
        }
    }

    /// Looks up some of the records that are counted, and closes those that have ended.
    pub async fn look_up(&self, shares: &dyn SlotShares) {
        let look_up = async |id| (id, self.is_reservation_open(id).await);
        let ids = shares.next_look_ups();
        for (id, is_open) in join_all(ids.into_iter().map(look_up)).await {
            if is_open == Ok(false) {
                shares.close(id);
            }
        }
    }

    /// No record was made of what a request holds.
    fn close_place(&self, id: u128) {
        if let Some(shares) = &self.slot_shares {
            shares.close(id);
        }
    }

    /// What an admitted request holds, to be written down: all that was charged if it is to be settled later, its slots
    /// if it holds any.
    fn holding(&self, request: &Request<'_>, decision: &Decision<'_>) -> Option<Holding> {
        if !decision.is_allowed() {
            if request.reserve.is_some() {
                self.note_refusal(request);
            }
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
            // What is left of it can be released until the last of them expires.
            let ttl = slots.longest_slot_ttl().or_else(|| uncounted_slot_ttl(decision))?;
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
            self.note_open(holding.id, &holding.all, expires_at);
        }
    }

    /// Writes down what an admitted request holds. Without a record it could not be given back, so it is given back
    /// now.
    pub(crate) async fn hold(
        &self,
        request: &Request<'_>,
        decision: &mut Decision<'_>,
    ) -> Result<(), EngineError> {
        let Some(holding) = self.holding(request, decision) else {
            if let Some(SlotId(id)) = decision.slot {
                self.close_place(id);
            }
            return Ok(());
        };
        let answer = self.store.record(holding.id, &holding.ask(), self.clock().now()).await;
        match kept_until(answer) {
            Ok(expires_at) => {
                self.held(request, decision, &holding, expires_at);
                Ok(())
            }
            // Nothing is held, so nothing can be lost.
            Err(_) if holding.all.is_empty() && request.reserve.is_none() => {
                self.close_place(holding.id);
                Ok(())
            }
            Err(error) => {
                self.close_place(holding.id);
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
        let now = self.clock().now();
        let shares = self.slot_shares.as_ref().filter(|_| request.reserve.is_none());
        let expires_at = now.saturating_add(holding.ttl);
        if shares.is_some_and(|shares| !shares.open(request, holding.id, expires_at, now)) {
            let _ = self.undo_now(store, holding.id, &holding.all);
            return Err(EngineError::ReservationsFull);
        }
        match kept_until(store.record_sync(holding.id, &holding.ask(), now)) {
            Ok(expires_at) => {
                self.held(request, decision, &holding, expires_at);
                Ok(())
            }
            Err(error) => {
                if let Some(shares) = shares {
                    shares.close(holding.id);
                }
                // As in `hold`.
                let _ = self.undo_now(store, holding.id, &holding.all);
                Err(error)
            }
        }
    }
}
