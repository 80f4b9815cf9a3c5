use std::collections::HashMap;
use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;

use super::line::{Entered, Line, Ticket};
use super::{Busy, Gate, LineOptions, Share, Wants};

fn options(capacity: usize, max_waiting: usize) -> LineOptions {
    LineOptions { capacity, max_waiting, shares: Vec::new(), strict_from_percent: 80 }
}

fn wants(tenant: &str, weight: u32) -> Wants<'_> {
    Wants { share: 0, tenant, weight, cost: 1 }
}

/// Serves so many of those who wait, one place after the other, and says how many of each.
fn serve<'t>(line: &mut Line<&'t str>, times: usize) -> HashMap<&'t str, usize> {
    let mut served = HashMap::new();
    for _ in 0..times {
        line.release(0);
        let Some((_, tenant)) = line.next() else { break };
        *served.entry(tenant).or_default() += 1;
    }
    served
}

#[test]
fn those_who_wait_are_served_by_their_weights() {
    let mut line = Line::new(options(4, 10_000));
    for _ in 0..4 {
        assert_eq!(line.enter(&wants("first", 1), "first"), Entered::Served(0));
    }
    for _ in 0..3_000 {
        line.enter(&wants("a", 3), "a");
    }
    for _ in 0..1_000 {
        line.enter(&wants("b", 1), "b");
    }
    let served = serve(&mut line, 2_000);
    assert_eq!((served["a"], served["b"]), (1_500, 500));
}

#[test]
fn a_tenant_that_sends_ten_times_as_much_gets_no_more() {
    let mut line = Line::new(options(1, 10_000));
    line.enter(&wants("a", 1), "a");
    let mut served: HashMap<&str, usize> = HashMap::new();
    for _ in 0..2_000 {
        for _ in 0..4 {
            line.enter(&wants("a", 1), "a");
        }
        line.enter(&wants("b", 1), "b");
        line.release(0);
        *served.entry(line.next().unwrap().1).or_default() += 1;
    }
    assert!(served["a"].abs_diff(served["b"]) <= 1, "{served:?}");
}

#[test]
fn what_an_idle_tenant_leaves_is_used_and_given_back_at_once() {
    let mut line = Line::new(options(2, 10_000));
    for _ in 0..1_002 {
        line.enter(&wants("busy", 1), "busy");
    }
    assert_eq!(serve(&mut line, 500)["busy"], 500);
    for _ in 0..50 {
        line.enter(&wants("idle", 1), "idle");
    }
    let served = serve(&mut line, 100);
    assert!(served["idle"].abs_diff(50) <= 1, "neither behind nor ahead: {served:?}");
}

#[test]
fn costs_are_what_is_shared() {
    let mut line = Line::new(options(1, 10_000));
    line.enter(&wants("first", 1), "first");
    for _ in 0..1_000 {
        line.enter(&Wants { cost: 400, ..wants("long", 1) }, "long");
        line.enter(&Wants { cost: 100, ..wants("short", 1) }, "short");
    }
    let served = serve(&mut line, 1_000);
    assert_eq!((served["long"], served["short"]), (200, 800));
}

#[test]
fn a_flood_fills_only_its_own_part_of_the_line() {
    let mut line = Line::new(options(1, 10));
    line.enter(&wants("flood", 1), "flood");
    for _ in 0..10 {
        assert!(matches!(line.enter(&wants("flood", 1), "flood"), Entered::Waits(_)));
    }
    assert_eq!(line.enter(&wants("flood", 1), "flood"), Entered::Full);
    for _ in 0..5 {
        let entered = line.enter(&wants("calm", 1), "calm");
        assert!(matches!(entered, Entered::WaitsInsteadOf(_, "flood")), "{entered:?}");
    }
    assert_eq!(line.enter(&wants("calm", 1), "calm"), Entered::Full, "it has its half");
    assert_eq!(line.waiting(), 10);
}

#[test]
fn above_the_mark_nobody_has_more_than_its_share() {
    let shares = vec![
        Share { percent: 50, may_borrow: true },
        Share { percent: 30, may_borrow: false },
        Share { percent: 20, may_borrow: false },
    ];
    let options = LineOptions { capacity: 10, max_waiting: 100, shares, strict_from_percent: 80 };
    let mut line = Line::new(options);
    let served = |line: &mut Line<&str>, share| {
        (0..20).take_while(|_| line.serve(&Wants { share, ..wants("t", 1) }).is_some()).count()
    };
    assert_eq!(served(&mut line, 2), 2, "what has no leave to borrow stays within its share");
    assert_eq!(served(&mut line, 0), 6, "one that may borrow has what is idle, up to the mark");
    assert_eq!(served(&mut line, 1), 2, "the rest is for those who are below their share");
    assert_eq!(line.held(), 10);
    let third = line.enter(&Wants { share: 1, ..wants("t", 1) }, "partner");
    assert!(matches!(third, Entered::Waits(_)));
    let borrower = line.enter(&Wants { share: 0, ..wants("t", 1) }, "internal");
    assert!(matches!(borrower, Entered::Waits(_)));
    line.release(0);
    assert_eq!(line.next(), Some((1, "partner")), "what was borrowed goes back first");
    assert_eq!(line.next(), None);
}

#[derive(Debug, Clone)]
enum Step {
    Enter { share: usize, tenant: u8, weight: u32, cost: u64 },
    Leave(usize),
    Release(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3usize, 0..6u8, 1..5u32, 1..50u64)
            .prop_map(|(share, tenant, weight, cost)| Step::Enter { share, tenant, weight, cost }),
        1 => any::<usize>().prop_map(Step::Leave),
        3 => any::<usize>().prop_map(Step::Release),
    ];
    proptest::collection::vec(step, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever happens, places and the line stay within their bounds, nobody is lost or served twice, and
    /// nobody waits while it could have a place.
    #[test]
    fn nobody_is_lost(steps in steps(), capacity in 1..6usize, most in 0..8usize, single: bool) {
        let share = |percent, may_borrow| Share { percent, may_borrow };
        let shares = if single { Vec::new() } else {
            vec![share(60, true), share(40, false), share(20, true)]
        };
        let options = LineOptions { capacity, max_waiting: most, shares, strict_from_percent: 80 };
        let mut line: Line<u64> = Line::new(options);
        let mut waiting: HashMap<u64, Ticket> = HashMap::new();
        let mut held: Vec<usize> = Vec::new();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Enter { share, tenant, weight, cost } => {
                    next += 1;
                    let tenant = tenant.to_string();
                    match line.enter(&Wants { share, tenant: &tenant, weight, cost }, next) {
                        Entered::Served(share) => held.push(share),
                        Entered::Waits(ticket) => { waiting.insert(next, ticket); }
                        Entered::WaitsInsteadOf(ticket, last) => {
                            prop_assert!(waiting.remove(&last).is_some());
                            waiting.insert(next, ticket);
                        }
                        Entered::Full => prop_assert_eq!(waiting.len(), most),
                    }
                }
                Step::Leave(which) => {
                    let mut all: Vec<_> = waiting.keys().copied().collect();
                    all.sort_unstable();
                    if let Some(item) = all.get(which % all.len().max(1)) {
                        let ticket = waiting.remove(item).unwrap();
                        prop_assert_eq!(line.leave(ticket), Some(*item));
                        prop_assert_eq!(line.leave(ticket), None);
                    }
                }
                Step::Release(which) => {
                    if !held.is_empty() {
                        let share = held.swap_remove(which % held.len());
                        line.release(share);
                    }
                    while let Some((share, item)) = line.next() {
                        prop_assert!(waiting.remove(&item).is_some());
                        held.push(share);
                    }
                }
            }
            prop_assert_eq!(line.held(), held.len());
            prop_assert_eq!(line.waiting(), waiting.len());
            prop_assert!(held.len() <= capacity && waiting.len() <= most);
            if single && held.len() < capacity {
                prop_assert!(waiting.is_empty());
            }
        }
    }
}

#[tokio::test]
async fn who_goes_away_leaves_the_line() {
    let gate = Gate::new(options(1, 10));
    let place = gate.enter(&wants("a", 1), Duration::from_secs(60)).await.unwrap();
    {
        let mut gone = pin!(async { gate.enter(&wants("b", 1), Duration::from_secs(60)).await });
        let polled = gone.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending));
        assert_eq!(gate.load(), (1, 1));
    }
    assert_eq!(gate.load(), (1, 0));
    drop(place);
    assert_eq!(gate.load(), (0, 0));
}

#[tokio::test]
async fn a_place_given_to_someone_who_has_just_gone_goes_on() {
    let gate = Gate::new(options(1, 10));
    let place = gate.enter(&wants("a", 1), Duration::from_secs(60)).await.unwrap();
    let mut stays = Box::pin(async { gate.enter(&wants("b", 1), Duration::from_secs(60)).await });
    {
        let mut gone = pin!(async { gate.enter(&wants("c", 1), Duration::from_secs(60)).await });
        for waiter in [gone.as_mut() as std::pin::Pin<&mut dyn Future<Output = _>>, stays.as_mut()]
        {
            let polled = waiter.poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending));
        }
        // It is given to the first, who does not look any more.
        drop(place);
        assert_eq!(gate.load(), (1, 1));
    }
    let place = stays.as_mut().await.unwrap();
    assert_eq!(gate.load(), (1, 0));
    drop(place);
    assert_eq!(gate.load(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_it_may() {
    let gate = Gate::new(options(1, 1));
    let _place = gate.try_enter(&wants("a", 1)).unwrap();
    assert!(gate.try_enter(&wants("a", 1)).is_none());
    let late = gate.enter(&wants("a", 1), Duration::from_secs(5)).await;
    assert_eq!(late.unwrap_err(), Busy::TooLong);
    let mut waits = Box::pin(async { gate.enter(&wants("a", 1), Duration::from_secs(9)).await });
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(gate.enter(&wants("a", 1), Duration::from_secs(5)).await.unwrap_err(), Busy::Full);
    assert_eq!(gate.load(), (1, 1));
}
