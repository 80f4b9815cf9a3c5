//! What callers see, worked out from what a script saw.
//!
//! A script says of every charge whether it fits, and what the counter was before. The figures are
//! [`tollgate_core`]'s on that state at the script's instant; they are exact because nothing else is.

use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use tollgate_core::{
    Algorithm, Ask, Bucket, Examination, FixedWindow, Limit, MAX_MICROS, MICRO, MicroSpan, Nanos,
    Outcome, Receipt, SlidingCounter, Small, Status,
};

use crate::{Mode, Role};

/// One charge of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    /// The place of the first charge that goes to the same counter.
    pub(super) counter: usize,
    pub(super) limit: &'a Limit,
    pub(super) ask: Ask,
    pub(super) role: Role,
}

/// A counter before a request, as far as its figures need it. Instants are in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) enum View {
    Small(Small),
    /// `latest`: the instant of its last refundable charge, or 0. `is_full`: another one makes one final.
    /// `has_many_holds`: another one is not left to expire.
    Bucket {
        bucket: Bucket,
        latest: u64,
        is_full: bool,
        has_many_holds: bool,
    },
    Log {
        used: u64,
        newest: u64,
        retry_at: u64,
    },
    Slots {
        held: u64,
        own: u64,
        latest: u64,
        retry_at: u64,
    },
}

/// What a script saw of one charge.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) fits: bool,
    pub(super) view: View,
}

impl Seen {
    /// Whether the slot that was asked for was held before the request.
    pub(super) const fn is_own_slot(&self) -> bool {
        matches!(self.view, View::Slots { own: 1.., .. })
    }

    /// Whether the hold is closed as soon as its request has passed.
    pub(super) const fn has_many_holds(&self) -> bool {
        matches!(self.view, View::Bucket { has_many_holds: true, .. })
    }
}

pub(super) type SeenList = SmallVec<[Seen; 8]>;

/// Reads what a script saw of one charge.
pub(super) fn read(limit: &Limit, numbers: &mut impl Iterator<Item = u64>) -> Option<Seen> {
    let fits = numbers.next()? == 1;
    let mut next = || numbers.next();
    let view = match limit.algorithm() {
        Algorithm::FixedWindow => {
            let (end, count) = (nanos(next()?), next()?);
            View::Small(Small::Fixed(FixedWindow { end, count }))
        }
        Algorithm::SlidingWindowCounter => {
            let (end, current, previous) = (nanos(next()?), next()?, next()?);
            View::Small(Small::Sliding(SlidingCounter { end, current, previous }))
        }
        Algorithm::SlidingWindowLog => {
            View::Log { used: next()?, newest: next()?, retry_at: next()? }
        }
        Algorithm::Concurrency => {
            View::Slots { held: next()?, own: next()?, latest: next()?, retry_at: next()? }
        }
        _ => {
            let tat = MicroSpan { micros: next()?, part: next()? };
            let bucket = limit.micro_pace().bucket(tat);
            let (latest, crowding) = (next()?, next()?);
            View::Bucket { bucket, latest, is_full: crowding == 2, has_many_holds: crowding > 0 }
        }
    };
    Some(Seen { fits, view })
}

impl View {
    /// The state, where it is of a fixed size.
    const fn small(&self) -> Option<Small> {
        match self {
            Self::Small(small) => Some(*small),
            Self::Bucket { bucket, .. } => Some(Small::Bucket(*bucket)),
            Self::Log { .. } | Self::Slots { .. } => None,
        }
    }
}

/// How many refundable charges became final when these charges were made, because a bucket had too many of them.
pub(super) fn finalized(mode: Mode, lines: &[Line<'_>], seen: &[Seen]) -> u64 {
    let pushed_out = |(line, seen): &(&Line<'_>, &Seen)| {
        (seen.fits || mode.owes(line.role))
            && matches!(seen.view, View::Bucket { is_full: true, .. })
            && line.limit.opens_charge(&line.ask)
    };
    lines.iter().zip(seen).filter(pushed_out).count() as u64
}

const fn nanos(micros: u64) -> Nanos {
    micros.saturating_mul(MICRO)
}

/// The outcomes of one request's charges, if those that fit were charged (`charged`) or none was.
pub(super) fn replay(
    mode: Mode,
    lines: &[Line<'_>],
    all: &[Seen],
    charged: bool,
    now: Nanos,
    mut push: impl FnMut(Outcome),
) {
    let mut views: SmallVec<[View; 8]> = all.iter().map(|seen| seen.view).collect();
    for (index, (line, seen)) in lines.iter().zip(all).enumerate() {
        let earlier = lines.get(..index).unwrap_or_default();
        let mut ask = Ask { cost: line.ask.cost.min(MAX_MICROS), ..line.ask };
        let own = ask;
        if line.counter < index {
            ask.cost = ask.cost.saturating_add(cost_before(mode, line, earlier, all));
        }
        let examination = examine(line.limit, &ask, seen, now);
        let Some(view) = views.get_mut(line.counter) else {
            crate::report_broken("a charge names a counter that no script saw");
            push(crate::REFUSED);
            continue;
        };
        let receipt = if charged && (mode.owes(line.role) || seen.fits) {
            charge(line.limit, &own, view, now)
        } else {
            Receipt::Nothing
        };
        push(Outcome { examination, status: status(line.limit, view, now), receipt });
    }
}

/// What earlier charges of the request to the same counter cost: they must fit together. Of those that
/// may be left out, the ones that do not fit are.
#[cold]
fn cost_before(mode: Mode, line: &Line<'_>, earlier: &[Line<'_>], seen: &[Seen]) -> u64 {
    let goes_with = |other: &Line<'_>, seen: &Seen| {
        mode.owes(other.role) || other.role == Role::Must || seen.fits
    };
    (earlier.iter().zip(seen))
        .filter(|(other, seen)| other.counter == line.counter && goes_with(other, seen))
        .fold(0, |sum: u64, (other, _)| sum.saturating_add(other.ask.cost))
}

fn examine(limit: &Limit, ask: &Ask, seen: &Seen, now: Nanos) -> Examination {
    let refused =
        |retry_at: u64| Examination::Refuse { retry_at: (retry_at > 0).then_some(nanos(retry_at)) };
    let small = seen.view.small();
    match seen.view {
        _ if seen.fits && small.is_none() => Examination::Admit { wait: 0 },
        View::Log { retry_at, .. } | View::Slots { retry_at, .. } => refused(retry_at),
        View::Small(_) | View::Bucket { .. } => {
            let small = small.unwrap_or_else(|| limit.fresh_small());
            let examination = limit.examine_small(&small, ask, now);
            if examination.admits() == seen.fits {
                return examination;
            }
            report_difference(limit, ask, &small, seen.fits, now);
            if seen.fits { Examination::Admit { wait: 0 } } else { refused(now / MICRO + 1) }
        }
    }
}

/// What a script did has happened, whatever we make of it.
#[cold]
fn report_difference(limit: &Limit, ask: &Ask, state: &Small, fits: bool, now: Nanos) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        tracing::error!(
            ?limit,
            ?ask,
            ?state,
            fits,
            now,
            "a script and this program judge a charge differently; please report this"
        );
    }
}

fn charge(limit: &Limit, ask: &Ask, view: &mut View, now: Nanos) -> Receipt {
    let now_micros = now / MICRO;
    match view {
        View::Small(small) => limit.charge_small(small, ask.cost, now),
        View::Bucket { bucket, latest, .. } => {
            // A clock that was set back does not reorder refundable charges.
            let at = nanos((*latest).max(now_micros));
            let mut small = Small::Bucket(*bucket);
            let receipt = limit.charge_small(&mut small, ask.cost, at);
            if let Small::Bucket(charged) = small {
                *bucket = charged;
            }
            if !limit.opens_charge(ask) {
                return receipt;
            }
            *latest = at / MICRO;
            Receipt::Open { at, cost: ask.cost }
        }
        View::Log { used, newest, .. } => {
            let at = (*newest).max(now_micros);
            if ask.cost > 0 {
                (*used, *newest) = (used.saturating_add(ask.cost).min(MAX_MICROS), at);
            }
            Receipt::Log { at: nanos(at), cost: ask.cost }
        }
        View::Slots { held, own, latest, .. } => {
            let expires = (*own).max(now_micros.saturating_add(limit.slot_ttl_of(ask) / MICRO));
            *held += u64::from(*own == 0);
            (*own, *latest) = (expires, (*latest).max(expires));
            Receipt::Slot(ask.slot)
        }
    }
}

fn status(limit: &Limit, view: &View, now: Nanos) -> Status {
    let (used, fresh_at) = match view {
        View::Small(small) => return limit.status_small(small, now),
        View::Bucket { bucket, .. } => return limit.status_small(&Small::Bucket(*bucket), now),
        View::Log { used, newest: 0, .. } => (*used, 0),
        View::Log { used, newest, .. } => {
            (*used, nanos(*newest).saturating_add(limit.window_nanos()))
        }
        View::Slots { held, latest, .. } => (*held, nanos(*latest)),
    };
    let remaining = limit.quota().saturating_sub(used);
    Status { used, remaining, reset_at: fresh_at.max(now) }
}
