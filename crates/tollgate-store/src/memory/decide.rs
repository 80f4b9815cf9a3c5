//! One request over several counters: lock, examine, charge all or none.

use std::hash::Hash;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tollgate_core::{Ask, Examination, Limit, Nanos, Outcome, Receipt, Status};

use super::MemoryStore;
use super::fingerprint::{Fingerprint, Hasher};
use super::pack::Packed;
use super::repeat::examine_repeat;
use super::shard::{Shard, is_large};
use super::table::Place;
use crate::{Charge, Mode, Outcomes, REFUSED, Request, Role, report_broken};

/// One charge on its way through a decision.
pub(super) struct Step {
    pub(super) fingerprint: Fingerprint,
    /// Where its shard's guard is among the held ones.
    guard: u32,
    /// An earlier charge of the request goes to the same counter.
    is_repeat: bool,
}

/// What the entry of a counter becomes if the request passes. `None`: it is looked for again and charged,
/// being new, or a log, or too large for an entry.
type Next = Option<(Place, Packed)>;

type Steps = SmallVec<[Step; 8]>;
type Guards<'a> = SmallVec<[MutexGuard<'a, Shard>; 8]>;

impl MemoryStore {
    /// Decides one request and appends its outcomes.
    #[inline]
    pub fn decide_now(&self, request: &Request<'_>, now: Nanos, outcomes: &mut Outcomes) {
        match request.charges {
            [] => {}
            [only] => outcomes.push(self.decide_single(only, request.mode, now)),
            _ => self.decide_several(request, now, outcomes),
        }
    }

    /// Charges one counter if it has room, and says whether it had: for callers who need no figures.
    #[inline]
    pub fn pass(&self, charge: &Charge<'_>, now: Nanos) -> Examination {
        // Once inlined, what is not asked for is not worked out.
        self.decide_single(charge, Mode::Charge, now).examination
    }

    /// Decides a request of one charge.
    #[inline]
    pub fn decide_single(&self, charge: &Charge<'_>, mode: Mode, now: Nanos) -> Outcome {
        // The only charge of a request that refuses nothing: it passes.
        let mode = match (charge.role, mode) {
            (Role::Alongside, Mode::Charge | Mode::Hold) => Mode::Owe,
            (_, mode) => mode,
        };
        self.decide_at(self.fingerprint_of(&charge.counter), charge.limit, &charge.ask, mode, now)
    }

    /// Decides a charge to the counter of any key that hashes. It is for a store that one limit has for itself: the keys of
    /// [`crate::Counter`] are hashed in another way.
    #[inline]
    pub fn decide_keyed<K: Hash + ?Sized>(
        &self,
        key: &K,
        limit: &Limit,
        ask: &Ask,
        mode: Mode,
        now: Nanos,
    ) -> Outcome {
        self.decide_at(self.hasher.fingerprint_of_key(key), limit, ask, mode, now)
    }

    /// Resets the counter of a key that [`MemoryStore::decide_keyed`] has charged.
    pub fn reset_keyed<K: Hash + ?Sized>(&self, key: &K, now: Nanos) {
        let fingerprint = self.hasher.fingerprint_of_key(key);
        if let Some(shard) = self.shard_of(fingerprint) {
            shard.lock().reset(fingerprint, now);
        }
    }

    #[inline]
    fn decide_at(
        &self,
        fingerprint: Fingerprint,
        limit: &Limit,
        ask: &Ask,
        mode: Mode,
        now: Nanos,
    ) -> Outcome {
        let Some(shard) = self.shard_of(fingerprint) else { return no_shard() };
        let mut shard = take(shard);
        if mode == Mode::Charge && !is_large(limit) && !limit.opens_charge(ask) {
            return shard.decide_small(fingerprint, limit, ask, now);
        }
        let found = shard.find(fingerprint, limit);
        let examination = shard.examine(&found, fingerprint, limit, ask, now);
        // The request has only this charge: a watched one, or one of a group whose other charges
        // are decided in other calls, refuses nothing, but is charged only where it fits.
        let charges = mode.charges(examination.admits());
        let (receipt, status) = if charges {
            shard.charge(&found, fingerprint, limit, ask, now)
        } else {
            (Receipt::Nothing, shard.status(&found, fingerprint, limit, now))
        };
        Outcome { examination, status, receipt }
    }

    fn decide_several(&self, request: &Request<'_>, now: Nanos, outcomes: &mut Outcomes) {
        let (mut steps, mut guards) = (Steps::new(), Guards::new());
        let is_simple = self.lock(request.charges, &mut steps, &mut guards);
        if is_simple && matches!(request.mode, Mode::Charge | Mode::Hold) {
            charge_distinct(request, &steps, &mut guards, now, outcomes);
        } else {
            decide_any(request, &steps, &mut guards, now, outcomes);
        }
    }

    /// Locks the shards of all charges in ascending order. True if all go to different counters, and none is charged
    /// above its limit.
    fn lock<'a>(
        &'a self,
        charges: &[Charge<'_>],
        steps: &mut Steps,
        guards: &mut Guards<'a>,
    ) -> bool {
        let mut is_simple = true;
        let mut known: Option<(&[&str], u128)> = None;
        // Shards before the numbers of their charges, so that both are sorted at once.
        let mut wanted = SmallVec::<[u64; 8]>::new();
        for (number, charge) in (0..).zip(charges) {
            let counter = &charge.counter;
            let hash = match known {
                Some((key, hash)) if std::ptr::eq(key, counter.key) => hash,
                _ => self.hasher.key_hash(counter.key),
            };
            known = Some((counter.key, hash));
            let fingerprint = Hasher::fingerprint(hash, counter.salt);
            let is_repeat = steps.iter().any(|earlier| earlier.fingerprint == fingerprint);
            is_simple &= !is_repeat && charge.role != Role::Alongside;
            steps.push(Step { fingerprint, guard: 0, is_repeat });
            wanted.push((self.shard_index(fingerprint) as u64) << u32::BITS | number);
        }
        wanted.sort_unstable();
        let (mut held, steps) = (None, steps.as_mut_slice());
        for one in &wanted {
            let (shard, number) = ((*one >> u32::BITS) as usize, *one as u32 as usize);
            if held != Some(shard)
                && let Some(shard) = self.shards.get(shard)
            {
                guards.push(take(shard));
            }
            held = Some(shard);
            if let Some(step) = steps.get_mut(number) {
                step.guard = (guards.len() as u32).saturating_sub(1);
            }
        }
        is_simple
    }
}

/// Decides a request of any kind: one that only looks, one that owes, one with charges above their limits, and one that
/// charges the same counter more than once.
fn decide_any(
    request: &Request<'_>,
    steps: &[Step],
    guards: &mut [MutexGuard<'_, Shard>],
    now: Nanos,
    outcomes: &mut Outcomes,
) {
    let first = outcomes.len();
    for ((index, step), charge) in steps.iter().enumerate().zip(request.charges) {
        let Some(shard) = guards.get(step.guard as usize) else {
            outcomes.push(no_shard());
            continue;
        };
        let limit = charge.limit;
        let found = shard.find(step.fingerprint, limit);
        let examination = if step.is_repeat {
            let decided = outcomes.get(first..).unwrap_or_default();
            let earlier = steps.get(..index).unwrap_or_default();
            examine_repeat(shard, (step, &found), earlier, decided, request, now)
        } else {
            shard.examine(&found, step.fingerprint, limit, &charge.ask, now)
        };
        let (status, receipt) = (Status::default(), Receipt::Nothing);
        outcomes.push(Outcome { examination, status, receipt });
    }
    let Some(mine) = outcomes.get_mut(first..) else { return };
    let charges = request.mode.charges(crate::passes_as(request.mode, request.charges, mine));
    // Each is looked up right before: a charge before it may have moved its entry, or dropped it.
    for ((step, charge), outcome) in steps.iter().zip(request.charges).zip(mine) {
        let Some(shard) = guards.get_mut(step.guard as usize) else { continue };
        let (fingerprint, limit) = (step.fingerprint, charge.limit);
        let found = shard.find(fingerprint, limit);
        if charges && (request.mode.owes(charge.role) || outcome.examination.admits()) {
            (outcome.receipt, outcome.status) =
                shard.charge(&found, fingerprint, limit, &charge.ask, now);
        } else {
            outcome.status = shard.status(&found, fingerprint, limit, now);
        }
    }
}

/// How often a taken lock is looked at, each time after a pause twice as long, before the thread goes
/// to sleep for it. Pauses let the holder make several decisions in a row, while the shard is in its
/// own cache.
const LOOKS: u32 = 5;

/// Locks a shard. Looking costs the holder nothing; trying would.
#[inline]
fn take(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    match shard.try_lock() {
        Some(guard) => guard,
        None => take_contended(shard),
    }
}

#[cold]
fn take_contended(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    for look in 0..LOOKS {
        for _ in 0..16 << look {
            std::hint::spin_loop();
        }
        if !shard.is_locked()
            && let Some(guard) = shard.try_lock()
        {
            return guard;
        }
    }
    shard.lock()
}

/// Charges a request whose counters are all different, which nearly all are: every counter is
/// worked out once, and written back if all of them pass.
fn charge_distinct(
    request: &Request<'_>,
    steps: &[Step],
    guards: &mut [MutexGuard<'_, Shard>],
    now: Nanos,
    outcomes: &mut Outcomes,
) {
    let first = outcomes.len();
    let mut nexts = SmallVec::<[Next; 8]>::new();
    let mut all_in_place = true;
    for (step, charge) in steps.iter().zip(request.charges) {
        let Some(shard) = guards.get(step.guard as usize) else {
            nexts.push(None);
            all_in_place = false;
            outcomes.push(no_shard());
            continue;
        };
        let (outcome, next) = shard.work_out(step.fingerprint, charge.limit, &charge.ask, now);
        outcomes.push(outcome);
        all_in_place &= next.is_some();
        nexts.push(next);
    }
    let Some(mine) = outcomes.get_mut(first..) else { return };
    let passes = crate::passes_as(request.mode, request.charges, mine);
    // Entries in place first: an insertion may move others about, and its own place is looked for
    // anew.
    let all = steps.iter().zip(&nexts).zip(request.charges).zip(&mut *mine);
    for (((step, next), charge), outcome) in all {
        let Some((place, packed)) = next else { continue };
        let Some(shard) = guards.get_mut(step.guard as usize) else { continue };
        if !outcome.examination.admits() {
            continue;
        }
        if passes {
            shard.overwrite(*place, *packed, charge.limit, outcome.status.used);
        } else {
            // What was worked out is not what happened.
            outcome.receipt = Receipt::Nothing;
            let found = shard.find(step.fingerprint, charge.limit);
            outcome.status = shard.status(&found, step.fingerprint, charge.limit, now);
        }
    }
    if all_in_place {
        return;
    }
    let all = steps.iter().zip(&nexts).zip(request.charges).zip(mine);
    for (((step, next), charge), outcome) in all {
        if next.is_some() {
            continue;
        }
        let Some(shard) = guards.get_mut(step.guard as usize) else { continue };
        let (fingerprint, limit) = (step.fingerprint, charge.limit);
        let found = shard.find(fingerprint, limit);
        if passes && outcome.examination.admits() {
            (outcome.receipt, outcome.status) =
                shard.charge(&found, fingerprint, limit, &charge.ask, now);
        } else {
            outcome.receipt = Receipt::Nothing;
            outcome.status = shard.status(&found, fingerprint, limit, now);
        }
    }
}

/// There is a shard for every fingerprint. If there were none, the charge could not be counted, so it is
/// refused.
#[cold]
fn no_shard() -> Outcome {
    report_broken("a counter has no shard in the memory store");
    REFUSED
}
