//! A node: the real code for fallback and leases on a simulated connection, and the beats that the
//! server gives it.

use std::sync::Arc;

use tollgate_core::{Nanos, SECOND};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::resilient::{Resilient, ResilientOptions};

use crate::draw::Draw;
use crate::link::Link;
use crate::network::Network;
use crate::time::MILLISECOND;

/// What a server's node is made of.
pub type Stack = Resilient<Leased<Link>>;

/// How often unspent quota is returned, what was admitted is reported, and the node is announced: as
/// `tollgate-server` does.
const SWEEP_INTERVAL: Nanos = 100 * MILLISECOND;
const HEAL_INTERVAL: Nanos = 250 * MILLISECOND;
const HEARTBEAT_INTERVAL: Nanos = SECOND;

/// How far a node's clock may be wrong.
const MAX_SKEW: Nanos = 5 * SECOND;

pub struct Node {
    pub number: usize,
    pub store: Stack,
    network: Arc<Network>,
    skew: Nanos,
    /// When its first beat is.
    first_beat: Nanos,
}

impl Node {
    pub fn new(network: &Arc<Network>, seed: u64, number: usize) -> Arc<Self> {
        let mut draw = Draw::new(seed, 2_000 + number as u64);
        let name = format!("node-{number}");
        let link = Link { network: Arc::clone(network), node: number };
        let mut leases = LeaseOptions::new(name.clone());
        leases.seed = Some(draw.next());
        leases.max_leases = 64;
        let mut resilience = ResilientOptions::new(name);
        resilience.seed = Some(draw.next());
        (resilience.max_counters, resilience.max_reports) = (10_000, 10_000);
        let store = Resilient::new(Leased::new(link, leases), resilience);
        let first_beat = network.time.now() + draw.below(SECOND);
        let skew = draw.below(2 * MAX_SKEW);
        Arc::new(Self { number, store, network: Arc::clone(network), skew, first_beat })
    }

    /// What the node's own clock shows.
    pub fn now(&self) -> Nanos {
        self.network.time.now() + self.skew - MAX_SKEW
    }

    /// Does what is to be done now and then, one after another, until the simulation ends.
    pub async fn keep(self: Arc<Self>) {
        let time = &self.network.time;
        let mut due = [self.first_beat; 3];
        let every = [HEARTBEAT_INTERVAL, HEAL_INTERVAL, SWEEP_INTERVAL];
        loop {
            let next = (0..due.len()).min_by_key(|which| due[*which]).unwrap_or(0);
            time.sleep_until(due[next]).await;
            due[next] = time.now() + every[next];
            match next {
                // What fails is tried again the next time.
                0 => drop(self.store.heartbeat(self.now()).await),
                1 => drop(self.store.heal(self.now()).await),
                _ => self.store.inner().sweep(self.now()).await,
            }
        }
    }
}
