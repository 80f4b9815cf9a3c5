//! Settlements while the shared store comes and goes, from leases, and over several stores.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    dead_code,
    reason = "these are tests: a panic is how they fail; helpers are shared"
)]

mod leased_support;

use std::sync::Arc;

use leased_support::{COSTS, Remote, World, charge, counter, failing, leased, limit};
use tollgate_core::{Algorithm, Limit, Nanos, Receipt, SECOND};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::placed::Placed;
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{
    Adjusted, Adjustment, Applied, Change, Consistency, Counter, Home, MemoryStore, OnFailure,
    Settlement, Store,
};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;

fn node(world: &Arc<World>, name: &str) -> Resilient<Remote> {
    Resilient::new(Remote(Arc::clone(world)), ResilientOptions::new(name.to_owned()))
}

/// Settles a charge that was made on the shared store.
async fn settle(
    store: &impl Store,
    id: u128,
    counter: Counter<'_>,
    limit: &Limit,
    change: Change,
    now: Nanos,
) -> Adjusted {
    let adjustments = [Adjustment { counter, limit, change, closes: Receipt::Nothing }];
    let remember = 180 * SECOND;
    let settlement = Settlement { id, remember, is_here: false, adjustments: &adjustments };
    store.settle(&settlement, now).await.expect("it answers")
}

/// Settles a charge that a node made without the shared store.
async fn settle_local(
    store: &impl Store,
    id: u128,
    counter: Counter<'_>,
    limit: &Limit,
    change: Change,
    now: Nanos,
) -> Adjusted {
    let adjustments = [Adjustment { counter, limit, change, closes: Receipt::Nothing }];
    let remember = 180 * SECOND;
    let settlement = Settlement { id, remember, is_here: true, adjustments: &adjustments };
    store.settle(&settlement, now).await.expect("it answers")
}

/// A settlement that the store did not take is kept and sent again under its id: it is applied
/// once, whichever node was first.
#[tokio::test]
async fn a_settlement_waits_for_the_store_and_is_applied_once() {
    for algorithm in COSTS {
        let world = World::new();
        let (a, b) = (node(&world, "a"), node(&world, "b"));
        let (counter, limit) =
            (counter("r", &["k"], failing(OnFailure::Local)), limit(algorithm, 100, LONG));
        let mut charged = Vec::new();
        for cost in [60, 20] {
            let outcome = charge(&a, counter, &limit, cost, world.now()).await.expect("answers");
            charged.push(outcome.receipt);
        }
        world.set_down(true);
        let refund = Change::GiveBack(charged[0].part(15));
        for _ in 0..2 {
            let now = world.now();
            assert_eq!(settle(&a, 1, counter, &limit, refund, now).await, Applied::Later);
            let owed = settle(&a, 2, counter, &limit, Change::Owe(7), now).await;
            assert_eq!(owed, Applied::Later, "{algorithm}");
        }
        assert_eq!(a.waiting_settlements(), 2, "each once");
        assert!(!a.heal(world.now()).await, "{algorithm}: it is still away");
        assert_eq!(a.waiting_settlements(), 2);
        assert_eq!(world.status(counter, &limit).used, 80, "{algorithm}");
        world.set_down(false);
        // Another node is asked to settle the same meanwhile.
        assert_eq!(settle(&b, 1, counter, &limit, refund, world.now()).await, Applied::Now);
        assert!(a.heal(world.now()).await);
        assert_eq!(a.waiting_settlements(), 0);
        assert_eq!(world.status(counter, &limit).used, 72, "{algorithm}: each once");
        for id in [1, 2] {
            let again = settle(&b, id, counter, &limit, refund, world.now()).await;
            assert_eq!(again, Applied::Before, "{algorithm}");
        }
    }
}

/// After an outage longer than the store remembers ids, a settlement is dropped: the store may have
/// applied it before.
#[tokio::test]
async fn a_settlement_that_comes_too_late_stays_at_its_estimate() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::FixedWindow, 100, LONG);
    let counter = counter("r", &["k"], failing(OnFailure::Local));
    let outcome = charge(&store, counter, &limit, 60, world.now()).await.expect("answers");
    world.set_down(true);
    let refund = Change::GiveBack(outcome.receipt);
    assert_eq!(settle(&store, 1, counter, &limit, refund, world.now()).await, Applied::Later);
    world.advance(175 * SECOND);
    world.set_down(false);
    store.heal(world.now()).await;
    assert_eq!(store.waiting_settlements(), 0);
    assert_eq!(world.status(counter, &limit).used, 60);
}

/// What was charged without the store is settled where it waits to be reported.
#[tokio::test]
async fn what_was_charged_without_the_store_is_settled_before_it_is_reported() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::FixedWindow, 100, LONG);
    let counter = counter("r", &["k"], failing(OnFailure::Local));
    world.set_down(true);
    let outcome = charge(&store, counter, &limit, 60, world.now()).await.expect("answers");
    let refund = Change::GiveBack(outcome.receipt.part(45));
    let settled = async || settle_local(&store, 1, counter, &limit, refund, world.now()).await;
    assert_eq!(settled().await, Applied::Now);
    assert_eq!(settled().await, Applied::Before);
    world.set_down(false);
    assert!(store.heal(world.now()).await);
    assert_eq!(world.status(counter, &limit).used, 15, "what is reported is the truth");
}

/// A node with an unsent report settles a charge that is on the store, and another node repeats the settlement: one
/// refund, whichever of them comes first.
#[tokio::test]
async fn a_settlement_repeated_by_another_node_during_an_outage_refunds_once() {
    for algorithm in COSTS {
        for is_repeated_before_heal in [false, true] {
            let world = World::new();
            let (a, b) = (node(&world, "a"), node(&world, "b"));
            let limit = limit(algorithm, 1_000, LONG);
            let counter = counter("r", &["k"], failing(OnFailure::Local));
            let outcome = charge(&a, counter, &limit, 60, world.now()).await.expect("answers");
            world.set_down(true);
            let local = charge(&a, counter, &limit, 50, world.now()).await.expect("answers");
            assert!(local.examination.admits() && a.waiting_reports() == 1, "{algorithm}");
            let refund = Change::GiveBack(outcome.receipt.part(45));
            let first = settle(&a, 1, counter, &limit, refund, world.now()).await;
            assert_eq!(first, Applied::Later, "{algorithm}");
            world.set_down(false);
            if is_repeated_before_heal {
                settle(&b, 1, counter, &limit, refund, world.now()).await;
            }
            assert!(a.heal(world.now()).await, "{algorithm}");
            settle(&b, 1, counter, &limit, refund, world.now()).await;
            assert_eq!(world.status(counter, &limit).used, 60 - 45 + 50, "{algorithm}");
        }
    }
}

/// A slot that was taken on the store and renewed without it waits to be reported: its release must not be undone by
/// that report.
#[tokio::test]
async fn a_slot_renewed_during_an_outage_stays_released() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::Concurrency, 3, LONG);
    let counter = counter("r", &["k"], failing(OnFailure::Local));
    let outcome = charge(&store, counter, &limit, 1, world.now()).await.expect("answers");
    let Receipt::Slot(slot) = outcome.receipt else { unreachable!("a slot is held") };
    world.set_down(true);
    assert_eq!(store.renew(&counter, &limit, slot, world.now()).await, Ok(true));
    let release = Change::GiveBack(outcome.receipt);
    settle(&store, 1, counter, &limit, release, world.now()).await;
    world.set_down(false);
    assert!(store.heal(world.now()).await);
    assert_eq!(world.status(counter, &limit).used, 0);
}

/// A piece of a lease is settled on the shared counter, by any node.
#[tokio::test]
async fn what_was_spent_from_a_lease_is_settled_on_the_shared_counter() {
    for algorithm in COSTS {
        let world = World::new();
        let lease = |name: &str| {
            Leased::new(Remote(Arc::clone(&world)), LeaseOptions::new(name.to_owned()))
        };
        let (a, b) = (lease("a"), lease("b"));
        let limit = limit(algorithm, 1_000, LONG);
        let counter = counter("r", &["k"], leased(500_000));
        let mut receipts = Vec::new();
        for _ in 0..40 {
            let outcome = charge(&a, counter, &limit, 5, world.now()).await.expect("answers");
            receipts.push(outcome.receipt);
            world.advance(1_000);
        }
        assert!(a.usage().local > 0, "{algorithm}: some were decided from the lease");
        // In an order that is neither that of the charges nor its reverse.
        let (even, odd): (Vec<_>, Vec<_>) =
            receipts.iter().enumerate().partition(|(number, _)| number % 2 == 0);
        for (number, receipt) in odd.into_iter().chain(even) {
            let refund = Change::GiveBack(receipt.part(2));
            for (store, expected) in [(&b, Applied::Now), (&a, Applied::Before)] {
                let id = number as u128;
                let applied = settle(store, id, counter, &limit, refund, world.now()).await;
                assert_eq!(applied, expected, "{algorithm}");
            }
        }
        a.return_all(world.now()).await;
        assert_eq!(world.status(counter, &limit).used, 120, "{algorithm}");
    }
}

/// One settlement over this node's memory and two shared stores.
#[tokio::test]
async fn every_store_settles_its_own_part() {
    let worlds = [World::new(), World::new()];
    let shared = worlds.iter().map(|world| node(world, "a")).collect();
    let names = vec!["one".to_owned(), "two".to_owned()];
    let store = Placed::new(MemoryStore::new(1_000), shared, names);
    let limit = limit(Algorithm::FixedWindow, 100, LONG);
    let homes = [
        Home::default(),
        Home { store: 1, ..Home::default() },
        Home { consistency: Consistency::Local, ..Home::default() },
    ];
    let counters = homes.map(|home| counter("r", &["k"], home));
    let now = worlds[0].now();
    let mut receipts = Vec::new();
    for counter in counters {
        receipts.push(charge(&store, counter, &limit, 50, now).await.expect("answers").receipt);
    }
    let changes =
        [Change::GiveBack(receipts[0].part(10)), Change::Owe(70), Change::GiveBack(receipts[2])];
    let adjustments: Vec<Adjustment<'_>> = (counters.into_iter().zip(changes))
        .map(|(counter, change)| {
            let closes = Receipt::Nothing;
            Adjustment { counter, limit: &limit, change, closes }
        })
        .collect();
    let remember = 180 * SECOND;
    let settlement = Settlement { id: 9, remember, is_here: false, adjustments: &adjustments };
    for expected in [Applied::Now, Applied::Before] {
        assert_eq!(store.settle(&settlement, now).await.unwrap(), expected);
        assert_eq!(worlds[0].status(counters[0], &limit).used, 40);
        assert_eq!(worlds[1].status(counters[1], &limit).used, 120);
    }
    let local = charge(&store, counters[2], &limit, 100, now).await.expect("answers");
    assert!(local.examination.admits(), "all of it came back here");
}
