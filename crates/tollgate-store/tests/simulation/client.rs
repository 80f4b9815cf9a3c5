//! Clients: what they ask for, and what they were promised.

use std::sync::Arc;

use tollgate_core::{Ask, Limit, LimitSpec, Nanos, Outcome, Receipt, SECOND, Window};
use tollgate_store::{
    Adjustment, Change, Charge, Consistency, Counter, Home, Mode, Outcomes, Request, Role,
    Settlement, Store, passes,
};

use crate::draw::Draw;
use crate::node::Node;
use crate::plan::{ClientCall, CounterPlan, What};
use crate::time::MILLISECOND;
use crate::world::World;

/// How long a settlement may be repeated.
const REMEMBERED: Nanos = 180 * SECOND;

/// After how long a settlement that failed is tried again.
const TRY_AGAIN: Nanos = 200 * MILLISECOND;

/// A counter of the plan, ready to be charged.
pub struct Meter {
    pub plan: CounterPlan,
    pub rule_id: String,
    pub limit: Limit,
    salt: u128,
}

impl Meter {
    pub fn new(number: usize, plan: CounterPlan) -> Self {
        let CounterPlan { algorithm, quota, window, .. } = plan;
        let burst = algorithm.is_bucket().then_some(quota);
        let window = Window::Every(window);
        let limit = Limit::new(LimitSpec { algorithm, quota, window, burst, slot_ttl: 1 });
        let salt = 1 << 127 | (number as u128 + 1) << 64;
        Self { plan, rule_id: format!("rule-{number}"), limit: limit.expect("sound"), salt }
    }

    pub fn counter(&self) -> Counter<'_> {
        let consistency = match self.plan.overshoot {
            0 => Consistency::Strict,
            max_overshoot_ppm => Consistency::Leased { max_overshoot_ppm },
        };
        let home = Home { partition: Some(0), consistency, ..Home::default() };
        Counter { rule_id: &self.rule_id, tag: "t", salt: self.salt, key: &["key"], home }
    }

    pub fn charge(&self, cost: u64) -> Charge<'_> {
        let (counter, limit) = (self.counter(), &self.limit);
        Charge { counter, limit, ask: Ask::cost(cost), role: Role::Must }
    }
}

/// What clients were admitted to of one counter.
#[derive(Debug, Default, Clone, Copy)]
pub struct Account {
    /// All that was admitted, and the part of it that a node decided without the store.
    pub admitted: u64,
    pub locally: u64,
    /// What settlements have given back of it, and charged beyond it.
    pub refunded: u64,
    pub extra: u64,
    /// What was given back of charges that a node admitted by itself.
    pub refunded_locally: u64,
    /// The most that was admitted and not given back, at any instant.
    pub most: u64,
}

impl Account {
    fn admit(&mut self, cost: u64, is_local: bool) {
        self.admitted += cost;
        self.locally += if is_local { cost } else { 0 };
        self.most = self.most.max(self.admitted - self.refunded);
    }

    /// What the store must count in the end.
    pub const fn owed(&self) -> u64 {
        self.admitted - self.refunded + self.extra
    }
}

/// One charge that was admitted.
#[derive(Debug)]
pub struct Admission {
    pub rule_id: String,
    pub asked_at: Nanos,
    pub answered_at: Nanos,
    /// What is not given back of it later.
    pub kept: u64,
}

/// One client's call, from its request to its settlement.
pub async fn run(world: Arc<World>, number: usize, call: ClientCall) {
    let World { time, nodes, meters, .. } = &*world;
    time.sleep_until(call.at).await;
    let node = &nodes[call.node];
    let charged: Vec<&Meter> = (meters.iter().enumerate())
        .filter(|(place, _)| call.counters >> place & 1 == 1)
        .map(|(_, meter)| meter)
        .collect();
    let is_reserved = matches!(call.what, What::Reserve { .. });
    let charges: Vec<Charge<'_>> = charged
        .iter()
        .map(|meter| {
            let charge = meter.charge(call.cost);
            let ask = if is_reserved { charge.ask.refundable() } else { charge.ask };
            Charge { ask, ..charge }
        })
        .collect();
    let mode = if matches!(call.what, What::Look) { Mode::Peek } else { Mode::Charge };
    let (asked_at, mut outcomes) = (time.now(), Outcomes::new());
    let request = Request { charges: &charges, mode };
    let decided = node.store.decide(&[request], node.now(), &mut outcomes).await;
    let waited = time.now() - asked_at;
    world.ledger.lock().waited(asked_at, waited);
    let is_local = match decided {
        Ok(decided) => decided.degraded.is_some(),
        Err(error) => {
            world.fail(format!("node {} answered with an error: {error:?}", call.node));
            return;
        }
    };
    let is_admitted = outcomes.len() == charges.len() && passes(&charges, &outcomes);
    time.note(number as u64 * 4 + u64::from(is_admitted) * 2 + u64::from(is_local), || {
        let names: Vec<_> = charged.iter().map(|meter| meter.rule_id.as_str()).collect();
        let how = if is_local { "by itself" } else { "by the store" };
        let verdict = if is_admitted { "admits" } else { "refuses" };
        let (names, cost, millis) = (names.join(" + "), call.cost, waited as f64 / 1e6);
        let number_of = format!("{:?} {number}", call.what);
        let used: Vec<_> = outcomes.iter().map(|it| it.status.used.to_string()).collect();
        let (node, used) = (call.node, used.join(" + "));
        format!(
            "node {node}: {number_of}: {verdict} {names} {cost} {how} after {millis:.3} ms, used {used}"
        )
    });
    if mode == Mode::Peek || !is_admitted {
        return;
    }
    let kept = match call.what {
        What::Reserve { true_cost, .. } => true_cost.min(call.cost),
        _ => call.cost,
    };
    for meter in &charged {
        world.account(&meter.rule_id, |account| account.admit(call.cost, is_local));
        let (rule_id, answered_at) = (meter.rule_id.clone(), time.now());
        let admission = Admission { rule_id, asked_at, answered_at, kept };
        world.ledger.lock().admissions.push(admission);
    }
    if let What::Reserve { true_cost, after } = call.what {
        time.sleep(after).await;
        let reserved = Reserved { number, call, charged: &charged, outcomes: &outcomes };
        reserved.settle(&world, node, true_cost, is_local).await;
    }
}

/// A charge that is to be settled.
struct Reserved<'a> {
    number: usize,
    call: ClientCall,
    charged: &'a [&'a Meter],
    outcomes: &'a [Outcome],
}

impl Reserved<'_> {
    /// Whether a node reaches the reservation's record, which is on the store: without it nothing is
    /// settled.
    async fn reaches_record(&self, node: &Node) -> bool {
        let charges: Vec<Charge<'_>> = self.charged.iter().map(|meter| meter.charge(1)).collect();
        let request = Request { charges: &charges, mode: Mode::Peek };
        node.store.inner().decide(&[request], node.now(), &mut Outcomes::new()).await.is_ok()
    }

    /// Settles at the true cost, however often that must be tried; sometimes once more than needed.
    async fn settle(&self, world: &World, node: &Node, true_cost: u64, is_local: bool) {
        let cost = self.call.cost;
        let change = |receipt: &Receipt| match true_cost.checked_sub(cost) {
            None => Change::GiveBack(receipt.part(cost - true_cost)),
            Some(0) => Change::Keep,
            Some(extra) => Change::Owe(extra),
        };
        let kept = |receipt: &Receipt| match cost.min(true_cost) {
            0 => Receipt::Nothing,
            kept => receipt.part(kept),
        };
        let changes: Vec<(&Meter, Change, Receipt)> = (self.charged.iter().zip(self.outcomes))
            .map(|(meter, Outcome { receipt, .. })| (*meter, change(receipt), kept(receipt)))
            .collect();
        for (meter, ..) in &changes {
            world.account(&meter.rule_id, |account| {
                account.refunded += cost.saturating_sub(true_cost);
                account.refunded_locally +=
                    if is_local { cost.saturating_sub(true_cost) } else { 0 };
                account.extra += true_cost.saturating_sub(cost);
            });
        }
        let adjustments: Vec<Adjustment<'_>> = changes
            .iter()
            .map(|(meter, change, closes)| {
                let (counter, limit) = (meter.counter(), &meter.limit);
                Adjustment { counter, limit, change: *change, closes: *closes }
            })
            .collect();
        let id = u128::from(world.seed) << 64 | self.number as u128;
        let settlement =
            Settlement { id, remember: REMEMBERED, is_here: is_local, adjustments: &adjustments };
        let mut draw = Draw::new(world.seed, 10_000 + self.number as u64);
        let times = if draw.chance(300_000) { 2 } else { 1 };
        let mut node = node;
        for _ in 0..times {
            while !is_local && !self.reaches_record(node).await {
                world.time.sleep(TRY_AGAIN).await;
            }
            while let Err(error) = node.store.settle(&settlement, node.now()).await {
                let failure = error.failure;
                world.time.note(self.number as u64, || {
                    format!("node {}: cannot settle {} ({failure:?})", node.number, self.number)
                });
                world.time.sleep(TRY_AGAIN).await;
            }
            world.time.note(self.number as u64, || {
                format!("node {}: settles {} at {true_cost} of {cost}", node.number, self.number)
            });
            world.time.sleep(draw.between(0, 300) * MILLISECOND).await;
            if !is_local {
                // Any node can repeat it.
                node = &world.nodes[draw.below(world.nodes.len() as u64) as usize];
            }
        }
    }
}
