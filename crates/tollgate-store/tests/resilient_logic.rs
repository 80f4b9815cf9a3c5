//! Losing a shared store and coming back to it, on a store in memory and a virtual clock.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

mod leased_support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use leased_support::{COSTS, Remote, World, charge, counter, failing, limit};
use tollgate_core::{Algorithm, Ask, Examination, Limit, Nanos, Outcome, Receipt, SECOND, SlotId};
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{
    Charge, Counter, Decided, Degraded, Failure, Fallback, GiveBack, Membership, Mode, OnFailure,
    Outcomes, Request, Role, Store, passes,
};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;

fn node(world: &Arc<World>, name: &str) -> Resilient<Remote> {
    Resilient::new(Remote(Arc::clone(world)), ResilientOptions::new(name.to_owned()))
}

async fn nodes(world: &Arc<World>, count: usize) -> Vec<Resilient<Remote>> {
    let nodes: Vec<_> = (0..count).map(|number| node(world, &format!("node {number}"))).collect();
    for _ in 0..2 {
        for node in &nodes {
            node.heartbeat(world.now()).await.expect("answers");
        }
    }
    nodes
}

async fn decide(
    store: &impl Store,
    mode: Mode,
    charges: &[Charge<'_>],
    now: Nanos,
) -> (Decided, Outcomes) {
    let mut outcomes = Outcomes::new();
    let decided = store.decide(&[Request { charges, mode }], now, &mut outcomes).await;
    (decided.expect("it always answers"), outcomes)
}

async fn one(
    store: &impl Store,
    counter: Counter<'_>,
    limit: &Limit,
    cost: u64,
    now: Nanos,
) -> Outcome {
    charge(store, counter, limit, cost, now).await.expect("it always answers")
}

/// A request over some counters, and what becomes of it.
struct Case {
    charges: &'static [(Role, OnFailure)],
    passes: bool,
    fallback: Fallback,
}

#[tokio::test]
async fn what_the_policies_come_to() {
    use OnFailure::{Closed, Local, Open};
    use Role::{AnyOf, Must, Watch};
    const ALONE: Fallback = Fallback::Local { nodes: 1 };
    let cases = [
        (&[(Must, Local)][..], true, ALONE),
        (&[(Must, Open)], true, Fallback::Open),
        (&[(Must, Closed)], false, Fallback::Closed),
        (&[(Must, Local), (Must, Open)], true, ALONE),
        (&[(Must, Open), (Must, Local), (Must, Closed)], false, Fallback::Closed),
        (&[(AnyOf, Closed), (AnyOf, Open)], false, Fallback::Closed),
        (&[(AnyOf, Local), (AnyOf, Closed)], false, Fallback::Closed),
        (&[(AnyOf, Local), (AnyOf, Open)], true, ALONE),
        (&[(Watch, Closed)], true, Fallback::Open),
        (&[(Watch, Closed), (Must, Open)], true, Fallback::Open),
        (&[(Watch, Closed), (Must, Local)], true, ALONE),
        (&[(Watch, Local), (Must, Closed)], false, Fallback::Closed),
        (&[], true, Fallback::Open),
    ]
    .map(|(charges, passes, fallback)| Case { charges, passes, fallback });
    let limit = limit(Algorithm::FixedWindow, 10, LONG);
    for (number, case) in cases.iter().enumerate() {
        for mode in [Mode::Charge, Mode::Hold, Mode::Peek, Mode::Owe] {
            let world = World::new();
            let store = node(&world, "a");
            world.set_down(true);
            let names: Vec<String> = (0..case.charges.len()).map(|n| format!("rule {n}")).collect();
            let charges: Vec<Charge<'_>> = (case.charges.iter().zip(&names))
                .map(|((role, policy), name)| Charge {
                    counter: counter(name, &["k"], failing(*policy)),
                    limit: &limit,
                    ask: Ask::cost(1),
                    role: *role,
                })
                .collect();
            let (decided, outcomes) = decide(&store, mode, &charges, world.now()).await;
            assert_eq!(passes(&charges, &outcomes), case.passes, "case {number}, {mode:?}");
            let degraded = Degraded { failure: Failure::Connection, fallback: case.fallback };
            assert_eq!(decided.degraded_of(0), Some(degraded), "case {number}, {mode:?}");
            for ((_, policy), outcome) in case.charges.iter().zip(&outcomes) {
                let is_charged =
                    *policy == Local && (mode == Mode::Owe || (mode != Mode::Peek && case.passes));
                assert_eq!(outcome.receipt != Receipt::Nothing, is_charged, "case {number}");
                if !outcome.examination.admits() {
                    let retry_at = Some(world.now() + SECOND);
                    assert_eq!(outcome.examination, Examination::Refuse { retry_at });
                }
            }
            assert_eq!(store.figures().total(case.fallback), 1);
        }
    }
}

#[tokio::test]
async fn every_request_of_a_call_says_how_it_was_decided() {
    let world = World::new();
    let store = node(&world, "a");
    world.set_down(true);
    let limit = limit(Algorithm::FixedWindow, 10, LONG);
    let of = |on_failure| {
        let counter = counter("r", &["k"], failing(on_failure));
        [Charge { counter, limit: &limit, ask: Ask::cost(1), role: Role::Must }]
    };
    let all = [OnFailure::Open, OnFailure::Local, OnFailure::Closed].map(of);
    let requests: Vec<_> =
        all.iter().map(|charges| Request { charges, mode: Mode::Charge }).collect();
    let mut outcomes = Outcomes::new();
    let decided = store.decide(&requests, world.now(), &mut outcomes).await.expect("answers");
    let fallbacks: Vec<_> =
        (0..3).map(|n| decided.degraded_of(n).expect("degraded").fallback.name()).collect();
    assert_eq!(fallbacks, ["open", "local", "closed"]);
    assert_eq!(decided.degraded.expect("degraded").fallback, Fallback::Closed);
    assert_eq!(outcomes.len(), 3);
}

/// All nodes are cut off at once: together they admit what was left, and not more.
#[tokio::test]
async fn cut_off_nodes_admit_what_was_left_between_them() {
    for algorithm in COSTS {
        for (quota, count, used) in [
            (100, 3, 0),
            (100, 3, 40),
            (97, 8, 50),
            (10, 4, 9),
            (3, 5, 0),
            (100, 7, 100),
            (1, 2, 0),
        ] {
            let world = World::new();
            let limit = limit(algorithm, quota, LONG);
            let key = counter("cut off", &["k"], failing(OnFailure::Local));
            let nodes = nodes(&world, count).await;
            for number in 0..used {
                let store = &nodes[number % count];
                assert!(one(store, key, &limit, 1, world.now()).await.examination.admits());
            }
            // All of them know how it stands.
            for store in &nodes {
                let ask = Ask::cost(1);
                let charges = [Charge { counter: key, limit: &limit, ask, role: Role::Must }];
                decide(store, Mode::Peek, &charges, world.now()).await;
            }
            world.set_down(true);
            let mut admitted = used as u64;
            for store in &nodes {
                let mut refused = 0;
                while refused < 3 {
                    let outcome = one(store, key, &limit, 1, world.now()).await;
                    match outcome.examination {
                        Examination::Admit { .. } => admitted += 1,
                        Examination::Refuse { retry_at } => {
                            assert!(retry_at.is_some(), "it is never said that it never passes");
                            refused += 1;
                        }
                    }
                }
            }
            let case = format!("{algorithm}: {quota} among {count}, {used} used");
            assert!(admitted <= quota, "{case}: {admitted} admitted");
            // Every node rounds what was used up.
            assert!(admitted + count as u64 >= quota, "{case}: only {admitted} admitted");
            if used == 0 {
                assert_eq!(admitted, quota, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn what_was_admitted_is_reported_exactly() {
    for algorithm in COSTS {
        let world = World::new();
        let limit = limit(algorithm, 1_000, LONG);
        let key = counter("reported", &["k"], failing(OnFailure::Local));
        let nodes = nodes(&world, 3).await;
        for store in &nodes {
            assert!(one(store, key, &limit, 10, world.now()).await.examination.admits());
        }
        for outage in 1..=3_u64 {
            world.set_down(true);
            for (number, store) in nodes.iter().enumerate() {
                for _ in 0..10 {
                    let cost = number as u64 + 1;
                    assert!(one(store, key, &limit, cost, world.now()).await.examination.admits());
                }
                assert_eq!(store.waiting_reports(), 1, "{algorithm}");
                assert!(store.degraded_since().is_some(), "{algorithm}");
                assert!(!store.heal(world.now()).await, "{algorithm}: it is still away");
                assert_eq!(store.waiting_reports(), 1, "{algorithm}");
            }
            world.set_down(false);
            for store in &nodes {
                assert!(store.heal(world.now()).await, "{algorithm}");
                assert_eq!(store.waiting_reports(), 0, "{algorithm}");
                assert_eq!(store.degraded_since(), None, "{algorithm}");
                assert!(store.heal(world.now()).await, "{algorithm}: and nothing twice");
            }
            assert_eq!(world.status(key, &limit).used, 30 + outage * 60, "{algorithm}");
        }
        assert_eq!(nodes[2].figures().reported.load(Ordering::Relaxed), 90, "{algorithm}");
        assert_eq!(nodes[2].figures().outages.load(Ordering::Relaxed), 3, "{algorithm}");
    }
}

/// A store that fails now and then: its last answer counts, and so does what was not reported to
/// it.
#[tokio::test]
async fn a_store_that_comes_and_goes_is_not_overdrawn() {
    for algorithm in COSTS {
        let world = World::new();
        let limit = limit(algorithm, 50, LONG);
        let key = counter("flapping", &["k"], failing(OnFailure::Local));
        let nodes = nodes(&world, 2).await;
        let mut admitted = 0;
        for step in 0..200 {
            world.set_down(step % 3 == 0);
            for store in &nodes {
                let outcome = one(store, key, &limit, 1, world.now()).await;
                admitted += u64::from(outcome.examination.admits());
            }
            if step % 10 == 9 {
                world.set_down(false);
                for store in &nodes {
                    assert!(store.heal(world.now()).await, "{algorithm}");
                }
            }
        }
        // Half of the decisions were made alone, by nodes that hear of each other's at the next
        // healing: within one step of that they may both have admitted.
        assert!((50..=60).contains(&admitted), "{algorithm}: {admitted} of 50");
    }
}

#[tokio::test]
async fn what_has_worn_off_is_not_reported() {
    for algorithm in COSTS {
        let world = World::new();
        let store = node(&world, "a");
        let limit = limit(algorithm, 10, SECOND);
        let key = counter("worn off", &["k"], failing(OnFailure::Local));
        world.set_down(true);
        for _ in 0..600 {
            one(&store, key, &limit, 1, world.now()).await;
            world.advance(SECOND / 20);
        }
        assert!(store.figures().total(Fallback::Local { nodes: 1 }) == 600);
        world.set_down(false);
        assert!(store.heal(world.now()).await, "{algorithm}");
        let used = world.status(key, &limit).used;
        assert!(used <= 20, "{algorithm}: half a minute is not owed, {used}");
        world.set_down(true);
        one(&store, key, &limit, 1, world.now()).await;
        world.advance(10 * SECOND);
        world.set_down(false);
        assert!(store.heal(world.now()).await, "{algorithm}");
        assert_eq!(world.status(key, &limit).used, 0, "{algorithm}: it was long ago");
    }
}

#[tokio::test]
async fn a_node_that_never_heard_of_the_store_decides_too() {
    let world = World::new();
    world.set_down(true);
    let assumed = Membership { nodes: 4, rank: 3 };
    let options = ResilientOptions { assumed, ..ResilientOptions::new("late".to_owned()) };
    let store = Resilient::new(Remote(Arc::clone(&world)), options);
    assert!(store.heartbeat(world.now()).await.is_err());
    let limit = limit(Algorithm::FixedWindow, 10, LONG);
    let key = counter("start", &["k"], failing(OnFailure::Local));
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += u64::from(one(&store, key, &limit, 1, world.now()).await.examination.admits());
    }
    assert_eq!(admitted, 2, "10 among 4, and not the first of them");
    let outcome = one(&store, key, &limit, 5, world.now()).await;
    let retry_at = Some(world.now() + SECOND);
    assert_eq!(outcome.examination, Examination::Refuse { retry_at }, "it may fit later");
    let outcome = one(&store, key, &limit, 11, world.now()).await;
    assert_eq!(outcome.examination, Examination::Refuse { retry_at: None }, "it never does");
    world.set_down(false);
    assert!(store.heal(world.now()).await);
    assert_eq!(store.heartbeat(world.now()).await.expect("answers").nodes, 4, "for a while");
    assert_eq!(world.status(key, &limit).used, 2);
}

#[tokio::test]
async fn what_is_owed_is_reported_whatever_the_policy() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::TokenBucket, 10, LONG);
    world.set_down(true);
    let policies = [OnFailure::Local, OnFailure::Open, OnFailure::Closed];
    for policy in policies {
        let key = counter(policy_name(policy), &["k"], failing(policy));
        let ask = Ask::cost(12);
        let charges = [Charge { counter: key, limit: &limit, ask, role: Role::Must }];
        decide(&store, Mode::Owe, &charges, world.now()).await;
    }
    world.set_down(false);
    assert!(store.heal(world.now()).await);
    for policy in policies {
        let key = counter(policy_name(policy), &["k"], failing(policy));
        assert_eq!(world.status(key, &limit).used, 12, "{policy:?}");
    }
}

fn policy_name(policy: OnFailure) -> &'static str {
    match policy {
        OnFailure::Local => "local",
        OnFailure::Open => "open",
        OnFailure::Closed => "closed",
    }
}

#[tokio::test]
async fn give_backs_find_their_charge_wherever_it_is() {
    for algorithm in COSTS {
        let world = World::new();
        let store = node(&world, "a");
        let limit = limit(algorithm, 10, LONG);
        let key = counter("back", &["k"], failing(OnFailure::Local));
        let back = async |receipt| {
            let give_back = GiveBack { counter: key, limit: &limit, receipt };
            store.give_back(&[give_back], world.now()).await.expect("it always answers");
        };
        let before = one(&store, key, &limit, 3, world.now()).await;
        world.set_down(true);
        let first = one(&store, key, &limit, 4, world.now()).await;
        assert!(!one(&store, key, &limit, 4, world.now()).await.examination.admits());
        back(first.receipt).await;
        let second = one(&store, key, &limit, 7, world.now()).await;
        assert!(second.examination.admits(), "{algorithm}: there is room again");
        world.set_down(false);
        assert!(store.heal(world.now()).await);
        assert_eq!(world.status(key, &limit).used, 10, "{algorithm}: 3 and 7");
        back(before.receipt).await;
        assert!(one(&store, key, &limit, 3, world.now()).await.examination.admits());
    }
}

#[tokio::test]
async fn slots_are_held_and_released_across_an_outage() {
    let world = World::new();
    let limit = limit(Algorithm::Concurrency, 4, LONG);
    let key = counter("slots", &["k"], failing(OnFailure::Local));
    let nodes = nodes(&world, 2).await;
    let [first, second] = &nodes[..] else { unreachable!("two of them") };
    let take = async |store: &Resilient<Remote>, id| {
        let ask = Ask::slot(SlotId(id));
        let charges = [Charge { counter: key, limit: &limit, ask, role: Role::Must }];
        let (_, outcomes) = decide(store, Mode::Charge, &charges, world.now()).await;
        outcomes[0].examination.admits()
    };
    assert!(take(first, 1).await && take(second, 2).await);
    let ask = Ask::slot(SlotId(99));
    let charges = [Charge { counter: key, limit: &limit, ask, role: Role::Must }];
    decide(first, Mode::Peek, &charges, world.now()).await;
    world.set_down(true);
    assert!(take(first, 3).await, "two were held, two are left, one of them is ours");
    assert!(!take(first, 4).await);
    assert!(take(second, 5).await);
    assert!(!take(second, 6).await);
    let renew = async |store: &Resilient<Remote>, id| {
        store.renew(&key, &limit, SlotId(id), world.now()).await.expect("it always answers")
    };
    let release = async |store: &Resilient<Remote>, id| {
        store.release(&key, SlotId(id), world.now()).await.expect("it always answers")
    };
    assert!(renew(first, 3).await);
    assert!(renew(first, 1).await, "taken before the outage, and still held");
    assert!(release(second, 5).await, "taken here");
    assert!(release(second, 2).await, "taken there, and released there later");
    world.set_down(false);
    for store in &nodes {
        assert!(store.heal(world.now()).await);
    }
    assert_eq!(world.status(key, &limit).used, 2, "1 and 3");
    assert!(release(second, 3).await, "wherever it was taken");
    assert!(!release(first, 3).await);
    assert_eq!(world.status(key, &limit).used, 1);
}

#[tokio::test]
async fn the_rest_of_the_trait_without_a_store() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::FixedWindow, 5, LONG);
    let key = counter("rest", &["k"], failing(OnFailure::Local));
    world.set_down(true);
    for _ in 0..5 {
        assert!(one(&store, key, &limit, 1, world.now()).await.examination.admits());
    }
    assert!(!one(&store, key, &limit, 1, world.now()).await.examination.admits());
    assert!(store.reset(&[key], world.now()).await.is_err(), "the store was not reset");
    assert!(one(&store, key, &limit, 5, world.now()).await.examination.admits(), "but we were");
    world.set_down(false);
    assert!(store.heal(world.now()).await);
    assert_eq!(world.status(key, &limit).used, 5);
    assert!(store.goodbye().await.is_ok());
}

#[tokio::test]
async fn reports_are_bounded() {
    let world = World::new();
    let options = ResilientOptions { max_reports: 10, ..ResilientOptions::new("a".to_owned()) };
    let store = Resilient::new(Remote(Arc::clone(&world)), options);
    let limit = limit(Algorithm::FixedWindow, 5, LONG);
    world.set_down(true);
    for number in 0..30 {
        let name = number.to_string();
        let key = [name.as_str()];
        let key = counter("many", &key, failing(OnFailure::Local));
        assert!(one(&store, key, &limit, 1, world.now()).await.examination.admits());
    }
    assert_eq!(store.waiting_reports(), 10);
    assert_eq!(store.figures().dropped_reports.load(Ordering::Relaxed), 20);
}

/// A refusal because the store is unavailable reports the usage that was last known.
#[tokio::test]
async fn a_closed_refusal_reports_the_last_known_usage() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::FixedWindow, 5, LONG);
    let key = counter("closed", &["k"], failing(OnFailure::Closed));
    assert!(one(&store, key, &limit, 3, world.now()).await.examination.admits());
    world.set_down(true);
    for _ in 0..3 {
        let outcome = one(&store, key, &limit, 1, world.now()).await;
        assert!(!outcome.examination.admits());
        assert_eq!((outcome.status.used, outcome.status.remaining), (3, 0));
    }
}
