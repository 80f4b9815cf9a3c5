//! One counter of each algorithm.

use std::sync::Arc;

use tollgate_core::{Algorithm, Ask, Examination, Limit, LimitSpec, Window};

use super::Harness;
use super::meter::{LONG, MICRO, Meter, QUOTA, SHORT, decide, limit};
use crate::{Mode, Role};

/// The quota passes one by one, then nothing does.
pub async fn admits_the_quota_and_no_more<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("quota", algorithm, QUOTA, LONG);
        for count in 1..=QUOTA {
            let decided = meter.charge(&**harness, 1).await;
            assert!(decided.passes, "{algorithm}: number {count} of {QUOTA} was refused");
            let status = decided.outcomes[0].status;
            assert_eq!((status.used, status.remaining), (count, QUOTA - count), "{algorithm}");
        }
        for _ in 0..3 {
            assert!(!meter.charge(&**harness, 1).await.passes, "{algorithm}: one above the quota");
        }
    }
}

/// However often it is refused, nothing changes.
pub async fn a_refusal_charges_nothing<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("refusal", algorithm, QUOTA, LONG);
        meter.fill(&**harness, QUOTA - 1).await;
        if !meter.is_slots() {
            for _ in 0..10 {
                assert!(!meter.charge(&**harness, 2).await.passes, "{algorithm}");
            }
        }
        assert_eq!(meter.used(&**harness).await, QUOTA - 1, "{algorithm}");
        assert!(meter.charge(&**harness, 1).await.passes, "{algorithm}: the room is still there");
        for _ in 0..10 {
            assert!(!meter.charge(&**harness, 1).await.passes, "{algorithm}");
        }
        assert_eq!(meter.used(&**harness).await, QUOTA, "{algorithm}");
    }
}

/// Used, remaining, reset and retry as the algorithm says, over several short windows.
pub async fn figures_follow_every_decision<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("figures", algorithm, QUOTA, SHORT);
        for step in [0, 0, MICRO, SHORT / 10, 0, SHORT / 5, SHORT / 2, 0, 0, SHORT, 0, 2 * SHORT] {
            harness.advance(step).await;
            for cost in [1, 2, 3] {
                // Compared with the model inside.
                meter.charge(&**harness, cost).await;
                meter.peek(&**harness, cost).await;
            }
        }
    }
}

/// Refused at every instant before `retry_at`, admitted from it on.
pub async fn retry_at_is_exact<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        for cost in [1, 3] {
            let mut meter = Meter::of(&format!("retry {cost}"), algorithm, QUOTA, SHORT);
            let mut refused = None;
            for _ in 0..1000 {
                let decided = meter.charge(&**harness, cost).await;
                if !decided.passes {
                    refused = Some(decided);
                    break;
                }
            }
            let refused = refused.expect("some request is refused");
            let retry_at = refused.retry_at().expect("the cost is within the capacity");
            assert!(retry_at > refused.at, "{algorithm}: {retry_at} is not after the refusal");
            let wait = retry_at - refused.at;
            let mut now = refused.at;
            for goal in [refused.at + wait / 2, retry_at - MICRO, retry_at] {
                harness.advance(goal.saturating_sub(now)).await;
                let peeked = meter.peek(&**harness, cost).await;
                assert_eq!(
                    peeked.passes,
                    peeked.at >= retry_at,
                    "{algorithm}: retry at {retry_at}, asked at {}",
                    peeked.at
                );
                now = peeked.at;
            }
            assert!(meter.charge(&**harness, cost).await.passes, "{algorithm}: at {retry_at}");
        }
    }
}

/// A cost of nothing passes even where nothing else does.
pub async fn cost_zero_passes_and_counts_nothing<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Concurrency) {
        let mut meter = Meter::of("zero", algorithm, QUOTA, LONG);
        assert!(meter.charge(&**harness, 0).await.passes, "{algorithm}");
        assert_eq!(meter.used(&**harness).await, 0, "{algorithm}");
        meter.fill(&**harness, QUOTA).await;
        assert!(meter.charge(&**harness, 0).await.passes, "{algorithm}");
        assert_eq!(meter.used(&**harness).await, QUOTA, "{algorithm}");
    }
}

/// A cost above the capacity is refused at any time: there is no instant to retry at.
pub async fn a_cost_above_capacity_never_passes<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Concurrency) {
        let mut meter = Meter::of("above", algorithm, QUOTA, LONG);
        for cost in [QUOTA + 1, u64::from(u32::MAX), 1 << 52] {
            let decided = meter.charge(&**harness, cost).await;
            assert!(!decided.passes, "{algorithm}: {cost}");
            assert_eq!(decided.retry_at(), None, "{algorithm}: {cost}");
        }
        assert_eq!(meter.used(&**harness).await, 0, "{algorithm}");
        assert!(meter.charge(&**harness, QUOTA).await.passes, "{algorithm}: all at once");
    }
}

/// A quota of 0 refuses everything, without an instant to retry at.
pub async fn a_quota_of_zero_suspends<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("suspended", algorithm, 0, LONG);
        let decided = meter.charge(&**harness, 1).await;
        assert!(!decided.passes, "{algorithm}");
        assert_eq!(decided.retry_at(), None, "{algorithm}");
    }
}

/// A counter belongs to its rule and tag, not to its quota. A bucket keeps the instant at which it
/// is full again.
pub async fn a_changed_quota_keeps_what_was_counted<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("changed", algorithm, QUOTA, LONG);
        meter.fill(&**harness, QUOTA - 2).await;
        for quota in [2 * QUOTA, 2, QUOTA] {
            meter.change_limit(limit(algorithm, quota, LONG));
            let status = meter.status(&**harness).await;
            if !algorithm.is_bucket() {
                assert_eq!(status.used, QUOTA - 2, "{algorithm} under {quota}");
                assert_eq!(status.remaining, quota.saturating_sub(QUOTA - 2), "{algorithm}");
            }
        }
        assert_eq!(meter.used(&**harness).await, QUOTA - 2, "{algorithm}: unchanged by the detour");
    }
}

/// A bucket admits ahead of its time, with a wait of at most what the request allows.
pub async fn throttling_waits_its_turn<H: Harness>(harness: &Arc<H>) {
    // Long enough that a slow store does not drain the bucket meanwhile.
    let token = LONG / QUOTA;
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
        let window = Window::Every(LONG);
        let burst = Some(if algorithm == Algorithm::LeakyBucket { 20 } else { 2 });
        let spec = LimitSpec { algorithm, quota: QUOTA, window, burst, slot_ttl: 0 };
        let mut meter = Meter::new("throttle", &["k"], Limit::new(spec).expect("sound"));
        let most = 2 * token + token / 2;
        let ask = Ask { max_delay: Some(most), ..Ask::cost(1) };
        let (mut waits, mut refusals) = (Vec::new(), 0);
        for _ in 0..8 {
            let charges = &mut [(&mut meter, ask, Role::Must)];
            let decided = decide(&**harness, Mode::Charge, charges).await;
            match decided.outcomes[0].examination {
                Examination::Admit { wait } => waits.push(wait),
                Examination::Refuse { retry_at } => {
                    refusals += 1;
                    assert!(retry_at.is_some_and(|at| at > decided.at), "{algorithm}");
                }
            }
        }
        assert!(waits.iter().all(|wait| *wait <= most), "{algorithm}: {waits:?}");
        assert!(waits.iter().any(|wait| *wait > token), "{algorithm}: {waits:?}");
        assert!(refusals > 0, "{algorithm}: nobody waits longer than allowed");
    }
}

/// An expired counter equals one that never existed.
pub async fn an_expired_counter_is_reset<H: Harness>(harness: &Arc<H>) {
    for algorithm in Algorithm::ALL {
        let mut meter = Meter::of("expired", algorithm, QUOTA, SHORT);
        meter.fill(&**harness, QUOTA - 1).await;
        harness.advance(2 * SHORT).await;
        let status = meter.peek(&**harness, 1).await;
        assert_eq!(status.outcomes[0].status.used, 0, "{algorithm}");
        assert_eq!(status.outcomes[0].status.reset_at, status.at, "{algorithm}");
        meter.fill(&**harness, QUOTA - 1).await;
    }
}
