//! Requests over time, in a bounded number of intervals.

use std::collections::BTreeMap;

use tollgate_core::{Nanos, SECOND};

/// Intervals in seconds; each is a multiple of the one before, so that intervals can be joined.
const WIDTHS: [u64; 14] =
    [1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800, 2_419_200, 29_030_400];

/// The most intervals; with more, they get wider.
const MAX_INTERVALS: usize = 400;

/// What happened in one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) requests: u64,
    /// By the baseline, and by the rules to test.
    pub(crate) refused: [u64; 2],
}

/// Requests over time.
#[derive(Debug, Default)]
pub(crate) struct Series {
    width: usize,
    intervals: BTreeMap<u64, Interval>,
}

impl Series {
    /// The seconds of an interval.
    pub(crate) fn width_seconds(&self) -> u64 {
        WIDTHS.get(self.width).copied().unwrap_or(u64::MAX)
    }

    /// Counts a request.
    pub(crate) fn add(&mut self, at: Nanos, refused: [bool; 2]) {
        let place = at / SECOND / self.width_seconds();
        let interval = self.intervals.entry(place).or_default();
        interval.requests += 1;
        for (count, refused) in interval.refused.iter_mut().zip(refused) {
            *count += u64::from(refused);
        }
        while self.intervals.len() > MAX_INTERVALS && self.width + 1 < WIDTHS.len() {
            self.widen();
        }
    }

    fn widen(&mut self) {
        let before = self.width_seconds();
        self.width += 1;
        let factor = self.width_seconds() / before;
        for (place, interval) in std::mem::take(&mut self.intervals) {
            let wider = self.intervals.entry(place / factor).or_default();
            wider.requests += interval.requests;
            for (count, more) in wider.refused.iter_mut().zip(interval.refused) {
                *count += more;
            }
        }
    }

    /// The intervals in which something happened, each with the second it begins at.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Interval)> {
        let width = self.width_seconds();
        self.intervals.iter().map(move |(place, interval)| (place * width, *interval))
    }
}

/// The most requests in an interval of fixed length, and when.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Busiest {
    place: u64,
    count: u64,
    pub(crate) highest: u64,
    /// The second that the busiest interval begins at.
    pub(crate) second: u64,
}

impl Busiest {
    /// Counts a request; times must not go back.
    pub(crate) fn add(&mut self, at: Nanos, width_seconds: u64) {
        let place = at / SECOND / width_seconds;
        if place != self.place {
            (self.place, self.count) = (place, 0);
        }
        self.count += 1;
        if self.count > self.highest {
            (self.highest, self.second) = (self.count, place * width_seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_get_wider_and_lose_nothing() {
        let mut series = Series::default();
        for second in 0..100_000 {
            series.add(second * SECOND, [second % 2 == 0, second % 4 == 0]);
        }
        assert_eq!(series.width_seconds(), 300);
        let intervals: Vec<_> = series.iter().collect();
        assert_eq!(intervals.len(), 334);
        let whole = Interval { requests: 300, refused: [150, 75] };
        assert_eq!(intervals.get(1), Some(&(300, whole)));
        let requests: u64 = intervals.iter().map(|(_, interval)| interval.requests).sum();
        assert_eq!(requests, 100_000);
    }

    #[test]
    fn hostile_times_stay_bounded() {
        let mut series = Series::default();
        for step in 0..5_000_u64 {
            series.add(step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 1, [false; 2]);
        }
        assert!(series.iter().count() <= 2 * MAX_INTERVALS);
    }
}
