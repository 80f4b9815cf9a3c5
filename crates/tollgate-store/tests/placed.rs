//! Several stores as one: a request over all of them is charged everywhere or nowhere.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Algorithm, Ask, Limit, LimitSpec, Nanos, SECOND, Slot, SlotId, Window};
use tollgate_store::conformance::Harness;
use tollgate_store::placed::{Member, Placed};
use tollgate_store::{
    Adjusted, Charge, Consistency, Counter, Decided, GiveBack, Home, Membership, MemoryStore, Mode,
    Outcomes, RecordAnswer, RecordAsk, Request, Role, Settlement, Store, StoreError, passes,
};

/// A store of its own that three nodes share, whose clock is ahead of ours.
struct Elsewhere(MemoryStore, Nanos);

impl Store for Elsewhere {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        self.0.decide(requests, now + self.1, outcomes).await?;
        Ok(Decided::at(now + self.1))
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        self.0.give_back(returns, now + self.1).await
    }

    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        self.0.reset(counters, now + self.1).await
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.0.renew(counter, limit, slot, now + self.1).await
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.0.release(counter, slot, now + self.1).await
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        self.0.slots(counter, now + self.1).await
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        self.0.settle(settlement, now + self.1).await
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        self.0.record(id, ask, now + self.1).await
    }
}

impl Member for Elsewhere {
    fn membership(&self) -> Membership {
        Membership { nodes: 3, rank: 1 }
    }
}

fn placed(ahead: Nanos) -> Placed<Elsewhere> {
    let shared = (0..2).map(|_| Elsewhere(MemoryStore::new(10_000), ahead)).collect();
    Placed::new(MemoryStore::new(10_000), shared, vec!["one".to_owned(), "two".to_owned()])
}

struct Virtual {
    store: Placed<Elsewhere>,
    now: AtomicU64,
}

impl Harness for Virtual {
    type Store = Placed<Elsewhere>;

    fn store(&self) -> &Self::Store {
        &self.store
    }

    async fn now(&self) -> Nanos {
        self.now.load(Ordering::SeqCst)
    }

    async fn advance(&self, by: Nanos) {
        self.now.fetch_add(by, Ordering::SeqCst);
    }
}

fn limit(algorithm: Algorithm, quota: u64) -> Limit {
    let window = Window::Every(3600 * SECOND);
    Limit::new(LimitSpec { algorithm, quota, window, burst: None, slot_ttl: SECOND }).unwrap()
}

fn homes() -> [Home; 3] {
    let local = Home { consistency: Consistency::Local, ..Home::default() };
    [Home::default(), Home { store: 1, ..Home::default() }, local]
}

fn counter<'a>(key: &'a [&'a str], home: Home) -> Counter<'a> {
    Counter { rule_id: "rule", tag: "tag", salt: 1 + u128::from(home.store), key, home }
}

async fn decide(
    store: &Placed<Elsewhere>,
    mode: Mode,
    on: &[(Limit, Role, u64)],
) -> (bool, Outcomes) {
    let homes = homes();
    let charges: Vec<Charge<'_>> = on
        .iter()
        .zip(homes)
        .map(|((limit, role, cost), home)| Charge {
            counter: counter(&["k"], home),
            limit,
            ask: Ask::cost(*cost),
            role: *role,
        })
        .collect();
    let mut outcomes = Outcomes::new();
    let request = Request { charges: &charges, mode };
    let decided = store.decide(&[request], 1_000 * SECOND, &mut outcomes).await.unwrap();
    assert_eq!(decided.of(0), 1_007 * SECOND, "each part by its own clock");
    assert_eq!(decided.of(2), 1_000 * SECOND);
    (passes(&charges, &outcomes), outcomes)
}

#[tokio::test]
async fn all_or_none_over_every_store() {
    for algorithm in Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Concurrency) {
        let algorithm =
            if algorithm == Algorithm::Gcra { Algorithm::TokenBucket } else { algorithm };
        // The node counts alone on a third: 10 of 30.
        for (tight, quotas) in [(0, [10, 90, 90]), (1, [90, 10, 90]), (2, [90, 90, 30])] {
            let store = placed(7 * SECOND);
            let limits = quotas.map(|quota| limit(algorithm, quota));
            let on = |cost| limits.clone().map(|limit| (limit, Role::Must, cost));
            assert!(decide(&store, Mode::Charge, &on(7)).await.0, "{algorithm} {tight}");
            let (passed, outcomes) = decide(&store, Mode::Charge, &on(4)).await;
            assert!(!passed, "{algorithm}: store {tight} has room for 3");
            let used: Vec<u64> = outcomes.iter().map(|outcome| outcome.status.used).collect();
            assert_eq!(used, [7, 7, 7], "{algorithm}: as if nothing had been held");
            let (_, peeked) = decide(&store, Mode::Peek, &on(1)).await;
            let used: Vec<u64> = peeked.iter().map(|outcome| outcome.status.used).collect();
            assert_eq!(used, [7, 7, 7], "{algorithm}: what was held is given back");
            assert!(decide(&store, Mode::Charge, &on(3)).await.0);
            assert!(!decide(&store, Mode::Charge, &on(1)).await.0);
        }
    }
}

#[tokio::test]
async fn groups_and_watches_over_every_store() {
    let store = placed(7 * SECOND);
    let limits = [1, 2, 9].map(|quota| limit(Algorithm::FixedWindow, quota));
    let roles = [Role::AnyOf, Role::AnyOf, Role::Watch];
    let on: Vec<_> = limits.into_iter().zip(roles).map(|(limit, role)| (limit, role, 1)).collect();
    let used = |outcomes: &Outcomes| outcomes.iter().map(|o| o.status.used).collect::<Vec<_>>();
    let (passed, outcomes) = decide(&store, Mode::Charge, &on).await;
    assert_eq!((passed, used(&outcomes)), (true, vec![1, 1, 1]));
    let (passed, outcomes) = decide(&store, Mode::Charge, &on).await;
    assert_eq!((passed, used(&outcomes)), (true, vec![1, 2, 2]));
    let (passed, outcomes) = decide(&store, Mode::Charge, &on).await;
    assert_eq!((passed, used(&outcomes)), (false, vec![1, 2, 2]), "the group has no room");
    let (_, outcomes) = decide(&store, Mode::Peek, &on).await;
    assert_eq!(used(&outcomes), [1, 2, 2], "nor is the watched one charged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_over_every_store_admit_no_more_than_the_tightest() {
    let store = Arc::new(placed(7 * SECOND));
    let limits = [80, 60, 300].map(|quota| limit(Algorithm::SlidingWindowLog, quota));
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let (store, limits) = (Arc::clone(&store), limits.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..10 {
                    let on = limits.clone().map(|limit| (limit, Role::Must, 1));
                    admitted += u64::from(decide(&store, Mode::Charge, &on).await.0);
                    tokio::task::yield_now().await;
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert!(admitted <= 60, "{admitted} of 60");
    let on = limits.map(|limit| (limit, Role::Must, 1));
    let (_, outcomes) = decide(&store, Mode::Peek, &on).await;
    for outcome in outcomes {
        assert_eq!(outcome.status.used, admitted, "every store counts what was admitted");
    }
}

async fn empty() -> Virtual {
    Virtual { store: placed(0), now: AtomicU64::new(1_794_740_000 * SECOND) }
}

tollgate_store::conformance_tests!(empty);
