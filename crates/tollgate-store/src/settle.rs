//! Changes to charges that were made before, applied once however often they are asked for.

use smallvec::{SmallVec, smallvec};
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

#[cfg(feature = "redis")]
impl<'a> Settlement<'a> {
    /// Some of its adjustments, and their places.
    pub(crate) fn select(
        &self,
        is_selected: impl Fn(usize, &Adjustment<'a>) -> bool,
    ) -> (Vec<usize>, SmallVec<[Adjustment<'a>; 8]>) {
        let all = self.adjustments.iter().enumerate();
        all.filter(|(place, adjustment)| is_selected(*place, adjustment))
            .map(|(place, adjustment)| (place, *adjustment))
            .unzip()
    }
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

/// How much of each charge of a settlement was given back, in the order of its adjustments; 0 for slots.
pub type Refunds = SmallVec<[u64; 4]>;

/// What became of a settlement, and of each of its charges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adjusted {
    /// What became of it.
    pub applied: Applied,
    /// What was given back, now or before. Of what is applied later, what is due.
    pub refunded: Refunds,
}

impl PartialEq<Applied> for Adjusted {
    fn eq(&self, applied: &Applied) -> bool {
        self.applied == *applied
    }
}

impl Adjusted {
    /// A settlement of which nothing is applied yet: what is due of each charge.
    pub fn due(settlement: &Settlement<'_>) -> Self {
        let refunded = settlement.adjustments.iter().map(Adjustment::asked).collect();
        Self { applied: Applied::Later, refunded }
    }

    /// Puts parts of a settlement together, each with the places of its adjustments. An error if any of them failed; all
    /// of them were tried.
    pub fn of_parts(
        adjustments: usize,
        parts: impl IntoIterator<Item = (Vec<usize>, Result<Self, StoreError>)>,
    ) -> Result<Self, StoreError> {
        let mut refunded: Refunds = smallvec![0; adjustments];
        let mut all = Vec::new();
        for (places, part) in parts {
            all.push(part.map(|part| {
                for (place, amount) in places.into_iter().zip(part.refunded) {
                    if let Some(refunded) = refunded.get_mut(place) {
                        *refunded = amount;
                    }
                }
                part.applied
            }));
        }
        Applied::of_all(all).map(|applied| Self { applied, refunded })
    }
}

impl Adjustment<'_> {
    /// What is to be given back.
    pub const fn asked(&self) -> u64 {
        match &self.change {
            Change::GiveBack(receipt) => receipt.cost(),
            Change::Keep | Change::Owe(_) => 0,
        }
    }
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
