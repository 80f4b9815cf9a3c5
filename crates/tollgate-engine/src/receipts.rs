//! What a decision charged, kept beyond the rules it was made by, so that it can be given back, or
//! settled when the true cost is known.

use smallvec::SmallVec;
use tollgate_core::{Limit, Nanos, Receipt, SECOND, SlotId};
use tollgate_policy::prices::{Currency, Money, Price};
use tollgate_policy::{RuleSet, Unit};
use tollgate_store::{
    Adjusted, Adjustment, Applied, Change, Consistency, Counter, GiveBack, Home, Settlement, Store,
    SyncStore,
};

use crate::debt::{changed_limit, max_owed};
use crate::decision::{Decision, applied};
use crate::ledger::Spend;
use crate::limit_checks::Stores;
use crate::observer::{HoldChange, HoldChanged, link_of};
use crate::{Actual, Amounts, Engine, EngineError, Request};

/// For how long a settlement is remembered beside the counters it changed: as long as anybody may
/// repeat it, and somewhat longer.
pub(crate) const SETTLEMENT_REMEMBERED: Nanos = crate::reservations::ENDED_RETENTION + 60 * SECOND;

/// What one decision charged. Good for one give-back, or for one settlement under one id.
#[derive(Debug, Clone, Default)]
pub struct Receipts {
    pub(crate) parts: Vec<Part>,
    /// A fallback of this node decided: no other node can give it back or settle it.
    pub(crate) is_here: bool,
    /// What its money is, where it charged any: one request has one currency.
    pub(crate) currency: Option<Currency>,
    /// What the model cost at admission, where its money was priced.
    pub(crate) price: Option<Box<Price>>,
    /// Whether it charged a hard budget. Not among the bytes of a record: only this process asks for it.
    pub(crate) is_hard: bool,
    /// What a ledger is to know when it is settled.
    pub(crate) spend: Option<Box<Spend>>,
    /// [`Decision::hold_link`], where the caller keeps them; 0 for those of a record.
    pub(crate) link: u64,
}

/// One charge.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) unit: Unit,
    pub(crate) rule_id: String,
    pub(crate) tag: Box<str>,
    pub(crate) salt: u128,
    pub(crate) key: Vec<String>,
    pub(crate) home: Home,
    pub(crate) limit: Limit,
    pub(crate) receipt: Receipt,
    /// It is counted by another node alone, and stays as it is.
    pub(crate) is_remote: bool,
}

/// What a settlement changed, per request: every limit of a unit changed by that much, or by less
/// where less was charged to it. An amount of 0 is absent.
///
/// Refunded is what the counters gave back, and not what was asked for: a window that is over, a bucket that was empty since,
/// a counter that was reset, and a charge that became final for want of room give back nothing; a bucket that has drained
/// since gives back the part that it still held, reported in whole units. What a store that does not
/// answer gives back later counts as refunded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settled {
    /// What was given back.
    pub refunded: Amounts,
    /// What was used beyond what was reserved. A bucket owes no more of it than it pays off within a bound.
    pub extra: Amounts,
}

impl Part {
    /// What was charged.
    const fn cost(&self) -> u64 {
        self.receipt.cost()
    }

    /// What becomes of the charge when the truth is known.
    fn change(&self, truth: &Amounts) -> Change {
        if self.is_remote {
            return Change::Keep;
        }
        if let Receipt::Slot(_) = self.receipt {
            return Change::GiveBack(self.receipt);
        }
        let truth = match self.unit {
            Unit::Requests | Unit::Concurrency => None,
            unit => truth.get(unit),
        };
        let charged = self.cost();
        match truth {
            Some(truth) if truth < charged => {
                // The last of it goes back: what was used came first.
                Change::GiveBack(self.receipt.part(charged - truth))
            }
            Some(truth) if truth > charged => Change::Owe(truth - charged),
            _ => Change::Keep,
        }
    }

    /// What stays of the charge after such a change.
    fn kept(&self, change: &Change) -> Receipt {
        match *change {
            _ if self.is_remote => Receipt::Nothing,
            Change::Keep | Change::Owe(_) => self.receipt,
            Change::GiveBack(Receipt::Open { cost, .. }) if cost < self.cost() => {
                self.receipt.part(self.cost() - cost)
            }
            Change::GiveBack(_) => Receipt::Nothing,
        }
    }

    const fn undone(&self) -> Change {
        if self.is_remote { Change::Keep } else { Change::GiveBack(self.receipt) }
    }

    pub(crate) fn parts(&self) -> SmallVec<[&str; 8]> {
        self.key.iter().map(String::as_str).collect()
    }

    pub(crate) fn counter<'a>(&'a self, key: &'a [&'a str]) -> Counter<'a> {
        let Self { rule_id, tag, salt, home, .. } = self;
        Counter { rule_id, tag, salt: *salt, key, home: *home }
    }

    /// Whether a secret is among the values of its key that is not concealed.
    pub(crate) const fn has_open_secret(&self) -> bool {
        self.home.secret_parts & !self.home.concealed_parts != 0
    }

    pub(crate) fn is_local(&self) -> bool {
        self.home.consistency == Consistency::Local
    }
}

impl Receipts {
    /// True if nothing was charged.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The slots among it, which are given back when the request is done; the rest stays charged.
    #[must_use]
    pub fn slots(mut self) -> Self {
        self.parts.retain(|part| matches!(part.receipt, Receipt::Slot(_)));
        self.spend = None;
        self
    }

    /// All but the slots.
    #[must_use]
    pub fn without_slots(mut self) -> Self {
        self.parts.retain(|part| !matches!(part.receipt, Receipt::Slot(_)));
        self
    }

    /// True if it is slots, and nothing else.
    pub(crate) fn is_only_slots(&self) -> bool {
        let is_slot = |part: &Part| matches!(part.receipt, Receipt::Slot(_));
        !self.is_empty() && self.parts.iter().all(is_slot)
    }

    /// How long the slots among it are held unless renewed, the shortest of them.
    pub fn slot_ttl(&self) -> Option<Nanos> {
        self.slot_ttls().min()
    }

    /// The same, the longest of them.
    pub(crate) fn longest_slot_ttl(&self) -> Option<Nanos> {
        self.slot_ttls().max()
    }

    fn slot_ttls(&self) -> impl Iterator<Item = Nanos> {
        let slots = self.parts.iter().filter(|part| matches!(part.receipt, Receipt::Slot(_)));
        slots.map(|part| part.limit.slot_ttl())
    }

    /// The slot that it holds, if any.
    pub fn slot(&self) -> Option<SlotId> {
        self.parts.iter().find_map(|part| match part.receipt {
            Receipt::Slot(slot) => Some(slot),
            _ => None,
        })
    }

    /// The tokens that were charged: the most of what any limit of that unit was charged.
    pub fn tokens(&self) -> u64 {
        self.charged(Unit::Tokens).unwrap_or(0)
    }

    /// The cost that was charged, in the same way.
    pub fn cost(&self) -> u64 {
        self.charged(Unit::Cost).unwrap_or(0)
    }

    /// The money that was charged, in the same way.
    pub fn money(&self) -> Option<Money> {
        let nanos = self.charged(Unit::Money)?;
        self.currency.map(|currency| Money { currency, nanos })
    }

    /// Fails a truth that these charges cannot be settled by.
    pub(crate) fn check_truth(&self, actual: &Actual) -> Result<(), EngineError> {
        let Some(part) = self.parts.iter().find(|part| part.unit == Unit::Money) else {
            return Ok(());
        };
        match (actual.amounts.money, self.currency) {
            (Some(money), Some(expected)) if money.currency != expected => {
                let (rule_id, given) = (part.rule_id.clone(), money.currency);
                Err(EngineError::OtherCurrency { rule_id, expected, given })
            }
            (None, _) if actual.usage.is_some() && self.price.is_none() => {
                Err(EngineError::ReservationUnpriced)
            }
            _ => Ok(()),
        }
    }

    /// The truth by unit: money that is not stated is the price of the usage, as it was at admission.
    pub(crate) fn truth(&self, actual: &Actual) -> Amounts {
        let price = || actual.amounts.priced(self.price.as_ref()?, actual.usage);
        let money = actual.amounts.money.or_else(price);
        let money = money.filter(|money| self.currency == Some(money.currency));
        Amounts { money, ..actual.amounts }
    }

    fn charged(&self, unit: Unit) -> Option<u64> {
        self.parts.iter().filter(|part| part.unit == unit).map(Part::cost).max()
    }

    /// What settling it with this truth comes to, if the store gave so much of each part back.
    pub(crate) fn settled(&self, truth: &Amounts, refunds: &[u64]) -> Settled {
        let extra = self.amounts(|unit| {
            let (charged, truth) = (self.charged(unit)?, truth.get(unit)?);
            Some(truth.saturating_sub(charged))
        });
        let refunded = self.amounts(|unit| {
            let parts = self.parts.iter().zip(refunds);
            parts.filter(|(part, _)| part.unit == unit).map(|(_, back)| *back).max()
        });
        Settled { refunded, extra }
    }

    /// Figures by unit; those that are 0 are absent.
    fn amounts(&self, of: impl Fn(Unit) -> Option<u64>) -> Amounts {
        let of = |unit| of(unit).filter(|amount| *amount > 0);
        let money = || Some(Money { nanos: of(Unit::Money)?, currency: self.currency? });
        Amounts {
            cost: of(Unit::Cost),
            tokens: of(Unit::Tokens),
            input_tokens: of(Unit::InputTokens),
            output_tokens: of(Unit::OutputTokens),
            cached_tokens: of(Unit::CachedTokens),
            money: money(),
        }
    }

    /// The keys of its counters, one for each part.
    pub(crate) fn keys(&self) -> Vec<SmallVec<[&str; 8]>> {
        self.parts.iter().map(Part::parts).collect()
    }

    /// All of it as the store undoes it.
    pub(crate) fn returns<'a, 'k: 'a>(
        &'a self,
        keys: &'a [SmallVec<[&'k str; 8]>],
    ) -> Vec<GiveBack<'a>> {
        let parts = self.parts.iter().zip(keys);
        let returned = |(part, key): (&'a Part, &'a SmallVec<[&'k str; 8]>)| GiveBack {
            counter: part.counter(key),
            limit: &part.limit,
            receipt: part.receipt,
        };
        parts.map(returned).collect()
    }

    /// A change of each part, as the store makes it.
    fn adjustments<'a, 'k: 'a>(
        &'a self,
        keys: &'a [SmallVec<[&'k str; 8]>],
        rules: &'a RuleSet,
        change: impl Fn(&Part) -> Change,
    ) -> Vec<Adjustment<'a>> {
        let parts = self.parts.iter().zip(keys);
        let adjusted = |(part, key): (&'a Part, &'a SmallVec<[&'k str; 8]>)| {
            let (counter, limit, change) = (part.counter(key), &part.limit, change(part));
            let Change::Owe(extra) = change else {
                return Adjustment { counter, limit, change, closes: part.kept(&change) };
            };
            // The entry of the charge is of the other limit, and stays until its bucket is empty.
            let (limit, closes) = match changed_limit(rules, part) {
                Some(now) => (now, Receipt::Nothing),
                None => (limit, part.kept(&change)),
            };
            Adjustment { counter, limit, change: Change::Owe(extra.min(max_owed(limit))), closes }
        };
        parts.map(adjusted).collect()
    }

    /// What happened to it. Those of a record are named by its id.
    pub(crate) fn change(&self, id: u128, at: Nanos, how: HoldChanged) -> HoldChange {
        let is_slot = |part: &Part| matches!(part.receipt, Receipt::Slot(_));
        HoldChange {
            link: if self.link == 0 { link_of(id) } else { self.link },
            at,
            has_slots: self.parts.iter().any(is_slot),
            has_charges: !self.parts.iter().all(is_slot),
            how,
        }
    }

    const fn settlement<'a>(&self, id: u128, adjustments: &'a [Adjustment<'a>]) -> Settlement<'a> {
        Settlement { id, remember: SETTLEMENT_REMEMBERED, is_here: self.is_here, adjustments }
    }
}

impl<S: Store> Engine<S> {
    /// What this decision charged; nothing if it only looked, or refused.
    pub fn receipts(&self, request: &Request<'_>, decision: &Decision<'_>) -> Receipts {
        let stores = Stores::new(&self.store, request);
        let charged = |scope: &&crate::Scope<'_>| scope.outcome.receipt != Receipt::Nothing;
        let part = |scope: &crate::Scope<'_>| {
            let one = applied(&decision.resolution, scope.applied())?;
            Some(Part {
                unit: scope.rule.unit,
                rule_id: scope.rule.id.clone(),
                tag: scope.limit.tag.as_str().into(),
                salt: scope.limit.salt,
                key: one.key.iter().map(|value| (*value).to_owned()).collect(),
                home: stores.home(scope.rule, &one.key),
                limit: scope.exact.clone(),
                receipt: scope.outcome.receipt,
                is_remote: false,
            })
        };
        let has_money = |scope: &crate::Scope<'_>| scope.rule.unit == Unit::Money;
        let priced = decision.scopes.iter().filter(charged).find(|scope| has_money(scope));
        Receipts {
            parts: decision.scopes.iter().filter(charged).filter_map(part).collect(),
            is_here: decision.degraded.is_some(),
            is_hard: decision.scopes.iter().filter(charged).any(|it| it.rule.is_hard_budget()),
            spend: self.spend(request, decision),
            link: decision.link,
            currency: priced.and_then(|scope| scope.rule.currency),
            price: priced.and(decision.price).map(|price| {
                let mut price = Box::new(price.clone());
                // The request was paid before, and is not paid again when this is settled.
                if request.is_more {
                    price.per_request = 0;
                }
                price
            }),
        }
    }

    /// Sets what was charged by estimate to the truth: a difference is given back to the window it was
    /// charged in, or charged to the present one, above the limit if need be. Charges of unit requests
    /// stay; slots are given back.
    ///
    /// Idempotent under an id: a repeated call, by this node or another, also after a crash in the
    /// middle, changes nothing twice. A repeated call must pass the same receipts and the same
    /// truth, within two minutes. An id is valid for either a settlement or a release, whichever
    /// comes first.
    pub async fn settle(
        &self,
        id: u128,
        receipts: &Receipts,
        actual: Actual,
    ) -> Result<Settled, EngineError> {
        receipts.check_truth(&actual)?;
        self.append_usage(id, receipts, &actual).await;
        if receipts.is_empty() {
            return Ok(Settled::default());
        }
        let (settled, applied) = self.apply_truth(id, receipts, actual).await?;
        if applied != Applied::Before {
            self.reserved.settled(&settled);
        }
        Ok(settled)
    }

    /// Gives all of it back, requests too; once under an id, as [`Engine::settle`].
    pub async fn release(&self, id: u128, receipts: &Receipts) -> Result<Settled, EngineError> {
        self.note_released(id, receipts);
        if receipts.is_empty() {
            return Ok(Settled::default());
        }
        let (released, applied) = self.undo(id, receipts).await?;
        if applied != Applied::Before {
            self.reserved.released(&released);
        }
        Ok(released)
    }

    /// [`Engine::settle`] without a future. `None`: the store has to be awaited, and nothing was settled.
    pub fn settle_now(
        &self,
        id: u128,
        receipts: &Receipts,
        actual: Actual,
    ) -> Option<Result<Settled, EngineError>> {
        let store = self.store.as_sync()?;
        if let Err(error) = receipts.check_truth(&actual) {
            return Some(Err(error));
        }
        if receipts.is_empty() {
            self.note_usage(id, receipts, &actual);
            return Some(Ok(Settled::default()));
        }
        let truth = receipts.truth(&actual);
        let how = HoldChanged::Settled(actual);
        let adjusted = self.adjust_now(store, id, receipts, how, |part| part.change(&truth));
        Some(adjusted.map(|adjusted| {
            let settled = receipts.settled(&truth, &adjusted.refunded);
            if adjusted.applied != Applied::Before {
                self.note_usage(id, receipts, &actual);
                self.reserved.settled(&settled);
            }
            settled
        }))
    }

    pub(crate) async fn apply_truth(
        &self,
        id: u128,
        receipts: &Receipts,
        actual: Actual,
    ) -> Result<(Settled, Applied), EngineError> {
        let truth = receipts.truth(&actual);
        let how = HoldChanged::Settled(actual);
        let adjusted = self.adjust(id, receipts, how, |part| part.change(&truth)).await?;
        Ok((receipts.settled(&truth, &adjusted.refunded), adjusted.applied))
    }

    pub(crate) async fn undo(
        &self,
        id: u128,
        receipts: &Receipts,
    ) -> Result<(Settled, Applied), EngineError> {
        let adjusted = self.adjust(id, receipts, HoldChanged::Released, Part::undone).await?;
        Ok((receipts.settled(&Amounts::NONE, &adjusted.refunded), adjusted.applied))
    }

    pub(crate) fn undo_now(
        &self,
        store: &dyn SyncStore,
        id: u128,
        receipts: &Receipts,
    ) -> Result<Adjusted, EngineError> {
        self.adjust_now(store, id, receipts, HoldChanged::Released, Part::undone)
    }

    async fn adjust(
        &self,
        id: u128,
        receipts: &Receipts,
        how: HoldChanged,
        change: impl Fn(&Part) -> Change,
    ) -> Result<Adjusted, EngineError> {
        let keys = receipts.keys();
        let rules = self.rules();
        let adjustments = receipts.adjustments(&keys, &rules.set, change);
        let settlement = receipts.settlement(id, &adjustments);
        let now = self.clock().now();
        let adjusted = self.store.settle(&settlement, now).await?;
        if adjusted.applied != Applied::Before {
            self.notify_change(|| receipts.change(id, now, how));
        }
        Ok(adjusted)
    }

    fn adjust_now(
        &self,
        store: &dyn SyncStore,
        id: u128,
        receipts: &Receipts,
        how: HoldChanged,
        change: impl Fn(&Part) -> Change,
    ) -> Result<Adjusted, EngineError> {
        let keys = receipts.keys();
        let rules = self.rules();
        let adjustments = receipts.adjustments(&keys, &rules.set, change);
        let settlement = receipts.settlement(id, &adjustments);
        let now = self.clock().now();
        let adjusted = store.settle_sync(&settlement, now)?;
        if adjusted.applied != Applied::Before {
            self.notify_change(|| receipts.change(id, now, how));
        }
        Ok(adjusted)
    }
}
