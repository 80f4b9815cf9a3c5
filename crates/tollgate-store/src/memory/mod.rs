//! The memory store: sharded, compact, bounded, and persisted on disk if asked to.
//!
//! A decision over several counters locks their shards in ascending order, examines all, and
//! charges all or none; no other decision can see it half done, and no two can deadlock.

mod fingerprint;
mod group;
mod large;
mod pack;
mod persist;
mod repeat;
mod shard;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tollgate_core::{Limit, Nanos, Outcome, Receipt, SlotId};

use crate::{Charge, Counter, GiveBack, Mode, Outcomes, Request, Store, StoreError};
use fingerprint::{Fingerprint, Hasher, SECRET_BYTES};
use large::Budget;
use persist::Persister;
use repeat::examine_repeat;
use shard::{Found, Shard, is_large};

/// The most shards there are. A power of two.
const MOST_SHARDS: usize = 1024;

/// Below so many counters a shard is not worth its own lock.
const LEAST_COUNTERS_PER_SHARD: usize = 1024;

/// How many counters are kept unless told otherwise: about 400 MB when full.
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
}

/// Counters in this process's memory.
pub struct MemoryStore {
    hasher: Hasher,
    shards: Box<[Mutex<Shard>]>,
    per_shard: usize,
    /// What logs and slots may take, over all shards.
    budget: Arc<Budget>,
    journals: bool,
    persister: Mutex<Option<Persister>>,
}

/// One charge on its way through a decision.
struct Step {
    fingerprint: Fingerprint,
    /// Where its shard's guard is among the held ones.
    guard: usize,
    found: Found,
    /// An earlier charge of the request goes to the same counter.
    is_repeat: bool,
}

type Steps = SmallVec<[Step; 8]>;
type Guards<'a> = SmallVec<[MutexGuard<'a, Shard>; 8]>;

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
        let shards = wanted.min(MOST_SHARDS);
        let per_shard = (max_counters / shards).max(1);
        let budget = Arc::new(Budget::new(max_counters));
        let shard = |_| Mutex::new(Shard::new(per_shard, Arc::clone(&budget), journals));
        Self {
            hasher: Hasher::new(secret),
            shards: (0..shards).map(shard).collect(),
            per_shard,
            budget,
            journals,
            persister: Mutex::new(None),
        }
    }

    /// What it holds. Visits every shard.
    pub fn usage(&self) -> MemoryUsage {
        let mut usage = MemoryUsage::default();
        for shard in &self.shards {
            let shard = shard.lock();
            usage.counters += (shard.table.len() + shard.large.len()) as u64;
            usage.bytes += (shard.table.bytes() + shard.large.bytes()) as u64;
            usage.evicted += shard.evicted + shard.table.evicted_by_rebuild;
        }
        usage.bytes += (self.shards.len() * size_of::<Mutex<Shard>>()) as u64;
        usage
    }

    /// How many removals and large counters the journal is yet to be told of, so that tests see them
    /// bounded.
    #[doc(hidden)]
    pub fn pending_changes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().pending_changes()).sum()
    }

    /// Writes what changed since the last call to disk, if the store is persisted.
    pub fn flush(&self, now: Nanos) {
        if let Some(persister) = self.persister.lock().as_mut() {
            persister.flush(self, now);
        }
    }

    /// Gives back the memory of counters that have become fresh, in one part of `parts` of the
    /// store. Called now and then with part = 0, 1, 2, …; each call locks one shard at a time.
    pub fn tidy(&self, part: usize, parts: usize, now: Nanos) {
        let parts = parts.max(1);
        for shard in self.shards.iter().skip(part % parts).step_by(parts) {
            let mut shard = shard.lock();
            shard.table.tidy(now);
            shard.large.tidy(now);
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
        self.shards.get(self.shard_index(fingerprint))
    }

    #[inline]
    fn fingerprint_of(&self, counter: &Counter<'_>) -> Fingerprint {
        Hasher::fingerprint(self.hasher.key_hash(counter.key), counter.salt)
    }

    /// Decides one request and appends its outcomes.
    #[inline]
    pub fn decide_now(&self, request: &Request<'_>, now: Nanos, outcomes: &mut Outcomes) {
        match request.charges {
            [] => {}
            [only] => outcomes.push(self.decide_single(only, request.mode, now)),
            _ => self.decide_several(request, now, outcomes),
        }
    }

    /// Decides a request of one charge.
    #[inline]
    pub fn decide_single(&self, charge: &Charge<'_>, mode: Mode, now: Nanos) -> Outcome {
        let fingerprint = self.fingerprint_of(&charge.counter);
        let Some(shard) = self.shard_of(fingerprint) else { return nothing_decided(charge, now) };
        let mut shard = shard.lock();
        if mode == Mode::Charge && !is_large(charge.limit) {
            return shard.decide_small(fingerprint, charge.limit, &charge.ask, now);
        }
        let found = shard.find(fingerprint, charge.limit);
        let examination = shard.examine(&found, fingerprint, charge.limit, &charge.ask, now);
        let charges = match mode {
            Mode::Charge => examination.admits(),
            Mode::Peek => false,
            Mode::Owe => true,
        };
        let (receipt, status) = if charges {
            shard.charge(&found, fingerprint, charge.limit, &charge.ask, now)
        } else {
            (Receipt::Nothing, shard.status(&found, fingerprint, charge.limit, now))
        };
        Outcome { examination, status, receipt }
    }

    fn decide_several(&self, request: &Request<'_>, now: Nanos, outcomes: &mut Outcomes) {
        let (mut steps, mut guards) = self.lock(request.charges);
        let first = outcomes.len();
        for (index, charge) in request.charges.iter().enumerate() {
            let (earlier, rest) = steps.split_at_mut(index);
            let Some(step) = rest.first_mut() else { continue };
            let Some(shard) = guards.get(step.guard) else { continue };
            step.found = shard.find(step.fingerprint, charge.limit);
            let limit = charge.limit;
            let examination = if step.is_repeat {
                let decided = outcomes.get(first..).unwrap_or_default();
                examine_repeat(shard, step, earlier, decided, request, now)
            } else {
                shard.examine(&step.found, step.fingerprint, limit, &charge.ask, now)
            };
            outcomes.push(Outcome {
                examination,
                status: shard.status(&step.found, step.fingerprint, limit, now),
                receipt: Receipt::Nothing,
            });
        }
        let Some(mine) = outcomes.get_mut(first..) else { return };
        let charges = match request.mode {
            Mode::Charge => crate::passes(request.charges, mine),
            Mode::Peek => false,
            Mode::Owe => true,
        };
        if !charges {
            return;
        }
        // Entries in place first: an insertion may move others about, and then they are looked up
        // again.
        for insertions in [false, true] {
            for ((step, charge), outcome) in steps.iter_mut().zip(request.charges).zip(&mut *mine) {
                if matches!(step.found, Found::Absent) != insertions {
                    continue;
                }
                if request.mode == Mode::Charge && !outcome.examination.admits() {
                    continue;
                }
                let Some(shard) = guards.get_mut(step.guard) else { continue };
                if insertions || step.is_repeat {
                    step.found = shard.find(step.fingerprint, charge.limit);
                }
                let (found, fingerprint) = (&step.found, step.fingerprint);
                (outcome.receipt, outcome.status) =
                    shard.charge(found, fingerprint, charge.limit, &charge.ask, now);
            }
        }
    }

    /// Locks the shards of all charges in ascending order.
    fn lock(&self, charges: &[Charge<'_>]) -> (Steps, Guards<'_>) {
        let mut steps = Steps::new();
        let mut key_hash = None;
        for charge in charges {
            let counter = &charge.counter;
            let hash = match key_hash {
                Some((key, hash)) if std::ptr::eq(key, counter.key) => hash,
                _ => self.hasher.key_hash(counter.key),
            };
            key_hash = Some((counter.key, hash));
            let fingerprint = Hasher::fingerprint(hash, counter.salt);
            let is_repeat = steps.iter().any(|earlier| earlier.fingerprint == fingerprint);
            let guard = self.shard_index(fingerprint);
            steps.push(Step { fingerprint, guard, found: Found::Absent, is_repeat });
        }
        let mut wanted: SmallVec<[usize; 8]> = steps.iter().map(|step| step.guard).collect();
        wanted.sort_unstable();
        wanted.dedup();
        for step in &mut steps {
            step.guard = wanted.iter().position(|index| *index == step.guard).unwrap_or(0);
        }
        let guards = wanted.iter().filter_map(|index| self.shards.get(*index));
        (steps, guards.map(|shard| shard.lock()).collect())
    }

    /// Undoes one charge.
    pub fn give_back_now(&self, give_back: &GiveBack<'_>, now: Nanos) {
        let fingerprint = self.fingerprint_of(&give_back.counter);
        if let Some(shard) = self.shard_of(fingerprint) {
            shard.lock().give_back(fingerprint, give_back.limit, &give_back.receipt, now);
        }
    }
}

/// There is a shard for every fingerprint, so this is never reached.
fn nothing_decided(charge: &Charge<'_>, now: Nanos) -> Outcome {
    let fresh = charge.limit.fresh();
    Outcome {
        examination: charge.limit.examine(&fresh, &charge.ask, now),
        status: charge.limit.status(&fresh, now),
        receipt: Receipt::Nothing,
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

impl Store for MemoryStore {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Nanos, StoreError> {
        for request in requests {
            self.decide_now(request, now, outcomes);
        }
        Ok(now)
    }

    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        for give_back in returns {
            self.give_back_now(give_back, now);
        }
        Ok(())
    }

    async fn reset(&self, counters: &[Counter<'_>], _now: Nanos) -> Result<(), StoreError> {
        for counter in counters {
            let fingerprint = self.fingerprint_of(counter);
            if let Some(shard) = self.shard_of(fingerprint) {
                shard.lock().remove(fingerprint);
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
}
