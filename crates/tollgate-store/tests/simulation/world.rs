//! One run: nodes, store, network and clients under a plan, and what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::{Nanos, SECOND};
use tollgate_store::{Mode, Request};

use crate::check::{Outcome, check};
use crate::client::{self, Account, Admission, Meter};
use crate::network::Network;
use crate::node::Node;
use crate::owned::OwnedRequest;
use crate::plan::Plan;
use crate::time::{START, Time};

/// How long after the last fault everything must be settled.
const CALM: Nanos = 6 * SECOND;

/// Callers that came later than this find leases that know the demand.
pub const WARM: Nanos = START + 5 * SECOND;

/// A decision that takes longer has waited.
const WAIT: Nanos = 2_000_000;

pub struct World {
    pub seed: u64,
    pub time: Arc<Time>,
    pub network: Arc<Network>,
    pub nodes: Vec<Arc<Node>>,
    pub meters: Vec<Meter>,
    pub ledger: Mutex<Ledger>,
}

/// What clients saw.
#[derive(Debug, Default)]
pub struct Ledger {
    pub accounts: BTreeMap<String, Account>,
    pub admissions: Vec<Admission>,
    /// Decisions once leases are warm, and those of them that waited.
    pub warm: u64,
    pub waits: u64,
    /// The longest that a decision took.
    pub longest: Nanos,
    pub failures: Vec<String>,
}

impl Ledger {
    pub fn waited(&mut self, asked_at: Nanos, waited: Nanos) {
        self.longest = self.longest.max(waited);
        if asked_at >= WARM {
            self.warm += 1;
            self.waits += u64::from(waited > WAIT);
        }
    }
}

impl World {
    fn new(plan: &Plan, is_noted: bool) -> Arc<Self> {
        let time = Time::new(plan.seed, is_noted);
        let network = Network::new(&time, plan);
        let nodes = (0..plan.nodes).map(|number| Node::new(&network, plan.seed, number)).collect();
        let meters: Vec<Meter> =
            plan.counters.iter().enumerate().map(|(number, it)| Meter::new(number, *it)).collect();
        let accounts = meters.iter().map(|meter| (meter.rule_id.clone(), Account::default()));
        let ledger = Mutex::new(Ledger { accounts: accounts.collect(), ..Ledger::default() });
        Arc::new(Self { seed: plan.seed, time, network, nodes, meters, ledger })
    }

    pub fn account(&self, rule_id: &str, act: impl FnOnce(&mut Account)) {
        if let Some(account) = self.ledger.lock().accounts.get_mut(rule_id) {
            act(account);
        }
    }

    pub fn fail(&self, failure: String) {
        self.ledger.lock().failures.push(failure);
    }

    /// What the store counts of a counter now.
    pub fn used(&self, meter: &Meter) -> u64 {
        let charges = [meter.charge(1)];
        let request = OwnedRequest::new(&Request { charges: &charges, mode: Mode::Peek });
        self.network.server.lock().used(&request, self.time.now())
    }
}

/// Runs a plan to its end, and says what came of it.
pub fn run(plan: &Plan, is_noted: bool) -> Outcome {
    let world = World::new(plan, is_noted);
    let time = Arc::clone(&world.time);
    time.run(async {
        for node in &world.nodes {
            tokio::spawn(Arc::clone(node).keep());
        }
        let clients: Vec<_> = (plan.calls.iter().enumerate())
            .map(|(number, call)| tokio::spawn(client::run(Arc::clone(&world), number, *call)))
            .collect();
        for client in clients {
            client.await.expect("a client does not panic");
        }
        let end = world.time.now().max(plan.calm_at) + CALM;
        world.time.sleep_until(end).await;
    });
    check(plan, &world)
}
