//! Histories of several nodes that share a store: what leases and outages are checked with.
//!
//! Such stores are not exact, they promise a bound; the oracle's list holds what was admitted, and the
//! bound is checked against that.

use std::fmt;

use tollgate_core::{Algorithm, Limit, LimitSpec, Nanos, SECOND, Window};

use crate::draw::Draw;
use crate::oracle::{Account, Shape, Terms, Wanted};

pub const MAX_NODES: u64 = 3;
const MAX_COUNTERS: u64 = 3;
const MAX_OPERATIONS: u64 = 60;

/// Everything that counts costs.
const COSTS: [Algorithm; 6] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowLog,
    Algorithm::SlidingWindowCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::Gcra,
];

/// A counter that nodes share.
#[derive(Debug, Clone, Copy)]
pub struct SharedMeter {
    pub shape: Shape,
    pub terms: Terms,
    /// How much nodes may take ahead, in millionths; 0 for a strict counter.
    pub overshoot_ppm: u32,
}

impl SharedMeter {
    pub fn limit(&self) -> Limit {
        let Shape { algorithm, window, .. } = self.shape;
        let burst = algorithm.is_bucket().then_some(self.terms.burst);
        let (quota, window) = (self.terms.quota, Window::Every(window));
        Limit::new(LimitSpec { algorithm, quota, window, burst, slot_ttl: SECOND }).unwrap()
    }

    /// The pool: how far nodes may be wrong.
    pub fn pool(&self) -> u64 {
        self.terms.quota * u64::from(self.overshoot_ppm) / 1_000_000
    }

    /// Whether a charge passes if the counter had room for `more`, or less where that is negative.
    pub fn admits(&self, account: &Account, cost: u64, more: i64, now: Nanos) -> bool {
        let changed = |amount: u64| amount.saturating_add_signed(more);
        let is_bucket = self.shape.algorithm.is_bucket();
        // The pace of a bucket is that of its quota; its room is the burst.
        let Terms { quota, burst } = self.terms;
        let terms =
            Terms { quota: if is_bucket { quota } else { changed(quota) }, burst: changed(burst) };
        let wanted = Wanted { cost, max_delay: None, slot: 0 };
        account.ever_admits(terms, wanted) && account.admits(terms, wanted, now).is_some()
    }
}

/// One operation.
#[derive(Debug, Clone)]
pub enum NodeOp {
    /// So many requests in a row by one node, each of these costs of these counters.
    Charge {
        id: u32,
        node: usize,
        times: u32,
        costs: Vec<(usize, u64)>,
    },
    /// All that the last of an operation's requests charged is given back.
    GiveBack {
        node: usize,
        of: u32,
    },
    /// The last of an operation's requests is settled with so much less, or more where that is negative.
    Settle {
        node: usize,
        of: u32,
        less: i64,
    },
    /// The store can no longer be reached by this node.
    Cut(usize),
    CutAll,
    Heal(usize),
    HealAll,
    /// Returns what was taken ahead and is not needed.
    Sweep(usize),
    Advance(Nanos),
}

/// What nodes do.
#[derive(Debug, Clone)]
pub struct NodeHistory {
    pub seed: u64,
    pub start: Nanos,
    pub nodes: usize,
    pub meters: Vec<SharedMeter>,
    pub ops: Vec<NodeOp>,
}

/// Which histories are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Leases; the store is always there.
    Leased,
    /// Outages that begin and end on all nodes together.
    CutTogether,
    /// Outages of single nodes.
    CutApart,
}

fn shared_meter(draw: &mut Draw, kind: Kind) -> SharedMeter {
    let algorithm = draw.pick(&COSTS);
    let quota = match kind {
        Kind::Leased => 20 + draw.below(200),
        // Small, so that it is used up.
        Kind::CutTogether | Kind::CutApart => 3 + draw.below(40),
    };
    let window = match kind {
        Kind::Leased => draw.pick(&[10 * SECOND, 60 * SECOND, 3600 * SECOND]),
        // Long enough that nothing is refilled and no window ends: what is admitted can be summed up.
        Kind::CutTogether | Kind::CutApart => 30 * 86_400 * SECOND,
    };
    let burst = if algorithm.is_bucket() { quota.min(3 + draw.below(quota * 2)) } else { quota };
    let overshoot_ppm = match kind {
        Kind::Leased => draw.pick(&[0, 100_000, 300_000, 500_000]),
        Kind::CutTogether | Kind::CutApart => 0,
    };
    let shape = Shape { algorithm, window, scale: quota };
    SharedMeter { shape, terms: Terms { quota, burst }, overshoot_ppm }
}

impl NodeHistory {
    pub fn new(seed: u64, kind: Kind) -> Self {
        let mut draw = Draw::new(seed);
        let meters: Vec<_> =
            (0..=draw.below(MAX_COUNTERS)).map(|_| shared_meter(&mut draw, kind)).collect();
        let nodes = 1 + draw.below(MAX_NODES);
        // In the middle of all windows.
        let start = 1_789_000_000 * SECOND + draw.below(3600) * SECOND;
        let length = 2 + draw.below(MAX_OPERATIONS - 1);
        let mut history = Self { seed, start, nodes: nodes as usize, meters, ops: Vec::new() };
        for _ in 0..length {
            let op = history.op(&mut draw, kind);
            history.ops.push(op);
        }
        history
    }

    fn op(&self, draw: &mut Draw, kind: Kind) -> NodeOp {
        let id = self.ops.len() as u32;
        let node = draw.below(self.nodes as u64) as usize;
        match draw.below(20) {
            0 | 1 if id > 0 => NodeOp::GiveBack { node, of: draw.below(u64::from(id)) as u32 },
            2 | 3 if id > 0 => {
                let less = draw.below(9).cast_signed() - 3;
                NodeOp::Settle { node, of: draw.below(u64::from(id)) as u32, less }
            }
            4 | 5 if kind == Kind::Leased => NodeOp::Sweep(node),
            4 if kind == Kind::CutTogether => NodeOp::CutAll,
            5 if kind == Kind::CutTogether => NodeOp::HealAll,
            4 if kind == Kind::CutApart => NodeOp::Cut(node),
            5 if kind == Kind::CutApart => NodeOp::Heal(node),
            6..=9 => NodeOp::Advance(match draw.below(8) {
                0 => SECOND + draw.below(1_000_000) * 1_000,
                1 => draw.below(20) * SECOND,
                _ => draw.below(50_000) * 1_000,
            }),
            _ => {
                let mut costs = Vec::new();
                for counter in 0..self.meters.len() {
                    if counter == 0 || draw.one_in(2) {
                        costs.push((counter, 1 + draw.below(3) * draw.below(2)));
                    }
                }
                NodeOp::Charge { id, node, times: 1 + draw.below(12) as u32, costs }
            }
        }
    }
}

impl fmt::Display for NodeHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} nodes, from {} ns on:", self.seed, self.nodes, self.start)?;
        for (number, meter) in self.meters.iter().enumerate() {
            let SharedMeter { shape, terms: Terms { quota, burst }, overshoot_ppm } = meter;
            let Shape { algorithm, window, .. } = shape;
            write!(f, "  c{number}: {algorithm} {quota} (burst {burst}) per {window} ns")?;
            writeln!(f, ", overshoot {overshoot_ppm} ppm")?;
        }
        for (number, op) in self.ops.iter().enumerate() {
            writeln!(f, "  {:3}. {op:?}", number + 1)?;
        }
        Ok(())
    }
}
