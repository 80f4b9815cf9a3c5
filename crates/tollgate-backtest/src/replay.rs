//! The replay: every request is decided by the rules to test, and by the baseline.

use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::sync::Arc;

use tollgate_core::Nanos;
use tollgate_engine::{ActiveRules, Decision, Engine, MissingKey, Receipts, Refunds, Request};
use tollgate_policy::{RequestPath, RuleSet, Unit};
use tollgate_store::{MemoryStore, Mode};

use crate::clock::VirtualClock;
use crate::error::BacktestError;
use crate::format::Format;
use crate::guard::{Aim, Guard};
use crate::mapping::Mapping;
use crate::record::{Malformed, Record};
use crate::report::{self, Report};
use crate::shadows::Shadows;
use crate::tally::{AFTER, BEFORE, Fate, SideTally, Tally};
use crate::trace::Trace;
use crate::traffic::Traffic;

/// The most counters of each rule set: about 40 MB when full.
const MAX_COUNTERS: usize = 1_000_000;

/// The most slots that are held at the same time; what is held beyond ends by its lifetime.
const MAX_HELD: usize = 1_000_000;

/// Progress is reported after so many requests.
const PROGRESS_EVERY: u64 = 4_096;

/// The status of a request that was refused when it was logged.
pub(crate) const TOO_MANY_REQUESTS: u16 = 429;

/// What to replay, and through what.
pub struct Options {
    /// The rules to test.
    pub rules: RuleSet,
    /// What the rules are called in the report.
    pub rules_name: String,
    /// The rules to compare with, and what they are called.
    pub baseline: Option<(RuleSet, String)>,
    /// The files of traffic; gzip and zstd are recognized.
    pub files: Vec<PathBuf>,
    /// Their format.
    pub format: Format,
    /// Which field is which attribute.
    pub mapping: Mapping,
    /// What recommended limits must keep to.
    pub aim: Aim,
    /// Conditions on which the backtest fails.
    pub guards: Vec<Guard>,
}

/// How far a replay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the files that were read, compressed where they are.
    pub read_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Requests that were decided.
    pub requests: u64,
}

/// Replays the traffic and reports.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Report, BacktestError> {
    run_observed(options, progress, &mut |_| {})
}

/// [`run`], with every decision of the rules to test shown to `observe`, in order.
pub fn run_observed(
    options: &Options,
    progress: &mut dyn FnMut(Progress),
    observe: &mut dyn FnMut(&Decision<'_>),
) -> Result<Report, BacktestError> {
    let mut traffic = Traffic::open(&options.files, options.format, &options.mapping)?;
    let mut replay = Replay::new(options);
    let total_bytes = traffic.total_bytes;
    while let Some(record) = traffic.next()? {
        if let Err(problem) = replay.decide(&record, observe) {
            traffic.reject(&record, problem);
        }
        traffic.reuse(record);
        let requests = replay.tally.requests;
        if requests.is_multiple_of(PROGRESS_EVERY) {
            progress(Progress { read_bytes: traffic.read_bytes(), total_bytes, requests });
        }
    }
    let requests = replay.tally.requests;
    progress(Progress { read_bytes: total_bytes, total_bytes, requests });
    let mut input = traffic.faults.input;
    input.notes.extend(traffic.samples.notes(&options.rules));
    report::build(options, replay, input)
}

/// Everything that grows while traffic is replayed.
pub(crate) struct Replay {
    clock: Arc<VirtualClock>,
    pub(crate) before: Option<Side>,
    pub(crate) after: Side,
    pub(crate) tally: Tally,
    pub(crate) trace: Trace,
    pub(crate) shadows: Shadows,
}

impl Replay {
    fn new(options: &Options) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let side = |rules: &RuleSet| Side::new(rules, &clock);
        Self {
            before: options.baseline.as_ref().map(|(rules, _)| side(rules)),
            after: side(&options.rules),
            tally: Tally::new(),
            trace: Trace::default(),
            shadows: Shadows::default(),
            clock,
        }
    }

    fn decide(
        &mut self,
        record: &Record,
        observe: &mut dyn FnMut(&Decision<'_>),
    ) -> Result<(), Malformed> {
        // A decision borrows from its rules as long as from the request.
        let before_rules = self.before.as_ref().map(|side| Arc::clone(&side.rules));
        let after_rules = Arc::clone(&self.after.rules);
        let endpoint = record.get(tollgate_policy::Known::Endpoint);
        let path = if endpoint.is_empty() {
            None
        } else {
            Some(RequestPath::parse(endpoint).map_err(|_| Malformed::Path)?)
        };
        let mut attributes = record.attributes();
        if let Some(path) = &path {
            attributes.set_path(path);
        }
        self.clock.advance_to(record.at);
        let now = tollgate_engine::Clock::now(&*self.clock);
        self.shadows.add(&after_rules.set, &attributes, now);
        let client = self.tally.client(&attributes);
        let mut request = Request { attributes, amounts: record.amounts, ..Request::default() };
        let mut before = None;
        if let (Some(side), Some(rules)) = (&mut self.before, &before_rules) {
            before = side.decide(rules, &mut request, record, now, |_| {});
        }
        let trace = &mut self.trace;
        let after = self.after.decide(&after_rules, &mut request, record, now, |decision| {
            trace.add(decision, client);
            observe(decision);
        });
        let mut refused = [false; 2];
        refused[BEFORE] = before.is_some_and(|fate| fate.is_refused);
        refused[AFTER] = after.is_some_and(|fate| fate.is_refused);
        if let (Some(was_refused), Some(fate)) = (record.was_refused, before.or(after)) {
            self.tally.recorded += 1;
            self.tally.recorded_differently += u64::from(fate.is_refused != was_refused);
        }
        let rule = after.map_or(u32::MAX, |fate| fate.rule);
        self.tally.logged_429 += u64::from(record.status == Some(TOO_MANY_REQUESTS));
        self.tally.add(now, &request.attributes, client, refused, rule);
        Ok(())
    }
}

/// One rule set on its own counters.
pub(crate) struct Side {
    engine: Engine<MemoryStore>,
    pub(crate) rules: Arc<ActiveRules>,
    pub(crate) tally: SideTally,
    has_slots: bool,
    held: BinaryHeap<Held>,
}

impl Side {
    fn new(rules: &RuleSet, clock: &Arc<VirtualClock>) -> Self {
        let store = MemoryStore::new(MAX_COUNTERS).with_max_reservations(MAX_HELD);
        let clock = Arc::clone(clock);
        // As in the service: a rule whose key is missing does not apply.
        let engine = Engine::new(store, clock, rules.clone()).with_missing_key(MissingKey::Allow);
        let rules: Arc<ActiveRules> = Arc::clone(&engine.rules());
        let has_slots = rules.set.rules().iter().any(|rule| rule.unit == Unit::Concurrency);
        Self { engine, rules, tally: SideTally::default(), has_slots, held: BinaryHeap::new() }
    }

    /// Counters that had to make room, so that figures are too low.
    pub(crate) fn evicted(&self) -> u64 {
        self.engine.store().usage().evicted
    }

    fn decide<'r>(
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
        let releases = self.has_slots && record.duration.is_some();
        request.refunds = if releases { Refunds::Always } else { Refunds::Never };
        let Some(Ok(decision)) = self.engine.decide_now(rules, request, Mode::Charge) else {
            self.tally.undecided += 1;
            return None;
        };
        observe(&decision);
        let fate = self.tally.add(&decision);
        if let Some(duration) = record.duration
            && decision.slot.is_some()
            && self.held.len() < MAX_HELD
        {
            let receipts = self.engine.receipts(request, &decision).slots();
            self.held.push(Held { until: now.saturating_add(duration), receipts });
        }
        Some(fate)
    }
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
