//! How long calls take, by operation. There is one such record in a process, so that whatever takes a call
//! can note it.

use std::array;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::shards::{self, SHARDS};

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Allow,
    Check,
    Peek,
    Batch,
    Reserve,
    Settle,
    Release,
    Renew,
    Auth,
    GrpcAllow,
    GrpcPeek,
    GrpcBatch,
    GrpcReserve,
    GrpcSettle,
    GrpcRelease,
    GrpcRenew,
    GrpcStream,
    Envoy,
    Gateway,
}

impl Operation {
    pub(crate) const ALL: [Self; 19] = [
        Self::Allow,
        Self::Check,
        Self::Peek,
        Self::Batch,
        Self::Reserve,
        Self::Settle,
        Self::Release,
        Self::Renew,
        Self::Auth,
        Self::GrpcAllow,
        Self::GrpcPeek,
        Self::GrpcBatch,
        Self::GrpcReserve,
        Self::GrpcSettle,
        Self::GrpcRelease,
        Self::GrpcRenew,
        Self::GrpcStream,
        Self::Envoy,
        Self::Gateway,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Batch => "batch",
            Self::Reserve => "reserve",
            Self::Settle => "settle",
            Self::Release => "release",
            Self::Renew => "renew",
            Self::Auth => "auth",
            Self::GrpcAllow => "grpc_allow",
            Self::GrpcPeek => "grpc_peek",
            Self::GrpcBatch => "grpc_batch",
            Self::GrpcReserve => "grpc_reserve",
            Self::GrpcSettle => "grpc_settle",
            Self::GrpcRelease => "grpc_release",
            Self::GrpcRenew => "grpc_renew",
            Self::GrpcStream => "grpc_stream",
            Self::Envoy => "envoy",
            Self::Gateway => "gateway",
        }
    }
}

/// The upper ends of the buckets, in microseconds; the last one has none.
pub(crate) const BOUNDS_MICROS: [u64; 22] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// Buckets of a histogram.
pub(crate) const BUCKETS: usize = BOUNDS_MICROS.len() + 1;

#[derive(Debug)]
struct Cells {
    buckets: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Default for Cells {
    fn default() -> Self {
        Self { buckets: array::from_fn(|_| AtomicU64::new(0)), sum_nanos: AtomicU64::new(0) }
    }
}

/// How long calls of one kind took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Histogram {
    pub(crate) buckets: [u64; BUCKETS],
    pub(crate) sum_nanos: u64,
}

impl Histogram {
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += more;
        }
        self.sum_nanos = self.sum_nanos.wrapping_add(other.sum_nanos);
    }
}

/// How long calls took.
pub(crate) struct Latencies {
    shards: [OnceLock<Box<[Cells; Operation::ALL.len()]>>; SHARDS],
}

impl Latencies {
    /// Notes that a call took so long.
    #[inline]
    pub(crate) fn note(&self, operation: Operation, took: Duration) {
        let Some(shard) = self.shards.get(shards::of_this_thread()) else { return };
        let cells = shard.get_or_init(Box::default);
        let Some(cells) = cells.get(operation as usize) else { return };
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = cells.buckets.get(bucket_of(nanos)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        cells.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// All calls of one kind.
    pub(crate) fn read(&self, operation: Operation) -> Histogram {
        let mut all = Histogram::default();
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            let Some(cells) = shard.get(operation as usize) else { continue };
            for (sum, bucket) in all.buckets.iter_mut().zip(&cells.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
            all.sum_nanos = all.sum_nanos.wrapping_add(cells.sum_nanos.load(Ordering::Relaxed));
        }
        all
    }
}

/// How long the calls of this process took.
pub(crate) static LATENCIES: Latencies = Latencies { shards: [const { OnceLock::new() }; SHARDS] };

/// Notes how long a call took when it is dropped, also if nobody waits for the call any more.
pub(crate) struct Timed {
    operation: Operation,
    since: Instant,
}

impl Timed {
    /// A call begins.
    #[inline]
    pub(crate) fn new(operation: Operation) -> Self {
        Self { operation, since: Instant::now() }
    }
}

impl Timed {
    /// It was no call after all.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Timed {
    #[inline]
    fn drop(&mut self) {
        LATENCIES.note(self.operation, self.since.elapsed());
    }
}

#[inline]
fn bucket_of(nanos: u64) -> usize {
    BOUNDS_MICROS.partition_point(|bound| bound * 1_000 < nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_falls_into_the_first_bucket_that_holds_it() {
        for (nanos, bound) in [(0, 1), (1_000, 1), (1_001, 2), (20_000_000, 20_000)] {
            let bucket = bucket_of(nanos);
            assert_eq!(BOUNDS_MICROS.get(bucket), Some(&bound), "{nanos}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        let all = Latencies { shards: [const { OnceLock::new() }; SHARDS] };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| all.note(Operation::Envoy, Duration::from_micros(3)));
            }
        });
        let read = all.read(Operation::Envoy);
        assert_eq!((read.count(), read.sum_nanos, read.buckets[2]), (4, 12_000, 4));
        assert_eq!(all.read(Operation::Allow).count(), 0);
    }
}
