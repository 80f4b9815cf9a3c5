//! A request whose charge to a bucket waits for another part of its decision gets that charge back when it is refused,
//! however many requests passed meanwhile.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

mod leased_support;
mod resilient_support;

use leased_support::{World, counter, failing, limit};
use resilient_support::Fussy;
use tollgate_core::{
    Algorithm, Ask, Limit, MAX_OPEN_CHARGES, MICRO, Nanos, Outcome, Receipt, SECOND,
};
use tollgate_store::placed::Placed;
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{
    Charge, Consistency, Counter, GiveBack, Home, MemoryStore, Mode, OnFailure, Outcomes, Request,
    Role, Store, passes,
};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;
const BUCKETS: [Algorithm; 3] = [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra];
/// So many requests pass while another one waits.
const PASS: u64 = 3 * MAX_OPEN_CHARGES as u64;

fn node(store: &Fussy, name: &str) -> Resilient<Fussy> {
    Resilient::new(store.clone(), ResilientOptions::new(name.to_owned()))
}

async fn decide(
    store: &impl Store,
    mode: Mode,
    on: &[(Counter<'_>, &Limit, u64)],
    now: Nanos,
) -> (bool, Outcome) {
    let charges: Vec<Charge<'_>> = (on.iter())
        .map(|(counter, limit, cost)| Charge {
            counter: *counter,
            limit,
            ask: Ask::cost(*cost),
            role: Role::Must,
        })
        .collect();
    let mut outcomes = Outcomes::new();
    let decided = store.decide(&[Request { charges: &charges, mode }], now, &mut outcomes).await;
    decided.expect("it answers");
    (passes(&charges, &outcomes), outcomes[0])
}

/// One request of 100 waits for a store that has no room for it, while others pass.
async fn refuse_late(
    store: &impl Store,
    (world, fussy, mode): (&World, &Fussy, Mode),
    bucket: (Counter<'_>, &Limit),
    full: (Counter<'_>, &Limit),
    wide: (Counter<'_>, &Limit),
) {
    let gate = fussy.hold(mode);
    let waiting = [(bucket.0, bucket.1, 100), (full.0, full.1, 1)];
    let waiting = decide(store, Mode::Charge, &waiting, world.now());
    let others = async {
        for _ in 0..PASS {
            world.advance(MICRO);
            let on = [(bucket.0, bucket.1, 1), (wide.0, wide.1, 1)];
            assert!(decide(store, Mode::Charge, &on, world.now()).await.0);
        }
        gate.add_permits(1);
    };
    let ((passed, _), ()) = tokio::join!(waiting, others);
    assert!(!passed);
}

/// During a hand-over a request is charged to the share first, and then asked of the store.
#[tokio::test]
async fn requests_that_pass_during_a_hand_over_make_no_hold_final() {
    for algorithm in BUCKETS {
        let (world, home) = (World::new(), failing(OnFailure::Local));
        let (fussy, other) = (Fussy::new(&world), Fussy::new(&world));
        let (store, absent) = (node(&fussy, "a"), node(&other, "b"));
        for _ in 0..2 {
            store.heartbeat(world.now()).await.expect("answers");
            absent.heartbeat(world.now()).await.expect("answers");
        }
        let (thousand, ten) =
            (limit(algorithm, 1_000, LONG), limit(Algorithm::FixedWindow, 10, LONG));
        let bucket = (counter("bucket", &["k"], home), &thousand);
        let (full, wide) = (counter("full", &["k"], home), counter("wide", &["k"], home));
        // Another node has used it up, which this one does not know.
        assert!(decide(&fussy.0.remote, Mode::Charge, &[(full, &ten, 10)], world.now()).await.0);
        world.set_down(true);
        assert!(decide(&store, Mode::Charge, &[(bucket.0, bucket.1, 1)], world.now()).await.0);
        world.set_down(false);
        assert!(store.heal(world.now()).await);
        assert!(store.is_handing_over(), "the other node has not reported");
        let at = (&*world, &fussy, Mode::Charge);
        refuse_late(&store, at, bucket, (full, &ten), (wide, &thousand)).await;
        assert!(store.is_handing_over());
        assert_eq!(store.finalized_charges(), 0, "{algorithm}");
        // The node's share is 500: 1 in the outage, and what has passed.
        let left = 500 - 1 - PASS;
        let fits = async |cost| {
            decide(&store, Mode::Charge, &[(bucket.0, bucket.1, cost)], world.now()).await.0
        };
        assert!(!fits(left + 1).await, "{algorithm}: no more than the share");
        assert!(fits(left).await, "{algorithm}: all that is left of the share");
    }
}

/// A rule that this node counts alone, next to one on a shared store.
#[tokio::test]
async fn requests_that_pass_in_several_stores_make_no_hold_in_memory_final() {
    for algorithm in BUCKETS {
        let (world, home) = (World::new(), failing(OnFailure::Closed));
        let fussy = Fussy::new(&world);
        let shared = vec![node(&fussy, "a")];
        let store = Placed::new(MemoryStore::new(1_000), shared, vec!["one".to_owned()]);
        let local = Home { consistency: Consistency::Local, ..home };
        let (thousand, none) =
            (limit(algorithm, 1_000, LONG), limit(Algorithm::FixedWindow, 0, LONG));
        let bucket = (counter("bucket", &["k"], local), &thousand);
        let (full, wide) = (counter("full", &["k"], home), counter("wide", &["k"], home));
        let at = (&*world, &fussy, Mode::Hold);
        refuse_late(&store, at, bucket, (full, &none), (wide, &thousand)).await;
        let peek = [(bucket.0, bucket.1, 1)];
        let (_, outcome) = decide(&store, Mode::Peek, &peek, world.now()).await;
        assert_eq!(outcome.status.used, PASS, "{algorithm}");
        assert_eq!(store.memory().usage().finalized_charges, 0, "{algorithm}");
        // It is still undone exactly when that is done at once.
        let on = [(bucket.0, bucket.1, 5), (wide, &thousand, 1)];
        let (_, made) = decide(&store, Mode::Charge, &on, world.now()).await;
        assert_ne!(made.receipt, Receipt::Nothing);
        let back = GiveBack { counter: bucket.0, limit: bucket.1, receipt: made.receipt };
        store.give_back(&[back], world.now()).await.expect("answers");
        let (_, outcome) = decide(&store, Mode::Peek, &peek, world.now()).await;
        assert_eq!(outcome.status.used, PASS, "{algorithm}: undone at once");
    }
}
