//! Limits in whole microseconds, for stores whose clock has that resolution and whose numbers are
//! doubles.
//!
//! Everything here is a whole number below 2^53. A bucket's time line keeps an exact remainder as
//! everywhere: `part / unit` microseconds. Instants of such a store are whole microseconds, so what a
//! bucket's line can look like converts both ways without loss.

use crate::{Algorithm, Ask, Bucket, Limit, Nanos, Span, StateKind};

/// The largest whole number that all of it stays at or below.
pub const MAX_MICROS: u64 = (1 << 53) - 1;

/// Nanoseconds in one microsecond.
pub const MICRO: Nanos = 1_000;

/// `micros + part / unit` microseconds, with `part < unit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct MicroSpan {
    /// Whole microseconds.
    pub micros: u64,
    /// The remainder, in units of one over the limit's unit.
    pub part: u64,
}

/// A bucket's limit, in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct MicroPace<'a> {
    limit: &'a Limit,
    unit: u64,
    /// How many parts of a nanosecond make one part of a microsecond.
    scale: u64,
}

impl Limit {
    /// Whether it can be counted in whole microseconds without loss: windows and slot lifetimes of
    /// whole microseconds, and quotas (of buckets: a thousand times the quota, in lowest terms with the
    /// window) below 2^53.
    pub fn fits_micros(&self) -> bool {
        match self.algorithm().state_kind() {
            StateKind::Slots => self.slot_ttl().is_multiple_of(MICRO),
            StateKind::Bucket => self.micro_pace().unit <= MAX_MICROS,
            StateKind::FixedWindow | StateKind::SlidingLog | StateKind::SlidingCounter => {
                self.window_nanos().is_multiple_of(MICRO) && self.quota() <= MAX_MICROS
            }
        }
    }

    /// The bucket's pace in microseconds.
    pub fn micro_pace(&self) -> MicroPace<'_> {
        let denominator = self.pace().denominator;
        // The unit is what a part of the line can be a multiple of; a suspended bucket counts one
        // nanosecond for a unit of cost.
        let numerator = if self.quota() == 0 {
            1
        } else {
            self.window_nanos() / (self.quota() / denominator).max(1)
        };
        let scale = common_divisor(numerator, MICRO);
        let unit = denominator.saturating_mul(MICRO / scale);
        MicroPace { limit: self, unit, scale }
    }
}

impl MicroPace<'_> {
    /// What parts of a microsecond are counted in.
    pub const fn unit(&self) -> u64 {
        self.unit
    }

    /// The stretch of line that a cost occupies.
    pub fn span_of(&self, cost: u64) -> MicroSpan {
        self.rounded_up(self.limit.pace().span_of(cost))
    }

    /// How far ahead the line may be occupied for the charge to pass; `None`: it never does.
    pub fn room_for(&self, ask: &Ask) -> Option<MicroSpan> {
        if ask.cost > self.limit.capacity() {
            return None;
        }
        let pace = self.limit.pace();
        let room = pace.capacity.minus(pace.span_of(ask.cost), pace.denominator);
        let room = if self.limit.algorithm() == Algorithm::LeakyBucket {
            ask.max_delay.map_or(room, |most| room.min(Span::whole(most)))
        } else {
            room.plus(Span::whole(ask.max_delay.unwrap_or(0)), pace.denominator)
        };
        Some(self.rounded_down(room))
    }

    /// A stretch of line, rounded down to what a [`MicroSpan`] can represent.
    pub fn rounded_down(&self, span: Span) -> MicroSpan {
        self.converted(span).0
    }

    fn rounded_up(&self, span: Span) -> MicroSpan {
        let (down, is_exact) = self.converted(span);
        if is_exact || down.micros == MAX_MICROS {
            down
        } else if down.part + 1 == self.unit {
            MicroSpan { micros: down.micros + 1, part: 0 }
        } else {
            MicroSpan { part: down.part + 1, ..down }
        }
    }

    fn converted(&self, span: Span) -> (MicroSpan, bool) {
        let micros = span.nanos / MICRO;
        if micros >= MAX_MICROS {
            return (MicroSpan { micros: MAX_MICROS, part: 0 }, true);
        }
        let denominator = u128::from(self.limit.pace().denominator);
        let rest = u128::from(span.nanos % MICRO) * denominator + u128::from(span.part);
        let scale = u128::from(self.scale);
        (MicroSpan { micros, part: (rest / scale) as u64 }, rest % scale == 0)
    }

    /// The same stretch in nanoseconds.
    pub fn exact(&self, span: MicroSpan) -> Span {
        let denominator = u128::from(self.limit.pace().denominator);
        let rest = u128::from(span.part) * u128::from(self.scale);
        Span {
            nanos: span.micros.saturating_mul(MICRO).saturating_add((rest / denominator) as u64),
            part: (rest % denominator) as u64,
        }
    }

    /// The bucket with this arrival time.
    pub fn bucket(&self, tat: MicroSpan) -> Bucket {
        Bucket { tat: self.exact(tat) }
    }
}

const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LimitSpec, Window};

    fn bucket(quota: u64, window: Nanos, burst: u64) -> Limit {
        let (window, burst) = (Window::Every(window), Some(burst));
        let algorithm = Algorithm::TokenBucket;
        Limit::new(LimitSpec { algorithm, quota, window, burst, slot_ttl: 0 }).unwrap()
    }

    #[test]
    fn a_token_of_whole_microseconds_has_no_part() {
        let limit = bucket(10, 1_000_000_000, 10);
        let pace = limit.micro_pace();
        assert_eq!(pace.unit(), 1);
        assert_eq!(pace.span_of(3), MicroSpan { micros: 300_000, part: 0 });
    }

    #[test]
    fn parts_convert_both_ways_without_loss() {
        for (quota, window) in [(3, 1_000_000_000), (7, 1_000), (7, 10), (999, 1_001), (1_000, 1)] {
            let limit = bucket(quota, window, 50);
            let pace = limit.micro_pace();
            let mut sum = Span::default();
            for cost in 0..50 {
                let span = limit.pace().span_of(cost);
                assert_eq!(pace.exact(pace.span_of(cost)), span, "{quota} per {window}: {cost}");
                sum = sum.plus(span, limit.pace().denominator);
                assert_eq!(pace.exact(pace.rounded_down(sum)), sum);
            }
        }
    }

    #[test]
    fn room_is_what_the_judge_admits() {
        let limit = bucket(3, 1_000_000_000, 2);
        let pace = limit.micro_pace();
        assert_eq!(pace.room_for(&Ask::cost(2)), Some(MicroSpan::default()));
        assert_eq!(pace.room_for(&Ask::cost(3)), None);
        let one = pace.room_for(&Ask::cost(1));
        assert_eq!(one, Some(MicroSpan { micros: 333_333, part: pace.span_of(1).part }));
    }

    #[test]
    fn what_cannot_be_reported_is_known() {
        assert!(bucket(3, 1_000_000_000, 2).fits_micros());
        assert!(!bucket(MAX_MICROS - 1, 1_000_000_007, 2).fits_micros());
    }
}
