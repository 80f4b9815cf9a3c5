//! A limit, checked and ready: algorithm, quota, window and burst.

use crate::pace::Pace;
use crate::state::{Ask, Examination, Outcome, Receipt, Small, State, Status};
use crate::{
    Algorithm, Bucket, Calendar, FixedWindow, LATEST, LONGEST, Nanos, OpenBucket, SlidingCounter,
    SlidingLog, Slots, Span, StateKind,
};

/// The window a quota belongs to.
#[derive(Debug, Clone)]
pub enum Window {
    /// A length of time; aligned windows start at multiples of it since the epoch.
    Every(Nanos),
    /// A calendar period in a time zone (`fixed_window` only).
    Calendar(Calendar),
}

/// A limit as asked for.
#[derive(Debug, Clone)]
pub struct LimitSpec {
    /// How it counts.
    pub algorithm: Algorithm,
    /// How much per window; 0 suspends.
    pub quota: u64,
    /// The window. A concurrency limit ignores it.
    pub window: Window,
    /// The burst of a bucket; default the quota, 1 for `gcra`.
    pub burst: Option<u64>,
    /// How long a slot is held unless renewed (concurrency only).
    pub slot_ttl: Nanos,
}

/// Why a limit cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A window of no length.
    #[error("the window must be longer than zero")]
    ZeroWindow,
    /// A window, slot lifetime or burst that lasts too long to be counted exactly.
    #[error("the window must not be longer than 73 years")]
    WindowTooLong,
    /// Filling the burst would take too long to be counted exactly.
    #[error("burst x window / limit must not be longer than 73 years")]
    BurstTooLong,
    /// A burst of zero admits nothing, which is what a limit of 0 is for.
    #[error("the burst must be at least 1; a limit of 0 suspends")]
    ZeroBurst,
    /// Burst with an algorithm that has none.
    #[error("{0} takes no burst")]
    BurstNotTaken(Algorithm),
    /// Calendar windows with an algorithm that cannot have them.
    #[error("calendar windows need fixed_window, not {0}")]
    CalendarNotTaken(Algorithm),
    /// A slot lifetime of zero.
    #[error("slot_ttl must be longer than zero")]
    ZeroSlotTtl,
}

/// One algorithm with its quota and window, ready to decide.
///
/// States passed in must belong to the same kind of algorithm ([`Limit::fresh`] makes one); a state
/// of another kind counts as fresh.
#[derive(Debug, Clone)]
pub struct Limit {
    algorithm: Algorithm,
    quota: u64,
    capacity: u64,
    window: Window,
    slot_ttl: Nanos,
    pace: Pace,
    /// A bucket whose every unit of cost takes whole nanoseconds.
    is_whole: bool,
}

impl Limit {
    /// Checks a limit and prepares its arithmetic.
    pub fn new(spec: LimitSpec) -> Result<Self, LimitError> {
        let LimitSpec { algorithm, quota, window, burst, slot_ttl } = spec;
        let is_slots = algorithm == Algorithm::Concurrency;
        if !algorithm.is_bucket() && burst.is_some() {
            return Err(LimitError::BurstNotTaken(algorithm));
        }
        match &window {
            Window::Calendar(_) if algorithm != Algorithm::FixedWindow => {
                return Err(LimitError::CalendarNotTaken(algorithm));
            }
            Window::Every(0) if !is_slots => return Err(LimitError::ZeroWindow),
            Window::Every(nanos) if *nanos > LONGEST => return Err(LimitError::WindowTooLong),
            _ => {}
        }
        if is_slots && slot_ttl == 0 {
            return Err(LimitError::ZeroSlotTtl);
        }
        if slot_ttl > LONGEST {
            return Err(LimitError::WindowTooLong);
        }
        let default_burst = if algorithm == Algorithm::Gcra { 1 } else { quota };
        let burst = match burst {
            Some(0) => return Err(LimitError::ZeroBurst),
            Some(burst) => burst,
            None => default_burst,
        };
        let (capacity, pace) = match &window {
            _ if quota == 0 => (0, Pace::NONE),
            Window::Every(nanos) if algorithm.is_bucket() => {
                (burst, Pace::new(quota, *nanos, burst)?)
            }
            _ => (quota, Pace::NONE),
        };
        let is_whole = algorithm.is_bucket() && quota > 0 && pace.denominator == 1;
        Ok(Self { algorithm, quota, capacity, window, slot_ttl, pace, is_whole })
    }

    /// A limit that refuses every request.
    pub const fn suspended() -> Self {
        Self {
            algorithm: Algorithm::TokenBucket,
            quota: 0,
            capacity: 0,
            window: Window::Every(crate::SECOND),
            slot_ttl: crate::SECOND,
            pace: Pace::NONE,
            is_whole: false,
        }
    }

    /// How it counts.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How much per window.
    pub const fn quota(&self) -> u64 {
        self.quota
    }

    /// The most a single request can be charged: the quota, or the burst of a bucket.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// How long a slot is held unless renewed.
    pub const fn slot_ttl(&self) -> Nanos {
        self.slot_ttl
    }

    /// How long this request would hold a slot.
    pub fn slot_ttl_of(&self, ask: &Ask) -> Nanos {
        self.slot_ttl.min(ask.max_slot_ttl)
    }

    /// The same limit, whose slots are held for at most so long.
    #[must_use]
    pub fn with_max_slot_ttl(mut self, most: Nanos) -> Self {
        self.slot_ttl = self.slot_ttl.min(most.max(1));
        self
    }

    /// The window.
    pub const fn window(&self) -> &Window {
        &self.window
    }

    /// The length of the window; for a calendar one, the nominal length of its unit.
    #[inline]
    pub fn window_nanos(&self) -> Nanos {
        match &self.window {
            Window::Every(nanos) => *nanos,
            Window::Calendar(calendar) => calendar.nominal_nanos(),
        }
    }

    /// Start and end of the aligned window that `now` falls in.
    #[inline]
    pub fn window_bounds(&self, now: Nanos) -> (Nanos, Nanos) {
        let now = now.min(LATEST);
        match &self.window {
            Window::Every(nanos) => {
                let length = (*nanos).max(1);
                let start = now - now % length;
                (start, start + length)
            }
            Window::Calendar(calendar) => calendar.bounds(now),
        }
    }

    #[inline]
    pub(crate) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// [`Limit::decide_small`] for a bucket whose whole state is its arrival time without a
    /// fraction. `None` where this limit or this request needs more than that.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "most of what it returns is dropped where it is called"
    )]
    pub fn decide_instant(&self, tat: Nanos, ask: &Ask, now: Nanos) -> Option<(Nanos, Outcome)> {
        if !self.is_whole || ask.max_delay.is_some() || ask.cost > self.capacity {
            return None;
        }
        Some(Bucket::decide_whole(tat, self, ask, now.min(LATEST)))
    }

    /// How much of the capacity a bucket has used whose arrival time lies so far ahead, in sixteenths
    /// of a power of two: rough, and without a division.
    #[inline]
    pub const fn rough_level(&self, ahead: Nanos) -> u64 {
        let bits = 64 - self.pace.capacity.nanos.leading_zeros();
        ahead >> bits.saturating_sub(4)
    }

    #[inline]
    pub(crate) const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// A counter that nothing has been charged to.
    pub fn fresh(&self) -> State {
        match self.algorithm.state_kind() {
            StateKind::SlidingLog => State::Log(SlidingLog::default()),
            StateKind::Slots => State::Slots(Slots::default()),
            StateKind::FixedWindow | StateKind::SlidingCounter | StateKind::Bucket => {
                State::Small(self.fresh_small())
            }
        }
    }

    /// A fresh counter of a fixed-size algorithm. For a log or slots, which have none, a bucket.
    #[inline]
    pub fn fresh_small(&self) -> Small {
        match self.algorithm.state_kind() {
            StateKind::FixedWindow => Small::Fixed(FixedWindow::default()),
            StateKind::SlidingCounter => Small::Sliding(SlidingCounter::default()),
            StateKind::Bucket | StateKind::SlidingLog | StateKind::Slots => {
                Small::Bucket(Bucket::default())
            }
        }
    }

    /// A state that was kept under this limit's name but perhaps under another quota, fit for this
    /// one: a fraction of a nanosecond that the new pace cannot tell is rounded up.
    #[inline]
    pub fn adopt(&self, state: Small) -> Small {
        match state {
            Small::Bucket(bucket) if bucket.tat.part >= self.pace.denominator => {
                Small::Bucket(Bucket { tat: Span::whole(bucket.tat.ceil()) })
            }
            other => other,
        }
    }

    /// Whether a state is of the kind that this limit's algorithm keeps.
    #[inline]
    fn keeps(&self, state: &State) -> bool {
        match state {
            State::Small(small) => self.keeps_small(small),
            State::Log(_) => self.algorithm == Algorithm::SlidingWindowLog,
            State::Slots(_) => self.algorithm == Algorithm::Concurrency,
            State::Open(_) => self.algorithm.is_bucket(),
        }
    }

    #[inline]
    fn keeps_small(&self, state: &Small) -> bool {
        match state {
            Small::Fixed(_) => self.algorithm == Algorithm::FixedWindow,
            Small::Sliding(_) => self.algorithm == Algorithm::SlidingWindowCounter,
            Small::Bucket(_) => self.algorithm.is_bucket(),
        }
    }

    #[inline]
    fn never_passes(&self, ask: &Ask) -> bool {
        let cost = if self.algorithm == Algorithm::Concurrency { 1 } else { ask.cost };
        cost > self.capacity
    }

    /// Whether the charge would pass now.
    pub fn examine(&self, state: &State, ask: &Ask, now: Nanos) -> Examination {
        let now = now.min(LATEST);
        if !self.keeps(state) {
            return self.examine(&self.fresh(), ask, now);
        }
        match state {
            State::Small(small) => self.examine_small(small, ask, now),
            State::Open(open) => self.examine_small(&self.seen(open), ask, now),
            _ if self.never_passes(ask) => Examination::Refuse { retry_at: None },
            State::Log(log) => log.examine(self, ask.cost, now),
            State::Slots(slots) => slots.examine(self, ask.slot, now),
        }
    }

    /// [`Limit::examine`] for fixed-size states.
    #[inline]
    pub fn examine_small(&self, state: &Small, ask: &Ask, now: Nanos) -> Examination {
        let now = now.min(LATEST);
        if self.never_passes(ask) {
            return Examination::Refuse { retry_at: None };
        }
        let fresh;
        let state = if self.keeps_small(state) {
            state
        } else {
            fresh = self.fresh_small();
            &fresh
        };
        match state {
            Small::Fixed(state) => state.examine(self, ask.cost, now),
            Small::Sliding(state) => state.examine(self, ask.cost, now),
            Small::Bucket(state) => state.examine(self, ask, now),
        }
    }

    /// Charges, whether it fits or not. Callers examine first; a charge that does not fit is a debt.
    pub fn charge(&self, state: &mut State, ask: &Ask, now: Nanos) -> Receipt {
        let now = now.min(LATEST);
        if !self.keeps(state) {
            *state = self.fresh();
        }
        if self.opens_charge(ask)
            && let State::Small(small) = state
            && let Small::Bucket(bucket) = self.adopt(*small)
        {
            *state = State::Open(OpenBucket::new(bucket, self.pace.denominator));
        }
        match state {
            State::Small(small) => self.charge_small(small, ask.cost, now),
            State::Open(open) => {
                let receipt = self.charge_open(open, ask, now);
                Self::drop_empty_list(state);
                receipt
            }
            State::Log(log) => log.charge(self, ask.cost, now),
            State::Slots(slots) => slots.charge(self, ask, now),
        }
    }

    /// [`Limit::charge`] for fixed-size states.
    #[inline]
    pub fn charge_small(&self, state: &mut Small, cost: u64, now: Nanos) -> Receipt {
        let now = now.min(LATEST);
        if !self.keeps_small(state) {
            *state = self.fresh_small();
        }
        match state {
            Small::Fixed(state) => state.charge(self, cost, now),
            Small::Sliding(state) => state.charge(self, cost, now),
            Small::Bucket(state) => state.charge(self, cost, now),
        }
    }

    /// The counter's figures now.
    pub fn status(&self, state: &State, now: Nanos) -> Status {
        let now = now.min(LATEST);
        if !self.keeps(state) {
            return self.status(&self.fresh(), now);
        }
        match state {
            State::Small(small) => self.status_small(small, now),
            State::Open(open) => self.status_small(&self.seen(open), now),
            State::Log(log) => log.status(self, now),
            State::Slots(slots) => slots.status(self, now),
        }
    }

    /// [`Limit::status`] for fixed-size states.
    #[inline]
    pub fn status_small(&self, state: &Small, now: Nanos) -> Status {
        let now = now.min(LATEST);
        let fresh;
        let state = if self.keeps_small(state) {
            state
        } else {
            fresh = self.fresh_small();
            &fresh
        };
        match state {
            Small::Fixed(state) => state.status(self, now),
            Small::Sliding(state) => state.status(self, now),
            Small::Bucket(state) => state.status(self, now),
        }
    }

    /// [`Limit::decide`] for fixed-size states.
    #[inline]
    pub fn decide_small(&self, state: &mut Small, ask: &Ask, now: Nanos) -> Outcome {
        let now = now.min(LATEST);
        if ask.cost <= self.capacity {
            match state {
                Small::Bucket(bucket) if self.algorithm.is_bucket() => {
                    return bucket.decide(self, ask, now);
                }
                Small::Fixed(window) if self.algorithm == Algorithm::FixedWindow => {
                    return window.decide(self, ask.cost, now);
                }
                Small::Sliding(counter) if self.algorithm == Algorithm::SlidingWindowCounter => {
                    return counter.decide(self, ask.cost, now);
                }
                _ => {}
            }
        }
        let examination = self.examine_small(state, ask, now);
        let receipt = if examination.admits() {
            self.charge_small(state, ask.cost, now)
        } else {
            Receipt::Nothing
        };
        Outcome { examination, status: self.status_small(state, now), receipt }
    }

    /// Examine, and charge if it passes: one whole transition.
    pub fn decide(&self, state: &mut State, ask: &Ask, now: Nanos) -> Outcome {
        if let State::Small(small) = state
            && self.keeps_small(small)
            && !self.opens_charge(ask)
        {
            return self.decide_small(small, ask, now);
        }
        let examination = self.examine(state, ask, now);
        let receipt =
            if examination.admits() { self.charge(state, ask, now) } else { Receipt::Nothing };
        Outcome { examination, status: self.status(state, now), receipt }
    }

    /// From this instant on the counter behaves as a fresh one and may be dropped.
    pub fn fresh_at(&self, state: &State) -> Nanos {
        if !self.keeps(state) {
            return 0;
        }
        match state {
            State::Small(small) => small.fresh_at(self.window_nanos()),
            State::Log(log) => log.fresh_at(self.window_nanos()),
            State::Slots(slots) => slots.fresh_at(),
            State::Open(open) => open.bucket().fresh_at(),
        }
    }
}
