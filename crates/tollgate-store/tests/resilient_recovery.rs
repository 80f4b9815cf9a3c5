//! Nodes that return from an outage one after another: together they admit the limit once.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

mod leased_support;
mod recovery_support;

use leased_support::{COSTS, counter, failing, limit};
use recovery_support::Installation;
use std::sync::atomic::Ordering;

use tollgate_core::{Algorithm, Limit, Nanos, SECOND};
use tollgate_store::{Counter, Membership, Mode, OnFailure};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;

/// Three nodes, 100 per window, 39 used when the store is lost; they return one after another under load.
#[tokio::test]
async fn a_staggered_recovery_admits_the_limit_once() {
    for algorithm in COSTS {
        for pause in 0..4 {
            let limit = limit(algorithm, 100, LONG);
            let key = counter("staggered", &["k"], failing(OnFailure::Local));
            let mut all = Installation::new(3, key, &limit).await;
            all.load(13).await;
            all.look().await;
            assert_eq!(all.admitted(), 39);
            all.cut_all();
            all.load(3).await;
            for node in [1, 0, 2] {
                all.cut(node, false);
                all.load(10).await;
                all.pass(pause, 10).await;
            }
            assert!(all.admitted() <= 100, "{algorithm}: {} of 100", all.admitted());
            all.pass(3, 20).await;
            assert_eq!(all.admitted(), 100, "{algorithm}: {pause} s between them");
            assert_eq!(all.used(), 100, "{algorithm}: the store knows of all of it");
        }
    }
}

const KEY: &[&str] = &["k"];

fn key() -> Counter<'static> {
    counter("recovery", KEY, failing(OnFailure::Local))
}

fn hundred() -> Limit {
    limit(Algorithm::FixedWindow, 100, LONG)
}

/// Three nodes that have used 39 of 100, all know it, and all are cut off.
async fn cut_off(limit: &Limit) -> Installation<'_> {
    let mut all = Installation::new(3, key(), limit).await;
    all.load(13).await;
    all.look().await;
    all.cut_all();
    all
}

fn is_handing_over(all: &Installation<'_>) -> Vec<bool> {
    all.nodes.iter().map(|node| node.store.is_handing_over()).collect()
}

fn timed_out(all: &Installation<'_>, node: usize) -> u64 {
    all.nodes[node].store.figures().handovers_timed_out.load(Ordering::Relaxed)
}

/// Nodes return in any order, at any time within ten seconds of each other, under any load.
#[tokio::test]
async fn any_order_of_return_admits_the_limit_once() {
    let limit = hundred();
    for seed in 1..=300_u64 {
        let mut drawn = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut draw = |below: u64| {
            drawn ^= drawn << 13;
            drawn ^= drawn >> 7;
            drawn ^= drawn << 17;
            drawn % below
        };
        let mut all = cut_off(&limit).await;
        // All of them notice.
        all.load(1).await;
        let quarters: Vec<u64> = (0..3).map(|_| draw(32)).collect();
        for quarter in 0..40 {
            for (node, returns) in quarters.iter().enumerate() {
                if *returns == quarter {
                    all.cut(node, false);
                }
                for _ in 0..draw(6) {
                    all.ask(node, Mode::Charge, 1 + draw(3)).await;
                }
            }
            // Not every node keeps its house at the same moment.
            for node in &all.nodes {
                if draw(4) > 0 {
                    node.store.heal(all.world.now()).await;
                }
            }
            if quarter % 4 == 3 {
                all.beat().await;
            }
            all.world.advance(SECOND / 4);
            assert!(all.admitted() <= 100, "seed {seed}: {}", all.admitted());
        }
        all.pass(3, 20).await;
        assert_eq!(all.admitted(), 100, "seed {seed}");
        assert_eq!(all.used(), 100, "seed {seed}");
        assert_eq!(is_handing_over(&all), [false; 3], "seed {seed}");
        assert!((0..3).all(|node| timed_out(&all, node) == 0), "seed {seed}");
    }
}

/// A node that does not return is awaited for ten seconds, and nobody is refused for it after that.
#[tokio::test]
async fn a_node_that_never_returns_is_awaited_for_ten_seconds() {
    let limit = hundred();
    let mut all = cut_off(&limit).await;
    all.load(1).await;
    all.cut(0, false);
    all.cut(1, false);
    all.heal().await;
    let began = all.world.now();
    while all.world.now() < began + 10 * SECOND {
        assert_eq!(is_handing_over(&all), [true; 3]);
        all.pass(1, 10).await;
        assert!(all.admitted() <= 100, "{}", all.admitted());
    }
    assert!(!all.nodes[0].store.is_handing_over() || !all.nodes[1].store.is_handing_over());
    all.pass(1, 100).await;
    assert_eq!(is_handing_over(&all), [false, false, true]);
    assert_eq!((timed_out(&all, 0), timed_out(&all, 1)), (1, 1));
    assert_eq!(all.used(), 100, "all that is left is handed out");
    assert!((100..=200).contains(&all.admitted()), "{}", all.admitted());
    all.cut(2, false);
    all.pass(2, 100).await;
    assert_eq!(all.used(), all.admitted(), "it reports late");
    assert!(all.admitted() <= 200, "{}", all.admitted());
    assert_eq!(is_handing_over(&all), [false; 3]);
}

/// The time is up by a request, too: a node whose housekeeping stands still is not stuck.
#[tokio::test]
async fn a_request_finds_that_the_time_is_up() {
    let limit = hundred();
    let mut all = cut_off(&limit).await;
    all.load(1).await;
    all.cut(0, false);
    all.nodes[0].store.heal(all.world.now()).await;
    all.world.advance(10 * SECOND - 1);
    all.ask(0, Mode::Peek, 1).await;
    assert!(all.nodes[0].store.is_handing_over());
    all.world.advance(1);
    all.ask(0, Mode::Peek, 1).await;
    assert!(!all.nodes[0].store.is_handing_over());
}

/// Another outage before the first is handed over, and one right after it.
#[tokio::test]
async fn outages_in_a_row_admit_the_limit_once() {
    let limit = hundred();
    for between in 0..12 {
        let mut all = cut_off(&limit).await;
        for order in [[1, 0, 2], [2, 1, 0], [0, 2, 1]] {
            all.load(1).await;
            for node in order {
                all.cut(node, false);
                all.load(1).await;
                all.heal().await;
            }
            for quarter in 0..between {
                all.load(usize::from(quarter % 3 == 0)).await;
                all.heal().await;
                all.world.advance(SECOND / 4);
                if quarter % 4 == 3 {
                    all.beat().await;
                }
            }
            // Whatever was used meanwhile, all know it.
            all.look().await;
            all.cut_all();
            assert!(all.admitted() <= 100, "{between}: {}", all.admitted());
        }
        all.load(50).await;
        assert!(all.admitted() <= 100, "{between}: {}", all.admitted());
        (0..3).for_each(|node| all.cut(node, false));
        all.pass(3, 50).await;
        assert_eq!(all.admitted(), 100, "{between}");
        assert_eq!(all.used(), 100, "{between}");
    }
}

/// What a node cannot report yet keeps the others from taking it for theirs.
#[tokio::test]
async fn reports_that_are_late_are_awaited() {
    let limit = hundred();
    let mut all = cut_off(&limit).await;
    all.load(5).await;
    all.nodes[2].link.drops_reports.store(true, Ordering::SeqCst);
    (0..3).for_each(|node| all.cut(node, false));
    all.pass(6, 20).await;
    assert!(all.admitted() <= 100, "{}", all.admitted());
    assert_eq!(is_handing_over(&all), [true; 3], "it is alive, and has not reported");
    all.nodes[2].link.drops_reports.store(false, Ordering::SeqCst);
    all.pass(2, 50).await;
    assert_eq!(is_handing_over(&all), [false; 3]);
    assert_eq!((all.admitted(), all.used()), (100, 100));
    assert_eq!(timed_out(&all, 0), 0);
}

/// A node of which nothing was asked during the outage does not know what others admitted either.
#[tokio::test]
async fn an_idle_node_hands_over_too() {
    let limit = hundred();
    let mut all = cut_off(&limit).await;
    for _ in 0..10 {
        all.ask(1, Mode::Charge, 1).await;
        all.ask(2, Mode::Charge, 1).await;
    }
    all.world.advance(SECOND);
    all.beat().await;
    all.cut(0, false);
    for _ in 0..100 {
        all.ask(0, Mode::Charge, 1).await;
    }
    all.pass(2, 50).await;
    assert!(all.admitted() <= 100, "{}", all.admitted());
    all.cut(1, false);
    all.cut(2, false);
    all.pass(3, 50).await;
    assert_eq!((all.admitted(), all.used()), (100, 100));
}

/// A node that starts during the outage takes the share that it assumes, and is awaited like the others.
#[tokio::test]
async fn a_node_that_joins_during_the_outage_is_awaited() {
    let limit = hundred();
    let mut all = cut_off(&limit).await;
    all.join("node 3", Membership { nodes: 4, rank: 3 });
    all.cut(3, true);
    all.load(30).await;
    assert_eq!(all.nodes[3].admitted, 25, "its share of four, and nothing is known to be used");
    assert!(all.admitted() <= 125, "{}", all.admitted());
    // It is alive before it has reported.
    all.nodes[3].link.drops_reports.store(true, Ordering::SeqCst);
    (0..4).for_each(|node| all.cut(node, false));
    all.pass(5, 10).await;
    assert_eq!(is_handing_over(&all), [true; 4]);
    all.nodes[3].link.drops_reports.store(false, Ordering::SeqCst);
    all.pass(3, 10).await;
    assert_eq!(is_handing_over(&all), [false; 4]);
    assert!(all.admitted() <= 125, "{}", all.admitted());
    assert_eq!(all.used(), all.admitted());
}

/// A node that reports and leaves is not awaited, and one that leaves without a report is.
#[tokio::test]
async fn a_node_that_leaves_is_not_awaited() {
    let limit = hundred();
    for reports in [true, false] {
        let mut all = cut_off(&limit).await;
        all.load(3).await;
        (0..3).for_each(|node| all.cut(node, false));
        let leaving = all.nodes.pop().expect("three");
        if reports {
            leaving.store.heal(all.world.now()).await;
        }
        all.pass(1, 1).await;
        leaving.store.goodbye().await.expect("it answers");
        let gone = leaving.admitted;
        all.pass(3, 50).await;
        assert_eq!(is_handing_over(&all), [!reports; 2]);
        assert!(all.admitted() + gone <= 100, "{}", all.admitted() + gone);
        all.pass(8, 50).await;
        assert_eq!(is_handing_over(&all), [false; 2]);
        assert_eq!(all.used(), 100);
    }
}

/// Announcements that are lost end the hand-over by time, and cost nobody a request.
#[tokio::test]
async fn lost_announcements_cost_ten_seconds() {
    let limit = hundred();
    let mut all = cut_off(&limit).await;
    all.load(3).await;
    (0..3).for_each(|node| all.cut(node, false));
    all.nodes[1].link.is_mute.store(true, Ordering::SeqCst);
    all.pass(9, 5).await;
    assert!(all.admitted() <= 100, "{}", all.admitted());
    all.pass(3, 50).await;
    assert_eq!(is_handing_over(&all), [false; 3]);
    assert_eq!(timed_out(&all, 1), 1);
    assert_eq!(all.used(), 100);
    assert_eq!(all.admitted(), 100);
}

const BUCKETS: [Algorithm; 3] = [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra];

/// Time passes as in [`Installation::pass`], in steps so short that a bucket gets back one unit at most.
async fn pass_slowly(all: &mut Installation<'_>, tenths: u64) {
    for tenth in 0..tenths {
        all.load(3).await;
        if tenth % 3 == 2 {
            all.heal().await;
        }
        if tenth % 10 == 9 {
            all.beat().await;
        }
        all.world.advance(SECOND / 10);
    }
}

/// A bucket that refills during the outage, on the store and in the shares, is refilled once: it never admits
/// more than one bucket that all nodes share, however often the store is lost and in whichever order nodes
/// return.
#[tokio::test]
async fn a_bucket_refills_once_during_an_outage() {
    for algorithm in BUCKETS {
        for (nodes, quota, window, outages, apart) in [
            (1, 60, 6, 1, 0),
            (1, 60, 6, 4, 0),
            (1, 60, 60, 4, 0),
            (3, 60, 6, 1, 0),
            (3, 60, 6, 4, 0),
            (3, 60, 6, 1, 20),
            (3, 60, 6, 4, 20),
            (3, 100, 30, 1, 40),
            (3, 100, 30, 4, 40),
        ] {
            let what = format!(
                "{algorithm}: {nodes} nodes, {quota} per {window} s, {outages} outages, \
                 {apart} tenths between returns"
            );
            let limit = limit(algorithm, quota, window * SECOND);
            let mut all = Installation::new(nodes, key(), &limit).await;
            let began = all.world.now();
            pass_slowly(&mut all, 25).await;
            for outage in 0..outages {
                all.look().await;
                all.cut_all();
                pass_slowly(&mut all, 60).await;
                for number in 0..nodes {
                    all.cut((number + outage) % nodes, false);
                    pass_slowly(&mut all, apart).await;
                }
                pass_slowly(&mut all, 25).await;
                assert!(all.highest <= quota, "{what}: a level of {}", all.highest);
                assert_eq!(is_handing_over(&all), vec![false; nodes], "{what}");
            }
            let refilled = (all.world.now() - began) * quota / (window * SECOND);
            let admitted = all.admitted();
            assert!(admitted <= quota + refilled, "{what}: {admitted} of {}", quota + refilled);
            // Nor much less: one node reports exactly.
            let least = if nodes == 1 { quota + refilled - 1 } else { refilled };
            assert!(admitted >= least, "{what}: {admitted} of {}", quota + refilled);
        }
    }
}

/// What a bucket has drained is not charged for when the store returns.
#[tokio::test]
async fn what_a_bucket_has_drained_is_not_reported() {
    for algorithm in BUCKETS {
        let limit = limit(algorithm, 60, 6 * SECOND);
        for nodes in [1, 3] {
            let mut all = Installation::new(nodes, key(), &limit).await;
            pass_slowly(&mut all, 10).await;
            all.cut_all();
            all.load(60).await;
            // Twice what it takes to refill, and what nodes wait for each other.
            all.world.advance(22 * SECOND);
            (0..nodes).for_each(|node| all.cut(node, false));
            all.heal().await;
            assert_eq!(all.used(), 0, "{algorithm}, {nodes} nodes");
        }
    }
}

/// A load below the limit's pace is not refused, neither during the outage nor after it.
#[tokio::test]
async fn a_light_load_is_admitted_across_an_outage() {
    for algorithm in BUCKETS {
        let limit = limit(algorithm, 60, 6 * SECOND);
        for nodes in [1, 3] {
            let mut all = Installation::new(nodes, key(), &limit).await;
            for second in 0..30 {
                if second == 5 {
                    all.cut_all();
                } else if second == 15 {
                    (0..nodes).for_each(|node| all.cut(node, false));
                }
                all.pass(1, 0).await;
                all.load(2).await;
            }
            assert_eq!(all.admitted(), 60 * nodes as u64, "{algorithm}, {nodes} nodes");
        }
    }
}

/// Numbers that look random, from a seed.
fn below(seed: &mut u64, end: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % end
}

/// Outages of all nodes in a row, between which some nodes decide nothing on the counter: what is admitted beyond the limit
/// is at most what a node did not know at the start of one of them, the largest of these and not their sum. With even
/// seeds all nodes know the usage each time.
#[tokio::test]
async fn outages_in_a_row_admit_the_limit_and_what_a_node_did_not_know() {
    let mut exceeded = 0;
    for algorithm in
        [Algorithm::FixedWindow, Algorithm::SlidingWindowLog, Algorithm::SlidingWindowCounter]
    {
        let limit = limit(algorithm, 60, LONG);
        for first in 0..60 {
            let mut seed = first;
            let mut all = Installation::new(3, key(), &limit).await;
            let (mut seen, mut unknown) = ([0; 3], 0);
            for _ in 0..2 + below(&mut seed, 3) {
                for _ in 0..below(&mut seed, 12) {
                    let node = below(&mut seed, 3) as usize;
                    all.ask(node, Mode::Charge, 1).await;
                    seen[node] = all.admitted();
                }
                let admitted = all.admitted();
                if first % 2 == 0 {
                    all.look().await;
                    seen = [admitted; 3];
                }
                unknown = seen.iter().map(|seen| admitted - seen).fold(unknown, u64::max);
                all.cut_all();
                for _ in 0..below(&mut seed, 60) {
                    all.ask(below(&mut seed, 3) as usize, Mode::Charge, 1).await;
                }
                // All announce that they miss the store, and return together.
                all.world.advance(2 * SECOND);
                all.beat().await;
                (0..3).for_each(|node| all.cut(node, false));
                all.heal().await;
                all.pass(below(&mut seed, 3), 0).await;
            }
            all.pass(12, 3).await;
            let (admitted, used) = (all.admitted(), all.used());
            assert_eq!(used, admitted, "{algorithm}, seed {first}");
            assert!(admitted >= 60, "{algorithm}, seed {first}: {admitted}");
            assert!(admitted <= 60 + unknown, "{algorithm}, seed {first}: {admitted}, {unknown}");
            exceeded += u64::from(admitted > 60);
        }
    }
    assert!(exceeded > 0, "what a node does not know counts");
}
