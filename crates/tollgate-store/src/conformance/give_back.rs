//! Undoing charges.

use std::sync::Arc;

use tollgate_core::{Algorithm, Nanos};

use super::Harness;
use super::meter::{LONG, MICRO, Meter, QUOTA, SHORT, salt, settle};
use crate::Change;

const MILLI: Nanos = 1_000 * MICRO;

/// The orders in which three charges can be given back.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// A charge given back at once was never made.
pub async fn give_back_at_once_restores<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("at once", algorithm, QUOTA, LONG).refundable();
        for kept in 0..3 {
            let receipts = meter.fill(&**harness, 2).await;
            assert_eq!(meter.used(&**harness).await, kept + 2, "{algorithm}");
            meter.forget_model();
            for receipt in receipts {
                meter.give_back(&**harness, receipt).await;
            }
            let status = meter.status(&**harness).await;
            assert_eq!((status.used, status.remaining), (kept, QUOTA - kept), "{algorithm}");
            meter.fill(&**harness, 1).await;
        }
        meter.fill(&**harness, QUOTA - 3).await;
        assert!(!meter.charge(&**harness, 1).await.passes, "{algorithm}: nothing was minted");
    }
}

/// Charges may be given back in any order; the others stay.
pub async fn give_back_of_one_among_others<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        for order in ORDERS {
            let case = format!("among {order:?}");
            let mut meter = Meter::of(&case, algorithm, 6, LONG).refundable();
            let costs = if meter.is_slots() { [1; 3] } else { [1, 2, 3] };
            let mut receipts = Vec::new();
            for cost in costs {
                receipts.push(meter.charge(&**harness, cost).await.outcomes[0].receipt);
            }
            meter.forget_model();
            let mut left: u64 = costs.iter().sum();
            for index in order {
                meter.give_back(&**harness, receipts[index]).await;
                left -= costs[index];
                let used = meter.used(&**harness).await;
                assert_eq!(used, left, "{algorithm}: {order:?}");
            }
        }
    }
}

/// Three charges of 5 out of 100, made one after another, leave nothing when all are given back, in whatever
/// order that happens.
pub async fn give_backs_in_every_order_leave_nothing<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL.into_iter().filter(|one| *one != Algorithm::Concurrency) {
        for order in ORDERS {
            let case = format!("every order {order:?}");
            let mut meter = Meter::of(&case, algorithm, 100, 100 * LONG).refundable();
            let mut receipts = Vec::new();
            for _ in 0..3 {
                receipts.push(meter.charge(&**harness, 5).await.outcomes[0].receipt);
                harness.advance(MICRO).await;
            }
            meter.forget_model();
            for (index, left) in order.into_iter().zip([10, 5, 0]) {
                meter.give_back(&**harness, receipts[index]).await;
                let used = meter.used(&**harness).await;
                assert_eq!(used, left, "{algorithm}: {order:?}");
            }
        }
    }
}

/// A charge that was made before a reset gives back nothing of what was charged after it; later charges do.
pub async fn a_reset_voids_earlier_charges<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        for settles in [false, true] {
            let case = format!("void, settled {settles}");
            let mut meter = Meter::of(&case, algorithm, QUOTA, LONG).refundable();
            let before = meter.fill(&**harness, 3).await;
            meter.reset(&**harness).await;
            harness.advance(2 * MILLI).await;
            let after = meter.fill(&**harness, 2).await;
            meter.forget_model();
            for (id, receipt) in (1..).zip(before) {
                if settles {
                    let id = salt(&case, algorithm.name()) ^ id;
                    settle(&**harness, id, &[(&meter, Change::GiveBack(receipt))]).await;
                } else {
                    meter.give_back(&**harness, receipt).await;
                }
            }
            assert_eq!(meter.used(&**harness).await, 2, "{case}: {algorithm}");
            for receipt in after {
                meter.give_back(&**harness, receipt).await;
            }
            assert_eq!(meter.used(&**harness).await, 0, "{case}: {algorithm}");
        }
    }
}

/// What has left its window cannot be given back into another.
pub async fn give_back_later_mints_nothing<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("later", algorithm, QUOTA, SHORT);
        let receipts = meter.fill(&**harness, 3).await;
        harness.advance(3 * SHORT).await;
        meter.fill(&**harness, 2).await;
        for receipt in receipts {
            // The model does not give back: it must make no difference.
            meter.give_back(&**harness, receipt).await;
        }
        meter.status(&**harness).await;
        for _ in 0..QUOTA {
            meter.charge(&**harness, 1).await;
        }
    }
}
