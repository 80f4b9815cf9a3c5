//! A bucket while some of its charges may still be refunded.
//!
//! A charge of span `s` at instant `t` moves the arrival time: `tat → max(tat, t) + s`. Charges that cannot be refunded
//! compose to one effect `tat → max(tat + added, floor)`, so two figures hold any number of them. What a bucket owes a
//! refund depends on everything that happened since the charge; therefore the refundable charges are kept in a list, each
//! with the composed effect of the final charges that followed it. A refund lowers its charge and replays the list: the
//! result is the state that the remaining charges alone would have left, in whatever order and whenever refunds come.
//!
//! Charges of one instant can change places without a difference, so all refundable charges of an instant are one entry, and a
//! receipt names its charge by the instant. An entry is dropped when its charge is refunded or closed, when nothing of its
//! effect is left (the bucket was empty since), or, being a short-lived hold, when nobody can want it back any more.
//! Reservations, holds and chunks on lease have [`MAX_OPEN_CHARGES`] places each, so that none of them displaces another sort:
//! beyond that, the oldest entry of the same sort becomes final.

use crate::pace::Pace;
use crate::state::Refundable;
use crate::{Bucket, Nanos, SECOND, Span};

/// The most entries of one bucket for each sort: reservations, holds, and chunks on lease.
pub const MAX_OPEN_CHARGES: usize = 64;

/// How long a charge that is [`Refundable::Briefly`] can be refunded.
pub const BRIEF: Nanos = 10 * SECOND;

/// What the charges of an entry are. Each sort has [`MAX_OPEN_CHARGES`] places of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Reserved,
    Held,
    OnLease,
}

/// The refundable charges of one instant, and the final charges between them and the next entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenCharge {
    /// When they were made.
    pub at: Nanos,
    /// All of them are short-lived holds.
    pub is_brief: bool,
    /// All of them are chunks on lease, or holds.
    pub is_leased: bool,
    /// What they occupy and can give back.
    pub span: Span,
    /// The final charges that followed: `tat → max(tat + added, floor)`.
    pub added: Span,
    /// See [`OpenCharge::added`].
    pub floor: Span,
}

/// A bucket with refundable charges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenBucket {
    /// The theoretical arrival time with all charges.
    tat: Span,
    /// The arrival time before the first entry.
    base: Span,
    /// The denominator of the spans.
    unit: u64,
    charges: Vec<OpenCharge>,
    /// Charges that became final for want of room, since [`OpenBucket::take_finalized`].
    finalized: u32,
}

impl OpenBucket {
    pub(crate) const fn new(bucket: Bucket, unit: u64) -> Self {
        Self { tat: bucket.tat, base: bucket.tat, unit, charges: Vec::new(), finalized: 0 }
    }

    /// The bucket that was taken apart by [`OpenBucket::base`], [`OpenBucket::unit`] and [`OpenBucket::charges`]. Entries of a
    /// sort beyond [`MAX_OPEN_CHARGES`] become final.
    pub fn from_parts(base: Span, unit: u64, charges: Vec<OpenCharge>) -> Self {
        let mut bucket = Self { tat: base, base, unit, charges, finalized: 0 };
        for sort in [Sort::Reserved, Sort::Held, Sort::OnLease] {
            bucket.trim(sort);
        }
        bucket.finalized = 0;
        bucket.replay();
        bucket
    }

    /// The arrival time before the first entry.
    pub const fn base(&self) -> Span {
        self.base
    }

    /// The denominator of the spans.
    pub const fn unit(&self) -> u64 {
        self.unit
    }

    /// The entries, oldest first.
    pub fn charges(&self) -> &[OpenCharge] {
        &self.charges
    }

    /// The same arrival time without a list: what callers see of it.
    pub const fn bucket(&self) -> Bucket {
        Bucket { tat: self.tat }
    }

    /// How many charges became final for want of room since this was last asked.
    pub const fn take_finalized(&mut self) -> u32 {
        std::mem::replace(&mut self.finalized, 0)
    }

    /// Takes over a list that was written under a limit with another denominator: fractions of a nanosecond are rounded up,
    /// each by itself. The sum may grow by that, so a bucket that is empty is emptied first: it must not differ from one that
    /// a store has dropped.
    pub(crate) fn adopt(&mut self, pace: &Pace, now: Nanos) {
        if self.unit == pace.denominator {
            return;
        }
        self.unit = pace.denominator;
        let up = |span: &mut Span| *span = Span::whole(span.ceil());
        if self.tat <= Span::whole(now) {
            self.charges.clear();
            self.base = self.tat;
        }
        up(&mut self.base);
        for charge in &mut self.charges {
            up(&mut charge.span);
            up(&mut charge.added);
            up(&mut charge.floor);
        }
        self.replay();
    }

    /// The instant of a charge that is made now: a clock that was set back does not reorder the list, nor put a charge in
    /// front of a final one that was made after the last entry.
    pub(crate) fn instant(&self, now: Nanos) -> Nanos {
        self.charges.last().map_or(now, |last| last.latest(self.unit).max(now))
    }

    /// Charges, and returns the instant that the charge is known by.
    pub(crate) fn charge(
        &mut self,
        pace: &Pace,
        span: Span,
        refundable: Refundable,
        now: Nanos,
    ) -> Nanos {
        let unit = pace.denominator;
        let at = self.instant(now);
        if span.is_zero() {
            return at;
        }
        let instant = Span::whole(at);
        if self.tat <= instant {
            // Nothing of what was charged before is left.
            self.charges.clear();
            (self.base, self.tat) = (Span::default(), Span::default());
        }
        self.tat = self.tat.max(instant).plus(span, unit);
        match self.charges.last_mut() {
            Some(last) if refundable == Refundable::No => last.append_final(instant, span, unit),
            Some(last) if last.at == at => {
                last.span = last.span.plus(span, unit);
                let before = last.sort();
                let is_leased =
                    last.is_leased || (last.is_brief && refundable == Refundable::OnLease);
                last.is_leased = is_leased && refundable != Refundable::UntilClosed;
                last.is_brief &= refundable == Refundable::Briefly;
                let sort = last.sort();
                // It has become one of the others, of which there may be enough.
                if sort != before {
                    self.trim(sort);
                }
            }
            None if refundable == Refundable::No => self.base = self.tat,
            _ => self.open(at, span, refundable),
        }
        at
    }

    /// Adds an entry.
    fn open(&mut self, at: Nanos, span: Span, refundable: Refundable) {
        while self.charges.first().is_some_and(|first| first.is_over(at)) {
            self.finalize(0);
        }
        let is_brief = refundable == Refundable::Briefly;
        let is_leased = refundable == Refundable::OnLease;
        let charge = OpenCharge { at, is_brief, is_leased, span, ..OpenCharge::default() };
        self.charges.push(charge);
        self.trim(charge.sort());
    }

    /// Makes entries of one sort final until they are within their bound. The newest entry stays.
    fn trim(&mut self, sort: Sort) {
        while self.charges.iter().filter(|charge| charge.sort() == sort).count() > MAX_OPEN_CHARGES
        {
            let Some((newest, older)) = self.charges.split_last() else { return };
            let Some(place) = older.iter().position(|charge| charge.sort() == sort) else { return };
            let is_over = older.get(place).is_some_and(|oldest| oldest.is_over(newest.at));
            self.finalized += u32::from(!is_over);
            self.finalize(place);
        }
    }

    /// Makes the charge of an entry final.
    fn finalize(&mut self, index: usize) {
        let unit = self.unit;
        if let Some(charge) = self.charges.get_mut(index) {
            charge.close(charge.span, unit);
            self.remove(index);
        }
    }

    /// Removes an entry whose charge is refunded or final; the final charges behind it stay.
    fn remove(&mut self, index: usize) {
        if index >= self.charges.len() {
            return;
        }
        let OpenCharge { added, floor, .. } = self.charges.remove(index);
        let unit = self.unit;
        match index.checked_sub(1).and_then(|before| self.charges.get_mut(before)) {
            Some(before) => {
                before.added = before.added.plus(added, unit);
                before.floor = before.floor.plus(added, unit).max(floor);
            }
            None => self.base = self.base.plus(added, unit).max(floor),
        }
    }

    /// Works out the arrival time anew, and drops entries that make no difference to it.
    fn replay(&mut self) {
        let (mut tat, mut spent) = (self.base, 0);
        for (index, charge) in self.charges.iter().enumerate() {
            if tat <= Span::whole(charge.at) {
                (self.base, spent) = (tat, index);
            }
            tat = tat.max(Span::whole(charge.at)).plus(charge.span, self.unit);
            tat = tat.plus(charge.added, self.unit);
            if tat <= charge.floor {
                tat = charge.floor;
                (self.base, spent) = (tat, index + 1);
            }
        }
        self.charges.drain(..spent);
        self.tat = tat;
    }

    /// Whether a charge of this instant is open.
    pub(crate) fn has_entry(&self, at: Nanos) -> bool {
        self.charges.iter().any(|charge| charge.at == at)
    }

    /// Undoes a charge made at `at`, or as much of it as is open.
    pub(crate) fn refund(&mut self, at: Nanos, span: Span) {
        let index = self.charges.iter().rposition(|charge| charge.at == at);
        let unit = self.unit;
        // An arrival time at the end of time no longer says what it is the sum of.
        let Some(index) = index.filter(|_| !self.tat.is_saturated()) else { return };
        let Some(charge) = self.charges.get_mut(index) else { return };
        charge.span = charge.span.minus(span, unit);
        if charge.span.is_zero() {
            self.remove(index);
        }
        self.replay();
    }

    /// Makes a charge of `at` final.
    pub(crate) fn close(&mut self, at: Nanos, span: Span) {
        let Some(index) = self.charges.iter().rposition(|charge| charge.at == at) else { return };
        let unit = self.unit;
        if let Some(charge) = self.charges.get_mut(index) {
            charge.close(span, unit);
            if charge.span.is_zero() {
                self.remove(index);
            }
        }
    }

    /// Undoes a final charge of this instant, which followed the last entry.
    pub(crate) fn undo_final(&mut self, span: Span, now: Nanos) {
        if self.charges.last().is_none_or(|last| last.added >= span) {
            self.refund_latest(span, now);
        }
    }

    /// Undoes so much of what was charged last and is nobody's: final charges first, then holds, down to an empty bucket.
    /// What others have reserved or have on lease stays.
    pub(crate) fn refund_latest(&mut self, span: Span, now: Nanos) {
        if self.tat.is_saturated() {
            return;
        }
        let unit = self.unit;
        let mut rest = span.min(self.tat.minus(Span::whole(now), unit));
        let mut take = |from: Span| {
            let part = rest.min(from);
            rest = rest.minus(part, unit);
            part
        };
        for charge in self.charges.iter_mut().rev() {
            let part = take(charge.added);
            charge.added = charge.added.minus(part, unit);
            charge.floor = charge.floor.minus(part, unit);
        }
        let from = self.charges.first().map_or(now, |first| first.at);
        let part = take(self.base.minus(Span::whole(from), unit));
        self.base = self.base.minus(part, unit);
        for hold in self.charges.iter_mut().rev().filter(|charge| charge.is_brief) {
            hold.span = hold.span.minus(take(hold.span), unit);
        }
        let is_undone = |charge: &OpenCharge| charge.span.is_zero();
        while let Some(index) = self.charges.iter().rposition(is_undone) {
            self.remove(index);
        }
        self.replay();
    }
}

impl OpenCharge {
    const fn sort(&self) -> Sort {
        match self {
            Self { is_brief: true, .. } => Sort::Held,
            Self { is_leased: true, .. } => Sort::OnLease,
            _ => Sort::Reserved,
        }
    }

    /// Whether it is a hold that nobody can want back any more.
    const fn is_over(&self, now: Nanos) -> bool {
        self.is_brief && self.at + BRIEF <= now
    }

    /// The earliest instant that a further charge may have: from it on, a charge in front of the final charges that followed
    /// has the same effect as one behind them. It is never later than the last of them.
    fn latest(&self, unit: u64) -> Nanos {
        if self.floor.is_saturated() {
            return self.at;
        }
        self.at.max(self.floor.minus(self.added, unit).ceil())
    }

    /// Adds a final charge behind the entry.
    fn append_final(&mut self, instant: Span, span: Span, unit: u64) {
        self.added = self.added.plus(span, unit);
        self.floor = self.floor.max(instant).plus(span, unit);
    }

    /// Makes so much of the charge final: it stays charged at the same instant, in front of what followed.
    fn close(&mut self, span: Span, unit: u64) {
        let part = span.min(self.span);
        self.span = self.span.minus(part, unit);
        self.added = self.added.plus(part, unit);
        self.floor = self.floor.max(Span::whole(self.at).plus(self.added, unit));
    }
}
