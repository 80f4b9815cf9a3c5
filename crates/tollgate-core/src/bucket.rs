//! `token_bucket`, `leaky_bucket` and `gcra`: one theoretical arrival time.
//!
//! A charge of cost `c` occupies `c * W / L` nanoseconds of the bucket's time line. The theoretical
//! arrival time (`tat`) is where the occupied stretch ends: a bucket is full of tokens when it has
//! passed, and empty when it lies a whole burst ahead.
//!
//! **Refunds.** What is due for a charge depends on everything that was charged since, which one number does not hold. A
//! charge that was not asked to be refundable can therefore be undone only in the instant in which it was made; refundable
//! charges are kept in a list ([`crate::OpenBucket`]).

use crate::pace::Pace;
use crate::state::{Ask, Examination, Outcome, Receipt, Status};
use crate::{Algorithm, Limit, Nanos, Span};

/// The state of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// The theoretical arrival time.
    pub tat: Span,
}

impl Bucket {
    #[inline]
    pub(crate) fn fresh_at(self) -> Nanos {
        self.tat.ceil()
    }

    /// How far the time line is occupied beyond `now`.
    #[inline]
    fn ahead(self, pace: &Pace, now: Nanos) -> Span {
        self.tat.minus(Span::whole(now), pace.denominator)
    }

    #[inline]
    pub(crate) fn examine(self, limit: &Limit, ask: &Ask, now: Nanos) -> Examination {
        let pace = limit.pace();
        let ahead = self.ahead(pace, now);
        let filled = ahead.plus(pace.span_of(ask.cost), pace.denominator);
        Self::judge(limit, ask, now, ahead, filled)
    }

    /// Whether a charge passes that would occupy the time line from `ahead` to `filled` beyond now.
    #[inline]
    fn judge(limit: &Limit, ask: &Ask, now: Nanos, ahead: Span, filled: Span) -> Examination {
        let pace = limit.pace();
        let over = filled.minus(pace.capacity, pace.denominator).ceil();
        if limit.algorithm() == Algorithm::LeakyBucket {
            let wait = ahead.ceil();
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

    /// Examine, charge if it passes, and report, in one go: what [`Bucket::examine`],
    /// [`Bucket::charge`] and [`Bucket::status`] do one after another.
    #[inline]
    pub(crate) fn decide(&mut self, limit: &Limit, ask: &Ask, now: Nanos) -> Outcome {
        let pace = limit.pace();
        if limit.is_whole() && ask.max_delay.is_none() {
            let (tat, outcome) = Self::decide_whole(self.tat.nanos, limit, ask, now);
            self.tat = Span::whole(tat);
            return outcome;
        }
        let ahead = self.ahead(pace, now);
        let filled = ahead.plus(pace.span_of(ask.cost), pace.denominator);
        let examination = Self::judge(limit, ask, now, ahead, filled);
        if !examination.admits() {
            let status = Self::status_of(limit, ahead, now);
            return Outcome { examination, status, receipt: Receipt::Nothing };
        }
        let receipt = self.occupy(pace, filled, ask.cost, now);
        Outcome { examination, status: Self::status_of(limit, filled, now), receipt }
    }

    /// [`Bucket::decide`] where a unit of cost takes whole nanoseconds, as it does in most decisions: the
    /// same in plain integers.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "most of what it returns is dropped where it is called"
    )]
    pub(crate) fn decide_whole(
        tat: Nanos,
        limit: &Limit,
        ask: &Ask,
        now: Nanos,
    ) -> (Nanos, Outcome) {
        let pace = limit.pace();
        let ahead = tat.saturating_sub(now);
        let filled = ahead.saturating_add(pace.span_of(ask.cost).nanos);
        let over = filled.saturating_sub(pace.capacity.nanos);
        if over > 0 {
            let examination = Examination::Refuse { retry_at: Some(now.saturating_add(over)) };
            let status = Self::status_of(limit, Span::whole(ahead), now);
            return (tat, Outcome { examination, status, receipt: Receipt::Nothing });
        }
        let wait = if limit.algorithm() == Algorithm::LeakyBucket { ahead } else { 0 };
        let tat = if ask.cost == 0 { tat } else { now.saturating_add(filled) };
        let outcome = Outcome {
            examination: Examination::Admit { wait },
            status: Self::status_of(limit, Span::whole(filled), now),
            receipt: Receipt::Bucket { at: now, cost: ask.cost },
        };
        (tat, outcome)
    }

    #[inline]
    fn occupy(&mut self, pace: &Pace, filled: Span, cost: u64, now: Nanos) -> Receipt {
        // A cost of 0 changes nothing: a clock that steps back finds what was charged before.
        if cost > 0 {
            self.tat = Span::whole(now).plus(filled, pace.denominator);
        }
        Receipt::Bucket { at: now, cost }
    }

    #[inline]
    pub(crate) fn charge(&mut self, limit: &Limit, cost: u64, now: Nanos) -> Receipt {
        let pace = limit.pace();
        let filled = self.ahead(pace, now).plus(pace.span_of(cost), pace.denominator);
        self.occupy(pace, filled, cost, now)
    }

    /// Undoes so much of what was charged last.
    pub(crate) fn give_back(&mut self, limit: &Limit, cost: u64, now: Nanos) -> Span {
        let pace = limit.pace();
        // An arrival time at the end of time no longer says what it is the sum of.
        if self.tat.is_saturated() {
            return Span::default();
        }
        let occupied = self.ahead(pace, now).min(pace.span_of(cost));
        self.tat = self.tat.minus(occupied, pace.denominator);
        occupied
    }

    #[inline]
    pub(crate) fn status(self, limit: &Limit, now: Nanos) -> Status {
        Self::status_of(limit, self.ahead(limit.pace(), now), now)
    }

    #[inline]
    fn status_of(limit: &Limit, ahead: Span, now: Nanos) -> Status {
        // A suspended bucket (quota 0) has no pace, so the time that charges of another tier occupy
        // cannot be converted to a cost.
        let used = if limit.quota() == 0 { 0 } else { limit.pace().cost_of(ahead) };
        Status {
            used,
            remaining: limit.capacity().saturating_sub(used),
            reset_at: now.saturating_add(ahead.ceil()),
        }
    }
}
