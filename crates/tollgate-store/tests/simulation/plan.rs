//! What is going to happen in a run: drawn from a seed, and plain data from then on, so that a run that
//! fails can be repeated with less of it.

use tollgate_core::{Algorithm, Nanos, SECOND};

use crate::time::START;

/// What a run is about, and with it what must hold in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All nodes lose the store at the same instant, knowing what is used, and find it again one after
    /// another, in time for each other: a limit is admitted once.
    Outage,
    /// The same, but some return too late for the others to wait: twice at most.
    LateReturn,
    /// Messages are lost, arrive late and twice, and nodes are cut off at random: twice at most.
    Partitions,
    /// A store that is far away and well: those who ask steadily for leased quota do not wait.
    FarStore,
}

/// How messages travel.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    /// How long a message takes, one way.
    pub nearest: Nanos,
    pub farthest: Nanos,
    /// How many of a million are lost, and how many arrive twice.
    pub losses: u64,
    pub duplicates: u64,
    /// How long an attempt waits for its answer.
    pub timeout: Nanos,
}

/// What is wrong with a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Nothing arrives, and nobody says so.
    Silent,
    /// There is no connection, which is known at once.
    Reset,
    /// The store stands still, and does afterwards what has arrived.
    Frozen,
    /// Only calls are lost, or only answers.
    LosesCalls,
    LosesAnswers,
}

/// A time during which something is wrong with some links.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// A bit for every node.
    pub nodes: u32,
    pub from: Nanos,
    pub until: Nanos,
    pub kind: FaultKind,
}

/// A limit that is charged.
#[derive(Debug, Clone, Copy)]
pub struct CounterPlan {
    pub algorithm: Algorithm,
    pub quota: u64,
    pub window: Nanos,
    /// How much of it may be on lease, in millionths; 0: none is.
    pub overshoot: u32,
}

impl CounterPlan {
    /// What may be on lease over all nodes.
    pub fn pool(&self) -> u64 {
        self.quota * u64::from(self.overshoot) / 1_000_000
    }
}

/// What a client asks for.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// A charge.
    Allow,
    /// Only what is used.
    Look,
    /// A charge of an estimate, settled later at its true cost.
    Reserve { true_cost: u64, after: Nanos },
}

#[derive(Debug, Clone, Copy)]
pub struct ClientCall {
    pub at: Nanos,
    pub node: usize,
    /// A bit for every counter that it charges.
    pub counters: u32,
    pub cost: u64,
    pub what: What,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub shape: Shape,
    pub nodes: usize,
    pub profile: Profile,
    pub counters: Vec<CounterPlan>,
    pub faults: Vec<Fault>,
    pub calls: Vec<ClientCall>,
    /// From then on nothing is lost and nobody asks.
    pub calm_at: Nanos,
}

impl Plan {
    /// The plan in words.
    pub fn text(&self) -> String {
        let Self { seed, shape, nodes, profile, counters, faults, calls, calm_at } = self;
        let seconds = |at: Nanos| (at - START) as f64 / SECOND as f64;
        let mut lines = vec![
            format!("seed {seed}: {shape:?}, {nodes} nodes, {} calls", calls.len()),
            format!("  {profile:?}"),
        ];
        let counter = |(number, it): (usize, &CounterPlan)| format!("  counter {number}: {it:?}");
        lines.extend(counters.iter().enumerate().map(counter));
        let fault = |it: &Fault| {
            let (from, until) = (seconds(it.from), seconds(it.until));
            format!("  {:?} from {from:.3} s to {until:.3} s on nodes {:b}", it.kind, it.nodes)
        };
        lines.extend(faults.iter().map(fault));
        lines.push(format!("  calm from {:.3} s", seconds(*calm_at)));
        lines.join("\n")
    }
}
