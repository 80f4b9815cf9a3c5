//! Where a gate keeps its counters.

#[cfg(feature = "redis")]
mod redis;

use std::fmt;

use tollgate_core::Nanos;
use tollgate_store::MemoryStore;

use crate::Error;
use crate::housekeeping::TIDY_PARTS;

#[cfg(feature = "redis")]
pub use redis::Redis;

#[cfg(feature = "redis")]
pub(crate) use redis::GateStore;
/// The only kind of store without the feature `redis`.
#[cfg(not(feature = "redis"))]
pub(crate) type GateStore = MemoryStore;

/// A store that [`GateBuilder::store`](crate::GateBuilder::store) takes: made of [`Memory`], or with the feature `redis` of `Redis`.
///
/// ```
/// use tollgate::{Memory, Storage};
///
/// // Chosen at run time.
/// let storage: Storage = Memory::counters(10_000).into();
/// # let _ = storage;
/// ```
pub struct Storage(Kind);

enum Kind {
    Memory {
        max_counters: usize,
    },
    #[cfg(feature = "redis")]
    Redis(Box<Redis>),
}

impl Storage {
    pub(crate) const fn memory(max_counters: usize) -> Self {
        Self(Kind::Memory { max_counters })
    }

    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unnecessary_wraps, reason = "Redis may have a wrong address")
    )]
    pub(crate) fn open(self) -> Result<GateStore, Error> {
        match self.0 {
            Kind::Memory { max_counters } => Ok(GateStore::memory(max_counters)),
            #[cfg(feature = "redis")]
            Kind::Redis(redis) => redis.open(),
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Memory { max_counters } => write!(f, "Memory({max_counters} counters)"),
            #[cfg(feature = "redis")]
            Kind::Redis(redis) => redis.fmt(f),
        }
    }
}

/// Counters in this process.
///
/// ```
/// use tollgate::{Gate, Memory, Quota, Rule};
///
/// let rule = Rule::per("ip").quota(Quota::per_minute(60));
/// let gate = Gate::builder().rule(rule).store(Memory::counters(50_000)).build()?;
/// # let _ = gate;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    max_counters: usize,
}

impl Memory {
    /// Room for this many counters. When all are in use, the one that is nearest to its reset is evicted.
    ///
    /// ```
    /// # use tollgate::{Gate, Memory};
    /// let builder = Gate::builder().store(Memory::counters(1_000));
    /// # let _ = builder;
    /// ```
    pub const fn counters(max_counters: usize) -> Self {
        Self { max_counters }
    }
}

impl From<Memory> for Storage {
    fn from(memory: Memory) -> Self {
        Self::memory(memory.max_counters)
    }
}

#[cfg(feature = "redis")]
impl From<Redis> for Storage {
    fn from(redis: Redis) -> Self {
        Self(Kind::Redis(Box::new(redis)))
    }
}

/// What a gate asks of its store beside decisions.
pub(crate) trait Opened: Sized {
    fn memory(max_counters: usize) -> Self;
    fn tidy_round(&self, round: usize, now: Nanos);
}

impl Opened for MemoryStore {
    fn memory(max_counters: usize) -> Self {
        Self::new(max_counters)
    }

    fn tidy_round(&self, round: usize, now: Nanos) {
        self.tidy(round, TIDY_PARTS, now);
    }
}
