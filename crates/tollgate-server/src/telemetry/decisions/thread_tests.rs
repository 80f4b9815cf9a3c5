//! Many threads count at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_policy::Known;

use super::tests::{BOUNDS, ask, engine, witness};
use super::*;

/// The bounds of a key must hold its true count, also while somebody reads all the time.
#[test]
fn top_keys_lose_no_decision_to_readers_and_other_threads() {
    let bounds = WitnessBounds { top: TopBounds { keys: 1_000, rules: 8 }, ..BOUNDS };
    let witness = witness(bounds);
    let engine = Arc::new(engine(&witness));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                witness.tops().read(Window::Minutes, None);
            }
        });
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for number in 0..5_000 {
                        ask(&engine, &[(Known::TenantId, &format!("t{}", number % 10))]);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let top = witness.tops().read(Window::Minutes, None).tenants.top(20);
    assert_eq!(top.len(), 10);
    for one in top {
        assert!(one.at_least <= 2_000 && 2_000 <= one.count, "{one:?}");
        assert!(one.at_least > 1_500, "a thread finds a place nearly always: {one:?}");
    }
}

#[test]
fn many_threads_count_without_losing_any() {
    let witness = witness(BOUNDS);
    let engine = Arc::new(engine(&witness));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (engine, witness) = (Arc::clone(&engine), Arc::clone(&witness));
            scope.spawn(move || {
                for number in 0..2_000 {
                    let tenant = format!("t{}", (number + thread) % 30);
                    ask(&engine, &[(Known::TenantId, &tenant)]);
                    if number % 500 == 0 {
                        assert!(witness.tally().read().len() <= 50);
                        let busy = format!("t{}", number % 30);
                        witness.tally().prefer(Label::Tenant, &[(&busy, 1_000_000)], 0);
                    }
                }
            });
        }
    });
    assert_eq!(witness.tally().totals().iter().sum::<u64>(), 16_000);
}
