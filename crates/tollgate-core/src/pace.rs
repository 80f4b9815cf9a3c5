//! How fast a bucket spends its time line.

use crate::{LONGEST, LimitError, Nanos, Span};

/// How fast a bucket's time line is spent: one unit of cost takes `numerator / denominator`
/// nanoseconds, in lowest terms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    numerator: u64,
    /// 2^64 / numerator, rounded down: multiplying by it divides, to within one.
    reciprocal: u64,
    pub(crate) denominator: u64,
    unit: Span,
    pub(crate) capacity: Span,
}

impl Pace {
    /// For limits without a time line. A bucket with a quota of 0 never passes; what is forced on
    /// it counts as one nanosecond a unit.
    pub(crate) const NONE: Self = Self {
        numerator: 1,
        reciprocal: u64::MAX,
        denominator: 1,
        unit: Span { nanos: 1, part: 0 },
        capacity: Span { nanos: 0, part: 0 },
    };

    pub(crate) fn new(quota: u64, window: Nanos, burst: u64) -> Result<Self, LimitError> {
        let divisor = greatest_common_divisor(quota, window);
        let (numerator, denominator) = (window / divisor, quota / divisor);
        let of =
            |cost: u64| Span::from_ratio(u128::from(cost) * u128::from(numerator), denominator);
        let capacity = of(burst);
        if capacity.nanos > LONGEST {
            return Err(LimitError::BurstTooLong);
        }
        let reciprocal = u64::try_from((1 << 64) / u128::from(numerator)).unwrap_or(u64::MAX);
        Ok(Self { numerator, reciprocal, denominator, unit: of(1), capacity })
    }

    /// The stretch of time line that a cost occupies. A debt beyond reason is capped at 146 years,
    /// so that sums with it stay within `u64`.
    #[inline]
    pub(crate) fn span_of(&self, cost: u64) -> Span {
        if cost == 1 {
            return self.unit;
        }
        let exact =
            Span::from_ratio(u128::from(cost) * u128::from(self.numerator), self.denominator);
        exact.min(Span::whole(2 * LONGEST))
    }

    /// The cost that occupies a stretch, rounded up.
    #[inline]
    pub(crate) fn cost_of(&self, span: Span) -> u64 {
        let small = span.nanos.checked_mul(self.denominator).and_then(|n| n.checked_add(span.part));
        if let Some(scaled) = small {
            let guess = ((u128::from(scaled) * u128::from(self.reciprocal)) >> 64) as u64;
            // The guess is at most two short, never over.
            let mut rest = scaled - guess * self.numerator;
            let mut quotient = guess;
            while rest >= self.numerator {
                (quotient, rest) = (quotient + 1, rest - self.numerator);
            }
            return quotient + u64::from(rest > 0);
        }
        let scaled = u128::from(span.nanos) * u128::from(self.denominator) + u128::from(span.part);
        u64::try_from(scaled.div_ceil(u128::from(self.numerator))).unwrap_or(u64::MAX)
    }
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
