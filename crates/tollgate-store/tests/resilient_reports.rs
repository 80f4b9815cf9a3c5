//! What is reported to a store after an outage, and what it decides before: on a store in memory
//! that can lose some counters, and be stopped in the middle of a call.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "these are tests: a panic is how they fail"
)]

mod leased_support;
mod resilient_support;

use std::fmt::{Debug, Write as _};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use leased_support::{COSTS, World, charge, counter, failing, leased, limit};
use resilient_support::Fussy;
use tollgate_core::{Algorithm, Ask, Limit, Nanos, Outcome, Receipt, SECOND, SlotId};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{
    Charge, Counter, Decided, Failure, GiveBack, Mode, OnFailure, Outcomes, Request, Role, Store,
    StoreError,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const LONG: Nanos = 30 * 24 * 3600 * SECOND;

fn node(store: &Fussy) -> Resilient<Fussy> {
    Resilient::new(store.clone(), ResilientOptions::new("a".to_owned()))
}

fn local<'a>(key: &'a [&'a str]) -> Counter<'a> {
    counter("rule", key, failing(OnFailure::Local))
}

async fn one(store: &impl Store, key: Counter<'_>, limit: &Limit, world: &World) -> bool {
    let outcome = charge(store, key, limit, 1, world.now()).await.expect("it always answers");
    outcome.examination.admits()
}

async fn admitted(
    store: &impl Store,
    key: Counter<'_>,
    limit: &Limit,
    tries: usize,
    world: &World,
) -> u64 {
    let mut admitted = 0;
    for _ in 0..tries {
        admitted += u64::from(one(store, key, limit, world).await);
    }
    admitted
}

/// However often the store is lost: the limit is handed out once.
#[tokio::test]
async fn outages_one_after_another_admit_the_limit_once() {
    for algorithm in COSTS {
        for (before, tries, looks) in
            [(2, 150, false), (2, 30, false), (0, 150, true), (2, 30, true), (100, 5, false)]
        {
            let world = World::new();
            let store = node(&Fussy::new(&world));
            let limit = limit(algorithm, 100, LONG);
            let mut sum = admitted(&store, local(&["k"]), &limit, before, &world).await;
            for _ in 0..6 {
                world.set_down(true);
                sum += admitted(&store, local(&["k"]), &limit, tries, &world).await;
                world.set_down(false);
                assert!(store.heal(world.now()).await);
                assert_eq!(world.status(local(&["k"]), &limit).used, sum, "{algorithm}");
                if looks {
                    let ask = Ask::cost(1);
                    let counter = local(&["k"]);
                    let charges = [Charge { counter, limit: &limit, ask, role: Role::Must }];
                    let request = Request { charges: &charges, mode: Mode::Peek };
                    let mut outcomes = Outcomes::new();
                    store.decide(&[request], world.now(), &mut outcomes).await.expect("answers");
                }
            }
            assert_eq!(sum, 100, "{algorithm}: {before} before, {tries} tries, looks: {looks}");
        }
    }
}

/// What is known of a counter outlives outages in which nothing was admitted on it, or nobody asked.
#[tokio::test]
async fn an_outage_forgets_nothing_of_counters_that_were_not_reported() {
    let world = World::new();
    let store = node(&Fussy::new(&world));
    let limit = limit(Algorithm::FixedWindow, 10, LONG);
    for key in ["full", "idle"] {
        assert_eq!(admitted(&store, local(&[key]), &limit, 20, &world).await, 10);
    }
    for _ in 0..3 {
        world.set_down(true);
        assert_eq!(admitted(&store, local(&["full"]), &limit, 5, &world).await, 0);
        assert!(store.degraded_since().is_some());
        world.set_down(false);
        assert!(store.heal(world.now()).await);
    }
    world.set_down(true);
    assert_eq!(admitted(&store, local(&["idle"]), &limit, 5, &world).await, 0);
}

/// The store answers again before anything was reported to it: it must not admit everything once
/// more.
#[tokio::test]
async fn a_decision_names_the_store_first() {
    for algorithm in COSTS {
        let world = World::new();
        let fussy = Fussy::new(&world);
        let store = node(&fussy);
        let limit = limit(algorithm, 100, LONG);
        let mut sum = admitted(&store, local(&["k"]), &limit, 2, &world).await;
        for tries in [30, 30, 500] {
            world.set_down(true);
            sum += admitted(&store, local(&["k"]), &limit, tries, &world).await;
            world.set_down(false);
            sum += admitted(&store, local(&["k"]), &limit, 3, &world).await;
            assert_eq!(store.waiting_reports(), 0, "{algorithm}");
            assert_eq!(world.status(local(&["k"]), &limit).used, sum, "{algorithm}");
        }
        assert_eq!(sum, 100, "{algorithm}");
        fussy.0.charges.lock().expect("sound").clear();
        one(&store, local(&["k"]), &limit, &world).await;
        let calls = fussy.0.charges.lock().expect("sound").clone();
        assert_eq!(calls.len(), 1, "{algorithm}: once reported, nothing comes on top: {calls:?}");
    }
}

/// A store that is still away is asked once, and not charged if it is only slow.
#[tokio::test]
async fn a_report_that_fails_is_no_second_wait() {
    let world = World::new();
    let fussy = Fussy::new(&world);
    let store = node(&fussy);
    let limit = limit(Algorithm::TokenBucket, 100, LONG);
    world.set_down(true);
    assert!(one(&store, local(&["k"]), &limit, &world).await);
    for _ in 0..5 {
        fussy.0.charges.lock().expect("sound").clear();
        assert!(one(&store, local(&["k"]), &limit, &world).await);
        assert_eq!(*fussy.0.charges.lock().expect("sound"), [Mode::Peek]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_do_not_pass_a_report_on_its_way() {
    for round in 0..20 {
        let world = World::new();
        let fussy = Fussy::new(&world);
        let store = Arc::new(node(&fussy));
        let limit = Arc::new(limit(Algorithm::FixedWindow, 100, LONG));
        world.set_down(true);
        assert_eq!(admitted(&*store, local(&["k"]), &limit, 90, &world).await, 90);
        let gate = fussy.hold(Mode::Owe);
        world.set_down(false);
        let tasks: Vec<_> = (0..64)
            .map(|_| {
                let (store, limit) = (Arc::clone(&store), Arc::clone(&limit));
                let world = Arc::clone(&world);
                tokio::spawn(async move { one(&*store, local(&["k"]), &limit, &world).await })
            })
            .collect();
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        gate.add_permits(1);
        let mut sum = 0;
        for task in tasks {
            sum += u64::from(task.await.expect("no panic"));
        }
        assert_eq!(sum, 10);
        assert_eq!(world.status(local(&["k"]), &limit).used, 100);
    }
}

/// What is admitted here while a report is under way is sent with the next one, and if the task
/// that sends a report is cancelled, another one sends it.
#[tokio::test]
async fn nothing_is_lost_while_a_report_is_on_its_way() {
    let world = World::new();
    let fussy = Fussy::new(&world);
    let store = node(&fussy);
    let limit = limit(Algorithm::FixedWindow, 100, LONG);
    let late = fussy.hold(Mode::Charge);
    let first = one(&store, local(&["k"]), &limit, &world);
    tokio::pin!(first);
    assert!(futures(&mut first).await.is_none(), "it is held up");
    world.set_down(true);
    assert!(one(&store, local(&["k"]), &limit, &world).await);
    world.set_down(false);
    let gate = fussy.hold(Mode::Owe);
    {
        let heal = store.heal(world.now());
        tokio::pin!(heal);
        assert!(futures(&mut heal).await.is_none(), "its report is held up");
        // The one that was asked before all that fails now.
        fussy.fail("k", Some(Failure::Timeout));
        late.add_permits(1);
        assert!(first.await);
        fussy.fail("k", None);
        gate.add_permits(1);
        heal.await;
    }
    assert_eq!(world.status(local(&["k"]), &limit).used, 1);
    assert_eq!(store.waiting_reports(), 1, "the other one");
    let _gate = fussy.hold(Mode::Owe);
    {
        let heal = store.heal(world.now());
        tokio::pin!(heal);
        assert!(futures(&mut heal).await.is_none(), "held up, and dropped");
    }
    assert!(store.heal(world.now()).await);
    assert_eq!(world.status(local(&["k"]), &limit).used, 2);
    assert_eq!(store.waiting_reports(), 0);
}

/// Lets a future run as far as it comes.
async fn futures<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    for _ in 0..50 {
        let mut future = std::pin::Pin::new(&mut *future);
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx)));
        if let std::task::Poll::Ready(output) = polled.await {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// A counter that never comes back keeps nobody else's reports, and is not taken for the store.
#[tokio::test]
async fn what_cannot_heal_does_not_stop_others() {
    for failure in [Failure::ForeignKey, Failure::Timeout] {
        let world = World::new();
        let fussy = Fussy::new(&world);
        let store = node(&fussy);
        let limit = limit(Algorithm::FixedWindow, 10, LONG);
        fussy.fail("bad", Some(failure));
        assert!(one(&store, local(&["bad"]), &limit, &world).await, "decided here");
        let is_store = failure == Failure::Timeout;
        assert_eq!(store.degraded_since().is_some(), is_store);
        for outage in 1..=3 {
            world.set_down(true);
            for key in ["a", "b"] {
                assert!(one(&store, local(&[key]), &limit, &world).await);
            }
            assert!(store.degraded_since().is_some());
            assert!(!store.heal(world.now()).await);
            world.set_down(false);
            assert!(!store.heal(world.now()).await, "not everything is back");
            assert_eq!(store.waiting_reports(), 1, "that of the bad one");
            for key in ["a", "b"] {
                assert_eq!(world.status(local(&[key]), &limit).used, outage, "{failure:?}");
            }
            assert_eq!(store.degraded_since().is_some(), is_store, "{failure:?}");
        }
        let outages = store.figures().outages.load(Ordering::Relaxed);
        assert_eq!(outages, if is_store { 1 } else { 3 }, "{failure:?}");
        assert_eq!(admitted(&store, local(&["bad"]), &limit, 20, &world).await, 9, "{failure:?}");
        fussy.fail("bad", None);
        assert!(store.heal(world.now()).await);
        assert_eq!(world.status(local(&["bad"]), &limit).used, 10, "{failure:?}");
        assert_eq!(store.degraded_since(), None);
    }
}

async fn call(
    store: &impl Store,
    keys: &[[&str; 1]],
    limit: &Limit,
    home: tollgate_store::Home,
    world: &World,
) -> (Result<Decided, StoreError>, Vec<Outcome>) {
    let charges: Vec<[Charge<'_>; 1]> = keys
        .iter()
        .map(|key| {
            let counter = counter("rule", key, home);
            [Charge { counter, limit, ask: Ask::cost(1), role: Role::Must }]
        })
        .collect();
    let requests: Vec<Request<'_>> =
        charges.iter().map(|charges| Request { charges, mode: Mode::Charge }).collect();
    let mut outcomes = Outcomes::new();
    let decided = store.decide(&requests, world.now(), &mut outcomes).await;
    (decided, outcomes.to_vec())
}

/// One bad key of a call is no reason to decide the others without the store, also once it waits to be
/// reported.
#[tokio::test]
async fn one_bad_key_of_a_call() {
    let names: Vec<String> = (0..64).map(|number| format!("key {number}")).collect();
    let keys: Vec<[&str; 1]> = names.iter().map(|name| [name.as_str()]).collect();
    let limit = limit(Algorithm::FixedWindow, 10, LONG);
    let world = World::new();
    let fussy = Fussy::new(&world);
    let store = node(&fussy);
    fussy.fail("key 7", Some(Failure::ForeignKey));
    for _ in 0..3 {
        let (decided, outcomes) =
            call(&store, &keys, &limit, failing(OnFailure::Local), &world).await;
        let decided = decided.expect("it always answers");
        assert_eq!(outcomes.len(), 64);
        assert!(outcomes.iter().all(|outcome| outcome.examination.admits()));
        for place in 0..64 {
            let failure = decided.degraded_of(place).map(|degraded| degraded.failure);
            assert_eq!(failure, (place == 7).then_some(Failure::ForeignKey), "{place}");
        }
    }
    for key in &keys {
        let used = world.status(local(key), &limit).used;
        assert_eq!(used, if key[0] == "key 7" { 0 } else { 3 }, "{key:?}");
    }
    // A store that is away is asked once, and not once for each.
    world.set_down(true);
    fussy.fail("key 7", None);
    fussy.0.charges.lock().expect("sound").clear();
    let (decided, _) = call(&store, &keys, &limit, failing(OnFailure::Local), &world).await;
    assert!((0..64).all(|place| decided.as_ref().expect("answers").degraded_of(place).is_some()));
    let calls = fussy.0.charges.lock().expect("sound").len();
    assert_eq!(calls, 2, "the report of one, and all others together");
}

/// What a call spent on leases before the store failed for another of its requests is not charged
/// again.
#[tokio::test]
async fn a_call_that_fails_half_way_keeps_what_it_has() {
    for failure in [Failure::ForeignKey, Failure::Timeout] {
        let world = World::new();
        let fussy = Fussy::new(&world);
        let leases = Leased::new(fussy.clone(), LeaseOptions::new("a".to_owned()));
        let store = Resilient::new(leases, ResilientOptions::new("a".to_owned()));
        let limit = limit(Algorithm::FixedWindow, 100, LONG);
        let home = leased(200_000);
        let keys = [["good"], ["bad"], ["late"]];
        for _ in 0..3 {
            call(&store, &keys, &limit, home, &world).await.0.expect("answers");
        }
        store.inner().return_all(world.now()).await;
        fussy.fail("bad", Some(failure));
        for _ in 0..4 {
            world.advance(SECOND / 10);
            let (decided, outcomes) = call(&store, &keys, &limit, home, &world).await;
            let decided = decided.expect("it always answers");
            assert!(outcomes.iter().all(|outcome| outcome.examination.admits()));
            assert_eq!(decided.degraded_of(0), None, "{failure:?}");
            assert!(decided.degraded_of(1).is_some(), "{failure:?}");
            if failure == Failure::ForeignKey {
                assert_eq!(decided.degraded_of(2), None, "it was tried nevertheless");
            }
        }
        fussy.fail("bad", None);
        assert!(store.heal(world.now()).await);
        store.inner().return_all(world.now()).await;
        for key in &keys {
            let used = world.status(counter("rule", key, home), &limit).used;
            assert_eq!(used, 7, "{failure:?}: {key:?}");
        }
    }
}

/// Takes so many slots, numbered from one.
async fn take_slots(
    store: &impl Store,
    world: &World,
    key: Counter<'_>,
    limit: &Limit,
    most: u128,
) {
    for id in 1..=most {
        let ask = Ask::slot(SlotId(id));
        let charges = [Charge { counter: key, limit, ask, role: Role::Must }];
        let request = Request { charges: &charges, mode: Mode::Charge };
        store.decide(&[request], world.now(), &mut Outcomes::new()).await.expect("answers");
    }
}

/// If healing is cancelled before all slots are released, the rest is not forgotten.
#[tokio::test]
async fn a_healing_that_is_given_up_forgets_no_release() {
    let world = World::new();
    let fussy = Fussy::new(&world);
    let store = node(&fussy);
    let limit = limit(Algorithm::Concurrency, 10, LONG);
    let key = local(&["k"]);
    take_slots(&store, &world, key, &limit, 5).await;
    world.set_down(true);
    for id in 1..=5 {
        assert_eq!(store.release(&key, SlotId(id), world.now()).await, Ok(true));
    }
    world.set_down(false);
    for polls in 1..8 {
        let heal = store.heal(world.now());
        tokio::pin!(heal);
        for _ in 0..polls {
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(heal.as_mut().poll(cx)));
            if polled.await.is_ready() {
                break;
            }
        }
    }
    assert!(store.heal(world.now()).await);
    assert_eq!(world.status(key, &limit).used, 0);
}

/// A request that ends while the store does not answer gives its slot back all the same, when it is back.
#[tokio::test]
async fn a_slot_that_is_given_back_in_vain_is_released_later() {
    let world = World::new();
    let fussy = Fussy::new(&world);
    let store = node(&fussy);
    let limit = limit(Algorithm::Concurrency, 10, LONG);
    let key = local(&["k"]);
    take_slots(&store, &world, key, &limit, 3).await;
    world.set_down(true);
    for id in 1..=2 {
        let receipt = Receipt::Slot(SlotId(id));
        let returns = [GiveBack { counter: key, limit: &limit, receipt }];
        assert_eq!(store.give_back(&returns, world.now()).await, Ok(()));
    }
    world.set_down(false);
    assert_eq!(world.status(key, &limit).used, 3, "it does not know yet");
    assert!(store.heal(world.now()).await);
    assert_eq!(world.status(key, &limit).used, 1, "two are back, and the third is held");
}

/// Keeps what our own code says.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("a string takes it");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tollgate_store")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().expect("sound").push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// One log line when the store is lost and one when it is back, whatever a bad key does meanwhile.
#[tokio::test]
async fn every_change_is_reported_once() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let said = || std::mem::take(&mut *lines.0.lock().expect("sound"));
    let world = World::new();
    let fussy = Fussy::new(&world);
    let store = node(&fussy);
    let limit = limit(Algorithm::FixedWindow, 1_000, LONG);
    fussy.fail("bad", Some(Failure::ForeignKey));
    for _ in 0..5 {
        one(&store, local(&["bad"]), &limit, &world).await;
        store.heal(world.now()).await;
    }
    let logged = said();
    assert!(logged.len() == 1 && logged[0].contains("some counters"), "{logged:?}");
    for _ in 0..3 {
        fussy.fail("slow", Some(Failure::Timeout));
        one(&store, local(&["slow"]), &limit, &world).await;
        world.set_down(true);
        for _ in 0..10 {
            one(&store, local(&["k"]), &limit, &world).await;
            store.heal(world.now()).await;
        }
        let logged = said();
        assert!(logged.len() == 1 && logged[0].starts_with("WARN"), "{logged:?}");
        assert!(logged[0].contains("failure=\"timeout\"") && logged[0].contains("rule=\"rule\""));
        world.set_down(false);
        fussy.fail("slow", None);
        for _ in 0..5 {
            store.heal(world.now()).await;
            one(&store, local(&["bad"]), &limit, &world).await;
        }
        let logged = said();
        assert!(logged.len() == 1 && logged[0].starts_with("INFO"), "{logged:?}");
        assert!(logged[0].contains("timeout, connection"), "{logged:?}");
    }
    fussy.fail("bad", None);
    assert!(store.heal(world.now()).await);
    let logged = said();
    assert!(logged.len() == 1 && logged[0].contains("can be decided"), "{logged:?}");
}
