//! Settling what was charged by estimate.

use std::sync::Arc;

use tollgate_core::{Algorithm, Receipt, SlotId};

use super::Harness;
use super::meter::{LONG, Meter, QUOTA, SHORT, settle};
use crate::{Applied, Change};

fn counted() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Concurrency)
}

/// An id of one case and number.
fn id(case: u8, number: usize) -> u128 {
    u128::from(case) << 120 | number as u128
}

/// Of a charge that was too high the rest is given back, once.
pub async fn settling_gives_back_the_difference<H: Harness>(harness: &Arc<H>) {
    let harness = &**harness;
    for (number, algorithm) in counted().enumerate() {
        let mut meter = Meter::of("settled below", algorithm, QUOTA, LONG).refundable();
        meter.fill(harness, 1).await;
        let receipt = meter.fill(harness, 4).await[0];
        meter.forget_model();
        let rest = Change::GiveBack(receipt.part(3));
        assert_eq!(settle(harness, id(1, number), &[(&meter, rest)]).await, Applied::Now);
        assert_eq!(meter.used(harness).await, 2, "{algorithm}");
        for _ in 0..3 {
            let again = settle(harness, id(1, number), &[(&meter, rest)]).await;
            assert_eq!(again, Applied::Before, "{algorithm}");
        }
        assert_eq!(meter.used(harness).await, 2, "{algorithm}: once");
        meter.fill(harness, 3).await;
        assert!(!meter.charge(harness, 1).await.passes, "{algorithm}: nothing was minted");
    }
}

/// Of a charge that was too low the rest is owed, once, and keeps others out until it is paid.
pub async fn settling_charges_the_difference_above_the_limit<H: Harness>(harness: &Arc<H>) {
    let harness = &**harness;
    for (number, algorithm) in counted().enumerate() {
        let mut meter = Meter::of("settled above", algorithm, QUOTA, LONG);
        meter.fill(harness, 4).await;
        meter.forget_model();
        for expected in [Applied::Now, Applied::Before, Applied::Before] {
            let owed = [(&meter, Change::Owe(6))];
            assert_eq!(settle(harness, id(2, number), &owed).await, expected, "{algorithm}");
            assert_eq!(meter.used(harness).await, 10, "{algorithm}");
        }
        assert!(!meter.charge(harness, 1).await.passes, "{algorithm}: in debt");
    }
}

/// However many settle at the same time under one id, it is done once.
pub async fn settling_is_done_once_by_many_at_the_same_time<H: Harness>(harness: &Arc<H>) {
    for (number, algorithm) in counted().enumerate() {
        let mut meter = Meter::of("settled by many", algorithm, 1_000, LONG).refundable();
        let receipt = meter.fill(&**harness, 500).await[0];
        meter.forget_model();
        let changes = [Change::GiveBack(receipt.part(200)), Change::Owe(300)];
        let meter = Arc::new(meter);
        let mut tasks = Vec::new();
        for task in 0..16 {
            let (harness, meter) = (Arc::clone(harness), Arc::clone(&meter));
            tasks.push(tokio::spawn(async move {
                let (which, change) = (task % 2, changes[task % 2]);
                settle(&*harness, id(3, number * 2 + which), &[(&meter, change)]).await
            }));
        }
        let mut now = 0;
        for task in tasks {
            now += u32::from(task.await.expect("it does not panic") == Applied::Now);
        }
        assert_eq!(now, 2, "{algorithm}: each id once");
        let used = meter.as_ref().clone().used(&**harness).await;
        assert_eq!(used, 600, "{algorithm}");
    }
}

/// One settlement over every algorithm, wherever the counters are: some stay, some are given back, some
/// are owed, and slots are released.
pub async fn settling_changes_many_counters_at_once<H: Harness>(harness: &Arc<H>) {
    let harness = &**harness;
    let mut meters = Vec::new();
    let mut receipts: Vec<Receipt> = Vec::new();
    for key in ["a", "b", "c"] {
        for algorithm in Algorithm::ALL {
            let limit = super::meter::limit(algorithm, QUOTA, LONG);
            let mut meter =
                Meter::new("settled together", &[algorithm.name(), key], limit).refundable();
            let cost = if meter.is_slots() { 1 } else { 3 };
            receipts.push(meter.fill(harness, cost).await[0]);
            meter.forget_model();
            meters.push(meter);
        }
    }
    let change = |number: usize, receipt: Receipt| match (number % 3, receipt) {
        (_, Receipt::Slot(_)) => (Change::GiveBack(receipt), 0),
        (0, _) => (Change::Keep, 3),
        (1, _) => (Change::GiveBack(receipt.part(2)), 1),
        _ => (Change::Owe(7), 10),
    };
    let expected: Vec<(Change, u64)> =
        (receipts.iter().enumerate()).map(|(number, receipt)| change(number, *receipt)).collect();
    for applied in [Applied::Now, Applied::Before] {
        let changes: Vec<_> =
            meters.iter().zip(&expected).map(|(meter, (change, _))| (meter, *change)).collect();
        assert_eq!(settle(harness, id(4, 0), &changes).await, applied);
        for (meter, (_, used)) in meters.iter_mut().zip(&expected) {
            assert_eq!(meter.used(harness).await, *used, "{meter:?}");
        }
    }
    let slots = meters.iter_mut().find(|meter| meter.is_slots()).expect("there is one");
    assert!(!slots.release(harness, SlotId(7)).await);
}

/// What is given back when its window has passed does not make room in a later one.
pub async fn settling_later_mints_nothing<H: Harness>(harness: &Arc<H>) {
    let harness = &**harness;
    let mut charged = Vec::new();
    for algorithm in counted() {
        let mut meter = Meter::of("settled late", algorithm, QUOTA, SHORT);
        let receipt = meter.fill(harness, QUOTA).await[0];
        charged.push((meter, receipt));
    }
    harness.advance(2 * SHORT).await;
    for (number, (meter, receipt)) in charged.iter_mut().enumerate() {
        meter.charge(harness, 2).await;
        let late = [(&*meter, Change::GiveBack(*receipt))];
        assert_eq!(settle(harness, id(5, number), &late).await, Applied::Now);
        // The model knows nothing of it, and the store must tell the same.
        meter.peek(harness, 1).await;
    }
}
