//! `fixed_window`: a count in an aligned window.

use crate::state::{Examination, Outcome, Receipt, Status};
use crate::{Limit, Nanos};

/// A count, and the end of the window it belongs to.
///
/// The window in force is the state's own for as long as `now < end`. A clock that steps back
/// therefore stays in the later window and mints nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedWindow {
    /// The end of the counted window (exclusive); 0 when nothing was counted yet.
    pub end: Nanos,
    /// The sum of the costs charged in it.
    pub count: u64,
}

impl FixedWindow {
    #[inline]
    pub(crate) fn fresh_at(self) -> Nanos {
        if self.count == 0 { 0 } else { self.end }
    }

    #[inline]
    fn count_at(self, now: Nanos) -> u64 {
        if now < self.end { self.count } else { 0 }
    }

    #[inline]
    fn end_at(self, limit: &Limit, now: Nanos) -> Nanos {
        if now < self.end { self.end } else { limit.window_bounds(now).1 }
    }

    #[inline]
    pub(crate) fn examine(self, limit: &Limit, cost: u64, now: Nanos) -> Examination {
        match self.count_at(now).checked_add(cost) {
            Some(count) if count <= limit.quota() => Examination::Admit { wait: 0 },
            // A count above zero here means that the window is the state's own.
            _ => Examination::Refuse { retry_at: Some(self.end_at(limit, now)) },
        }
    }

    #[inline]
    pub(crate) fn charge(&mut self, limit: &Limit, cost: u64, now: Nanos) -> Receipt {
        let end = self.end_at(limit, now);
        // A cost of 0 changes nothing: a clock that steps back finds what was counted before.
        if cost > 0 {
            *self = Self { end, count: self.count_at(now).saturating_add(cost) };
        }
        Receipt::Window { end, at: now, cost }
    }

    /// Examine, charge if it passes, and report, in one go: what [`FixedWindow::examine`],
    /// [`FixedWindow::charge`] and [`FixedWindow::status`] do one after another.
    #[inline]
    pub(crate) fn decide(&mut self, limit: &Limit, cost: u64, now: Nanos) -> Outcome {
        let (end, count) = (self.end_at(limit, now), self.count_at(now));
        let total = count.checked_add(cost).filter(|total| *total <= limit.quota());
        let (used, examination, receipt) = match total {
            Some(total) => {
                if cost > 0 {
                    *self = Self { end, count: total };
                }
                (total, Examination::Admit { wait: 0 }, Receipt::Window { end, at: now, cost })
            }
            None => (count, Examination::Refuse { retry_at: Some(end) }, Receipt::Nothing),
        };
        let reset_at = if used == 0 { now } else { end };
        let remaining = limit.quota().saturating_sub(used);
        Outcome { examination, status: Status { used, remaining, reset_at }, receipt }
    }

    #[inline]
    pub(crate) fn give_back(&mut self, end: Nanos, cost: u64) -> u64 {
        // A saturated count no longer says what it is the sum of.
        if self.end != end || self.count == u64::MAX {
            return 0;
        }
        let returned = cost.min(self.count);
        self.count -= returned;
        returned
    }

    #[inline]
    pub(crate) fn status(self, limit: &Limit, now: Nanos) -> Status {
        let used = self.count_at(now);
        Status {
            used,
            remaining: limit.quota().saturating_sub(used),
            reset_at: if used == 0 { now } else { self.end },
        }
    }
}
