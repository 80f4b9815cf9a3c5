//! Who is seen most: per rule the keys that consume most and those that are refused most, and the
//! busiest tenants and models.
//!
//! Only a sample of decisions is noted when there are many, each then standing for several. Reports
//! cover the last one to two minutes, or the last one to two hours, which begin at the same instants on
//! all nodes, so that their figures can be added.
//!
//! Threads note decisions in buffers that nobody reads for long; a reader takes them and adds them to what
//! was counted before.

use std::array;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::{Nanos, SECOND};
use tollgate_engine::{Decision, Request, Scope};
use tollgate_policy::Known;
use tollgate_store::api_key_id;
use xxhash_rust::xxh3::Xxh3;

use super::sketch::{Counted, Sketch};
use super::top_figures::{KeyFigures, TopFigures};
use crate::shards;

/// How long a period of the shorter window is.
const SHORT: Nanos = 60 * SECOND;
/// And one of the longer.
const LONG: Nanos = 3_600 * SECOND;

/// Buffers that threads note decisions in. A thread that finds all of them taken counts what it missed.
const BUFFERS: usize = 8;

/// Between the parts of a key. A value that contains it loses it, so that no client can forge a part.
pub(crate) const KEY_SEPARATOR: char = '\u{1f}';

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopBounds {
    /// Keys of one rule: of the allowed, the refused and those that would be refused each.
    pub keys: usize,
    /// Rules; those that come when there are so many are left out until the next period.
    pub rules: usize,
}

/// Which window is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// The last one to two minutes.
    Minutes,
    /// The last one to two hours.
    Hours,
}

/// The keys of one rule.
#[derive(Debug, Clone)]
struct RuleKeys {
    allowed: Sketch,
    refused: Sketch,
    would_deny: Sketch,
}

impl RuleKeys {
    fn new(keys: usize) -> Self {
        let [allowed, refused, would_deny] = [(); 3].map(|()| Sketch::new(keys));
        Self { allowed, refused, would_deny }
    }

    fn all(&self) -> [&Sketch; 3] {
        [&self.allowed, &self.refused, &self.would_deny]
    }
}

/// What was seen in one period.
#[derive(Debug, Clone)]
struct Period {
    since: Nanos,
    rules: HashMap<String, RuleKeys>,
    tenants: Sketch,
    models: Sketch,
    /// The largest number of decisions that one noted stood for.
    sampled: u64,
    /// What could not be noted, and may be any key's.
    missed: u64,
}

impl Period {
    fn new(since: Nanos, bounds: TopBounds) -> Self {
        let (tenants, models) = (Sketch::new(bounds.keys), Sketch::new(bounds.keys));
        Self { since, rules: HashMap::new(), tenants, models, sampled: 1, missed: 0 }
    }

    fn keys_of(&mut self, rule: &str, bounds: TopBounds) -> Option<&mut RuleKeys> {
        if !self.rules.contains_key(rule) {
            if self.rules.len() >= bounds.rules {
                return None;
            }
            self.rules.insert(rule.to_owned(), RuleKeys::new(bounds.keys));
        }
        self.rules.get_mut(rule)
    }

    fn merge(&mut self, other: &Self, bounds: TopBounds) {
        for (rule, theirs) in &other.rules {
            if let Some(own) = self.keys_of(rule, bounds) {
                own.allowed.merge(&theirs.allowed);
                own.refused.merge(&theirs.refused);
                own.would_deny.merge(&theirs.would_deny);
            }
        }
        self.tenants.merge(&other.tenants);
        self.models.merge(&other.models);
        self.sampled = self.sampled.max(other.sampled);
        self.missed = self.missed.saturating_add(other.missed);
    }

    fn figures(&self, rule: Option<&str>) -> TopFigures {
        let mut figures = TopFigures::new(self.since);
        figures.sampled = self.sampled;
        let of = |sketch: &Sketch| KeyFigures::of(sketch, self.missed);
        let wanted = self.rules.iter().filter(|(id, _)| rule.is_none_or(|rule| rule == *id));
        figures.rules = wanted.map(|(id, keys)| (id.clone(), keys.all().map(of))).collect();
        (figures.tenants, figures.models) = (of(&self.tenants), of(&self.models));
        figures
    }
}

/// A period, and the one before it.
struct Pair {
    now: Period,
    before: Option<Period>,
}

/// Who is seen most.
pub(crate) struct Tops {
    bounds: TopBounds,
    seed: u64,
    api_key_secret: Box<[u8]>,
    /// What threads have noted since they were read. Held for one decision, or to take what is there.
    buffers: [Mutex<Period>; BUFFERS],
    missed: AtomicU64,
    short: Mutex<Pair>,
    long: Mutex<Pair>,
}

impl Tops {
    pub(crate) fn new(bounds: TopBounds, seed: u64, api_key_secret: &[u8], now: Nanos) -> Self {
        let pair = || Mutex::new(Pair { now: Period::new(now, bounds), before: None });
        Self {
            bounds,
            seed,
            api_key_secret: api_key_secret.into(),
            buffers: array::from_fn(|_| Mutex::new(Period::new(now, bounds))),
            missed: AtomicU64::new(0),
            short: pair(),
            long: pair(),
        }
    }

    /// Notes a decision that stands for so many. No request waits for that.
    pub(crate) fn note(&self, request: &Request<'_>, decision: &Decision<'_>, weight: u64) {
        let own = shards::of_this_thread() % BUFFERS;
        let (before, after) = self.buffers.split_at(own);
        let Some(mut period) = after.iter().chain(before).find_map(Mutex::try_lock) else {
            let most = decision.scopes().map(|scope| scope.cost).max().unwrap_or(1).max(1);
            self.missed.fetch_add(weight.saturating_mul(most), Ordering::Relaxed);
            return;
        };
        let period = &mut *period;
        period.sampled = period.sampled.max(weight);
        for (label, sketch) in
            [(Known::TenantId, &mut period.tenants), (Known::ModelId, &mut period.models)]
        {
            if let Some(name) = request.attributes.get(label) {
                sketch.add(self.hash([name]), weight, || name.to_owned());
            }
        }
        let is_charged = decision.is_allowed() && !decision.is_refusal_ignored;
        for scope in decision.scopes().chain(decision.observed()) {
            let key = decision.key_values(scope);
            let would_refuse = decision.would_refuse(scope);
            // Those who only passed where others refused have consumed nothing, and a member of a quota group without
            // room refuses nothing while another has some.
            if key.is_empty() || (is_charged == scope.refuses() && !would_refuse) {
                continue;
            }
            let Some(keys) = period.keys_of(&scope.rule.id, self.bounds) else { continue };
            let hash = self.hash(key.iter().copied());
            let name = || self.name(decision, scope);
            if would_refuse {
                keys.would_deny.add(hash, weight, name);
            } else if scope.refuses() {
                keys.refused.add(hash, weight, name);
            } else {
                keys.allowed.add(hash, weight.saturating_mul(scope.cost), name);
            }
        }
    }

    /// Adds what threads have noted to the period of now.
    fn collect(&self, pair: &mut Pair) {
        for buffer in &self.buffers {
            let noted = {
                let mut buffer = buffer.lock();
                let next = Period::new(buffer.since, self.bounds);
                std::mem::replace(&mut *buffer, next)
            };
            pair.now.merge(&noted, self.bounds);
        }
        pair.now.missed = pair.now.missed.saturating_add(self.missed.swap(0, Ordering::Relaxed));
    }

    /// Ends the periods whose time is over.
    pub(crate) fn turn(&self, now: Nanos) {
        let ended = {
            let mut pair = self.short.lock();
            self.collect(&mut pair);
            if now / SHORT <= pair.now.since / SHORT {
                return;
            }
            let ended = std::mem::replace(&mut pair.now, Period::new(now, self.bounds));
            pair.before = Some(ended.clone());
            ended
        };
        let mut pair = self.long.lock();
        if now / LONG > pair.now.since / LONG {
            let next = Period::new(now, self.bounds);
            pair.before = Some(std::mem::replace(&mut pair.now, next));
        }
        pair.now.merge(&ended, self.bounds);
    }

    /// Who was seen most: of one rule, or of all.
    pub(crate) fn read(&self, window: Window, rule: Option<&str>) -> TopFigures {
        let mut pair = self.short.lock();
        self.collect(&mut pair);
        let mut all = match (&pair.before, window) {
            (Some(before), Window::Minutes) => before.clone(),
            _ => Period::new(pair.now.since, self.bounds),
        };
        all.merge(&pair.now, self.bounds);
        drop(pair);
        if window == Window::Hours {
            let pair = self.long.lock();
            let mut hours =
                pair.before.clone().unwrap_or_else(|| Period::new(pair.now.since, self.bounds));
            hours.merge(&pair.now, self.bounds);
            drop(pair);
            hours.merge(&all, self.bounds);
            all = hours;
        }
        all.figures(rule)
    }

    /// The busiest tenants or models of the last minutes, and how often any other one was seen at most.
    pub(crate) fn busiest(&self, label: Known, most: usize) -> (Vec<Counted>, u64) {
        let mut pair = self.short.lock();
        self.collect(&mut pair);
        let of = |period: &Period| match label {
            Known::ModelId => period.models.clone(),
            _ => period.tenants.clone(),
        };
        let mut all = of(&pair.now);
        if let Some(before) = &pair.before {
            all.merge(&of(before));
        }
        drop(pair);
        (all.top(most), all.floor())
    }

    fn hash<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> u64 {
        let mut hash = Xxh3::with_seed(self.seed);
        for part in parts {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.digest()
    }

    /// The parts of a key as `name=value`; API keys by their id.
    fn name<'r>(&self, decision: &Decision<'r>, scope: &Scope<'r>) -> String {
        let mut text = String::new();
        for (name, value) in decision.key_parts(scope) {
            if !text.is_empty() {
                text.push(KEY_SEPARATOR);
            }
            // Writing to memory does not fail.
            let _ = if name == Known::ApiKey.name() {
                let id = api_key_id(&self.api_key_secret, value);
                write!(text, "api_key_id={id}")
            } else {
                write!(text, "{name}={}", value.replace(KEY_SEPARATOR, "\u{fffd}"))
            };
        }
        text
    }
}
