//! The oracle: a counter is the plain list of the charges that are still alive.
//!
//! Every figure is computed from that list at the instant it is asked for. Nothing is kept between two
//! questions, so refunding a charge is removing it from the list, whatever came after it. A bucket replays
//! the charges that are left, in order. The arithmetic shares nothing with the product's: fractions are
//! kept over one common denominator, and `retry_at` is checked by its definition instead of computed.

use tollgate_core::{Algorithm, Nanos, Status};

/// Names a charge: the decision that made it, and its place there.
pub type ChargeId = (u32, usize);

/// What a counter allows at one time: a rule change replaces it and keeps the charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub quota: u64,
    /// For buckets; equal to the quota for the others.
    pub burst: u64,
}

/// What does not change about a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub algorithm: Algorithm,
    /// The window, or the lifetime of a slot.
    pub window: Nanos,
    /// Time is counted in parts of a nanosecond of this size, so that no bucket loses a fraction: a
    /// multiple of every quota that the counter ever has.
    pub scale: u64,
}

/// One charge that was made and not given back.
#[derive(Debug, Clone, Copy)]
struct Live {
    id: ChargeId,
    at: Nanos,
    cost: u64,
    /// The quota it was charged under: a bucket's charge takes `cost * window / quota`.
    quota: u64,
    slot: u128,
    /// When a slot is free again.
    expires_at: Nanos,
}

/// What a request asks of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Its own cost and that of earlier charges of the same request to the same counter.
    pub cost: u64,
    pub max_delay: Option<Nanos>,
    pub slot: u128,
}

/// A counter.
#[derive(Debug, Clone)]
pub struct Account {
    pub shape: Shape,
    live: Vec<Live>,
}

impl Account {
    pub fn new(shape: Shape) -> Self {
        Self { shape, live: Vec::new() }
    }

    /// Forgets what a store may forget that has looked at this instant: members of a log and slots that are over.
    pub fn forget(&mut self, seen: Nanos) {
        let is_listed = self.is_slots() || self.shape.algorithm == Algorithm::SlidingWindowLog;
        let mut live = std::mem::take(&mut self.live);
        live.retain(|charge| !is_listed || self.ends(charge) > seen);
        self.live = live;
    }

    const fn is_slots(&self) -> bool {
        matches!(self.shape.algorithm, Algorithm::Concurrency)
    }

    /// Which aligned window an instant is in.
    fn window_of(&self, at: Nanos) -> u64 {
        at / self.shape.window
    }

    /// When a charge no longer counts; a bucket's is not known by itself.
    fn ends(&self, charge: &Live) -> Nanos {
        let window = self.shape.window;
        match self.shape.algorithm {
            Algorithm::FixedWindow => (self.window_of(charge.at) + 1) * window,
            Algorithm::SlidingWindowCounter => (self.window_of(charge.at) + 2) * window,
            Algorithm::SlidingWindowLog => charge.at + window,
            Algorithm::Concurrency => charge.expires_at,
            _ => 0,
        }
    }

    /// How much time a bucket's charge takes, in scaled units.
    fn span(&self, cost: u64, quota: u64) -> u128 {
        let parts = u128::from(self.shape.scale / quota.max(1));
        u128::from(cost) * u128::from(self.shape.window) * parts
    }

    fn scaled(&self, at: Nanos) -> u128 {
        u128::from(at) * u128::from(self.shape.scale)
    }

    /// How far a bucket is occupied beyond `now`, in scaled units: the charges left, one after another.
    fn ahead(&self, now: Nanos) -> u128 {
        let mut occupied_until = 0;
        for charge in &self.live {
            let from = self.scaled(charge.at).max(occupied_until);
            occupied_until = from + self.span(charge.cost, charge.quota);
        }
        occupied_until.saturating_sub(self.scaled(now))
    }

    /// What counts at `now`, in parts of `window`: the sliding counter weighs a window that is passing.
    fn counted(&self, now: Nanos) -> u128 {
        let window = self.shape.window;
        let here = self.window_of(now);
        let weight = |charge: &Live| {
            let charged_in = self.window_of(charge.at);
            let counts = match self.shape.algorithm {
                Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => charged_in == here,
                Algorithm::SlidingWindowLog => charge.at + window > now,
                _ => charge.expires_at > now,
            };
            let is_passing =
                self.shape.algorithm == Algorithm::SlidingWindowCounter && charged_in + 1 == here;
            match (counts, is_passing) {
                (true, _) => window,
                (false, true) => (here + 1) * window - now,
                (false, false) => 0,
            }
        };
        self.live.iter().map(|charge| u128::from(charge.cost) * u128::from(weight(charge))).sum()
    }

    /// Whether it would pass at `now`, and after which wait.
    pub fn admits(&self, terms: Terms, wanted: Wanted, now: Nanos) -> Option<Nanos> {
        if self.shape.algorithm.is_bucket() {
            return self.bucket_admits(terms, wanted, now);
        }
        let window = u128::from(self.shape.window);
        if self.is_slots() {
            let is_own = |charge: &Live| charge.slot == wanted.slot && charge.expires_at > now;
            let fits = self.counted(now) + window <= u128::from(terms.quota) * window;
            return (fits || self.live.iter().any(is_own)).then_some(0);
        }
        let total = self.counted(now) + u128::from(wanted.cost) * window;
        (total <= u128::from(terms.quota) * window).then_some(0)
    }

    fn bucket_admits(&self, terms: Terms, wanted: Wanted, now: Nanos) -> Option<Nanos> {
        let ahead = self.ahead(now);
        let filled = ahead + self.span(wanted.cost, terms.quota);
        let over = filled.saturating_sub(self.span(terms.burst, terms.quota));
        if self.shape.algorithm == Algorithm::LeakyBucket {
            let wait = self.rounded_up(ahead);
            let is_in_time = wanted.max_delay.is_none_or(|most| wait <= most);
            return (over == 0 && is_in_time).then_some(wait);
        }
        let wait = self.rounded_up(over);
        (wait <= wanted.max_delay.unwrap_or(0)).then_some(wait)
    }

    fn rounded_up(&self, scaled: u128) -> Nanos {
        scaled.div_ceil(u128::from(self.shape.scale)) as Nanos
    }

    /// Whether it can pass at any time.
    pub fn ever_admits(&self, terms: Terms, wanted: Wanted) -> bool {
        let (cost, capacity) = match self.shape.algorithm {
            Algorithm::Concurrency => (1, terms.quota),
            algorithm if algorithm.is_bucket() => (wanted.cost, terms.burst),
            _ => (wanted.cost, terms.quota),
        };
        cost <= capacity
    }

    /// The figures that a caller sees.
    pub fn status(&self, terms: Terms, now: Nanos) -> Status {
        let (used, capacity, reset_at) = if self.shape.algorithm.is_bucket() {
            let ahead = self.ahead(now);
            let unit = self.span(1, terms.quota);
            (ahead.div_ceil(unit), terms.burst, now + self.rounded_up(ahead))
        } else {
            let used = self.counted(now).div_ceil(u128::from(self.shape.window));
            let ends = self.live.iter().map(|charge| self.ends(charge)).max().unwrap_or(0);
            (used, terms.quota, ends.max(now))
        };
        let used = used as u64;
        Status { used, remaining: capacity.saturating_sub(used), reset_at }
    }

    /// Adds a charge. A slot that is held already is held for longer.
    pub fn charge(&mut self, id: ChargeId, terms: Terms, wanted: Wanted, ttl: Nanos, now: Nanos) {
        if self.is_slots() {
            let held = self.live.iter().position(|one| one.slot == wanted.slot);
            let expires_at = match held.map(|place| self.live.remove(place)) {
                Some(held) if held.expires_at > now => held.expires_at.max(now + ttl),
                _ => now + ttl,
            };
            let Wanted { slot, .. } = wanted;
            self.live.push(Live { id, at: now, cost: 1, quota: 1, slot, expires_at });
        } else if wanted.cost > 0 {
            let (cost, quota) = (wanted.cost, terms.quota);
            self.live.push(Live { id, at: now, cost, quota, slot: 0, expires_at: 0 });
        }
    }

    /// Takes `cost` off a charge; one that is used up is removed. A charge that is gone stays gone. Returns how much of the
    /// charge still counted: of a bucket, what it is less occupied by, in whole units, rounded up.
    pub fn refund(&mut self, id: ChargeId, cost: u64, now: Nanos) -> u64 {
        let Some(place) = self.live.iter().position(|charge| charge.id == id) else { return 0 };
        let (charge, before) = (self.live[place], self.ahead(now));
        let back = cost.min(charge.cost);
        self.live[place].cost -= back;
        let after = self.ahead(now);
        self.live.retain(|charge| charge.cost > 0);
        if self.shape.algorithm.is_bucket() {
            (before - after).div_ceil(self.span(1, charge.quota)) as u64
        } else if now < self.ends(&charge) {
            back
        } else {
            0
        }
    }

    /// Frees a slot. Whether it was held.
    pub fn release(&mut self, slot: u128, now: Nanos) -> bool {
        let is_held = self.is_slots() && self.holds(slot, now);
        if self.is_slots() {
            self.live.retain(|charge| charge.slot != slot);
        }
        is_held
    }

    /// Holds a slot for longer. Whether it was held.
    pub fn renew(&mut self, slot: u128, ttl: Nanos, now: Nanos) -> bool {
        let is_held = self.holds(slot, now);
        for charge in &mut self.live {
            if is_held && charge.slot == slot {
                charge.expires_at = charge.expires_at.max(now + ttl);
            }
        }
        is_held
    }

    fn holds(&self, slot: u128, now: Nanos) -> bool {
        self.live.iter().any(|charge| charge.slot == slot && charge.expires_at > now)
    }

    /// The slots that are held: name and end, the first to end first.
    pub fn slots(&self, now: Nanos) -> Vec<(Nanos, u128)> {
        let held = self.live.iter().filter(|charge| charge.expires_at > now);
        let mut held: Vec<_> = held.map(|charge| (charge.expires_at, charge.slot)).collect();
        held.sort_unstable();
        held
    }

    pub fn reset(&mut self) {
        self.live.clear();
    }
}
