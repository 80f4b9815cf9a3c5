//! All leases of this node: sharded, so that counters seldom wait for each other, and bounded.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::{Limit, Nanos, Receipt};

use super::figures::LeaseFigures;
use super::key::{ByFingerprint, Owned};
use super::lease::{Lease, Reserved, Wanted};
use super::sizing::Terms;
use crate::{Charge, Counter};

/// A power of two.
const SHARDS: usize = 64;

/// The leases of one shard. Aligned, so that no two shards' locks share a cache line.
#[repr(align(64))]
#[derive(Default)]
pub(super) struct Shard {
    pub(super) leases: ByFingerprint<Lease>,
    /// Charges that were decided here.
    local: u64,
}

pub(super) struct Table {
    shards: Box<[Mutex<Shard>]>,
    /// How many leases a shard may have.
    per_shard: usize,
}

impl Table {
    pub(super) fn new(max_leases: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            per_shard: max_leases.div_ceil(SHARDS).max(1),
        }
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &Mutex<Shard>> {
        self.shards.iter()
    }

    pub(super) const fn per_shard(&self) -> usize {
        self.per_shard
    }

    #[inline]
    fn shard(&self, fingerprint: u128) -> Option<&Mutex<Shard>> {
        self.shards.get(fingerprint as usize & (SHARDS - 1))
    }

    /// How many leases there are, and how many charges were decided on them.
    pub(super) fn usage(&self) -> (usize, u64) {
        self.shards().map(|shard| shard.lock()).fold((0, 0), |(leases, local), shard| {
            (leases + shard.leases.len(), local + shard.local)
        })
    }

    /// Serves a charge from its counter's lease, or says what is to be done. What is given up because
    /// the limit changed goes to `due`.
    #[inline]
    pub(super) fn reserve(
        &self,
        fingerprint: u128,
        charge: &Charge<'_>,
        wanted: &Wanted<'_>,
        at: Nanos,
        (terms, figures): (&Terms<'_>, &LeaseFigures),
        due: impl FnMut(Arc<Owned>, Receipt),
    ) -> Reserved {
        let Some(shard) = self.shard(fingerprint) else { return Reserved::PassOn };
        let mut shard = shard.lock();
        let Shard { leases, local } = &mut *shard;
        let is_full = leases.len() >= self.per_shard;
        let reserved = match leases.get_mut(&fingerprint) {
            Some(lease) if lease.owned.is_under(wanted.limit) => lease.reserve(wanted, at, terms),
            Some(lease) => {
                if !change_limit(lease, &charge.counter, wanted.limit, at, due) {
                    return Reserved::PassOn;
                }
                lease.reserve(wanted, at, terms)
            }
            // A full table is no reason to forget what is leased: newcomers go without.
            None if is_full => Reserved::PassOn,
            None => {
                let owned = Arc::new(Owned::new(&charge.counter, wanted.limit));
                let strayed = figures.of_rule(owned.rule_id());
                let mut lease = Lease::new(owned, strayed);
                let reserved = lease.reserve(wanted, at, terms);
                leases.insert(fingerprint, lease);
                reserved
            }
        };
        if matches!(reserved, Reserved::Spent(..) | Reserved::Refused(_)) {
            *local += 1;
        }
        reserved
    }

    /// Serves a charge that has waited for a fetch.
    pub(super) fn reserve_after_wait(
        &self,
        fingerprint: u128,
        wanted: &Wanted<'_>,
        at: Nanos,
    ) -> Reserved {
        self.with(fingerprint, |lease| lease.reserve_after_wait(wanted, at))
            .unwrap_or(Reserved::PassOn)
    }

    /// Does something with a counter's lease, if there is one.
    pub(super) fn with<R>(
        &self,
        fingerprint: u128,
        act: impl FnOnce(&mut Lease) -> R,
    ) -> Option<R> {
        self.shard(fingerprint)?.lock().leases.get_mut(&fingerprint).map(act)
    }
}

/// The limit of a counter has changed: what was taken under the old one goes back, and all that was
/// known is forgotten. Not while a fetch is on its way, which would land on the wrong one.
#[cold]
fn change_limit(
    lease: &mut Lease,
    counter: &Counter<'_>,
    limit: &Limit,
    at: Nanos,
    mut due: impl FnMut(Arc<Owned>, Receipt),
) -> bool {
    if lease.flight.is_some() {
        return false;
    }
    for receipt in lease.surrender(at) {
        due(Arc::clone(&lease.owned), receipt);
    }
    let strayed = lease.strayed();
    *lease = Lease::new(Arc::new(Owned::new(counter, limit)), strayed);
    true
}
