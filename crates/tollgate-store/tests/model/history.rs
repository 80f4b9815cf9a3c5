//! Random histories: some counters, and what is done to them.
//!
//! An operation names earlier ones by their number, never by what they led to, so that a history stays
//! meaningful when the shrinker takes operations out of it.

use std::fmt;

use tollgate_core::{Calendar, CalendarUnit, Limit, LimitSpec, Nanos, Refundable, SECOND, Window};
use tollgate_store::{Mode, Role};

use crate::oracle::{ChargeId, Shape, Terms};

/// The most counters of a history, and the most slots of a cluster that they are in.
pub const MAX_COUNTERS: u64 = 8;
pub const MAX_PARTITIONS: u64 = 4;

/// One counter of a history.
#[derive(Debug, Clone)]
pub struct Meter {
    pub shape: Shape,
    pub is_calendar: bool,
    /// What a rule change chooses from; the first at the start.
    pub terms: Vec<Terms>,
    /// Counters of one partition are in one slot of a cluster.
    pub partition: u8,
}

impl Meter {
    /// The product's limit under these terms.
    pub fn limit(&self, terms: Terms) -> Limit {
        let Shape { algorithm, window, .. } = self.shape;
        let calendar = match window / SECOND {
            60 => CalendarUnit::Minute,
            3600 => CalendarUnit::Hour,
            _ => CalendarUnit::Day,
        };
        let spec = LimitSpec {
            algorithm,
            quota: terms.quota,
            window: if self.is_calendar {
                Window::Calendar(Calendar::new(calendar, "UTC", None).unwrap())
            } else {
                Window::Every(window)
            },
            burst: algorithm.is_bucket().then_some(terms.burst),
            slot_ttl: window,
        };
        Limit::new(spec).unwrap()
    }
}

/// One charge of a decision.
#[derive(Debug, Clone)]
pub struct Asked {
    pub counter: usize,
    pub cost: u64,
    pub role: Role,
    pub slot: u128,
    pub max_delay: Option<Nanos>,
    pub max_slot_ttl: Nanos,
}

/// What becomes of a charge when it is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    Keep,
    /// So much less was used, or nothing if that is more than is left of it.
    Less(u64),
    Nothing,
    More(u64),
}

/// How far the clock goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    By(Nanos),
    /// To the end of the counter's aligned window, less so many grains.
    ToEdge(usize, u64),
    /// To the instant at which the last refusal said to try again, less so many grains.
    ToRetry(u64),
}

/// What is asked of the record of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordStep {
    Keep(Nanos),
    End(Nanos),
    Complete,
    Renew(Option<Nanos>),
}

/// One request.
#[derive(Debug, Clone)]
pub struct Decision {
    pub id: u32,
    pub mode: Mode,
    pub asked: Vec<Asked>,
    pub refundable: Refundable,
}

/// Chunks that are taken one after another.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    pub id: u32,
    pub counter: usize,
    pub cost: u64,
    pub times: u32,
    /// Above the limit if need be.
    pub mode: Mode,
}

impl Lease {
    /// The number of a chunk, which no decision has.
    pub const fn chunk(&self, number: u32) -> u32 {
        1_000_000 + self.id * 100 + number
    }
}

/// One operation.
#[derive(Debug, Clone)]
pub enum Op {
    /// Some requests in one call, decided in order.
    Decide(Vec<Decision>),
    /// Chunks on lease, each at an instant of its own: mostly more of them than a bucket has places.
    Lease(Lease),
    /// A request whose caller stops waiting after looking for the answer so many times: unless it was there by then, nothing
    /// stays charged.
    GiveUp(Decision, u32),
    /// Gives back all that is left of these charges, in this order and in one call.
    GiveBack(Vec<ChargeId>),
    /// Gives back a part of a charge; the rest of it can be given back later.
    GiveBackPart(ChargeId, u64),
    /// Settles the charges of a decision under an id.
    Settle {
        id: u32,
        of: u32,
        truths: Vec<Truth>,
    },
    /// Sends an earlier settlement again, word by word.
    SettleAgain(u32),
    Renew(usize, u128),
    Release(usize, u128),
    Slots(usize),
    Reset(usize),
    /// A rule change: the counter has these terms from now on.
    Change(usize, usize),
    Record(u32, RecordStep),
    Advance(Step),
    Tidy,
}

/// Counters and operations.
#[derive(Debug, Clone)]
pub struct History {
    pub seed: u64,
    pub start: Nanos,
    /// The grain of the store's clock.
    pub grain: Nanos,
    pub meters: Vec<Meter>,
    pub ops: Vec<Op>,
}

/// What a store can do, and how histories for it must look.
#[derive(Debug, Clone, Copy)]
pub struct SendOptions {
    /// The grain of the store's clock.
    pub grain: Nanos,
    /// Whether records are kept by the clock that the history goes by.
    pub has_records: bool,
    /// Whether two requests may name the same slot. (The engine draws a new name for every request.)
    pub reuses_slots: bool,
    /// Whether callers can stop waiting before they are answered.
    pub gives_up: bool,
}

impl History {
    /// The counters that operations name.
    pub fn named(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.ops.iter().flat_map(counters_of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn counters_of(op: &Op) -> Vec<usize> {
    match op {
        Op::Decide(all) => {
            all.iter().flat_map(|decision| &decision.asked).map(|one| one.counter).collect()
        }
        Op::Lease(lease) => vec![lease.counter],
        Op::GiveUp(decision, _) => decision.asked.iter().map(|one| one.counter).collect(),
        Op::Renew(counter, _)
        | Op::Release(counter, _)
        | Op::Slots(counter)
        | Op::Reset(counter)
        | Op::Change(counter, _)
        | Op::Advance(Step::ToEdge(counter, _)) => vec![*counter],
        _ => Vec::new(),
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { algorithm, window, .. } = self.shape;
        let calendar = if self.is_calendar { " by the calendar" } else { "" };
        write!(f, "{algorithm}{calendar} in partition {}, per {window} ns:", self.partition)?;
        for Terms { quota, burst } in &self.terms {
            write!(f, " {quota}")?;
            if algorithm.is_bucket() {
                write!(f, " (burst {burst})")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of c{}", self.cost, self.counter)?;
        if self.role != Role::Must {
            write!(f, " as {:?}", self.role)?;
        }
        if let Some(most) = self.max_delay {
            write!(f, " waiting up to {most} ns")?;
        }
        write!(f, " [slot {}", self.slot)?;
        if self.max_slot_ttl < Nanos::MAX {
            write!(f, " for {} ns", self.max_slot_ttl)?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, mode, asked, refundable } = self;
        let refundable = if *refundable == Refundable::No { ", not refundable" } else { "" };
        let all: Vec<String> = asked.iter().map(ToString::to_string).collect();
        write!(f, "#{id} {mode:?}{refundable}: {}", all.join(", "))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decide(all) => {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                f.write_str(&all.join("; "))
            }
            Self::Lease(Lease { id, counter, cost, times, mode }) => {
                write!(f, "#{id} {mode:?}: {times} chunks on lease, each of {cost} of c{counter}")
            }
            Self::GiveUp(decision, looks) => write!(f, "{decision}, given up after {looks} looks"),
            Self::GiveBack(all) => {
                let all: Vec<String> =
                    all.iter().map(|(id, place)| format!("#{id}.{place}")).collect();
                write!(f, "give back {}", all.join(", "))
            }
            Self::GiveBackPart((id, place), cost) => write!(f, "give back {cost} of #{id}.{place}"),
            Self::Settle { id, of, truths } => write!(f, "settlement {id} of #{of}: {truths:?}"),
            Self::SettleAgain(id) => write!(f, "settlement {id} again"),
            Self::Renew(counter, slot) => write!(f, "renew slot {slot} of c{counter}"),
            Self::Release(counter, slot) => write!(f, "release slot {slot} of c{counter}"),
            Self::Slots(counter) => write!(f, "list the slots of c{counter}"),
            Self::Reset(counter) => write!(f, "reset c{counter}"),
            Self::Change(counter, terms) => write!(f, "c{counter} has its terms number {terms}"),
            Self::Record(id, step) => write!(f, "record {id}: {step:?}"),
            Self::Advance(step) => write!(f, "the clock goes {step:?}"),
            Self::Tidy => f.write_str("tidy"),
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, from {} ns on:", self.seed, self.start)?;
        for counter in self.named() {
            writeln!(f, "  c{counter}: {}", self.meters[counter])?;
        }
        for (number, op) in self.ops.iter().enumerate() {
            writeln!(f, "  {:3}. {op}", number + 1)?;
        }
        Ok(())
    }
}
