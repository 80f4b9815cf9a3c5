//! Fixed-size states in 16 bytes.
//!
//! The first word is always the instant from which the counter is fresh, so that any entry can be
//! judged, dropped or evicted without knowing its limit. States too large for their field (a count
//! above 2^32 in a sliding counter, say) do not pack and are kept apart.

use tollgate_core::{Algorithm, Bucket, FixedWindow, Limit, Nanos, SlidingCounter, Small, Span};

/// Earlier versions kept how far give-backs had moved a bucket in the lower half of its word, in microseconds, and
/// counted it into the first word. Files that they wrote are still read.
const SHIFT_GRAIN: Nanos = 1_000;

/// A packed state. `fresh_at` is 0 only for a fresh one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) fresh_at: Nanos,
    pub(crate) word: u64,
}

const fn halves(high: u64, low: u64) -> Option<u64> {
    if high > u32::MAX as u64 || low > u32::MAX as u64 { None } else { Some(high << 32 | low) }
}

const fn high(word: u64) -> u64 {
    word >> 32
}

const fn low(word: u64) -> u64 {
    word & u32::MAX as u64
}

/// Packs a state, or says that it does not fit.
#[inline]
pub(crate) fn pack(state: &Small, limit: &Limit) -> Option<Packed> {
    let fresh_at = state.fresh_at(limit.window_nanos());
    let word = match state {
        Small::Fixed(window) => window.count,
        Small::Sliding(counter) => halves(counter.current, counter.previous)?,
        Small::Bucket(bucket) => halves(bucket.tat.part, 0)?,
    };
    // A saturated instant cannot be unpacked into its parts.
    (fresh_at < u64::MAX).then_some(Packed { fresh_at, word })
}

/// The state that was packed under this limit.
#[inline]
pub(crate) fn unpack(packed: Packed, limit: &Limit) -> Small {
    let Packed { fresh_at, word } = packed;
    match limit.algorithm() {
        Algorithm::FixedWindow => Small::Fixed(FixedWindow { end: fresh_at, count: word }),
        Algorithm::SlidingWindowCounter => {
            let (current, previous) = (high(word), low(word));
            let end =
                if current > 0 { fresh_at.saturating_sub(limit.window_nanos()) } else { fresh_at };
            Small::Sliding(SlidingCounter { end, current, previous })
        }
        _ => {
            let (part, shift_micros) = (high(word), low(word));
            let ceil = fresh_at.saturating_sub(shift_micros * SHIFT_GRAIN);
            let tat = Span { nanos: ceil.saturating_sub(u64::from(part > 0)), part };
            limit.adopt(Small::Bucket(Bucket { tat }))
        }
    }
}
