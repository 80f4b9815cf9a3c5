//! `token_bucket`, `leaky_bucket` and `gcra`: one theoretical arrival time.
//!
//! A charge of cost `c` occupies `c * W / L` nanoseconds of the bucket's time line. The theoretical
//! arrival time (`tat`) is where the occupied stretch ends: a bucket is full of tokens when it has
//! passed, and empty when it lies a whole burst ahead.
//!
//! **Giving back.** Charges queue up on the time line, so giving one back moves those behind it
//! forward, and their receipts would then claim more than their charge still occupies. `shift` is
//! the sum of all such moves. Receipts are told in *nominal* time, `tat + shift`, which never moves
//! back except when the last charge on the line is taken off it; a receipt's present place is its
//! nominal end less the present shift. That place is never later than the true one, so a give-back
//! never returns more than the charge still occupies. When all nominal time has passed, no receipt
//! can claim anything, and the bucket is fresh.

use crate::limit::Pace;
use crate::state::{Ask, Examination, Receipt, Status};
use crate::{Algorithm, Limit, Nanos, Span};

/// The grain of [`Bucket::shift_micros`]; moves are rounded up to it.
const SHIFT_GRAIN: Nanos = 1_000;

/// The state of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// The theoretical arrival time.
    pub tat: Span,
    /// How far give-backs have moved the time line forward, in microseconds.
    pub shift_micros: u64,
}

impl Bucket {
    #[inline]
    pub(crate) fn fresh_at(self) -> Nanos {
        self.tat.ceil().saturating_add(self.shift().nanos)
    }

    #[inline]
    fn shift(self) -> Span {
        Span::whole(self.shift_micros.saturating_mul(SHIFT_GRAIN))
    }

    #[inline]
    pub(crate) fn examine(self, limit: &Limit, ask: &Ask, now: Nanos) -> Examination {
        let pace = limit.pace();
        let start = self.tat.max(Span::whole(now));
        let end = start.plus(pace.span_of(ask.cost), pace.denominator);
        let horizon = Span::whole(now).plus(pace.capacity, pace.denominator);
        let over = end.minus(horizon, pace.denominator).ceil();
        if limit.algorithm() == Algorithm::LeakyBucket {
            let wait = start.ceil() - now;
            let too_late = ask.max_delay.map_or(0, |most| wait.saturating_sub(most));
            return match over.max(too_late) {
                0 => Examination::Admit { wait },
                later => Examination::Refuse { retry_at: Some(now.saturating_add(later)) },
            };
        }
        let most = ask.max_delay.unwrap_or(0);
        if over <= most {
            Examination::Admit { wait: over }
        } else {
            Examination::Refuse { retry_at: Some(now.saturating_add(over - most)) }
        }
    }

    #[inline]
    pub(crate) fn charge(&mut self, limit: &Limit, cost: u64, now: Nanos) -> Receipt {
        let pace = limit.pace();
        if self.fresh_at() <= now {
            self.shift_micros = 0;
        }
        let start = self.tat.max(Span::whole(now));
        self.tat = start.plus(pace.span_of(cost), pace.denominator);
        Receipt::Bucket { nominal_end: self.nominal_end(pace), cost }
    }

    #[inline]
    fn nominal_end(self, pace: &Pace) -> Span {
        self.tat.plus(self.shift(), pace.denominator)
    }

    pub(crate) fn give_back(&mut self, limit: &Limit, nominal_end: Span, cost: u64, now: Nanos) {
        let pace = limit.pace();
        let present_end = nominal_end.minus(self.shift(), pace.denominator);
        let ahead = present_end.minus(Span::whole(now), pace.denominator);
        let occupied = ahead.min(pace.span_of(cost));
        if occupied.is_zero() {
            return;
        }
        let is_last = nominal_end == self.nominal_end(pace);
        self.tat = self.tat.minus(occupied, pace.denominator);
        if !is_last {
            let moved = occupied.ceil().div_ceil(SHIFT_GRAIN);
            self.shift_micros = self.shift_micros.saturating_add(moved);
        }
    }

    #[inline]
    pub(crate) fn status(self, limit: &Limit, now: Nanos) -> Status {
        let pace = limit.pace();
        let ahead = self.tat.minus(Span::whole(now), pace.denominator);
        let used = pace.cost_of(ahead);
        Status {
            used,
            remaining: limit.capacity().saturating_sub(used),
            reset_at: self.tat.ceil().max(now),
        }
    }
}
