//! Lengths of time with an exact fraction of a nanosecond.
//!
//! A bucket that refills `L` tokens per `W` nanoseconds spends `W / L` nanoseconds on a token, which
//! is rarely whole. A [`Span`] carries the remainder as `part / denominator`, where the denominator
//! belongs to the limit, so that no fraction is ever lost.

use crate::Nanos;

/// `nanos + part / denominator` nanoseconds, with `part < denominator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Span {
    /// Whole nanoseconds.
    pub nanos: Nanos,
    /// The remainder, in units of one over the limit's denominator.
    pub part: u64,
}

/// Where saturating sums stop: far beyond any span a limit can produce without a debt.
const MOST: Nanos = u64::MAX;

impl Span {
    /// So many whole nanoseconds.
    pub const fn whole(nanos: Nanos) -> Self {
        Self { nanos, part: 0 }
    }

    /// `numerator / denominator` nanoseconds, saturating at the end of time.
    #[inline]
    pub(crate) fn from_ratio(numerator: u128, denominator: u64) -> Self {
        if let Ok(small) = u64::try_from(numerator) {
            if denominator == 1 {
                return Self::whole(small);
            }
            return Self { nanos: small / denominator, part: small % denominator };
        }
        let denominator = u128::from(denominator);
        match u64::try_from(numerator / denominator) {
            Ok(nanos) => Self { nanos, part: (numerator % denominator) as u64 },
            Err(_) => Self::whole(MOST),
        }
    }

    /// The sum, saturating at the end of time.
    #[inline]
    pub(crate) fn plus(self, other: Self, denominator: u64) -> Self {
        let (part, wrapped) = self.part.overflowing_add(other.part);
        let carries = wrapped || part >= denominator;
        let part = if carries { part.wrapping_sub(denominator) } else { part };
        match self.nanos.checked_add(other.nanos).and_then(|n| n.checked_add(u64::from(carries))) {
            Some(nanos) => Self { nanos, part },
            None => Self::whole(MOST),
        }
    }

    /// True where a sum has stopped at the end of time, so that it no longer says what it is of.
    #[inline]
    pub(crate) const fn is_saturated(self) -> bool {
        self.nanos == MOST
    }

    /// The difference, or zero where it would be negative. (A state left by a limit with another
    /// denominator may hold a larger part; it must not underflow.)
    #[inline]
    pub(crate) fn minus(self, other: Self, denominator: u64) -> Self {
        if self <= other {
            return Self::default();
        }
        if self.part >= other.part {
            Self { nanos: self.nanos - other.nanos, part: self.part - other.part }
        } else {
            Self {
                nanos: self.nanos - other.nanos - 1,
                part: denominator.saturating_sub(other.part - self.part),
            }
        }
    }

    /// Whole nanoseconds, rounded up.
    #[inline]
    pub(crate) fn ceil(self) -> Nanos {
        self.nanos.saturating_add(u64::from(self.part > 0))
    }

    #[inline]
    pub(crate) fn is_zero(self) -> bool {
        self.nanos == 0 && self.part == 0
    }
}
