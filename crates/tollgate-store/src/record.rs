//! The record of a reservation: what is known of it under its id, and how far it has come.
//!
//! The owner defines what a record holds; the store keeps it until it expires, and ensures that a
//! reservation ends in one way only, the way that the first caller asks for.

use tollgate_core::Nanos;

/// The most bytes that one record holds.
pub const MAX_RECORD_BYTES: usize = 64 << 10;

/// What is asked of a record.
#[derive(Debug, Clone, Copy)]
pub enum RecordAsk<'a> {
    /// Keep this for so long.
    Keep {
        /// What it holds.
        content: &'a [u8],
        /// For how long.
        ttl: Nanos,
        /// Whether it concerns this process alone: it may hold secrets as they are, and must not be
        /// kept where others can read it.
        is_here: bool,
    },
    /// End it this way, unless it has begun to end already. From then on it is known for `ttl`.
    End {
        /// How it is to end.
        how: &'a [u8],
        /// For how long that is known.
        ttl: Nanos,
    },
    /// It has ended, and later calls return this answer.
    Complete {
        /// The answer.
        answer: &'a [u8],
    },
    /// Keep it for longer: for so long from now on, or for its own lifetime again.
    Renew {
        /// For how long.
        ttl: Option<Nanos>,
    },
}

/// How far a reservation has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordAnswer {
    /// There is none, or none any more.
    Absent,
    /// There is no room for another.
    Full,
    /// It is open.
    Open {
        /// What it holds.
        content: Vec<u8>,
        /// Until when, by the clock of the store that has it.
        expires_at: Nanos,
    },
    /// Somebody has begun to end it.
    Ending {
        /// What it holds.
        content: Vec<u8>,
        /// How it was asked to end first.
        how: Vec<u8>,
    },
    /// It has ended.
    Ended {
        /// The answer that it was completed with.
        answer: Vec<u8>,
    },
}
