//! A cluster whose slots move and whose masters die, and requests over several slots.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use std::sync::Arc;
use std::time::Duration;

use redis_support::{Probe, now, options, until_it_answers};
use tollgate_core::{Algorithm, Ask, MAX_OPEN_CHARGES, Receipt, SlotId};
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_store::{Charge, Decided, GiveBack, Mode, Outcomes, Request, Role, Store, StoreError};
use tollgate_testkit::{Cluster, slot_of};

async fn connected(cluster: &Cluster, timeout: Duration) -> RedisStore {
    let options = RedisOptions { kind: RedisKind::Cluster, timeout, ..options(&cluster.urls()) };
    let store = RedisStore::connect(options).await.unwrap();
    until_it_answers(&store).await;
    store
}

/// A master that does not have the slot.
fn other_master(cluster: &Cluster, slot: u16) -> usize {
    let owner = cluster.master_of(slot);
    cluster.masters().into_iter().find(|master| *master != owner).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_under_way_and_nothing_is_lost_or_charged_twice() {
    let cluster = Cluster::start(3, 0);
    let store = connected(&cluster, Duration::from_secs(2)).await;
    let slot = slot_of("{k}");
    let moved = Probe::new("moved", 1_000);
    let late = Probe::new("late", 1_000);
    for paid in 1..=3 {
        assert_eq!(moved.pay(&store).await.unwrap().status.used, paid);
    }
    // MOVED: the table we have is old.
    cluster.move_slot(slot, other_master(&cluster, slot));
    assert_eq!(moved.pay(&store).await.unwrap().status.used, 4);
    // In between: a counter that is still there, one that has gone, and one that never was.
    let to = other_master(&cluster, slot);
    cluster.begin_move(slot, to);
    assert_eq!(moved.pay(&store).await.unwrap().status.used, 5, "still there");
    assert_eq!(late.pay(&store).await.unwrap().status.used, 1, "new: ASK");
    while cluster.move_keys(slot, to, 10) > 0 {}
    assert_eq!(moved.pay(&store).await.unwrap().status.used, 6, "gone: ASK");
    assert_eq!(late.pay(&store).await.unwrap().status.used, 2);
    // Many at once, so that they are coalesced.
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let store = store.clone();
        tasks.spawn(async move { Probe::new("moved", 1_000).pay(&store).await.unwrap() });
    }
    while let Some(paid) = tasks.join_next().await {
        assert!(paid.unwrap().examination.admits());
    }
    cluster.finish_move(slot, to);
    assert_eq!(moved.used(&store).await, 56);
    assert_eq!(late.used(&store).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_master_is_replaced_by_its_replica() {
    let cluster = Cluster::start(3, 1);
    let store = connected(&cluster, Duration::from_millis(200)).await;
    let probe = Probe::new("failover", 100);
    probe.pay(&store).await.unwrap();
    cluster.kill_master_of(slot_of("{k}"));
    // Until the replica takes over, decisions fail within their deadline.
    let mut failures = 0;
    for _ in 0..3_000 {
        match probe.pay(&store).await {
            Ok(_) => break,
            Err(_) => failures += 1,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(failures > 0);
    let used = probe.used(&store).await;
    assert!((1..=2).contains(&used), "a charge not yet replicated is lost, no more: {used}");
}

/// Random sets of counters over many slots by many tasks, some of which are aborted at any moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_over_several_slots_never_admit_too_much() {
    const QUOTA: u64 = 30;
    let cluster = Cluster::start(3, 0);
    let store = connected(&cluster, Duration::from_secs(5)).await;
    let algorithms =
        Algorithm::ALL.map(|algorithm| Arc::new(Probe::of("several", algorithm, QUOTA)));
    let probes = Arc::new(algorithms);
    let mut tasks = Vec::new();
    for task in 0..40u64 {
        let (store, probes) = (store.clone(), Arc::clone(&probes));
        tasks.push(tokio::spawn(async move {
            let mut paid = vec![0u64; 21];
            for number in 0..12u64 {
                let draw = |salt: u64| {
                    let mixed =
                        (task * 1_000 + number * 10 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
                };
                let mut chosen: Vec<usize> =
                    (0..=draw(1) % 4).map(|i| (draw(2 + i) % 21) as usize).collect();
                chosen.sort_unstable();
                chosen.dedup();
                let names: Vec<String> = chosen.iter().map(|index| format!("key{index}")).collect();
                let keys: Vec<[&str; 1]> = names.iter().map(|name| [name.as_str()]).collect();
                let ask = Ask::slot(SlotId(u128::from(task * 100 + number + 1)));
                let charges: Vec<Charge<'_>> = (chosen.iter().zip(&keys))
                    .map(|(index, key)| probes[index % 7].charge(key, ask, Role::Must))
                    .collect();
                let request = [Request { charges: &charges, mode: Mode::Charge }];
                let mut outcomes = Outcomes::new();
                store.decide(&request, now(), &mut outcomes).await.unwrap();
                for (index, outcome) in chosen.iter().zip(&outcomes) {
                    assert!(outcome.status.used <= QUOTA, "{outcome:?}");
                    paid[*index] += u64::from(outcome.receipt != Receipt::Nothing);
                }
            }
            paid
        }));
    }
    // A quarter of them goes away in the middle of something.
    let mut aborted = 0;
    for (index, task) in tasks.iter().enumerate() {
        if index % 4 == 3 {
            tokio::time::sleep(Duration::from_millis(2)).await;
            task.abort();
            aborted += 1;
        }
    }
    let mut paid = [0u64; 21];
    for task in tasks {
        if let Ok(mine) = task.await {
            for (sum, mine) in paid.iter_mut().zip(mine) {
                *sum += mine;
            }
        }
    }
    // Holds of those that went away are given back on their own.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for (index, paid) in paid.iter().enumerate() {
        let name = format!("key{index}");
        let key = [name.as_str()];
        let ask = Ask::slot(SlotId(u128::MAX));
        let charges = [probes[index % 7].charge(&key, ask, Role::Must)];
        let request = [Request { charges: &charges, mode: Mode::Peek }];
        let mut outcomes = Outcomes::new();
        store.decide(&request, now(), &mut outcomes).await.unwrap();
        let used = outcomes[0].status.used;
        assert!(used <= QUOTA, "{name}: {used}");
        // A task that was aborted may have paid before.
        assert!(used >= *paid && used <= paid + aborted * 12, "{name}: {used}, {paid} answered");
    }
}

/// Two counters each, in slots of their own, but for every eighth pair, which shares one.
fn pairs(count: usize) -> Vec<[String; 2]> {
    (0..count).map(|i| [format!("shared{}", i % 8), format!("own{i}")]).collect()
}

async fn decide_pairs(
    store: &RedisStore,
    probe: &Probe,
    pairs: &[[String; 2]],
) -> (Result<Decided, StoreError>, Outcomes) {
    let keys: Vec<[[&str; 1]; 2]> =
        pairs.iter().map(|[a, b]| [[a.as_str()], [b.as_str()]]).collect();
    let charges: Vec<[Charge<'_>; 2]> = (keys.iter())
        .map(|[a, b]| {
            [probe.charge(a, Ask::cost(1), Role::Must), probe.charge(b, Ask::cost(1), Role::Must)]
        })
        .collect();
    let requests: Vec<Request<'_>> =
        charges.iter().map(|charges| Request { charges, mode: Mode::Charge }).collect();
    let mut outcomes = Outcomes::new();
    let decided = store.decide(&requests, now(), &mut outcomes).await;
    (decided, outcomes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_over_several_slots_are_decided_in_one_call_and_in_order() {
    let cluster = Cluster::start(3, 0);
    let store = connected(&cluster, Duration::from_millis(100)).await;
    let probe = Probe::new("many", 5);
    // 8 each of the shared ones, of which 5 fit.
    let (decided, outcomes) = decide_pairs(&store, &probe, &pairs(64)).await;
    assert_eq!(decided.unwrap().failed, None);
    for (place, pair) in outcomes.chunks(2).enumerate() {
        let passes = pair.iter().all(|outcome| outcome.receipt != Receipt::Nothing);
        assert_eq!(passes, place / 8 < 5, "{place}: {pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_master_fails_only_the_requests_that_need_it() {
    let cluster = Cluster::start(3, 0);
    let store = connected(&cluster, Duration::from_millis(150)).await;
    let probe = Probe::new("partly", 100);
    // All are known, and so is the way to them.
    let all = pairs(24);
    decide_pairs(&store, &probe, &all).await.0.unwrap();
    let dead = cluster.master_of(slot_of("{own0}"));
    // Those who live on go on answering.
    for master in cluster.masters() {
        let words = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        cluster.nodes()[master].call(&words).unwrap().ok().unwrap();
    }
    let is_lost = |[a, b]: &[String; 2]| {
        [a, b].iter().any(|key| cluster.master_of(slot_of(&format!("{{{key}}}"))) == dead)
    };
    let lost: Vec<bool> = all.iter().map(is_lost).collect();
    assert!(lost.contains(&false) && lost.contains(&true), "{lost:?}");
    cluster.kill_master_of(slot_of("{own0}"));
    let (decided, outcomes) = decide_pairs(&store, &probe, &all).await;
    let decided = decided.unwrap();
    for (place, lost) in lost.iter().enumerate() {
        assert_eq!(decided.failed_of(place).is_some(), *lost, "{place}: {decided:?}");
        for outcome in &outcomes[2 * place..2 * place + 2] {
            assert_eq!(outcome.receipt == Receipt::Nothing, *lost, "{place}: {outcome:?}");
        }
    }
}

/// Requests that another slot refuses leave nothing on a bucket, however many of them overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn refused_requests_over_several_slots_leave_nothing_on_a_bucket() {
    const TASKS: u64 = 32;
    const REQUESTS: u64 = 10;
    let cluster = Cluster::start(3, 0);
    let store = connected(&cluster, Duration::from_secs(5)).await;
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
        let (open, full) = (
            Arc::new(Probe::of("open", algorithm, 20)),
            Arc::new(Probe::of("full", Algorithm::FixedWindow, 0)),
        );
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let (store, open, full) = (store.clone(), Arc::clone(&open), Arc::clone(&full));
            tasks.spawn(async move {
                for _ in 0..REQUESTS {
                    let charges = [
                        open.charge(&["one"], Ask::cost(1), Role::Must),
                        full.charge(&["another"], Ask::cost(1), Role::Must),
                    ];
                    let request = [Request { charges: &charges, mode: Mode::Charge }];
                    let mut outcomes = Outcomes::new();
                    store.decide(&request, now(), &mut outcomes).await.unwrap();
                    assert_eq!(outcomes[1].receipt, Receipt::Nothing);
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let charges = [open.charge(&["one"], Ask::cost(1), Role::Must)];
            let request = [Request { charges: &charges, mode: Mode::Peek }];
            let mut outcomes = Outcomes::new();
            store.decide(&request, now(), &mut outcomes).await.unwrap();
            if outcomes[0].status.used == 0 {
                break;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{algorithm}: {:?}",
                outcomes[0].status
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The holds of such requests make no reservation final, however many are open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_requests_over_several_slots_make_no_reservation_final() {
    let cluster = Cluster::start(3, 0);
    let store = connected(&cluster, Duration::from_secs(5)).await;
    let open = Probe::of("open", Algorithm::TokenBucket, 100_000);
    let full = Probe::of("full", Algorithm::FixedWindow, 0);
    let decide = async |charges: &[Charge<'_>], mode| {
        let mut outcomes = Outcomes::new();
        store.decide(&[Request { charges, mode }], now(), &mut outcomes).await.unwrap();
        outcomes[0]
    };
    let reserve = [open.charge(&["one"], Ask::cost(10).refundable(), Role::Must)];
    let mut receipts = Vec::new();
    for _ in 0..MAX_OPEN_CHARGES {
        receipts.push(decide(&reserve, Mode::Charge).await.receipt);
    }
    let refused = [
        open.charge(&["one"], Ask::cost(1), Role::Must),
        full.charge(&["another"], Ask::cost(1), Role::Must),
    ];
    for _ in 0..8 {
        decide(&refused, Mode::Charge).await;
    }
    for receipt in receipts {
        let Charge { counter, limit, .. } = reserve[0];
        let returned = GiveBack { counter, limit, receipt };
        store.give_back(&[returned], now()).await.unwrap();
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    // What the last requests held is given back, if not at once then soon.
    while decide(&reserve, Mode::Peek).await.status.used > 0 {
        assert!(tokio::time::Instant::now() < deadline, "something stays charged");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(store.metrics().finalized_charges(), 0);
}

/// A request waits for its last slot while others pass: their holds do not make its own one final, so that it is given
/// back when the request is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_requests_over_several_slots_make_no_hold_of_another_final() {
    let cluster = Cluster::start(3, 0);
    let store = connected(&cluster, Duration::from_secs(9)).await;
    let open = Probe::of("open", Algorithm::TokenBucket, 100_000);
    let full = Probe::of("full", Algorithm::FixedWindow, 0);
    let master = |key: &String| cluster.master_of(slot_of(&format!("{{{key}}}")));
    let keys: Vec<String> = (0..64).map(|number| format!("key{number}")).collect();
    let slow = keys.iter().find(|key| master(key) != master(&keys[0])).unwrap();
    let mut fast = keys.iter().filter(|key| master(key) != master(slow));
    let (shared, other) = ([fast.next().unwrap().as_str()], [fast.next().unwrap().as_str()]);
    let refuses = [slow.as_str()];
    let decide = async |charges: &[Charge<'_>], mode| {
        let mut outcomes = Outcomes::new();
        store.decide(&[Request { charges, mode }], now(), &mut outcomes).await.unwrap();
        outcomes[0]
    };
    let peek = [open.charge(&shared, Ask::cost(1), Role::Must)];
    let used = async || decide(&peek, Mode::Peek).await.status.used;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let until_used = async |expected: u64| {
        while used().await != expected {
            assert!(tokio::time::Instant::now() < deadline, "{} are used", used().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let slow_master = &cluster.nodes()[master(slow)];
    slow_master.call(&["CLIENT", "PAUSE", "60000", "WRITE"]).unwrap().ok().unwrap();
    let charges = [
        open.charge(&shared, Ask::cost(7), Role::Must),
        full.charge(&refuses, Ask::cost(1), Role::Must),
    ];
    let waiting = decide(&charges, Mode::Charge);
    let others = async {
        until_used(7).await;
        let passes = [
            open.charge(&shared, Ask::cost(1), Role::Must),
            open.charge(&other, Ask::cost(1), Role::Must),
        ];
        for _ in 0..3 * MAX_OPEN_CHARGES {
            assert_ne!(decide(&passes, Mode::Charge).await.receipt, Receipt::Nothing);
        }
        slow_master.call(&["CLIENT", "UNPAUSE"]).unwrap().ok().unwrap();
    };
    tokio::join!(waiting, others);
    until_used(3 * MAX_OPEN_CHARGES as u64).await;
    assert_eq!(store.metrics().finalized_charges(), 0);
}

/// Many requests at once, of which some pass: both buckets have what passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_over_several_slots_leave_what_was_accepted() {
    const REQUESTS: usize = 400;
    const QUOTA: u64 = 150;
    let cluster = Cluster::start(3, 0);
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(connected(&cluster, Duration::from_secs(9)).await);
    }
    let wide = Arc::new(Probe::of("wide", Algorithm::TokenBucket, 100_000));
    let narrow = Arc::new(Probe::of("narrow", Algorithm::Gcra, QUOTA));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..REQUESTS {
        let store = stores[number % stores.len()].clone();
        let (wide, narrow) = (Arc::clone(&wide), Arc::clone(&narrow));
        tasks.spawn(async move {
            let charges = [
                wide.charge(&["one"], Ask::cost(1), Role::Must),
                narrow.charge(&["another"], Ask::cost(1), Role::Must),
            ];
            let request = [Request { charges: &charges, mode: Mode::Charge }];
            let mut outcomes = Outcomes::new();
            store.decide(&request, now(), &mut outcomes).await.unwrap();
            outcomes.iter().all(|outcome| outcome.examination.admits())
        });
    }
    let mut accepted = 0;
    while let Some(passed) = tasks.join_next().await {
        accepted += u64::from(passed.unwrap());
    }
    assert!(accepted > 0 && accepted <= QUOTA, "{accepted}");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let charges = [
            wide.charge(&["one"], Ask::cost(1), Role::Must),
            narrow.charge(&["another"], Ask::cost(1), Role::Must),
        ];
        let request = [Request { charges: &charges, mode: Mode::Peek }];
        let mut outcomes = Outcomes::new();
        stores[0].decide(&request, now(), &mut outcomes).await.unwrap();
        let used = [outcomes[0].status.used, outcomes[1].status.used];
        if used == [accepted; 2] {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{used:?}, and {accepted} were accepted");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A request that another slot refuses names a concurrency slot that its caller holds already: that stays held.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refused_request_over_several_slots_releases_no_slot_that_was_held() {
    let cluster = Cluster::start(3, 0);
    let store = connected(&cluster, Duration::from_secs(5)).await;
    let held = Probe::of("held", Algorithm::Concurrency, 2);
    let full = Probe::of("full", Algorithm::FixedWindow, 0);
    let take = |slot: u128| held.charge(&["one"], Ask::slot(SlotId(slot)), Role::Must);
    let refused = full.charge(&["another"], Ask::cost(1), Role::Must);
    let first = [take(1)];
    for charges in [&first[..], &[take(1), refused], &[take(2), refused]] {
        let request = [Request { charges, mode: Mode::Charge }];
        store.decide(&request, now(), &mut Outcomes::new()).await.unwrap();
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let slots = async || store.slots(&first[0].counter, now()).await.unwrap();
    // The slot that the last request took is given back, if not at once then soon.
    while slots().await.len() > 1 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let held: Vec<SlotId> = slots().await.iter().map(|slot| slot.id).collect();
    assert_eq!(held, [SlotId(1)]);
}
