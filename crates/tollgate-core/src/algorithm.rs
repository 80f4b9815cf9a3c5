//! The algorithms, and what their counters keep.

use std::fmt;

/// How a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// A count per aligned window.
    FixedWindow,
    /// Every admitted cost with its instant.
    SlidingWindowLog,
    /// Two aligned windows, the older one weighted.
    SlidingWindowCounter,
    /// Tokens refilled continuously.
    TokenBucket,
    /// A queue that drains continuously.
    LeakyBucket,
    /// Token bucket with strict spacing by default.
    Gcra,
    /// Slots held at the same time.
    Concurrency,
}

/// What a counter keeps. Code that differs by algorithm matches on this without a wildcard, so that the compiler names
/// every place that a new kind concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// A count of one window.
    FixedWindow,
    /// Instants and costs.
    SlidingLog,
    /// Counts of two windows.
    SlidingCounter,
    /// A theoretical arrival time.
    Bucket,
    /// Slots that are held.
    Slots,
}

impl Algorithm {
    /// Every algorithm. The position of each is part of stored reservations: add new ones at the end.
    pub const ALL: [Self; 7] = [
        Self::FixedWindow,
        Self::SlidingWindowLog,
        Self::SlidingWindowCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Gcra,
        Self::Concurrency,
    ];

    /// What its counters keep.
    pub const fn state_kind(self) -> StateKind {
        match self {
            Self::FixedWindow => StateKind::FixedWindow,
            Self::SlidingWindowLog => StateKind::SlidingLog,
            Self::SlidingWindowCounter => StateKind::SlidingCounter,
            Self::TokenBucket | Self::LeakyBucket | Self::Gcra => StateKind::Bucket,
            Self::Concurrency => StateKind::Slots,
        }
    }

    /// The name in rules and keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::SlidingWindowCounter => "sliding_window_counter",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Gcra => "gcra",
            Self::Concurrency => "concurrency",
        }
    }

    /// The algorithm of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// True for the algorithms that have a burst and can delay a request.
    pub const fn is_bucket(self) -> bool {
        matches!(self.state_kind(), StateKind::Bucket)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
