//! What goes into a transition and what comes out of it.

use crate::{Bucket, FixedWindow, Nanos, SlidingCounter, SlidingLog, Slots, Span};

/// Names one held slot of a concurrency limit.
// Aligned like a word, so that a receipt, which most often names no slot, takes no more room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(Rust, packed(8))]
pub struct SlotId(pub u128);

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
}

impl Ask {
    /// A charge of `cost` by a request that does not wait.
    pub const fn cost(cost: u64) -> Self {
        Self { cost, max_delay: None, slot: SlotId(0), max_slot_ttl: Nanos::MAX }
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
    /// When the counter is as new, absent other traffic; not before now.
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

/// What a charge occupies, so that it can be given back exactly. A receipt is good for one
/// give-back: whoever keeps it must not use it twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// Nothing was charged.
    Nothing,
    /// A cost counted in the window that ends at `end`.
    Window {
        /// When the charged window ends.
        end: Nanos,
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
    /// A stretch of a bucket's time line.
    Bucket {
        /// Where the stretch ends, in the bucket's nominal time (see [`Bucket`]).
        nominal_end: Span,
        /// What was charged.
        cost: u64,
    },
    /// A held slot.
    Slot(SlotId),
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
}
