//! Which concurrency counters this node has seen, so that the slots held on them can be listed.
//!
//! Stores find a counter by its name and cannot tell the names. The book is bounded; a counter that holds
//! nothing any more leaves it when it is looked at.

use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::Mutex;
use tollgate_core::Slot;
use tollgate_store::{Counter, Home, Store};
use xxhash_rust::xxh3::Xxh3;

use crate::decision::applied;
use crate::limit_checks::{LimitChecks, Stores};
use crate::{Decision, Engine, EngineError};

/// So many counters are known; beyond, new ones are not.
const MAX_COUNTERS: usize = 10_000;

/// So many counters are looked at for one page.
const MAX_LOOKED_AT: usize = 1_000;

/// The counters that hold slots, or did.
#[derive(Default)]
pub(crate) struct SlotBook(Mutex<BTreeMap<u128, Known>>);

#[derive(Clone)]
struct Known {
    rule_id: String,
    tag: Box<str>,
    salt: u128,
    key: Vec<String>,
    home: Home,
    /// A bit for every value of the key that is not to be shown.
    secrets: u32,
    quota: u64,
}

/// The slots that are held on one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSlots {
    /// The rule.
    pub rule_id: String,
    /// The values of its key, in the rule's order; what is secret is not shown.
    pub key: Vec<String>,
    /// How many may be held.
    pub limit: u64,
    /// Those that are, the one that expires first before the others. A long list is cut.
    pub slots: Vec<Slot>,
}

/// Some counters that hold slots, and where to go on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlotsPage {
    /// The counters.
    pub counters: Vec<HeldSlots>,
    /// Where the next page begins; none if this is the last.
    pub next: Option<u128>,
}

impl SlotBook {
    /// Notes the counters of a decision that took a slot.
    pub(crate) fn note(
        &self,
        checks: &LimitChecks<'_>,
        decision: &Decision<'_>,
        stores: &Stores<'_>,
    ) {
        for line in checks.iter().filter(|line| line.quota.holds_slots()) {
            let Some(one) = applied(&decision.resolution, line.applied) else { continue };
            let place = place(line.limit.salt, &one.key);
            let mut book = self.0.lock();
            let has_room = book.len() < MAX_COUNTERS;
            match book.get_mut(&place) {
                Some(known) => known.quota = line.quota.quota(),
                None if has_room => {
                    let known = Known {
                        rule_id: line.rule.id.clone(),
                        tag: line.limit.tag.as_str().into(),
                        salt: line.limit.salt,
                        key: one.key.iter().map(|value| (*value).to_owned()).collect(),
                        home: stores.home(line.rule, &one.key),
                        secrets: line.rule.key_places.secrets_of(&one.key),
                        quota: line.quota.quota(),
                    };
                    book.insert(place, known);
                }
                None => {}
            }
        }
    }

    fn page(&self, after: Option<u128>, rule_id: Option<&str>) -> Vec<(u128, Known)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let book = self.0.lock();
        let wanted = |known: &Known| rule_id.is_none_or(|rule_id| known.rule_id == rule_id);
        let found = book.range((from, Bound::Unbounded)).filter(|(_, known)| wanted(known));
        found.take(MAX_LOOKED_AT).map(|(place, known)| (*place, known.clone())).collect()
    }
}

fn place(salt: u128, key: &[&str]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&salt.to_le_bytes());
    for part in key {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.digest128()
}

impl<S: Store> Engine<S> {
    /// The counters that this node has seen take slots and that hold some now, of all rules or of one:
    /// at most `most` of them, after the page before.
    pub async fn slots(
        &self,
        rule_id: Option<&str>,
        after: Option<u128>,
        most: usize,
    ) -> Result<SlotsPage, EngineError> {
        let known = self.slot_book.page(after, rule_id);
        let is_all = known.len() < MAX_LOOKED_AT;
        let mut page = SlotsPage::default();
        let mut last = None;
        for (place, known) in known {
            if page.counters.len() == most {
                page.next = last;
                return Ok(page);
            }
            last = Some(place);
            let key: Vec<&str> = known.key.iter().map(String::as_str).collect();
            let Known { rule_id, tag, salt, home, secrets, quota, .. } = &known;
            let counter = Counter { rule_id, tag, salt: *salt, key: &key, home: *home };
            let slots = self.store.slots(&counter, self.clock().now()).await?;
            if slots.is_empty() {
                self.slot_book.0.lock().remove(&place);
                continue;
            }
            let is_secret = |index: usize| index < 32 && secrets >> index & 1 == 1;
            let shown = |(index, value): (usize, &&str)| {
                if is_secret(index) { "(hidden)".to_owned() } else { (*value).to_owned() }
            };
            page.counters.push(HeldSlots {
                rule_id: rule_id.clone(),
                key: key.iter().enumerate().map(shown).collect(),
                limit: *quota,
                slots,
            });
        }
        page.next = if is_all { None } else { last };
        Ok(page)
    }
}
