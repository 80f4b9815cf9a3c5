//! The memory store: sharded, compact, bounded, and persisted on disk if asked to.
//!
//! A decision over several counters locks their shards in ascending order, examines all, and
//! charges all or none; no other decision can see it half done, and no two can deadlock.

mod decide;
mod fingerprint;
mod group;
mod large;
mod pack;
mod persist;
mod records;
mod refund;
mod repeat;
mod shard;
mod table;

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::{Ask, Limit, Nanos, Receipt, Slot, SlotId};

use crate::once::Once;
use crate::{
    Adjusted, Adjustment, Applied, Change, Charge, Counter, Decided, GiveBack, Mode, Outcomes,
    RecordAnswer, RecordAsk, Refunds, Request, Role, Settlement, Store, StoreError, SyncStore,
};
use fingerprint::{Fingerprint, Hasher, SECRET_BYTES};
use large::Budget;
use persist::Persister;
use records::Records;
use shard::Shard;

pub use records::DEFAULT_MAX_RESERVATIONS;

/// The most shards there are. A power of two.
const MAX_SHARDS: usize = 1024;

/// Below so many counters a shard is not worth its own lock.
const LEAST_COUNTERS_PER_SHARD: usize = 1024;

/// How many counters are kept by default: about 400 MB when full.
pub const DEFAULT_MAX_COUNTERS: usize = 10_000_000;

/// How a memory store is made.
#[derive(Debug, Clone)]
pub struct MemoryOptions {
    /// How many counters are kept. A log counts as four and one more for every two entries.
    pub max_counters: usize,
    /// Where counters are kept across restarts; nowhere if absent.
    pub data_dir: Option<PathBuf>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { max_counters: DEFAULT_MAX_COUNTERS, data_dir: None }
    }
}

/// What a memory store holds at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUsage {
    /// Counters kept, those that are fresh but not yet reclaimed included.
    pub counters: u64,
    /// Bytes allocated for them.
    pub bytes: u64,
    /// Counters in use that had to go for want of room, since the start.
    pub evicted: u64,
    /// Refundable charges that became final because their bucket had too many of them, since the start.
    pub finalized_charges: u64,
    /// Times that changes were written to disk, since the start.
    pub flushes: u64,
    /// Records of reservations.
    pub reservations: u64,
    /// Open reservations whose time was over, since the start.
    pub expired_reservations: u64,
}

/// A shard and its lock in one cache line of their own.
#[repr(align(64))]
struct Cell(Mutex<Shard>);

const _: () = assert!(size_of::<Cell>() == 64, "one cache line");

impl Deref for Cell {
    type Target = Mutex<Shard>;

    fn deref(&self) -> &Mutex<Shard> {
        &self.0
    }
}

/// Counters in this process's memory.
pub struct MemoryStore {
    hasher: Hasher,
    shards: Box<[Cell]>,
    per_shard: usize,
    /// What logs and slots may take, over all shards.
    budget: Arc<Budget>,
    journals: bool,
    persister: Mutex<Option<Persister>>,
    flushes: AtomicU64,
    settled: Once<Refunds>,
    records: Records,
}

impl MemoryStore {
    /// A store that forgets everything when dropped.
    pub fn new(max_counters: usize) -> Self {
        Self::with_secret(max_counters, random_secret(), false)
    }

    /// A store as the options say. What is on disk is restored; a file that cannot be is refused
    /// with a warning in the log, and never stops the start.
    pub fn open(options: &MemoryOptions, now: Nanos) -> Self {
        Self::open_folding(options, persist::LEAST_JOURNAL_BYTES, now)
    }

    /// [`MemoryStore::open`] with another size from which on journals are folded into a base, so that
    /// tests reach it.
    #[doc(hidden)]
    pub fn open_folding(options: &MemoryOptions, journal_bytes: u64, now: Nanos) -> Self {
        let Some(dir) = &options.data_dir else { return Self::new(options.max_counters) };
        Self::open_in(dir, options.max_counters, journal_bytes, now).unwrap_or_else(|error| {
            tracing::warn!(dir = %dir.display(), %error,
                "counters are not persisted: the data directory cannot be used");
            Self::new(options.max_counters)
        })
    }

    fn open_in(dir: &Path, counters: usize, journal_bytes: u64, now: Nanos) -> io::Result<Self> {
        let lock = persist::lock(dir)?;
        let store = Self::with_secret(counters, persist::load_or_create_secret(dir)?, true);
        let persister = Persister::open(dir, lock, &store, journal_bytes, now)?;
        *store.persister.lock() = Some(persister);
        Ok(store)
    }

    fn with_secret(max_counters: usize, secret: [u8; SECRET_BYTES], journals: bool) -> Self {
        let wanted = (max_counters / LEAST_COUNTERS_PER_SHARD).max(1).next_power_of_two();
        let shards = wanted.min(MAX_SHARDS);
        let per_shard = (max_counters / shards).max(1);
        let budget = Arc::new(Budget::new(max_counters));
        let shard = |_| Cell(Mutex::new(Shard::new(per_shard, Arc::clone(&budget), journals)));
        Self {
            hasher: Hasher::new(secret),
            shards: (0..shards).map(shard).collect(),
            per_shard,
            budget,
            journals,
            persister: Mutex::new(None),
            flushes: AtomicU64::new(0),
            settled: Once::default(),
            records: Records::new(DEFAULT_MAX_RESERVATIONS),
        }
    }

    /// The same with room for so many reservations.
    #[must_use]
    pub fn with_max_reservations(self, most: usize) -> Self {
        Self { records: Records::new(most), ..self }
    }

    /// What it holds. Visits every shard.
    pub fn usage(&self) -> MemoryUsage {
        let mut usage = MemoryUsage::default();
        for shard in &self.shards {
            let shard = shard.lock();
            usage.counters += (shard.table.len() + shard.rest.large.len()) as u64;
            usage.bytes += (shard.table.bytes() + shard.rest.large.bytes()) as u64;
            usage.evicted += shard.rest.evicted + shard.table.evicted_by_rebuild();
            usage.finalized_charges += shard.rest.finalized;
        }
        usage.bytes += (self.shards.len() * size_of::<Cell>()) as u64;
        usage.flushes = self.flushes.load(Ordering::Relaxed);
        (usage.reservations, usage.expired_reservations) = self.records.usage();
        usage
    }

    /// How many removals and large counters are yet to be written to the journal, so that tests can
    /// check that they are bounded.
    #[doc(hidden)]
    pub fn pending_changes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().pending_changes()).sum()
    }

    /// Writes what changed since the last call to disk, if the store is persisted.
    pub fn flush(&self, now: Nanos) {
        if let Some(persister) = self.persister.lock().as_mut() {
            let is_written = persister.flush(self, now);
            self.flushes.fetch_add(u64::from(is_written), Ordering::Relaxed);
        }
    }

    /// Gives back the memory of counters that have become fresh, in one part of `parts` of the
    /// store. Called now and then with part = 0, 1, 2, …; each call locks one shard at a time.
    pub fn tidy(&self, part: usize, parts: usize, now: Nanos) {
        let parts = parts.max(1);
        for shard in self.shards.iter().skip(part % parts).step_by(parts) {
            let mut shard = shard.lock();
            shard.table.tidy(now);
            shard.rest.large.tidy(now);
            shard.rest.resets.tidy(now);
        }
    }

    fn forget_everything(&self) {
        for shard in &self.shards {
            let budget = Arc::clone(&self.budget);
            *shard.lock() = Shard::new(self.per_shard, budget, self.journals);
        }
    }

    #[inline]
    fn shard_index(&self, fingerprint: Fingerprint) -> usize {
        fingerprint.shard_bits() & (self.shards.len() - 1)
    }

    #[inline]
    fn shard_of(&self, fingerprint: Fingerprint) -> Option<&Mutex<Shard>> {
        self.shards.get(self.shard_index(fingerprint)).map(Deref::deref)
    }

    #[inline]
    fn fingerprint_of(&self, counter: &Counter<'_>) -> Fingerprint {
        Hasher::fingerprint(self.hasher.key_hash(counter.key), counter.salt)
    }

    /// Undoes one charge, and returns how much of it that was.
    pub fn give_back_now(&self, give_back: &GiveBack<'_>, now: Nanos) -> u64 {
        let GiveBack { counter, limit, receipt } = give_back;
        let fingerprint = self.fingerprint_of(counter);
        let Some(shard) = self.shard_of(fingerprint) else { return 0 };
        shard.lock().give_back(fingerprint, limit, receipt, now)
    }

    /// Makes one refundable charge final.
    pub fn close_now(&self, closed: &GiveBack<'_>, now: Nanos) {
        let fingerprint = self.fingerprint_of(&closed.counter);
        if let Some(shard) = self.shard_of(fingerprint) {
            shard.lock().close(fingerprint, closed.limit, &closed.receipt, now);
        }
    }
}

impl MemoryStore {
    /// Makes the changes of a settlement, unless that was done before.
    pub fn settle_now(&self, settlement: &Settlement<'_>, now: Nanos) -> Adjusted {
        let until = now.saturating_add(settlement.remember);
        let adjust = || {
            settlement.adjustments.iter().map(|adjustment| self.adjust(adjustment, now)).collect()
        };
        let (refunded, is_first) = self.settled.run(settlement.id, until, now, adjust);
        Adjusted { applied: if is_first { Applied::Now } else { Applied::Before }, refunded }
    }

    /// Returns how much was given back.
    fn adjust(&self, adjustment: &Adjustment<'_>, now: Nanos) -> u64 {
        let Adjustment { counter, limit, change, closes } = *adjustment;
        if let Receipt::Open { .. } = closes {
            self.close_now(&GiveBack { counter, limit, receipt: closes }, now);
        }
        match change {
            Change::Keep => 0,
            Change::GiveBack(receipt) => {
                self.give_back_now(&GiveBack { counter, limit, receipt }, now)
            }
            Change::Owe(cost) => {
                let charge = Charge { counter, limit, ask: Ask::cost(cost), role: Role::Must };
                self.decide_single(&charge, Mode::Owe, now);
                0
            }
        }
    }

    /// Keeps, ends or renews the record of a reservation.
    pub fn record_now(&self, id: u128, ask: &RecordAsk<'_>, now: Nanos) -> RecordAnswer {
        self.records.ask(id, ask, now)
    }

    /// Whether the record of a reservation is kept here.
    pub fn has_record(&self, id: u128) -> bool {
        self.records.has(id)
    }
}

fn random_secret() -> [u8; SECRET_BYTES] {
    let mut secret = [0; SECRET_BYTES];
    if let Err(error) = getrandom::fill(&mut secret) {
        // Fingerprints still tell keys apart; they can be predicted, which deserves a warning.
        tracing::warn!(%error, "the system gives no random bytes; counters use a known secret");
        secret = [0x5A; SECRET_BYTES];
    }
    secret
}

impl SyncStore for MemoryStore {
    fn decide_sync(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        for request in requests {
            self.decide_now(request, now, outcomes);
        }
        Ok(Decided::at(now))
    }

    fn give_back_sync(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        for give_back in returns {
            self.give_back_now(give_back, now);
        }
        Ok(())
    }

    fn settle_sync(&self, settlement: &Settlement<'_>, now: Nanos) -> Result<Adjusted, StoreError> {
        Ok(self.settle_now(settlement, now))
    }

    fn record_sync(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        Ok(self.record_now(id, ask, now))
    }
}

impl Store for MemoryStore {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        self.decide_sync(requests, now, outcomes)
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        self.give_back_sync(returns, now)
    }

    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        for counter in counters {
            let fingerprint = self.fingerprint_of(counter);
            if let Some(shard) = self.shard_of(fingerprint) {
                shard.lock().reset(fingerprint, now);
            }
        }
        Ok(())
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        let fingerprint = self.fingerprint_of(counter);
        let shard = self.shard_of(fingerprint);
        Ok(shard.is_some_and(|shard| shard.lock().renew(fingerprint, limit, slot, now)))
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        let fingerprint = self.fingerprint_of(counter);
        let shard = self.shard_of(fingerprint);
        Ok(shard.is_some_and(|shard| shard.lock().release(fingerprint, slot, now)))
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        let fingerprint = self.fingerprint_of(counter);
        let shard = self.shard_of(fingerprint);
        Ok(shard.map(|shard| shard.lock().slots(fingerprint, now)).unwrap_or_default())
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        self.settle_sync(settlement, now)
    }

    fn is_in_process(&self) -> bool {
        true
    }

    fn as_sync(&self) -> Option<&dyn SyncStore> {
        Some(self)
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        Ok(self.record_now(id, ask, now))
    }
}
