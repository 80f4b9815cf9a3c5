//! What a decision charged, kept beyond the rules it was made by, so that it can be given back.

use tollgate_core::{Limit, Nanos, Receipt, SlotId};
use tollgate_store::{Counter, GiveBack, Home, Store};

use crate::decision::{Decision, applied};
use crate::lines::Stores;
use crate::{Engine, EngineError, Request};

/// What one decision charged. Good for one give-back.
#[derive(Debug, Clone, Default)]
pub struct Receipts {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
struct Part {
    rule_id: String,
    tag: Box<str>,
    salt: u128,
    key: Vec<String>,
    home: Home,
    limit: Limit,
    receipt: Receipt,
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
        self
    }

    /// All but the slots.
    #[must_use]
    pub fn without_slots(mut self) -> Self {
        self.parts.retain(|part| !matches!(part.receipt, Receipt::Slot(_)));
        self
    }

    /// How long the slots among it are held unless renewed, the shortest of them.
    pub fn slot_ttl(&self) -> Option<Nanos> {
        let slots = self.parts.iter().filter(|part| matches!(part.receipt, Receipt::Slot(_)));
        slots.map(|part| part.limit.slot_ttl()).min()
    }

    /// The slot that it holds, if any.
    pub fn slot(&self) -> Option<SlotId> {
        self.parts.iter().find_map(|part| match part.receipt {
            Receipt::Slot(slot) => Some(slot),
            _ => None,
        })
    }
}

impl<S: Store> Engine<S> {
    /// What this decision charged; nothing if it only looked, or refused.
    pub fn receipts(&self, request: &Request<'_>, decision: &Decision<'_>) -> Receipts {
        let stores = Stores::new(self.store.names(), request);
        let charged = |scope: &&crate::Scope<'_>| scope.outcome.receipt != Receipt::Nothing;
        let part = |scope: &crate::Scope<'_>| {
            let one = applied(&decision.resolution, scope.applied())?;
            Some(Part {
                rule_id: scope.rule.id.clone(),
                tag: scope.limit.tag.as_str().into(),
                salt: scope.limit.salt,
                key: one.key.iter().map(|value| (*value).to_owned()).collect(),
                home: stores.home(scope.rule, &one.key),
                limit: scope.exact.clone(),
                receipt: scope.outcome.receipt,
            })
        };
        Receipts { parts: decision.scopes.iter().filter(charged).filter_map(part).collect() }
    }

    /// Gives back what was charged.
    pub async fn give_back(&self, receipts: &Receipts) -> Result<(), EngineError> {
        if receipts.is_empty() {
            return Ok(());
        }
        let keys: Vec<Vec<&str>> = receipts
            .parts
            .iter()
            .map(|part| part.key.iter().map(String::as_str).collect())
            .collect();
        let returns: Vec<GiveBack<'_>> = receipts
            .parts
            .iter()
            .zip(&keys)
            .map(|(part, key)| GiveBack {
                counter: Counter {
                    rule_id: &part.rule_id,
                    tag: &part.tag,
                    salt: part.salt,
                    key,
                    home: part.home,
                },
                limit: &part.limit,
                receipt: part.receipt,
            })
            .collect();
        let now: Nanos = self.clock().now();
        Ok(self.store.give_back(&returns, now).await?)
    }

    /// Holds the slots among it for another lifetime. False if one is no longer held.
    pub async fn renew(&self, receipts: &Receipts) -> Result<bool, EngineError> {
        let mut held = true;
        for part in &receipts.parts {
            let Receipt::Slot(slot) = part.receipt else { continue };
            let key: Vec<&str> = part.key.iter().map(String::as_str).collect();
            let counter = Counter {
                rule_id: &part.rule_id,
                tag: &part.tag,
                salt: part.salt,
                key: &key,
                home: part.home,
            };
            held &= self.store.renew(&counter, &part.limit, slot, self.clock().now()).await?;
        }
        Ok(held)
    }
}
