//! How much to hold, when to fetch more, and for how long: demand times distance, with a margin.
//!
//! A steady caller never waits if what is held when a fetch departs lasts until it has landed. So the
//! refetch point is what is likely to be asked for in one round trip that is seldom exceeded, and
//! three standard deviations more; the target is a horizon above that.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tollgate_core::{Nanos, SECOND};

use super::demand::Rate;
use super::{LeaseOptions, MILLISECOND};
use crate::round_trip::RoundTrip;

/// A lease lasts for at most this many round trips, or as long as configured if that is longer.
const MAX_ROUND_TRIPS: u64 = 20;

/// The longest lease that distance makes.
const MAX_LIFETIME: Nanos = 60 * SECOND;

/// From this round trip on, quota that went back too early is a wait that callers notice. So a chunk of a
/// fixed window may be spent while the first fetch of the next window is under way, and a counter is
/// idle only after a pause that does not happen by chance.
const FAR: Nanos = 5 * MILLISECOND;

/// A counter is idle after this many requests that did not come.
const IDLE_GAPS: u64 = 8;

/// A counter that is asked for at least once in a horizon and this many round trips is leased.
const WORTH_ROUND_TRIPS: u64 = 8;

/// Parts of a unit that small demands are reckoned in.
const PARTS: u64 = 64;

/// Standard deviations of demand that are held beyond its mean, squared.
const SPREAD_SQUARED: u64 = 9;

/// How far the store is, shared by all leases of a node.
#[derive(Debug, Default)]
pub(super) struct Distance {
    measured: Mutex<RoundTrip>,
    smoothed: AtomicU64,
    high: AtomicU64,
}

impl Distance {
    /// A call departed and was answered at these instants of one clock. Instants that a clock cannot
    /// show in this order are ignored.
    pub(super) fn observe(&self, departed: Nanos, landed: Nanos) {
        let Some(sample) = landed.checked_sub(departed).filter(|_| departed > 0) else { return };
        let mut measured = self.measured.lock();
        measured.observe(sample);
        self.smoothed.store(measured.smoothed(), Relaxed);
        self.high.store(measured.high(), Relaxed);
    }

    /// The usual round trip.
    pub(super) fn smoothed(&self) -> Nanos {
        self.smoothed.load(Relaxed)
    }

    /// A round trip that is seldom exceeded.
    pub(super) fn high(&self) -> Nanos {
        self.high.load(Relaxed)
    }
}

/// What leases go by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) options: &'a LeaseOptions,
    pub(super) distance: &'a Distance,
}

/// What one counter's lease should look like now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sizing {
    /// With less than this at hand, more is fetched.
    pub(super) refetch_below: u64,
    /// What should be at hand when a fetch has landed.
    pub(super) target: u64,
    /// What is asked for while a fetch is under way.
    pub(super) in_transit: u64,
    /// What is asked for in the time that a lease is worth while: a horizon and eight round trips.
    pub(super) in_horizon: u64,
    /// A lease that expires within this time is renewed.
    pub(super) renew_within: Nanos,
    /// How long a lease lasts by the store's clock.
    pub(super) lifetime: Nanos,
    /// How long before its end it is no longer spent.
    pub(super) margin: Nanos,
    /// After how long without a request unspent quota goes back.
    pub(super) idle: Nanos,
    /// For how long after its window's end a chunk of a fixed window may be spent.
    pub(super) bridge: Nanos,
}

impl Sizing {
    /// `largest` is the largest single cost lately.
    pub(super) fn new(rate: Rate, largest: u64, terms: &Terms<'_>) -> Self {
        let Terms { options, distance } = terms;
        let (smoothed, high) = (distance.smoothed(), distance.high());
        let lead = high.saturating_add(options.horizon / 4);
        let parts = rate.over(lead.saturating_mul(PARTS));
        let spread = (parts.saturating_mul(largest).saturating_mul(SPREAD_SQUARED) / PARTS).isqrt();
        let refetch_below = parts.div_ceil(PARTS).saturating_add(spread).saturating_add(largest);
        // At least half of the refetch point at a time: few chunks, and few fetches.
        let batch =
            rate.over(options.horizon).max(refetch_below / 2).max(largest.saturating_mul(2));
        let target = refetch_below.saturating_add(batch);
        let worth = high.saturating_mul(WORTH_ROUND_TRIPS);
        let gap = rate.time_of(largest);
        let pauses = lead.saturating_add(gap.saturating_mul(2));
        let (is_far, idle) = (high >= FAR, gap.saturating_mul(IDLE_GAPS).saturating_add(lead));
        let lifetime = pauses
            .saturating_add(rate.time_of(target))
            .saturating_mul(2)
            .min(high.saturating_mul(MAX_ROUND_TRIPS).min(MAX_LIFETIME))
            .max(options.ttl);
        Self {
            refetch_below,
            target,
            in_transit: rate.over(smoothed),
            in_horizon: rate.over(worth.saturating_add(options.horizon)),
            renew_within: pauses.min(lifetime / 2),
            lifetime,
            margin: options.margin.max(high / 2).min(lifetime / 4),
            idle: if is_far { idle.min(lifetime).max(options.idle) } else { options.idle },
            bridge: if is_far { lead.saturating_mul(2) } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::demand::Demand;
    use super::*;

    const START: Nanos = 1_789_000_000 * SECOND;

    fn sizing(per_second: u64, round_trip: Nanos) -> Sizing {
        let mut demand = Demand::default();
        for request in 0..per_second * 2 {
            demand.ask(1, START + request * SECOND / per_second);
        }
        let distance = Distance::default();
        for _ in 0..60 {
            distance.observe(START, START + round_trip);
        }
        let options = LeaseOptions::new("a".to_owned());
        let terms = Terms { options: &options, distance: &distance };
        Sizing::new(demand.rate(START + 2 * SECOND), demand.largest(), &terms)
    }

    #[test]
    fn what_is_held_at_a_fetch_lasts_longer_than_a_round_trip() {
        for round_trip in [0, 1, 20, 40, 80, 150, 400].map(|millis| millis * MILLISECOND) {
            for per_second in [5, 20, 200, 2_000, 100_000] {
                let Sizing { refetch_below, target, in_transit, .. } =
                    sizing(per_second, round_trip);
                let spent = per_second * round_trip / SECOND;
                assert!(in_transit >= spent);
                assert!(refetch_below > spent + spent / 8, "{per_second} at {round_trip}");
                assert!(target > refetch_below);
            }
        }
    }

    #[test]
    fn a_near_store_keeps_what_is_configured_and_a_far_one_stretches_it() {
        let near = sizing(200, MILLISECOND / 2);
        assert_eq!((near.lifetime, near.idle), (SECOND, 200 * MILLISECOND));
        assert_eq!((near.margin, near.bridge), (50 * MILLISECOND, 0));
        let far = sizing(5, 150 * MILLISECOND);
        assert!(far.lifetime > 2 * SECOND && far.lifetime <= 20 * 169 * MILLISECOND, "{far:?}");
        assert!(far.idle > 400 * MILLISECOND && far.idle <= far.lifetime, "{far:?}");
        assert!(far.margin >= 75 * MILLISECOND && far.bridge > 300 * MILLISECOND, "{far:?}");
        assert!(far.renew_within <= far.lifetime / 2);
    }

    #[test]
    fn instants_in_the_wrong_order_are_no_distance() {
        let distance = Distance::default();
        distance.observe(0, SECOND);
        distance.observe(2 * SECOND, SECOND);
        assert_eq!((distance.smoothed(), distance.high()), (0, 0));
    }
}
