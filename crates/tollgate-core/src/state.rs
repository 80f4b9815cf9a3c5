//! What goes into a transition and what comes out of it.

use crate::{Bucket, FixedWindow, Nanos, OpenBucket, SlidingCounter, SlidingLog, Slots};

/// Names one held slot of a concurrency limit.
// Aligned like a word, so that a receipt, which most often names no slot, takes no more room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(Rust, packed(8))]
pub struct SlotId(pub u128);

/// Whether a charge may be refunded after other charges. Only buckets make a difference: a refundable charge costs them an
/// entry in a list (see [`OpenBucket`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refundable {
    /// It is final: nobody keeps its receipt. It can be undone only in the instant in which it was made.
    #[default]
    No,
    /// It is kept or refunded within [`crate::BRIEF`]: a hold over several stores, or a request that waits its turn.
    Briefly,
    /// It is refunded, settled or closed at any time.
    UntilClosed,
    /// A chunk of quota that a node takes on lease: as [`Refundable::UntilClosed`], but it never takes the place of a charge
    /// that is not on lease.
    OnLease,
}

/// What a request asks of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// How much it would charge. A concurrency limit takes one slot whatever this says.
    pub cost: u64,
    /// How long the request may be made to wait (buckets only). `None`: it does not wait, and the
    /// wait of a leaky bucket is only reported.
    pub max_delay: Option<Nanos>,
    /// The slot it would hold (concurrency only).
    pub slot: SlotId,
    /// The longest that it holds the slot unless renewed, where that is shorter than the limit says.
    pub max_slot_ttl: Nanos,
    /// Whether its receipt is kept for a refund.
    pub refundable: Refundable,
}

impl Ask {
    /// A charge of `cost` by a request that does not wait.
    pub const fn cost(cost: u64) -> Self {
        let (slot, refundable) = (SlotId(0), Refundable::No);
        Self { cost, max_delay: None, slot, max_slot_ttl: Nanos::MAX, refundable }
    }

    /// The same, refundable until it is closed.
    #[must_use]
    pub const fn refundable(mut self) -> Self {
        self.refundable = Refundable::UntilClosed;
        self
    }

    /// The same as a chunk of quota on lease.
    #[must_use]
    pub const fn on_lease(mut self) -> Self {
        self.refundable = Refundable::OnLease;
        self
    }

    /// The same, refundable for as long as a hold is.
    #[must_use]
    pub const fn refundable_as_hold(mut self) -> Self {
        if let Refundable::No = self.refundable {
            self.refundable = Refundable::Briefly;
        }
        self
    }

    /// A charge of one slot under this name.
    pub const fn slot(slot: SlotId) -> Self {
        Self { slot, ..Self::cost(1) }
    }
}

/// Whether a charge would pass. Examining changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Examination {
    /// It would pass.
    Admit {
        /// How long the request waits before it goes on.
        wait: Nanos,
    },
    /// It would not.
    Refuse {
        /// The first instant at which the same request passes, absent other traffic; `None` when
        /// its cost is above the limit's capacity, so that it never does.
        retry_at: Option<Nanos>,
    },
}

impl Examination {
    /// True for [`Examination::Admit`].
    pub const fn admits(&self) -> bool {
        matches!(self, Self::Admit { .. })
    }
}

/// The figures of a counter at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// How much of the capacity is in use, rounded up; above the capacity when in debt.
    pub used: u64,
    /// How many more requests of cost 1 would pass now.
    pub remaining: u64,
    /// When the counter is reset, absent other traffic; not before now.
    pub reset_at: Nanos,
}

/// A charge that was made or refused, with the figures after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it passed, and until when not.
    pub examination: Examination,
    /// The counter's figures after the charge, or unchanged after a refusal.
    pub status: Status,
    /// What a give-back needs; [`Receipt::Nothing`] after a refusal.
    pub receipt: Receipt,
}

/// What a charge occupies, so that it can be given back exactly. A receipt is valid for one
/// give-back: its owner must not use it twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// Nothing was charged.
    Nothing,
    /// A cost counted in the window that ends at `end`.
    Window {
        /// When the charged window ends.
        end: Nanos,
        /// When it was charged.
        at: Nanos,
        /// What was counted in it.
        cost: u64,
    },
    /// A cost in a log.
    Log {
        /// The instant it was logged at.
        at: Nanos,
        /// What was logged.
        cost: u64,
    },
    /// A charge to a bucket that was not asked to be refundable: it can be undone only in the instant in which it was
    /// made. Later nothing says what of it the bucket still holds.
    Bucket {
        /// The instant it was made at.
        at: Nanos,
        /// What was charged.
        cost: u64,
    },
    /// For callers who have no receipt: so much of what a bucket was charged last, down to an empty bucket. Charges that
    /// others can refund stay, except for holds.
    LatestOfBucket {
        /// How much.
        cost: u64,
    },
    /// A refundable charge to a bucket.
    Open {
        /// The instant it was made at.
        at: Nanos,
        /// What was charged.
        cost: u64,
    },
    /// A held slot.
    Slot(SlotId),
}

impl Receipt {
    /// When the charge was made, where that matters to a refund: a charge that was made before its counter was reset
    /// gives back nothing.
    pub const fn charged_at(&self) -> Option<Nanos> {
        match *self {
            Self::Window { at, .. }
            | Self::Log { at, .. }
            | Self::Bucket { at, .. }
            | Self::Open { at, .. } => Some(at),
            Self::Nothing | Self::LatestOfBucket { .. } | Self::Slot(_) => None,
        }
    }

    /// The receipt of a part of the charge. Parts that together are no more than the whole can be given back one by
    /// one, and return no more than the whole would.
    #[must_use]
    pub const fn part(&self, cost: u64) -> Self {
        match *self {
            Self::Window { end, at, .. } => Self::Window { end, at, cost },
            Self::Log { at, .. } => Self::Log { at, cost },
            Self::Bucket { at, .. } => Self::Bucket { at, cost },
            Self::LatestOfBucket { .. } => Self::LatestOfBucket { cost },
            Self::Open { at, .. } => Self::Open { at, cost },
            other @ (Self::Nothing | Self::Slot(_)) => other,
        }
    }

    /// What was charged; 0 for a slot.
    pub const fn cost(&self) -> u64 {
        match *self {
            Self::Window { cost, .. }
            | Self::Log { cost, .. }
            | Self::Bucket { cost, .. }
            | Self::LatestOfBucket { cost }
            | Self::Open { cost, .. } => cost,
            Self::Nothing | Self::Slot(_) => 0,
        }
    }
}

/// The state of a counter whose size is fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Small {
    /// `fixed_window`.
    Fixed(FixedWindow),
    /// `sliding_window_counter`.
    Sliding(SlidingCounter),
    /// `token_bucket`, `leaky_bucket` and `gcra`.
    Bucket(Bucket),
}

impl Small {
    /// From this instant on the counter behaves as a fresh one and may be dropped.
    #[inline]
    pub fn fresh_at(&self, window: Nanos) -> Nanos {
        match self {
            Self::Fixed(state) => state.fresh_at(),
            Self::Sliding(state) => state.fresh_at(window),
            Self::Bucket(state) => state.fresh_at(),
        }
    }
}

/// The state of any counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// One of the fixed-size algorithms.
    Small(Small),
    /// `sliding_window_log`.
    Log(SlidingLog),
    /// `concurrency`.
    Slots(Slots),
    /// A bucket some of whose charges can be refunded.
    Open(OpenBucket),
}
