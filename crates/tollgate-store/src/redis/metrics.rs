//! What happened between this process and Redis, in plain counters.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::Failure;

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Decisions.
    Decide,
    /// Giving charges back.
    GiveBack,
    /// Undoing decisions whose answer was lost.
    Undo,
    /// Settling reservations.
    Settle,
    /// Records of reservations.
    Records,
    /// Resetting counters.
    Reset,
    /// Renewing and releasing slots.
    Slots,
    /// Taking quota ahead.
    Lease,
    /// Answers that nodes share under a request's id.
    Answers,
    /// Who is alive.
    Nodes,
    /// Readiness and topology.
    Ping,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 11] = [
        Self::Decide,
        Self::GiveBack,
        Self::Undo,
        Self::Settle,
        Self::Records,
        Self::Reset,
        Self::Slots,
        Self::Lease,
        Self::Answers,
        Self::Nodes,
        Self::Ping,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::GiveBack => "give_back",
            Self::Undo => "undo",
            Self::Settle => "settle",
            Self::Records => "records",
            Self::Reset => "reset",
            Self::Slots => "slots",
            Self::Lease => "lease",
            Self::Answers => "answers",
            Self::Nodes => "nodes",
            Self::Ping => "ping",
        }
    }
}

const OPERATIONS: usize = Operation::ALL.len();
const FAILURES: usize = Failure::ALL.len();

/// Upper bounds of the latency buckets, in microseconds; one more bucket takes the rest.
pub const LATENCY_BOUNDS: [u64; 14] = [
    100, 200, 300, 500, 750, 1_000, 1_500, 2_500, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000,
];

/// Upper bounds of the buckets for decisions per call; one more bucket takes the rest.
pub const BATCH_BOUNDS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A histogram with fixed bounds.
#[derive(Debug)]
pub struct Histogram<const BUCKETS: usize> {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl<const BUCKETS: usize> Default for Histogram<BUCKETS> {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| AtomicU64::new(0)), sum: AtomicU64::new(0) }
    }
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    fn add(&self, value: u64, bounds: &[u64]) {
        let place = bounds.iter().position(|bound| value <= *bound).unwrap_or(bounds.len());
        if let Some(bucket) = self.buckets.get(place) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
    }

    /// How many values fell into each bucket, not cumulated.
    pub fn buckets(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|index| self.buckets.get(index).map_or(0, |b| b.load(Relaxed)))
    }

    /// The sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.buckets().iter().sum()
    }
}

/// What happened between this process and one Redis.
#[derive(Debug, Default)]
pub struct RedisMetrics {
    latencies: [Histogram<15>; OPERATIONS],
    errors: [[AtomicU64; FAILURES]; OPERATIONS],
    batches: Histogram<8>,
    retries: AtomicU64,
    late: AtomicU64,
    finalized_charges: AtomicU64,
    refunded: AtomicU64,
    forgotten: AtomicU64,
    open_breakers: AtomicI64,
    drift_nanos: AtomicI64,
}

impl RedisMetrics {
    /// Script calls and commands of one kind that were answered or failed: how often, and how long they
    /// took in microseconds.
    pub fn latency(&self, operation: Operation) -> Option<&Histogram<15>> {
        self.latencies.get(operation as usize)
    }

    /// How many calls were made.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.latency(operation).map_or(0, Histogram::count)
    }

    /// How many calls failed so.
    pub fn errors(&self, operation: Operation, failure: Failure) -> u64 {
        self.error_cell(operation, failure).map_or(0, |cell| cell.load(Relaxed))
    }

    fn error_cell(&self, operation: Operation, failure: Failure) -> Option<&AtomicU64> {
        self.errors.get(operation as usize)?.get(failure as usize)
    }

    /// Decisions per call.
    pub fn batches(&self) -> &Histogram<8> {
        &self.batches
    }

    /// Calls that were repeated.
    pub fn retries(&self) -> u64 {
        self.retries.load(Relaxed)
    }

    /// Calls that the server came to only when nobody waited for them any more.
    pub fn late(&self) -> u64 {
        self.late.load(Relaxed)
    }

    /// Refundable charges that became final because their bucket had too many of them.
    pub fn finalized_charges(&self) -> u64 {
        self.finalized_charges.load(Relaxed)
    }

    /// Requests whose charges were refunded, because nobody received the answer of the call that made
    /// them.
    pub fn lost_answers_refunded(&self) -> u64 {
        self.refunded.load(Relaxed)
    }

    /// Requests that may have been charged by a call whose answer nobody received, and could not be
    /// refunded: the server did not answer, or no longer remembered the call.
    pub fn lost_answers_forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }

    /// How many Redis nodes are left alone at the moment.
    pub fn open_breakers(&self) -> u64 {
        u64::try_from(self.open_breakers.load(Relaxed)).unwrap_or(0)
    }

    /// The server's clock less this node's, in nanoseconds, as last seen.
    pub fn drift_nanos(&self) -> i64 {
        self.drift_nanos.load(Relaxed)
    }

    pub(super) fn called(&self, operation: Operation, took: Duration) {
        if let Some(histogram) = self.latencies.get(operation as usize) {
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            histogram.add(micros, &LATENCY_BOUNDS);
        }
    }

    pub(super) fn failed(&self, operation: Operation, failure: Failure) {
        if let Some(cell) = self.error_cell(operation, failure) {
            cell.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn batch(&self, decisions: usize) {
        self.batches.add(decisions as u64, &BATCH_BOUNDS);
    }

    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    pub(super) fn finalized(&self, charges: u64) {
        if charges > 0 {
            self.finalized_charges.fetch_add(charges, Relaxed);
        }
    }

    pub(super) fn was_late(&self) {
        self.late.fetch_add(1, Relaxed);
    }

    pub(super) fn refunded(&self, requests: u64) {
        self.refunded.fetch_add(requests, Relaxed);
    }

    pub(super) fn forgot(&self, requests: u64) {
        self.forgotten.fetch_add(requests, Relaxed);
    }

    pub(super) fn breaker_moved(&self, by: i64) {
        self.open_breakers.fetch_add(by, Relaxed);
    }

    pub(super) fn drift(&self, nanos: i64) {
        self.drift_nanos.store(nanos, Relaxed);
    }
}
