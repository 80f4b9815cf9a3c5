//! Undoing charges.

use std::sync::Arc;

use tollgate_core::Algorithm;

use super::Harness;
use super::meter::{LONG, Meter, QUOTA, SHORT};

/// A charge given back at once was never made.
pub async fn give_back_at_once_restores<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("at once", algorithm, QUOTA, LONG);
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

/// Charges may be given back in any order; the others stay. A bucket may keep a part of one that is
/// given back after a later one, but never returns more than was charged.
pub async fn give_back_of_one_among_others<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
            let mut meter = Meter::of(&format!("among {order:?}"), algorithm, 6, LONG);
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
                if algorithm.is_bucket() && order[0] == 1 {
                    assert!(used >= left, "{algorithm}: {order:?}: {used}");
                } else {
                    assert_eq!(used, left, "{algorithm}: {order:?}");
                }
            }
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
            // The model is not told: it must make no difference.
            meter.give_back(&**harness, receipt).await;
        }
        meter.status(&**harness).await;
        for _ in 0..QUOTA {
            meter.charge(&**harness, 1).await;
        }
    }
}
