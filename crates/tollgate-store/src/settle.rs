//! Changes to charges that were made before, applied once however often they are asked for.

use tollgate_core::{Limit, Nanos, Receipt};

use crate::{Counter, StoreError};

/// What becomes of one charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It stays. Such charges are named too, so that a settlement that is repeated names the same
    /// counters in the same order, whatever it says of them.
    Keep,
    /// It is undone, or the part of it that the receipt is of.
    GiveBack(Receipt),
    /// So much more is charged, above the limit if need be.
    Owe(u64),
}

/// A charge and what becomes of it.
#[derive(Debug, Clone, Copy)]
pub struct Adjustment<'a> {
    /// The counter that was charged.
    pub counter: Counter<'a>,
    /// The limit it was charged under.
    pub limit: &'a Limit,
    /// What becomes of the charge.
    pub change: Change,
    /// The part of the charge that stays and is not refunded any more, so that nothing need be kept for it.
    pub closes: Receipt,
}

/// Changes that are made under one id. The store of each counter remembers the id together with the
/// change, so that no counter is changed twice, whichever node repeats the call, also after a crash
/// in the middle. A repeated settlement must name the same counters in the same order.
#[derive(Debug, Clone, Copy)]
pub struct Settlement<'a> {
    /// Names it.
    pub id: u128,
    /// For how long the id is remembered: longer than anybody may repeat it.
    pub remember: Nanos,
    /// The charges were made by a fallback of this node, and no other node can settle them. Any other charge is on the
    /// shared store, and is settled there, so that all nodes find the id.
    pub is_here: bool,
    /// What it changes.
    pub adjustments: &'a [Adjustment<'a>],
}

/// What became of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is applied; some of it may have been before.
    Now,
    /// All of it had been applied before.
    Before,
    /// The store does not answer. It is kept here, and applied when that is back.
    Later,
}

impl Applied {
    /// What two parts of a settlement came to.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Later, _) | (_, Self::Later) => Self::Later,
            (Self::Now, _) | (_, Self::Now) => Self::Now,
            (Self::Before, Self::Before) => Self::Before,
        }
    }

    /// Combines the results of all parts, each of which was tried: an error if any of them failed.
    pub fn of_all(
        parts: impl IntoIterator<Item = Result<Self, StoreError>>,
    ) -> Result<Self, StoreError> {
        let mut all = Ok(Self::Before);
        for part in parts {
            all = match (all, part) {
                (Ok(so_far), Ok(part)) => Ok(so_far.and(part)),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        all
    }
}
