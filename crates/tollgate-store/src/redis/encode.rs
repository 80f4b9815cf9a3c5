//! Requests as the scripts read them.

use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use tollgate_core::{
    Algorithm, Ask, Limit, MAX_MICROS, MICRO, Nanos, Receipt, Refundable, SECOND, Window,
};

use super::figures::Line;
use super::key::{KeyEncoder, Keys};
use super::msgpack::Elements;
use crate::{Charge, Failure, Mode, Request, Role};

pub(super) type Lines<'a> = SmallVec<[Line<'a>; 8]>;

/// How a limit is counted; `scripts/counters.lua` has the same names.
const BUCKET: u64 = 1;
const WINDOW: u64 = 2;
const CALENDAR: u64 = 3;
const SLIDING: u64 = 4;
const LOG: u64 = 5;
const SLOTS: u64 = 6;

/// Stands for any instant in the receipt of a bucket; later than all instants.
const ANY_INSTANT: Nanos = MAX_MICROS * MICRO;

/// The kind of the receipt of a refundable charge to a bucket; `scripts/receipts.lua` has the same name.
const OPEN: u64 = 7;
/// The same, which becomes final.
const CLOSE: u64 = 9;

/// How far the server's clock may be from what we take it for before a calendar's next or last window
/// has to be looked up for it.
const CLOCK_DOUBT: Nanos = 60 * SECOND;

/// Requests on their way into a call.
#[derive(Debug, Clone, Default)]
pub(super) struct Encoded {
    pub(super) keys: Keys,
    pub(super) elements: Elements,
    /// Per request, how many numbers its answer has after its verdict.
    pub(super) replies: SmallVec<[u32; 4]>,
    /// Whether any of it may change a counter.
    pub(super) charges: bool,
    /// Whether any of it was spent already, and is owed.
    pub(super) owes: bool,
}

impl Encoded {
    /// Adds a request, and to `lines` its charges. `now` is what we take the server's clock for.
    pub(super) fn push<'a>(
        &mut self,
        speller: &KeyEncoder,
        request: &Request<'a>,
        now: Nanos,
        lines: &mut Lines<'a>,
    ) -> Result<(), Failure> {
        self.begin(request.mode, request.charges.len());
        let first = self.keys.len();
        for (index, charge) in request.charges.iter().enumerate() {
            speller.push_counter(&charge.counter, &mut self.keys);
            self.charge(charge.limit, &charge.ask, charge.role, now)?;
            let counter = self.keys.first_like(first, first + index) - first;
            let Charge { limit, ask, role, .. } = *charge;
            lines.push(Line { counter, limit, ask, role });
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, mode: Mode, charges: usize) {
        let mode_number = match mode {
            Mode::Charge => 0,
            Mode::Peek => 1,
            Mode::Owe => 2,
            Mode::Hold => 3,
        };
        self.charges |= mode != Mode::Peek;
        self.owes |= mode == Mode::Owe;
        self.elements.number(mode_number);
        self.elements.number(charges as u64);
        self.replies.push(0);
    }

    /// Adds a charge to the request begun last; its key is added apart.
    pub(super) fn charge(
        &mut self,
        limit: &Limit,
        ask: &Ask,
        role: Role,
        now: Nanos,
    ) -> Result<(), Failure> {
        self.elements.number(kind_of(limit)?);
        self.elements.number(match role {
            Role::Must => 0,
            Role::AnyOf => 1,
            Role::Watch => 2,
            Role::Alongside => 3,
        });
        push_parameters(&mut self.elements, limit, ask, now);
        if let Some(reply) = self.replies.last_mut() {
            *reply += answer_width(limit);
        }
        Ok(())
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.keys.append(&other.keys);
        self.elements.append(&other.elements);
        self.replies.extend_from_slice(&other.replies);
        self.charges |= other.charges;
        self.owes |= other.owes;
    }
}

/// How many numbers tell whether a charge fits, and the state before.
pub(super) fn answer_width(limit: &Limit) -> u32 {
    match limit.algorithm() {
        Algorithm::FixedWindow => 3,
        Algorithm::SlidingWindowLog | Algorithm::SlidingWindowCounter => 4,
        _ => 5,
    }
}

/// How a limit is counted. An error where it cannot be in whole microseconds below 2^53; the check
/// of the rule file reports such limits before they get here.
pub(super) fn kind_of(limit: &Limit) -> Result<u64, Failure> {
    if !limit.fits_micros() {
        report_unfit(limit);
        return Err(Failure::Protocol);
    }
    Ok(match (limit.algorithm(), limit.window()) {
        (Algorithm::FixedWindow, Window::Calendar(_)) => CALENDAR,
        (Algorithm::FixedWindow, Window::Every(_)) => WINDOW,
        (Algorithm::SlidingWindowCounter, _) => SLIDING,
        (Algorithm::SlidingWindowLog, _) => LOG,
        (Algorithm::Concurrency, _) => SLOTS,
        _ => BUCKET,
    })
}

#[cold]
fn report_unfit(limit: &Limit) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        tracing::error!(
            ?limit,
            "this limit cannot be counted in Redis: windows must be whole \
            microseconds, and quotas below 2^53, or for buckets below 2^53 / 1000"
        );
    }
}

/// The parameters of a charge, as its kind has them.
pub(super) fn push_parameters(elements: &mut Elements, limit: &Limit, ask: &Ask, now: Nanos) {
    let cost = ask.cost.min(MAX_MICROS);
    match (limit.algorithm(), limit.window()) {
        (Algorithm::Concurrency, _) => {
            elements.text(format!("{:032x}", { ask.slot.0 }).as_bytes());
            elements.number(limit.quota().min(MAX_MICROS));
            elements.number(limit.slot_ttl_of(ask) / MICRO);
        }
        (Algorithm::FixedWindow, Window::Calendar(calendar)) => {
            elements.number(cost);
            elements.number(limit.quota());
            let (start, end) = calendar.bounds(now);
            let far = |from: Nanos, to: Nanos| to.saturating_sub(from) > CLOCK_DOUBT;
            let before =
                if far(start, now) { start } else { calendar.bounds(start.saturating_sub(1)).0 };
            let after = if far(now, end) { end } else { calendar.bounds(end).1 };
            for bound in [before, start, end, after] {
                elements.number(bound / MICRO);
            }
        }
        (algorithm, _) if algorithm.is_bucket() => {
            let pace = limit.micro_pace();
            if let Some(room) = pace.room_for(&Ask { cost, ..*ask }) {
                elements.number(room.micros);
                elements.number(room.part);
            } else {
                elements.never();
                elements.number(0);
            }
            let span = pace.span_of(cost);
            elements.number(span.micros);
            elements.number(span.part);
            elements.number(pace.unit());
            let refundable = if limit.opens_charge(ask) { ask.refundable } else { Refundable::No };
            elements.number(refundable as u64);
        }
        _ => {
            elements.number(cost);
            elements.number(limit.quota());
            elements.number(limit.window_nanos() / MICRO);
        }
    }
}

/// The figures of a charge to a bucket.
pub(super) fn push_open_charge(elements: &mut Elements, limit: &Limit, at: Nanos, cost: u64) {
    let pace = limit.micro_pace();
    let span = pace.span_of(cost.min(MAX_MICROS));
    for number in [at / MICRO, span.micros, span.part, pace.unit()] {
        elements.number(number);
    }
}

/// A refundable charge to a bucket that becomes final, likewise; false where the receipt is of none.
pub(super) fn push_close(elements: &mut Elements, limit: &Limit, receipt: &Receipt) -> bool {
    let Receipt::Open { at, cost } = *receipt else { return false };
    elements.number(CLOSE);
    push_open_charge(elements, limit, at, cost);
    true
}

/// The kind and figures of a receipt, as `scripts/receipts.lua` reads them; false where there is nothing
/// to give back.
pub(super) fn push_receipt(elements: &mut Elements, limit: &Limit, receipt: &Receipt) -> bool {
    let Ok(kind) = kind_of(limit) else { return false };
    match (kind, receipt) {
        (BUCKET, Receipt::Bucket { at, cost }) => {
            elements.number(kind);
            push_open_charge(elements, limit, *at, *cost);
        }
        (BUCKET, Receipt::LatestOfBucket { cost }) => {
            elements.number(kind);
            push_open_charge(elements, limit, ANY_INSTANT, *cost);
        }
        (BUCKET, Receipt::Open { at, cost }) => {
            elements.number(OPEN);
            push_open_charge(elements, limit, *at, *cost);
        }
        (WINDOW | CALENDAR | SLIDING, Receipt::Window { end, at, cost }) => {
            elements.number(kind);
            elements.number(at / MICRO);
            elements.number((*cost).min(MAX_MICROS));
            elements.number(end / MICRO);
            if kind == SLIDING {
                elements.number(limit.window_nanos() / MICRO);
            }
        }
        (LOG, Receipt::Log { at, cost }) => {
            elements.number(kind);
            elements.number(at / MICRO);
            elements.number((*cost).min(MAX_MICROS));
            elements.number(limit.window_nanos() / MICRO);
        }
        (SLOTS, Receipt::Slot(slot)) => {
            elements.number(kind);
            elements.text(format!("{:032x}", { slot.0 }).as_bytes());
        }
        _ => return false,
    }
    true
}
