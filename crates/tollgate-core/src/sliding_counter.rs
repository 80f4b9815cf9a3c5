//! `sliding_window_counter`: the current window's count plus the part of the previous window's that
//! still overlaps the sliding one.

use crate::state::{Examination, Outcome, Receipt, Status};
use crate::{Limit, Nanos};

/// The counts of two neighbouring aligned windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlidingCounter {
    /// The end of the current window (exclusive); 0 when nothing was counted yet.
    pub end: Nanos,
    /// The sum of the costs charged in the current window.
    pub current: u64,
    /// The sum of the costs charged in the window before it.
    pub previous: u64,
}

impl SlidingCounter {
    #[inline]
    pub(crate) fn fresh_at(self, window: Nanos) -> Nanos {
        match (self.current, self.previous) {
            (0, 0) => 0,
            (0, _) => self.end,
            _ => self.end.saturating_add(window),
        }
    }

    /// The same counts, relative to the window that contains `now`. A `now` before the current
    /// window leaves the state unchanged.
    #[inline]
    fn rolled_to(self, limit: &Limit, now: Nanos) -> Self {
        if now < self.end {
            return self;
        }
        let end = limit.window_bounds(now).1;
        let previous =
            if end == self.end.saturating_add(limit.window_nanos()) { self.current } else { 0 };
        Self { end, current: 0, previous }
    }

    /// The nanoseconds of the previous window that the sliding one still covers.
    #[inline]
    fn overlap(self, limit: &Limit, now: Nanos) -> Nanos {
        (self.end - now.min(self.end)).min(limit.window_nanos())
    }

    #[inline]
    pub(crate) fn examine(self, limit: &Limit, cost: u64, now: Nanos) -> Examination {
        let rolled = self.rolled_to(limit, now);
        let window = u128::from(limit.window_nanos());
        let carried = u128::from(rolled.previous) * u128::from(rolled.overlap(limit, now));
        let counted = (u128::from(rolled.current) + u128::from(cost)) * window;
        if carried + counted <= u128::from(limit.quota()) * window {
            Examination::Admit { wait: 0 }
        } else {
            Examination::Refuse { retry_at: Some(rolled.retry_at(limit, cost)) }
        }
    }

    /// The first instant at which `cost <= quota` passes. `self` is rolled and refuses it now.
    fn retry_at(self, limit: &Limit, cost: u64) -> Nanos {
        let window = u128::from(limit.window_nanos());
        let weight_falls_to = |room: u64, weight: u64, end: Nanos| {
            // weight * (end - t) <= room * window, solved for the smallest whole t
            let reach = (u128::from(room) * window).checked_div(u128::from(weight));
            let reach = reach.unwrap_or(window).min(window);
            end.saturating_sub(reach as u64)
        };
        let room = limit.quota().saturating_sub(cost);
        if let Some(room) = room.checked_sub(self.current) {
            return weight_falls_to(room, self.previous, self.end);
        }
        let next_end = self.end.saturating_add(limit.window_nanos());
        weight_falls_to(room, self.current, next_end).max(self.end)
    }

    #[inline]
    pub(crate) fn charge(&mut self, limit: &Limit, cost: u64, now: Nanos) -> Receipt {
        let mut rolled = self.rolled_to(limit, now);
        // A cost of 0 changes nothing: a clock that steps back finds what was counted before.
        if cost > 0 {
            rolled.current = rolled.current.saturating_add(cost);
            *self = rolled;
        }
        Receipt::Window { end: rolled.end, at: now, cost }
    }

    #[inline]
    pub(crate) fn give_back(&mut self, limit: &Limit, end: Nanos, cost: u64) -> u64 {
        let count = if self.end == end {
            &mut self.current
        } else if self.end == end.saturating_add(limit.window_nanos()) {
            &mut self.previous
        } else {
            return 0;
        };
        // A saturated count no longer says what it is the sum of.
        if *count == u64::MAX {
            return 0;
        }
        let returned = cost.min(*count);
        *count -= returned;
        returned
    }

    /// What of the previous window still counts, rounded up. Counts and quotas are whole, so what fits
    /// beside it fits beside the exact part too.
    #[inline]
    fn carried(self, limit: &Limit, now: Nanos) -> u64 {
        if self.previous == 0 {
            return 0;
        }
        let (window, overlap) = (limit.window_nanos(), self.overlap(limit, now));
        match self.previous.checked_mul(overlap) {
            Some(product) => product.div_ceil(window),
            None => (u128::from(self.previous) * u128::from(overlap)).div_ceil(u128::from(window))
                as u64,
        }
    }

    /// Examine, charge if it passes, and report, in one go: what [`SlidingCounter::examine`],
    /// [`SlidingCounter::charge`] and [`SlidingCounter::status`] do one after another.
    #[inline]
    pub(crate) fn decide(&mut self, limit: &Limit, cost: u64, now: Nanos) -> Outcome {
        let mut rolled = self.rolled_to(limit, now);
        let carried = rolled.carried(limit, now);
        let current = rolled.current.checked_add(cost);
        let fits =
            |current: u64| current.checked_add(carried).is_some_and(|all| all <= limit.quota());
        let (examination, receipt) = match current {
            Some(current) if fits(current) => {
                rolled.current = current;
                if cost > 0 {
                    *self = rolled;
                }
                let receipt = Receipt::Window { end: rolled.end, at: now, cost };
                (Examination::Admit { wait: 0 }, receipt)
            }
            _ => {
                let retry_at = Some(rolled.retry_at(limit, cost));
                (Examination::Refuse { retry_at }, Receipt::Nothing)
            }
        };
        Outcome { examination, status: rolled.status_of(limit, carried, now), receipt }
    }

    #[inline]
    pub(crate) fn status(self, limit: &Limit, now: Nanos) -> Status {
        let rolled = self.rolled_to(limit, now);
        rolled.status_of(limit, rolled.carried(limit, now), now)
    }

    /// The figures of a rolled counter.
    #[inline]
    fn status_of(self, limit: &Limit, carried: u64, now: Nanos) -> Status {
        let used = self.current.saturating_add(carried);
        Status {
            used,
            remaining: limit.quota().saturating_sub(used),
            reset_at: self.fresh_at(limit.window_nanos()).max(now),
        }
    }
}
