//! Many tasks at once. Windows are long, so that nothing comes back meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Algorithm, Ask, Limit, Receipt, SlotId};

use super::Harness;
use super::meter::{LONG, home, limit, salt};
use crate::{Charge, Counter, Mode, Outcomes, Request, Role, Store};

const TASKS: u64 = 64;
const REQUESTS_PER_TASK: u64 = 50;

/// Tasks that ask for more than there is get exactly what there is.
pub async fn many_tasks_admit_exactly_the_quota<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let quota = TASKS * REQUESTS_PER_TASK / 3;
        let limit = Arc::new(limit(algorithm, quota, LONG));
        let admitted = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let (harness, limit) = (Arc::clone(harness), Arc::clone(&limit));
            let admitted = Arc::clone(&admitted);
            tasks.push(tokio::spawn(async move {
                for number in 0..REQUESTS_PER_TASK {
                    let name = SlotId(u128::from(task * REQUESTS_PER_TASK + number + 1));
                    let outcome = charge_one(&*harness, &limit, name, Mode::Charge).await;
                    admitted.fetch_add(u64::from(outcome), Ordering::Relaxed);
                }
            }));
        }
        for task in tasks {
            task.await.expect("the task ends well");
        }
        assert_eq!(admitted.load(Ordering::Relaxed), quota, "{algorithm}");
    }
}

async fn charge_one(harness: &impl Harness, limit: &Limit, slot: SlotId, mode: Mode) -> bool {
    let key = [limit.algorithm().name()];
    let counter =
        Counter { rule_id: "tasks", tag: "t", salt: salt("tasks", "t"), key: &key, home: home() };
    let ask = Ask { slot, ..Ask::cost(1) };
    let charges = [Charge { counter, limit, ask, role: Role::Must }];
    let (mut outcomes, now) = (Outcomes::new(), harness.now().await);
    let request = Request { charges: &charges, mode };
    harness.store().decide(&[request], now, &mut outcomes).await.expect("the store answers");
    outcomes[0].examination.admits()
}

/// Numbers that look random and are the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % end
    }
}

/// A counter that many tasks share, and what was charged to it by their own account.
struct Shared {
    key: String,
    limit: Limit,
    charged: AtomicU64,
}

impl Shared {
    fn all() -> Vec<Self> {
        (0..28u64)
            .map(|number| {
                let algorithm = Algorithm::ALL[number as usize % Algorithm::ALL.len()];
                let quota = [40, 100, 400, 4_000][number as usize / 7];
                let limit = limit(algorithm, quota, LONG);
                Self { key: format!("shared {number}"), limit, charged: AtomicU64::new(0) }
            })
            .collect()
    }
}

/// Requests over random sets of counters in random roles: no counter is charged above its limit, and
/// in the end each has used exactly what the answers to the requests that passed report as charged.
pub async fn many_tasks_on_many_counters_account_exactly<H: Harness>(harness: &Arc<H>) {
    let shared = Arc::new(Shared::all());
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (harness, shared) = (Arc::clone(harness), Arc::clone(&shared));
        tasks.push(tokio::spawn(async move {
            let mut draw = Draw(task);
            let mut passed = 0;
            for number in 0..REQUESTS_PER_TASK {
                let name = u128::from(task * REQUESTS_PER_TASK + number + 1);
                passed += u64::from(charge_several(&*harness, &shared, &mut draw, name).await);
            }
            passed
        }));
    }
    let mut passed = 0;
    for task in tasks {
        passed += task.await.expect("the task ends well");
    }
    assert!(passed > 0 && passed < TASKS * REQUESTS_PER_TASK, "{passed} passed: some, not all");
    for counter in &*shared {
        let key = [counter.key.as_str()];
        let mut outcomes = Outcomes::new();
        let charges = [charge(counter, &key, Ask::slot(SlotId(u128::MAX)), Role::Must)];
        let request = Request { charges: &charges, mode: Mode::Peek };
        let now = harness.now().await;
        harness.store().decide(&[request], now, &mut outcomes).await.expect("answers");
        let (used, charged) = (outcomes[0].status.used, counter.charged.load(Ordering::Relaxed));
        assert_eq!(used, charged, "{}: {:?}", counter.key, counter.limit);
        assert!(used <= counter.limit.quota(), "{}: {:?}", counter.key, counter.limit);
    }
}

fn charge<'a>(shared: &'a Shared, key: &'a [&'a str], ask: Ask, role: Role) -> Charge<'a> {
    let counter = Counter { rule_id: "many", tag: "t", salt: salt("many", "t"), key, home: home() };
    Charge { counter, limit: &shared.limit, ask, role }
}

async fn charge_several(
    harness: &impl Harness,
    shared: &[Shared],
    draw: &mut Draw,
    name: u128,
) -> bool {
    let mut chosen: Vec<&Shared> = Vec::new();
    for _ in 0..=draw.below(8) {
        let one = &shared[draw.below(shared.len() as u64) as usize];
        if !chosen.iter().any(|other| std::ptr::eq(*other, one)) {
            chosen.push(one);
        }
    }
    let keys: Vec<[&str; 1]> = chosen.iter().map(|one| [one.key.as_str()]).collect();
    let charges: Vec<Charge<'_>> = (chosen.iter().zip(&keys))
        .map(|(one, key)| {
            let role = [Role::Must, Role::Must, Role::AnyOf, Role::Watch][draw.below(4) as usize];
            let ask = Ask { slot: SlotId(name), ..Ask::cost(1 + draw.below(3)) };
            charge(one, key, ask, role)
        })
        .collect();
    let (mut outcomes, now) = (Outcomes::new(), harness.now().await);
    let request = Request { charges: &charges, mode: Mode::Charge };
    harness.store().decide(&[request], now, &mut outcomes).await.expect("the store answers");
    let passes = crate::passes(&charges, &outcomes);
    for ((one, charge), outcome) in chosen.iter().zip(&charges).zip(&outcomes) {
        let paid = outcome.receipt != Receipt::Nothing;
        assert_eq!(paid, passes && outcome.examination.admits(), "{:?}", charge.role);
        assert!(outcome.status.used <= one.limit.quota(), "{:?}", one.limit);
        if paid {
            let slots = one.limit.algorithm() == Algorithm::Concurrency;
            let cost = if slots { 1 } else { charge.ask.cost };
            one.charged.fetch_add(cost, Ordering::Relaxed);
        }
    }
    passes
}
