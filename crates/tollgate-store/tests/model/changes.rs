//! What changes charges that were made: refunds, settlements, slots and resets.

use tollgate_core::{Algorithm, Limit, Nanos, Receipt, SECOND, SlotId};
use tollgate_store::{Adjustment, Applied, Change, GiveBack, Settlement, Store};
use xxhash_rust::xxh3::xxh3_128;

use crate::driver::{
    Ground, Made, REMEMBERED, Sent, Verdict, World, counter, failed, partition_name, same,
};
use crate::history::{Step, Truth};
use crate::oracle::{ChargeId, Terms, Wanted};

/// Charges that follow a reset so closely may count as made before it.
const RESET_MARGIN: Nanos = SECOND / 1_000;

impl<G: Ground> World<'_, G> {
    pub async fn give_back(&mut self, parts: &[(ChargeId, u64)]) -> Verdict {
        let mut all: Vec<(usize, Limit, Receipt)> = Vec::new();
        for (id, cost) in parts {
            if let Some((refund, _)) = self.refund(*id, *cost) {
                all.push(refund);
            }
        }
        if all.is_empty() {
            return Ok(());
        }
        let partitions = self.partitions();
        let keys: Vec<[&str; 2]> = (all.iter())
            .map(|(at, ..)| [partitions[*at].as_str(), self.names[*at].as_str()])
            .collect();
        let returns: Vec<GiveBack<'_>> = (all.iter().zip(&keys))
            .map(|((_, limit, receipt), key)| GiveBack {
                counter: counter(key),
                limit,
                receipt: *receipt,
            })
            .collect();
        self.ground.store().give_back(&returns, self.now).await.map_err(failed)
    }

    /// Takes so much off a charge on the oracle's side. The receipt with which the store does the same, and how much of the
    /// charge it reports then.
    fn refund(&mut self, id: ChargeId, cost: u64) -> Option<((usize, Limit, Receipt), u64)> {
        let made = self.made.get_mut(&id)?;
        let (counter, limit) = (made.counter, made.limit.clone());
        if limit.algorithm() == Algorithm::Concurrency {
            let made = self.made.remove(&id)?;
            let now = self.now_at(counter);
            self.accounts[counter].release(made.slot, now);
            return Some(((counter, limit, made.receipt), 0));
        }
        let back = cost.min(made.left);
        let (receipt, is_void) = (made.receipt.part(back), made.is_void);
        made.left -= back;
        if made.left == 0 {
            self.made.remove(&id);
        }
        let now = self.now_at(counter);
        let freed = if is_void { 0 } else { self.accounts[counter].refund(id, back, now) };
        (back > 0).then_some(((counter, limit, receipt), freed))
    }

    pub async fn settle(&mut self, id: u32, of: u32, truths: &[Truth]) -> Verdict {
        let (mut adjustments, mut refunded) = (Vec::new(), Vec::new());
        for (place, truth) in truths.iter().enumerate() {
            let charge = (of, place);
            let Some(made) = self.made.get(&charge).cloned() else { continue };
            let is_slot = made.limit.algorithm() == Algorithm::Concurrency;
            let mut freed = 0;
            let change = match truth {
                Truth::Keep => Change::Keep,
                Truth::More(_) if is_slot => Change::Keep,
                Truth::More(cost) => {
                    let (now, terms) = (self.now_at(made.counter), self.charged_under(&made));
                    let wanted = Wanted { cost: *cost, max_delay: None, slot: 0 };
                    let debt = (u32::MAX - id, place);
                    self.accounts[made.counter].charge(debt, terms, wanted, 0, now);
                    Change::Owe(*cost)
                }
                Truth::Less(_) | Truth::Nothing => {
                    let cost = if let Truth::Less(cost) = truth { *cost } else { u64::MAX };
                    let refund = self.refund(charge, cost);
                    refund.map_or(Change::Keep, |((_, _, receipt), of_it)| {
                        freed = of_it;
                        Change::GiveBack(receipt)
                    })
                }
            };
            // What is left of it is not refunded any more.
            let closes = match self.made.remove(&charge) {
                Some(rest) if !is_slot => rest.receipt.part(rest.left),
                _ => Receipt::Nothing,
            };
            adjustments.push((made.counter, made.limit, change, closes));
            refunded.push(freed);
        }
        let name = self.names.first().map_or("", String::as_str);
        let id_sent = xxh3_128(format!("{name} {id}").as_bytes());
        self.sent.insert(id, Sent { id: id_sent, adjustments, refunded });
        self.send_settlement(id, Applied::Now).await
    }

    /// The terms that a charge was made under.
    fn charged_under(&self, made: &Made) -> Terms {
        let quota = made.limit.quota();
        let all = &self.meter(made.counter).terms;
        all.iter().find(|terms| terms.quota == quota).copied().unwrap()
    }

    pub async fn send_settlement(&mut self, id: u32, expected: Applied) -> Verdict {
        let Some(Sent { id, adjustments, refunded }) = self.sent.get(&id) else { return Ok(()) };
        if adjustments.is_empty() {
            return Ok(());
        }
        let partitions = self.partitions();
        let keys: Vec<[&str; 2]> = (adjustments.iter())
            .map(|(at, ..)| [partitions[*at].as_str(), self.names[*at].as_str()])
            .collect();
        let adjustments: Vec<Adjustment<'_>> = (adjustments.iter().zip(&keys))
            .map(|((_, limit, change, closes), key)| Adjustment {
                counter: counter(key),
                limit,
                change: *change,
                closes: *closes,
            })
            .collect();
        let (id, remember) = (*id, REMEMBERED);
        let settlement = Settlement { id, remember, is_here: false, adjustments: &adjustments };
        let adjusted = self.ground.store().settle(&settlement, self.now).await.map_err(failed)?;
        if adjusted != expected {
            return Err(format!("the settlement was applied {adjusted:?}, not {expected:?}"));
        }
        same("refunded", &adjusted.refunded[..], &refunded[..])
    }

    pub async fn renew(&mut self, at: usize, slot: u128) -> Verdict {
        let (now, ttl) = (self.now_at(at), self.meter(at).shape.window);
        let expected = self.accounts[at].renew(slot, ttl, now);
        let (partition, name) = (partition_name(self.meter(at).partition), &self.names[at]);
        let key = [partition.as_str(), name.as_str()];
        let store = self.ground.store();
        let renewed = store.renew(&counter(&key), self.limit(at), SlotId(slot), self.now).await;
        same("renewed", &renewed.map_err(failed)?, &expected)
    }

    pub async fn release(&mut self, at: usize, slot: u128) -> Verdict {
        let now = self.now_at(at);
        let expected = self.accounts[at].release(slot, now);
        let (partition, name) = (partition_name(self.meter(at).partition), &self.names[at]);
        let key = [partition.as_str(), name.as_str()];
        let released = self.ground.store().release(&counter(&key), SlotId(slot), self.now).await;
        same("released", &released.map_err(failed)?, &expected)
    }

    pub async fn slots(&mut self, at: usize) -> Verdict {
        let expected = self.accounts[at].slots(self.now_at(at));
        let (partition, name) = (partition_name(self.meter(at).partition), &self.names[at]);
        let key = [partition.as_str(), name.as_str()];
        let slots = self.ground.store().slots(&counter(&key), self.now).await.map_err(failed)?;
        let mut slots: Vec<(Nanos, u128)> =
            slots.iter().map(|slot| (slot.expires_at, slot.id.0)).collect();
        slots.sort_unstable();
        same("slots", &slots, &expected)
    }

    pub async fn reset(&mut self, at: usize) -> Verdict {
        self.accounts[at].reset();
        // What was charged before is gone: it is still given back and settled, to no effect. Slots have names, and one of
        // a name that is taken again is released by the receipt of the first.
        let is_slots = self.limit(at).algorithm() == Algorithm::Concurrency;
        let before = self.made.values_mut().filter(|made| made.counter == at);
        before.for_each(|made| made.is_void |= !is_slots);
        let (partition, name) = (partition_name(self.meter(at).partition), &self.names[at]);
        let key = [partition.as_str(), name.as_str()];
        self.ground.store().reset(&[counter(&key)], self.now).await.map_err(failed)?;
        self.advance(Step::By(RESET_MARGIN)).await;
        Ok(())
    }
}
