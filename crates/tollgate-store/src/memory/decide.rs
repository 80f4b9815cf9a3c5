//! One request over several counters: lock, examine, charge all or none.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tollgate_core::{Examination, Nanos, Outcome, Receipt, Small, Status};

use super::MemoryStore;
use super::fingerprint::{Fingerprint, Hasher};
use super::repeat::examine_repeat;
use super::shard::{Found, Shard, is_large};
use crate::{Charge, Mode, Outcomes, Request};

/// One charge on its way through a decision.
pub(super) struct Step {
    pub(super) fingerprint: Fingerprint,
    /// Where its shard's guard is among the held ones.
    guard: usize,
    pub(super) found: Found,
    /// An earlier charge of the request goes to the same counter.
    is_repeat: bool,
    /// What the counter becomes if the request passes.
    next: Option<Small>,
}

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
        let fingerprint = self.fingerprint_of(&charge.counter);
        let Some(shard) = self.shard_of(fingerprint) else { return nothing_decided(charge, now) };
        let mut shard = take(shard);
        if mode == Mode::Charge && !is_large(charge.limit) {
            return shard.decide_small(fingerprint, charge.limit, &charge.ask, now);
        }
        let found = shard.find(fingerprint, charge.limit);
        let examination = shard.examine(&found, fingerprint, charge.limit, &charge.ask, now);
        // A request of this one charge: a watched one, or one of a group elsewhere, refuses nothing,
        // but is charged only where it fits.
        let charges = mode.charges(examination.admits());
        let (receipt, status) = if charges {
            shard.charge(&found, fingerprint, charge.limit, &charge.ask, now)
        } else {
            (Receipt::Nothing, shard.status(&found, fingerprint, charge.limit, now))
        };
        Outcome { examination, status, receipt }
    }

    fn decide_several(&self, request: &Request<'_>, now: Nanos, outcomes: &mut Outcomes) {
        let (mut steps, mut guards) = (Steps::new(), Guards::new());
        self.lock(request.charges, &mut steps, &mut guards);
        if matches!(request.mode, Mode::Charge | Mode::Hold)
            && steps.iter().all(|step| !step.is_repeat)
        {
            return charge_distinct(request, &mut steps, &mut guards, now, outcomes);
        }
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
            let (status, receipt) = (Status::default(), Receipt::Nothing);
            outcomes.push(Outcome { examination, status, receipt });
        }
        let Some(mine) = outcomes.get_mut(first..) else { return };
        let charges = request.mode.charges(crate::passes_as(request.mode, request.charges, mine));
        // Entries in place first: an insertion may move others about, and then they are looked up
        // again.
        for insertions in [false, true] {
            for ((step, charge), outcome) in steps.iter_mut().zip(request.charges).zip(&mut *mine) {
                if matches!(step.found, Found::Absent) != insertions {
                    continue;
                }
                let Some(shard) = guards.get_mut(step.guard) else { continue };
                if insertions || step.is_repeat {
                    step.found = shard.find(step.fingerprint, charge.limit);
                }
                let (found, fingerprint) = (&step.found, step.fingerprint);
                if charges && (request.mode == Mode::Owe || outcome.examination.admits()) {
                    (outcome.receipt, outcome.status) =
                        shard.charge(found, fingerprint, charge.limit, &charge.ask, now);
                } else {
                    outcome.status = shard.status(found, fingerprint, charge.limit, now);
                }
            }
        }
    }

    /// Locks the shards of all charges in ascending order.
    fn lock<'a>(&'a self, charges: &[Charge<'_>], steps: &mut Steps, guards: &mut Guards<'a>) {
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
            steps.push(Step { fingerprint, guard, found: Found::Absent, is_repeat, next: None });
        }
        let mut wanted = SmallVec::<[usize; 8]>::new();
        wanted.extend(steps.iter().map(|step| step.guard));
        wanted.sort_unstable();
        wanted.dedup();
        for step in steps {
            step.guard = wanted.iter().position(|index| *index == step.guard).unwrap_or(0);
        }
        let shards = wanted.iter().filter_map(|index| self.shards.get(*index));
        guards.extend(shards.map(|shard| take(shard)));
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
    steps: &mut Steps,
    guards: &mut Guards<'_>,
    now: Nanos,
    outcomes: &mut Outcomes,
) {
    let first = outcomes.len();
    for (step, charge) in steps.iter_mut().zip(request.charges) {
        let Some(shard) = guards.get(step.guard) else { continue };
        let (limit, ask) = (charge.limit, &charge.ask);
        step.found = shard.find(step.fingerprint, limit);
        if is_large(limit) {
            let examination = shard.examine(&step.found, step.fingerprint, limit, ask, now);
            let (status, receipt) = (Status::default(), Receipt::Nothing);
            outcomes.push(Outcome { examination, status, receipt });
        } else {
            let mut small = step.found.small(limit);
            outcomes.push(limit.decide_small(&mut small, ask, now));
            step.next = Some(small);
        }
    }
    let Some(mine) = outcomes.get_mut(first..) else { return };
    let passes = crate::passes_as(request.mode, request.charges, mine);
    // Entries in place first: an insertion may move others about, and its own place is looked for
    // anew.
    for insertions in [false, true] {
        for ((step, charge), outcome) in steps.iter().zip(request.charges).zip(&mut *mine) {
            if matches!(step.found, Found::Absent) != insertions {
                continue;
            }
            let Some(shard) = guards.get_mut(step.guard) else { continue };
            let (fingerprint, limit) = (step.fingerprint, charge.limit);
            match (&step.next, passes && outcome.examination.admits()) {
                (Some(next), true) => {
                    shard.commit(&step.found, fingerprint, limit, next, outcome.status.used, now);
                }
                (None, true) => {
                    (outcome.receipt, outcome.status) =
                        shard.charge(&step.found, fingerprint, limit, &charge.ask, now);
                }
                // What was worked out is not what happened.
                (_, false) => {
                    outcome.receipt = Receipt::Nothing;
                    outcome.status = shard.status(&step.found, fingerprint, limit, now);
                }
            }
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
