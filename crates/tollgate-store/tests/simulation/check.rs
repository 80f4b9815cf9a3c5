//! What must hold at the end of every run.

use std::sync::atomic::Ordering;

use tollgate_core::{Algorithm, SECOND};

use crate::client::{Account, Admission, Meter};
use crate::plan::{CounterPlan, Plan, Shape};
use crate::time::MILLISECOND;
use crate::world::{Ledger, World};

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What did not hold.
    pub broken: Vec<String>,
    /// The most that was admitted of a limit and not given back, in thousandths of it. What may be on
    /// lease and what a bucket gets back belong to the limit.
    pub worst: u64,
    /// Requests to warm leases, and those of them that waited.
    pub warm: u64,
    pub waits: u64,
    /// The longest that a decision took, in thousandths of what one call to the store may take.
    pub longest: u64,
    /// The same for every run of a plan.
    pub digest: u64,
    /// What happened, if it was noted.
    pub notes: Vec<String>,
}

/// Of a thousand decisions so many may wait for a store that is well and far.
const MAX_WAITS_PER_MILLE: u64 = 10;

pub fn check(plan: &Plan, world: &World) -> Outcome {
    let ledger = world.ledger.lock();
    let mut broken = ledger.failures.clone();
    let mut worst = 0;
    for meter in &world.meters {
        let account = ledger.accounts.get(&meter.rule_id).copied().unwrap_or_default();
        let allowed = bound(plan, meter);
        let whole = meter.plan.quota + meter.plan.pool() + refilled(plan, meter);
        worst = worst.max(account.most * 1_000 / whole.max(1));
        if account.most > allowed {
            broken.push(format!(
                "{}: {} admitted of {} ({} of it by nodes alone), where {allowed} is the bound",
                meter.rule_id, account.most, meter.plan.quota, account.locally
            ));
        }
        broken.extend(check_pace(plan, meter, &ledger));
        let refilled = refilled(plan, meter);
        // Where a limit may be admitted twice, the shares refill while others use the store's bucket, and a report does
        // not charge that beyond its burst for the refill of the last ten seconds: docs/failure.md. That is at most what
        // nodes admitted by themselves.
        let twice = match plan.shape {
            Shape::Outage | Shape::FarStore => 0,
            Shape::LateReturn | Shape::Partitions => refilled.min(account.locally),
        };
        broken.extend(check_store(world, meter, account, refilled + twice));
    }
    for node in &world.nodes {
        let (store, number) = (&node.store, node.number);
        if store.waiting_reports() > 0 || store.waiting_settlements() > 0 {
            let (reports, settlements) = (store.waiting_reports(), store.waiting_settlements());
            broken
                .push(format!("node {number}: {reports} reports, {settlements} settlements wait"));
        }
        if store.degraded_since().is_some() {
            broken.push(format!("node {number} has not found the store again"));
        }
        if store.figures().dropped_reports.load(Ordering::Relaxed) > 0 {
            broken.push(format!("node {number} has dropped reports"));
        }
        if store.membership().nodes as usize != plan.nodes {
            broken.push(format!("node {number} knows of {:?}", store.membership()));
        }
    }
    if plan.shape == Shape::FarStore && ledger.waits * 1_000 > ledger.warm * MAX_WAITS_PER_MILLE {
        let (waits, warm) = (ledger.waits, ledger.warm);
        broken.push(format!("{waits} of {warm} steady requests waited for a far store"));
    }
    let (warm, waits) = (ledger.warm, ledger.waits);
    let (digest, notes) = (world.time.digest(), world.time.take_notes());
    let longest = ledger.longest * 1_000 / world.network.request_timeout_nanos();
    Outcome { broken, worst, warm, waits, longest, digest, notes }
}

/// A bucket admits its burst and what it refills, in any stretch of time, or twice that: docs/failure.md.
/// A decision was made at some instant between its request and its answer.
fn check_pace(plan: &Plan, meter: &Meter, ledger: &Ledger) -> Option<String> {
    let CounterPlan { algorithm, quota, window, .. } = meter.plan;
    let times = match plan.shape {
        Shape::Outage => 1,
        Shape::LateReturn | Shape::Partitions => 2,
        Shape::FarStore => return None,
    };
    if !algorithm.is_bucket() {
        return None;
    }
    let rule_id = &meter.rule_id;
    let mut admissions: Vec<&Admission> =
        ledger.admissions.iter().filter(|it| &it.rule_id == rule_id).collect();
    admissions.sort_by_key(|it| it.answered_at);
    // Each node rounds its share up, and knows the store's clock to within a round trip.
    let rounding = plan.nodes as u64 + times * quota * 2 * plan.profile.farthest / window;
    for first in &admissions {
        let from = first.asked_at;
        let mut admitted = 0_u64;
        for it in admissions.iter().filter(|it| it.asked_at >= from) {
            admitted += it.kept;
            let lasts = it.answered_at - from;
            let allowed = times * (quota + quota * lasts / window) + meter.plan.pool() + rounding;
            if admitted > allowed {
                return Some(format!(
                    "{rule_id}: {admitted} admitted within {} ms, where {allowed} is the bound",
                    lasts / MILLISECOND
                ));
            }
        }
    }
    None
}

/// How much may be admitted of a limit: docs/failure.md and docs/consistency.md.
fn bound(plan: &Plan, meter: &Meter) -> u64 {
    let quota = meter.plan.quota;
    let of_limit = match plan.shape {
        Shape::Outage | Shape::FarStore => quota,
        Shape::LateReturn | Shape::Partitions => 2 * quota,
    };
    of_limit + meter.plan.pool() + refilled(plan, meter)
}

/// What a bucket gets back during a run.
fn refilled(plan: &Plan, meter: &Meter) -> u64 {
    let lasts = plan.calm_at - crate::time::START + 10 * SECOND;
    if meter.plan.algorithm.is_bucket() {
        meter.plan.quota * lasts / meter.plan.window + 1
    } else {
        0
    }
}

/// The store counts what was admitted: no less, and nothing twice but what is stated in
/// docs/failure.md.
fn check_store(world: &World, meter: &Meter, account: Account, refilled: u64) -> Option<String> {
    let (used, owed) = (world.used(meter), account.owed());
    let stated = stated_losses(world, meter, account);
    let what = if used + refilled < owed {
        "something was lost"
    } else if used > owed + stated {
        "something was charged twice"
    } else {
        return None;
    };
    let rule_id = &meter.rule_id;
    Some(format!(
        "{rule_id}: {what}: the store counts {used} of {owed}; up to {stated} more are accounted for \
         ({account:?})"
    ))
}

/// What the store may count beyond what was admitted.
fn stated_losses(world: &World, meter: &Meter, account: Account) -> u64 {
    let server = world.network.server.lock();
    // Leases whose answers were lost, and decisions that the store had forgotten when they were undone.
    let mut stated = server.unanswered(&meter.rule_id);
    if meter.plan.overshoot > 0 {
        stated += server.on_lease(&meter.rule_id, world.time.now());
    }
    let is_bucket = meter.plan.algorithm.is_bucket();
    if is_bucket {
        // A charge that was not asked to be refundable is refunded only while it is the last.
        stated += server.undone(&meter.rule_id);
    }
    if is_bucket || meter.plan.algorithm == Algorithm::SlidingWindowLog {
        // What a node admitted by itself is reported as one charge: what is given back of it later is
        // not found there.
        stated += account.refunded_locally;
    }
    stated
}
