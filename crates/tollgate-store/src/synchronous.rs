//! Stores that answer at once.

use tollgate_core::Nanos;

use crate::{
    Adjusted, Decided, GiveBack, Outcomes, RecordAnswer, RecordAsk, Request, Settlement, StoreError,
};

/// The part of a [`Store`](crate::Store) that decisions need, answered at once: a caller needs no runtime and no
/// future. A store that implements it returns itself from [`Store::as_sync`](crate::Store::as_sync), and gives
/// the same answers either way.
pub trait SyncStore: Send + Sync {
    /// [`Store::decide`](crate::Store::decide).
    fn decide_sync(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError>;

    /// [`Store::give_back`](crate::Store::give_back).
    fn give_back_sync(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError>;

    /// [`Store::settle`](crate::Store::settle).
    fn settle_sync(&self, settlement: &Settlement<'_>, now: Nanos) -> Result<Adjusted, StoreError>;

    /// [`Store::record`](crate::Store::record).
    fn record_sync(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError>;
}
