//! Reservations: quota that is held for a request whose true cost is known only later.
//!
//! A reservation is a charge like any other, and a record of it under a random id. A caller with
//! the id can settle, release or renew it on any node. Its states only move forward:
//!
//! ```text
//! charged → open → ending (how is written down first) → ended (the answer is known for a while)
//!              ↘ expired: the record is gone, and what was charged stays as estimated
//! ```
//!
//! A node that dies between the charge and the record leaves the estimate charged, like a
//! reservation that expires. A node that dies while a reservation ends leaves how it was to end:
//! the next call with the id finishes it, and no counter changes twice, because each one's store
//! remembers the id.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate_core::{MICRO, Nanos, SECOND};
use tollgate_policy::Unit;
use tollgate_store::{Applied, RecordAnswer, RecordAsk, Store};

use crate::ending::{Ending, How, decode_answer, encode_answer};
use crate::observer::HoldChanged;
use crate::receipts::{Receipts, Settled};
use crate::{Actual, Engine, EngineError, encode};

/// How long a reservation is held unless the request states a lifetime.
pub const DEFAULT_RESERVATION_TTL: Nanos = 60 * SECOND;

/// The longest that one is held without being renewed.
pub const MAX_RESERVATION_TTL: Nanos = 24 * 3600 * SECOND;

/// How long the store remembers how a reservation ended: a call repeated within this time returns
/// the first answer.
pub const ENDED_RETENTION: Nanos = 120 * SECOND;

/// A reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Names it.
    pub id: u128,
    /// When it is settled at its estimate unless something else was said.
    pub expires_at: Nanos,
}

/// What renewing did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewed {
    /// Whether all of it is still held: false if a slot of it had expired.
    pub is_held: bool,
    /// When it expires now.
    pub expires_at: Nanos,
}

/// A new id for a reservation, or for a settlement: 128 random bits.
pub fn new_reservation_id() -> u128 {
    let mut bytes = [0; 16];
    // Without random bytes ids could be guessed and could repeat; the system has them or does not start.
    let _ = getrandom::fill(&mut bytes);
    u128::from_le_bytes(bytes)
}

/// The last bit of an id says whether more than slots is held under it.
pub(crate) const fn marked(id: u128, is_reservation: bool) -> u128 {
    id & !1 | is_reservation as u128
}

/// Looks at a record: the shortest lifetime there is, so nothing ends sooner for it, and nothing later.
const LOOK: RecordAsk<'static> = RecordAsk::Renew { ttl: Some(MICRO) };

const fn is_of_slots(id: u128) -> bool {
    id & 1 == 0
}

/// What happened to reservations on this node, in numbers. Over all nodes,
/// reserved + extra = settled + refunded + what expired or is open.
#[derive(Debug, Default)]
pub struct ReservationFigures {
    reserved: AtomicU64,
    settled: AtomicU64,
    released: AtomicU64,
    reserved_tokens: AtomicU64,
    refunded_tokens: AtomicU64,
    extra_tokens: AtomicU64,
    reserved_cost: AtomicU64,
    refunded_cost: AtomicU64,
    extra_cost: AtomicU64,
}

/// The same at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReservationCounts {
    /// Reservations made.
    pub reserved: u64,
    /// Those that were settled.
    pub settled: u64,
    /// Those that were released.
    pub released: u64,
    /// Tokens that were reserved.
    pub reserved_tokens: u64,
    /// Tokens that were given back.
    pub refunded_tokens: u64,
    /// Tokens that were charged beyond what was reserved.
    pub extra_tokens: u64,
    /// Cost that was reserved.
    pub reserved_cost: u64,
    /// Cost that was given back.
    pub refunded_cost: u64,
    /// Cost that was charged beyond what was reserved.
    pub extra_cost: u64,
}

impl ReservationFigures {
    /// What they are now.
    pub fn counts(&self) -> ReservationCounts {
        let of = |figure: &AtomicU64| figure.load(Relaxed);
        ReservationCounts {
            reserved: of(&self.reserved),
            settled: of(&self.settled),
            released: of(&self.released),
            reserved_tokens: of(&self.reserved_tokens),
            refunded_tokens: of(&self.refunded_tokens),
            extra_tokens: of(&self.extra_tokens),
            reserved_cost: of(&self.reserved_cost),
            refunded_cost: of(&self.refunded_cost),
            extra_cost: of(&self.extra_cost),
        }
    }

    pub(crate) fn made(&self, receipts: &Receipts) {
        self.reserved.fetch_add(1, Relaxed);
        self.reserved_tokens.fetch_add(receipts.tokens(), Relaxed);
        self.reserved_cost.fetch_add(receipts.cost(), Relaxed);
    }

    pub(crate) fn settled(&self, settled: &Settled) {
        self.settled.fetch_add(1, Relaxed);
        self.changed(settled);
    }

    pub(crate) fn released(&self, released: &Settled) {
        self.released.fetch_add(1, Relaxed);
        self.changed(released);
    }

    fn changed(&self, settled: &Settled) {
        self.refunded_tokens.fetch_add(settled.refunded.of(Unit::Tokens), Relaxed);
        self.extra_tokens.fetch_add(settled.extra.of(Unit::Tokens), Relaxed);
        self.refunded_cost.fetch_add(settled.refunded.of(Unit::Cost), Relaxed);
        self.extra_cost.fetch_add(settled.extra.of(Unit::Cost), Relaxed);
    }
}

impl<S: Store> Engine<S> {
    /// What happened to reservations on this node.
    pub const fn reservations(&self) -> &ReservationFigures {
        &self.reserved
    }

    /// Settles a reservation with the truth. Repeated, it gives the first answer.
    pub async fn settle_reservation(
        &self,
        id: u128,
        actual: Actual,
    ) -> Result<Settled, EngineError> {
        let says_something = actual != Actual::default();
        if says_something && is_of_slots(id) && self.holds_only_slots(id).await? {
            return Err(EngineError::OnlySlots);
        }
        // How it ends is written down before its charges are read, and could not be changed then.
        let names_money = actual.amounts.money.is_some() || actual.usage.is_some();
        if names_money && let Some(receipts) = self.open_receipts(id).await? {
            receipts.check_truth(&actual)?;
        }
        self.end(id, How::Settle(actual)).await
    }

    /// Whether a reservation is open, whichever node opened it, and may have ended it.
    pub async fn is_reservation_open(&self, id: u128) -> Result<bool, EngineError> {
        let answer = self.store.record(id, &LOOK, self.clock().now()).await?;
        Ok(matches!(answer, RecordAnswer::Open { .. }))
    }

    /// Whether nothing but slots is held under an id, as it is when a request was allowed and
    /// nothing reserved. The mark in the id excludes nearly all others, so this lookup is rare.
    async fn holds_only_slots(&self, id: u128) -> Result<bool, EngineError> {
        let receipts = self.open_receipts(id).await?;
        Ok(receipts.is_some_and(|receipts| receipts.is_only_slots()))
    }

    /// What an open reservation holds.
    async fn open_receipts(&self, id: u128) -> Result<Option<Receipts>, EngineError> {
        match self.store.record(id, &LOOK, self.clock().now()).await? {
            RecordAnswer::Open { content, .. } => Ok(encode::decode(&content, self.instance)),
            _ => Ok(None),
        }
    }

    /// Gives all of a reservation back, or the slot of an admitted request. Repeated, it gives the first
    /// answer.
    pub async fn release_reservation(&self, id: u128) -> Result<Settled, EngineError> {
        self.end(id, How::Release).await
    }

    async fn end(&self, id: u128, how: How) -> Result<Settled, EngineError> {
        let wanted = how.ending();
        let is_same = |ending| match ending {
            ending if ending == wanted => Ok(()),
            ending => Err(EngineError::ReservationEnded(ending)),
        };
        let asked = RecordAsk::End { how: &how.encode(), ttl: ENDED_RETENTION };
        let (content, first) = match self.store.record(id, &asked, self.clock().now()).await? {
            RecordAnswer::Ending { content, how } => (content, how),
            RecordAnswer::Ended { answer } => {
                let known = decode_answer(&answer);
                let (ending, settled) = known.ok_or(EngineError::ReservationUnreadable)?;
                return is_same(ending).map(|()| settled);
            }
            _ => return Err(EngineError::ReservationUnknown),
        };
        let how = How::decode(&first).ok_or(EngineError::ReservationUnreadable)?;
        is_same(how.ending())?;
        let receipts = encode::decode(&content, self.instance);
        let receipts = receipts.ok_or(EngineError::ReservationUnreadable)?;
        let (settled, applied) = match how {
            How::Settle(actual) => {
                self.append_usage(id, &receipts, &actual).await;
                self.apply_truth(id, &receipts, actual).await?
            }
            How::Release => {
                let undone = self.undo(id, &receipts).await?;
                self.note_released(id, &receipts);
                undone
            }
        };
        if self.complete(id, wanted, &settled, applied).await {
            match wanted {
                Ending::Settled => self.reserved.settled(&settled),
                Ending::Released => self.reserved.released(&settled),
            }
        }
        if let Some(shares) = &self.slot_shares {
            shares.close(id);
        }
        Ok(settled)
    }

    /// Writes down that a reservation has ended. True for one of all who ended it. What is not applied
    /// yet has not ended: if this node dies before it is, another can do it.
    async fn complete(&self, id: u128, how: Ending, settled: &Settled, applied: Applied) -> bool {
        if applied == Applied::Later {
            return true;
        }
        let answer = encode_answer(how, settled);
        let complete = RecordAsk::Complete { answer: &answer };
        // If this fails, the next call with the id repeats the ending, and no counter changes
        // twice.
        let before = self.store.record(id, &complete, self.clock().now()).await;
        match before {
            Ok(before) => matches!(before, RecordAnswer::Ending { .. }),
            Err(_) => applied == Applied::Now,
        }
    }

    /// Counts what was charged by estimate as reserved. For callers that keep no record and settle
    /// with the receipts.
    pub fn count_reserved(&self, receipts: &Receipts) {
        self.reserved.made(receipts);
    }

    /// Holds a reservation, or the slot of an admitted request, for so long from now on, or for its own
    /// lifetime again. It never expires sooner than before.
    pub async fn renew_reservation(
        &self,
        id: u128,
        ttl: Option<Nanos>,
    ) -> Result<Renewed, EngineError> {
        let now = self.clock().now();
        let asked = self.store.record(id, &RecordAsk::Renew { ttl }, now).await?;
        let (content, expires_at) = match asked {
            RecordAnswer::Open { content, expires_at } => (content, expires_at),
            RecordAnswer::Ending { how, .. } => {
                let how = How::decode(&how).ok_or(EngineError::ReservationUnreadable)?;
                return Err(EngineError::ReservationEnded(how.ending()));
            }
            RecordAnswer::Ended { answer } => {
                let known = decode_answer(&answer).ok_or(EngineError::ReservationUnreadable)?;
                return Err(EngineError::ReservationEnded(known.0));
            }
            _ => return Err(EngineError::ReservationUnknown),
        };
        let receipts = encode::decode(&content, self.instance);
        let receipts = receipts.ok_or(EngineError::ReservationUnreadable)?;
        // Where there is nothing but slots, it is over when they are; else they end with the rest. A slot is never counted
        // longer than its record is kept: nobody could release it.
        let only_slots = receipts.is_only_slots();
        let has_own_lifetime = only_slots && ttl.is_none();
        let rest = if has_own_lifetime { Nanos::MAX } else { expires_at.saturating_sub(now) };
        let is_held = self.renew_for(&receipts, rest).await?;
        self.note_open(id, &receipts, expires_at);
        self.notify_change(|| receipts.change(id, now, HoldChanged::Renewed(ttl)));
        let slots_end = receipts.slot_ttl().map(|ttl| now.saturating_add(ttl));
        let expires_at = match slots_end {
            Some(end) if only_slots => end.min(expires_at),
            _ => expires_at,
        };
        Ok(Renewed { is_held, expires_at })
    }
}
