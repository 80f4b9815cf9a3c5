//! What nodes share beside counters: answers, leases, and who is alive.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use std::sync::atomic::{AtomicU64, Ordering};

use redis_support::{Probe, VirtualClock};
use tollgate_core::{
    Algorithm, Ask, Calendar, CalendarUnit, Limit, LimitSpec, MAX_OPEN_CHARGES, Nanos, Outcome,
    Receipt, SECOND, Window,
};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::{
    Adjustment, Announcement, Change, Charge, Claim, Consistency, Failure, GiveBack, Home,
    LeaseAsk, LeaseGrant, Membership, MemoryStore, Mode, Outcomes, Request, RequestClaim, Role,
    RollEntry, Settlement, SharedStore, Store,
};

#[tokio::test]
async fn an_id_is_answered_by_one_node_and_known_to_all() {
    let clock = VirtualClock::new();
    let store = &clock.store;
    let claim = |content, owner| RequestClaim { id: 7, content, owner };
    let claimed = async |content, owner| store.claim(&claim(content, owner)).await.unwrap();
    let publish = async |content, owner, answer: Option<&[u8]>| {
        store.publish(&claim(content, owner), answer).await.unwrap();
    };
    assert_eq!(claimed(1, 1).await, Claim::Yours);
    assert_eq!(claimed(1, 2).await, Claim::Pending);
    assert_eq!(claimed(1, 1).await, Claim::Yours, "its owner repeats it");
    assert_eq!(claimed(2, 1).await, Claim::OtherContent);
    publish(1, 2, None).await;
    assert_eq!(claimed(1, 2).await, Claim::Pending, "another's claim is not forgotten");
    publish(1, 1, None).await;
    assert_eq!(claimed(2, 1).await, Claim::Yours, "a forgotten claim is free");
    let answer = [0, 255, 1, b'}', b':'];
    publish(2, 1, Some(&answer)).await;
    assert_eq!(claimed(2, 1).await, Claim::Answered(answer.to_vec()));
    assert_eq!(claimed(2, 2).await, Claim::Answered(answer.to_vec()));
    assert_eq!(claimed(1, 1).await, Claim::OtherContent);
    publish(1, 1, None).await;
    publish(1, 1, Some(b"other")).await;
    assert_eq!(claimed(2, 2).await, Claim::Answered(answer.to_vec()));
}

#[tokio::test]
async fn nodes_come_and_go() {
    let clock = VirtualClock::new();
    let store = &clock.store;
    let announce = async |node: &str, seconds: u64| {
        let announcement = Announcement { node, ttl: seconds * SECOND, has_reported: false };
        store.announce(&announcement).await.unwrap().membership
    };
    assert_eq!(announce("b", 10).await, Membership { nodes: 1, rank: 0 });
    assert_eq!(announce("a", 20).await, Membership { nodes: 2, rank: 0 });
    assert_eq!(announce("b", 10).await, Membership { nodes: 2, rank: 1 });
    assert_eq!(announce("c", 30).await, Membership { nodes: 3, rank: 2 });
    clock.set(clock.get() + 15 * SECOND);
    assert_eq!(announce("c", 30).await, Membership { nodes: 2, rank: 1 }, "b was not heard of");
    assert_eq!(announce("a", 0).await.nodes, 1);
    assert_eq!(announce("c", 30).await, Membership { nodes: 1, rank: 0 });
}

/// Every node learns which others have reported, also of those that have left since.
#[tokio::test]
async fn reports_are_listed() {
    let clock = VirtualClock::new();
    let store = &clock.store;
    let announce = async |node: &str, seconds: u64, has_reported: bool| {
        let announcement = Announcement { node, ttl: seconds * SECOND, has_reported };
        let mut roll = store.announce(&announcement).await.unwrap();
        assert!(!roll.is_cut_short);
        assert_eq!(roll.at, clock.get());
        roll.nodes.sort_by(|one, other| one.name.cmp(&other.name));
        roll.nodes
    };
    let entry = |name: &str, is_alive, reported_at| RollEntry {
        name: name.to_owned(),
        is_alive,
        reported_at,
    };
    assert_eq!(announce("a", 10, false).await, [entry("a", true, 0)]);
    let first = clock.get();
    let b = entry("b", true, first);
    assert_eq!(announce("b", 10, true).await, [entry("a", true, 0), b.clone()]);
    clock.set(first + SECOND);
    assert_eq!(announce("a", 10, true).await, [entry("a", true, first + SECOND), b]);
    let gone = entry("b", false, first + SECOND);
    assert_eq!(announce("b", 0, true).await, [entry("a", true, first + SECOND), gone.clone()]);
    clock.set(first + 2 * SECOND);
    assert_eq!(announce("a", 100, false).await, [entry("a", true, first + SECOND), gone]);
    clock.set(first + 70 * SECOND);
    assert_eq!(announce("a", 10, false).await, [entry("a", true, 0)], "that was long ago");
}

/// Names returns.
static RETURNS: AtomicU64 = AtomicU64::new(0);

struct Lessee<'a> {
    clock: &'a VirtualClock,
    probe: &'a Probe,
    node: &'a str,
}

impl Lessee<'_> {
    async fn ask(&self, want: u64, least: u64, held: u64, back: (u64, Receipt)) -> LeaseGrant {
        let ask = LeaseAsk {
            counter: self.probe.counter(&["k"]),
            limit: &self.probe.limit,
            node: self.node,
            want,
            least,
            returned: back.0,
            receipt: back.1,
            return_id: u128::from(RETURNS.fetch_add(1, Ordering::Relaxed)),
            remember: 60 * SECOND,
            closes: &[],
            held,
            pool: 20,
            ttl: 10 * SECOND,
        };
        self.clock.store.lease(&ask).await.unwrap()
    }
}

const NONE: (u64, Receipt) = (0, Receipt::Nothing);

/// The answer to a fetch that returns quota is lost, and the return is sent again by a call of its own, before or after
/// the first one arrives.
#[tokio::test]
async fn a_return_is_made_once_whichever_call_makes_it() {
    let clock = VirtualClock::new();
    let algorithms = Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Concurrency);
    for (algorithm, name) in algorithms.zip(["ra", "rb", "rc", "rd", "re", "rf"]) {
        for is_first in [true, false] {
            let probe = Probe::of(name, algorithm, 100);
            let key = if is_first { "first" } else { "second" };
            let counter = probe.counter(std::slice::from_ref(&key));
            let limit = &probe.limit;
            let take = LeaseAsk {
                counter,
                limit,
                node: "one",
                want: 16,
                least: 1,
                returned: 0,
                receipt: Receipt::Nothing,
                return_id: 0,
                remember: 60 * SECOND,
                closes: &[],
                held: 0,
                pool: 20,
                ttl: 10 * SECOND,
            };
            let receipt = clock.store.lease(&take).await.unwrap().outcome.receipt;
            let return_id = u128::from(RETURNS.fetch_add(1, Ordering::Relaxed));
            let again = LeaseAsk { want: 0, least: 0, returned: 5, receipt, return_id, ..take };
            let change = Change::GiveBack(receipt.part(5));
            let adjustments = [Adjustment { counter, limit, change, closes: Receipt::Nothing }];
            let settlement = Settlement {
                id: return_id,
                remember: 60 * SECOND,
                is_here: false,
                adjustments: &adjustments,
            };
            for calls_first in [is_first, !is_first, is_first] {
                if calls_first {
                    clock.store.lease(&again).await.unwrap();
                } else {
                    let settled = clock.store.settle(&settlement, 0).await.unwrap();
                    assert_eq!(settled.refunded.as_slice(), [5], "{algorithm} {key}");
                }
                let seen = clock.store.lease(&LeaseAsk { returned: 0, ..again }).await.unwrap();
                assert_eq!(seen.outcome.status.used, 11, "{algorithm} {key}");
            }
        }
    }
}

#[tokio::test]
async fn leases_stay_within_their_pool() {
    let clock = VirtualClock::new();
    let algorithms = Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Concurrency);
    for (algorithm, name) in algorithms.zip(["a", "b", "c", "d", "e", "f"]) {
        let probe = Probe::of(name, algorithm, 100);
        let one = Lessee { clock: &clock, probe: &probe, node: "one" };
        let two = Lessee { clock: &clock, probe: &probe, node: "two" };
        let first = one.ask(16, 1, 0, NONE).await;
        assert_eq!((first.granted, first.others), (16, 0), "{algorithm}");
        assert_eq!(first.outcome.status.used, 16, "{algorithm}");
        assert_eq!(first.expires_at, clock.get() + 10 * SECOND, "{algorithm}");
        // 15 are out; 5 are left in the pool: 16 - 1 is too much, and so is 8 - 1; 4 - 1 is not.
        let second = two.ask(16, 1, 0, NONE).await;
        assert_eq!((second.granted, second.others), (4, 15), "{algorithm}");
        assert_eq!(second.outcome.status.used, 20, "{algorithm}");
        // No room at all: what is spent at once passes all the same.
        let third = two.ask(16, 5, 5, NONE).await;
        assert_eq!((third.granted, third.others), (5, 15), "{algorithm}");
        // Returning a half, holding the rest.
        let returned = one.ask(0, 0, 8, (7, first.outcome.receipt)).await;
        assert_eq!((returned.granted, returned.others), (0, 5), "{algorithm}");
        assert_eq!(returned.outcome.status.used, 25 - 7, "{algorithm}");
        let others = two.ask(0, 0, 0, NONE).await;
        assert_eq!(others.others, 8, "{algorithm}");
        // What has expired is no longer out.
        clock.set(clock.get() + 11 * SECOND);
        assert_eq!(two.ask(1, 1, 0, NONE).await.others, 0, "{algorithm}");
        // More than is left: the largest half that fits, or nothing.
        let rest = one.ask(1_000, 70, 0, NONE).await;
        assert_eq!(rest.granted, 70, "{algorithm}");
        let refused = one.ask(50, 40, 0, NONE).await;
        assert_eq!(refused.granted, 0, "{algorithm}");
        assert!(!refused.outcome.examination.admits(), "{algorithm}");
    }
}

async fn charge(store: &impl Store, charge: Charge<'_>, clock: &VirtualClock) -> Outcome {
    let request = Request { charges: &[charge], mode: Mode::Charge };
    let mut outcomes = Outcomes::new();
    store.decide(&[request], clock.get(), &mut outcomes).await.unwrap();
    outcomes[0]
}

const BUCKETS: [(Algorithm, &str); 3] =
    [(Algorithm::TokenBucket, "a"), (Algorithm::LeakyBucket, "b"), (Algorithm::Gcra, "c")];

/// More nodes have a chunk than a bucket has places for refundable charges. What reservations have charged is refunded all
/// the same, and every chunk that became final is counted.
#[tokio::test]
async fn chunks_on_lease_leave_the_charges_of_reservations_their_places() {
    let clock = VirtualClock::new();
    for ((algorithm, name), part) in BUCKETS.into_iter().zip(1..) {
        let probe = Probe::of(name, algorithm, 100_000);
        let mut reserved = Vec::new();
        for _ in 0..40 {
            clock.set(clock.get() + 1_000);
            let ask = Ask::cost(750).refundable();
            let made = charge(&clock.store, probe.charge(&["k"], ask, Role::Must), &clock).await;
            assert!(made.examination.admits(), "{algorithm}");
            reserved.push(made.receipt);
        }
        for node in 0..100 {
            clock.set(clock.get() + 1_000);
            let node = format!("node {node}");
            let lessee = Lessee { clock: &clock, probe: &probe, node: &node };
            assert_eq!(lessee.ask(1, 1, 0, NONE).await.granted, 1, "{algorithm}");
        }
        assert_eq!(clock.store.metrics().finalized_charges(), part * 36, "{algorithm}");
        for receipt in reserved {
            let (counter, limit) = (probe.counter(&["k"]), &probe.limit);
            let back = GiveBack { counter, limit, receipt };
            clock.store.give_back(&[back], clock.get()).await.unwrap();
        }
        assert_eq!(probe.used(&clock.store).await, 100, "{algorithm}");
    }
}

/// A node that spends its chunks closes them, so that a bucket keeps no list of what nobody gives back.
#[tokio::test]
async fn spent_chunks_are_closed() {
    let clock = VirtualClock::new();
    for (algorithm, name) in BUCKETS {
        let probe = Probe::of(name, algorithm, 100_000);
        let consistency = Consistency::Leased { max_overshoot_ppm: 1_000 };
        let home = Home { partition: Some(0), consistency, ..Home::default() };
        let mut plain = probe.charge(&["k"], Ask::cost(1), Role::Must);
        plain.counter.home = home;
        let reserved = Charge { ask: Ask::cost(750).refundable(), ..plain };
        let store = tollgate_store::redis::RedisStore::on_clock(
            &redis_support::options(&[clock.server().url()]),
            redis_support::CLOCK,
        );
        let node = Leased::new(store.unwrap(), LeaseOptions::new("node".to_owned()));
        let reserved = charge(&node, reserved, &clock).await.receipt;
        let mut admitted = 0;
        for _ in 0..3_000 {
            clock.set(clock.get() + SECOND / 1_000);
            admitted += u64::from(charge(&node, plain, &clock).await.examination.admits());
            tokio::task::yield_now().await;
        }
        assert_eq!(admitted, 3_000, "{algorithm}");
        let taken = node.figures().taken.load(std::sync::atomic::Ordering::Relaxed);
        assert!(taken > 64, "{algorithm}: only {taken} chunks");
        assert_eq!(node.inner().metrics().finalized_charges(), 0, "{algorithm}");
        let back = GiveBack { counter: plain.counter, limit: &probe.limit, receipt: reserved };
        node.give_back(&[back], clock.get()).await.unwrap();
        node.return_all(clock.get()).await;
        assert_eq!(probe.used(node.inner()).await, 3_000, "{algorithm}");
    }
}

/// Gives everything of a charge back, as a settlement, and returns what the store reports.
async fn refund(store: &impl Store, probe: &Probe, id: u8, made: Receipt, now: Nanos) -> u64 {
    let id = u128::from_be_bytes([id; 16]) ^ u128::from(probe.name.as_bytes()[0]);
    let (counter, limit) = (probe.counter(&["k"]), &probe.limit);
    let change = Change::GiveBack(made);
    let adjustments = [Adjustment { counter, limit, change, closes: Receipt::Nothing }];
    let remember = 60 * SECOND;
    let settlement = Settlement { id, remember, is_here: false, adjustments: &adjustments };
    store.settle(&settlement, now).await.unwrap().refunded[0]
}

/// A bucket that has drained in part since a charge gives back the rest, and that is what is reported: in whole units, rounded
/// up, and again when the settlement is repeated.
async fn refund_in_part(store: &impl Store, clock: &VirtualClock) {
    for (algorithm, name) in BUCKETS {
        let probe = Probe::of(name, algorithm, 100);
        let unit = probe.limit.window_nanos() / 100;
        let reserve = async |cost| {
            let ask = Ask::cost(cost).refundable();
            charge(store, probe.charge(&["k"], ask, Role::Must), clock).await.receipt
        };
        let alone = reserve(10).await;
        clock.set(clock.get() + 4 * unit + unit / 2);
        for _ in 0..2 {
            assert_eq!(refund(store, &probe, 1, alone, clock.get()).await, 6, "{algorithm}");
        }
        // What came after it has drained instead: 13 less 4.5 were left, and nothing is.
        let (first, _) = (reserve(10).await, reserve(3).await);
        clock.set(clock.get() + 4 * unit + unit / 2);
        assert_eq!(refund(store, &probe, 2, first, clock.get()).await, 9, "{algorithm}");
        let whole = (reserve(10).await, reserve(3).await).0;
        clock.set(clock.get() + 2 * unit);
        assert_eq!(refund(store, &probe, 3, whole, clock.get()).await, 10, "{algorithm}");
        let over = reserve(1).await;
        clock.set(clock.get() + 20 * unit);
        assert_eq!(refund(store, &probe, 4, over, clock.get()).await, 0, "{algorithm}");
    }
}

#[tokio::test]
async fn a_settlement_reports_the_part_that_a_bucket_gives_back() {
    let clock = VirtualClock::new();
    refund_in_part(&clock.store, &clock).await;
    refund_in_part(&MemoryStore::new(1_000), &clock).await;
}

/// A charge that joins another one of its instant can move it among the reservations, or among the chunks, of which there are
/// enough: one of them becomes final.
async fn join_at_one_instant(store: &impl Store, clock: &VirtualClock) {
    for ((_, name), is_chunk_first) in BUCKETS.into_iter().zip([true, false, true]) {
        let probe = Probe::of(name, BUCKETS[0].0, 100_000);
        let take = async |ask| {
            charge(store, probe.charge(&[name], ask, Role::Must), clock).await;
        };
        let (chunk, reserved) = (Ask::cost(1).on_lease(), Ask::cost(1).refundable());
        let hold = Ask::cost(1).refundable_as_hold();
        let (many, first, second) =
            if is_chunk_first { (reserved, chunk, reserved) } else { (chunk, hold, chunk) };
        for _ in 0..MAX_OPEN_CHARGES {
            take(many).await;
            clock.set(clock.get() + 1_000);
        }
        take(first).await;
        take(second).await;
    }
}

#[tokio::test]
async fn a_charge_that_becomes_final_by_one_of_the_same_instant_is_counted() {
    let clock = VirtualClock::new();
    join_at_one_instant(&clock.store, &clock).await;
    assert_eq!(clock.store.metrics().finalized_charges(), 3);
    let memory = MemoryStore::new(1_000);
    join_at_one_instant(&memory, &clock).await;
    assert_eq!(memory.usage().finalized_charges, 3);
}

/// A caller without a receipt gets back what is nobody's. What others have reserved or have on lease stays theirs.
async fn refund_latest(store: &impl Store, clock: &VirtualClock) {
    for (algorithm, name) in BUCKETS {
        let probe = Probe::of(name, algorithm, 100);
        let take = async |ask| {
            clock.set(clock.get() + 1_000);
            charge(store, probe.charge(&["k"], ask, Role::Must), clock).await.receipt
        };
        let used = async || {
            let charges = [probe.charge(&["k"], Ask::cost(1), Role::Must)];
            let mut outcomes = Outcomes::new();
            let request = Request { charges: &charges, mode: Mode::Peek };
            store.decide(&[request], clock.get(), &mut outcomes).await.unwrap();
            outcomes[0].status.used
        };
        take(Ask::cost(30)).await;
        let reserved = take(Ask::cost(5).refundable()).await;
        take(Ask::cost(2)).await;
        let chunk = take(Ask::cost(7).on_lease()).await;
        take(Ask::cost(4).refundable_as_hold()).await;
        let latest = |cost| Receipt::LatestOfBucket { cost };
        assert_eq!(refund(store, &probe, 1, latest(10), clock.get()).await, 10, "{algorithm}");
        assert_eq!(used().await, 38, "{algorithm}");
        assert_eq!(refund(store, &probe, 2, reserved, clock.get()).await, 5, "{algorithm}");
        assert_eq!(refund(store, &probe, 3, chunk, clock.get()).await, 7, "{algorithm}");
        assert_eq!(used().await, 26, "{algorithm}");
        // Of the rest, down to an empty bucket.
        assert_eq!(refund(store, &probe, 4, latest(50), clock.get()).await, 26, "{algorithm}");
        assert_eq!(used().await, 0, "{algorithm}");
    }
}

#[tokio::test]
async fn a_refund_without_a_receipt_leaves_the_open_charges_of_others() {
    let clock = VirtualClock::new();
    refund_latest(&clock.store, &clock).await;
    refund_latest(&MemoryStore::new(1_000), &clock).await;
}

/// A reservation that is paid from a chunk can be refunded as long as its chunk has a place: those of the newest 64 chunks, and
/// all of each of them.
#[tokio::test]
async fn reservations_paid_from_chunks_have_the_places_of_their_chunks() {
    let clock = VirtualClock::new();
    for (algorithm, name) in BUCKETS {
        let probe = Probe::of(name, algorithm, 100_000);
        let mut reserved = Vec::new();
        for node in 0..MAX_OPEN_CHARGES + 36 {
            clock.set(clock.get() + 1_000);
            let node = format!("node {node}");
            let lessee = Lessee { clock: &clock, probe: &probe, node: &node };
            let grant = lessee.ask(5, 5, 0, NONE).await;
            assert_eq!(grant.granted, 5, "{algorithm}");
            reserved.push(grant.outcome.receipt);
        }
        // Two reservations of each chunk, the oldest chunk first.
        for (place, chunk) in reserved.iter().enumerate() {
            let expected = |cost| if place < 36 { 0 } else { cost };
            for (part, cost) in [(0, 3), (1, 2)] {
                let id = u8::try_from(place * 2 + part).unwrap();
                let back = refund(&clock.store, &probe, id, chunk.part(cost), clock.get()).await;
                assert_eq!(back, expected(cost), "{algorithm}: {place}");
            }
        }
        assert_eq!(probe.used(&clock.store).await, 36 * 5, "{algorithm}");
    }
}

/// A node that does not know yet that the server's clock was set sends requests again whose calendar windows do not fit. Those
/// behind them in the same call wait for that: requests of a call are decided in order.
#[tokio::test]
async fn requests_of_a_call_keep_their_order_when_a_calendar_window_is_over() {
    let clock = VirtualClock::new();
    let bucket = Probe::of("bucket", Algorithm::LeakyBucket, 100);
    let spec = LimitSpec {
        algorithm: Algorithm::FixedWindow,
        quota: 100,
        window: Window::Calendar(Calendar::new(CalendarUnit::Day, "UTC", None).unwrap()),
        burst: None,
        slot_ttl: SECOND,
    };
    let daily = Probe { name: "daily", limit: Limit::new(spec).unwrap() };
    charge(&clock.store, daily.charge(&["k"], Ask::cost(1), Role::Must), &clock).await;
    clock.set(clock.get() + 10 * 86_400 * SECOND);
    let first = [
        daily.charge(&["k"], Ask::cost(1), Role::Must),
        bucket.charge(&["k"], Ask::cost(5), Role::Must),
    ];
    let second = [bucket.charge(&["k"], Ask::cost(1), Role::Must)];
    let requests = [&first[..], &second[..]].map(|charges| Request { charges, mode: Mode::Charge });
    let mut outcomes = Outcomes::new();
    clock.store.decide(&requests, clock.get(), &mut outcomes).await.unwrap();
    let used: Vec<u64> = outcomes.iter().map(|outcome| outcome.status.used).collect();
    assert_eq!(used, [1, 5, 6]);
}

/// The key of a probe's only counter.
fn key_of(probe: &Probe) -> String {
    format!("tg:{{k}}:{}:t:k", probe.name)
}

/// A bucket as the version before wrote it: without what is noted of undone calls.
#[tokio::test]
async fn a_bucket_of_the_version_before_is_read() {
    let clock = VirtualClock::new();
    for (algorithm, name) in BUCKETS {
        let probe = Probe::of(name, algorithm, 100);
        let ask = Ask::cost(40).refundable();
        let made = charge(&clock.store, probe.charge(&["k"], ask, Role::Must), &clock).await;
        let older = "local v = redis.call('GET', KEYS[1])
            assert(string.sub(v, 1, 4) == 'TGB3')
            redis.call('SET', KEYS[1], 'TGB2' .. string.sub(v, 5, 44) .. string.sub(v, 69), 'KEEPTTL')";
        clock.server().call(&["EVAL", older, "1", &key_of(&probe)]).unwrap().ok().unwrap();
        assert_eq!(probe.used(&clock.store).await, 40, "{algorithm}");
        assert_eq!(refund(&clock.store, &probe, 9, made.receipt, clock.get()).await, 40);
        assert_eq!(probe.used(&clock.store).await, 0, "{algorithm}");
    }
}

/// A settlement that meets a value that is not ours changes nothing, so that it can be repeated.
#[tokio::test]
async fn a_settlement_that_meets_a_foreign_value_can_be_repeated() {
    let clock = VirtualClock::new();
    for (algorithm, name) in BUCKETS {
        let probe = Probe::of(name, algorithm, 100);
        let ask = Ask::cost(40).refundable();
        let made = charge(&clock.store, probe.charge(&["k"], ask, Role::Must), &clock).await;
        let key = key_of(&probe);
        let eval = |script: &str| {
            clock.server().call(&["EVAL", script, "2", &key, "kept"]).unwrap().ok().unwrap();
        };
        eval(
            "redis.call('SET', KEYS[2], redis.call('GET', KEYS[1])) redis.call('SET', KEYS[1], 'not ours')",
        );
        let (counter, limit) = (probe.counter(&["k"]), &probe.limit);
        let change = Change::GiveBack(made.receipt);
        let adjustments = [Adjustment { counter, limit, change, closes: Receipt::Nothing }];
        let (id, remember) = (u128::from(name.as_bytes()[0]), 60 * SECOND);
        let settlement = Settlement { id, remember, is_here: false, adjustments: &adjustments };
        let refused = clock.store.settle(&settlement, clock.get()).await.unwrap_err();
        assert_eq!(refused.failure, Failure::ForeignKey, "{algorithm}");
        eval("redis.call('SET', KEYS[1], redis.call('GET', KEYS[2]))");
        let settled = clock.store.settle(&settlement, clock.get()).await.unwrap();
        assert_eq!(settled.refunded[0], 40, "{algorithm}");
        assert_eq!(probe.used(&clock.store).await, 0, "{algorithm}");
    }
}
