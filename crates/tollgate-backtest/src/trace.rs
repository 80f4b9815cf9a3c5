//! What every limit was asked, so that it can be asked again under other quotas.

use hashbrown::HashMap;
use tollgate_core::{Algorithm, Limit, Nanos};
use tollgate_engine::{Decision, Scope};
use tollgate_policy::{Action, Quota};

/// The most events that are kept, over all limits: 24 bytes each. With more, the limit with the most
/// events keeps those of half of its counters.
const MAX_EVENTS: usize = 2_000_000;

/// The most limits that are traced.
const MAX_LIMITS: usize = 512;

/// One request to one limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) at: Nanos,
    /// Which counter.
    pub(crate) key: u32,
    /// Which client; [`u32::MAX`] beyond the table of clients.
    pub(crate) client: u32,
    pub(crate) cost: u32,
}

/// Names a limit: the address of its [`tollgate_policy::RuleLimit`], and its quota, which differs by tier
/// and by grant.
type Name = (usize, u64);

/// All that one limit was asked.
pub(crate) struct LimitTrace {
    pub(crate) rule_id: String,
    pub(crate) tag: String,
    pub(crate) unit: &'static str,
    pub(crate) limit: Limit,
    /// Whether the burst is the quota, and follows it.
    pub(crate) is_burst_implied: bool,
    pub(crate) max_delay: Option<Nanos>,
    pub(crate) events: Vec<Event>,
    /// The counters that are kept, by the hash of their key.
    keys: HashMap<u64, u32, foldhash::fast::RandomState>,
    next_key: u32,
    /// Counters are kept whose hash begins with so many zero bits.
    halvings: u32,
    /// One counter only is left, and its end is missing.
    pub(crate) is_cut: bool,
}

impl LimitTrace {
    /// One in so many counters was kept.
    pub(crate) const fn sampling(&self) -> u64 {
        1 << self.halvings
    }

    fn push(&mut self, hash: u64, event: Event) -> bool {
        if self.is_cut || !is_kept(hash, self.halvings) {
            return false;
        }
        let next = &mut self.next_key;
        let key = *self.keys.entry(hash).or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        self.events.push(Event { key, ..event });
        true
    }

    /// Leaves out half of the counters; returns how many events that were.
    fn halve(&mut self) -> usize {
        let (before, halvings) = (self.events.len(), self.halvings + 1);
        if !self.keys.keys().any(|hash| is_kept(*hash, halvings)) {
            // The last counter: its beginning is more than nothing.
            self.is_cut = true;
            return 0;
        }
        self.keys.retain(|hash, _| is_kept(*hash, halvings));
        let mut kept = vec![false; self.next_key as usize];
        for key in self.keys.values() {
            if let Some(mark) = kept.get_mut(*key as usize) {
                *mark = true;
            }
        }
        self.events.retain(|event| kept.get(event.key as usize).copied().unwrap_or(false));
        self.halvings = halvings;
        before - self.events.len()
    }
}

/// The highest bits say which counters are kept; the table uses the others.
const fn is_kept(hash: u64, halvings: u32) -> bool {
    halvings == 0 || hash.leading_zeros() >= halvings
}

/// What all limits were asked.
#[derive(Default)]
pub(crate) struct Trace {
    names: HashMap<Name, usize, foldhash::fast::RandomState>,
    pub(crate) limits: Vec<LimitTrace>,
    hasher: foldhash::quality::RandomState,
    events: usize,
}

impl Trace {
    /// Adds what a decision asked of its limits.
    pub(crate) fn add(&mut self, decision: &Decision<'_>, client: Option<u32>) {
        for scope in decision.scopes().chain(decision.observed()) {
            self.add_scope(decision, scope, client);
        }
    }

    fn add_scope<'d>(&mut self, decision: &Decision<'d>, scope: &Scope<'d>, client: Option<u32>) {
        if scope.cost == 0 {
            return;
        }
        let name = (std::ptr::from_ref(scope.limit).addr(), scope.quota);
        let place = match self.names.get(&name) {
            Some(place) => *place,
            None => match trace_of(scope) {
                Some(trace) if self.limits.len() < MAX_LIMITS => {
                    self.limits.push(trace);
                    self.names.insert(name, self.limits.len() - 1);
                    self.limits.len() - 1
                }
                _ => return,
            },
        };
        let hash = std::hash::BuildHasher::hash_one(&self.hasher, decision.key_values(scope));
        let Some(trace) = self.limits.get_mut(place) else { return };
        let cost = u32::try_from(scope.cost).unwrap_or(u32::MAX);
        let event = Event { at: decision.now, key: 0, client: client.unwrap_or(u32::MAX), cost };
        self.events += usize::from(trace.push(hash, event));
        while self.events >= MAX_EVENTS {
            let open = self.limits.iter_mut().filter(|trace| !trace.is_cut);
            let Some(largest) = open.max_by_key(|trace| trace.events.len()) else { break };
            self.events -= largest.halve();
        }
    }
}

/// Begins the trace of a limit; none for slots, whose lengths the events do not have, and for what is
/// suspended.
fn trace_of(scope: &Scope<'_>) -> Option<LimitTrace> {
    let all = scope.limit.base.iter().chain(scope.limit.tiers.iter().map(|(_, quota)| quota));
    let limit = all.filter_map(Quota::limit).find(|limit| limit.quota() == scope.quota);
    // A grant raises the quota above all that the rule states: its algorithm and window stay.
    let limit = limit.or_else(|| scope.limit.base.as_ref().and_then(Quota::limit))?;
    if limit.algorithm() == Algorithm::Concurrency || scope.quota == 0 {
        return None;
    }
    let is_throttled = scope.rule.action == Action::Throttle;
    Some(LimitTrace {
        rule_id: scope.rule.id.clone(),
        tag: scope.limit.tag.clone(),
        unit: scope.rule.unit.name(),
        limit: limit.clone(),
        is_burst_implied: matches!(
            limit.algorithm(),
            Algorithm::TokenBucket | Algorithm::LeakyBucket
        ) && limit.capacity() == limit.quota(),
        max_delay: is_throttled.then(|| scope.rule.max_delay.unwrap_or(0)),
        events: Vec::new(),
        keys: HashMap::default(),
        next_key: 0,
        halvings: 0,
        is_cut: false,
    })
}
