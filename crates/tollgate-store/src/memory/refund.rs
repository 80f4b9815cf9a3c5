//! Buckets with refundable charges, and giving charges back.

use tollgate_core::{Ask, Limit, Nanos, Receipt, State, Status};

use super::fingerprint::Fingerprint;
use super::large::Unsaved;
use super::pack::pack;
use super::shard::{Found, Shard, level};
use super::table::Inserted;

impl Shard {
    /// Charges a bucket that has refundable charges, or is charged one.
    #[cold]
    pub(super) fn charge_open(
        &mut self,
        found: &Found,
        fingerprint: Fingerprint,
        limit: &Limit,
        ask: &Ask,
        now: Nanos,
    ) -> (Receipt, Status) {
        if let Found::Packed(place, _) = found {
            self.table.remove(*place);
        }
        let state = State::Small(found.small(limit));
        let charged = self.charge_large(state, fingerprint, limit, ask, now);
        self.pack_again(fingerprint, limit, now);
        charged
    }

    /// Puts a bucket without refundable charges back into the table.
    fn pack_again(&mut self, fingerprint: Fingerprint, limit: &Limit, now: Nanos) {
        let Some(large) = self.rest.large.get(fingerprint) else { return };
        let State::Small(small) = large.state else { return };
        let level = large.level;
        if large.fresh_at <= now {
            self.remove(fingerprint);
        } else if let Some(packed) = pack(&small, limit) {
            self.rest.large.remove(fingerprint);
            if self.table.insert(fingerprint, packed, level, now) == Inserted::ByEviction {
                self.rest.evicted += 1;
            }
        }
    }

    /// Undoes a charge, and returns how much of it that was.
    pub(crate) fn give_back(
        &mut self,
        fingerprint: Fingerprint,
        limit: &Limit,
        receipt: &Receipt,
        now: Nanos,
    ) -> u64 {
        if self.rest.resets.voids(fingerprint, receipt) {
            return 0;
        }
        let found = self.find(fingerprint, limit);
        let mut returned = 0;
        match found {
            Found::Absent => {}
            Found::Large | Found::Open(_) => {
                let fresh = self.rest.large.change(fingerprint, |large| {
                    returned = limit.give_back(&mut large.state, receipt, now);
                    large.fresh_at = limit.fresh_at(&large.state);
                    large.level = level(limit, limit.status(&large.state, now).used);
                    large.unsaved = Unsaved::All;
                    large.fresh_at <= now
                });
                if fresh == Some(true) {
                    self.remove(fingerprint);
                } else if matches!(found, Found::Open(_)) {
                    self.pack_again(fingerprint, limit, now);
                }
            }
            Found::Packed(..) | Found::Oversized(_) => {
                let before = found.small(limit);
                let mut small = before;
                returned = limit.give_back_small(&mut small, receipt, now);
                // A receipt of a charge that is gone changes nothing, not even the rounding under another quota.
                if small == before {
                    return 0;
                }
                if small.fresh_at(limit.window_nanos()) <= now {
                    self.remove(fingerprint);
                } else {
                    let used = limit.status_small(&small, now).used;
                    self.write(&found, fingerprint, limit, &small, used, now);
                }
            }
        }
        self.is_dirty = true;
        returned
    }

    /// Makes a refundable charge final.
    pub(crate) fn close(
        &mut self,
        fingerprint: Fingerprint,
        limit: &Limit,
        receipt: &Receipt,
        now: Nanos,
    ) {
        if self.rest.resets.voids(fingerprint, receipt) {
            return;
        }
        if let Found::Open(_) = self.find(fingerprint, limit) {
            self.rest.large.change(fingerprint, |large| {
                limit.close(&mut large.state, receipt, now);
                large.unsaved = Unsaved::All;
            });
            self.pack_again(fingerprint, limit, now);
            self.is_dirty = true;
        }
    }
}
