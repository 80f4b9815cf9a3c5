//! Leases on a shared store in memory, on a virtual clock: every step can be checked.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

mod leased_support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use leased_support::{COSTS, Remote, World, charge, counter, leased, limit};
use tollgate_core::{Algorithm, Ask, Examination, Limit, Nanos, Receipt, SECOND};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::{Charge, Counter, GiveBack, Mode, Outcomes, Request, Role, Store};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;
const MILLISECOND: Nanos = 1_000_000;

fn node(world: &Arc<World>, name: &str) -> Leased<Remote> {
    Leased::new(Remote(Arc::clone(world)), LeaseOptions::new(name.to_owned()))
}

async fn passes(
    store: &Leased<Remote>,
    counter: Counter<'_>,
    limit: &Limit,
    cost: u64,
    world: &World,
) -> bool {
    let outcome = charge(store, counter, limit, cost, world.now()).await.expect("answers");
    outcome.examination.admits()
}

/// Deterministic noise.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[tokio::test]
async fn a_busy_counter_is_decided_here_and_a_slow_one_there() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::FixedWindow, 100_000, LONG);
    let busy = counter("busy", &["k"], leased(100_000));
    for _ in 0..2_000 {
        assert!(passes(&store, busy, &limit, 1, &world).await);
        world.advance(MILLISECOND / 10);
    }
    let calls = world.calls.swap(0, Ordering::SeqCst);
    assert!(calls < 40, "{calls} calls for 2000 requests");
    assert!(store.usage().local > 1_900);

    let (world, slow) = (World::new(), counter("slow", &["k"], leased(100_000)));
    let store = node(&world, "a");
    for _ in 0..50 {
        assert!(passes(&store, slow, &limit, 1, &world).await);
        world.advance(300 * MILLISECOND);
    }
    assert_eq!(world.on_lease(&slow), 0, "nothing is taken ahead");
}

#[tokio::test]
async fn figures_are_those_of_the_shared_counter_less_what_is_left() {
    for algorithm in COSTS {
        let world = World::new();
        let store = node(&world, "a");
        let limit = limit(algorithm, 1_000, LONG);
        let key = counter("figures", &["k"], leased(500_000));
        for spent in 1..=1_000 {
            let outcome = charge(&store, key, &limit, 1, world.now()).await.expect("answers");
            assert!(outcome.examination.admits(), "{algorithm}");
            let figures = (outcome.status.used, outcome.status.remaining);
            assert_eq!(figures, (spent, 1_000 - spent), "{algorithm}");
            world.advance(1_000);
        }
        let outcome = charge(&store, key, &limit, 1, world.now()).await.expect("answers");
        assert!(!outcome.examination.admits(), "{algorithm}: all of it and no more");
        assert_eq!(outcome.status.remaining, 0, "{algorithm}");
        assert_eq!(outcome.receipt, Receipt::Nothing, "{algorithm}");
    }
}

/// Random requests on several nodes; nobody crashes. At every step: what is charged and not admitted
/// is on lease, within the pool, and the quota is never exceeded.
#[tokio::test]
async fn what_is_out_stays_within_the_pool() {
    for algorithm in COSTS {
        for seed in 1..=12_u64 {
            let (quota, ppm) = (400 + seed * 37, 150_000);
            let pool = quota * u64::from(ppm) / 1_000_000;
            let (world, limit) = (World::new(), limit(algorithm, quota, LONG));
            let nodes: Vec<_> = ["a", "b", "c"].iter().map(|name| node(&world, name)).collect();
            let key = counter("pool", &["k"], leased(ppm));
            let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let mut admitted: u64 = 0;
            let mut receipts = Vec::new();
            for _ in 0..1_500 {
                let store = &nodes[dice.below(3) as usize];
                match dice.below(100) {
                    0..=3 => store.sweep(world.now()).await,
                    4 => store.return_all(world.now()).await,
                    // A bucket keeps 64 chunks open, and says that more is used when pieces of older ones are given back.
                    5..=9 if !receipts.is_empty() && !algorithm.is_bucket() => {
                        let place = dice.below(receipts.len() as u64) as usize;
                        let (receipt, cost) = receipts.swap_remove(place);
                        let give_back = GiveBack { counter: key, limit: &limit, receipt };
                        store.give_back(&[give_back], world.now()).await.expect("answers");
                        admitted -= cost;
                    }
                    _ => {
                        let cost = 1 + dice.below(3) * dice.below(2);
                        let now = world.now();
                        let outcome = charge(store, key, &limit, cost, now).await.expect("answers");
                        if outcome.examination.admits() {
                            admitted += cost;
                            receipts.push((outcome.receipt, cost));
                        }
                    }
                }
                tokio::task::yield_now().await;
                world.advance(dice.below(3 * MILLISECOND));
                let used = world.status(key, &limit).used;
                assert!(used <= quota, "{algorithm}: {used} of {quota}");
                assert!(admitted <= used, "{algorithm}, seed {seed}: {admitted} > {used}");
                assert!(used - admitted <= pool, "{algorithm}: {used} - {admitted} > {pool}");
            }
            for store in &nodes {
                store.return_all(world.now()).await;
            }
            let used = world.status(key, &limit).used;
            assert_eq!(used, admitted, "{algorithm}, seed {seed}: all that was not spent is back");
            assert_eq!(world.on_lease(&key), 0, "{algorithm}");
        }
    }
}

#[tokio::test]
async fn a_refusal_is_repeated_for_a_moment_and_no_longer() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::FixedWindow, 100, LONG);
    let key = counter("refused", &["k"], leased(100_000));
    assert!(passes(&store, key, &limit, 98, &world).await);
    assert!(!passes(&store, key, &limit, 5, &world).await);
    world.calls.store(0, Ordering::SeqCst);
    for _ in 0..100 {
        assert!(!passes(&store, key, &limit, 5, &world).await);
        assert!(!passes(&store, key, &limit, 7, &world).await);
    }
    assert_eq!(world.calls.load(Ordering::SeqCst), 0, "nobody is asked");
    assert!(passes(&store, key, &limit, 1, &world).await, "less may fit");
    world.memory.reset(&[key], 0).await.expect("answers");
    world.advance(50 * MILLISECOND);
    assert!(passes(&store, key, &limit, 5, &world).await);
}

#[tokio::test]
async fn a_new_window_is_not_paid_with_the_old_ones_lease() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::FixedWindow, 1_000, SECOND);
    let key = counter("fixed", &["k"], leased(500_000));
    for _ in 0..100 {
        assert!(passes(&store, key, &limit, 1, &world).await);
    }
    assert!(world.on_lease(&key) > 0);
    let end = limit.window_bounds(world.now()).1;
    world.advance(end - world.now());
    for spent in 1..=1_000 {
        assert!(passes(&store, key, &limit, 1, &world).await, "{spent}");
    }
    assert!(!passes(&store, key, &limit, 1, &world).await);
    assert!(store.figures().over_admission_ratio() < 1e-9);
}

#[tokio::test]
async fn an_expired_chunk_is_returned_and_not_spent() {
    for algorithm in COSTS {
        let world = World::new();
        let store = node(&world, "a");
        let limit = limit(algorithm, 1_000, LONG);
        let key = counter("expired", &["k"], leased(500_000));
        for _ in 0..100 {
            assert!(passes(&store, key, &limit, 1, &world).await, "{algorithm}");
        }
        // What is under way lands.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let used = world.status(key, &limit).used;
        assert!(used > 100, "{algorithm}: something is on lease");
        world.advance(2 * SECOND);
        assert!(passes(&store, key, &limit, 1, &world).await, "{algorithm}");
        store.sweep(world.now()).await;
        world.advance(SECOND);
        store.sweep(world.now()).await;
        assert_eq!(world.status(key, &limit).used, 101, "{algorithm}");
    }
}

#[tokio::test]
async fn what_lies_idle_goes_back_with_the_sweep() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::TokenBucket, 1_000, LONG);
    let key = counter("idle", &["k"], leased(500_000));
    for _ in 0..100 {
        assert!(passes(&store, key, &limit, 1, &world).await);
    }
    // What is under way lands.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    store.sweep(world.now()).await;
    assert!(world.on_lease(&key) > 0, "it is not idle yet");
    world.advance(250 * MILLISECOND);
    store.sweep(world.now()).await;
    assert_eq!((world.on_lease(&key), world.status(key, &limit).used), (0, 100));
    world.advance(60 * SECOND);
    store.sweep(world.now()).await;
    assert_eq!(store.usage().leases, 0, "and is forgotten");
}

/// Several tasks at once on a counter with nothing on lease: one fetch serves them, or they are
/// decided on the shared counter; none is lost.
#[tokio::test]
async fn many_at_once_do_not_stampede() {
    let world = World::new();
    let store = Arc::new(node(&world, "a"));
    let limit = Arc::new(limit(Algorithm::FixedWindow, 1_000_000, LONG));
    for round in 0..20 {
        world.calls.store(0, Ordering::SeqCst);
        let tasks: Vec<_> = (0..200)
            .map(|_| {
                let (store, limit, world) = (store.clone(), limit.clone(), world.clone());
                tokio::spawn(async move {
                    let key = counter("stampede", &["k"], leased(100_000));
                    assert!(passes(&store, key, &limit, 1, &world).await);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("passes");
        }
        world.advance(20 * MILLISECOND);
        if round >= 10 {
            let calls = world.calls.load(Ordering::SeqCst);
            assert!(calls <= 5, "{calls} calls for 200 requests at once, round {round}");
        }
    }
    store.return_all(world.now()).await;
    let key = counter("stampede", &["k"], leased(100_000));
    assert_eq!(world.status(key, &limit).used, 4_000);
}

/// One of three charges refuses: the two leases have what they had.
#[tokio::test]
async fn all_or_none_over_leases_and_the_shared_store() {
    let world = World::new();
    let store = node(&world, "a");
    let wide = limit(Algorithm::TokenBucket, 10_000, LONG);
    let narrow = limit(Algorithm::SlidingWindowLog, 100, LONG);
    let one = counter("one", &["k"], leased(100_000));
    let two = counter("two", &["k"], leased(300_000));
    let strict = counter("strict", &["k"], leased(0));
    let decide = async |costs: [u64; 3]| {
        let charge = |counter, limit, cost| Charge {
            counter,
            limit,
            ask: Ask::cost(cost),
            role: Role::Must,
        };
        let charges = [
            charge(one, &wide, costs[0]),
            charge(strict, &narrow, costs[1]),
            charge(two, &narrow, costs[2]),
        ];
        let mut outcomes = Outcomes::new();
        let request = Request { charges: &charges, mode: Mode::Charge };
        store.decide(&[request], world.now(), &mut outcomes).await.expect("answers");
        assert_eq!(outcomes.len(), 3);
        let passes = tollgate_store::passes(&charges, &outcomes);
        for outcome in &outcomes {
            assert_eq!(outcome.receipt != Receipt::Nothing, passes);
        }
        passes
    };
    for _ in 0..20 {
        assert!(decide([3, 1, 2]).await);
        world.advance(MILLISECOND);
    }
    assert!(!decide([3, 81, 2]).await, "the strict one has no room");
    assert!(!decide([3, 1, 61]).await, "a leased one has no room");
    assert!(!decide([10_001, 1, 1]).await, "the first never passes");
    store.return_all(world.now()).await;
    let used = |key, limit| world.status(key, limit).used;
    assert_eq!((used(one, &wide), used(strict, &narrow), used(two, &narrow)), (60, 20, 40));
}

#[tokio::test]
async fn the_same_lease_twice_in_one_request() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::FixedWindow, 10, LONG);
    let key = counter("twice", &["k"], leased(500_000));
    let charge =
        |cost| Charge { counter: key, limit: &limit, ask: Ask::cost(cost), role: Role::Must };
    for (costs, expected) in [([3, 3], true), ([3, 3], false), ([2, 2], true), ([0, 1], false)] {
        let charges = costs.map(charge);
        let mut outcomes = Outcomes::new();
        let request = Request { charges: &charges, mode: Mode::Charge };
        store.decide(&[request], world.now(), &mut outcomes).await.expect("answers");
        assert_eq!(tollgate_store::passes(&charges, &outcomes), expected, "{costs:?}");
        world.advance(60 * MILLISECOND);
    }
    store.return_all(world.now()).await;
    assert_eq!(world.status(key, &limit).used, 10);
}

/// An asker who goes away leaves nothing charged.
#[tokio::test]
async fn a_caller_that_stops_waiting_is_not_charged() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::TokenBucket, 100, LONG);
    let key = counter("gone", &["k"], leased(500_000));
    let mut kept = 0;
    for polls in 0..6 {
        // Often enough that a chunk would be fetched.
        for _ in 0..3 {
            assert!(passes(&store, key, &limit, 1, &world).await);
            kept += 1;
        }
        store.return_all(world.now()).await;
        let charges = [Charge { counter: key, limit: &limit, ask: Ask::cost(1), role: Role::Must }];
        let requests = [Request { charges: &charges, mode: Mode::Charge }];
        let mut outcomes = Outcomes::new();
        let mut decision = Box::pin(store.decide(&requests, world.now(), &mut outcomes));
        for _ in 0..=polls {
            let waker = std::task::Waker::noop();
            let mut context = std::task::Context::from_waker(waker);
            let polled = decision.as_mut().poll(&mut context);
            assert!(polled.is_pending() || polls > 2, "{polls}");
            if polled.is_ready() {
                break;
            }
        }
        drop(decision);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        store.return_all(world.now()).await;
        world.advance(400 * MILLISECOND);
    }
    assert_eq!(world.status(key, &limit).used, kept);
}

#[tokio::test]
async fn a_store_that_is_gone_fails_those_who_wait_and_not_those_who_have() {
    let world = World::new();
    let store = node(&world, "a");
    let limit = limit(Algorithm::FixedWindow, 100_000, LONG);
    let key = counter("gone", &["k"], leased(100_000));
    for _ in 0..100 {
        assert!(passes(&store, key, &limit, 1, &world).await);
        world.advance(MILLISECOND / 10);
    }
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    world.set_down(true);
    let mut served = 0;
    while charge(&store, key, &limit, 1, world.now()).await.is_ok() {
        served += 1;
        assert!(served < 10_000);
    }
    assert!(served > 0, "the lease outlives the store for a while");
    assert!(charge(&store, key, &limit, 1, world.now()).await.is_err());
    world.set_down(false);
    assert!(passes(&store, key, &limit, 1, &world).await);
    let used = world.status(key, &limit).used;
    store.return_all(world.now()).await;
    let lost = used - world.status(key, &limit).used;
    assert!(lost <= 10_000, "no more than the pool");
}

/// Calls are lost, or only their answers: what lay unspent is returned once the store answers again, once.
#[tokio::test]
async fn what_could_not_be_returned_is_returned_after_the_outage() {
    for algorithm in COSTS {
        for loses_answers in [false, true] {
            let world = World::new();
            let store = node(&world, "a");
            let limit = limit(algorithm, 100_000, LONG);
            let key = counter("returned", &["k"], leased(100_000));
            for _ in 0..100 {
                assert!(passes(&store, key, &limit, 1, &world).await);
                world.advance(MILLISECOND / 10);
            }
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            let ahead = world.status(key, &limit).used - 100;
            assert!(ahead > 0, "{algorithm}: something is on lease");
            let outage = if loses_answers { &world.loses_answers } else { &world.is_down };
            outage.store(true, Ordering::SeqCst);
            for _ in 0..20 {
                world.advance(100 * MILLISECOND);
                store.sweep(world.now()).await;
            }
            outage.store(false, Ordering::SeqCst);
            world.advance(100 * MILLISECOND);
            store.sweep(world.now()).await;
            assert_eq!(world.status(key, &limit).used, 100, "{algorithm}, {loses_answers}");
            let figures = store.figures();
            assert_eq!(figures.lost.load(Ordering::Relaxed), 0, "{algorithm}");
            assert_eq!(figures.returned.load(Ordering::Relaxed), ahead, "{algorithm}");
        }
    }
}

/// Nothing is spent under a limit that no longer holds.
#[tokio::test]
async fn a_changed_limit_holds_at_once() {
    let world = World::new();
    let store = node(&world, "a");
    let key = counter("changed", &["k"], leased(100_000));
    let wide = limit(Algorithm::FixedWindow, 10_000, LONG);
    for _ in 0..200 {
        assert!(passes(&store, key, &wide, 1, &world).await);
    }
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let narrow = limit(Algorithm::FixedWindow, 200, LONG);
    assert!(!passes(&store, key, &narrow, 1, &world).await);
    let none = limit(Algorithm::FixedWindow, 0, LONG);
    assert!(!passes(&store, key, &none, 1, &world).await);
    let outcome = charge(&store, key, &none, 1, world.now()).await.expect("answers");
    assert_eq!(outcome.examination, Examination::Refuse { retry_at: None });
    store.sweep(world.now()).await;
    store.return_all(world.now()).await;
    assert_eq!(world.status(key, &narrow).used, 200);
}

#[tokio::test]
async fn a_full_table_decides_on_the_shared_counter() {
    let world = World::new();
    let options = LeaseOptions { max_leases: 64, ..LeaseOptions::new("a".to_owned()) };
    let store = Leased::new(Remote(Arc::clone(&world)), options);
    let limit = limit(Algorithm::FixedWindow, 5, LONG);
    for number in 0..1_000 {
        let name = number.to_string();
        let key = [name.as_str()];
        let key = counter("full", &key, leased(900_000));
        for _ in 0..5 {
            assert!(passes(&store, key, &limit, 1, &world).await, "{number}");
        }
        assert!(!passes(&store, key, &limit, 1, &world).await, "{number}");
    }
    assert!(store.usage().leases <= 64);
}

/// A leased charge is given back into the lease it came from, and is spent again.
#[tokio::test]
async fn give_back_makes_room_at_once() {
    for algorithm in COSTS {
        let world = World::new();
        let store = node(&world, "a");
        let limit = limit(algorithm, 20, LONG);
        let key = counter("back", &["k"], leased(500_000));
        let mut receipts = Vec::new();
        for _ in 0..20 {
            let outcome = charge(&store, key, &limit, 1, world.now()).await.expect("answers");
            assert!(outcome.examination.admits(), "{algorithm}");
            receipts.push(outcome.receipt);
        }
        assert!(!passes(&store, key, &limit, 1, &world).await, "{algorithm}");
        for receipt in receipts.into_iter().rev().step_by(3).take(3) {
            let give_back = GiveBack { counter: key, limit: &limit, receipt };
            store.give_back(&[give_back], world.now()).await.expect("answers");
            assert!(passes(&store, key, &limit, 1, &world).await, "{algorithm}");
            assert!(!passes(&store, key, &limit, 1, &world).await, "{algorithm}");
        }
        store.return_all(world.now()).await;
        assert_eq!(world.status(key, &limit).used, 20, "{algorithm}");
    }
}

/// However short a lease lives, what it took ahead is spent.
#[tokio::test]
async fn short_leases_are_leases_too() {
    let world = World::new();
    let options = LeaseOptions { ttl: 10 * MILLISECOND, ..LeaseOptions::new("a".to_owned()) };
    let store = Leased::new(Remote(Arc::clone(&world)), options);
    let limit = limit(Algorithm::SlidingWindowLog, 100_000, LONG);
    let key = counter("short", &["k"], leased(100_000));
    for _ in 0..1_000 {
        assert!(passes(&store, key, &limit, 1, &world).await);
        world.advance(MILLISECOND / 20);
    }
    let calls = world.calls.load(Ordering::SeqCst);
    assert!(calls < 200, "{calls} calls for 1000 requests");
}

/// A request that another limit refuses: what it would have taken from a lease is not there twice, also
/// when the counter has paid off what it was last heard to hold.
#[tokio::test]
async fn no_more_remains_than_the_limit_holds() {
    for algorithm in COSTS {
        let world = World::new();
        let store = node(&world, "a");
        let wide = limit(algorithm, 100_000, 2 * SECOND);
        let narrow = limit(Algorithm::FixedWindow, 1, LONG);
        let one = counter("wide", &["k"], leased(100_000));
        let two = counter("narrow", &["k"], leased(0));
        assert!(passes(&store, two, &narrow, 1, &world).await);
        for _ in 0..40 {
            assert!(passes(&store, one, &wide, 1, &world).await);
            world.advance(MILLISECOND);
        }
        for _ in 0..50 {
            let charge =
                |counter, limit| Charge { counter, limit, ask: Ask::cost(1), role: Role::Must };
            let charges = [charge(one, &wide), charge(two, &narrow)];
            let mut outcomes = Outcomes::new();
            let request = Request { charges: &charges, mode: Mode::Charge };
            store.decide(&[request], world.now(), &mut outcomes).await.expect("answers");
            assert!(!tollgate_store::passes(&charges, &outcomes), "{algorithm}");
            let status = outcomes[0].status;
            assert!(status.remaining <= 100_000, "{algorithm}: {} remain", status.remaining);
            assert!(status.used <= 100_000, "{algorithm}: {} used", status.used);
            world.advance(7 * MILLISECOND);
        }
    }
}
