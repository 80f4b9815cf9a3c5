//! Leases on a store that is far, on a virtual clock: a steady caller does not notice the distance,
//! and what is out on lease stays within the pool.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "these are tests: a panic is how they fail, and random gaps are rounded anyway"
)]

mod leased_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leased_support::{COSTS, Remote, START, World, charge, counter, leased, limit};
use tollgate_core::{Algorithm, Limit, Nanos, SECOND};
use tollgate_store::Failure;
use tollgate_store::leased::{LeaseOptions, Leased};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;
const MILLISECOND: Nanos = 1_000_000;

/// Which round trips are tried, in milliseconds.
const ROUND_TRIPS: [u64; 4] = [20, 40, 80, 150];

type Node = Arc<Leased<Remote>>;

/// What callers saw.
#[derive(Default)]
struct Seen {
    asked: AtomicU64,
    admitted: AtomicU64,
    failed: AtomicU64,
    /// Those that were not answered in the instant they asked, after the warm-up and before.
    waited: AtomicU64,
    waited_early: AtomicU64,
}

impl Seen {
    fn get(of: &AtomicU64) -> u64 {
        of.load(Ordering::SeqCst)
    }

    fn waited(&self) -> u64 {
        Self::get(&self.waited)
    }
}

struct Scene {
    world: Arc<World>,
    limit: Arc<Limit>,
    ppm: u32,
    seen: Arc<Seen>,
    /// Who waits before this is not counted.
    warm_at: Nanos,
}

impl Scene {
    fn new(round_trip_millis: u64, limit: Limit, ppm: u32) -> Self {
        let world = World::far(round_trip_millis * MILLISECOND);
        let (limit, seen) = (Arc::new(limit), Arc::default());
        Self { world, limit, ppm, seen, warm_at: START + 2 * SECOND }
    }

    fn pool(&self) -> u64 {
        self.limit.quota() * u64::from(self.ppm) / 1_000_000
    }

    /// A node, and what sweeps its leases as the server does.
    fn node(&self, name: &str) -> Node {
        let remote = Remote(Arc::clone(&self.world));
        let node = Arc::new(Leased::new(remote, LeaseOptions::new(name.to_owned())));
        let (world, swept) = (Arc::clone(&self.world), Arc::clone(&node));
        tokio::spawn(async move {
            loop {
                world.sleep_until(world.now() + 100 * MILLISECOND).await;
                swept.sweep(world.now()).await;
            }
        });
        node
    }

    /// Asks at these instants, whether earlier requests were answered or not.
    fn call(&self, node: &Node, instants: impl Iterator<Item = Nanos> + Send + 'static) {
        let (world, limit) = (Arc::clone(&self.world), Arc::clone(&self.limit));
        let (seen, node) = (Arc::clone(&self.seen), Arc::clone(node));
        let (ppm, warm_at) = (self.ppm, self.warm_at);
        tokio::spawn(async move {
            for at in instants {
                world.sleep_until(at).await;
                let (world, limit) = (Arc::clone(&world), Arc::clone(&limit));
                let (seen, node) = (Arc::clone(&seen), Arc::clone(&node));
                tokio::spawn(async move {
                    let asked_at = world.now();
                    let key = counter("far", &["k"], leased(ppm));
                    let outcome = charge(&*node, key, &limit, 1, asked_at).await;
                    seen.asked.fetch_add(1, Ordering::SeqCst);
                    let of = match outcome {
                        Ok(outcome) if outcome.examination.admits() => Some(&seen.admitted),
                        Ok(_) => None,
                        Err(_) => Some(&seen.failed),
                    };
                    of.map(|of| of.fetch_add(1, Ordering::SeqCst));
                    if world.now() > asked_at {
                        let is_warm = asked_at >= warm_at;
                        let waited = if is_warm { &seen.waited } else { &seen.waited_early };
                        waited.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }

    /// Lets the scene play, and checks the bound after every step: what is charged and was not admitted
    /// is at most the pool, and so is what the store has on record.
    async fn play(&self, seconds: u64) {
        let key = counter("far", &["k"], leased(self.ppm));
        let (pool, quota) = (self.pool(), self.limit.quota());
        let world = &self.world;
        world
            .run_until(START + seconds * SECOND, || {
                let on_lease = world.on_lease(&key);
                assert!(on_lease <= pool, "{on_lease} on lease of {pool}");
                if self.limit.window_nanos() >= LONG {
                    let used = world.status(key, &self.limit).used;
                    assert!(used <= quota, "{used} of {quota}");
                    let admitted = Seen::get(&self.seen.admitted);
                    // A bucket pays off what it holds.
                    let paid = if self.limit.algorithm().is_bucket() {
                        (world.now() - START) / (self.limit.window_nanos() / quota) + 1
                    } else {
                        0
                    };
                    assert!(admitted <= used + paid, "{admitted} admitted, {used} charged");
                }
            })
            .await;
    }
}

/// Instants at an even rate.
fn even(per_second: u64, from: Nanos, until: Nanos) -> impl Iterator<Item = Nanos> + Send {
    (0..).map(move |n| from + n * SECOND / per_second).take_while(move |at| *at < until)
}

/// Instants at random, of this mean rate: gaps are distributed exponentially.
fn random(per_second: u64, until: Nanos, seed: u64) -> impl Iterator<Item = Nanos> + Send {
    let (mut state, mut at) = (seed, START);
    std::iter::from_fn(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let unit = (state >> 11) as f64 / (1_u64 << 53) as f64;
        at += (-unit.max(1e-12).ln() * SECOND as f64 / per_second as f64) as u64;
        Some(at)
    })
    .take_while(move |at| *at < until)
}

#[tokio::test]
async fn a_steady_caller_never_waits_after_warm_up() {
    for round_trip in ROUND_TRIPS {
        for per_second in [5, 20, 50, 200, 1_000, 2_000] {
            let algorithms = [Algorithm::TokenBucket, Algorithm::SlidingWindowLog];
            for algorithm in algorithms {
                let scene = Scene::new(round_trip, limit(algorithm, 1_000_000, LONG), 10_000);
                let node = scene.node("a");
                scene.call(&node, even(per_second, START + 7, START + 8 * SECOND));
                scene.play(9).await;
                let (seen, at) = (&scene.seen, format!("{per_second}/s at {round_trip} ms"));
                assert_eq!(Seen::get(&seen.admitted), 8 * per_second, "{algorithm}, {at}");
                assert_eq!(seen.waited(), 0, "{algorithm}, {at}: requests that waited");
            }
        }
    }
}

/// Arrivals at random, and a round trip that varies: hardly anybody waits.
#[tokio::test]
async fn uneven_callers_and_jitter_are_covered_by_the_margin() {
    for round_trip in ROUND_TRIPS {
        for per_second in [20, 200, 1_000] {
            let limit = limit(Algorithm::TokenBucket, 1_000_000, LONG);
            let scene = Scene::new(round_trip, limit, 10_000);
            let node = scene.node("a");
            scene.call(&node, random(per_second, START + 20 * SECOND, 0x9E37_79B9_7F4A_7C15));
            let world = Arc::clone(&scene.world);
            tokio::spawn(async move {
                // A quarter more or less, every 70 ms.
                let usual = world.one_way.load(Ordering::SeqCst);
                for turn in 0_u64.. {
                    let factor = 75 + turn * 37 % 51;
                    world.one_way.store(usual * factor / 100, Ordering::SeqCst);
                    world.sleep_until(world.now() + 70 * MILLISECOND).await;
                }
            });
            scene.play(21).await;
            let (waited, asked) = (scene.seen.waited(), Seen::get(&scene.seen.asked));
            let at = format!("{per_second}/s at {round_trip} ms");
            assert!(waited * 100 <= asked, "{at}: {waited} of {asked} waited");
        }
    }
}

#[tokio::test]
async fn four_nodes_never_wait_and_stay_within_the_pool() {
    for round_trip in ROUND_TRIPS {
        let limit = limit(Algorithm::TokenBucket, 1_000_000, LONG);
        let scene = Scene::new(round_trip, limit, 20_000);
        for (name, per_second) in [("a", 20), ("b", 200), ("c", 500), ("d", 2_000)] {
            let node = scene.node(name);
            scene.call(&node, even(per_second, START + 7, START + 6 * SECOND));
        }
        scene.play(7).await;
        assert_eq!(scene.seen.waited(), 0, "at {round_trip} ms");
        assert_eq!(Seen::get(&scene.seen.admitted), 6 * 2_720);
    }
}

/// With a pool that is too small for the distance, requests wait and the bound holds; and all that was
/// not spent goes back.
#[tokio::test]
async fn a_pool_that_is_too_small_costs_time_and_never_quota() {
    for algorithm in COSTS {
        for (quota, ppm) in [(2_000, 5_000), (2_000, 100_000), (100_000, 1_000)] {
            let scene = Scene::new(80, limit(algorithm, quota, LONG), ppm);
            let nodes: Vec<Node> = ["a", "b", "c", "d"].map(|name| scene.node(name)).into();
            for (number, node) in (0_u64..).zip(&nodes) {
                let first = START + number * 3 * MILLISECOND;
                scene.call(node, even(50 + 100 * number, first, START + 3 * SECOND));
            }
            scene.play(6).await;
            let key = counter("far", &["k"], leased(ppm));
            let used = scene.world.status(key, &scene.limit).used;
            assert_eq!(used, Seen::get(&scene.seen.admitted), "{algorithm} {quota} {ppm}");
            assert_eq!(scene.world.on_lease(&key), 0, "{algorithm}: all is back");
        }
    }
}

/// A fixed window ends: its chunks serve requests until the first fetch of the next window has landed,
/// and each window admits its quota and the pool at most.
#[tokio::test]
async fn the_end_of_a_fixed_window_is_not_noticed() {
    for round_trip in ROUND_TRIPS {
        for per_second in [20, 200, 1_000] {
            let limit = limit(Algorithm::FixedWindow, 4_000, SECOND);
            let scene = Scene::new(round_trip, limit, 500_000);
            let node = scene.node("a");
            scene.call(&node, even(per_second, START + 7, START + 8 * SECOND));
            scene.play(9).await;
            let at = format!("{per_second}/s at {round_trip} ms");
            assert_eq!(scene.seen.waited(), 0, "{at}");
            assert_eq!(Seen::get(&scene.seen.admitted), 8 * per_second, "{at}");
            assert!(node.figures().over_admission_ratio() <= 0.5, "{at}");
        }
    }
}

/// Callers of every window are refused beyond its quota and the pool, also while chunks outlive it.
#[tokio::test]
async fn a_window_admits_its_quota_and_the_pool_at_most() {
    let (quota, ppm) = (400, 100_000);
    let scene = Scene::new(80, limit(Algorithm::FixedWindow, quota, SECOND), ppm);
    for name in ["a", "b", "c"] {
        let node = scene.node(name);
        scene.call(&node, even(400, START + 7, START + 5 * SECOND));
    }
    let mut before = 0;
    let mut end = scene.limit.window_bounds(START).1;
    let key = counter("far", &["k"], leased(ppm));
    while end < START + 5 * SECOND {
        scene
            .world
            .run_until(end - 1, || assert!(scene.world.on_lease(&key) <= scene.pool()))
            .await;
        let admitted = Seen::get(&scene.seen.admitted);
        let most = quota + scene.pool();
        assert!(admitted - before <= most, "{} of {most}", admitted - before);
        (before, end) = (admitted, end + SECOND);
    }
}

/// From idle to any rate: those of the first three round trips wait, and nobody after them.
#[tokio::test]
async fn a_start_from_idle_takes_three_round_trips() {
    for round_trip in ROUND_TRIPS {
        for per_second in [20, 200, 2_000] {
            let limit = limit(Algorithm::TokenBucket, 1_000_000, LONG);
            let mut scene = Scene::new(round_trip, limit, 10_000);
            scene.warm_at = START + 3 * round_trip * MILLISECOND + SECOND / per_second;
            let node = scene.node("a");
            scene.call(&node, even(per_second, START + 7, START + 3 * SECOND));
            // Long enough that all went back and all is forgotten but the distance.
            scene.call(&node, even(per_second, START + 20 * SECOND, START + 23 * SECOND));
            scene.play(24).await;
            let early = Seen::get(&scene.seen.waited_early) + scene.seen.waited();
            let at = format!("{per_second}/s at {round_trip} ms");
            let most = 2 * (3 * round_trip * per_second / 1_000 + 2);
            assert!(early <= most, "{at}: {early} waited, {most} at most");
        }
    }
}

/// What a caller leaves goes back, soon for a busy counter.
#[tokio::test]
async fn a_caller_that_stops_leaves_nothing_on_lease() {
    for round_trip in ROUND_TRIPS {
        for per_second in [5, 200, 2_000] {
            let limit = limit(Algorithm::SlidingWindowLog, 1_000_000, LONG);
            let scene = Scene::new(round_trip, limit, 10_000);
            let node = scene.node("a");
            scene.call(&node, even(per_second, START + 7, START + 3 * SECOND));
            scene.play(if per_second == 5 { 7 } else { 4 }).await;
            let key = counter("far", &["k"], leased(scene.ppm));
            let at = format!("{per_second}/s at {round_trip} ms");
            assert_eq!(scene.world.on_lease(&key), 0, "{at}");
            let used = scene.world.status(key, &scene.limit).used;
            assert_eq!(used, Seen::get(&scene.seen.admitted), "{at}");
            let lost = node.figures().lost.load(Ordering::Relaxed);
            assert_eq!(lost, 0, "{at}");
        }
    }
}

/// A refused caller is refused without a wait, but for the one that looks whether there is room.
#[tokio::test]
async fn refusals_are_repeated_while_one_request_looks_again() {
    let scene = Scene::new(150, limit(Algorithm::FixedWindow, 100, LONG), 100_000);
    let node = scene.node("a");
    scene.call(&node, even(200, START + 7, START + 6 * SECOND));
    scene.play(7).await;
    assert_eq!(Seen::get(&scene.seen.admitted), 100);
    // One in every 50 ms and a round trip.
    let looks = 4_000 / 200 + 2;
    assert!(scene.seen.waited() <= looks, "{} waited", scene.seen.waited());
}

/// A fetch in the background may take longer than a request may wait: who finds nothing left waits for
/// it no longer than for any other call.
#[tokio::test]
async fn a_request_does_not_wait_for_a_background_fetch_beyond_its_own_timeout() {
    let limit = limit(Algorithm::TokenBucket, 1_000_000, LONG);
    let scene = Scene::new(20, limit, 10_000);
    let timeout = 90 * MILLISECOND;
    scene.world.request_timeout.store(timeout, Ordering::SeqCst);
    let node = scene.node("a");
    scene.call(&node, even(200, START + 7, START + 3 * SECOND));
    scene.play(3).await;
    assert_eq!((scene.seen.waited(), Seen::get(&scene.seen.failed)), (0, 0));
    // From now on the store does not answer within any time that matters.
    scene.world.one_way.store(3600 * SECOND, Ordering::SeqCst);
    let (world, limit) = (Arc::clone(&scene.world), Arc::clone(&scene.limit));
    let ppm = scene.ppm;
    let asking = tokio::spawn(async move {
        let key = counter("far", &["k"], leased(ppm));
        loop {
            let asked_at = world.now();
            if let Err(error) = charge(&*node, key, &limit, 1, asked_at).await {
                return (error.failure, world.now() - asked_at);
            }
        }
    });
    scene.play(4).await;
    assert!(asking.is_finished(), "it waits on");
    assert_eq!(asking.await.expect("it ends"), (Failure::Timeout, timeout));
}
