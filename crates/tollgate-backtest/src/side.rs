//! One rule set on its own counters.

use std::collections::BinaryHeap;
use std::sync::Arc;

use hashbrown::HashSet;
use tollgate_core::Nanos;
use tollgate_engine::{
    ActiveRules, Decision, Enforcement, Engine, MissingKey, Receipts, Refunds, Request,
};
use tollgate_policy::{RuleSet, Unit};
use tollgate_store::{MemoryStore, Mode};
use xxhash_rust::xxh3::Xxh3;

use crate::clock::VirtualClock;
use crate::holds::{self, Holds};
use crate::record::Record;
use crate::tally::{Fate, SideTally};

/// The most counters of each rule set: about 40 MB when full.
const MAX_COUNTERS: usize = 1_000_000;

/// The most slots that are held at the same time; what is held beyond ends by its lifetime.
const MAX_HELD: usize = 1_000_000;

/// One rule set on its own counters.
pub(crate) struct Side {
    engine: Engine<MemoryStore>,
    pub(crate) rules: Arc<ActiveRules>,
    pub(crate) tally: SideTally,
    has_slots: bool,
    /// Slots whose end the log says with their request.
    held: BinaryHeap<Held>,
    /// What recorded requests hold until the recording says what became of it.
    holds: Holds,
    /// Counters that a recorded request has met.
    met: HashSet<u64, foldhash::fast::RandomState>,
}

impl Side {
    pub(crate) fn new(rules: &RuleSet, clock: &Arc<VirtualClock>) -> Self {
        let store = MemoryStore::new(MAX_COUNTERS).with_max_reservations(MAX_HELD);
        let clock = Arc::clone(clock);
        // As in the service: a rule whose key is missing does not apply.
        let engine = Engine::new(store, clock, rules.clone()).with_missing_key(MissingKey::Allow);
        let rules: Arc<ActiveRules> = Arc::clone(&engine.rules());
        let has_slots = has_slots(&rules.set);
        Self {
            engine,
            rules,
            tally: SideTally::default(),
            has_slots,
            held: BinaryHeap::new(),
            holds: Holds::default(),
            met: HashSet::default(),
        }
    }

    /// Puts other rules in force; what was counted stays.
    pub(crate) fn swap_rules(&mut self, rules: RuleSet) {
        self.has_slots = has_slots(&rules);
        self.engine.swap_rules(rules);
        self.rules = Arc::clone(&self.engine.rules());
        self.tally.forget_places();
    }

    /// Enforces refusals, or only reports them, as the node did.
    pub(crate) fn set_enforcement(&self, mode: Enforcement) {
        self.engine.set_enforcement(mode);
    }

    /// Counters that had to make room, so that figures are too low.
    pub(crate) fn evicted(&self) -> u64 {
        self.engine.store().usage().evicted
    }

    /// Events about something that no replayed request holds.
    pub(crate) const fn unlinked(&self) -> u64 {
        self.holds.unlinked
    }

    pub(crate) fn decide<'r>(
        &mut self,
        rules: &'r ActiveRules,
        request: &mut Request<'r>,
        record: &Record,
        now: Nanos,
        mut observe: impl FnMut(&Decision<'_>),
    ) -> Option<Fate> {
        while self.held.peek().is_some_and(|held| held.until <= now) {
            if let Some(held) = self.held.pop() {
                // The memory store answers at once, and a slot that expired needs no release.
                let _ = self.engine.give_back_now(&held.receipts);
            }
        }
        let is_recorded = record.was_refused.is_some();
        if is_recorded {
            self.charge_used(rules, request, record);
            request.reserve = record.event.ttl;
            request.refunds = holds::refunds(record);
        } else {
            let releases = self.has_slots && record.duration.is_some();
            request.refunds = if releases { Refunds::Always } else { Refunds::Never };
        }
        let Some(Ok(decision)) = self.engine.decide_now(rules, request, Mode::Charge) else {
            self.tally.undecided += 1;
            return None;
        };
        observe(&decision);
        let fate = self.tally.add(&decision);
        if is_recorded {
            self.meet(&decision);
            self.holds.open(&self.engine, record, request, &decision);
        } else if let Some(duration) = record.duration
            && decision.slot.is_some()
            && self.held.len() < MAX_HELD
        {
            let receipts = self.engine.receipts(request, &decision).slots();
            self.held.push(Held { until: now.saturating_add(duration), receipts });
        }
        Some(fate)
    }

    /// Charges more of a request that was allowed before. It is no request of its own, and is not counted as one.
    pub(crate) fn charge_more<'r>(
        &mut self,
        rules: &'r ActiveRules,
        request: Request<'r>,
        record: &Record,
    ) {
        let refunds = holds::refunds(record);
        let request = Request { is_more: true, refunds, reserve: record.event.ttl, ..request };
        if let Some(Ok(decision)) = self.engine.decide_now(rules, &request, Mode::Charge) {
            self.holds.open(&self.engine, record, &request, &decision);
        }
    }

    /// Settles, releases or renews what a request holds.
    pub(crate) fn change_held(&mut self, record: &Record) {
        self.holds.change(&self.engine, record);
    }

    /// Resets the counters of a client under rules of these ids.
    pub(crate) fn reset<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        rule_ids: &[String],
    ) {
        let reset = self.engine.reset(rules, request, |rule| rule_ids.contains(&rule.id));
        // The memory store answers at once.
        let _ = futures_util::FutureExt::now_or_never(reset);
    }

    /// Charges what the node had counted before its recording begins, to counters that are met now.
    fn charge_used<'r>(&self, rules: &'r ActiveRules, request: &Request<'r>, record: &Record) {
        let used = &record.event.used;
        if used.is_empty() {
            return;
        }
        let _ = self.engine.charge_used_now(rules, request, |rule, limit, key| {
            let known = used.iter().find(|(id, tag, _)| *id == rule.id && *tag == limit.tag);
            match known {
                Some((.., used)) if !self.met.contains(&counter(limit.salt, key)) => *used,
                _ => 0,
            }
        });
    }

    fn meet(&mut self, decision: &Decision<'_>) {
        for scope in decision.scopes().chain(decision.observed()) {
            if self.met.len() < MAX_COUNTERS {
                self.met.insert(counter(scope.limit.salt, decision.key_values(scope)));
            }
        }
    }
}

fn has_slots(rules: &RuleSet) -> bool {
    rules.rules().iter().any(|rule| rule.unit == Unit::Concurrency)
}

/// Names a counter.
fn counter(salt: u128, key: &[&str]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&salt.to_le_bytes());
    for value in key {
        hash.update(&(value.len() as u64).to_le_bytes());
        hash.update(value.as_bytes());
    }
    hash.digest()
}

/// Slots to release when a request ends.
struct Held {
    until: Nanos,
    receipts: Receipts,
}

/// The one that ends first is the greatest.
impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.until.cmp(&self.until)
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Held {}
