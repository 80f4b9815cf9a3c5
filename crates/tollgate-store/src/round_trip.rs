//! How far a store is, measured call by call: a smoothed round trip and its mean deviation.
//!
//! Integers only, and no clock: a sample is an argument.

use tollgate_core::{Nanos, SECOND};

/// A longer sample counts as this: a clock that was set between request and response, or a machine
/// that was stopped, is not a distance.
const MAX_SAMPLE: Nanos = 5 * SECOND;

/// The weights of a new sample, in the smoothed round trip and in the deviation.
const SMOOTHED_WEIGHT: u64 = 8;
const DEVIATION_WEIGHT: u64 = 4;

/// What is known of the round trip to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RoundTrip {
    smoothed: Nanos,
    deviation: Nanos,
    is_known: bool,
}

impl RoundTrip {
    /// A call took this long.
    pub(crate) fn observe(&mut self, sample: Nanos) {
        let sample = sample.min(MAX_SAMPLE);
        if !self.is_known {
            *self = Self { smoothed: sample, deviation: sample / 4, is_known: true };
            return;
        }
        let apart = sample.abs_diff(self.smoothed);
        self.deviation = blend(self.deviation, apart, DEVIATION_WEIGHT);
        self.smoothed = blend(self.smoothed, sample, SMOOTHED_WEIGHT);
    }

    /// The usual round trip; 0 before the first sample.
    pub(crate) const fn smoothed(&self) -> Nanos {
        self.smoothed
    }

    /// A round trip that is seldom exceeded: four deviations above the usual one, and at least an
    /// eighth of it, so that a steady network leaves a margin too.
    pub(crate) fn high(&self) -> Nanos {
        self.smoothed + (self.deviation * 4).max(self.smoothed / 8)
    }
}

/// `before`, with a part of `weight` replaced by `sample`; rounded towards the sample.
fn blend(before: u64, sample: u64, weight: u64) -> u64 {
    let step = sample.abs_diff(before).div_ceil(weight);
    if sample >= before { before + step } else { before - step }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Nanos = SECOND / 1000;

    fn after(samples: impl IntoIterator<Item = Nanos>) -> RoundTrip {
        let mut round_trip = RoundTrip::default();
        for sample in samples {
            round_trip.observe(sample);
        }
        round_trip
    }

    #[test]
    fn the_first_sample_is_taken_with_a_wide_margin() {
        let round_trip = after([80 * MILLISECOND]);
        assert_eq!(round_trip.smoothed(), 80 * MILLISECOND);
        assert_eq!(round_trip.high(), 160 * MILLISECOND);
        assert_eq!((after([]).smoothed(), after([]).high()), (0, 0));
    }

    #[test]
    fn a_steady_round_trip_keeps_an_eighth_as_margin() {
        let round_trip = after([80 * MILLISECOND; 60]);
        assert_eq!(round_trip.smoothed(), 80 * MILLISECOND);
        assert_eq!(round_trip.high(), 90 * MILLISECOND);
    }

    #[test]
    fn jitter_widens_the_margin_beyond_every_sample() {
        let samples = (0..200).map(|n| if n % 2 == 0 { 60 } else { 100 } * MILLISECOND);
        let round_trip = after(samples);
        assert!(round_trip.smoothed().abs_diff(80 * MILLISECOND) < 4 * MILLISECOND);
        assert!(round_trip.high() > 100 * MILLISECOND, "{round_trip:?}");
    }

    #[test]
    fn a_store_that_moved_is_followed_and_an_absurd_sample_is_bounded() {
        let moved = [MILLISECOND; 20].into_iter().chain([150 * MILLISECOND; 40]);
        assert!(after(moved).smoothed() > 145 * MILLISECOND);
        let mut stepped = after([MILLISECOND; 20]);
        stepped.observe(Nanos::MAX);
        assert!(stepped.smoothed() <= MAX_SAMPLE / SMOOTHED_WEIGHT + MILLISECOND);
    }
}
