//! Generates random histories, each the same for its seed.

use tollgate_core::{Algorithm, Nanos, Refundable, SECOND};
use tollgate_store::{Mode, Role};

use crate::draw::Draw;
use crate::history::{
    Asked, Decision, History, Lease, MAX_COUNTERS, MAX_PARTITIONS, Meter, Op, RecordStep,
    SendOptions, Step, Truth,
};
use crate::oracle::{ChargeId, Shape, Terms};

/// The most operations of a history. A bucket has room for 64 refundable charges, which this stays below.
const MAX_OPERATIONS: u64 = 60;

impl History {
    /// The history of this seed.
    pub fn new(seed: u64, manner: SendOptions) -> Self {
        let mut draw = Draw::new(seed);
        let counters = match draw.below(4) {
            0 => 1,
            1 => 2,
            _ => 1 + draw.below(MAX_COUNTERS),
        };
        let meters = (0..counters).map(|_| meter(&mut draw)).collect();
        let grain = manner.grain;
        // A Wednesday in 2026, and anywhere in a day.
        let start = (1_789_000_000 * SECOND + draw.below(86_400 * SECOND)).next_multiple_of(grain);
        let length = 2 + draw.below(MAX_OPERATIONS - 1);
        let (ops, open, decisions, asked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut maker = Maker { draw, meters, ops, open, decisions, asked, settlements: 0, manner };
        while (maker.ops.len() as u64) < length {
            maker.op();
        }
        Self { seed, start, grain, meters: maker.meters, ops: maker.ops }
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

fn terms(draw: &mut Draw, algorithm: Algorithm, quota: u64) -> Terms {
    let burst = match algorithm {
        Algorithm::Gcra => 1 + draw.below(quota.min(6)),
        Algorithm::TokenBucket | Algorithm::LeakyBucket if draw.one_in(3) => {
            1 + draw.below(quota * 2)
        }
        _ => quota,
    };
    Terms { quota, burst }
}

pub fn meter(draw: &mut Draw) -> Meter {
    let algorithm = draw.pick(&Algorithm::ALL);
    let is_bucket = algorithm.is_bucket();
    let window =
        draw.pick(&[40_000_000, SECOND, 7 * SECOND, 60 * SECOND, 3600 * SECOND, 86_400 * SECOND]);
    // A bucket keeps time, and times under two paces add up exactly only in whole units of both clocks:
    // those whose limit changes have paces of whole microseconds, the others any.
    let changes = draw.one_in(2);
    let quotas: Vec<u64> = match (is_bucket, changes) {
        (true, true) => (0..3).map(|_| draw.pick(&[1, 2, 4, 5, 8, 10, 20, 50, 100])).collect(),
        (true, false) if draw.one_in(8) => vec![draw.pick(&[999_983, 5_000_029, 5_000_000_029])],
        (true, false) => vec![1 + draw.below(30)],
        (false, true) if algorithm != Algorithm::Concurrency && draw.one_in(8) => {
            vec![1 << 40, 1 << 34, 1 << 33]
        }
        (false, true) => (0..3).map(|_| draw.below(30)).collect(),
        (false, false) => vec![1 + draw.below(12)],
    };
    let scale = quotas.iter().fold(1, |all, quota| lcm(all, (*quota).max(1)));
    let terms: Vec<Terms> = quotas.iter().map(|quota| terms(draw, algorithm, *quota)).collect();
    let is_calendar =
        algorithm == Algorithm::FixedWindow && window >= 60 * SECOND && draw.one_in(3);
    let partition = draw.below(MAX_PARTITIONS) as u8;
    // Costs of other kinds than a bucket's need no fractions.
    let scale = if is_bucket { scale } else { 1 };
    Meter { shape: Shape { algorithm, window, scale }, is_calendar, terms, partition }
}

pub fn cost(draw: &mut Draw, meter: &Meter) -> u64 {
    let Terms { quota, burst } = meter.terms[0];
    let capacity = if meter.shape.algorithm.is_bucket() { burst } else { quota };
    match draw.below(12) {
        0..=4 => 1,
        5 => draw.below(3),
        6 => draw.below(capacity + 2),
        7 => capacity,
        8 => capacity / 2,
        9 => capacity + 1,
        _ => 1 + draw.below(capacity / 3),
    }
}

/// The name of a slot that no other charge has.
fn own_slot(id: u32, place: usize) -> u128 {
    u128::from(id) * 16 + place as u128 + 16
}

fn asked(draw: &mut Draw, meters: &[Meter], manner: SendOptions, id: u32, place: usize) -> Asked {
    let counter = draw.below(meters.len() as u64) as usize;
    let meter = &meters[counter];
    let window = meter.shape.window;
    let is_shared = manner.reuses_slots && draw.one_in(5);
    let slot = if is_shared { u128::from(draw.below(8)) } else { own_slot(id, place) };
    Asked {
        counter,
        cost: cost(draw, meter),
        role: match draw.below(10) {
            0 => Role::AnyOf,
            1 => Role::Watch,
            _ => Role::Must,
        },
        slot,
        max_delay: draw.one_in(8).then(|| draw.below(window / 1000) * 1000),
        max_slot_ttl: if draw.one_in(4) {
            (1 + draw.below(window / 2000)) * 1000
        } else {
            Nanos::MAX
        },
    }
}

/// One in so many is not refundable.
fn refundable(draw: &mut Draw, times: u64) -> Refundable {
    if draw.one_in(times) { Refundable::No } else { Refundable::UntilClosed }
}

fn truth(draw: &mut Draw) -> Truth {
    match draw.below(5) {
        0 => Truth::Keep,
        1 => Truth::Nothing,
        2 => Truth::More(1 + draw.below(6)),
        _ => Truth::Less(1 + draw.below(4)),
    }
}

/// Generates histories.
struct Maker {
    draw: Draw,
    meters: Vec<Meter>,
    ops: Vec<Op>,
    /// Charges that may be given back, the newest last.
    open: Vec<ChargeId>,
    decisions: Vec<u32>,
    /// All requests so far, with what they asked.
    asked: Vec<Decision>,
    settlements: u32,
    manner: SendOptions,
}

impl Maker {
    /// One request, now and then a few in one call.
    fn decide(&mut self) {
        let count = if self.draw.one_in(6) { 2 + self.draw.below(3) } else { 1 };
        let mut all = Vec::new();
        for _ in 0..count {
            let again = if self.draw.one_in(8) { self.again() } else { None };
            let decision = again.unwrap_or_else(|| self.decision());
            if decision.refundable != Refundable::No {
                self.open.extend((0..decision.asked.len()).map(|place| (decision.id, place)));
                self.decisions.push(decision.id);
            }
            self.asked.push(decision.clone());
            all.push(decision);
        }
        self.ops.push(Op::Decide(all));
    }

    fn decision(&mut self) -> Decision {
        let id = self.asked.len() as u32;
        let draw = &mut self.draw;
        let mode = match draw.below(16) {
            0 => Mode::Peek,
            1 => Mode::Owe,
            2 => Mode::Hold,
            _ => Mode::Charge,
        };
        let count = if draw.one_in(2) { 1 } else { 1 + draw.below(MAX_COUNTERS) };
        let mut all: Vec<Asked> = Vec::new();
        for place in 0..count as usize {
            let mut one = asked(draw, &self.meters, self.manner, id, place);
            let counter = one.counter;
            let is_repeat = |other: &Asked| other.counter == counter;
            let is_slots = self.meters[one.counter].shape.algorithm == Algorithm::Concurrency;
            // The same counter twice in a request is rare, and one request holds one slot of a counter.
            // Nor do charges of a request to one counter wait for each other.
            if !all.iter().any(is_repeat) {
                all.push(one);
            } else if !is_slots && draw.one_in(8) {
                for other in all.iter_mut().filter(|other| other.counter == one.counter) {
                    other.max_delay = None;
                }
                one.max_delay = None;
                all.push(one);
            }
        }
        Decision { id, mode, asked: all, refundable: refundable(draw, 4) }
    }

    /// The same request as an earlier one.
    fn again(&mut self) -> Option<Decision> {
        let place = self.draw.below(self.asked.len() as u64) as usize;
        let earlier = self.asked.get(place)?.clone();
        let id = self.asked.len() as u32;
        let with_slot = |(place, one): (usize, Asked)| {
            let slot = if self.manner.reuses_slots { one.slot } else { own_slot(id, place) };
            Asked { slot, ..one }
        };
        let asked = earlier.asked.into_iter().enumerate().map(with_slot).collect();
        Some(Decision { id, asked, ..earlier })
    }

    /// An open charge, mostly one of the last, and no longer open.
    fn take_open(&mut self) -> Option<ChargeId> {
        let back = self.draw.below((self.open.len() as u64).min(8));
        let place = self.open.len().checked_sub(1 + back as usize)?;
        Some(self.open.remove(place))
    }

    fn give_back(&mut self) {
        let count = 1 + self.draw.below(3);
        let all: Vec<ChargeId> = (0..count).filter_map(|_| self.take_open()).collect();
        self.ops.push(Op::GiveBack(all));
    }

    fn give_back_part(&mut self) {
        let back = self.draw.below((self.open.len() as u64).min(8));
        if let Some(place) = self.open.len().checked_sub(1 + back as usize) {
            let cost = 1 + self.draw.below(4);
            self.ops.push(Op::GiveBackPart(self.open[place], cost));
        }
    }

    fn settle(&mut self) {
        if self.decisions.is_empty() {
            return;
        }
        let place = self.draw.below(self.decisions.len() as u64) as usize;
        let of = self.decisions.remove(place);
        let places = self.open.iter().filter(|(id, _)| *id == of).map(|(_, place)| place + 1).max();
        self.open.retain(|(id, _)| *id != of);
        let truths = (0..places.unwrap_or(0)).map(|_| truth(&mut self.draw)).collect();
        self.ops.push(Op::Settle { id: self.settlements, of, truths });
        self.settlements += 1;
    }

    /// Chunks of a bucket, some of which are given back later.
    fn lease(&mut self) {
        let counter = self.draw.below(self.meters.len() as u64) as usize;
        if !self.meters[counter].shape.algorithm.is_bucket() {
            return;
        }
        let draw = &mut self.draw;
        let mode = draw.pick(&[Mode::Charge, Mode::Owe]);
        let (id, cost, times) =
            (self.asked.len() as u32, 1 + draw.below(2), 1 + draw.below(80) as u32);
        let lease = Lease { id, counter, cost, times, mode };
        for number in [0, times / 3, times.saturating_sub(2), times - 1] {
            self.open.push((lease.chunk(number), 0));
        }
        // Takes its number.
        let refundable = Refundable::No;
        self.asked.push(Decision { id, mode: Mode::Peek, asked: Vec::new(), refundable });
        self.ops.push(Op::Lease(lease));
    }

    /// Something with a slot that a request named, mostly one of the last.
    fn slot_op(&mut self) {
        let draw = &mut self.draw;
        let is_slots =
            |one: &&Asked| self.meters[one.counter].shape.algorithm == Algorithm::Concurrency;
        let asked = self.asked.iter().rev().flat_map(|decision| &decision.asked);
        let named: Vec<&Asked> = asked.filter(is_slots).take(12).collect();
        if named.is_empty() {
            return;
        }
        let Asked { counter, slot, .. } = *draw.pick(&named);
        self.ops.push(match draw.below(4) {
            0 | 1 => Op::Renew(counter, slot),
            2 => Op::Release(counter, slot),
            _ => Op::Slots(counter),
        });
    }

    fn advance(&mut self) {
        let draw = &mut self.draw;
        let counter = draw.below(self.meters.len() as u64) as usize;
        let (window, grain) = (self.meters[counter].shape.window, self.manner.grain);
        let step = match draw.below(10) {
            0 => Step::By(grain),
            1 => Step::By(window / 7),
            2 => Step::By(window),
            3 => Step::By(2 * window),
            4 => Step::ToEdge(counter, draw.below(2)),
            5 => Step::ToRetry(draw.below(2)),
            6 => Step::By(draw.below(window)),
            _ => Step::By(draw.below(window / 20)),
        };
        let step = match step {
            Step::By(by) => Step::By(by.next_multiple_of(grain)),
            other => other,
        };
        self.ops.push(Op::Advance(step));
    }

    fn record(&mut self) {
        let draw = &mut self.draw;
        let id = draw.below(3) as u32;
        let ttl = 60 * SECOND + draw.below(3600) * SECOND;
        let step = match draw.below(6) {
            0 | 1 => RecordStep::Keep(ttl),
            2 => RecordStep::End(ttl),
            3 => RecordStep::Complete,
            4 => RecordStep::Renew(None),
            _ => RecordStep::Renew(Some(ttl)),
        };
        self.ops.push(Op::Record(id, step));
    }

    fn op(&mut self) {
        match self.draw.below(42) {
            0..=16 => self.decide(),
            17..=21 => self.give_back(),
            22..=23 => self.give_back_part(),
            24..=27 => self.settle(),
            28 if self.settlements > 0 => {
                let id = self.draw.below(u64::from(self.settlements)) as u32;
                self.ops.push(Op::SettleAgain(id));
            }
            29..=31 => self.slot_op(),
            32 if self.draw.one_in(2) => {
                let counter = self.draw.below(self.meters.len() as u64) as usize;
                self.ops.push(Op::Reset(counter));
            }
            33 => {
                let counter = self.draw.below(self.meters.len() as u64) as usize;
                let terms = self.draw.below(self.meters[counter].terms.len() as u64) as usize;
                self.ops.push(Op::Change(counter, terms));
            }
            34 if self.manner.has_records => self.record(),
            35 => self.ops.push(Op::Tidy),
            36 if self.manner.gives_up => {
                let looks = self.draw.pick(&[0, 3, 20, 80, 200, 400]);
                // Slots of its own: undoing a decision does not shorten a slot that was held before.
                let (id, decision) = (self.asked.len() as u32, self.decision());
                let asked = decision.asked.into_iter().enumerate();
                let asked = asked.map(|(place, one)| Asked { slot: own_slot(id, place), ..one });
                // One that is not refundable and that followed an open charge may be undone in part only: which of the final
                // charges the bucket waits for is not stored. It errs towards refusing, so it is not for this comparison.
                let drawn = refundable(&mut self.draw, 2);
                let refundable = if self.open.is_empty() { drawn } else { Refundable::UntilClosed };
                let asked = asked.collect();
                let decision = Decision { id, mode: Mode::Charge, asked, refundable };
                self.asked.push(decision.clone());
                self.ops.push(Op::GiveUp(decision, looks));
            }
            37 if self.draw.one_in(2) => self.lease(),
            _ => self.advance(),
        }
    }
}
