//! Several charges and several requests at once.

use std::sync::Arc;

use tollgate_core::{Algorithm, Ask, Receipt, SlotId};

use super::Harness;
use super::meter::{LONG, Meter, QUOTA, decide, home, limit, salt};
use crate::{Charge, Counter, Mode, Outcomes, Request, Role, Store};

/// Three counters of which one is full: nothing is charged, wherever the full one stands.
pub async fn all_or_none_in_any_order<H: Harness>(harness: &Arc<H>) {
    let fixed = limit(Algorithm::FixedWindow, QUOTA, LONG);
    let bucket = limit(Algorithm::TokenBucket, QUOTA, LONG);
    let mut first = Meter::new("order a", &["tenant"], fixed.clone());
    let mut second = Meter::new("order b", &["tenant", "user"], bucket);
    let mut full = Meter::new("order c", &["model"], fixed);
    full.fill(&**harness, QUOTA).await;
    for place in 0..3 {
        let ask = Ask::cost(2);
        let mut charges = vec![(&mut first, ask, Role::Must), (&mut second, ask, Role::Must)];
        charges.insert(place, (&mut full, Ask::cost(1), Role::Must));
        let decided = decide(&**harness, Mode::Charge, &mut charges).await;
        assert!(!decided.passes, "the full one stands at {place}");
        drop(charges);
        assert_eq!(first.used(&**harness).await, 0, "the full one stands at {place}");
        assert_eq!(second.used(&**harness).await, 0, "the full one stands at {place}");
        assert_eq!(full.used(&**harness).await, QUOTA, "the full one stands at {place}");
    }
    let both =
        &mut [(&mut first, Ask::cost(2), Role::Must), (&mut second, Ask::cost(3), Role::Must)];
    assert!(decide(&**harness, Mode::Charge, both).await.passes);
    assert_eq!((first.used(&**harness).await, second.used(&**harness).await), (2, 3));
}

/// Every pair of algorithms, the second one full, in both orders.
pub async fn all_or_none_over_every_algorithm<H: Harness>(harness: &Arc<H>) {
    for roomy in Algorithm::ALL {
        for crowded in Algorithm::ALL {
            let case = format!("pair {roomy} {crowded}");
            let mut room = Meter::new(&case, &["room"], limit(roomy, QUOTA, LONG));
            let mut full = Meter::new(&case, &["full"], limit(crowded, QUOTA, LONG));
            full.fill(&**harness, QUOTA).await;
            for turned in [false, true] {
                let (mine, other) = (room.ask(1), full.ask(1));
                let mut charges = [(&mut room, mine, Role::Must), (&mut full, other, Role::Must)];
                if turned {
                    charges.reverse();
                }
                assert!(!decide(&**harness, Mode::Charge, &mut charges).await.passes, "{case}");
                assert_eq!(room.used(&**harness).await, 0, "{case}, turned: {turned}");
                assert_eq!(full.used(&**harness).await, QUOTA, "{case}, turned: {turned}");
            }
        }
    }
}

/// A group refuses only when every member is full; those with room pay.
pub async fn any_of_charges_those_that_fit<H: Harness>(harness: &Arc<H>) {
    let sized = |name: &str, quota| {
        Meter::new("any of", &[name], limit(Algorithm::FixedWindow, quota, LONG))
    };
    let (mut one, mut two, mut must) = (sized("one", 1), sized("two", 2), sized("must", 4));
    for (passes, used) in [(true, (1, 1, 1)), (true, (1, 2, 2)), (false, (1, 2, 2))] {
        let ask = Ask::cost(1);
        let charges = &mut [
            (&mut one, ask, Role::AnyOf),
            (&mut must, ask, Role::Must),
            (&mut two, ask, Role::AnyOf),
        ];
        assert_eq!(decide(&**harness, Mode::Charge, charges).await.passes, passes);
        let now_used =
            (one.used(&**harness).await, two.used(&**harness).await, must.used(&**harness).await);
        assert_eq!(now_used, used);
    }
    let mut three = sized("three", 3);
    must.fill(&**harness, 2).await;
    let ask = Ask::cost(1);
    let charges = &mut [(&mut three, ask, Role::AnyOf), (&mut must, ask, Role::Must)];
    assert!(!decide(&**harness, Mode::Charge, charges).await.passes, "a full must refuses");
    assert_eq!(three.used(&**harness).await, 0, "the group is not charged then");
}

/// A watched counter is charged where it fits and the request passes.
pub async fn watch_never_refuses<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut watched = Meter::of("watched", algorithm, 2, LONG);
        let mut must = Meter::of("beside", algorithm, 3, LONG);
        for (passes, used) in [(true, (1, 1)), (true, (2, 2)), (true, (2, 3)), (false, (2, 3))] {
            let (seen, needed) = (watched.ask(1), must.ask(1));
            let charges = &mut [(&mut watched, seen, Role::Watch), (&mut must, needed, Role::Must)];
            assert_eq!(decide(&**harness, Mode::Charge, charges).await.passes, passes);
            let now_used = (watched.used(&**harness).await, must.used(&**harness).await);
            assert_eq!(now_used, used, "{algorithm}");
        }
        // Now the watched one has room and the other has none.
        watched.reset(&**harness).await;
        let (seen, needed) = (watched.ask(1), must.ask(1));
        let charges = &mut [(&mut watched, seen, Role::Watch), (&mut must, needed, Role::Must)];
        assert!(!decide(&**harness, Mode::Charge, charges).await.passes, "{algorithm}");
        assert_eq!(watched.used(&**harness).await, 0, "{algorithm}: a refusal charges nothing");
    }
}

/// A counter alongside others is charged wherever the request passes, above its limit too, and refuses nothing.
pub async fn alongside_counts_all_that_passes<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut beside = Meter::of("alongside", algorithm, 2, LONG);
        let mut must = Meter::of("enforcing", algorithm, 4, LONG);
        for (passes, used) in [(true, 1), (true, 2), (true, 3), (true, 4), (false, 4)] {
            let (seen, needed) = (beside.ask(1), must.ask(1));
            let charges =
                &mut [(&mut beside, seen, Role::Alongside), (&mut must, needed, Role::Must)];
            let decided = decide(&**harness, Mode::Charge, charges).await;
            assert_eq!(decided.passes, passes, "{algorithm}");
            assert_eq!(decided.outcomes[0].examination.admits(), used <= 2, "{algorithm}");
            let now_used = (beside.used(&**harness).await, must.used(&**harness).await);
            assert_eq!(now_used, (used, used), "{algorithm}: a refusal charges nothing");
        }
        // Now it enforces: what was admitted without it counts.
        let needed = beside.ask(1);
        let charges = &mut [(&mut beside, needed, Role::Must)];
        assert!(!decide(&**harness, Mode::Charge, charges).await.passes, "{algorithm}");
        // Peeking charges nothing.
        let (seen, needed) = (beside.ask(1), must.ask(1));
        let charges = &mut [(&mut beside, seen, Role::Alongside), (&mut must, needed, Role::Must)];
        decide(&**harness, Mode::Peek, charges).await;
        assert_eq!(beside.used(&**harness).await, 4, "{algorithm}");
    }
}

/// Peeking returns what a charge would do, any number of times.
pub async fn peek_charges_nothing<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut one = Meter::of("peek one", algorithm, QUOTA, LONG);
        let mut two = Meter::of("peek two", algorithm, QUOTA, LONG);
        one.fill(&**harness, 2).await;
        for _ in 0..QUOTA + 2 {
            let (first, second) = (one.ask(1), two.ask(1));
            let charges = &mut [(&mut one, first, Role::Must), (&mut two, second, Role::Must)];
            assert!(decide(&**harness, Mode::Peek, charges).await.passes, "{algorithm}");
            assert!(one.peek(&**harness, 1).await.passes, "{algorithm}");
        }
        assert_eq!(one.used(&**harness).await, 2, "{algorithm}");
        assert_eq!(two.used(&**harness).await, 0, "{algorithm}");
    }
}

/// What is owed is charged, above the limit too, and then there is no room until it is paid.
pub async fn owing_goes_above_the_limit<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("owe", algorithm, 2, LONG);
        let mut other = Meter::of("owe beside", algorithm, 2, LONG);
        for total in 1..=5 {
            let (mine, beside) = (meter.ask(1), other.ask(1));
            let charges = &mut [(&mut meter, mine, Role::Must), (&mut other, beside, Role::Watch)];
            let owed = decide(&**harness, Mode::Owe, charges).await;
            assert_eq!(
                owed.passes,
                total <= 2,
                "{algorithm}: it says whether it would have fitted"
            );
            assert_eq!(owed.outcomes[0].status.used, total, "{algorithm}");
            let single = meter.ask(0);
            if !meter.is_slots() {
                decide(&**harness, Mode::Owe, &mut [(&mut meter, single, Role::Must)]).await;
            }
        }
        assert!(!meter.charge(&**harness, 1).await.passes, "{algorithm}");
        let status = meter.status(&**harness).await;
        assert_eq!((status.used, status.remaining), (5, 0), "{algorithm}");
        assert_eq!(other.used(&**harness).await, 5, "{algorithm}");
    }
}

/// Charges of one request to the same counter must fit together.
pub async fn the_same_counter_twice<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let slots = algorithm == Algorithm::Concurrency;
        let limit = limit(algorithm, 5, LONG);
        let key = [algorithm.name()];
        let counter = Counter {
            rule_id: "twice",
            tag: "t",
            salt: salt("twice", "t"),
            key: &key,
            home: home(),
        };
        let used = async || {
            let ask = Ask { slot: SlotId(u128::MAX), ..Ask::cost(1) };
            let charges = [Charge { counter, limit: &limit, ask, role: Role::Must }];
            let request = Request { charges: &charges, mode: Mode::Peek };
            let (mut outcomes, now) = (Outcomes::new(), harness.now().await);
            harness.store().decide(&[request], now, &mut outcomes).await.expect("answers");
            outcomes[0].status.used
        };
        // For concurrency limits these are numbers of slots; for other limits, costs.
        let tries: [(&[u64], bool, u64); 5] = [
            (&[3, 3], false, 0),
            (&[0, 2], true, 2),
            (&[1, 1, 2], false, 2),
            (&[2, 0, 1], true, 5),
            (&[1, 1], false, 5),
        ];
        let mut name = 0;
        for (costs, passes, expected) in tries {
            let mut asks = Vec::new();
            for cost in costs {
                let times = if slots { *cost } else { 1 };
                for _ in 0..times {
                    name += 1;
                    asks.push(Ask { slot: SlotId(name), ..Ask::cost(*cost) });
                }
            }
            let charge = |ask: &Ask| Charge { counter, limit: &limit, ask: *ask, role: Role::Must };
            let charges: Vec<Charge<'_>> = asks.iter().map(charge).collect();
            let request = Request { charges: &charges, mode: Mode::Charge };
            let (mut outcomes, now) = (Outcomes::new(), harness.now().await);
            harness.store().decide(&[request], now, &mut outcomes).await.expect("answers");
            assert_eq!(crate::passes(&charges, &outcomes), passes, "{algorithm}: {costs:?}");
            assert_eq!(used().await, expected, "{algorithm}: {costs:?}");
            let charged = outcomes.iter().filter(|o| o.receipt != Receipt::Nothing).count();
            assert_eq!(charged, if passes { charges.len() } else { 0 }, "{algorithm}: {costs:?}");
        }
    }
}

/// Requests of one call are decided one after another, each on its own.
pub async fn several_requests_in_order<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Concurrency) {
        let limit = limit(algorithm, QUOTA, LONG);
        let key = [algorithm.name()];
        let counter = Counter {
            rule_id: "batch",
            tag: "t",
            salt: salt("batch", "t"),
            key: &key,
            home: home(),
        };
        let charge =
            |cost| [Charge { counter, limit: &limit, ask: Ask::cost(cost), role: Role::Must }];
        let all = [2, 2, 2, 1, 1].map(charge);
        let requests: Vec<Request<'_>> =
            all.iter().map(|charges| Request { charges, mode: Mode::Charge }).collect();
        let (mut outcomes, now) = (Outcomes::new(), harness.now().await);
        harness.store().decide(&requests, now, &mut outcomes).await.expect("answers");
        let actual: Vec<_> =
            outcomes.iter().map(|o| (o.examination.admits(), o.status.used)).collect();
        let expected = [(true, 2), (true, 4), (false, 4), (true, 5), (false, 5)];
        assert_eq!(actual, expected, "{algorithm}");
    }
}

/// A request that charges nothing passes, and disturbs nobody's outcomes.
pub async fn no_charges_at_all<H: Harness>(harness: &Arc<H>) {
    let (mut outcomes, now) = (Outcomes::new(), harness.now().await);
    let empty = Request { charges: &[], mode: Mode::Charge };
    harness.store().decide(&[], now, &mut outcomes).await.expect("answers");
    harness.store().decide(&[empty, empty], now, &mut outcomes).await.expect("answers");
    assert!(outcomes.is_empty());
    assert!(crate::passes(&[], &outcomes));
}

/// Reset forgets one counter, and only that one.
pub async fn reset_empties_counters<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut mine = Meter::of("reset", algorithm, QUOTA, LONG);
        let mut other = Meter::of("not reset", algorithm, QUOTA, LONG);
        mine.reset(&**harness).await;
        for _ in 0..2 {
            mine.fill(&**harness, QUOTA).await;
            mine.reset(&**harness).await;
            assert_eq!(mine.used(&**harness).await, 0, "{algorithm}");
            assert!(other.charge(&**harness, 1).await.passes, "{algorithm}");
        }
        assert_eq!(other.used(&**harness).await, 2, "{algorithm}");
    }
}
