//! What was admitted without the store, until it is reported.
//!
//! Only what the store would still count is reported: a window that is over is not charged for, and
//! a bucket has refilled for part of it meanwhile. So an outage of an hour is not followed by an
//! hour of refusals.
//!
//! One task at a time reports a counter; others wait for that trip to end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tollgate_core::{Limit, Nanos, Receipt, SlotId};

use super::admitted::Report;
use crate::leased::key::{ByFingerprint, Owned};
use crate::resets::Resets;
use crate::{Charge, Failure};

/// One attempt to report a counter to the store, for tasks that wait for its end.
pub(super) struct Trip {
    /// Has no permits, ever; closed at the end, which wakes all who wait.
    ended: Semaphore,
    result: OnceLock<Result<(), Failure>>,
}

impl Trip {
    fn new() -> Self {
        Self { ended: Semaphore::new(0), result: OnceLock::new() }
    }

    /// Returns when the store has answered or failed to.
    pub(super) async fn wait(&self) -> Result<(), Failure> {
        // The only answer is that it was closed.
        let _closed = self.ended.acquire().await;
        self.result.get().copied().unwrap_or(Err(Failure::Timeout))
    }
}

/// One counter that is being reported. If this is dropped before its end, because the task that
/// reports it was cancelled, the report waits again.
pub(super) struct Sending<'a> {
    reports: &'a Reports,
    trip: Arc<Trip>,
    since: Nanos,
    pub(super) fingerprint: u128,
    pub(super) owned: Arc<Owned>,
    /// What is charged on the store, once it is loaded.
    pub(super) cost: u64,
    pub(super) slots: SmallVec<[SlotId; 4]>,
}

/// What is to be done about a counter before the store is asked.
pub(super) enum Telling<'a> {
    /// Nothing waits.
    Nothing,
    /// Report it.
    Send(Sending<'a>),
    /// It is being reported.
    Wait(Arc<Trip>),
}

/// Everything that is to be reported.
pub(super) struct Reports {
    waiting: Mutex<ByFingerprint<Report>>,
    /// Counters that were reset while something waited.
    resets: Mutex<Resets<u128>>,
    /// How many there are, so that nobody locks to find none.
    len: AtomicUsize,
    most: usize,
}

impl Reports {
    pub(super) fn new(most: usize) -> Self {
        let (waiting, resets) = (Mutex::default(), Mutex::default());
        Self { waiting, resets, len: AtomicUsize::new(0), most }
    }

    /// How many counters wait.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn with<R>(&self, act: impl FnOnce(&mut ByFingerprint<Report>) -> R) -> R {
        let mut reports = self.waiting.lock();
        let result = act(&mut reports);
        self.len.store(reports.len(), Ordering::Relaxed);
        result
    }

    /// Notes a charge that was made without the store. `empty_at`: when the share's bucket is empty after it.
    /// False if there is no room for it.
    pub(super) fn add(
        &self,
        fingerprint: u128,
        charge: &Charge<'_>,
        share: &Limit,
        empty_at: Nanos,
        at: Nanos,
    ) -> bool {
        if charge.ask.cost == 0 && !charge.limit.holds_slots() {
            return true;
        }
        self.with(|reports| {
            if reports.len() >= self.most && !reports.contains_key(&fingerprint) {
                return false;
            }
            let new = || Report::new(&charge.counter, charge.limit, share);
            reports.entry(fingerprint).or_insert_with(new).add(&charge.ask, empty_at, at);
            true
        })
    }

    /// What is not yet reported of a counter: a cost, or slots.
    pub(super) fn unreported(&self, fingerprint: u128, at: Nanos) -> (u64, SmallVec<[SlotId; 4]>) {
        if self.len() == 0 {
            return Default::default();
        }
        self.with(|reports| {
            reports.get(&fingerprint).map_or_else(Default::default, |report| {
                let slots = report.slots.iter().filter(|slot| slot.expires_at > at);
                (report.unreported(at), slots.map(|slot| slot.id).collect())
            })
        })
    }

    /// Takes a charge off what waits, so that it is never reported. False if it does not wait.
    pub(super) fn take_back(&self, fingerprint: u128, receipt: &Receipt, at: Nanos) -> bool {
        if self.len() == 0 || self.resets.lock().voids(fingerprint, receipt) {
            return false;
        }
        self.with(|reports| {
            let Some(report) = reports.get_mut(&fingerprint) else { return false };
            match *receipt {
                Receipt::Slot(id) => report.slots.release(id),
                _ => report.take_back(receipt, at),
            }
        })
    }

    /// Holds a slot longer that waits to be reported.
    pub(super) fn renew(&self, fingerprint: u128, id: SlotId, at: Nanos) {
        if self.len() == 0 {
            return;
        }
        self.with(|reports| {
            if let Some(report) = reports.get_mut(&fingerprint)
                && report.slots.iter().any(|slot| slot.id == id)
            {
                let until = at.saturating_add(report.owned.limit.slot_ttl());
                report.hold(id, until, at);
            }
        });
    }

    /// Forgets what waits of a counter that is reset. What was charged before it is not taken off later reports.
    pub(super) fn reset(&self, fingerprint: u128, at: Nanos) {
        if self.len() == 0 {
            return;
        }
        if let Some(report) = self.with(|reports| reports.remove(&fingerprint)) {
            let fresh_at = report.waiting.fresh_at(report.wears.window_nanos());
            self.resets.lock().note(fingerprint, fresh_at, at);
        }
    }

    /// Whether a counter has a report that waits or is being sent.
    pub(super) fn has(&self, fingerprint: u128) -> bool {
        self.len() > 0 && self.waiting.lock().contains_key(&fingerprint)
    }

    /// The counters that wait; what has worn off is dropped.
    pub(super) fn waiting(&self, at: Nanos) -> Vec<u128> {
        if self.len() == 0 {
            return Vec::new();
        }
        self.with(|reports| {
            reports.retain(|_, report| !report.is_empty(at));
            reports.keys().copied().collect()
        })
    }

    /// Begins to report a counter, if no other task does.
    pub(super) fn tell(&self, fingerprint: u128, at: Nanos) -> Telling<'_> {
        self.with(|reports| {
            let Some(report) = reports.get_mut(&fingerprint) else { return Telling::Nothing };
            if let Some(trip) = &report.trip {
                return Telling::Wait(Arc::clone(trip));
            }
            if report.is_empty(at) {
                reports.remove(&fingerprint);
                return Telling::Nothing;
            }
            let trip = Arc::new(Trip::new());
            report.trip = Some(Arc::clone(&trip));
            Telling::Send(Sending {
                reports: self,
                trip,
                since: at,
                fingerprint,
                owned: Arc::clone(&report.owned),
                cost: 0,
                slots: SmallVec::new(),
            })
        })
    }
}

impl Sending<'_> {
    /// Takes what waits, to send it to a store that counts so much already. What is added from now on waits
    /// for the next time.
    pub(super) fn load(&mut self, counted: u64, at: Nanos) {
        self.reports.with(|reports| {
            let Some(report) = self.own(reports) else { return };
            self.cost = report.take(counted, at);
            let slots = report.slots.iter().filter(|slot| slot.expires_at > at);
            self.slots = slots.map(|slot| slot.id).collect();
        });
    }

    /// The report that is being sent, unless it was dropped meanwhile.
    fn own<'r>(&self, reports: &'r mut ByFingerprint<Report>) -> Option<&'r mut Report> {
        let is_own = |trip: &Arc<Trip>| Arc::ptr_eq(trip, &self.trip);
        reports.get_mut(&self.fingerprint).filter(|report| report.trip.as_ref().is_some_and(is_own))
    }

    /// The store has answered: what was sent is dropped; or it has not, and that waits again.
    pub(super) fn end(self, result: Result<(), Failure>, at: Nanos) {
        self.settle(result, at);
    }

    fn settle(&self, result: Result<(), Failure>, at: Nanos) {
        if self.trip.result.set(result).is_err() {
            return;
        }
        self.reports.with(|reports| {
            let Some(report) = self.own(reports) else { return };
            report.trip = None;
            if result.is_ok() {
                report.sent = 0;
                for id in &self.slots {
                    report.slots.release(*id);
                }
                if report.is_empty(at) {
                    reports.remove(&self.fingerprint);
                }
            } else {
                report.put_back(at);
            }
        });
        self.trip.ended.close();
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.settle(Err(Failure::Timeout), self.since);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Algorithm, Ask, LimitSpec, SECOND, Window};

    use super::*;
    use crate::{Counter, Home, Role};

    const WINDOW: Nanos = 10 * SECOND;
    const START: Nanos = 1_789_000_000 * SECOND;

    /// Charges 40 in a first window, 30 in the next one, refunds the first charge, and returns what would be reported.
    fn reported(algorithm: Algorithm, refunds: bool) -> u64 {
        let window = Window::Every(WINDOW);
        let spec = LimitSpec { algorithm, quota: 100, window, burst: None, slot_ttl: SECOND };
        let limit = Limit::new(spec).unwrap();
        let reports = Reports::new(10);
        let key = ["ann"];
        let counter =
            Counter { rule_id: "rule", tag: "tag", salt: 0, key: &key, home: Home::default() };
        let add = |cost, at| {
            let ask = Ask::cost(cost).refundable();
            let charge = Charge { counter, limit: &limit, ask, role: Role::Must };
            assert!(reports.add(7, &charge, &limit, at, at));
            limit.charge(&mut limit.fresh(), &ask, at)
        };
        let receipt = add(40, START);
        let later = START + 2 * WINDOW;
        add(30, later);
        if refunds {
            reports.take_back(7, &receipt, later);
        }
        reports.unreported(7, later).0
    }

    #[test]
    fn a_refund_leaves_the_reports_of_other_windows_alone() {
        for algorithm in [
            Algorithm::FixedWindow,
            Algorithm::SlidingWindowCounter,
            Algorithm::SlidingWindowLog,
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
        ] {
            assert_eq!(reported(algorithm, false), 30, "{algorithm}");
            assert_eq!(reported(algorithm, true), 30, "{algorithm}");
        }
    }

    #[test]
    fn a_refund_at_once_is_never_reported() {
        let limit = Limit::new(LimitSpec {
            algorithm: Algorithm::TokenBucket,
            quota: 100,
            window: Window::Every(WINDOW),
            burst: None,
            slot_ttl: SECOND,
        });
        let (limit, key) = (limit.unwrap(), ["ann"]);
        let counter =
            Counter { rule_id: "rule", tag: "tag", salt: 0, key: &key, home: Home::default() };
        let ask = Ask::cost(40).refundable();
        let charge = Charge { counter, limit: &limit, ask, role: Role::Must };
        let reports = Reports::new(10);
        assert!(reports.add(7, &charge, &limit, START, START));
        let receipt = limit.charge(&mut limit.fresh(), &ask, START);
        assert!(reports.take_back(7, &receipt, START));
        assert_eq!(reports.unreported(7, START).0, 0);
    }
}
